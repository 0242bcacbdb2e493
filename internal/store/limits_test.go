package store_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/sandbox"
)

func TestQuotaCountsWhatHoldsTheHost(t *testing.T) {
	ctx := context.Background()
	s, other, _ := open(t)
	w := place(t, s)
	add := func(q sandbox.Quota, status sandbox.Status) error {
		return other.InsertSandboxWithin(ctx, sandbox.Record{ID: sandbox.NewID(), WorkspaceID: w.ID, Status: status, CreatedAt: epochStart}, q)
	}
	for _, status := range []sandbox.Status{sandbox.Gone, sandbox.Failed, sandbox.Running, sandbox.Suspended} {
		require.NoError(t, add(sandbox.Quota{}, status))
	}
	n, err := s.CountSandboxes(ctx, w.ID)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, fault.QuotaExceeded, fault.KindOf(add(sandbox.Quota{Workspace: 2}, sandbox.Creating)))
	require.Equal(t, fault.QuotaExceeded, fault.KindOf(add(sandbox.Quota{Workspace: 9, All: 2}, sandbox.Creating)))

	// Two processes at once: exactly one more.
	var wg sync.WaitGroup
	errs := make([]error, 10)
	for i := range errs {
		st := s
		if i%2 == 0 {
			st = other
		}
		wg.Go(func() {
			errs[i] = st.InsertSandboxWithin(ctx, sandbox.Record{ID: sandbox.NewID(), WorkspaceID: w.ID, Status: sandbox.Creating, CreatedAt: epochStart}, sandbox.Quota{Workspace: 3})
		})
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else {
			require.Equal(t, fault.QuotaExceeded, fault.KindOf(err), "%v", err)
		}
	}
	require.Equal(t, 1, won)
}

func TestWorkspaceLimits(t *testing.T) {
	ctx := context.Background()
	s, other, _ := open(t)
	w := place(t, s)
	most, n, err := other.WorkspaceLimits(ctx, w.ID)
	require.NoError(t, err)
	require.Zero(t, most)
	require.Zero(t, n)
	want := sandbox.Resources{CPU: 1.5, MemoryMB: 512, PIDs: 300}
	require.NoError(t, s.SetWorkspaceLimits(ctx, w.ID, want, 7))
	most, n, err = other.WorkspaceLimits(ctx, w.ID)
	require.NoError(t, err)
	require.Equal(t, want, most)
	require.Equal(t, 7, n)
	require.NoError(t, s.SetWorkspaceLimits(ctx, w.ID, sandbox.Resources{}, 0))
	most, n, err = other.WorkspaceLimits(ctx, w.ID)
	require.NoError(t, err)
	require.Zero(t, most)
	require.Zero(t, n)
}
