package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sandgate/internal/fault"
)

// Snapshot is what is kept of a snapshot: a save with a name, from which any number of sandboxes is started. It holds all that
// was in the memory of its sandbox. Values are copies.
type Snapshot struct {
	ID          SaveID // "snap" and 20 of a-z0-9
	WorkspaceID string
	Name        string
	Image       string
	SandboxID   ID     // of which it was taken; that may be gone
	OwnerKind   string // who took it: as of a Record
	OwnerID     string
	OwnerName   string
	Cwd         string
	User        string
	Env         map[string]string
	Resources   Resources
	Network     NetworkPolicy
	Bytes       int64 // on disk; 0 while it is taken
	Ready       bool  // else it is being taken, or was when the server ended
	CreatedAt   time.Time
	UsedAt      time.Time // when a sandbox was started from it last, or it was taken
}

// SnapshotQuota bounds what a workspace may keep; 0 is no bound.
type SnapshotQuota struct {
	Count int
	Bytes int64
}

// Snapshots keeps snapshots durably, beside the records. Implemented by internal/store. Missing: fault.NotFound.
type Snapshots interface {
	// InsertSnapshotWithin adds one that is being taken, unless the workspace has its quota full: fault.QuotaExceeded.
	InsertSnapshotWithin(ctx context.Context, s Snapshot, q SnapshotQuota) error
	// FinishSnapshot notes that it is whole and how large, unless that is more than the quota allows: fault.QuotaExceeded.
	FinishSnapshot(ctx context.Context, id SaveID, bytes int64, q SnapshotQuota) error
	SnapshotByID(ctx context.Context, id SaveID) (Snapshot, error)
	// Snapshots lists a workspace's, or with "" all there are, newest first; those that are not ready, too.
	Snapshots(ctx context.Context, workspaceID string) ([]Snapshot, error)
	TouchSnapshot(ctx context.Context, id SaveID, at time.Time) error
	// DeleteSnapshot forgets one; none: nil.
	DeleteSnapshot(ctx context.Context, id SaveID) error
}

// Snapshot reports whether a save is a snapshot's.
func (id SaveID) Snapshot() bool { return id.Valid() && id[0] == 's' && id[1] == 'n' }

// NewSnapshotID makes a random id.
func NewSnapshotID() SaveID { return SaveID(RandomID("snap")) }

func noSnapshot() error { return fault.New(fault.NotFound, "Snapshot not found") }

// TakeSnapshot keeps the state of a sandbox under a name; it runs on. One that is suspended is woken for it. s is what the
// snapshot is called and whose it is; the rest is the sandbox's.
func (m *Manager) TakeSnapshot(ctx context.Context, of ID, s Snapshot, q SnapshotQuota) (Snapshot, error) {
	if m.o.Snapshots == nil || !s.ID.Snapshot() {
		return Snapshot{}, errors.New("take a snapshot: no place for it, or no id")
	}
	r, err := m.Resume(ctx, of)
	if err != nil {
		return Snapshot{}, err
	}
	s.SandboxID, s.Image, s.Cwd, s.User, s.Env, s.Resources, s.Network = of, r.Image, r.Cwd, r.User, r.Env, r.Resources, r.Network
	s.CreatedAt = m.o.Now()
	s.UsedAt, s.Ready, s.Bytes = s.CreatedAt, false, 0
	if err := m.borrow(s.ID); err != nil { // before its row: a row that nobody holds and that is not ready is a leftover
		return Snapshot{}, err
	}
	defer m.giveBack(s.ID)
	if err := m.o.Snapshots.InsertSnapshotWithin(ctx, s, q); err != nil {
		return Snapshot{}, err
	}
	err = m.saveAs(ctx, of, s.ID)
	var kept Save
	if err == nil {
		kept, err = m.o.Runtime.Saved(ctx, s.ID)
	}
	if err == nil {
		err = m.o.Snapshots.FinishSnapshot(ctx, s.ID, kept.Bytes, q)
	}
	if err != nil {
		// A caller who went away leaves a save that is still being written: it ends by itself, and reconcile drops it.
		return Snapshot{}, errors.Join(err, m.forgetSnapshot(context.WithoutCancel(ctx), s.ID))
	}
	s.Bytes, s.Ready = kept.Bytes, true
	return s, nil
}

