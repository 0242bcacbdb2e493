package runsc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandgate/sandbox"
)

// cpuSeconds reads how much of the processor a leaf has used; 0 where nobody counts it. fs.ErrNotExist when there is no leaf.
func (c *cgroups) cpuSeconds(leaf string) (float64, error) {
	if c.v2 {
		usec, err := keyed(c.file("cpu", leaf, "cpu.stat"), "usage_usec")
		return float64(usec) / 1e6, err
	}
	path := c.file("cpuacct", leaf, "cpuacct.usage")
	if path == "" {
		return 0, nil
	}
	ns, err := number(path)
	return float64(ns) / 1e9, err
}

// usage reads what a leaf has taken, but for the processor. fs.ErrNotExist when there is no leaf.
func (c *cgroups) usage(leaf string) (u sandbox.Usage, err error) {
	memory := "memory.usage_in_bytes"
	if c.v2 {
		memory = "memory.current"
	}
	if u.MemoryBytes, err = number(c.file("memory", leaf, memory)); err != nil {
		return u, err
	}
	u.PIDs, err = number(c.file("pids", leaf, "pids.current"))
	return u, err
}

// events are the counters that tell why a sandbox died.
type events struct {
	oomKills int64 // processes that the kernel killed for memory
	pidsMax  int64 // forks refused for the pids limit
}

func (c *cgroups) events(leaf string) events {
	var e events
	if c.v2 {
		e.oomKills, _ = keyed(c.file("memory", leaf, "memory.events"), "oom_kill")
	} else {
		e.oomKills, _ = keyed(c.file("memory", leaf, "memory.oom_control"), "oom_kill")
	}
	e.pidsMax, _ = keyed(c.file("pids", leaf, "pids.events"), "max")
	return e
}

func number(path string) (int64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

// keyed reads one "key value" line of a control file.
func keyed(path, key string) (int64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			return strconv.ParseInt(v, 10, 64)
		}
	}
	return 0, fmt.Errorf("%s: no %s in it", path, key)
}

// procs lists the processes in a leaf, in all hierarchies together.
func (c *cgroups) procs(leaf string) ([]int, error) {
	seen := map[int]bool{}
	var out []int
	for _, h := range c.mounts {
		b, err := os.ReadFile(filepath.Join(h.dir, c.parent(), leaf, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(b)) {
			// 0 stands for a process of another pid namespace: it cannot be ours.
			if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 1 && !seen[pid] {
				seen[pid] = true
				out = append(out, pid)
			}
		}
	}
	return out, nil
}

// kill kills everything in the leaf until it is empty. The group is ours alone, so whatever is in it is the sandbox's,
// or a runsc that was making it.
func (c *cgroups) kill(ctx context.Context, leaf string) error {
	self := os.Getpid()
	return poll(ctx, 10*time.Second, func() (bool, error) {
		pids, err := c.procs(leaf)
		if err != nil {
			return false, fmt.Errorf("cgroup %s: %w", leaf, err)
		}
		live := 0
		for _, pid := range pids {
			if pid == self {
				return false, fmt.Errorf("cgroup %s holds Sandgate itself", leaf)
			}
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				continue
			}
			// Asked again with the process held: the pid may have become another's meanwhile.
			if again, err := c.procs(leaf); err == nil && slices.Contains(again, pid) {
				_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
				live++
			}
			_ = unix.Close(fd)
			reap(pid)
		}
		return live == 0, nil
	})
}

// remove takes the leaf out of every hierarchy; a group that just emptied is busy for a moment.
func (c *cgroups) remove(ctx context.Context, leaf string) error {
	var errs []error
	for _, h := range c.mounts {
		dir := filepath.Join(h.dir, c.parent(), leaf)
		err := poll(ctx, 5*time.Second, func() (bool, error) {
			err := unix.Rmdir(dir)
			switch {
			case err == nil, errors.Is(err, unix.ENOENT):
				return true, nil
			case errors.Is(err, unix.EBUSY):
				return false, nil
			}
			return false, err
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("remove cgroup %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}

// removeParent takes the installation's own group away; the kernel refuses while leaves are in it.
func (c *cgroups) removeParent() {
	for _, h := range c.mounts {
		_ = unix.Rmdir(filepath.Join(h.dir, c.parent()))
	}
}

// leaves lists the names of the leaves in all hierarchies.
func (c *cgroups) leaves() ([]string, error) {
	seen := map[string]bool{}
	for _, h := range c.mounts {
		entries, err := os.ReadDir(filepath.Join(h.dir, c.parent()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if e.IsDir() {
				seen[e.Name()] = true
			}
		}
	}
	out := make([]string, 0, len(seen))
	for n := range seen {
		out = append(out, n)
	}
	return out, nil
}
