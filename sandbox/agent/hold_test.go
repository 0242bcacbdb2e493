package agent_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/sandbox/agent"
	"sandgate/sandbox/agent/guest"
)

// held is a real agent in this process, with its bridges counted.
func held(t *testing.T) (c *agent.Client, dir string, open *atomic.Int32) {
	t.Helper()
	dir, open = t.TempDir(), &atomic.Int32{}
	server := guest.New(guest.Config{Workdir: dir, Spill: dir})
	t.Cleanup(func() { _ = server.Close() })
	c = agent.NewClient(func(_ context.Context, bulk bool) (io.ReadWriteCloser, error) {
		host, inside := net.Pipe()
		open.Add(1)
		go func() {
			defer open.Add(-1)
			server.ServeConn(inside, bulk)
			_ = inside.Close()
		}()
		return host, nil
	})
	t.Cleanup(func() { _ = c.End() })
	return c, dir, open
}

type text struct{ b bytes.Buffer }

func (o *text) Stdout(p []byte) error { o.b.Write(p); return nil }
func (o *text) Stderr(p []byte) error { o.b.Write(p); return nil }

// hold takes the bridges away and requires that none is left.
func hold(t *testing.T, c *agent.Client, open *atomic.Int32) (release func()) {
	t.Helper()
	release, err := c.Hold(t.Context())
	require.NoError(t, err)
	require.Eventually(t, func() bool { return open.Load() == 0 }, 60*time.Second, time.Millisecond)
	return release
}

func TestWhatIsFollowedGoesOnAfterAHold(t *testing.T) {
	c, dir, open := held(t)
	var out text
	ended := make(chan error, 1)
	go func() {
		exit, err := c.Run(t.Context(), agent.CommandSpec{
			ID: "cmdaaaaaaaaaaaaaaaaaaaa", TimeoutMS: 60_000,
			Command: `i=0; while [ ! -e stop ]; do echo $i; i=$((i+1)); sleep 0.01; done; exit 7`,
		}, &out)
		if err == nil && exit.Code != 7 {
			err = fmt.Errorf("exit %d", exit.Code)
		}
		ended <- err
	}()
	for range 5 {
		_, err := c.Hello(t.Context())
		require.NoError(t, err)
		hold(t, c, open)()
	}
	_, err := c.WriteFile(t.Context(), []byte(dir+"/stop"), strings.NewReader(""), agent.WriteOptions{Size: 0})
	require.NoError(t, err)
	require.NoError(t, <-ended)
	for i, line := range strings.Fields(out.b.String()) {
		require.Equal(t, fmt.Sprint(i), line)
	}
}

func TestCallsWaitForTheEndOfAHold(t *testing.T) {
	c, _, open := held(t)
	_, err := c.Hello(t.Context())
	require.NoError(t, err)
	release := hold(t, c, open)
	answered := make(chan error, 1)
	go func() { _, err := c.Hello(t.Context()); answered <- err }()
	require.Never(t, func() bool { return len(answered) > 0 || open.Load() > 0 }, 50*time.Millisecond, 5*time.Millisecond)
	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = c.Hello(impatient)
	require.ErrorIs(t, err, context.Canceled)
	_, err = c.Hold(impatient)
	require.ErrorIs(t, err, context.Canceled, "one at a time")
	release()
	require.NoError(t, <-answered)
	require.NoError(t, c.End())
	_, err = c.Hello(t.Context())
	require.ErrorIs(t, err, agent.ErrBridge)
}

func TestAHoldWaitsForTransfers(t *testing.T) {
	c, dir, open := held(t)
	big := bytes.Repeat([]byte("x"), 4<<20)
	_, err := c.WriteFile(t.Context(), []byte(dir+"/big"), bytes.NewReader(big), agent.WriteOptions{Size: int64(len(big))})
	require.NoError(t, err)
	_, body, err := c.ReadFile(t.Context(), []byte(dir+"/big"), 0, -1)
	require.NoError(t, err)
	require.True(t, c.Busy())
	short, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	_, err = c.Hold(short)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	n, err := io.Copy(io.Discard, body)
	require.NoError(t, err)
	require.EqualValues(t, len(big), n)
	require.NoError(t, body.Close())
	hold(t, c, open)()
}

func TestWhatIsTypedIntoAHoldIsNotLost(t *testing.T) {
	c, _, open := held(t)
	const id = "ptyaaaaaaaaaaaaaaaaaaaa"
	_, err := c.OpenPTY(t.Context(), agent.PTYSpec{ID: id, Cols: 80, Rows: 24})
	require.NoError(t, err)
	att, err := c.Attach(t.Context(), id, -1)
	require.NoError(t, err)
	require.NoError(t, att.Input([]byte("first\n"))) // it is on the bridge when this returns; the terminal echoes it
	hold(t, c, open)()
	require.ErrorIs(t, att.Input([]byte("x")), agent.ErrUnsent)
	require.ErrorIs(t, att.Signal("INT"), agent.ErrUnsent)
	require.NoError(t, att.Close())
	att, err = c.Attach(t.Context(), id, 0)
	require.NoError(t, err)
	require.NoError(t, att.Input([]byte("second\n")))
	var seen []byte
	for !bytes.Contains(seen, []byte("second")) {
		ev, err := att.Next()
		require.NoError(t, err)
		seen = append(seen, ev.Output...)
	}
	require.Contains(t, string(seen), "first")
	require.NoError(t, att.Close())
}

// An upload is waited for from its first byte, however small it will be, and those who call meanwhile are not held up.
func TestAHoldWaitsForUploadsThatBegin(t *testing.T) {
	for _, size := range []int{10, 1 << 20} {
		c, dir, open := held(t)
		content := bytes.Repeat([]byte("x"), size)
		body, sender := io.Pipe()
		written := make(chan error, 1)
		go func() {
			_, err := c.WriteFile(t.Context(), []byte(dir+"/slow"), body, agent.WriteOptions{Size: int64(size)})
			written <- err
		}()
		_, err := sender.Write(content[:5])
		require.NoError(t, err)
		short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err = c.Hold(short)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		holding := make(chan error, 1)
		go func() {
			release, err := c.Hold(t.Context())
			if err == nil {
				release()
			}
			holding <- err
		}()
		_, err = c.Hello(t.Context())
		require.NoError(t, err, "a small call is answered while an upload is waited for")
		require.Empty(t, holding)
		_, err = sender.Write(content[5:])
		require.NoError(t, err)
		require.NoError(t, sender.Close())
		require.NoError(t, <-written)
		require.NoError(t, <-holding)
		fi, err := os.Stat(dir + "/slow")
		require.NoError(t, err)
		require.EqualValues(t, size, fi.Size())
		hold(t, c, open)()
	}
}
