package sandboxtest

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

func (c *contract) client(t *testing.T, id sandbox.ID) *agent.Client {
	t.Helper()
	client := agent.NewClient(func(ctx context.Context, bulk bool) (io.ReadWriteCloser, error) {
		return c.Runtime.Dial(ctx, id, bulk)
	})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// sleeper starts a command that outlasts the test, and gives the agent's start.
func (c *contract) sleeper(t *testing.T, id sandbox.ID) (cmd, boot string) {
	t.Helper()
	client := c.client(t, id)
	h, err := client.Hello(c.ctx)
	require.NoError(t, err)
	cmd = sandbox.RandomID("cmd")
	_, err = client.Start(c.ctx, agent.CommandSpec{ID: cmd, Command: "sleep 600"})
	require.NoError(t, err)
	require.NoError(t, client.Close())
	return cmd, h.BootID
}

// same requires that the sandbox is what it was: the same agent, the command running.
func (c *contract) same(t *testing.T, id sandbox.ID, cmd, boot string) {
	t.Helper()
	client := c.client(t, id)
	h, err := client.Hello(c.ctx)
	require.NoError(t, err)
	require.Equal(t, boot, h.BootID)
	got, err := client.Command(c.ctx, cmd)
	require.NoError(t, err)
	require.Equal(t, "running", got.Status)
	require.NoError(t, client.Close())
}

func (c *contract) specOf(id sandbox.ID) sandbox.Spec {
	s := c.spec()
	s.ID = id
	return s
}

func suspends(t *testing.T, c *contract) {
	id := c.create(t)
	cmd, boot := c.sleeper(t, id)
	for range 2 {
		require.NoError(t, c.Runtime.Suspend(c.ctx, id, silent))
		alive, err := c.Runtime.Alive(c.ctx, id)
		require.NoError(t, err)
		require.False(t, alive)
		_, err = c.Runtime.Dial(c.ctx, id, false)
		require.Equal(t, fault.NotFound, fault.KindOf(err))
		found, err := c.Runtime.Found(c.ctx)
		require.NoError(t, err)
		require.NotContains(t, found, id, "a save takes nothing of the host but its disk")
		c.clean(t)
		s, err := c.Runtime.Saved(c.ctx, sandbox.SaveID(id))
		require.NoError(t, err)
		require.Positive(t, s.Bytes)
		require.Equal(t, c.Image, s.Image)
		all, err := c.Runtime.Saves(c.ctx)
		require.NoError(t, err)
		require.True(t, s.Whole)
		require.Equal(t, []sandbox.Save{s}, all)
		require.Error(t, c.Runtime.Suspend(c.ctx, id, silent), "suspended already")

		require.NoError(t, c.Runtime.Resume(c.ctx, c.specOf(id), sandbox.Source{Save: sandbox.SaveID(id)}, silent))
		c.same(t, id, cmd, boot)
		require.Equal(t, fault.Conflict, fault.KindOf(c.Runtime.Resume(c.ctx, c.specOf(id), sandbox.Source{Save: sandbox.SaveID(id)}, silent)))
	}
}

// steps learns the names that do journals.
func steps(t *testing.T, do func(sandbox.Journal) error) []string {
	t.Helper()
	var names []string
	require.NoError(t, do(func(s string) error { names = append(names, s); return nil }))
	require.NotEmpty(t, names)
	return names
}

// refuseAt is a journal that refuses the nth step, counted from 0.
func refuseAt(n int, refusal error) sandbox.Journal {
	return func(string) error {
		if n--; n < 0 {
			return refusal
		}
		return nil
	}
}

func refusedSaves(t *testing.T, c *contract) {
	refusal := errors.New("the journal is full")
	id := c.create(t)
	cmd, boot := c.sleeper(t, id)
	resume := func() {
		require.NoError(t, c.Runtime.Resume(c.ctx, c.specOf(id), sandbox.Source{Save: sandbox.SaveID(id)}, silent))
	}
	names := steps(t, func(j sandbox.Journal) error { return c.Runtime.Suspend(c.ctx, id, j) })
	resume()
	for i, name := range names {
		require.ErrorIs(t, c.Runtime.Suspend(c.ctx, id, refuseAt(i, refusal)), refusal, name)
		running, err := c.Runtime.Settle(c.ctx, id)
		require.NoError(t, err, name)
		if !running {
			c.clean(t)
			resume()
		}
		c.same(t, id, cmd, boot)
	}
	require.NoError(t, c.Runtime.DropSave(c.ctx, sandbox.SaveID(id)))
	require.ErrorIs(t, c.Runtime.Save(c.ctx, id, sandbox.SaveID(id), refuseAt(1, refusal)), refusal)
	_, err := c.Runtime.Saved(c.ctx, sandbox.SaveID(id))
	require.Equal(t, fault.NotFound, fault.KindOf(err))
	c.same(t, id, cmd, boot)
	held, err := c.Runtime.Dial(c.ctx, id, false)
	require.NoError(t, err)
	require.Equal(t, fault.Conflict, fault.KindOf(c.Runtime.Suspend(c.ctx, id, silent)), "a bridge is open")
	require.NoError(t, held.Close())
	c.same(t, id, cmd, boot)
}

func refusedResumes(t *testing.T, c *contract) {
	refusal := errors.New("the journal is full")
	id := c.create(t)
	cmd, boot := c.sleeper(t, id)
	require.NoError(t, c.Runtime.Suspend(c.ctx, id, silent))
	from := sandbox.Source{Save: sandbox.SaveID(id)}
	names := steps(t, func(j sandbox.Journal) error { return c.Runtime.Resume(c.ctx, c.specOf(id), from, j) })
	require.NoError(t, c.Runtime.Suspend(c.ctx, id, silent))
	for i, name := range names {
		require.ErrorIs(t, c.Runtime.Resume(c.ctx, c.specOf(id), from, refuseAt(i, refusal)), refusal, name)
		c.clean(t)
		ctx, cancel := context.WithCancel(c.ctx)
		err := c.Runtime.Resume(ctx, c.specOf(id), from, func(s string) error {
			if s == name {
				cancel()
			}
			return nil
		})
		require.ErrorIs(t, err, context.Canceled, name)
		require.NotErrorIs(t, err, sandbox.ErrUnrestorable, name)
		cancel()
		c.clean(t)
	}
	require.NoError(t, c.Runtime.Resume(c.ctx, c.specOf(id), from, silent))
	c.same(t, id, cmd, boot)
	other := sandbox.Source{Save: sandbox.SaveID(sandbox.NewID())}
	require.Equal(t, fault.NotFound, fault.KindOf(c.Runtime.Resume(c.ctx, c.spec(), other, silent)))
}

func savesAndForks(t *testing.T, c *contract) {
	id := c.create(t)
	cmd, boot := c.sleeper(t, id)
	to := sandbox.SaveID(sandbox.RandomID("snap"))
	for range 2 {
		require.NoError(t, c.Runtime.Save(c.ctx, id, to, silent))
		c.same(t, id, cmd, boot)
	}
	require.NoError(t, c.Runtime.Remove(c.ctx, id))
	c.gone(t, id)
	for range 2 {
		spec := c.spec()
		require.NoError(t, c.Runtime.Resume(c.ctx, spec, sandbox.Source{Save: to}, silent))
		t.Cleanup(func() { require.NoError(t, c.Runtime.Remove(context.WithoutCancel(c.ctx), spec.ID)) })
		_, err := c.client(t, spec.ID).Hello(c.ctx)
		require.NoError(t, err)
		require.NoError(t, c.Runtime.Remove(c.ctx, spec.ID))
		c.gone(t, spec.ID)
	}
	require.NoError(t, c.Runtime.DropSave(c.ctx, to))
	require.NoError(t, c.Runtime.DropSave(c.ctx, to), "again")
	_, err := c.Runtime.Saved(c.ctx, to)
	require.Equal(t, fault.NotFound, fault.KindOf(err))
	require.Error(t, c.Runtime.Save(c.ctx, id, to, silent), "gone")
	require.Error(t, c.Runtime.Save(c.ctx, id, "snap/../../x", silent))
	require.Error(t, c.Runtime.DropSave(c.ctx, "../x"))
}

func settles(t *testing.T, c *contract) {
	id := c.create(t)
	cmd, boot := c.sleeper(t, id)
	running, err := c.Runtime.Settle(c.ctx, id)
	require.NoError(t, err)
	require.True(t, running)
	c.same(t, id, cmd, boot)
	require.NoError(t, c.Runtime.Suspend(c.ctx, id, silent))
	running, err = c.Runtime.Settle(c.ctx, id)
	require.NoError(t, err)
	require.False(t, running)
	require.NoError(t, c.Runtime.Remove(c.ctx, id))
	_, err = c.Runtime.Settle(c.ctx, id)
	require.Equal(t, fault.NotFound, fault.KindOf(err))
	c.gone(t, id)
}

func removesSave(t *testing.T, c *contract) {
	id := c.create(t)
	require.NoError(t, c.Runtime.Suspend(c.ctx, id, silent))
	require.NoError(t, c.Runtime.Free(c.ctx, id))
	_, err := c.Runtime.Saved(c.ctx, sandbox.SaveID(id))
	require.NoError(t, err)
	require.NoError(t, c.Runtime.Remove(c.ctx, id))
	c.gone(t, id)
	_, err = c.Runtime.Saved(c.ctx, sandbox.SaveID(id))
	require.Equal(t, fault.NotFound, fault.KindOf(err))
	all, err := c.Runtime.Saves(c.ctx)
	require.NoError(t, err)
	require.Empty(t, all)
}
