package sandbox_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/sandbox"
)

// A write to the records that fails in a passage leaves nobody waiting for ever, and the next reconciliation mends it.
func TestAPassageWhoseRecordIsLostIsTakenUp(t *testing.T) {
	d := newDen(t)
	id := d.make(t)
	d.write(t, id)
	fail := func(how ...writeFault) {
		d.records.mu.Lock()
		defer d.records.mu.Unlock()
		d.records.next = how
	}
	fail(unanswered)
	require.ErrorIs(t, d.Suspend(t.Context(), id), errStep)
	require.Equal(t, sandbox.Running, d.records.status(id), "it is put back at once")
	d.busy(t, id)

	fail(unanswered, refused)
	require.ErrorIs(t, d.Suspend(t.Context(), id), errStep)
	require.Equal(t, sandbox.Suspending, d.records.status(id))
	for _, call := range []func() error{
		func() error { _, err := d.Agent(t.Context(), id); return err },
		func() error { _, err := d.Resume(t.Context(), id); return err },
		func() error { return d.Suspend(t.Context(), id) },
	} {
		require.Equal(t, fault.Starting, fault.KindOf(call()))
	}
	require.NoError(t, d.Reconcile(t.Context()))
	require.Equal(t, sandbox.Running, d.records.status(id))
	d.busy(t, id)
	require.NoError(t, d.Suspend(t.Context(), id))
	d.busy(t, id)
	require.NoError(t, d.Kill(t.Context(), id, sandbox.ReasonKilled))
	d.empty(t)
}

// A kill may come while a passage is being put on record.
func TestKillWinsOverARecordThatIsWritten(t *testing.T) {
	d := newDen(t)
	for _, to := range []sandbox.Status{sandbox.Suspending, sandbox.Resuming, sandbox.Running} {
		id := d.make(t)
		do := func() error { return d.Suspend(t.Context(), id) }
		if to != sandbox.Suspending {
			require.NoError(t, do())
			do = func() error { _, err := d.Resume(t.Context(), id); return err }
		}
		killed := make(chan error, 1)
		var once sync.Once
		d.records.mu.Lock()
		d.records.before = func(ctx context.Context, now sandbox.Status) {
			if now == to {
				once.Do(func() {
					go func() { killed <- d.Kill(context.WithoutCancel(t.Context()), id, sandbox.ReasonKilled) }()
					<-ctx.Done()
				})
			}
		}
		d.records.mu.Unlock()
		err := do()
		require.True(t, fault.Is(err, fault.NotFound), "to %s: %v", to, err)
		require.NoError(t, <-killed)
		d.records.mu.Lock()
		d.records.before = nil
		d.records.mu.Unlock()
		d.empty(t)
	}
}

// deaf is a runtime one of whose sandboxes does not answer any more.
type deaf struct {
	sandbox.Runtime
	id sandbox.ID
}

func (r deaf) Settle(ctx context.Context, id sandbox.ID) (bool, error) {
	if id != r.id {
		return r.Runtime.Settle(ctx, id)
	}
	<-ctx.Done()
	return false, ctx.Err()
}

// One sandbox that was being suspended and does not answer holds up neither the start of a server, nor its own kill, nor the
// server's end.
func TestASandboxThatDoesNotSettleHoldsNobodyUp(t *testing.T) {
	d := newDen(t)
	id, other := d.make(t), d.make(t)
	d.write(t, other)
	d.records.mu.Lock()
	d.records.next = []writeFault{unanswered, refused}
	d.records.mu.Unlock()
	require.ErrorIs(t, d.Suspend(t.Context(), id), errStep)
	for range 2 {
		d.Close()
		m, err := sandbox.New(sandbox.Options{Runtime: deaf{d.fake, id}, Records: d.records, Snapshots: d.records, Network: d.network})
		require.NoError(t, err)
		d.Manager = m
		m.SettleWithin(10 * time.Millisecond)
		require.NoError(t, m.Reconcile(t.Context()))
		require.Equal(t, sandbox.Suspending, d.records.status(id))
		d.busy(t, other)
	}
	require.NoError(t, d.Kill(t.Context(), id, sandbox.ReasonKilled))
	require.NoError(t, d.Kill(t.Context(), other, sandbox.ReasonKilled))
	require.Equal(t, sandbox.Gone, d.records.status(id))
	d.empty(t)
	d.Close()
}

// A save of a running sandbox that an earlier server did not finish is settled, once.
func TestAnUnfinishedSaveIsSettled(t *testing.T) {
	d := newDen(t)
	id := d.make(t)
	require.NoError(t, d.Save(t.Context(), id))
	d.fake.Unfinish(sandbox.SaveID(id))
	d.reopen(t)
	require.Eventually(t, func() bool {
		saves, err := d.fake.Saves(t.Context())
		require.NoError(t, err)
		return len(saves) == 1 && !saves[0].Unfinished
	}, 60*time.Second, time.Millisecond)
	require.Equal(t, sandbox.Running, d.records.status(id))
	require.NoError(t, d.Kill(t.Context(), id, sandbox.ReasonKilled))
	d.empty(t)
}

// Whatever ended a sandbox, people are told in words.
func TestEveryReasonHasWords(t *testing.T) {
	for _, reason := range []string{
		sandbox.ReasonOutOfMemory, sandbox.ReasonTooManyProcesses, sandbox.ReasonDiskFull, sandbox.ReasonCrash, sandbox.ReasonKilled,
		sandbox.ReasonStartFailed, sandbox.ReasonHostRestarted, sandbox.ReasonSaveLost, sandbox.ReasonIdle, sandbox.ReasonExpired,
	} {
		require.NotContains(t, fault.Public(sandbox.Died(reason)), "unknown", reason)
	}
	require.Contains(t, fault.Public(sandbox.Died("nonsense")), "unknown")
}
