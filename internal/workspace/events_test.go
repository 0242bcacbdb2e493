package workspace_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

// listen follows events until the function returned is called, which gives how the stream ended.
func listen(t *testing.T, w *world, id string) (<-chan workspace.Event, func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	heard, done := make(chan workspace.Event, 1000), make(chan error, 1)
	go func() {
		done <- w.WatchEvents(ctx, w.bob, id, func(e workspace.Event) error { heard <- e; return nil })
		close(heard)
	}()
	require.Equal(t, workspace.EventReady, (<-heard).Type)
	return heard, func() error { cancel(); return <-done }
}

func TestEvents(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.forwardChanges()
	all, stopAll := listen(t, w, "")
	id := w.newSandbox(t)
	other := w.newSandbox(t)
	one, _ := listen(t, w, id)
	_, err := w.RunCommand(ctx, w.ann, id, agent.CommandSpec{Command: "exit 3"}, nothing{})
	require.NoError(t, err)
	require.NoError(t, w.KillSandbox(ctx, w.ann, other))
	require.NoError(t, w.KillSandbox(ctx, w.ann, id))

	var words []string
	for e := range one { // ends with the sandbox
		require.Equal(t, id, e.SandboxID)
		words = append(words, e.Type+" "+e.Outcome+e.Status+" "+e.Detail)
	}
	require.Equal(t, []string{
		"command.run started ", "command.run ok exit 3", "sandbox.kill started ", "sandbox.status stopping ", "sandbox.status gone ",
	}, words)
	require.NoError(t, stopAll())
	seen := map[string]int{}
	for e := range all {
		seen[e.SandboxID]++
	}
	require.Positive(t, seen[id])
	require.Positive(t, seen[other])

	err = w.WatchEvents(ctx, w.bob, id, nil)
	wantKind(t, err, fault.NotFound)
}

// A reader that is too slow loses events and is told so; nobody waits for it.
func TestSlowListenersLoseEvents(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	hold, entered := make(chan struct{}), make(chan struct{})
	lost, done := 0, make(chan struct{})
	go func() {
		defer close(done)
		first := true
		_ = w.WatchEvents(ctx, w.bob, "", func(e workspace.Event) error {
			if first {
				first = false
				close(entered)
				<-hold
			}
			if lost += e.Lost; e.Lost > 0 {
				cancel()
			}
			return nil
		})
	}()
	<-entered
	for range 1000 {
		w.SandboxChanged(sandbox.Record{ID: sandbox.NewID(), WorkspaceID: w.ann.Workspace.ID, Status: sandbox.Running})
	}
	close(hold)
	<-done
	require.Equal(t, 1000-256, lost)
}

// Losing the right ends the stream.
func TestEventsEndWithTheRight(t *testing.T) {
	w := newWorld(t)
	heard, stop := listen(t, w, "")
	require.NoError(t, w.RemoveMember(context.Background(), w.ann, w.bob.UserID))
	select {
	case _, open := <-heard:
		require.False(t, open)
	case <-time.After(5 * time.Second):
		require.Fail(t, "the stream goes on")
	}
	wantKind(t, stop(), fault.Forbidden)
}

func TestMetrics(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	id := w.newSandbox(t)
	for range 400 {
		w.clock.pass(workspace.MetricsGrain)
		workspace.SampleOnce(w.Service)
	}
	list, err := w.MetricsHistory(ctx, w.bob, id, time.Time{})
	require.NoError(t, err)
	require.Len(t, list, 360)
	for i := range list[1:] {
		require.True(t, list[i].At.Before(list[i+1].At))
	}
	require.Equal(t, w.clock.Now(), list[359].At)
	later, err := w.MetricsHistory(ctx, w.bob, id, list[349].At)
	require.NoError(t, err)
	require.Len(t, later, 10)
	m, err := w.Metrics(ctx, w.bob, id)
	require.NoError(t, err)
	require.Equal(t, w.clock.Now(), m.At)
	require.NoError(t, w.KillSandbox(ctx, w.ann, id))
	workspace.SampleOnce(w.Service)
	_, err = w.MetricsHistory(ctx, w.bob, id, time.Time{})
	wantKind(t, err, fault.NotFound)
}
