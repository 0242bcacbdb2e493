package workspace_test

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

func snapshotWorld(t *testing.T, rules workspace.SnapshotRules) *world {
	t.Helper()
	return newWorldWith(t, func(o *workspace.Options) { o.Snapshots = rules })
}

// What a sandbox was given comes with its snapshot, except the key that was made for it alone; what is asked for at the
// start has the say.
func TestWhatComesWithASnapshot(t *testing.T) {
	ctx := context.Background()
	w := snapshotWorld(t, workspace.DefaultSnapshotRules())
	w.forwardChanges()
	origin, err := w.CreateSandbox(ctx, w.ann, workspace.CreateOptions{
		Label: "origin", Cwd: w.tmp, User: w.user, Env: map[string]string{"A": "1", "B": "2"}, PlatformKey: true,
		Secrets:   map[string]string{"TOKEN": "hunter2-long", "OTHER": "other-secret"},
		Resources: sandbox.Resources{MemoryMB: 512, DiskMB: 2048}, Network: sandbox.NetworkPolicy{Mode: sandbox.NetworkAllowList, Allow: []string{"example.org"}},
	})
	require.NoError(t, err)
	n, err := w.TakeSnapshot(ctx, w.ann, string(origin.ID), "  with hunter2-long  ")
	require.NoError(t, err)
	require.Equal(t, "with hunter2-long", n.Name)
	require.True(t, n.Mine)
	require.Equal(t, n.UsedAt.Add(30*24*time.Hour), n.ExpiresAt)
	require.NoError(t, w.KillSandbox(ctx, w.ann, string(origin.ID)))

	show := func(id sandbox.ID) string {
		var k kept
		_, err := w.RunCommand(ctx, w.ann, string(id), agent.CommandSpec{ID: sandbox.RandomID("cmd"), Command: `echo $A $B $C $TOKEN $OTHER key=$NOXUS_API_KEY at=$NOXUS_BACKEND_URL`}, &k)
		require.NoError(t, err)
		return k.out.String()
	}
	for range 2 {
		sb, err := w.CreateSandbox(ctx, w.ann, workspace.CreateOptions{SnapshotID: string(n.ID)})
		require.NoError(t, err)
		require.Equal(t, string(n.ID), sb.Parent)
		require.Equal(t, origin.Resources, sb.Resources)
		require.Equal(t, origin.Network, sb.Network)
		require.Equal(t, w.tmp, sb.Cwd)
		require.Equal(t, "1 2 hunter2-long other-secret key= at=\n", show(sb.ID))
	}
	sb, err := w.CreateSandbox(ctx, w.ann, workspace.CreateOptions{
		SnapshotID: string(n.ID), Image: "base", Label: "other", Env: map[string]string{"B": "3", "C": "4", "OTHER": "public"}, Secrets: map[string]string{"TOKEN": "another-one"},
		Resources: sandbox.Resources{MemoryMB: 600, DiskMB: 2048}, Network: sandbox.NetworkPolicy{Mode: sandbox.NetworkPublic}, PlatformKey: true,
	})
	require.NoError(t, err)
	require.EqualValues(t, 600, sb.Resources.MemoryMB)
	require.Equal(t, sandbox.NetworkPublic, sb.Network.Mode)
	require.Regexp(t, `^1 3 4 another-one public key=sg_\S+ at=http://sandgate.internal\n$`, show(sb.ID))

	for field, o := range map[string]workspace.CreateOptions{
		"image":             {Image: "other"},
		"resources.disk_mb": {Resources: sandbox.Resources{DiskMB: 4096}},
		"cwd":               {Cwd: "nowhere"},
	} {
		o.SnapshotID = string(n.ID)
		_, err := w.CreateSandbox(ctx, w.ann, o)
		wantKind(t, err, fault.Invalid)
		require.Contains(t, err.Error(), field)
	}
	_, err = w.CreateSandbox(ctx, w.ann, workspace.CreateOptions{SnapshotID: string(sandbox.NewSnapshotID())})
	wantKind(t, err, fault.Invalid)

	require.NoError(t, w.DeleteSnapshot(ctx, w.ann, string(n.ID)))
	_, err = w.store.Secrets(ctx, sandbox.ID(n.ID))
	wantKind(t, err, fault.NotFound)
	events, err := w.log.List(ctx, audit.Filter{Limit: 200})
	require.NoError(t, err)
	for _, e := range events {
		require.NotContains(t, e.Target+e.Detail, "hunter2", "%s", e.Action)
	}
}

