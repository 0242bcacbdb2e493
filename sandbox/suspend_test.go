package sandbox_test

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/sandboxtest"
)

// den is a manager over the fake, which suspends and resumes.
type den struct {
	*sandbox.Manager
	fake    *sandboxtest.Fake
	records *memoryRecords
	dir     string
	network *sandboxtest.FakeNetwork
	fail    atomic.Value // string: the step that fails
	hook    atomic.Value // func(step string)
}

var errStep = errors.New("this step fails")

func newDen(t *testing.T) *den {
	t.Helper()
	d := &den{records: newRecords(), dir: t.TempDir(), network: &sandboxtest.FakeNetwork{}}
	d.fail.Store("")
	d.hook.Store(func(string) {})
	d.fake = sandboxtest.NewFake(sandboxtest.FakeOptions{Dir: d.dir, Step: func(_ sandbox.ID, step string) error {
		d.hook.Load().(func(string))(step)
		if d.fail.Load().(string) == step {
			return errStep
		}
		return nil
	}})
	d.open(t)
	return d
}

// open starts a manager, as a server does.
func (d *den) open(t *testing.T) {
	t.Helper()
	m, err := sandbox.New(sandbox.Options{Runtime: d.fake, Records: d.records, Snapshots: d.records, Network: d.network})
	require.NoError(t, err)
	require.NoError(t, m.Reconcile(t.Context()))
	d.Manager = m
	t.Cleanup(m.Close)
}

func (d *den) reopen(t *testing.T) {
	t.Helper()
	d.Close()
	d.open(t)
}

func (d *den) make(t *testing.T) sandbox.ID {
	t.Helper()
	id := sandbox.NewID()
	_, err := d.Create(t.Context(), sandbox.Record{ID: id, Image: "base", Persistent: true})
	require.NoError(t, err)
	return id
}

