package sandbox

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"sandgate/internal/fault"
)

// Quota bounds how many sandboxes may be alive; 0 is no bound. One that failed holds nothing of the host and is not counted.
type Quota struct {
	Workspace int // in the record's workspace
	All       int // in the installation
}

// A Host tells how much of the machine is free. Implemented by sandbox/runsc. Safe for concurrent use.
type Host interface {
	// Room reads what is free at this moment.
	Room(ctx context.Context) (Room, error)
}

// Room is what a machine has left.
type Room struct {
	MemoryTotal int64 // bytes
	MemoryFree  int64 // bytes that can be had without swapping
	Disks       []DiskRoom
}

// DiskRoom is one file system that sandboxes fill: those of their writable layers and of the data directory.
type DiskRoom struct {
	Path  string // a directory on it, for the log
	Total int64  // bytes
	Free  int64  // bytes
}

// Reserve is what sandboxes must leave to the machine. Zero fields keep nothing back.
type Reserve struct {
	Memory      int64   // bytes
	DiskPercent float64 // of each file system
}

// What a creation is counted with until it has ended: enough to start in, far less than its limits. Limits may sum up to
// more than the machine has, as most sandboxes are idle most of the time.
const (
	roomMemory = 64 << 20
	roomDisk   = 64 << 20
)

// rooms admits creations one after the other, so that many at once are not all promised the same memory.
type rooms struct {
	mu      sync.Mutex
	pending int64 // creations under way
}

// reserveRoom refuses a creation that would take the host below its reserve. Call the returned function when it has ended.
func (m *Manager) reserveRoom(ctx context.Context) (release func(), err error) {
	if m.o.Host == nil {
		return func() {}, nil
	}
	m.rooms.mu.Lock()
	defer m.rooms.mu.Unlock()
	room, err := m.o.Host.Room(ctx)
	if err != nil {
		return nil, fmt.Errorf("room on the host: %w", err)
	}
	if err := m.o.Reserve.holds(room, m.rooms.pending+1); err != nil {
		m.o.Log.Warn("a creation is refused: the host is full", "memory_free", room.MemoryFree, "disks", fmt.Sprintf("%+v", room.Disks), "being_created", m.rooms.pending)
		return nil, err
	}
	m.rooms.pending++
	return sync.OnceFunc(func() {
		m.rooms.mu.Lock()
		defer m.rooms.mu.Unlock()
		m.rooms.pending--
	}), nil
}

// holds reports whether n more sandboxes leave the reserve alone.
func (r Reserve) holds(room Room, n int64) error {
	if room.MemoryFree-n*roomMemory < r.Memory {
		return fault.New(fault.HostFull, "This host is short of memory, so it starts no more sandboxes for now. Those that run are left alone; kill one that is not needed, or try again later.").With("reason", "memory")
	}
	for _, d := range room.Disks {
		if float64(d.Free-n*roomDisk) < float64(d.Total)*r.DiskPercent/100 {
			return fault.New(fault.HostFull, "The disk of this host is nearly full, so it starts no more sandboxes for now. Those that run are left alone; kill one that is not needed, or try again later.").With("reason", "disk")
		}
	}
	return nil
}

// SetResources changes the limits of a running sandbox at once: the host holds it to them first, then the record says so.
// The disk's size is fixed when a sandbox is made (fault.Invalid). Memory below what is in use: fault.Conflict, nothing
// changes.
func (m *Manager) SetResources(ctx context.Context, id ID, res Resources) (Record, error) {
	b := m.boxOf(id)
	if b == nil {
		r, err := m.o.Records.SandboxByID(ctx, id)
		if err != nil {
			return Record{}, err
		}
		return Record{}, notRunning(r)
	}
	// Two changes at once must not leave the one's limits on the host and the other's on record.
	b.host.Lock()
	defer b.host.Unlock()
	r, err := m.o.Records.SandboxByID(ctx, id)
	if err != nil {
		return Record{}, err
	}
	if r.Status != Running {
		return Record{}, notRunning(r)
	}
	if res.DiskMB != r.Resources.DiskMB {
		return Record{}, fault.Field("resources.disk_mb", "cannot be changed once the sandbox is made: the size of its writable layer is fixed when it starts. Make a new one with the size you need")
	}
	if res == r.Resources {
		return r, nil
	}
	// Not with the caller's context: half a change is none.
	ctx = context.WithoutCancel(ctx)
	err = m.o.Runtime.Update(ctx, id, res)
	if err == nil {
		err = m.o.Records.SetResources(ctx, id, res)
	}
	if err != nil {
		return Record{}, errors.Join(err, m.o.Runtime.Update(ctx, id, r.Resources))
	}
	m.o.Log.Info("limits changed", "sandbox", string(id), "from", fmt.Sprintf("%+v", r.Resources), "to", fmt.Sprintf("%+v", res))
	r, err = m.o.Records.SandboxByID(ctx, id)
	if err == nil && m.o.OnChange != nil {
		m.o.OnChange(r)
	}
	return r, err
}

// enforce holds a sandbox that is taken up again to the limits on record: a server may have died between the two.
func (m *Manager) enforce(ctx context.Context, r Record) {
	if r.Resources == (Resources{}) {
		return
	}
	if err := m.o.Runtime.Update(ctx, r.ID, r.Resources); err != nil {
		m.o.Log.Warn("limits of a sandbox taken up again", "sandbox", string(r.ID), "cause", err.Error())
	}
}
