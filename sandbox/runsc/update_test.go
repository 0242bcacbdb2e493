package runsc

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/sandbox"
)

// held reads what a sandbox is really held to.
func heldTo(t *testing.T, r *Runtime, id sandbox.ID) sandbox.Resources {
	t.Helper()
	leaf := r.name(id)
	memory, quotaFile := "memory.limit_in_bytes", "cpu.cfs_quota_us"
	if r.cg.v2 {
		memory, quotaFile = "memory.max", "cpu.max"
	}
	var res sandbox.Resources
	bytes, err := number(r.cg.file("memory", leaf, memory))
	require.NoError(t, err)
	res.MemoryMB = bytes >> 20
	b, err := os.ReadFile(r.cg.file("cpu", leaf, quotaFile))
	require.NoError(t, err)
	var us int64
	_, err = fmt.Sscan(string(b), &us)
	require.NoError(t, err)
	res.CPU = float64(us) / cpuPeriod
	res.PIDs, err = number(r.cg.file("pids", leaf, "pids.max"))
	require.NoError(t, err)
	return res
}

func TestLimitsChangeWhileRunning(t *testing.T) {
	r := open(t, options(t))
	id := start(t, r, small)
	deaths := wait(t, r, id)
	more := sandbox.Resources{CPU: 0.5, MemoryMB: 320, PIDs: 300}
	require.NoError(t, r.Update(t.Context(), id, more))
	require.Equal(t, more, heldTo(t, r, id))

	// What is used cannot be taken away: refused before anything is killed, and nothing else of it holds.
	_, err := inside(t.Context(), r, id, "head -c 100M /dev/zero >/dev/shm/used")
	require.NoError(t, err)
	err = r.Update(t.Context(), id, sandbox.Resources{CPU: 1, MemoryMB: 96, PIDs: 280})
	require.Equal(t, fault.Conflict, fault.KindOf(err), "%v", err)
	require.Contains(t, fault.Public(err), "MiB of memory now")
	require.Equal(t, more, heldTo(t, r, id))
	err = r.Update(t.Context(), id, sandbox.Resources{CPU: 1, MemoryMB: 320, PIDs: 20})
	require.Equal(t, fault.Conflict, fault.KindOf(err), "%v", err)
	require.Equal(t, more, heldTo(t, r, id))

	// Given back, it can be.
	_, err = inside(t.Context(), r, id, "rm /dev/shm/used")
	require.NoError(t, err)
	less := sandbox.Resources{CPU: 1, MemoryMB: 192, PIDs: 256}
	require.Eventually(t, func() bool { return r.Update(t.Context(), id, less) == nil }, 20*time.Second, 50*time.Millisecond,
		"the kernel inside frees memory a little later")
	require.Equal(t, less, heldTo(t, r, id))
	out, err := inside(t.Context(), r, id, "echo alive")
	require.NoError(t, err)
	require.Equal(t, "alive\n", out)
	require.Zero(t, r.cg.events(r.name(id)).oomKills)
	require.Empty(t, deaths)

	// And it holds: more than that kills.
	go func() {
		_, _ = inside(context.WithoutCancel(t.Context()), r, id, "head -c 110M /dev/zero >/dev/shm/a; head -c 110M /dev/zero >/tmp/b")
	}()
	require.Equal(t, sandbox.ReasonOutOfMemory, (<-deaths).Reason)
}

func TestChangeOnARecordedUnifiedTree(t *testing.T) {
	root := t.TempDir()
	c := &cgroups{inst: "test", v2: true, mounts: []hierarchy{{dir: root, controllers: []string{"memory", "cpu", "pids"}}}}
	leaf := filepath.Join(root, "sandgate-test", "leaf")
	require.NoError(t, os.MkdirAll(leaf, 0o755))
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(leaf, name), []byte(text), 0o600))
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(leaf, name))
		require.NoError(t, err)
		return strings.TrimSpace(string(b))
	}
	for name, text := range map[string]string{
		"memory.max": "268435456\n", "memory.swap.max": "0\n", "memory.current": "209715200\n", "memory.stat": "anon 1\ninactive_file 52428800\nactive_file 52428800\n",
		"cpu.max": "100000 100000\n", "pids.max": "256\n", "pids.current": "30\n",
	} {
		write(name, text)
	}
	// 200 MiB in use, half of it cache: 100 MiB and the margin must fit.
	require.Equal(t, fault.Conflict, fault.KindOf(c.change("leaf", sandbox.Resources{CPU: 1, MemoryMB: 115, PIDs: 256})))
	require.Equal(t, fault.Conflict, fault.KindOf(c.change("leaf", sandbox.Resources{CPU: 1, MemoryMB: 200, PIDs: 40})))
	require.Equal(t, "268435456", read("memory.max"))
	require.Equal(t, "256", read("pids.max"))
	// A control file takes what is written as a whole; a plain one keeps its tail, so it begins empty.
	for _, name := range []string{"cpu.max", "pids.max", "memory.swap.max"} {
		write(name, "")
	}
	require.NoError(t, c.change("leaf", sandbox.Resources{CPU: 0.5, MemoryMB: 1024, PIDs: 300}))
	require.Equal(t, "50000 100000", read("cpu.max"))
	require.Equal(t, "300", read("pids.max"))
}

func TestMeminfo(t *testing.T) {
	room, err := parseMeminfo(strings.NewReader("MemTotal:       24682956 kB\nMemFree:  1 kB\nMemAvailable:   20000000 kB\n"))
	require.NoError(t, err)
	require.Equal(t, int64(24682956)<<10, room.MemoryTotal)
	require.Equal(t, int64(20000000)<<10, room.MemoryFree)
	for _, text := range []string{"", "MemTotal: x kB\n", "MemAvailable: 1 kB\n"} {
		_, err := parseMeminfo(strings.NewReader(text))
		require.Error(t, err, "%q", text)
	}
}

// Of one that is asleep the processor alone is read; as soon as it did anything, all is read again.
func TestMetersOfSleepersAreKept(t *testing.T) {
	k := reading{sandbox.Usage{CPUSeconds: 2}, time.Now()}
	require.True(t, k.holds(2))
	require.True(t, k.holds(2+restCPU/2))
	require.False(t, k.holds(2+2*restCPU))
	require.False(t, k.holds(1), "another sandbox of the same name: it was suspended meanwhile")
	k.at = k.at.Add(-2 * restFor)
	require.False(t, k.holds(2))

	r := open(t, options(t))
	id := start(t, r, small)
	for _, grow := range []string{"true", "head -c 8M /dev/zero >/work/eight", "head -c 8M /dev/zero >/dev/shm/eight; sleep 100 >/dev/null 2>&1 &"} {
		before, err := r.Usage(t.Context(), id)
		require.NoError(t, err)
		out, err := inside(t.Context(), r, id, grow)
		require.NoError(t, err, out)
		after, err := r.Usage(t.Context(), id)
		require.NoError(t, err)
		require.Greater(t, after.CPUSeconds, before.CPUSeconds+restCPU, "%s: the shortest command takes more than a sleeper", grow)
		if grow != "true" {
			require.GreaterOrEqual(t, after.MemoryBytes+after.DiskBytes, before.MemoryBytes+before.DiskBytes+7<<20, grow)
		}
	}
}
