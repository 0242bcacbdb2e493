package sandbox_test

import (
	"context"
	"sync"
	"time"

	"sandgate/internal/fault"
	"sandgate/sandbox"
)

// memoryRecords keeps records in a map.
type memoryRecords struct {
	mu   sync.Mutex
	all  map[sandbox.ID]sandbox.Record
	step []string
	full error // of every change of status
	next []writeFault
	// before is called ahead of every change of status, if set; one whose ctx has ended then is not made, as in a database.
	before func(ctx context.Context, to sandbox.Status)

	refuse error // of every record within a quota
	snaps  map[sandbox.SaveID]sandbox.Snapshot
}

func (m *memoryRecords) InsertSandbox(_ context.Context, r sandbox.Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all[r.ID] = r
	return nil
}

func (m *memoryRecords) InsertSandboxWithin(ctx context.Context, r sandbox.Record, _ sandbox.Quota) error {
	if m.refuse != nil {
		return m.refuse
	}
	return m.InsertSandbox(ctx, r)
}

func (m *memoryRecords) SetResources(_ context.Context, id sandbox.ID, res sandbox.Resources) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.full != nil {
		return m.full
	}
	r := m.all[id]
	r.Resources = res
	m.all[id] = r
	return nil
}

func (m *memoryRecords) SandboxByID(_ context.Context, id sandbox.ID) (sandbox.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.all[id]
	if !ok {
		return r, fault.New(fault.NotFound, "Sandbox not found")
	}
	return r, nil
}

func (m *memoryRecords) Sandboxes(_ context.Context, f sandbox.Filter) ([]sandbox.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []sandbox.Record
	for _, r := range m.all {
		if f.IncludeGone || r.Status != sandbox.Gone {
			out = append(out, r)
		}
	}
	return out, nil
}

// writeFault is what becomes of one change of status.
type writeFault int

const (
	written writeFault = iota
	refused
	unanswered // it is done, and an error says that it is not
)

func (m *memoryRecords) ChangeStatus(ctx context.Context, id sandbox.ID, from, to sandbox.Status, reason string, _ time.Time) (bool, error) {
	m.mu.Lock()
	before := m.before
	m.mu.Unlock()
	if before != nil {
		before(ctx, to)
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.full != nil {
		return false, m.full
	}
	if len(m.next) > 0 {
		how := m.next[0]
		if m.next = m.next[1:]; how == refused {
			return false, errStep
		}
		if r := m.all[id]; how == unanswered && r.Status == from {
			r.Status, r.Reason = to, reason
			m.all[id] = r
			return false, errStep
		}
	}
	r, ok := m.all[id]
	if !ok || r.Status != from {
		return false, nil
	}
	r.Status, r.Reason = to, reason
	m.all[id] = r
	return true, nil
}

func (m *memoryRecords) SetNetwork(_ context.Context, id sandbox.ID, p sandbox.NetworkPolicy) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.all[id]
	r.Network = p
	m.all[id] = r
	return nil
}

func (m *memoryRecords) NoteSave(_ context.Context, id sandbox.ID, at time.Time, bytes int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.all[id]
	r.SavedAt, r.SavedBytes = at, bytes
	m.all[id] = r
	return nil
}

func (m *memoryRecords) TouchSandbox(context.Context, sandbox.ID, time.Time) error { return nil }

func (m *memoryRecords) NoteStep(_ context.Context, _ sandbox.ID, step string, _ time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.step = append(m.step, step)
	return nil
}

func (m *memoryRecords) status(id sandbox.ID) sandbox.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.all[id].Status
}

func (m *memoryRecords) set(id sandbox.ID, s sandbox.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.all[id]
	r.Status = s
	m.all[id] = r
}

func newRecords() *memoryRecords { return &memoryRecords{all: map[sandbox.ID]sandbox.Record{}} }
