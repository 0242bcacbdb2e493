package sandbox_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/sandboxtest"
)

func newNetManager(t *testing.T, f *stubRuntime, r *memoryRecords, n sandbox.Network) *sandbox.Manager {
	t.Helper()
	m, err := sandbox.New(sandbox.Options{Runtime: f, Records: r, Network: n})
	require.NoError(t, err)
	t.Cleanup(m.Close)
	return m
}

var (
	openNet   = sandbox.NetworkPolicy{Mode: sandbox.NetworkPublic}
	closedNet = sandbox.NetworkPolicy{Mode: sandbox.NetworkNone}
)

func TestANetworkLivesAsLongAsItsSandbox(t *testing.T) {
	f, r, n := newStub(t), newRecords(), &sandboxtest.FakeNetwork{}
	m := newNetManager(t, f, r, n)
	id := sandbox.NewID()
	_, err := m.Create(t.Context(), sandbox.Record{ID: id, Image: "base", Network: openNet})
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"network rules", "network link", "directory", "container"}, r.step)
	require.Equal(t, "network rules", r.step[0])
	got, ok := n.Policy(id)
	require.True(t, ok)
	require.Equal(t, openNet, got)

	require.NoError(t, m.ChangeNetwork(t.Context(), id, closedNet))
	got, _ = n.Policy(id)
	require.Equal(t, closedNet, got)
	rec, err := m.Record(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, closedNet, rec.Network)

	require.NoError(t, m.Kill(t.Context(), id, sandbox.ReasonKilled))
	_, ok = n.Policy(id)
	require.False(t, ok)
	require.True(t, fault.Is(m.ChangeNetwork(t.Context(), id, openNet), fault.NotFound))
}

func TestNoSandboxWithoutItsNetwork(t *testing.T) {
	f, r, n := newStub(t), newRecords(), &sandboxtest.FakeNetwork{}
	n.Step = func(_ sandbox.ID, step string) error {
		if step == "network link" {
			return errors.New("no link")
		}
		return nil
	}
	m := newNetManager(t, f, r, n)
	id := sandbox.NewID()
	_, err := m.Create(t.Context(), sandbox.Record{ID: id, Image: "base", Network: openNet})
	require.True(t, fault.Is(err, fault.HostFull), err)
	found, err := f.Found(t.Context())
	require.NoError(t, err)
	require.Empty(t, found, "what was made of it meanwhile is gone")
	require.Equal(t, sandbox.Gone, r.status(id))
	_, ok := n.Policy(id)
	require.False(t, ok)
}

// Of a creation that fails by itself, too, the network has come to its end before it is taken away.
func TestANetworkIsWaitedForBeforeItIsRemoved(t *testing.T) {
	f, r, n := newStub(t), newRecords(), &sandboxtest.FakeNetwork{}
	failed := make(chan struct{})
	f.creates = func(context.Context, string) error {
		close(failed)
		return errors.New("no directory")
	}
	n.Step = func(_ sandbox.ID, step string) error {
		if step == "network link" {
			<-failed
		}
		return nil
	}
	m := newNetManager(t, f, r, n)
	id := sandbox.NewID()
	_, err := m.Create(t.Context(), sandbox.Record{ID: id, Image: "base", Network: openNet})
	require.ErrorContains(t, err, "could not be started")
	require.Contains(t, r.step, "network link")
	_, ok := n.Policy(id)
	require.False(t, ok)
}

func TestAPolicyThatCannotBeAppliedIsNotOnRecord(t *testing.T) {
	f, r, n := newStub(t), newRecords(), &sandboxtest.FakeNetwork{}
	m := newNetManager(t, f, r, n)
	id := sandbox.NewID()
	_, err := m.Create(t.Context(), sandbox.Record{ID: id, Image: "base", Network: openNet})
	require.NoError(t, err)
	require.NoError(t, n.Detach(t.Context(), id)) // somebody took it away
	require.Error(t, m.ChangeNetwork(t.Context(), id, closedNet))
	rec, err := m.Record(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, openNet, rec.Network)
}

func TestReconcileRemovesNetworksThatNobodyOwns(t *testing.T) {
	f, r, n := newStub(t), newRecords(), &sandboxtest.FakeNetwork{}
	m := newNetManager(t, f, r, n)
	stray, kept := sandbox.NewID(), sandbox.NewID()
	_, err := n.Attach(t.Context(), stray, openNet, func(string) error { return nil })
	require.NoError(t, err)
	_, err = m.Create(t.Context(), sandbox.Record{ID: kept, Image: "base", Network: openNet})
	require.NoError(t, err)
	require.NoError(t, m.Reconcile(t.Context()))
	_, ok := n.Policy(stray)
	require.False(t, ok)
	_, ok = n.Policy(kept)
	require.True(t, ok)
}
