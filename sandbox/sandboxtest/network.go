package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/sandbox"
)

// FakeNetwork is a sandbox.Network that only remembers. It is for unit tests of what stands above a network.
type FakeNetwork struct {
	// Step is called before each step's change, after the journal; an error fails that step. May be nil.
	Step func(id sandbox.ID, step string) error

	mu  sync.Mutex
	all map[sandbox.ID]sandbox.NetworkPolicy
}

var _ sandbox.Network = (*FakeNetwork)(nil)

// Policy gives what an attached sandbox is held to; false when it is not attached.
func (f *FakeNetwork) Policy(id sandbox.ID) (sandbox.NetworkPolicy, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, ok := f.all[id]
	return p, ok
}

// Attach implements sandbox.Network.
func (f *FakeNetwork) Attach(ctx context.Context, id sandbox.ID, p sandbox.NetworkPolicy, journal sandbox.Journal) (sandbox.Attachment, error) {
	a, err := f.Begin(ctx, id, p, journal)
	if err == nil {
		err = a.Wait()
	}
	return a, err
}

// Begin implements sandbox.Network. The namespace is empty: a fake runtime has no use for one, a real one then has none.
func (f *FakeNetwork) Begin(ctx context.Context, id sandbox.ID, p sandbox.NetworkPolicy, journal sandbox.Journal) (sandbox.Attachment, error) {
	if err := checkID(id); err != nil {
		return sandbox.Attachment{}, err
	}
	if _, taken := f.Policy(id); taken {
		return sandbox.Attachment{}, fault.New(fault.Conflict, "This sandbox has a network already.")
	}
	do := func(step string) error {
		err := ctx.Err()
		if err == nil {
			err = journal(step)
		}
		if err == nil && f.Step != nil {
			err = f.Step(id, step)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("attach %s: %s: %w", id, step, err), f.Detach(ctx, id))
		}
		f.set(id, p)
		return nil
	}
	if err := do("network rules"); err != nil {
		return sandbox.Attachment{}, err
	}
	done := make(chan error, 1)
	go func() { done <- do("network link") }()
	return sandbox.Attachment{Resolver: netip.MustParseAddr("192.0.2.53"), Ready: sync.OnceValue(func() error { return <-done })}, nil
}

func (f *FakeNetwork) set(id sandbox.ID, p sandbox.NetworkPolicy) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.all = map[sandbox.ID]sandbox.NetworkPolicy{}
	}
	f.all[id] = p
}

// Change implements sandbox.Network.
func (f *FakeNetwork) Change(ctx context.Context, id sandbox.ID, p sandbox.NetworkPolicy) error {
	if err := f.Adopt(ctx, id, p); err != nil {
		return err
	}
	f.set(id, p)
	return nil
}

// Adopt implements sandbox.Network.
func (f *FakeNetwork) Adopt(_ context.Context, id sandbox.ID, _ sandbox.NetworkPolicy) error {
	if _, ok := f.Policy(id); !ok {
		return fault.New(fault.NotFound, "This sandbox has no network.")
	}
	return nil
}

// Detach implements sandbox.Network.
func (f *FakeNetwork) Detach(_ context.Context, id sandbox.ID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.all, id)
	return checkID(id)
}

// Found implements sandbox.Network.
func (f *FakeNetwork) Found(context.Context) ([]sandbox.ID, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.all)), nil
}

// NetworkSubject is a network that shall keep the contract.
type NetworkSubject struct {
	Network sandbox.Network
	// Left lists what is on the host of this network's installation; nil where there is no host.
	Left func() ([]string, error)
}

// RunNetwork runs the contract of sandbox.Network against fresh subjects, one for each test.
func RunNetwork(t *testing.T, subject func(t *testing.T) NetworkSubject) {
	for name, test := range map[string]func(*testing.T, context.Context, sandbox.Network){
		"attaches, changes and detaches":         netLives,
		"wants whole ids":                        netRefusesIDs,
		"knows nothing of what is not there":     netAbsent,
		"refuses a second one of the same id":    netTwice,
		"leaves nothing when a step is refused":  netRefusedSteps,
		"keeps the same resolver for all of one": netResolver,
	} {
		t.Run(name, func(t *testing.T) {
			s := subject(t)
			ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
			defer cancel()
			test(t, ctx, s.Network)
			if t.Failed() {
				return
			}
			found, err := s.Network.Found(ctx)
			require.NoError(t, err)
			require.Empty(t, found)
			if s.Left != nil {
				left, err := s.Left()
				require.NoError(t, err)
				require.Empty(t, left, "left on the host")
			}
		})
	}
}

