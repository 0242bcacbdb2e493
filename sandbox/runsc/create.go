package runsc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/image"
)

// A hostStep is one change to the host. Its undo goes by the id alone and may be run at any time, any number of times:
// Create runs it when the step or a later one fails, Remove runs all of them.
type hostStep struct {
	name string
	do   func(ctx context.Context) error
	undo func(ctx context.Context, id sandbox.ID) error
}

// steps lists what makes a sandbox, in order. Remove passes a zero Spec and uses the undos only.
func (r *Runtime) steps(spec sandbox.Spec, img image.Image) []hostStep {
	id := spec.ID
	return []hostStep{
		{"directories", func(context.Context) error { return r.makeDirs(spec, img) }, r.removeDirs},
		{"cgroup", func(context.Context) error { return r.cg.make(r.name(id), spec.Resources) }, r.removeCgroup},
		{"runsc create", func(ctx context.Context) error { return r.runCreate(ctx, spec) }, r.removeProcesses},
		{"verify limits", func(context.Context) error { return r.verify(id) }, nil},
		{"runsc start", func(ctx context.Context) error { return r.runStart(ctx, spec) }, nil},
	}
}

// Create implements sandbox.Runtime.
func (r *Runtime) Create(ctx context.Context, spec sandbox.Spec, journal sandbox.Journal) error {
	if !spec.ID.Valid() {
		return fmt.Errorf("create sandbox: id %q is malformed", spec.ID)
	}
	if res := spec.Resources; tooSmall(res) || res.DiskMB < 1 {
		return fmt.Errorf("create sandbox %s: resources %+v are too small to start in", spec.ID, res)
	}
	img, err := r.o.Images.Get(spec.Image)
	if err != nil {
		return err
	}
	// A second sandbox of the same id would be undone into the first one's grave.
	if _, err := os.Lstat(r.dir(spec.ID)); err == nil {
		return fault.New(fault.Conflict, "A sandbox of this id exists already.")
	}
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return fmt.Errorf("create sandbox %s: %w", spec.ID, ctx.Err())
	}
	release, err := r.shareHost()
	if err != nil {
		return fmt.Errorf("create sandbox %s: %w", spec.ID, err)
	}
	err = take(ctx, spec.ID, r.steps(spec, img), journal)
	release()
	if err != nil {
		err = errors.Join(fmt.Errorf("create sandbox %s: %w", spec.ID, err), r.leaveHost())
	}
	return err
}

// take does the steps, or undoes those that were begun.
func take(ctx context.Context, id sandbox.ID, steps []hostStep, journal sandbox.Journal) error {
	var undo []hostStep
	for _, s := range steps {
		err := ctx.Err()
		if err == nil {
			err = journal(s.name)
		}
		if err == nil {
			undo = append(undo, s)
			if err = s.do(ctx); err == nil {
				continue
			}
		}
		err = fmt.Errorf("%s: %w", s.name, err)
		// The undoing must not be cut short by whatever ended ctx.
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		err = errors.Join(err, undoAll(clean, id, undo))
		cancel()
		return err
	}
	return nil
}

func undoAll(ctx context.Context, id sandbox.ID, steps []hostStep) error {
	var errs []error
	for i := len(steps) - 1; i >= 0; i-- {
		if steps[i].undo == nil {
			continue
		}
		if err := steps[i].undo(ctx, id); err != nil {
			errs = append(errs, fmt.Errorf("undo %s: %w", steps[i].name, err))
		}
	}
	return errors.Join(errs...)
}

// shareHost prepares what all sandboxes of the installation share (a tmpfs for runsc's state) and keeps it until the
// returned function is called. Other processes of this data directory take part through a file lock.
func (r *Runtime) shareHost() (release func(), err error) {
	r.parent.Lock()
	defer r.parent.Unlock()
	lock, err := os.OpenFile(filepath.Join(r.boxesDir(), ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_SH); err != nil {
		_ = lock.Close()
		return nil, err
	}
	if err := r.makeRoot(); err != nil {
		_ = lock.Close()
		return nil, err
	}
	return func() { _ = lock.Close() }, nil
}

// makeRoot gives runsc a root directory that no reboot survives: its state names processes by pid alone.
func (r *Runtime) makeRoot() error {
	dir := r.instDir()
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err
	}
	if st.Type != unix.TMPFS_MAGIC {
		if err := unix.Mount("sandgate-"+r.o.Inst, dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0711,size=256m,nr_inodes=65536"); err != nil {
			return fmt.Errorf("mount a tmpfs on %s: %w", dir, err)
		}
	}
	return os.MkdirAll(r.root(), 0o700)
}

