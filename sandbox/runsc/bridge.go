package runsc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

// bridgePipe is the size of the pipes of a bridge for bulk bytes.
const bridgePipe = 1 << 20

// Dial implements sandbox.Runtime: it starts a program inside that connects its stdin and stdout to the agent's socket.
func (r *Runtime) Dial(ctx context.Context, id sandbox.ID, bulk bool) (io.ReadWriteCloser, error) {
	if err := check(id); err != nil {
		return nil, err
	}
	st, err := r.load(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.New(fault.NotFound, "Sandbox not found")
	}
	if err != nil {
		return nil, fmt.Errorf("bridge to %s: %w", id, err)
	}
	if !st.Sentry.alive() {
		return nil, fault.New(fault.SandboxDied, "The sandbox has died.")
	}
	if st.Sentry.stopped() || st.Gofer.stopped() {
		return nil, fmt.Errorf("bridge to %s: %w", id, agent.ErrStopped)
	}
	if !bulk {
		if b := r.bridges.take(id); b != nil {
			return b, nil
		}
	}
	if err := r.mendState(id, st.Sentry); err != nil {
		return nil, fmt.Errorf("bridge to %s: %w", id, err)
	}
	var more []string
	if bulk {
		more = append(more, "--bulk")
	}
	if err := r.bridges.enter(id); err != nil {
		return nil, err
	}
	b, err := r.startBridge(ctx, id, more, func() { r.bridges.leave(id) })
	if err != nil {
		return nil, fmt.Errorf("bridge to %s: %w", id, err)
	}
	return b, nil
}

// bridge is a running exec client. Its end is seen through a pidfd by the shared watcher, so that an idle bridge costs
// no thread of the server. It is not killed with the server: the end of its stdin ends it.
type bridge struct {
	in, out *os.File
	cmd     *exec.Cmd
	stderr  *head
	once    sync.Once
	reaped  chan struct{}
}

// bridgePipes makes both pipes of a bridge.
func bridgePipes() (inR, inW, outR, outW *os.File, err error) {
	if inR, inW, err = os.Pipe(); err != nil {
		return nil, nil, nil, nil, err
	}
	if outR, outW, err = os.Pipe(); err != nil {
		_, _ = inR.Close(), inW.Close()
		return nil, nil, nil, nil, err
	}
	for _, f := range []*os.File{inW, outR} {
		if c, err := f.SyscallConn(); err == nil {
			// More than the default where the system grants it; Fd() would make the pipe block a thread.
			_ = c.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, bridgePipe) })
		}
	}
	return inR, inW, outR, outW, nil
}

// startBridge calls ended once, when the exec client has ended or could not be started.
func (r *Runtime) startBridge(ctx context.Context, id sandbox.ID, args []string, ended func()) (_ *bridge, err error) {
	defer func() {
		if err != nil {
			ended()
		}
	}()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	inR, inW, outR, outW, err := bridgePipes()
	if err != nil {
		return nil, err
	}
	b := &bridge{in: inW, out: outR, stderr: &head{}, reaped: make(chan struct{})}
	var started func()
	b.cmd, started, err = r.connect(context.Background(), id, args...) // it outlives the call
	if err != nil {
		_, _ = inR.Close(), outW.Close()
		_, _ = inW.Close(), outR.Close()
		return nil, err
	}
	b.cmd.Env = append(b.cmd.Env, "GOMAXPROCS=2")
	b.cmd.Stdin, b.cmd.Stdout, b.cmd.Stderr = inR, outW, b.stderr
	b.cmd.WaitDelay = time.Second
	err = b.cmd.Start()
	started()
	_, _ = inR.Close(), outW.Close()
	if err != nil {
		_, _ = inW.Close(), outR.Close()
		return nil, err
	}
	gone, stop, err := r.watch.process(b.cmd.Process.Pid)
	if err != nil {
		_ = b.cmd.Process.Kill()
		_ = b.cmd.Wait()
		_, _ = inW.Close(), outR.Close()
		return nil, err
	}
	go func() {
		<-gone
		stop()
		_ = b.cmd.Wait() // does not block: the process has ended
		ended()
		close(b.reaped)
	}()
	return b, nil
}

// Read gives bytes from the agent. When the exec client itself failed, its reason stands in place of a bare io.EOF.
func (b *bridge) Read(p []byte) (int, error) {
	n, err := b.out.Read(p)
	if errors.Is(err, io.EOF) && n == 0 {
		select {
		case <-b.reaped:
			if text := b.stderr.String(); text != "" && b.cmd.ProcessState != nil && !b.cmd.ProcessState.Success() {
				return 0, fmt.Errorf("bridge ended: %s: %s: %w", b.cmd.ProcessState, text, io.EOF)
			}
		case <-time.After(100 * time.Millisecond):
		}
	}
	return n, err
}

// Write sends bytes to the agent.
func (b *bridge) Write(p []byte) (int, error) { return b.in.Write(p) }

// Close ends the exec client and waits until it is reaped: politely by the end of its stdin, then by a signal.
func (b *bridge) Close() error {
	b.once.Do(func() {
		_ = b.in.Close()
		_ = b.out.Close()
		select {
		case <-b.reaped:
		case <-time.After(250 * time.Millisecond):
			_ = b.cmd.Process.Kill()
			<-b.reaped
		}
	})
	return nil
}

// head keeps the first bytes of what a program says; the rest is dropped.
type head struct {
	mu sync.Mutex
	b  []byte
}

func (h *head) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.b = append(h.b, p[:min(len(p), 1024-len(h.b))]...)
	return len(p), nil
}

func (h *head) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return string(h.b)
}

// connect prepares a bridge's inner end, with the capabilities of root inside and no others. Without saying so, runsc gives
// what the container was made with: of one that was made without a name that is one more, which process 1 has dropped by
// then, and root inside can put a program of its own in the place of the agent's. started must be called after Start.
func (r *Runtime) connect(ctx context.Context, id sandbox.ID, more ...string) (cmd *exec.Cmd, started func(), err error) {
	return r.within(ctx, id, nil, specs.Process{
		Args: append([]string{agent.GuestPath, "connect"}, more...), Cwd: "/",
		Capabilities: &specs.LinuxCapabilities{Bounding: capabilities, Effective: capabilities, Permitted: capabilities},
	})
}

// within prepares the start of a process inside: of a program there, or of a file of the host's.
func (r *Runtime) within(ctx context.Context, id sandbox.ID, program *os.File, p specs.Process) (cmd *exec.Cmd, started func(), err error) {
	process, err := json.Marshal(p)
	if err != nil {
		return nil, nil, err
	}
	out, in, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	_, err = in.Write(process) // far less than a pipe holds
	if err = errors.Join(err, in.Close()); err != nil {
		return nil, nil, errors.Join(err, out.Close())
	}
	args := append(r.flags(), "exec", "--process=/proc/self/fd/3")
	files := []*os.File{out}
	if program != nil {
		args, files = append(args, "--exec-fd=4"), append(files, program)
	}
	cmd = exec.CommandContext(ctx, r.o.Binary, append(args, string(id))...)
	cmd.Dir, cmd.Env = "/", bareEnv()
	cmd.ExtraFiles = files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd, func() { _ = out.Close() }, nil
}

// answers starts a bridge with nothing to say, and gives nil when the agent's socket took it.
func (r *Runtime) answers(ctx context.Context, id sandbox.ID) error {
	cmd, started, err := r.connect(ctx, id)
	if err != nil {
		return err
	}
	defer started()
	// Its stdin is empty, so it ends at once; success means that the sandbox could start a program.
	return cmd.Run()
}
