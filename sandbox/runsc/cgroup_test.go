package runsc

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/sandbox"
)

// Recorded lines of /proc/self/mountinfo; @ stands for the directory that plays /sys/fs/cgroup.
const (
	mountsV2 = `24 30 0:22 / /proc rw,relatime shared:14 - proc proc rw
34 26 0:28 / @ rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
`
	mountsV1 = `31 23 0:28 / @ rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / @/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / @/cpuset rw,relatime - cgroup cgroup rw,cpuset
35 31 0:32 / @/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / @/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / @/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / @/unified rw,relatime - cgroup2 cgroup2 rw
`
)

const testLeaf = "sg-test-sb00000000000000000000"

var testResources = sandbox.Resources{CPU: 1.5, MemoryMB: 512, DiskMB: 64, PIDs: 300}

// tree writes recorded control files.
func tree(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
}

func content(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(b)
}

func parsed(t *testing.T, mounts, root string) *cgroups {
	t.Helper()
	c, err := parseCgroups(strings.NewReader(strings.ReplaceAll(mounts, "@", root)), "test")
	require.NoError(t, err)
	return c
}

func TestCgroupV2(t *testing.T) {
	root := t.TempDir()
	c := parsed(t, mountsV2, root)
	require.True(t, c.v2)
	dir := "sandgate-test/" + testLeaf + "/"
	tree(t, root, map[string]string{
		"cgroup.subtree_control":               "cpuset cpu io memory pids\n",
		"sandgate-test/cgroup.subtree_control": "",
		dir + "memory.max":                     "max\n",
		dir + "memory.swap.max":                "max\n",
		dir + "memory.current":                 "14680064\n",
		dir + "memory.events":                  "low 0\nhigh 0\nmax 214\noom 3\noom_kill 2\noom_group_kill 0\n",
		dir + "cpu.max":                        "max 100000\n",
		dir + "cpu.stat":                       "usage_usec 2500000\nuser_usec 1500000\nsystem_usec 1000000\nnr_periods 12\n",
		dir + "pids.max":                       "max\n",
		dir + "pids.current":                   "37\n",
		dir + "pids.events":                    "max 5\n",
		dir + "cgroup.procs":                   "4001\n4002\n",
	})
	require.NoError(t, c.make(testLeaf, testResources))
	for name, want := range map[string]string{
		"cgroup.subtree_control": "+memory +cpu +pids", "sandgate-test/cgroup.subtree_control": "+memory +cpu +pids",
		dir + "memory.max": "536870912", dir + "memory.swap.max": "0", dir + "cpu.max": "150000 100000", dir + "pids.max": "300",
	} {
		// A control file takes the write as a command; a plain file keeps what was longer before.
		require.True(t, strings.HasPrefix(content(t, filepath.Join(root, name)), want), name)
	}
	u, err := c.usage(testLeaf)
	require.NoError(t, err)
	require.Equal(t, sandbox.Usage{MemoryBytes: 14680064, PIDs: 37}, u)
	cpu, err := c.cpuSeconds(testLeaf)
	require.NoError(t, err)
	require.InDelta(t, 2.5, cpu, 1e-9)
	require.Equal(t, events{oomKills: 2, pidsMax: 5}, c.events(testLeaf))
	pids, err := c.procs(testLeaf)
	require.NoError(t, err)
	require.Equal(t, []int{4001, 4002}, pids)
	leaves, err := c.leaves()
	require.NoError(t, err)
	require.Equal(t, []string{testLeaf}, leaves)
	require.NoError(t, c.holdsText(testLeaf, "0::/sandgate-test/"+testLeaf+"\n"))
	require.NoError(t, c.holdsText(testLeaf, "0::/docker/abc/sandgate-test/"+testLeaf+"\n"))
	require.Error(t, c.holdsText(testLeaf, "0::/system.slice/sandgate.service\n"))
	require.Error(t, c.holdsText(testLeaf, ""))
}