func (r *Runtime) makeDirs(spec sandbox.Spec, img image.Image) error {
	if err := r.keepAgent(); err != nil {
		return err
	}
	return r.writeBundle(spec.ID, r.ociSpec(spec, img.Rootfs))
}

func (r *Runtime) runCreate(ctx context.Context, spec sandbox.Spec, more ...string) error {
	args := append(append(r.sandboxFlags(spec), more...), "create", "--bundle="+r.bundle(spec.ID), string(spec.ID))
	in, out, err := r.bridges.make(spec.ID)
	if err != nil {
		return err
	}
	err = r.callAs(ctx, ours(), createLimit, spec.ID, args, in, out)
	_, _ = in.Close(), out.Close()
	if err != nil {
		return err
	}
	sentry, gofer, err := r.pids(spec.ID)
	if err != nil {
		return err
	}
	return writeJSON(r.stateFile(spec.ID), state{ID: spec.ID, Boot: r.boot, Sentry: sentry, Gofer: gofer}, 0o600)
}

// pids reads the two processes of a sandbox from runsc's state and pins them by their start times.
func (r *Runtime) pids(id sandbox.ID) (sentry, gofer proc, err error) {
	var st struct {
		GoferPID int `json:"goferPid"`
		Sandbox  struct {
			PID int `json:"pid"`
		} `json:"sandbox"`
	}
	if err := readJSON(r.runscState(id), &st); err != nil {
		return proc{}, proc{}, fmt.Errorf("state of runsc: %w", err)
	}
	if sentry, err = identify(st.Sandbox.PID); err != nil {
		return proc{}, proc{}, fmt.Errorf("sentry: %w", err)
	}
	if gofer, err = identify(st.GoferPID); err != nil {
		return proc{}, proc{}, fmt.Errorf("gofer: %w", err)
	}
	return sentry, gofer, nil
}

// verify asserts that the limits hold the sandbox: a cgroup that nobody is in limits nothing.
func (r *Runtime) verify(id sandbox.ID) error {
	st, err := r.load(id)
	if err != nil {
		return err
	}
	for what, p := range map[string]proc{"sentry": st.Sentry, "gofer": st.Gofer} {
		if err := r.cg.holds(r.name(id), p.PID); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	return r.guestsFirst(id, st)
}

// guestsFirst has the kernel choose a process of the guest before the sentry when memory runs out, in the sandbox or on
// the host: then one program inside ends and the sandbox goes on. Those that come later inherit it.
func (r *Runtime) guestsFirst(id sandbox.ID, st state) error {
	pids, err := r.cg.procs(r.name(id))
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if pid == st.Sentry.PID || pid == st.Gofer.PID {
			continue // oomScore, by runsc
		}
		err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("1000"), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) { // gone meanwhile
			return fmt.Errorf("order of the guest's end: %w", err)
		}
	}
	return nil
}

// runStart passes the same flags as runCreate: "start" is what sets the network up, by its own flags, as it finds it in the
// namespace.
func (r *Runtime) runStart(ctx context.Context, spec sandbox.Spec, more ...string) error {
	id := spec.ID
	if err := spec.Network.Wait(); err != nil {
		return err
	}
	if err := r.call(ctx, startLimit, id, append(append(r.sandboxFlags(spec), more...), "start", string(id))...); err != nil {
		return err
	}
	st, err := r.load(id)
	if err != nil {
		return err
	}
	if err := r.keepState(id); err != nil {
		return err
	}
	st.Started = true
	return writeJSON(r.stateFile(id), st, 0o600)
}

