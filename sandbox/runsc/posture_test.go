package runsc

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/sandbox/image"
)

// procText reads a file of a process.
func procText(t *testing.T, pid int, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), name))
	require.NoError(t, err)
	return string(b)
}

func statusOf(text string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(text) {
		k, v, _ := strings.Cut(line, ":")
		out[k] = strings.Join(strings.Fields(v), " ")
	}
	return out
}

// What runs on the host for a sandbox, as the kernel says it: nothing is taken from what we asked for.
func TestPosture(t *testing.T) {
	r := open(t, options(t))
	id := start(t, r, small)
	st, err := r.load(id)
	require.NoError(t, err)
	// Threads are made as the guest needs them, and each must be as tied down as the first.
	_, err = inside(t.Context(), r, id, "for i in $(seq 30); do (sleep 2; echo x >/tmp/$i) & done; sleep 0.5; ls -R /usr >/dev/null")
	require.NoError(t, err)

	const none = "0000000000000000"
	for _, p := range []struct {
		name       string
		proc       proc
		uid, caps  string
		uidMap     string
		namespaces []string
	}{
		{"sentry", st.Sentry, "65534", none, "65534 65534 1", []string{"user", "net", "ipc", "uts", "mnt", "pid"}},
		// In its own user namespace, over files of the image that only it can see: chown, override of modes, owner, set-id;
		// and the chroot it uses once.
		{"gofer", st.Gofer, strconv.Itoa(image.OwnerShift), "000000000004001f", fmt.Sprintf("0 %d %d", image.OwnerShift, idCount), []string{"user", "net", "ipc", "uts", "mnt", "pid"}},
	} {
		pid := p.proc.PID
		tasks, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "task"))
		require.NoError(t, err)
		for _, task := range tasks {
			text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "task", task.Name(), "status"))
			if err != nil {
				continue // the thread has ended
			}
			s := statusOf(string(text))
			where := p.name + " thread " + task.Name()
			require.Equal(t, strings.Repeat(p.uid+" ", 3)+p.uid, s["Uid"], where)
			require.Equal(t, strings.Repeat(p.uid+" ", 3)+p.uid, s["Gid"], where)
			require.Empty(t, s["Groups"], where)
			require.Equal(t, "1", s["NoNewPrivs"], where)
			require.Equal(t, "2", s["Seccomp"], where)
			for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
				require.Equal(t, p.caps, s[set], "%s of %s", set, where)
			}
		}
		require.Equal(t, p.uidMap, strings.Join(strings.Fields(procText(t, pid, "uid_map")), " "), p.name)
		require.Equal(t, p.uidMap, strings.Join(strings.Fields(procText(t, pid, "gid_map")), " "), p.name)
		for _, ns := range p.namespaces {
			theirs, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "ns", ns))
			require.NoError(t, err)
			mine, err := os.Readlink("/proc/self/ns/" + ns)
			require.NoError(t, err)
			require.NotEqual(t, mine, theirs, "%s shares the host's %s namespace", p.name, ns)
		}
		require.NoError(t, r.cg.holds(r.name(id), pid))
		for _, secret := range []string{"SANDGATE", "TOKEN", "KEY"} {
			require.NotContains(t, procText(t, pid, "environ"), secret, p.name)
		}
		// Every mount that they can see is read-only.
		for line := range strings.Lines(procText(t, pid, "mounts")) {
			f := strings.Fields(line)
			require.Contains(t, strings.Split(f[3], ","), "ro", "%s: %s", p.name, line)
		}
		descriptors(t, r, p.name, pid, r.dir(id))
	}

	// Every process goes before the server when the host is out of memory, and the guest's before the sandbox's own.
	pids, err := r.cg.procs(r.name(id))
	require.NoError(t, err)
	guests := 0
	for _, pid := range pids {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/oom_score_adj")
		if err != nil {
			continue // it has ended
		}
		want := "1000"
		if pid == st.Sentry.PID || pid == st.Gofer.PID {
			want = "500"
		} else {
			guests++
		}
		require.Equal(t, want, strings.TrimSpace(string(b)), "process %d", pid)
	}
	require.Positive(t, guests)

	// The sentry's root holds nothing of the host.
	entries, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(st.Sentry.PID), "root"))
	require.NoError(t, err)
	for _, e := range entries {
		require.Contains(t, []string{"proc", "etc"}, e.Name())
	}

	argv, ok := cmdline(st.Sentry.PID)
	require.True(t, ok)
	for _, want := range []string{"--directfs=false", "--host-uds=none", "--host-fifo=none", "--network=none", "--platform=systrap", "--fdlimit=20000"} {
		require.Contains(t, argv, want)
	}
	line := strings.Join(argv, " ")
	for _, bad := range []string{"net-raw=true", "allow-packet-socket-write=true", "TESTONLY", "--profile=true", "--iouring=true", "--allow-flag-override=true", "strace", "--debug", "nvproxy"} {
		require.NotContains(t, line, bad)
	}
	require.Contains(t, line, fmt.Sprintf("--overlay2=root:dir=%s,size=%dm", r.overlay(id), small.DiskMB))

	var spec struct{ Annotations map[string]string }
	require.NoError(t, readJSON(filepath.Join(r.bundle(id), "config.json"), &spec))
	require.Empty(t, spec.Annotations, "runsc takes flags from them")
	for path, mode := range map[string]fs.FileMode{r.bundle(id): 0o700, filepath.Join(r.bundle(id), "config.json"): 0o600, r.overlay(id): 0o700, r.stateFile(id): 0o600, r.root(): 0o700} {
		fi, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, mode, fi.Mode().Perm(), path)
		require.Zero(t, fi.Sys().(*syscall.Stat_t).Uid, path)
	}
}

