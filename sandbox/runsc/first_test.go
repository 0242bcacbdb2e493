package runsc

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

// bridgesOf counts the bridges into a sandbox that a program inside belongs to: the connections to its control socket.
func bridgesOf(t *testing.T, id sandbox.ID) (n int) {
	t.Helper()
	text, err := os.ReadFile("/proc/net/unix")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		const connected = "03"
		if f := strings.Fields(line); len(f) == 8 && f[5] == connected && strings.HasSuffix(f[7], "/runsc-"+string(id)+".sock") {
			n++
		}
	}
	return n
}

// pipesOpen counts the pipes that this process holds.
func pipesOpen(t *testing.T) (n int) {
	t.Helper()
	fds, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && strings.HasPrefix(target, "pipe:") {
			n++
		}
	}
	return n
}

// A new sandbox answers over its own streams, and by a program of its own from the second bridge on. Nothing inside holds the
// streams once that bridge has ended.
func TestTheFirstBridge(t *testing.T) {
	r := open(t, options(t))
	pipes := pipesOpen(t)
	id := start(t, r, small)
	c := dialed(t, r, id)
	h, err := c.Hello(t.Context())
	require.NoError(t, err)
	require.Zero(t, bridgesOf(t, id))
	exit, err := c.Run(t.Context(), agent.CommandSpec{ID: sandbox.RandomID("cmd"), Command: "readlink /proc/1/fd/0 /proc/1/fd/1 | sort -u"}, discard{})
	require.NoError(t, err)
	require.Zero(t, exit.Code)
	out, err := inside(t.Context(), r, id, "readlink /proc/1/fd/0 /proc/1/fd/1 | sort -u")
	require.NoError(t, err)
	require.Equal(t, "/dev/null\n", out)
	held, err := inside(t.Context(), r, id, "ls -l /proc/1/fd | grep -c host:")
	require.NoError(t, err, held)
	require.NoError(t, c.Close())
	require.Equal(t, pipes, pipesOpen(t))
	require.Eventually(t, func() bool {
		out, err := inside(t.Context(), r, id, "ls -l /proc/1/fd")
		return err == nil && strings.Count(out, "host:") < 2 // stderr is the host's /dev/null
	}, 60*time.Second, 50*time.Millisecond)

	again, err := c.Hello(t.Context())
	require.NoError(t, err)
	require.Equal(t, h.BootID, again.BootID)
	require.Equal(t, 1, bridgesOf(t, id))
}

// What nobody asked for is given up with the sandbox, by a save, and by the runtime's end.
func TestAFirstBridgeThatNobodyHas(t *testing.T) {
	o := options(t)
	r := open(t, o)
	dropSaves(t, r)
	pipes := pipesOpen(t)
	id := start(t, r, small)
	require.NoError(t, r.Remove(t.Context(), id))
	require.Equal(t, pipes, pipesOpen(t))
	id = sandbox.NewID()
	require.Error(t, r.Create(t.Context(), smallSpec(id), func(step string) error {
		if step == "runsc start" {
			return io.ErrUnexpectedEOF
		}
		return nil
	}))
	require.Equal(t, pipes, pipesOpen(t))

	id = start(t, r, small)
	require.NoError(t, r.Suspend(t.Context(), id, quiet))
	require.Equal(t, pipes, pipesOpen(t))
	require.NoError(t, r.Resume(t.Context(), smallSpec(id), own(id), quiet))
	_, err := dialed(t, r, id).Hello(t.Context())
	require.NoError(t, err)
	require.NoError(t, r.Remove(t.Context(), id))

	other, err := New(o)
	require.NoError(t, err)
	id = start(t, other, small)
	require.NoError(t, other.Close())
	require.Eventually(t, func() bool {
		_, err := dialed(t, r, id).Hello(t.Context())
		return err == nil
	}, 2*time.Minute, 50*time.Millisecond, "another runtime has to go the long way")
}

// The rest of a sandbox's network is made beside it; without it nothing runs, and nothing is left.
func TestNothingRunsBeforeItsNetworkIsReady(t *testing.T) {
	o := options(t)
	r := open(t, o)
	dropSaves(t, r)
	broken := errors.New("no link")
	spec := smallSpec(sandbox.NewID())
	spec.Network.Ready = func() error {
		st, err := r.load(spec.ID)
		require.NoError(t, err, "it is made meanwhile")
		require.False(t, st.Started)
		return broken
	}
	require.ErrorIs(t, r.Create(t.Context(), spec, quiet), broken)
	nothingLeft(t, o, "after a creation")

	id := start(t, r, small)
	require.NoError(t, r.Suspend(t.Context(), id, quiet))
	spec = smallSpec(id)
	spec.Network.Ready = func() error {
		_, err := r.load(id)
		require.ErrorIs(t, err, fs.ErrNotExist)
		return broken
	}
	err := r.Resume(t.Context(), spec, own(id), quiet)
	require.ErrorIs(t, err, broken)
	require.NotErrorIs(t, err, sandbox.ErrUnrestorable)
	spec.Network.Ready = nil
	require.NoError(t, r.Resume(t.Context(), spec, own(id), quiet))
}

// What stands by for the next command is saved with the rest: the sandbox's, and each copy's, becomes that command.
func TestWhatStandsByGoesThroughASave(t *testing.T) {
	r := open(t, options(t))
	dropSaves(t, r)
	id := start(t, r, small)
	c := dialed(t, r, id)
	standing := func(id sandbox.ID, c *agent.Client) (pid string) {
		t.Helper()
		_, err := c.Run(t.Context(), agent.CommandSpec{ID: sandbox.RandomID("cmd"), Command: "true"}, discard{})
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			pid, err = inside(t.Context(), r, id, `grep -lax "standby." /proc/[0-9]*/cmdline | cut -d/ -f3`)
			return err == nil && pid != ""
		}, 20*time.Second, 50*time.Millisecond)
		return strings.TrimSpace(pid)
	}
	becomes := func(c *agent.Client, pid string) {
		t.Helper()
		var got text
		exit, err := c.Run(t.Context(), agent.CommandSpec{ID: sandbox.RandomID("cmd"), Command: `echo "$$"; exit 3`}, &got)
		require.NoError(t, err)
		require.Equal(t, 3, exit.Code)
		require.Equal(t, pid+"\n", got.String())
	}
	pid := standing(id, c)
	require.NoError(t, c.Close())
	save := sandbox.SaveID(sandbox.RandomID("snap"))
	require.NoError(t, r.Save(t.Context(), id, save, quiet))
	fork := sandbox.NewID()
	require.NoError(t, r.Resume(t.Context(), smallSpec(fork), sandbox.Source{Save: save}, quiet))
	becomes(dialed(t, r, fork), pid)
	becomes(c, pid)

	pid = standing(id, c)
	require.NoError(t, c.Close())
	require.NoError(t, r.Suspend(t.Context(), id, quiet))
	require.NoError(t, r.Resume(t.Context(), smallSpec(id), own(id), quiet))
	becomes(dialed(t, r, id), pid)
}

// text is an output that keeps what was printed.
type text struct{ strings.Builder }

func (b *text) Stdout(p []byte) error { _, err := b.Write(p); return err }
func (b *text) Stderr(p []byte) error { _, err := fmt.Fprintf(b, "stderr: %s", p); return err }