// call runs runsc to its end, or to the server's. The sandbox inherits the streams of "create" and "restore", so they are
// /dev/null, or the pipes of its first bridge: another pipe would keep its reader waiting, and a file would let root inside
// fill the host's disk through /proc/1/fd. What runsc has to say comes through its log file.
func (r *Runtime) call(ctx context.Context, limit time.Duration, id sandbox.ID, args ...string) error {
	return r.callAs(ctx, ours(), limit, id, args, nil, nil)
}

// callDetached is call for what goes on when the server dies.
func (r *Runtime) callDetached(ctx context.Context, limit time.Duration, id sandbox.ID, args ...string) error {
	return r.callAs(ctx, &syscall.SysProcAttr{Setsid: true}, limit, id, args, nil, nil)
}

// callAs runs runsc with in, if not nil, as its input. It has files as descriptors 3 and up; out gets what it says, where it
// is to be read.
func (r *Runtime) callAs(ctx context.Context, as *syscall.SysProcAttr, limit time.Duration, id sandbox.ID, args []string, in *os.File, out io.Writer, files ...*os.File) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	log := filepath.Join(r.dir(id), "runsc.log")
	cmd := exec.CommandContext(ctx, r.o.Binary, append([]string{"--log=" + log, "--log-format=json"}, args...)...)
	cmd.Dir = "/"
	cmd.Env = bareEnv()
	if cmd.Stdout, cmd.ExtraFiles = out, files; in != nil {
		cmd.Stdin = in // a nil file in an interface is none
	}
	// In a group of its own, so that ^C in the server's terminal does not reach it.
	cmd.SysProcAttr = as
	result := make(chan error, 1)
	go func() {
		// The death signal follows the thread that started the child: it has to live as long.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		result <- cmd.Run()
	}()
	err := <-result
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("runsc: %w", ctx.Err())
	}
	return fmt.Errorf("runsc: %w: %s", err, lastMessage(log))
}

// lastMessage gives the last error that runsc wrote into its log, bounded.
func lastMessage(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return "it left no message"
	}
	b = b[max(0, len(b)-8192):]
	lines := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	var entry struct {
		Msg string `json:"msg"`
	}
	last := lines[len(lines)-1]
	if json.Unmarshal(last, &entry) == nil && entry.Msg != "" {
		return entry.Msg
	}
	return string(last)
}

// ---- the undos ----

// removeProcesses ends whatever runs for this sandbox and takes runsc's own state of it away. runsc delete is not asked:
// it kills by the pids of its state, and a pid may be another's by now; ours are checked against their start times.
func (r *Runtime) removeProcesses(ctx context.Context, id sandbox.ID) error {
	r.bridges.drop(id)
	var errs []error
	st, err := r.load(id)
	if err == nil {
		for _, p := range []proc{st.Sentry, st.Gofer} {
			errs = append(errs, p.kill(ctx))
			reap(p.PID)
		}
	}
	errs = append(errs, r.cg.kill(ctx, r.name(id)))
	// Only a creation that broke off can have processes outside of the cgroup: a runsc on its way into it.
	if err != nil || !st.Started {
		found, _, err := r.strays(string(id))
		errs = append(errs, err)
		for _, p := range found {
			errs = append(errs, p.kill(ctx))
			reap(p.PID)
		}
		errs = append(errs, r.cg.kill(ctx, r.name(id)))
	}
	entries, err := os.ReadDir(r.root())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, e := range entries {
		if strings.Contains(e.Name(), string(id)) {
			errs = append(errs, os.RemoveAll(filepath.Join(r.root(), e.Name())))
		}
	}
	return errors.Join(errs...)
}

func (r *Runtime) removeCgroup(ctx context.Context, id sandbox.ID) error {
	return r.cg.remove(ctx, r.name(id))
}

// removeDirs removes the sandbox's directory. Nothing is ever mounted in it on the host's side; if something is all the
// same, it is unmounted first, because removing through a mount would delete what is behind it.
func (r *Runtime) removeDirs(_ context.Context, id sandbox.ID) error {
	if err := unmountBelow(r.dir(id)); err != nil {
		return err
	}
	return os.RemoveAll(r.dir(id))
}
