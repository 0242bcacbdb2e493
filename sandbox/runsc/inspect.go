package runsc

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/effect"
	"sandgate/sandbox/image"
)

const (
	upperLimit = 3 * time.Minute // 5 s a GB where the machine is quiet
	psLimit    = 10 * time.Second
	psBytes    = 1 << 20 // of a list of processes; what is longer is cut
)

// ours is how a runsc is started that is of no use without the server.
func ours() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// running gives the state of a sandbox that runs.
func (r *Runtime) running(id sandbox.ID) (state, error) {
	if err := check(id); err != nil {
		return state{}, err
	}
	st, err := r.load(id)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !(st.Started && st.Sentry.alive()) {
		return st, fault.New(fault.NotFound, "Sandbox not found")
	}
	return st, err
}

// Upper implements sandbox.Inspector.
func (r *Runtime) Upper(ctx context.Context, id sandbox.ID, w io.Writer) error {
	if _, err := r.running(id); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	from, to, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("files of %s: %w", id, err)
	}
	defer func() { _ = from.Close() }()
	done := make(chan error, 1)
	go func() {
		err := r.callAs(ctx, ours(), upperLimit, id, append(r.flags(), "tar", "rootfs-upper", "--file=/proc/self/fd/3", string(id)), nil, nil, to)
		done <- errors.Join(err, to.Close())
	}()
	_, err = io.Copy(w, from)
	if err != nil { // nobody takes it any more
		cancel()
		_ = from.Close()
	}
	if rerr := <-done; err == nil {
		err = rerr
	}
	if err != nil {
		return fmt.Errorf("files of %s: %w", id, err)
	}
	return nil
}

// Scratch implements sandbox.Inspector.
func (*Runtime) Scratch() []string { return []string{"/tmp", "/run", "/dev/shm"} }

// Lower implements sandbox.Inspector.
func (r *Runtime) Lower(_ context.Context, id sandbox.ID) (effect.Base, func() error, error) {
	if _, err := r.running(id); err != nil {
		return effect.Base{}, nil, err
	}
	var conf specs.Spec
	if err := savedConfig(r.bundle(id), &conf); err != nil {
		return effect.Base{}, nil, fmt.Errorf("image of %s: %w", id, err)
	}
	if conf.Root == nil {
		return effect.Base{}, nil, fmt.Errorf("image of %s: the bundle names none", id)
	}
	root, err := os.OpenRoot(conf.Root.Path)
	if err != nil {
		return effect.Base{}, nil, fmt.Errorf("image of %s: %w", id, err)
	}
	return effect.Base{FS: root.FS(), Shift: image.OwnerShift}, root.Close, nil
}

// Processes implements sandbox.Inspector.
func (r *Runtime) Processes(ctx context.Context, id sandbox.ID) ([]sandbox.Process, error) {
	if _, err := r.running(id); err != nil {
		return nil, err
	}
	var table bytes.Buffer
	if err := r.callAs(ctx, ours(), psLimit, id, append(r.flags(), "ps", string(id)), nil, &bounded{w: &table, left: psBytes}); err != nil {
		return nil, fmt.Errorf("processes of %s: %w", id, err)
	}
	return parseProcesses(&table), nil
}

// parseProcesses reads the table of runsc ps. The last column is a name that a process chose: it may hold spaces, and a line
// break makes lines that are no process's; those without a number are passed over.
func parseProcesses(table io.Reader) (out []sandbox.Process) {
	lines := bufio.NewScanner(table)
	lines.Buffer(nil, psBytes)
	var head []string
	pid := -1
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if head == nil {
			head = f
			pid = slices.Index(head, "PID")
			continue
		}
		if pid < 0 || len(f) < len(head) {
			continue
		}
		if n, err := strconv.Atoi(f[pid]); err == nil && n > 0 {
			out = append(out, sandbox.Process{PID: n, Name: strings.Join(f[len(head)-1:], " ")})
		}
	}
	return out
}

// bounded passes on the beginning of a stream and drops the rest.
type bounded struct {
	w    io.Writer
	left int
}

func (b *bounded) Write(p []byte) (int, error) {
	keep := p[:min(len(p), b.left)]
	b.left -= len(keep)
	if _, err := b.w.Write(keep); err != nil {
		return 0, err
	}
	return len(p), nil
}