func public() sandbox.NetworkPolicy { return sandbox.NetworkPolicy{Mode: sandbox.NetworkPublic} }

func netLives(t *testing.T, ctx context.Context, n sandbox.Network) {
	id := sandbox.NewID()
	a, err := n.Attach(ctx, id, public(), silent)
	require.NoError(t, err)
	require.True(t, a.Resolver.IsValid())
	found, err := n.Found(ctx)
	require.NoError(t, err)
	require.Contains(t, found, id)
	require.NoError(t, n.Change(ctx, id, sandbox.NetworkPolicy{Mode: sandbox.NetworkNone}))
	require.NoError(t, n.Adopt(ctx, id, sandbox.NetworkPolicy{Mode: sandbox.NetworkNone}))
	require.NoError(t, n.Detach(ctx, id))
	require.NoError(t, n.Detach(ctx, id), "again")
}

func netRefusesIDs(t *testing.T, ctx context.Context, n sandbox.Network) {
	for _, id := range []sandbox.ID{"", "sb", "*", "../sb", "sbaaaaaaaaaaaaaaaaaaaa*", "SBaaaaaaaaaaaaaaaaaaaa"} {
		_, err := n.Attach(ctx, id, public(), silent)
		require.Error(t, err, id)
		require.Error(t, n.Change(ctx, id, public()), id)
		require.Error(t, n.Adopt(ctx, id, public()), id)
		require.Error(t, n.Detach(ctx, id), id)
	}
}

func netAbsent(t *testing.T, ctx context.Context, n sandbox.Network) {
	id := sandbox.NewID()
	require.True(t, fault.Is(n.Change(ctx, id, public()), fault.NotFound))
	require.True(t, fault.Is(n.Adopt(ctx, id, public()), fault.NotFound))
	require.NoError(t, n.Detach(ctx, id))
}

func netTwice(t *testing.T, ctx context.Context, n sandbox.Network) {
	id := sandbox.NewID()
	_, err := n.Attach(ctx, id, public(), silent)
	require.NoError(t, err)
	_, err = n.Attach(ctx, id, public(), silent)
	require.True(t, fault.Is(err, fault.Conflict), err)
	require.NoError(t, n.Adopt(ctx, id, public()), "the first one is not harmed")
	require.NoError(t, n.Detach(ctx, id))
}

// netRefusedSteps fails every step in turn until an attachment has no such step any more, at once and begun.
func netRefusedSteps(t *testing.T, ctx context.Context, n sandbox.Network) {
	begun := func(ctx context.Context, id sandbox.ID, p sandbox.NetworkPolicy, journal sandbox.Journal) (sandbox.Attachment, error) {
		a, err := n.Begin(ctx, id, p, journal)
		if err == nil {
			err = errors.Join(a.Wait(), a.Wait()) // who asks twice is told the same
		}
		return a, err
	}
	for _, attach := range []func(context.Context, sandbox.ID, sandbox.NetworkPolicy, sandbox.Journal) (sandbox.Attachment, error){n.Attach, begun} {
		for nth := int64(0); ; nth++ {
			id := sandbox.NewID()
			var seen atomic.Int64
			_, err := attach(ctx, id, public(), func(string) error {
				if seen.Add(1) > nth {
					return errors.New("refused")
				}
				return nil
			})
			if err == nil {
				require.Positive(t, nth, "an attachment has steps")
				require.NoError(t, n.Detach(ctx, id))
				break
			}
			found, err := n.Found(ctx)
			require.NoError(t, err)
			require.NotContains(t, found, id, "after step %d was refused", nth)
		}
	}
}

func netResolver(t *testing.T, ctx context.Context, n sandbox.Network) {
	var addrs []netip.Addr
	for range 3 {
		id := sandbox.NewID()
		a, err := n.Attach(ctx, id, public(), silent)
		require.NoError(t, err)
		addrs = append(addrs, a.Resolver)
		defer func() { require.NoError(t, n.Detach(ctx, id)) }()
	}
	require.Equal(t, addrs[0], addrs[1])
	require.Equal(t, addrs[0], addrs[2])
}
