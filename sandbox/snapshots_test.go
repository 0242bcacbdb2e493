package sandbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/sandbox"
)

func (m *memoryRecords) InsertSnapshotWithin(_ context.Context, s sandbox.Snapshot, _ sandbox.SnapshotQuota) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refuse != nil {
		return m.refuse
	}
	if m.snaps == nil {
		m.snaps = map[sandbox.SaveID]sandbox.Snapshot{}
	}
	m.snaps[s.ID] = s
	return nil
}

func (m *memoryRecords) changeSnapshot(id sandbox.SaveID, f func(*sandbox.Snapshot)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.snaps[id]
	if !ok {
		return fault.New(fault.NotFound, "Snapshot not found")
	}
	f(&s)
	m.snaps[id] = s
	return nil
}

func (m *memoryRecords) FinishSnapshot(_ context.Context, id sandbox.SaveID, bytes int64, q sandbox.SnapshotQuota) error {
	if q.Bytes > 0 && bytes > q.Bytes {
		return fault.New(fault.QuotaExceeded, "too large")
	}
	return m.changeSnapshot(id, func(s *sandbox.Snapshot) { s.Bytes, s.Ready = bytes, true })
}

func (m *memoryRecords) TouchSnapshot(_ context.Context, id sandbox.SaveID, at time.Time) error {
	return m.changeSnapshot(id, func(s *sandbox.Snapshot) { s.UsedAt = at })
}

func (m *memoryRecords) SnapshotByID(_ context.Context, id sandbox.SaveID) (s sandbox.Snapshot, err error) {
	err = m.changeSnapshot(id, func(have *sandbox.Snapshot) { s = *have })
	return s, err
}

func (m *memoryRecords) Snapshots(context.Context, string) (out []sandbox.Snapshot, _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.snaps {
		out = append(out, s)
	}
	return out, nil
}

func (m *memoryRecords) DeleteSnapshot(_ context.Context, id sandbox.SaveID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.snaps, id)
	return nil
}

func (d *den) take(t *testing.T, of sandbox.ID) sandbox.SaveID {
	t.Helper()
	s, err := d.TakeSnapshot(t.Context(), of, sandbox.Snapshot{ID: sandbox.NewSnapshotID(), Name: "one"}, sandbox.SnapshotQuota{})
	require.NoError(t, err)
	require.True(t, s.Ready)
	require.Equal(t, of, s.SandboxID)
	require.Equal(t, "base", s.Image)
	return s.ID
}

func TestAnyNumberStartsFromASnapshot(t *testing.T) {
	d := newDen(t)
	id := d.make(t)
	d.write(t, id)
	snap := d.take(t, id)
	d.busy(t, id) // it runs on
	require.NoError(t, d.Kill(t.Context(), id, sandbox.ReasonKilled))
	d.reopen(t) // and it outlives the sandbox and the server
	require.NoError(t, d.Reconcile(t.Context()))
	for range 3 {
		r, err := d.StartFrom(t.Context(), snap, sandbox.Record{ID: sandbox.NewID(), Persistent: true, Label: "from it"}, sandbox.Quota{})
		require.NoError(t, err)
		require.Equal(t, sandbox.Running, r.Status)
		require.Equal(t, string(snap), r.Parent)
		require.Equal(t, "base", r.Image)
		_, err = d.Agent(t.Context(), r.ID)
		require.NoError(t, err)
		defer func() { require.NoError(t, d.Kill(context.Background(), r.ID, sandbox.ReasonKilled)) }()
	}
	d.fail.Store("restore")
	failed := sandbox.NewID()
	_, err := d.StartFrom(t.Context(), snap, sandbox.Record{ID: failed}, sandbox.Quota{})
	require.Error(t, err)
	d.fail.Store("")
	found, err := d.fake.Found(t.Context())
	require.NoError(t, err)
	require.NotContains(t, found, failed)

	require.NoError(t, d.DropSnapshot(t.Context(), snap))
	_, err = d.fake.Saved(t.Context(), snap)
	require.Equal(t, fault.NotFound, fault.KindOf(err))
	for _, gone := range []sandbox.SaveID{snap, sandbox.NewSnapshotID(), sandbox.SaveID(id), "snap/../../etc", ""} {
		_, err = d.StartFrom(t.Context(), gone, sandbox.Record{ID: sandbox.NewID()}, sandbox.Quota{})
		require.Equal(t, fault.NotFound, fault.KindOf(err), "%s", gone)
		require.Equal(t, fault.NotFound, fault.KindOf(d.DropSnapshot(t.Context(), gone)), "%s", gone)
	}
}

