package runsc

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

// discard is an output that nobody wants.
type discard struct{}

func (discard) Stdout([]byte) error { return nil }
func (discard) Stderr([]byte) error { return nil }

func clientOf(t *testing.T, r *Runtime, id sandbox.ID) *agent.Client {
	t.Helper()
	c := agent.NewClient(func(ctx context.Context, bulk bool) (io.ReadWriteCloser, error) { return r.Dial(ctx, id, bulk) })
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func runIn(ctx context.Context, c *agent.Client, command string) (agent.Exit, error) {
	return c.Run(ctx, agent.CommandSpec{ID: sandbox.RandomID("cmd"), Command: command, TimeoutMS: 120_000}, discard{})
}

// Somebody on the host stops the sentry, or its file server: every call ends within seconds and says so, and what comes
// later is told at once. When it is continued, it answers again.
func TestStoppedFromOutsideEndsCalls(t *testing.T) {
	r := open(t, options(t))
	for _, who := range []string{"sentry", "gofer"} {
		id := start(t, r, small)
		st, err := r.load(id)
		require.NoError(t, err)
		victim := st.Sentry.PID
		if who == "gofer" {
			victim = st.Gofer.PID
		}
		c := clientOf(t, r, id)
		_, err = c.WriteFile(t.Context(), []byte("/work/big"), io.LimitReader(zeros{}, 1<<20), agent.WriteOptions{Size: -1})
		require.NoError(t, err)
		pty, err := c.OpenPTY(t.Context(), agent.PTYSpec{ID: sandbox.RandomID("pty"), Cols: 80, Rows: 24})
		require.NoError(t, err)
		viewer, err := c.Attach(t.Context(), pty.ID, 0)
		require.NoError(t, err)
		ended := make(chan error, 3)
		go func() {
			_, err := runIn(t.Context(), c, "sleep 100")
			ended <- err
		}()
		go func() {
			for {
				if _, err := viewer.Next(); err != nil {
					ended <- err
					return
				}
			}
		}()
		require.NoError(t, unix.Kill(victim, unix.SIGSTOP))
		if who == "sentry" {
			for range 2 {
				select {
				case err := <-ended:
					require.ErrorIs(t, err, agent.ErrBridge)
				case <-time.After(20 * time.Second):
					t.Fatal("a call hangs")
				}
			}
		}
		require.Eventually(t, func() bool { // the signal takes a moment
			b, err := r.Dial(t.Context(), id, false)
			if err == nil {
				_ = b.Close()
			}
			return errors.Is(err, agent.ErrStopped)
		}, 60*time.Second, 10*time.Millisecond, who)
		if who == "sentry" {
			begin := time.Now()
			_, err = runIn(t.Context(), c, "true")
			require.ErrorIs(t, err, agent.ErrStopped)
			require.Less(t, time.Since(begin), 5*time.Second)
		}
		require.NoError(t, unix.Kill(victim, unix.SIGCONT))
		require.Eventually(t, func() bool {
			exit, err := runIn(t.Context(), c, "exit 7")
			return err == nil && exit.Code == 7
		}, 20*time.Second, 50*time.Millisecond)
		// Stopped, it is killed all the same.
		require.NoError(t, unix.Kill(victim, unix.SIGSTOP))
		require.NoError(t, viewer.Close())
		require.NoError(t, r.Remove(t.Context(), id))
	}
}

// zeros never end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// Root inside stops process 1: the next bridge sets it going again.
func TestStoppedFromInsideGoesOn(t *testing.T) {
	r := open(t, options(t))
	id := start(t, r, small)
	c := clientOf(t, r, id)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	exit, err := runIn(ctx, c, "kill -STOP 1; sleep 0.2; exit 5")
	require.NoError(t, err)
	require.Equal(t, 5, exit.Code)
	exit, err = runIn(ctx, c, "exit 6")
	require.NoError(t, err)
	require.Equal(t, 6, exit.Code)
}

// What runsc keeps of a sandbox is torn, or gone: found again from our copy.
func TestTornStateOfRunscIsMended(t *testing.T) {
	r := open(t, options(t))
	id := start(t, r, small)
	for _, harm := range []func() error{
		func() error { return os.Truncate(r.runscState(id), 50) },
		func() error { return os.Truncate(r.runscState(id), 0) },
		func() error { return os.Remove(r.runscState(id)) },
	} {
		require.NoError(t, harm())
		c := clientOf(t, r, id)
		_, err := c.Hello(t.Context())
		require.NoError(t, err)
	}
	out, err := inside(t.Context(), r, id, "echo well")
	require.NoError(t, err, out)
	// Without the copy it is still found by its processes, and removed.
	require.NoError(t, os.Truncate(r.runscState(id), 50))
	require.NoError(t, os.Remove(r.keptState(id)))
	_, err = r.Dial(t.Context(), id, false)
	require.Error(t, err)
	require.NoError(t, r.Remove(t.Context(), id))
}