// forgetSnapshot takes a snapshot off the record and the disk.
func (m *Manager) forgetSnapshot(ctx context.Context, id SaveID) error {
	if err := m.o.Snapshots.DeleteSnapshot(ctx, id); err != nil {
		return err
	}
	if err := m.o.Runtime.DropSave(ctx, id); err != nil {
		m.o.Log.Error("drop a snapshot", "snapshot", string(id), "cause", err.Error()) // reconcile tries again
	}
	return nil
}

// StartFrom makes a sandbox that goes on from a snapshot, which stays as it is. The record's image is the snapshot's.
func (m *Manager) StartFrom(ctx context.Context, from SaveID, r Record, q Quota) (Record, error) {
	if err := m.borrow(from); err != nil {
		return Record{}, err
	}
	defer m.giveBack(from)
	s, err := m.Snapshot(ctx, from)
	if err != nil {
		return Record{}, err
	}
	if err := m.o.Snapshots.TouchSnapshot(ctx, from, m.o.Now()); err != nil {
		return Record{}, err
	}
	r.Parent, r.Image = string(from), s.Image
	return m.createFrom(ctx, r, q, from)
}

// Snapshot gives one that is ready.
func (m *Manager) Snapshot(ctx context.Context, id SaveID) (Snapshot, error) {
	if m.o.Snapshots == nil || !id.Snapshot() {
		return Snapshot{}, noSnapshot()
	}
	s, err := m.o.Snapshots.SnapshotByID(ctx, id)
	if err == nil && !s.Ready {
		err = noSnapshot()
	}
	return s, err
}

// Snapshots lists a workspace's that are ready, newest first; "" lists all there are.
func (m *Manager) Snapshots(ctx context.Context, workspaceID string) ([]Snapshot, error) {
	if m.o.Snapshots == nil {
		return nil, nil
	}
	all, err := m.o.Snapshots.Snapshots(ctx, workspaceID)
	ready := all[:0]
	for _, s := range all {
		if s.Ready {
			ready = append(ready, s)
		}
	}
	return ready, err
}

// DropSnapshot takes one off the disk. Sandboxes that were started from it live on; while one is being started it is
// refused with fault.Conflict.
func (m *Manager) DropSnapshot(ctx context.Context, id SaveID) error {
	if _, err := m.Snapshot(ctx, id); err != nil {
		return err
	}
	m.mu.Lock()
	if m.borrowed[id] != 0 {
		m.mu.Unlock()
		return fault.New(fault.Conflict, "A sandbox is being started from this snapshot. Try again in a moment.")
	}
	m.borrowed[id] = dropping
	m.mu.Unlock()
	defer m.giveBack(id)
	return m.forgetSnapshot(ctx, id)
}

// dropping stands for a number of borrowers where a save is about to go.
const dropping = -1

// borrow keeps a save from being dropped, or taken for a leftover, until it is given back.
func (m *Manager) borrow(id SaveID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.borrowed[id] == dropping {
		return noSnapshot()
	}
	m.borrowed[id]++
	return nil
}

func (m *Manager) giveBack(id SaveID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.borrowed[id]--; m.borrowed[id] <= 0 {
		delete(m.borrowed, id)
	}
}

func (m *Manager) isBorrowed(id SaveID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.borrowed[id] != 0
}

// reconcileSnapshots forgets those that were being taken when the server ended and those whose save is gone, and tells which
// saves are owned by a snapshot.
func (m *Manager) reconcileSnapshots(ctx context.Context) (owned map[SaveID]bool, err error) {
	owned = map[SaveID]bool{}
	if m.o.Snapshots == nil {
		return owned, nil
	}
	all, err := m.o.Snapshots.Snapshots(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("reconcile: %w", err)
	}
	var errs []error
	for _, s := range all {
		if m.isBorrowed(s.ID) {
			owned[s.ID] = true
			continue
		}
		why := ""
		if _, err := m.o.Runtime.Saved(ctx, s.ID); fault.Is(err, fault.NotFound) {
			why = "its state is not there"
		} else if err != nil {
			errs = append(errs, err)
		} else if now, err := m.o.Snapshots.SnapshotByID(ctx, s.ID); err == nil && !now.Ready && !m.isBorrowed(s.ID) {
			why = "it was being taken when the server ended"
		}
		if why == "" {
			owned[s.ID] = true
			continue
		}
		m.o.Log.Warn("forgetting a snapshot", "snapshot", string(s.ID), "why", why)
		errs = append(errs, m.o.Snapshots.DeleteSnapshot(ctx, s.ID))
	}
	return owned, errors.Join(errs...)
}
