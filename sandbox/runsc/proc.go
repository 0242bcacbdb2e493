package runsc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// proc names one process for good: a pid alone may be reused, a pid with its start time is not.
type proc struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after boot, field 22 of /proc/PID/stat
}

// identify reads a process's start time; an error when it is gone or a zombie.
func identify(pid int) (proc, error) {
	start, state, err := procStat(pid)
	if err != nil {
		return proc{}, err
	}
	if state == 'Z' || state == 'X' {
		return proc{}, fmt.Errorf("process %d has ended", pid)
	}
	return proc{pid, start}, nil
}

func procStat(pid int) (start uint64, state byte, err error) {
	f, err := statFields(pid)
	if err != nil {
		return 0, 0, err
	}
	start, err = strconv.ParseUint(f[19], 10, 64)
	return start, f[0][0], err
}

// statFields gives the fields of /proc/PID/stat from the third (the state) on; there are 50 of them at least.
func statFields(pid int) ([]string, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil, err
	}
	// The name in parentheses may hold anything, also ")": the fields begin after the last one.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 50 {
		return nil, fmt.Errorf("stat of %d: malformed", pid)
	}
	return f, nil
}

// zombieStatus gives the wait status of exactly this process if it has ended and nobody has reaped it yet.
func (p proc) zombieStatus() (int64, bool) {
	f, err := statFields(p.PID)
	if err != nil || f[0] != "Z" || f[19] != strconv.FormatUint(p.Start, 10) {
		return 0, false
	}
	status, err := strconv.ParseInt(f[49], 10, 64)
	return status, err == nil
}

// alive reports whether exactly this process runs; a zombie does not.
func (p proc) alive() bool {
	if p.PID <= 1 {
		return false
	}
	start, state, err := procStat(p.PID)
	return err == nil && start == p.Start && state != 'Z' && state != 'X'
}

// stopped reports whether exactly this process was stopped by a signal or a tracer.
func (p proc) stopped() bool {
	start, state, err := procStat(p.PID)
	return err == nil && start == p.Start && (state == 'T' || state == 't')
}

// open gives a pidfd of exactly this process. The pid is opened first and checked then, so that a reuse in between
// cannot go unseen.
func (p proc) open() (int, error) {
	if p.PID <= 1 {
		return -1, unix.ESRCH
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return -1, err
	}
	if start, _, err := procStat(p.PID); err != nil || start != p.Start {
		_ = unix.Close(fd)
		return -1, unix.ESRCH
	}
	return fd, nil
}

// kill ends exactly this process and waits for its end, bounded by ctx. A process that is gone already is fine.
func (p proc) kill(ctx context.Context) error {
	fd, err := p.open()
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("kill %d: %w", p.PID, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill %d: %w", p.PID, err)
	}
	return waitExit(ctx, fd)
}

// waitExit polls a pidfd until its process ended. Each round is short, so that ctx is seen.
func waitExit(ctx context.Context, fd int) error {
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 50)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if n > 0 {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// reap collects a dead child that was handed to us (when we are process 1 of a container or a subreaper).
func reap(pid int) {
	var ws unix.WaitStatus
	_, _ = unix.Wait4(pid, &ws, unix.WNOHANG, nil)
}

// strays finds processes that were started for one of our sandboxes: our --root and the id as whole arguments. An empty
// id finds those of every sandbox. It reads all of /proc, so it is for doubtful cases.
func (r *Runtime) strays(id string) ([]proc, map[int][]string, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, nil, err
	}
	var out []proc
	args := map[int][]string{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		argv, ok := cmdline(pid)
		if !ok || !r.ours(argv, id) {
			continue
		}
		if p, err := identify(pid); err == nil {
			out = append(out, p)
			args[pid] = argv
		}
	}
	return out, args, nil
}

func cmdline(pid int) ([]string, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil || len(b) == 0 {
		return nil, false
	}
	return strings.Split(strings.TrimRight(string(b), "\x00"), "\x00"), true
}

// ours reports whether a command line is runsc's with our root directory (of this boot or another) and the id.
func (r *Runtime) ours(argv []string, id string) bool {
	root, named := false, id == ""
	for i, a := range argv {
		v, ok := strings.CutPrefix(a, "--root=")
		if !ok && a == "--root" && i+1 < len(argv) {
			v, ok = argv[i+1], true
		}
		if ok && filepath.Dir(v) == r.instDir() {
			root = true
		}
		if a == id {
			named = true
		}
	}
	return root && named
}

// filestoreBytes is the size on disk of the unlinked file that holds the writable layer; -1 when it cannot be told. The
// file is one of the sentry's descriptors; where it was found once, it is looked for first.
func (r *Runtime) filestoreBytes(st state) int64 {
	if !st.Sentry.alive() {
		return -1
	}
	if path, ok := r.stores.Load(st.ID); ok {
		if n := filestoreAt(path.(string)); n >= 0 {
			return n
		}
	}
	dir := "/proc/" + strconv.Itoa(st.Sentry.PID) + "/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return -1
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if n := filestoreAt(path); n >= 0 {
			r.stores.Store(st.ID, path)
			return n
		}
	}
	return -1
}

func filestoreAt(path string) int64 {
	target, err := os.Readlink(path)
	if err != nil || !strings.Contains(target, "/runsc-filestore-") {
		return -1
	}
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return -1
	}
	return st.Blocks * 512
}

func readJSON(path string, into any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, into)
}

// writeJSON replaces a file atomically.
func writeJSON(path string, v any, mode os.FileMode) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", b, mode); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// poll calls f until it is true, an error, or the limit has passed.
func poll(ctx context.Context, limit time.Duration, f func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	delay := time.Millisecond
	for {
		ok, err := f()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(delay):
		}
		delay = min(2*delay, 50*time.Millisecond)
	}
}
