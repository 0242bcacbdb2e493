package runsc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"sandgate/internal/fault"
	"sandgate/sandbox"
)

// memoryMargin is what a sandbox keeps above what it uses when its limit is lowered: the next allocation must not kill it.
const memoryMargin = 16 << 20

// pidsMargin likewise: its kernel dies when it needs a thread and gets none.
const pidsMargin = 16

// Update implements sandbox.Runtime. It writes the control files of the cgroup: that is all that "runsc update" would do,
// and the one of this version ends with a nil pointer where a sandbox was made without limits of runsc's own. What `free`
// says inside stays what it was at the start; the limit itself is the host's.
func (r *Runtime) Update(ctx context.Context, id sandbox.ID, res sandbox.Resources) error {
	if err := check(id); err != nil {
		return err
	}
	if tooSmall(res) {
		return fmt.Errorf("update sandbox %s: resources %+v are too small to live in", id, res)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	err := r.cg.change(r.name(id), res)
	if errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.NotFound, "Sandbox not found")
	}
	if err != nil {
		return fmt.Errorf("update sandbox %s: %w", id, err)
	}
	return nil
}

func tooSmall(res sandbox.Resources) bool {
	return res.CPU < 0.01 || res.MemoryMB < 16 || res.PIDs < 16
}

// change sets other limits on a leaf that is in use, or none when one of them is too low for what is in use.
func (c *cgroups) change(leaf string, res sandbox.Resources) error {
	limit, name := c.file("memory", leaf, "memory.limit_in_bytes"), "memory.memsw.limit_in_bytes"
	if c.v2 {
		limit, name = c.file("memory", leaf, "memory.max"), "memory.swap.max"
	}
	have, err := number(limit)
	if err != nil {
		return err
	}
	bytes := res.MemoryMB << 20
	if bytes < have {
		used, err := c.fixedMemory(leaf)
		if err != nil {
			return err
		}
		if bytes < used+memoryMargin {
			return inUse(used)
		}
	}
	tasks, err := number(c.file("pids", leaf, "pids.current"))
	if err != nil {
		return err
	}
	if res.PIDs < tasks+pidsMargin {
		return fault.New(fault.Conflict, "The sandbox has %d tasks on the host now, so its limit can be %d at the least: end something inside first.", tasks, tasks+pidsMargin).
			With("reason", "processes_in_use")
	}
	if c.v2 {
		return c.limitV2(leaf, res)
	}
	// Memory with swap may never be below memory alone, so a higher limit begins with it, and a lower one ends with it.
	memsw := c.file("memory", leaf, name)
	if _, err := os.Stat(memsw); err == nil && bytes > have {
		if err := writeControl(memsw, strconv.FormatInt(bytes, 10)); err != nil {
			return err
		}
	}
	err = c.limitV1(leaf, res)
	if errors.Is(err, unix.EBUSY) { // the kernel tried to reclaim and could not: nothing was changed or killed
		used, uerr := c.fixedMemory(leaf)
		return errors.Join(uerr, inUse(used))
	}
	return err
}

func inUse(used int64) error {
	mib := func(n int64) int64 { return (n + 1<<20 - 1) >> 20 }
	return fault.New(fault.Conflict, "The sandbox uses %d MiB of memory now, so its limit can be %d MiB at the least: end something inside first.", mib(used), mib(used+memoryMargin)).
		With("reason", "memory_in_use")
}

// fixedMemory is what a leaf uses and cannot give back: all but the cache of files on disk.
func (c *cgroups) fixedMemory(leaf string) (int64, error) {
	usage, prefix := "memory.usage_in_bytes", "total_"
	if c.v2 {
		usage, prefix = "memory.current", ""
	}
	used, err := number(c.file("memory", leaf, usage))
	if err != nil {
		return 0, err
	}
	for _, key := range []string{"inactive_file", "active_file"} {
		n, err := keyed(c.file("memory", leaf, "memory.stat"), prefix+key)
		if err != nil {
			return 0, err
		}
		used -= n
	}
	return max(0, used), nil
}
