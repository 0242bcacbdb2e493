package sandbox_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/agent/guest"
)

// stubRuntime is a host that exists in memory; hooks let a test hold or fail a step. Its agent is the real one.
type stubRuntime struct {
	sandbox.Saver     // none: what suspends is tested with the fake
	sandbox.Inspector // … and so is what looks in

	update func(sandbox.Resources) error // asked before limits change
	limits map[sandbox.ID]sandbox.Resources

	server *guest.Server

	mu      sync.Mutex
	alive   map[sandbox.ID]chan sandbox.Death // nil channel: traces without a living sandbox
	creates func(ctx context.Context, step string) error
	removes func() error
	removed map[sandbox.ID]int
}

func newStub(t *testing.T) *stubRuntime {
	t.Helper()
	dir := t.TempDir()
	server := guest.New(guest.Config{Workdir: dir, Spill: dir})
	t.Cleanup(func() { _ = server.Close() })
	return &stubRuntime{server: server, alive: map[sandbox.ID]chan sandbox.Death{}, removed: map[sandbox.ID]int{}}
}

func (f *stubRuntime) Create(ctx context.Context, spec sandbox.Spec, journal sandbox.Journal) error {
	for _, step := range []string{"directory", "container"} {
		if err := journal(step); err != nil {
			return err
		}
		f.mu.Lock()
		f.alive[spec.ID] = nil
		hook := f.creates
		f.mu.Unlock()
		if hook != nil {
			if err := hook(ctx, step); err != nil {
				f.mu.Lock()
				delete(f.alive, spec.ID)
				f.mu.Unlock()
				return err
			}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.alive[spec.ID] = make(chan sandbox.Death, 1)
	return nil
}

func (f *stubRuntime) Dial(_ context.Context, _ sandbox.ID, bulk bool) (io.ReadWriteCloser, error) {
	host, inside := net.Pipe()
	go f.server.ServeConn(inside, bulk)
	return host, nil
}

func (f *stubRuntime) Wait(ctx context.Context, id sandbox.ID) (sandbox.Death, error) {
	f.mu.Lock()
	ch := f.alive[id]
	f.mu.Unlock()
	if ch == nil {
		return sandbox.Death{}, nil
	}
	select {
	case d := <-ch:
		return d, nil
	case <-ctx.Done():
		return sandbox.Death{}, ctx.Err()
	}
}

func (f *stubRuntime) Alive(_ context.Context, id sandbox.ID) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.alive[id] != nil, nil
}

func (f *stubRuntime) Usage(context.Context, sandbox.ID) (sandbox.Usage, error) {
	return sandbox.Usage{}, nil
}

func (f *stubRuntime) Update(_ context.Context, id sandbox.ID, res sandbox.Resources) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.update != nil {
		if err := f.update(res); err != nil {
			return err
		}
	}
	if f.limits == nil {
		f.limits = map[sandbox.ID]sandbox.Resources{}
	}
	f.limits[id] = res
	return nil
}

func (f *stubRuntime) Remove(_ context.Context, id sandbox.ID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.removes != nil {
		if err := f.removes(); err != nil {
			return err
		}
	}
	f.removed[id]++
	delete(f.alive, id)
	return nil
}

func (f *stubRuntime) Free(ctx context.Context, id sandbox.ID) error { return f.Remove(ctx, id) }

func (f *stubRuntime) Saves(context.Context) ([]sandbox.Save, error) { return nil, nil }

func (f *stubRuntime) Found(context.Context) ([]sandbox.ID, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var ids []sandbox.ID
	for id := range f.alive {
		ids = append(ids, id)
	}
	return ids, nil
}

func (f *stubRuntime) traces() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.alive)
}

func newManager(t *testing.T, f *stubRuntime, r *memoryRecords) *sandbox.Manager {
	t.Helper()
	m, err := sandbox.New(sandbox.Options{Runtime: f, Records: r})
	require.NoError(t, err)
	t.Cleanup(m.Close)
	return m
}

