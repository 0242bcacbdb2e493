package runsc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

const (
	bridgePipe  = 1 << 20                // size of the pipes of a bridge for bulk bytes
	bridgeGrace = 250 * time.Millisecond // that a bridge's program has to end once its pipes are closed
)

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
	var more []string
	if bulk {
		more = append(more, "--bulk")
	}
	if err := r.bridges.enter(id); err != nil {
		return nil, err
	}
	b, err := r.startBridge(ctx, st, more, func() { r.bridges.leave(id) })
	if err != nil {
		return nil, fmt.Errorf("bridge to %s: %w", id, err)
	}
	return b, nil
}

// bridge is a program inside with pipes to it. When the server dies, the end of its stdin ends it.
type bridge struct {
	in, out, said *os.File
	end           func() // ends the program by force
	once          sync.Once
	ended         chan struct{}
	err           error // how it ended, nil: well; valid once ended
}

// startBridge calls left once, when the program inside has ended or could not be started.
func (r *Runtime) startBridge(ctx context.Context, st state, args []string, left func()) (_ *bridge, err error) {
	c, err := r.controlOf(st.ID, st.Sentry)
	if err != nil {
		left()
		return nil, err
	}
	var ours, theirs [3]*os.File
	var l *line
	defer func() {
		for _, f := range theirs {
			_ = f.Close()
		}
		if err == nil {
			return
		}
		for _, f := range ours {
			_ = f.Close()
		}
		if l != nil {
			_ = l.conn.Close()
		}
		left()
	}()
	if theirs[0], ours[0], ours[1], theirs[1], err = bridgePipes(); err != nil {
		return nil, err
	}
	if ours[2], theirs[2], err = os.Pipe(); err != nil {
		return nil, err
	}
	for _, f := range theirs {
		if err := f.Chown(c.uid, c.gid); err != nil {
			return nil, err
		}
	}
	if l, err = c.open(ctx, st); err != nil {
		return nil, err
	}
	// What root inside holds and no more: without saying so, a sentry gives what the container was made with, which of one
	// without a name is one more. Process 1 has dropped that by then, and root inside can put a program of its own in the place
	// of the agent's.
	pid, err := l.start(ctx, insider{args: append([]string{agent.GuestPath, "connect"}, args...), capabilities: capabilities}, theirs)
	if err != nil {
		return nil, err
	}
	b := &bridge{in: ours[0], out: ours[1], said: ours[2], ended: make(chan struct{})}
	b.end = func() {
		limited, cancel := context.WithTimeout(context.Background(), bridgeGrace)
		defer cancel()
		if other, err := c.open(limited, st); err == nil {
			_ = other.call(limited, methodSignal, signalArgs{CID: string(st.ID), Signo: int32(unix.SIGKILL), PID: pid}, nil, nil)
			_ = other.conn.Close()
		}
		select {
		case <-b.ended:
		case <-limited.Done():
		}
		_ = l.conn.Close() // it is not waited for any longer
	}
	go func() { // ends with the program, with the sentry, or by force
		b.err = b.wait(l, pid)
		_ = l.conn.Close()
		left()
		close(b.ended)
	}()
	return b, nil
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

// wait gives how the program inside ended, and what it said if that was not well.
func (b *bridge) wait(l *line, pid int32) error {
	l.patient = true // also with a sentry that is stopped: it may be continued
	status, err := l.wait(context.Background(), pid)
	if err != nil || status == 0 {
		return err
	}
	_ = b.said.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	text, _ := io.ReadAll(io.LimitReader(b.said, 1024))
	return fmt.Errorf("status %d: %s", status.ExitStatus(), strings.ToValidUTF8(string(text), "?"))
}

// Read gives bytes from the agent. When the program inside failed, its reason stands in place of a bare io.EOF.
func (b *bridge) Read(p []byte) (int, error) {
	n, err := b.out.Read(p)
	if errors.Is(err, io.EOF) && n == 0 {
		select {
		case <-b.ended:
			if b.err != nil {
				return 0, fmt.Errorf("bridge ended: %w: %w", b.err, io.EOF)
			}
		case <-time.After(100 * time.Millisecond):
		}
	}
	return n, err
}

// Write sends bytes to the agent.
func (b *bridge) Write(p []byte) (int, error) { return b.in.Write(p) }

// Close waits until the program inside has ended: politely by the end of its stdin, then by a signal.
func (b *bridge) Close() error {
	b.once.Do(func() {
		_ = b.in.Close()
		_ = b.out.Close()
		select {
		case <-b.ended:
		case <-time.After(bridgeGrace):
			b.end()
			<-b.ended
		}
		_ = b.said.Close()
	})
	return nil
}

// answers starts a bridge with nothing to say, and gives nil when the agent's socket took it.
func (r *Runtime) answers(ctx context.Context, id sandbox.ID) error {
	st, err := r.load(id)
	if err != nil {
		return err
	}
	b, err := r.startBridge(ctx, st, nil, func() {})
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }()
	// Its stdin is empty, so it ends at once; success means that the sandbox could start a program.
	_ = b.in.Close()
	select {
	case <-b.ended:
		return b.err
	case <-ctx.Done():
		return ctx.Err()
	}
}