// descriptors allows what a process of a sandbox needs, and fails for everything else that it holds open.
func descriptors(t *testing.T, r *Runtime, name string, pid int, dir string) {
	t.Helper()
	own := regexp.QuoteMeta(dir)
	allowed := []string{
		`/dev/null$`, `socket:`, `pipe:`, `anon_inode:\[?(eventfd|eventpoll|seccomp notify|io_uring)\]?$`, `/memfd:[a-z_-]+ \(deleted\)$`,
		own + `/(panic|runsc)\.log$`, // appended to only
	}
	if name == "sentry" {
		// Files of the image that the gofer opened for it, read-only on a mount that only the gofer has.
		allowed = append(allowed, own+`/overlay/runsc-filestore-\d+ \(deleted\)$`, `/root/.+$`)
	} else {
		// The image, through its own read-only mount; its own /proc; what Go reads of its CPU limit.
		allowed = append(allowed, `/root(/.*)?$`, `/$`, own+`/bundle/config\.json$`, `/sys/fs/cgroup/[^ ]*cpu[a-z_.]*$`)
	}
	one := regexp.MustCompile(`^(` + strings.Join(allowed, "|") + `)`)
	fds, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
	require.NoError(t, err)
	require.LessOrEqual(t, len(fds), 20000, "%s is held to --fdlimit", name)
	for _, fd := range fds {
		link := filepath.Join("/proc", strconv.Itoa(pid), "fd", fd.Name())
		target, err := os.Readlink(link)
		if err != nil {
			continue // closed meanwhile
		}
		require.Regexp(t, one, target, "%s holds %s", name, fd.Name())
		info, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "fdinfo", fd.Name()))
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(info), "flags:")
		flags, err := strconv.ParseUint(strings.Fields(rest)[0], 8, 64)
		require.NoError(t, err)
		writes := flags&syscall.O_ACCMODE != syscall.O_RDONLY
		switch {
		case strings.HasSuffix(target, ".log"):
			require.NotZero(t, flags&syscall.O_APPEND, "%s: %s", name, target)
		case strings.HasPrefix(target, "/") && !strings.HasPrefix(target, "/memfd:") && target != "/dev/null" && !strings.Contains(target, "/runsc-filestore-"):
			require.False(t, writes, "%s can write %s", name, target)
		}
		if target == "/" { // its own /proc, which has no other processes of the host in it
			var sfs syscall.Statfs_t
			require.NoError(t, syscall.Statfs(link, &sfs))
			require.EqualValues(t, 0x9fa0, sfs.Type, "%s holds a root directory", name)
		}
	}
}

