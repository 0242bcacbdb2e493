package sandbox_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/sandbox"
)

// smallHost tells a made-up room.
type smallHost struct {
	mu   sync.Mutex
	room sandbox.Room
	err  error
}

func (h *smallHost) Room(context.Context) (sandbox.Room, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.room, h.err
}

func (h *smallHost) set(memoryMB, diskMB int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.room = sandbox.Room{MemoryTotal: 24 << 30, MemoryFree: memoryMB << 20, Disks: []sandbox.DiskRoom{
		{Path: "/other", Total: 1 << 40, Free: 1 << 39}, {Path: "/data", Total: 1000 << 20, Free: diskMB << 20},
	}}
}

func newHostManager(t *testing.T, f *stubRuntime, r *memoryRecords, h sandbox.Host) *sandbox.Manager {
	t.Helper()
	m, err := sandbox.New(sandbox.Options{Runtime: f, Records: r, Host: h, Reserve: sandbox.Reserve{Memory: 1 << 30, DiskPercent: 10}})
	require.NoError(t, err)
	t.Cleanup(m.Close)
	return m
}

func TestAFullHostStartsNoMore(t *testing.T) {
	f, r, h := newStub(t), newRecords(), &smallHost{}
	m := newHostManager(t, f, r, h)
	h.set(20<<10, 900)
	runs, err := m.Create(t.Context(), sandbox.Record{ID: sandbox.NewID()})
	require.NoError(t, err)

	for _, low := range []struct {
		memory, disk int64
		reason       string
	}{{1 << 10, 900, "memory"}, {1<<10 + 63, 900, "memory"}, {20 << 10, 100, "disk"}, {20 << 10, 163, "disk"}, {0, 0, "memory"}} {
		h.set(low.memory, low.disk)
		_, err := m.Create(t.Context(), sandbox.Record{ID: sandbox.NewID()})
		require.Equal(t, fault.HostFull, fault.KindOf(err), "%+v: %v", low, err)
		var e *fault.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, low.reason, e.Extra["reason"])
	}
	require.Len(t, r.all, 1, "nothing was begun")
	require.Equal(t, sandbox.Running, r.status(runs.ID), "what runs is left alone")
	_, err = m.Agent(t.Context(), runs.ID)
	require.NoError(t, err)

	h.set(1<<10+64, 164)
	_, err = m.Create(t.Context(), sandbox.Record{ID: sandbox.NewID()})
	require.NoError(t, err)

	h.mu.Lock()
	h.err = errors.New("no /proc")
	h.mu.Unlock()
	_, err = m.Create(t.Context(), sandbox.Record{ID: sandbox.NewID()})
	require.Error(t, err, "what cannot be read is not there")
}

// Many creations at once must not all be promised the same memory.
func TestCreationsUnderWayAreCounted(t *testing.T) {
	f, r, h := newStub(t), newRecords(), &smallHost{}
	m := newHostManager(t, f, r, h)
	h.set(1<<10+5*64, 900) // room for five
	const tries = 20
	over := make(chan struct{})
	var ended sync.WaitGroup
	ended.Add(tries - 5)
	f.creates = func(context.Context, string) error { <-over; return nil }
	var wg sync.WaitGroup
	var mu sync.Mutex
	made, refused := 0, 0
	for range tries {
		wg.Go(func() {
			_, err := m.Create(context.Background(), sandbox.Record{ID: sandbox.NewID()})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				made++
				return
			}
			if fault.Is(err, fault.HostFull) {
				refused++
			}
			ended.Done()
		})
	}
	ended.Wait()
	close(over)
	wg.Wait()
	require.Equal(t, 5, made)
	require.Equal(t, tries-5, refused)
}

func TestLimitsOnRecordAreThoseInForce(t *testing.T) {
	f, r := newStub(t), newRecords()
	m := newManager(t, f, r)
	old := sandbox.Resources{CPU: 1, MemoryMB: 512, DiskMB: 100, PIDs: 256}
	rec, err := m.Create(t.Context(), sandbox.Record{ID: sandbox.NewID(), Resources: old})
	require.NoError(t, err)

	more := sandbox.Resources{CPU: 2, MemoryMB: 1024, DiskMB: 100, PIDs: 512}
	rec, err = m.SetResources(t.Context(), rec.ID, more)
	require.NoError(t, err)
	require.Equal(t, more, rec.Resources)
	require.Equal(t, more, f.limits[rec.ID])

	disk := more
	disk.DiskMB++
	_, err = m.SetResources(t.Context(), rec.ID, disk)
	require.Equal(t, fault.Invalid, fault.KindOf(err))

	// Refused by the host: as before on both sides.
	f.update = func(res sandbox.Resources) error {
		if res.MemoryMB < 600 {
			return fault.New(fault.Conflict, "in use")
		}
		return nil
	}
	_, err = m.SetResources(t.Context(), rec.ID, old)
	require.Equal(t, fault.Conflict, fault.KindOf(err))
	require.Equal(t, more, f.limits[rec.ID])
	require.Equal(t, more, r.all[rec.ID].Resources)

	// Not to be written down: as before on both sides.
	r.full = errors.New("disk full")
	other := sandbox.Resources{CPU: 1, MemoryMB: 900, DiskMB: 100, PIDs: 300}
	_, err = m.SetResources(t.Context(), rec.ID, other)
	require.ErrorIs(t, err, r.full)
	r.full = nil
	require.Equal(t, more, f.limits[rec.ID])
	require.Equal(t, more, r.all[rec.ID].Resources)

	require.NoError(t, m.Kill(t.Context(), rec.ID, sandbox.ReasonKilled))
	_, err = m.SetResources(t.Context(), rec.ID, other)
	require.Equal(t, fault.NotFound, fault.KindOf(err))
}
