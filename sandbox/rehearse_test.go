package sandbox_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/effect"
)

func rehearsal(command string) sandbox.Rehearsal {
	return sandbox.Rehearsal{ID: sandbox.NewID(), Command: agent.CommandSpec{ID: sandbox.RandomID("cmd"), Command: command, TimeoutMS: 60_000}}
}

func TestRehearsingTellsWhatACommandDoesAndLeavesNothing(t *testing.T) {
	d := newDen(t)
	id := d.make(t)
	d.write(t, id)
	for _, asleep := range []bool{false, true} {
		if asleep {
			require.NoError(t, d.Suspend(t.Context(), id))
		}
		do := rehearsal("echo out; echo err >&2; echo one >made; head -c 100000 /dev/zero; exit 3")
		out, err := d.Rehearse(t.Context(), id, do)
		require.NoError(t, err)
		require.Equal(t, 3, out.Exit.Code)
		require.Equal(t, "err\n", string(out.Stderr))
		require.True(t, strings.HasPrefix(string(out.Stdout), "out\n"))
		require.Len(t, out.Stdout, 64<<10)
		require.True(t, out.OutputCut)
		require.Empty(t, out.FilesWhy)
		require.Equal(t, 1, out.Files.Added, "%+v", out.Files.Changes)
		made := out.Files.Changes[0]
		require.Equal(t, effect.Added, made.What)
		require.True(t, strings.HasSuffix(made.Path, string(do.ID)+"/made"), made.Path)
		require.Contains(t, made.Diff, "+one\n")
		_, known := d.records.all[do.ID]
		require.False(t, known, "it is in no record")
	}
	r, err := d.Record(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, sandbox.Suspended, r.Status, "one that sleeps sleeps on")
	d.awakeAndBusy(t, id)
	require.NoError(t, d.Kill(t.Context(), id, sandbox.ReasonKilled))
	d.empty(t)
}

// awakeAndBusy is busy for one that may sleep.
func (d *den) awakeAndBusy(t *testing.T, id sandbox.ID) {
	t.Helper()
	_, err := d.Resume(t.Context(), id)
	require.NoError(t, err)
	d.busy(t, id)
}

func TestARehearsalThatFailsLeavesNothing(t *testing.T) {
	d := newDen(t)
	id := d.make(t)
	seen := map[string]bool{}
	d.hook.Store(func(step string) { seen[step] = true })
	_, err := d.Rehearse(t.Context(), id, rehearsal("true"))
	require.NoError(t, err)
	d.hook.Store(func(string) {})
	require.Greater(t, len(seen), 3)
	for step := range seen {
		d.fail.Store(step)
		_, err := d.Rehearse(t.Context(), id, rehearsal("true"))
		require.Error(t, err, step)
		d.fail.Store("")
	}
	ctx, cancel := context.WithCancel(t.Context())
	d.hook.Store(func(step string) {
		if step == "start" {
			cancel()
		}
	})
	_, err = d.Rehearse(ctx, id, rehearsal("true"))
	require.Error(t, err)
	d.hook.Store(func(string) {})
	found, err := d.fake.Found(t.Context())
	require.NoError(t, err)
	require.Equal(t, []sandbox.ID{id}, found)
	_, err = d.Rehearse(t.Context(), sandbox.NewID(), rehearsal("true"))
	require.Equal(t, fault.NotFound, fault.KindOf(err))
	require.NoError(t, d.Kill(t.Context(), id, sandbox.ReasonKilled))
	d.empty(t)
}
