package sandbox_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/sandboxtest"
)

// pond is a manager over the fake with a pool.
type pond struct {
	*sandbox.Manager
	fake    *sandboxtest.Fake
	records *memoryRecords
	network *sandboxtest.FakeNetwork
	tree    atomic.Value // string: which tree the image is
}

func newPond(t *testing.T, most int) *pond {
	t.Helper()
	p := &pond{records: newRecords(), network: &sandboxtest.FakeNetwork{}}
	p.tree.Store("one")
	p.fake = sandboxtest.NewFake(sandboxtest.FakeOptions{Dir: t.TempDir()})
	m, err := sandbox.New(sandbox.Options{
		Runtime: p.fake, Records: p.records, Network: p.network,
		Pool: sandbox.PoolOptions{Max: most, Image: "base", State: func(string) string { return p.tree.Load().(string) }},
	})
	require.NoError(t, err)
	p.Manager = m
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); m.KeepPool(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
		m.Close()
		left, err := p.fake.Found(context.Background())
		require.NoError(t, err)
		for _, id := range left {
			_, err := p.records.SandboxByID(context.Background(), id)
			require.NoError(t, err, "%s is nobody's", id)
		}
	})
	return p
}

// alive lists what runs.
func (p *pond) alive(t *testing.T) []sandbox.ID {
	t.Helper()
	ids, err := p.fake.Found(t.Context())
	require.NoError(t, err)
	return ids
}

// filled waits until one is ready, of n that run, and gives all that run.
func (p *pond) filled(t *testing.T, n int) []sandbox.ID {
	t.Helper()
	var ids []sandbox.ID
	require.Eventually(t, func() bool {
		ids = p.alive(t)
		return len(ids) == n && p.Ready() == 1
	}, 60*time.Second, time.Millisecond)
	return ids
}

func (p *pond) create(t *testing.T, r sandbox.Record) sandbox.Record {
	t.Helper()
	r.Image = "base"
	if r.Resources == (sandbox.Resources{}) {
		r.Resources = sandbox.DefaultResources
	}
	r.ID = p.Choose(r.Image, r.Resources)
	made, err := p.Create(t.Context(), r)
	require.NoError(t, err)
	require.Equal(t, sandbox.Running, made.Status)
	return made
}

func TestAReadySandboxBecomesWhatWasAskedFor(t *testing.T) {
	p := newPond(t, 3)
	ready := p.filled(t, 1)
	policy, ok := p.network.Policy(ready[0])
	require.True(t, ok)
	require.Equal(t, sandbox.NetworkNone, policy.Mode, "what is nobody's reaches nothing")
	require.Empty(t, p.Running())
	_, err := p.Agent(t.Context(), ready[0])
	require.True(t, fault.Is(err, fault.NotFound), "and is reached by nobody")
	require.NoError(t, p.Reconcile(t.Context()))
	require.Equal(t, ready, p.alive(t), "reconcile knows it")

	want := sandbox.Resources{CPU: 0.5, MemoryMB: 512, DiskMB: sandbox.DefaultResources.DiskMB, PIDs: 300}
	made := p.create(t, sandbox.Record{Network: openNet, Resources: want, Label: "x"})
	require.Equal(t, ready[0], made.ID)
	require.Equal(t, want, p.fake.Limits(made.ID))
	policy, _ = p.network.Policy(made.ID)
	require.Equal(t, openNet, policy)
	require.Equal(t, []sandbox.ID{made.ID}, p.Running())
	_, err = p.Agent(t.Context(), made.ID)
	require.NoError(t, err)
	p.filled(t, 2) // another one takes its place

	p.fake.Die(made.ID, sandbox.Death{Reason: sandbox.ReasonCrash})
	require.Eventually(t, func() bool { return p.records.status(made.ID) == sandbox.Failed }, 60*time.Second, time.Millisecond, "it is watched over")
	require.NoError(t, p.Kill(t.Context(), made.ID, sandbox.ReasonKilled))
}

func TestNoReadySandboxIsGivenTwice(t *testing.T) {
	p := newPond(t, 4)
	p.filled(t, 1)
	var mu sync.Mutex
	seen := map[sandbox.ID]int{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 10 {
				made := p.create(t, sandbox.Record{})
				mu.Lock()
				seen[made.ID]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.Len(t, seen, 80)
}

func TestWhatDoesNotFitIsMadeAfresh(t *testing.T) {
	p := newPond(t, 2)
	ready := p.filled(t, 1)
	other := sandbox.DefaultResources
	other.DiskMB = 64
	require.NotEqual(t, ready[0], p.create(t, sandbox.Record{Resources: other}).ID, "the size of a disk cannot be changed")
	require.NotEqual(t, ready[0], p.Choose("other", sandbox.DefaultResources))

	id := p.Choose("base", sandbox.DefaultResources)
	require.Equal(t, ready[0], id)
	p.Unchoose(id)
	require.Equal(t, ready[0], p.Choose("base", sandbox.DefaultResources), "given back")
	p.Unchoose(id)

	p.tree.Store("two")
	require.NotEqual(t, ready[0], p.create(t, sandbox.Record{}).ID, "of an older image")
	require.Eventually(t, func() bool {
		for _, id := range p.alive(t) {
			if id == ready[0] {
				return false
			}
		}
		return true
	}, 60*time.Second, time.Millisecond, "drained")
}

func TestADeadOneIsNotGiven(t *testing.T) {
	p := newPond(t, 1)
	ready := p.filled(t, 1)
	id := p.Choose("base", sandbox.DefaultResources)
	require.Equal(t, ready[0], id)
	p.fake.Die(id, sandbox.Death{Reason: sandbox.ReasonCrash})
	_, err := p.Create(t.Context(), sandbox.Record{ID: id, Image: "base", Resources: sandbox.DefaultResources})
	require.True(t, fault.Is(err, fault.HostFull), err)
	require.Equal(t, sandbox.Gone, p.records.status(id))
	require.Eventually(t, func() bool {
		ids := p.alive(t)
		return p.Ready() == 1 && len(ids) == 1 && ids[0] != id
	}, 60*time.Second, time.Millisecond)
}

func TestOneThatTheQuotaRefusesStaysReady(t *testing.T) {
	p := newPond(t, 1)
	ready := p.filled(t, 1)
	p.records.refuse = fault.New(fault.QuotaExceeded, "enough")
	id := p.Choose("base", sandbox.DefaultResources)
	require.Equal(t, ready[0], id)
	_, err := p.Create(t.Context(), sandbox.Record{ID: id, Image: "base", Resources: sandbox.DefaultResources})
	require.True(t, fault.Is(err, fault.QuotaExceeded), err)
	p.records.refuse = nil
	other := p.Choose("base", sandbox.DefaultResources)
	require.NotEqual(t, id, other, "not before the one who was refused has taken away what is kept under the id")
	p.Unchoose(other)
	p.Unchoose(id)
	require.Equal(t, id, p.create(t, sandbox.Record{}).ID)
}