func TestCreateAndKill(t *testing.T) {
	f, r := newStub(t), newRecords()
	m := newManager(t, f, r)
	id := sandbox.NewID()
	rec, err := m.Create(t.Context(), sandbox.Record{ID: id, Image: "base"})
	require.NoError(t, err)
	require.Equal(t, sandbox.Running, rec.Status)
	require.Equal(t, []string{"directory", "container"}, r.step)
	_, err = m.Agent(t.Context(), id)
	require.NoError(t, err)

	var wg sync.WaitGroup
	for range 8 { // killed by several at once: one teardown, one answer
		wg.Go(func() {
			if err := m.Kill(t.Context(), id, sandbox.ReasonKilled); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.Equal(t, 1, f.removed[id])
	require.Equal(t, sandbox.Gone, r.status(id))
	require.Zero(t, f.traces())
	require.NoError(t, m.Kill(t.Context(), id, sandbox.ReasonKilled), "gone already")
	_, err = m.Agent(t.Context(), id)
	require.True(t, fault.Is(err, fault.NotFound), err)
}

func TestCreateFailureLeavesNothing(t *testing.T) {
	for _, step := range []string{"directory", "container"} {
		f, r := newStub(t), newRecords()
		f.creates = func(_ context.Context, s string) error {
			if s == step {
				return errors.New("no more of that")
			}
			return nil
		}
		m := newManager(t, f, r)
		id := sandbox.NewID()
		_, err := m.Create(t.Context(), sandbox.Record{ID: id})
		require.True(t, fault.Is(err, fault.HostFull), err)
		require.NotContains(t, fault.Public(err), "no more of that")
		require.Equal(t, sandbox.Gone, r.status(id))
		require.Zero(t, f.traces())
	}
}

func TestKillWhileCreating(t *testing.T) {
	f, r := newStub(t), newRecords()
	reached := make(chan struct{})
	f.creates = func(ctx context.Context, step string) error {
		if step == "container" {
			close(reached)
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	m := newManager(t, f, r)
	id := sandbox.NewID()
	failed := make(chan error, 1)
	go func() {
		_, err := m.Create(context.Background(), sandbox.Record{ID: id})
		failed <- err
	}()
	<-reached
	require.NoError(t, m.Kill(t.Context(), id, sandbox.ReasonKilled))
	err := <-failed
	require.True(t, fault.Is(err, fault.Conflict), err)
	require.Equal(t, sandbox.Gone, r.status(id))
	require.Zero(t, f.traces())
}

func TestCreateWhileClosing(t *testing.T) {
	f, r := newStub(t), newRecords()
	reached := make(chan struct{})
	f.creates = func(ctx context.Context, step string) error {
		if step == "directory" {
			close(reached)
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	m := newManager(t, f, r)
	id := sandbox.NewID()
	failed := make(chan error, 1)
	go func() {
		_, err := m.Create(context.Background(), sandbox.Record{ID: id})
		failed <- err
	}()
	<-reached
	m.Close()
	require.Error(t, <-failed)
	require.Equal(t, sandbox.Gone, r.status(id))
	_, err := m.Create(t.Context(), sandbox.Record{ID: sandbox.NewID()})
	require.True(t, fault.Is(err, fault.Starting), err)
}

func TestDeathIsShownAndFreed(t *testing.T) {
	f, r := newStub(t), newRecords()
	m := newManager(t, f, r)
	id := sandbox.NewID()
	_, err := m.Create(t.Context(), sandbox.Record{ID: id})
	require.NoError(t, err)
	f.mu.Lock()
	f.alive[id] <- sandbox.Death{Reason: sandbox.ReasonOutOfMemory}
	f.mu.Unlock()
	require.Eventually(t, func() bool { return r.status(id) == sandbox.Failed && f.traces() == 0 }, 60*time.Second, time.Millisecond)
	_, err = m.Agent(t.Context(), id)
	require.True(t, fault.Is(err, fault.SandboxDied), err)
	require.NoError(t, m.Kill(t.Context(), id, sandbox.ReasonKilled))
	require.Equal(t, sandbox.Gone, r.status(id))
}

func TestDeathThatCouldNotBeWrittenIsNotedLater(t *testing.T) {
	f, r := newStub(t), newRecords()
	m := newManager(t, f, r)
	id := sandbox.NewID()
	_, err := m.Create(t.Context(), sandbox.Record{ID: id})
	require.NoError(t, err)
	r.mu.Lock()
	r.full = errors.New("no space left on device")
	r.mu.Unlock()
	f.mu.Lock()
	f.alive[id] <- sandbox.Death{Reason: sandbox.ReasonOutOfMemory}
	f.mu.Unlock()
	require.Eventually(t, func() bool { _, err := m.Agent(t.Context(), id); return err != nil }, 60*time.Second, time.Millisecond,
		"nothing is answered for a dead sandbox")
	r.mu.Lock()
	r.full = nil
	r.mu.Unlock()
	f.mu.Lock()
	delete(f.alive, id)
	f.mu.Unlock()
	require.NoError(t, m.Reconcile(t.Context()))
	require.Equal(t, sandbox.Failed, r.status(id), "reconcile writes down what could not be written")
}

func TestTeardownFailureIsTriedAgain(t *testing.T) {
	f, r := newStub(t), newRecords()
	m := newManager(t, f, r)
	id := sandbox.NewID()
	_, err := m.Create(t.Context(), sandbox.Record{ID: id})
	require.NoError(t, err)
	busy := true
	f.removes = func() error {
		if busy {
			return errors.New("busy")
		}
		return nil
	}
	require.Error(t, m.Kill(t.Context(), id, sandbox.ReasonKilled))
	require.Equal(t, sandbox.Stopping, r.status(id))
	f.mu.Lock()
	busy = false
	f.mu.Unlock()
	require.NoError(t, m.Reconcile(t.Context()))
	require.Equal(t, sandbox.Gone, r.status(id), "reconcile finishes a teardown that failed")
	require.Zero(t, f.traces())
}

func TestReconcileAfterACrash(t *testing.T) {
	f, r := newStub(t), newRecords()
	put := func(s sandbox.Status, alive bool) sandbox.ID {
		id := sandbox.NewID()
		require.NoError(t, r.InsertSandbox(t.Context(), sandbox.Record{ID: id, Status: s}))
		f.alive[id] = nil
		if alive {
			f.alive[id] = make(chan sandbox.Death, 1)
		}
		return id
	}
	half, stopping := put(sandbox.Creating, false), put(sandbox.Stopping, false)
	dead, living := put(sandbox.Running, false), put(sandbox.Running, true)
	unowned := sandbox.NewID()
	f.alive[unowned] = nil

	m := newManager(t, f, r)
	require.NoError(t, m.Reconcile(t.Context()))
	require.Equal(t, sandbox.Gone, r.status(half))
	require.Equal(t, sandbox.Gone, r.status(stopping))
	require.Equal(t, sandbox.Failed, r.status(dead))
	require.Equal(t, sandbox.ReasonHostRestarted, r.all[dead].Reason)
	require.Equal(t, sandbox.Running, r.status(living))
	require.Equal(t, 1, f.traces(), "only the living one is left on the host")
	client, err := m.Agent(t.Context(), living)
	require.NoError(t, err)
	_, err = client.Hello(t.Context())
	require.NoError(t, err, "an adopted sandbox answers")
}

func TestTransitions(t *testing.T) {
	all := []sandbox.Status{
		sandbox.Creating, sandbox.Running, sandbox.Suspending, sandbox.Suspended, sandbox.Resuming,
		sandbox.Stopping, sandbox.Failed, sandbox.Gone,
	}
	allowed := map[sandbox.Status]string{
		sandbox.Creating: "running stopping", sandbox.Running: "suspending stopping failed",
		sandbox.Suspending: "suspended running stopping failed", sandbox.Suspended: "resuming stopping failed",
		sandbox.Resuming: "running suspended stopping failed", sandbox.Failed: "stopping", sandbox.Stopping: "gone",
	}
	for _, from := range all {
		for _, to := range all {
			want := false
			for _, w := range strings.Fields(allowed[from]) {
				want = want || w == string(to)
			}
			require.Equal(t, want, from.CanBecome(to), "%s to %s", from, to)
		}
	}
}

func TestIDs(t *testing.T) {
	seen := map[sandbox.ID]bool{}
	for range 1000 {
		id := sandbox.NewID()
		require.True(t, id.Valid(), id)
		require.False(t, seen[id])
		seen[id] = true
	}
	for _, bad := range []sandbox.ID{"", "sb", "sb*", "sbaaaaaaaaaaaaaaaaaaa", "sbaaaaaaaaaaaaaaaaaaaaa", "SBaaaaaaaaaaaaaaaaaaaa", "sbaaaaaaaaaaaaaaaaaaa/", "sbaaaaaaaaaaaaaaaaaaaa\n"} {
		require.False(t, bad.Valid(), "%q", bad)
	}
}
