package testenv

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// envNetwork is set for a test process that is in a network of its own.
const envNetwork = "SANDGATE_TEST_OWN_NETWORK"

// outsideFD is where such a process holds the network that it came from.
const outsideFD = 3

// OwnNetwork runs a package's tests in a network namespace of their own, where only a loopback is, and gives the exit
// code; call it from TestMain. What servers under test do to "the host's" network then ends with the tests and never
// happens to the machine. The names of namespaces, and which name server there is (127.0.0.1, where nobody answers unless a
// test does), are private too. Without root there is nothing to keep apart: the tests run where they are.
func OwnNetwork(run func() int) int {
	if os.Geteuid() != 0 {
		return run()
	}
	code, err := ownNetwork(run)
	if err != nil {
		fmt.Fprintln(os.Stderr, "a network of the tests' own:", err)
		return 1
	}
	return code
}

func ownNetwork(run func() int) (int, error) {
	if os.Getenv(envNetwork) != "" {
		if err := furnish(); err != nil {
			return 0, err
		}
		return run(), nil
	}
	here, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return 0, err
	}
	defer func() { _ = here.Close() }()
	runtime.LockOSThread() // the child dies with the thread that started it
	defer runtime.UnlockOSThread()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{here} // becomes outsideFD
	cmd.Env = append(os.Environ(), envNetwork+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(1, exit.ExitCode()), nil
	}
	return 0, err
}

// furnish makes the new namespaces fit to live in.
func furnish() error {
	unix.CloseOnExec(outsideFD) // not for the programs under test
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	const names = "/run/netns"
	if err := os.MkdirAll(names, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", names, "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount %s: %w", names, err)
	}
	dir, err := os.MkdirTemp("", "sandgate-network-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // the mount keeps the file
	file := filepath.Join(dir, "resolv.conf")
	if err := os.WriteFile(file, []byte("nameserver 127.0.0.1\n"), 0o644); err != nil {
		return err
	}
	if err := unix.Mount(file, "/etc/resolv.conf", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount a resolv.conf: %w", err)
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("start the loopback: %w: %s", err, out)
	}
	return nil
}

// Outside runs f in the network that the tests came from: what f opens belongs there for good. For what has to reach the
// world, such as a relay to where packages come from. Only from a test process that OwnNetwork started.
func Outside(f func() error) error { return within(outsideFD, f) }

// Within runs f in the network namespace of a file, such as /run/netns/NAME.
func Within(path string, f func() error) error {
	ns, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	return within(int(ns.Fd()), f)
}

func within(fd int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: a thread that was elsewhere ends with its goroutine
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter a network: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// OutsideResolvers gives the text of the machine's resolver configuration, as the tests' own hides it.
func OutsideResolvers() ([]byte, error) {
	return os.ReadFile(fmt.Sprintf("/proc/%d/root/etc/resolv.conf", os.Getppid()))
}

// ListenWithin listens on a TCP address of the network namespace of a file.
func ListenWithin(path, address string) (l net.Listener, err error) {
	err = Within(path, func() error {
		l, err = net.Listen("tcp4", address)
		return err
	})
	return l, err
}
