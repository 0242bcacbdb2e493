package netjail

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// makeNamespace makes a named network namespace with IPv6 off for every link that it will ever have.
func makeNamespace(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make %s: %w", filepath.Dir(path), err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("make namespace %s: %w", path, err)
	}
	_ = f.Close() // only its name is needed
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make namespace %s: %w", path, err)
		}
		self := fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
		if err := unix.Mount(self, path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("name namespace %s: %w", path, err)
		}
		return noIPv6("all", "default", "lo")
	})
	if err != nil {
		return errors.Join(err, removeNamespace(path))
	}
	return nil
}

// removeNamespace unnames a namespace; it goes when the last process in it does. One that is not there is no error.
func removeNamespace(path string) error {
	for { // twice mounted ones exist: a crash between two attempts
		err := unix.Unmount(path, unix.MNT_DETACH)
		if err == nil {
			continue
		}
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount namespace %s: %w", path, err)
		}
		break
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove namespace %s: %w", path, err)
	}
	return nil
}

// isNamespace says whether path is a namespace, and not the bare file of an attempt that was cut off.
func isNamespace(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.NSFS_MAGIC
}

// within runs f with the calling thread in the network namespace of that name.
func within(path string, f func(ns netns.NsHandle) error) error {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return fmt.Errorf("open namespace %s: %w", path, err)
	}
	defer func() { _ = ns.Close() }()
	return onThread(func() error {
		if err := netns.Set(ns); err != nil {
			return fmt.Errorf("enter namespace %s: %w", path, err)
		}
		return f(ns)
	})
}

// onThread runs f on a thread of its own that is thrown away afterwards, because its namespace is not the process's.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- f()
	}()
	return <-done
}

// noIPv6 turns IPv6 off for links of the calling thread's namespace; where the kernel has none, it is off already.
func noIPv6(links ...string) error {
	for _, l := range links {
		err := sysctl("ipv6", "conf/"+l+"/disable_ipv6", "1")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// sysctl writes /proc/sys/net/FAMILY/NAME of the calling thread's namespace.
func sysctl(family, name, value string) error {
	path := filepath.Join("/proc/sys/net", family, name)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return fmt.Errorf("set %s: %w", path, err)
	}
	if _, err := f.WriteString(value); err != nil {
		return errors.Join(fmt.Errorf("set %s to %s: %w", path, value, err), f.Close())
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("set %s to %s: %w", path, value, err)
	}
	return nil
}