func TestSnapshotsOfOthers(t *testing.T) {
	ctx := context.Background()
	w := snapshotWorld(t, workspace.DefaultSnapshotRules())
	n, err := w.TakeSnapshot(ctx, w.ann, w.newSandbox(t), "kept")
	require.NoError(t, err)
	id := string(n.ID)

	// A colleague who may run starts from it, but does not delete it.
	other := w.bob
	other.Permissions = auth.Permissions{auth.SandboxesRead, auth.SandboxesRun}
	_, err = w.CreateSandbox(ctx, other, workspace.CreateOptions{SnapshotID: id})
	require.NoError(t, err)
	wantKind(t, w.DeleteSnapshot(ctx, other, id), fault.Forbidden)

	// To another workspace it is what an unknown one is.
	stranger := w.ann
	stranger.Workspace = auth.Workspace{ID: "elsewhere", Slug: "elsewhere"}
	list, err := w.Service.Snapshots(ctx, stranger)
	require.NoError(t, err)
	require.Empty(t, list)
	unknown := string(sandbox.NewSnapshotID())
	require.Equal(t, w.DeleteSnapshot(ctx, stranger, unknown).Error(), w.DeleteSnapshot(ctx, stranger, id).Error())
	_, foreign := w.CreateSandbox(ctx, stranger, workspace.CreateOptions{SnapshotID: id})
	_, none := w.CreateSandbox(ctx, stranger, workspace.CreateOptions{SnapshotID: unknown})
	wantKind(t, foreign, fault.Invalid)
	require.Equal(t, none.Error(), foreign.Error())
	_, err = w.TakeSnapshot(ctx, stranger, string(n.SandboxID), "stolen")
	wantKind(t, err, fault.NotFound)

	for _, bad := range []string{"", "  ", "a\x00b", string(slices.Repeat([]byte("x"), 101))} {
		_, err = w.TakeSnapshot(ctx, w.ann, string(n.SandboxID), bad)
		wantKind(t, err, fault.Invalid)
	}
	list, err = w.Service.Snapshots(ctx, w.ann)
	require.NoError(t, err)
	require.Len(t, list, 1)
}

// Quotas are of a workspace; what nobody uses goes by itself, with a line on the record.
func TestSnapshotsAreBounded(t *testing.T) {
	ctx := context.Background()
	w := snapshotWorld(t, workspace.SnapshotRules{Quota: sandbox.SnapshotQuota{Count: 2, Bytes: 3 * 4096}, Unused: 10 * 24 * time.Hour})
	box := w.newSandbox(t)
	ids := map[string]bool{}
	take := func() error {
		n, err := w.TakeSnapshot(ctx, w.ann, box, "kept")
		if err == nil {
			ids[string(n.ID)] = true
		}
		return err
	}
	require.NoError(t, take())
	require.NoError(t, take())
	wantKind(t, take(), fault.QuotaExceeded)

	w.clock.pass(6 * 24 * time.Hour)
	used := slices.Sorted(maps.Keys(ids))[0]
	_, err := w.CreateSandbox(ctx, w.ann, workspace.CreateOptions{SnapshotID: used})
	require.NoError(t, err)
	w.clock.pass(6 * 24 * time.Hour)
	workspace.ExpireSnapshots(w.Service)
	list, err := w.Service.Snapshots(ctx, w.ann)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, used, string(list[0].ID))
	events, err := w.log.List(ctx, audit.Filter{Limit: 5})
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(events, func(e audit.Event) bool {
		return e.Action == "snapshot.delete" && e.Actor == "system" && e.Outcome == audit.OK && e.Target == "kept"
	}))
	require.NoError(t, take())

	small := snapshotWorld(t, workspace.SnapshotRules{Quota: sandbox.SnapshotQuota{Bytes: 4095}})
	_, err = small.TakeSnapshot(ctx, small.ann, small.newSandbox(t), "too large")
	wantKind(t, err, fault.QuotaExceeded)
	list, err = small.Service.Snapshots(ctx, small.ann)
	require.NoError(t, err)
	require.Empty(t, list)
}