func TestCgroupV1(t *testing.T) {
	root := t.TempDir()
	c := parsed(t, mountsV1, root)
	require.False(t, c.v2)
	leaf := "sandgate-test/" + testLeaf + "/"
	tree(t, root, map[string]string{
		"systemd/cgroup.procs":                           "",
		"cpuset/cpuset.cpus":                             "0-1\n",
		"cpuset/cpuset.mems":                             "0\n",
		"cpuset/sandgate-test/cpuset.cpus":               "",
		"cpuset/sandgate-test/cpuset.mems":               "",
		"cpuset/" + leaf + "cpuset.cpus":                 "",
		"cpuset/" + leaf + "cpuset.mems":                 "",
		"memory/" + leaf + "memory.limit_in_bytes":       "",
		"memory/" + leaf + "memory.memsw.limit_in_bytes": "",
		"memory/" + leaf + "memory.usage_in_bytes":       "14680064\n",
		"memory/" + leaf + "memory.oom_control":          "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
		"memory/" + leaf + "cgroup.procs":                "4001\n",
		"cpu,cpuacct/" + leaf + "cpu.cfs_period_us":      "",
		"cpu,cpuacct/" + leaf + "cpu.cfs_quota_us":       "",
		"cpu,cpuacct/" + leaf + "cpuacct.usage":          "2500000000\n",
		"pids/" + leaf + "pids.max":                      "",
		"pids/" + leaf + "pids.current":                  "37\n",
		"pids/" + leaf + "pids.events":                   "max 0\n",
		"pids/" + leaf + "cgroup.procs":                  "4001\n4002\n",
	})
	require.NoError(t, c.make(testLeaf, testResources))
	for name, want := range map[string]string{
		"cpuset/" + leaf + "cpuset.cpus": "0-1", "cpuset/" + leaf + "cpuset.mems": "0", "cpuset/sandgate-test/cpuset.cpus": "0-1",
		"memory/" + leaf + "memory.limit_in_bytes": "536870912", "memory/" + leaf + "memory.memsw.limit_in_bytes": "536870912",
		"cpu,cpuacct/" + leaf + "cpu.cfs_period_us": "100000", "cpu,cpuacct/" + leaf + "cpu.cfs_quota_us": "150000",
		"pids/" + leaf + "pids.max": "300",
	} {
		require.Equal(t, want, content(t, filepath.Join(root, name)), name)
	}
	require.DirExists(t, filepath.Join(root, "systemd", leaf), "runsc joins the named hierarchy, too")
	require.NoDirExists(t, filepath.Join(root, "unified", leaf))
	u, err := c.usage(testLeaf)
	require.NoError(t, err)
	require.Equal(t, sandbox.Usage{MemoryBytes: 14680064, PIDs: 37}, u)
	cpu, err := c.cpuSeconds(testLeaf)
	require.NoError(t, err)
	require.InDelta(t, 2.5, cpu, 1e-9)
	require.Equal(t, events{oomKills: 1}, c.events(testLeaf))
	pids, err := c.procs(testLeaf)
	require.NoError(t, err)
	require.ElementsMatch(t, []int{4001, 4002}, pids)
	in := "/sandgate-test/" + testLeaf
	require.NoError(t, c.holdsText(testLeaf, "8:pids:"+in+"\n4:memory:"+in+"\n2:cpu,cpuacct:"+in+"\n0::/\n"))
	require.Error(t, c.holdsText(testLeaf, "8:pids:"+in+"\n4:memory:/\n2:cpu,cpuacct:"+in+"\n0::/\n"))
}

func TestCgroupWithoutWhatIsNeeded(t *testing.T) {
	_, err := parseCgroups(strings.NewReader(strings.ReplaceAll(mountsV1, "rw,memory", "rw,blkio")), "test")
	require.Equal(t, fault.Internal, fault.KindOf(err))
	require.Contains(t, fault.Public(err), "memory")
	require.True(t, parsed(t, "40 31 0:37 / @/systemd rw - cgroup cgroup rw,name=systemd\n"+mountsV2, t.TempDir()).v2)
	_, err = parseCgroups(strings.NewReader(""), "test")
	require.Error(t, err)
}

func TestCgroupRemovingWhatIsNotThere(t *testing.T) {
	c := parsed(t, mountsV2, t.TempDir())
	require.NoError(t, c.kill(context.Background(), testLeaf))
	require.NoError(t, c.remove(context.Background(), testLeaf))
	leaves, err := c.leaves()
	require.NoError(t, err)
	require.Empty(t, leaves)
	_, err = c.usage(testLeaf)
	require.ErrorIs(t, err, os.ErrNotExist)
}