func TestASuspendedOneIsWokenForItsSnapshot(t *testing.T) {
	d := newDen(t)
	id := d.make(t)
	d.write(t, id)
	require.NoError(t, d.Suspend(t.Context(), id))
	snap := d.take(t, id)
	require.Equal(t, sandbox.Running, d.records.status(id))
	require.NoError(t, d.Kill(t.Context(), id, sandbox.ReasonKilled))
	require.NoError(t, d.DropSnapshot(t.Context(), snap))
	d.empty(t)
}

// Whatever step fails, the sandbox runs on and nothing of the snapshot is kept.
func TestASnapshotThatFailsLeavesNothing(t *testing.T) {
	d := newDen(t)
	id := d.make(t)
	d.write(t, id)
	for _, step := range []string{"checkpoint", "keep save"} {
		d.fail.Store(step)
		_, err := d.TakeSnapshot(t.Context(), id, sandbox.Snapshot{ID: sandbox.NewSnapshotID()}, sandbox.SnapshotQuota{})
		require.Error(t, err, step)
		d.fail.Store("")
		d.busy(t, id)
		require.Empty(t, d.records.snaps, step)
	}
	_, err := d.TakeSnapshot(t.Context(), id, sandbox.Snapshot{ID: sandbox.NewSnapshotID()}, sandbox.SnapshotQuota{Bytes: 1})
	require.Equal(t, fault.QuotaExceeded, fault.KindOf(err))
	require.Empty(t, d.records.snaps)
	d.busy(t, id)
	require.NoError(t, d.Kill(t.Context(), id, sandbox.ReasonKilled))
	d.empty(t)
}

// One from which a sandbox is being started stays until that has ended.
func TestASnapshotInUseIsNotDropped(t *testing.T) {
	d := newDen(t)
	id := d.make(t)
	snap := d.take(t, id)
	var dropped error
	d.hook.Store(func(step string) {
		if step == "restore" {
			dropped = d.DropSnapshot(context.Background(), snap)
		}
	})
	r, err := d.StartFrom(t.Context(), snap, sandbox.Record{ID: sandbox.NewID()}, sandbox.Quota{})
	require.NoError(t, err)
	require.Equal(t, fault.Conflict, fault.KindOf(dropped))
	d.hook.Store(func(string) {})
	require.NoError(t, d.DropSnapshot(t.Context(), snap))
	for _, one := range []sandbox.ID{id, r.ID} {
		require.NoError(t, d.Kill(t.Context(), one, sandbox.ReasonKilled))
	}
	d.empty(t)
}

// After a crash: one that was being taken goes, from the record and the disk, and so does a row without its state.
func TestReconcileOfSnapshots(t *testing.T) {
	d := newDen(t)
	id := d.make(t)
	good, half, bare, stray := d.take(t, id), d.take(t, id), d.take(t, id), sandbox.NewSnapshotID()
	require.NoError(t, d.records.changeSnapshot(half, func(s *sandbox.Snapshot) { s.Ready = false }))
	d.Close()
	require.NoError(t, d.fake.DropSave(t.Context(), bare))
	require.NoError(t, d.fake.Save(t.Context(), id, stray, func(string) error { return nil }))
	d.open(t)
	all, err := d.records.Snapshots(t.Context(), "")
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Equal(t, good, all[0].ID)
	saves, err := d.fake.Saves(t.Context())
	require.NoError(t, err)
	require.Len(t, saves, 1)
	require.Equal(t, good, saves[0].ID)
	require.NoError(t, d.DropSnapshot(t.Context(), good))
	require.NoError(t, d.Kill(t.Context(), id, sandbox.ReasonKilled))
	d.empty(t)
}

// A reconcile in the middle of it takes neither the row nor what is on the disk.
func TestReconcileLeavesASnapshotThatIsBeingTaken(t *testing.T) {
	d := newDen(t)
	id := d.make(t)
	var during error
	d.hook.Store(func(step string) {
		if step == "keep save" {
			during = d.Reconcile(context.Background())
		}
	})
	snap := d.take(t, id)
	d.hook.Store(func(string) {})
	require.NoError(t, during)
	require.NoError(t, d.DropSnapshot(t.Context(), snap))
	require.NoError(t, d.Kill(t.Context(), id, sandbox.ReasonKilled))
	d.empty(t)
}