// empty requires that nothing of any sandbox is on the host.
func (d *den) empty(t *testing.T) {
	t.Helper()
	found, err := d.fake.Found(t.Context())
	require.NoError(t, err)
	require.Empty(t, found)
	nets, err := d.network.Found(t.Context())
	require.NoError(t, err)
	require.Empty(t, nets)
	saves, err := d.fake.Saves(t.Context())
	require.NoError(t, err)
	require.Empty(t, saves)
	left, err := filepath.Glob(filepath.Join(d.dir, "*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func (d *den) write(t *testing.T, id sandbox.ID) {
	t.Helper()
	c, err := d.Agent(t.Context(), id)
	require.NoError(t, err)
	_, err = c.Start(t.Context(), agent.CommandSpec{ID: sandbox.RandomID("cmd"), Command: "sleep 600"})
	require.NoError(t, err)
}

// busy requires that what write began still runs.
func (d *den) busy(t *testing.T, id sandbox.ID) {
	t.Helper()
	c, err := d.Agent(t.Context(), id)
	require.NoError(t, err)
	list, err := c.Commands(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, "running", list[0].Status)
}

func TestSuspendFreesTheHostAndAnyCallWakes(t *testing.T) {
	d := newDen(t)
	id := d.make(t)
	d.write(t, id)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := d.Suspend(t.Context(), id); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.Equal(t, sandbox.Suspended, d.records.status(id))
	found, err := d.fake.Found(t.Context())
	require.NoError(t, err)
	require.Empty(t, found)
	nets, err := d.network.Found(t.Context())
	require.NoError(t, err)
	require.Empty(t, nets, "its network goes, too")
	require.Empty(t, d.Running())

	// What only reads leaves it asleep.
	r, err := d.Record(t.Context(), id)
	require.NoError(t, err)
	require.Positive(t, r.SavedBytes)
	require.False(t, r.SavedAt.IsZero())
	u, err := d.Usage(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, r.SavedBytes, u.DiskBytes)
	_, err = d.AwakeAgent(t.Context(), id)
	require.ErrorIs(t, err, sandbox.ErrAsleep)
	require.Equal(t, sandbox.Suspended, d.records.status(id))

	var resumes atomic.Int32
	d.hook.Store(func(step string) {
		if step == "restore" {
			resumes.Add(1)
		}
	})
	for range 16 {
		wg.Go(func() {
			c, err := d.Agent(t.Context(), id)
			if err == nil {
				_, err = c.Hello(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, resumes.Load(), "one resume for all")
	d.busy(t, id)
	nets, err = d.network.Found(t.Context())
	require.NoError(t, err)
	require.Equal(t, []sandbox.ID{id}, nets)
	require.NoError(t, d.Kill(t.Context(), id, sandbox.ReasonKilled))
	d.empty(t)
}

func TestOnlyPersistentSandboxesAreSuspended(t *testing.T) {
	d := newDen(t)
	id := sandbox.NewID()
	_, err := d.Create(t.Context(), sandbox.Record{ID: id, Image: "base"})
	require.NoError(t, err)
	require.Equal(t, fault.Conflict, fault.KindOf(d.Suspend(t.Context(), id)))
	require.Equal(t, fault.NotFound, fault.KindOf(d.Suspend(t.Context(), sandbox.NewID())))
	_, err = d.Resume(t.Context(), id)
	require.NoError(t, err, "it runs")
	require.NoError(t, d.Kill(t.Context(), id, sandbox.ReasonKilled))
	_, err = d.Resume(t.Context(), id)
	require.Equal(t, fault.NotFound, fault.KindOf(err))
	d.empty(t)
}

func TestEachStepOfSuspendAndResumeMayFail(t *testing.T) {
	d := newDen(t)
	id := d.make(t)
	d.write(t, id)
	for _, step := range []string{"checkpoint", "keep save"} {
		d.fail.Store(step)
		require.Error(t, d.Suspend(t.Context(), id), step)
		require.Equal(t, sandbox.Running, d.records.status(id), step)
		d.busy(t, id)
	}
	d.fail.Store("")
	require.NoError(t, d.Suspend(t.Context(), id))
	for _, step := range []string{"directories", "restore"} {
		d.fail.Store(step)
		_, err := d.Resume(t.Context(), id)
		require.Error(t, err, step)
		require.NotEqual(t, fault.Internal, fault.KindOf(err), step)
		require.Equal(t, sandbox.Suspended, d.records.status(id), step)
		nets, err := d.network.Found(t.Context())
		require.NoError(t, err)
		require.Empty(t, nets, step)
	}
	d.fail.Store("")
	d.busy(t, id)
	require.NoError(t, d.Kill(t.Context(), id, sandbox.ReasonKilled))
	d.empty(t)
}

func TestKillWinsOverSuspendAndResume(t *testing.T) {
	d := newDen(t)
	for _, step := range []string{"checkpoint", "keep save", "directories", "restore"} {
		id := d.make(t)
		if step == "directories" || step == "restore" {
			require.NoError(t, d.Suspend(t.Context(), id))
		}
		reached, killed := make(chan struct{}), make(chan error, 1)
		d.hook.Store(func(s string) {
			if s == step {
				close(reached)
				// The kill is on its way when the record says so, or this step is the last to be waited for.
				deadline := time.Now().Add(time.Second)
				for time.Now().Before(deadline) && len(killed) == 0 {
					select {
					case err := <-killed:
						killed <- err
					case <-time.After(20 * time.Millisecond):
						deadline = time.Time{}
					}
				}
			}
		})
		go func() {
			<-reached
			killed <- d.Kill(context.WithoutCancel(t.Context()), id, sandbox.ReasonKilled)
		}()
		var err error
		if step == "directories" || step == "restore" {
			_, err = d.Resume(t.Context(), id)
		} else {
			err = d.Suspend(t.Context(), id)
		}
		if err != nil { // whoever asked may see it end either way
			require.True(t, fault.Is(err, fault.NotFound), "%s: %v", step, err)
		}
		require.NoError(t, <-killed, step)
		d.hook.Store(func(string) {})
		require.Equal(t, sandbox.Gone, d.records.status(id), step)
		d.empty(t)
	}
	// And of one that sleeps.
	id := d.make(t)
	require.NoError(t, d.Suspend(t.Context(), id))
	require.NoError(t, d.Kill(t.Context(), id, sandbox.ReasonKilled))
	require.Equal(t, sandbox.Gone, d.records.status(id))
	d.empty(t)
}

// A fork of what is killed meanwhile finds no sandbox: that is no fault of ours.
func TestKillWinsOverFork(t *testing.T) {
	d := newDen(t)
	id := d.make(t)
	killed := make(chan error, 1)
	d.hook.Store(func(s string) {
		if s != "checkpoint" {
			return
		}
		d.hook.Store(func(string) {})
		go func() { killed <- d.Kill(context.WithoutCancel(t.Context()), id, sandbox.ReasonKilled) }()
		given, cancel := context.WithCancel(t.Context())
		cancel() // it asks, and waits for nothing
		for !fault.Is(d.Suspend(given, id), fault.NotFound) {
			select {
			case <-time.After(time.Millisecond):
			case <-t.Context().Done():
				return
			}
		}
	})
	_, err := d.Fork(t.Context(), id, sandbox.Record{ID: sandbox.NewID()}, sandbox.Quota{})
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	require.NoError(t, <-killed)
	d.empty(t)
}

func TestReconcileTakesSuspendedOnesUp(t *testing.T) {
	d := newDen(t)
	id := d.make(t)
	d.write(t, id)
	require.NoError(t, d.Suspend(t.Context(), id))
	d.reopen(t)
	require.Equal(t, sandbox.Suspended, d.records.status(id))
	d.busy(t, id)

	// A server that died while it suspended: before the state was kept the sandbox runs on.
	d.Close()
	d.records.set(id, sandbox.Suspending)
	d.open(t)
	require.Equal(t, sandbox.Running, d.records.status(id))
	d.busy(t, id)

	// … after it, it is suspended.
	require.NoError(t, d.Suspend(t.Context(), id))
	d.Close()
	d.records.set(id, sandbox.Suspending)
	d.open(t)
	require.Equal(t, sandbox.Suspended, d.records.status(id))

	// A server that died while it resumed.
	d.Close()
	d.records.set(id, sandbox.Resuming)
	d.open(t)
	require.Equal(t, sandbox.Suspended, d.records.status(id))
	d.busy(t, id)
	require.NoError(t, d.Suspend(t.Context(), id))

	// Its save is gone.
	d.Close()
	require.NoError(t, d.fake.DropSave(t.Context(), sandbox.SaveID(id)))
	d.open(t)
	require.Equal(t, sandbox.Failed, d.records.status(id))
	_, err := d.Agent(t.Context(), id)
	require.Equal(t, fault.SandboxDied, fault.KindOf(err))
	require.NoError(t, d.Kill(t.Context(), id, sandbox.ReasonKilled))
	d.empty(t)
}

func TestHostRestartFallsBackToTheLastSave(t *testing.T) {
	d := newDen(t)
	saved, unsaved := d.make(t), d.make(t)
	require.NoError(t, d.Suspend(t.Context(), saved))
	_, err := d.Resume(t.Context(), saved)
	require.NoError(t, err)
	d.Close()
	for _, id := range []sandbox.ID{saved, unsaved} {
		d.fake.Die(id, sandbox.Death{Reason: sandbox.ReasonHostRestarted})
	}
	d.open(t)
	require.Equal(t, sandbox.Failed, d.records.status(unsaved))
	require.Equal(t, sandbox.Suspended, d.records.status(saved))
	r, err := d.Resume(t.Context(), saved)
	require.NoError(t, err)
	require.Equal(t, sandbox.ReasonHostRestarted, r.Reason, "people are told why something is missing")
	require.NoError(t, d.Suspend(t.Context(), saved))
	r, err = d.Resume(t.Context(), saved)
	require.NoError(t, err)
	require.Empty(t, r.Reason)
	for _, id := range []sandbox.ID{saved, unsaved} {
		require.NoError(t, d.Kill(t.Context(), id, sandbox.ReasonKilled))
	}
	d.empty(t)
}

func TestCallsGoThroughASuspendAndAResumeWithoutHarm(t *testing.T) {
	d := newDen(t)
	id := d.make(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var calls atomic.Int32
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				c, err := d.Agent(t.Context(), id)
				if err == nil {
					_, err = c.Hello(t.Context())
					err = d.Explain(t.Context(), id, err)
				}
				if err != nil && !fault.Is(err, fault.Starting) {
					t.Error(err)
					return
				}
				if err == nil {
					calls.Add(1)
				}
			}
		})
	}
	for range 20 {
		if err := d.Suspend(t.Context(), id); err != nil {
			require.Equal(t, fault.Conflict, fault.KindOf(err))
		}
		before := calls.Load()
		require.Eventually(t, func() bool { return calls.Load() > before+4 }, 60*time.Second, time.Millisecond)
	}
	close(stop)
	wg.Wait()
	require.NoError(t, d.Kill(t.Context(), id, sandbox.ReasonKilled))
	d.empty(t)
}

func TestWhatCannotRunAgainStartsOnItsFiles(t *testing.T) {
	d := newDen(t)
	id := d.make(t)
	d.write(t, id)
	require.NoError(t, d.Suspend(t.Context(), id))
	d.fake.Spoil(sandbox.SaveID(id))
	r, err := d.Resume(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, sandbox.ReasonMemoryLost, r.Reason, "people are told what was lost")
	c, err := d.Agent(t.Context(), id)
	require.NoError(t, err)
	list, err := c.Commands(t.Context())
	require.NoError(t, err)
	require.Empty(t, list)
	require.NoError(t, d.Kill(t.Context(), id, sandbox.ReasonKilled))
	d.empty(t)
}

func TestRunningSandboxesAreSavedFromTimeToTime(t *testing.T) {
	d := newDen(t)
	id := d.make(t)
	plain := sandbox.NewID()
	_, err := d.Create(t.Context(), sandbox.Record{ID: plain, Image: "base"})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.KeepSaved(ctx, 10*time.Millisecond)
	}()
	require.Eventually(t, func() bool {
		_, err := d.fake.Saved(t.Context(), sandbox.SaveID(id))
		return err == nil
	}, 60*time.Second, 5*time.Millisecond)
	stop()
	<-ended
	require.Equal(t, sandbox.Running, d.records.status(id))
	_, err = d.fake.Saved(t.Context(), sandbox.SaveID(plain))
	require.Equal(t, fault.NotFound, fault.KindOf(err))
	for _, id := range []sandbox.ID{id, plain} {
		require.NoError(t, d.Kill(t.Context(), id, sandbox.ReasonKilled))
	}
	d.empty(t)
}

func TestForksOfWhatRunsAndOfWhatSleeps(t *testing.T) {
	d := newDen(t)
	id := d.make(t)
	d.write(t, id)
	var all []sandbox.ID
	fork := func() {
		one := sandbox.NewID()
		r, err := d.Fork(t.Context(), id, sandbox.Record{ID: one, Persistent: true}, sandbox.Quota{})
		require.NoError(t, err)
		require.Equal(t, sandbox.Running, r.Status)
		require.Equal(t, string(id), r.Parent)
		require.Equal(t, "base", r.Image)
		_, err = d.Agent(t.Context(), one)
		require.NoError(t, err)
		all = append(all, one)
	}
	fork()
	fork()
	d.busy(t, id)
	saves, err := d.fake.Saves(t.Context())
	require.NoError(t, err)
	require.Empty(t, saves, "what forks are made from is not kept")
	require.NoError(t, d.Suspend(t.Context(), id))
	fork()
	require.Equal(t, sandbox.Suspended, d.records.status(id))
	for _, step := range []string{"checkpoint", "keep save", "restore"} {
		if step == "checkpoint" {
			d.busy(t, id) // awake
		}
		d.fail.Store(step)
		failed := sandbox.NewID()
		_, err := d.Fork(t.Context(), id, sandbox.Record{ID: failed}, sandbox.Quota{})
		require.Error(t, err, step)
		d.fail.Store("")
		d.busy(t, id)
		found, err := d.fake.Found(t.Context())
		require.NoError(t, err)
		require.NotContains(t, found, failed)
	}
	d.Close()
	require.NoError(t, d.fake.Save(t.Context(), all[0], "snapaaaaaaaaaaaaaaaaaaaa", func(string) error { return nil }))
	d.open(t)
	_, err = d.fake.Saved(t.Context(), "snapaaaaaaaaaaaaaaaaaaaa")
	require.Equal(t, fault.NotFound, fault.KindOf(err), "a save that a crashed fork left goes")
	for _, one := range append(all, id) {
		require.NoError(t, d.Kill(t.Context(), one, sandbox.ReasonKilled))
	}
	d.empty(t)
}
