package workspace_test

import (
	"context"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
)

func fields(t *testing.T, err error) map[string]string {
	t.Helper()
	wantKind(t, err, fault.Invalid)
	var e *fault.Error
	require.ErrorAs(t, err, &e)
	return e.Fields
}

func TestAForkIsBoundByTheLimitsOfNow(t *testing.T) {
	w, ctx := newWorld(t), context.Background()
	made, err := w.CreateSandbox(ctx, w.ann, workspace.CreateOptions{Persistent: true})
	require.NoError(t, err)
	_, err = w.SetWorkspaceLimits(ctx, w.ann, workspace.Limits{Most: sandbox.Resources{MemoryMB: made.Resources.MemoryMB / 2}})
	require.NoError(t, err)
	_, err = w.ForkSandbox(ctx, w.ann, string(made.ID))
	require.Contains(t, fields(t, err), "resources.memory_mb")
}

func TestCeilingsOfAWorkspace(t *testing.T) {
	w, ctx := newWorld(t), context.Background()
	_, err := w.SetWorkspaceLimits(ctx, w.ann, workspace.Limits{Most: sandbox.Resources{CPU: 0.5, MemoryMB: 512, DiskMB: 1000, PIDs: 300}, Sandboxes: 2})
	require.NoError(t, err)

	made, err := w.CreateSandbox(ctx, w.ann, workspace.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, sandbox.Resources{CPU: 0.5, MemoryMB: 512, DiskMB: 1000, PIDs: 300}, made.Resources, "defaults stay below the ceilings")

	_, err = w.CreateSandbox(ctx, w.ann, workspace.CreateOptions{Resources: sandbox.Resources{CPU: 0.6, MemoryMB: 513, DiskMB: 1001, PIDs: 301}})
	require.Len(t, fields(t, err), 4)

	_, err = w.CreateSandbox(ctx, w.ann, workspace.CreateOptions{})
	require.NoError(t, err)
	_, err = w.CreateSandbox(ctx, w.ann, workspace.CreateOptions{})
	wantKind(t, err, fault.QuotaExceeded)
	l, err := w.WorkspaceLimits(ctx, w.ann)
	require.NoError(t, err)
	require.Equal(t, 2, l.InUse)
	require.Equal(t, 2, l.InForce.Sandboxes)
	e := w.events(t, audit.Filter{Action: "sandbox.create"})[0]
	require.Equal(t, "failed", string(e.Outcome))

	require.NoError(t, w.KillSandbox(ctx, w.ann, string(made.ID)))
	_, err = w.CreateSandbox(ctx, w.ann, workspace.CreateOptions{})
	require.NoError(t, err, "one that is gone leaves its place")

	_, err = w.SetWorkspaceLimits(ctx, w.ann, workspace.Limits{Most: sandbox.Resources{CPU: math.NaN(), MemoryMB: 63, DiskMB: 15, PIDs: 127}, Sandboxes: -1})
	require.Len(t, fields(t, err), 5)
	_, err = w.SetWorkspaceLimits(ctx, w.ann, workspace.Limits{})
	require.NoError(t, err)
	_, err = w.CreateSandbox(ctx, w.ann, workspace.CreateOptions{})
	require.NoError(t, err)
}

func TestOfTwoAtTheLimitOneWins(t *testing.T) {
	w, ctx := newWorld(t), context.Background()
	_, err := w.SetWorkspaceLimits(ctx, w.ann, workspace.Limits{Sandboxes: 3})
	require.NoError(t, err)
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() { _, errs[i] = w.CreateSandbox(ctx, w.ann, workspace.CreateOptions{}) })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
			continue
		}
		wantKind(t, err, fault.QuotaExceeded)
	}
	require.Equal(t, 3, won)
}