// What the sentry writes on the host about a sandbox stays small, whatever makes it write.
func TestLogsOnTheHostAreCut(t *testing.T) {
	r := open(t, options(t))
	id := start(t, r, small)
	path := filepath.Join(r.dir(id), "panic.log")
	require.NoError(t, os.Truncate(path, 10<<20))
	_, err := r.Usage(t.Context(), id)
	require.NoError(t, err)
	fi, err := os.Stat(path)
	require.NoError(t, err)
	require.LessOrEqual(t, fi.Size(), int64(maxLog))
	out, err := inside(t.Context(), r, id, "echo on")
	require.NoError(t, err, out)
}

// stamps are what changes of a file when anybody touches it.
type stamps struct {
	mode         uint32
	uid, gid     uint32
	size         int64
	mtime, ctime syscall.Timespec
}

func treeOf(t *testing.T, root string) map[string]stamps {
	t.Helper()
	out := map[string]stamps{}
	require.NoError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(path, &st); err != nil {
			return err
		}
		out[path] = stamps{st.Mode, st.Uid, st.Gid, st.Size, st.Mtim, st.Ctim}
		return nil
	}))
	return out
}

// Root inside writes everywhere, and the image below does not change by a byte or a time stamp.
func TestTheImageIsNeverWritten(t *testing.T) {
	r := open(t, options(t))
	img, err := r.o.Images.Get("base")
	require.NoError(t, err)
	before := treeOf(t, img.Rootfs)
	agentBefore := treeOf(t, r.agent)
	id := start(t, r, small)
	out, err := inside(t.Context(), r, id, `python3 - <<'EOF'
import os
touched = 0
for top in ("/etc", "/var", "/root", "/home", "/work", "/opt", "/usr/local", "/usr/share", "/usr/lib/python3", "/srv"):
    for d, dirs, files in os.walk(top):
        for f in files[:40]:
            p = os.path.join(d, f)
            try:
                if os.path.islink(p): continue
                with open(p, "r+b") as h: h.write(b"PWNED")
                os.chmod(p, 0o4777); os.chown(p, 1000, 1000); os.utime(p, (1, 1))
                touched += 1
            except OSError: pass
        try: open(os.path.join(d, "new"), "w").close(); os.mkdir(os.path.join(d, "newdir"))
        except OSError: pass
for a in ("/.sandgate/agent", "/.sandgate"):
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
        try: os.open(a, flags); print("WROTE", a)
        except OSError: pass
    for f in (lambda: os.chmod(a, 0o777), lambda: os.utime(a, (1, 1))):
        try: f()
        except OSError: pass
try: os.remove("/.sandgate/agent"); print("REMOVED")
except OSError: pass
print("touched", touched > 500)
EOF
rm -rf /boot /srv /mnt; mv /etc /etc2; rm -rf /usr/share/doc; ln -f /usr/bin/env /hard 2>&1; truncate -s 0 /usr/bin/env; echo done`)
	require.NoError(t, err, out)
	require.Contains(t, out, "touched True")
	require.Contains(t, out, "done")
	require.NotContains(t, out, "WROTE")
	require.NotContains(t, out, "REMOVED")
	require.NoError(t, r.Remove(t.Context(), id))
	require.Equal(t, before, treeOf(t, img.Rootfs))
	require.Equal(t, agentBefore, treeOf(t, r.agent))
}