func TestNoWorkspaceExceedsTheInstallation(t *testing.T) {
	w, ctx := newWorldWith(t, func(o *workspace.Options) {
		o.Ceilings = workspace.Limits{Most: sandbox.Resources{CPU: 1, MemoryMB: 2048, DiskMB: 4096, PIDs: 1024}, Sandboxes: 3}
		o.MaxSandboxes = 4
	}), context.Background()
	_, err := w.SetWorkspaceLimits(ctx, w.ann, workspace.Limits{Most: sandbox.Resources{CPU: 1.5, MemoryMB: 4096, DiskMB: 8192, PIDs: 2048}, Sandboxes: 4})
	require.Len(t, fields(t, err), 5)
	_, err = w.CreateSandbox(ctx, w.ann, workspace.CreateOptions{Resources: sandbox.Resources{MemoryMB: 2049}})
	require.Contains(t, fields(t, err), "resources.memory_mb")
	for range 3 {
		_, err = w.CreateSandbox(ctx, w.ann, workspace.CreateOptions{})
		require.NoError(t, err)
	}
	_, err = w.CreateSandbox(ctx, w.ann, workspace.CreateOptions{})
	wantKind(t, err, fault.QuotaExceeded)
	require.Contains(t, fault.Public(err), "workspace")

	// Another workspace has its own places, and both share the installation's.
	other, err := w.CreateWorkspace(ctx, w.ann, "Other")
	require.NoError(t, err)
	a := w.person(t, w.ann.UserID, other.Slug)
	a.Permissions = auth.AllPermissions
	_, err = w.CreateSandbox(ctx, a, workspace.CreateOptions{})
	require.NoError(t, err)
	_, err = w.CreateSandbox(ctx, a, workspace.CreateOptions{})
	wantKind(t, err, fault.QuotaExceeded)
	require.Contains(t, fault.Public(err), "installation")
	l, err := w.AdminSetLimits(ctx, "other", workspace.Limits{Sandboxes: 2})
	require.NoError(t, err)
	require.Equal(t, 1, l.InUse)
	l, err = w.AdminLimits(ctx, "lab")
	require.NoError(t, err)
	require.Zero(t, l.Own)
}

func TestLimitsOfASandboxChange(t *testing.T) {
	w, ctx := newWorld(t), context.Background()
	box := w.sandbox(t)
	patch := func(a auth.Actor, r sandbox.Resources) (workspace.Sandbox, error) {
		return w.UpdateSandbox(ctx, a, box, workspace.SandboxPatch{Resources: &r})
	}
	sb, err := patch(w.ann, sandbox.Resources{MemoryMB: 2048, PIDs: 512})
	require.NoError(t, err)
	require.Equal(t, sandbox.Resources{CPU: 1, MemoryMB: 2048, DiskMB: 4096, PIDs: 512}, sb.Resources, "what is not named stays")
	e := w.events(t, audit.Filter{Action: "sandbox.update"})[0]
	require.Equal(t, "memory_mb 1024 to 2048, pids 1024 to 512", e.Detail)

	_, err = patch(w.ann, sandbox.Resources{DiskMB: 8192})
	require.Contains(t, fields(t, err), "resources.disk_mb")
	_, err = patch(w.ann, sandbox.Resources{MemoryMB: 1, PIDs: 1})
	require.NotEmpty(t, fields(t, err))

	// The owner who may run, but not manage, changes the label and no limit.
	owner := w.ann
	owner.Permissions = auth.Permissions{auth.SandboxesRun}
	label := "mine"
	_, err = w.UpdateSandbox(ctx, owner, box, workspace.SandboxPatch{Label: &label})
	require.NoError(t, err)
	_, err = patch(owner, sandbox.Resources{MemoryMB: 512})
	wantKind(t, err, fault.Forbidden)
	e = w.events(t, audit.Filter{Action: "sandbox.update"})[0]
	require.Equal(t, "refused", string(e.Outcome))

	// A ceiling that came later binds what is raised, not what is there.
	_, err = w.SetWorkspaceLimits(ctx, w.ann, workspace.Limits{Most: sandbox.Resources{MemoryMB: 1024}})
	require.NoError(t, err)
	_, err = patch(w.ann, sandbox.Resources{PIDs: 600})
	require.NoError(t, err)
	_, err = patch(w.ann, sandbox.Resources{MemoryMB: 1500})
	require.Contains(t, fields(t, err), "resources.memory_mb")
	_, err = patch(w.ann, sandbox.Resources{MemoryMB: 1000})
	require.NoError(t, err)
}
