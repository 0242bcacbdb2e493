package workspace_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/idle"
)

// errSeen ends a stream after its first word.
var errSeen = errors.New("seen")

func seen(err error) error {
	if errors.Is(err, errSeen) {
		return nil
	}
	return err
}

// fileAccounts are the methods about files that are not in sandboxAccounts.
var fileAccounts = map[string]account{
	"SearchFiles": {kind: read, needs: readNeeds, prepare: anyFile, call: onPart(func(ctx context.Context, w *world, a auth.Actor, p part) error {
		_, err := w.SearchFiles(ctx, a, p.box, []byte(w.tmp), agent.SearchQuery{Name: "f*", Limit: 10})
		return err
	})},
	"WatchFiles": {kind: read, needs: readNeeds, prepare: anyFile, call: onPart(func(ctx context.Context, w *world, a auth.Actor, p part) error {
		return seen(w.WatchFiles(ctx, a, p.box, []byte(w.tmp), true, func(agent.FileChange) error { return errSeen }))
	})},
	"CopyFile": {kind: change, needs: runNeeds, prepare: anyFile, call: onPart(func(ctx context.Context, w *world, a auth.Actor, p part) error {
		_, err := w.CopyFile(ctx, a, p.box, []byte(p.id), []byte(p.id+".copy"))
		return err
	})},
	"ChmodFile": {kind: change, needs: runNeeds, prepare: anyFile, call: onPart(func(ctx context.Context, w *world, a auth.Actor, p part) error {
		_, err := w.ChmodFile(ctx, a, p.box, []byte(p.id), 0o600)
		return err
	})},
	"UnpackFiles": {kind: change, needs: runNeeds, prepare: shared, call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
		var b bytes.Buffer
		t := tar.NewWriter(&b)
		if err := errors.Join(t.WriteHeader(&tar.Header{Name: "x", Mode: 0o644}), t.Close()); err != nil {
			return err
		}
		_, err := w.UnpackFiles(ctx, a, id, []byte(w.tmp+"/u"+w.n()), "tar", &b, int64(b.Len()))
		return err
	})},
}

// idleAccounts are the methods about life and end by the clock.
var idleAccounts = map[string]account{
	"KeepAlive": {
		kind: change, needs: []auth.Permission{auth.SandboxesRun, auth.SandboxesManage}, prepare: shared,
		call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
			_, err := w.KeepAlive(ctx, a, id, time.Minute)
			return err
		}),
	},
	"SweepIdle": {kind: read, why: "the server itself", call: func(ctx context.Context, w *world, _ auth.Actor, _ any) error {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		w.SweepIdle(ctx, idle.SystemClock())
		return nil
	}},
}

var watchingAccounts = map[string]account{
	"WatchEvents": {kind: read, needs: readNeeds, prepare: shared, call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
		return seen(w.WatchEvents(ctx, a, id, func(workspace.Event) error { return errSeen }))
	})},
	"Metrics": {kind: read, needs: lookNeeds, prepare: shared, call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
		_, err := w.Metrics(ctx, a, id)
		return err
	})},
	"MetricsHistory": {kind: read, needs: lookNeeds, prepare: shared, call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
		_, err := w.MetricsHistory(ctx, a, id, time.Time{})
		return err
	})},
	"SampleMetrics": {kind: read, why: "the server itself", call: func(ctx context.Context, w *world, _ auth.Actor, _ any) error {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		w.SampleMetrics(ctx)
		return nil
	}},
	"SuspendSandbox": {
		kind: change, needs: []auth.Permission{auth.SandboxesManage, auth.SandboxesRun},
		prepare: func(t *testing.T, w *world) any { t.Helper(); return w.newPersistent(t) },
		call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
			_, err := w.SuspendSandbox(ctx, a, id)
			return err
		}),
	},
	"ForkSandbox": {
		kind: change, needs: runNeeds,
		prepare: func(t *testing.T, w *world) any { t.Helper(); return w.newPersistent(t) },
		call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
			_, err := w.ForkSandbox(ctx, a, id)
			return err
		}),
	},
	"ResumeSandbox": {
		kind: change, needs: runNeeds,
		prepare: func(t *testing.T, w *world) any {
			t.Helper()
			id := w.newPersistent(t)
			_, err := w.SuspendSandbox(context.Background(), w.ann, id)
			require.NoError(t, err)
			return id
		},
		call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
			_, err := w.ResumeSandbox(ctx, a, id)
			return err
		}),
	},
	"UpdateSandbox": {
		kind: change, needs: []auth.Permission{auth.SandboxesManage, auth.SandboxesRun},
		prepare: func(t *testing.T, w *world) any { t.Helper(); return w.newSandbox(t) },
		call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
			label := "new name"
			_, err := w.UpdateSandbox(ctx, a, id, workspace.SandboxPatch{Label: &label})
			return err
		}),
	},
}

// Only the owner, or who may manage, changes what a sandbox is called; it is checked and shown.
func TestUpdateSandbox(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	id := w.newSandbox(t)
	label := "better"
	sb, err := w.UpdateSandbox(ctx, w.ann, id, workspace.SandboxPatch{Label: &label, Metadata: map[string]string{"a": "b"}})
	require.NoError(t, err)
	require.Equal(t, "better", sb.Label)
	sb, err = w.UpdateSandbox(ctx, w.ann, id, workspace.SandboxPatch{Metadata: map[string]string{}})
	require.NoError(t, err)
	require.Equal(t, "better", sb.Label)
	require.Empty(t, sb.Metadata)

	other := w.bob
	other.Permissions = runNeeds
	_, err = w.UpdateSandbox(ctx, other, id, workspace.SandboxPatch{Label: &label})
	wantKind(t, err, "forbidden")
	bad := "a\x00b"
	_, err = w.UpdateSandbox(ctx, w.ann, id, workspace.SandboxPatch{Label: &bad})
	wantKind(t, err, "invalid")
	require.NoError(t, w.KillSandbox(ctx, w.ann, id))
	_, err = w.UpdateSandbox(ctx, w.ann, id, workspace.SandboxPatch{Label: &label})
	wantKind(t, err, "not_found")
}

func aKey(w *world) auth.Actor {
	return auth.Actor{Kind: auth.KeyUser, KeyID: "k", UserID: w.ann.UserID, Workspace: w.ann.Workspace, Permissions: auth.AllPermissions}
}

// ownAccounts are the methods about where one is signed in, and one's password.
var ownAccounts = map[string]account{
	"OwnSessions": {kind: read, why: "one's own; no key has any", refused: aKey, call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		_, err := w.OwnSessions(ctx, a)
		return err
	}},
	"EndSession": {
		kind: change, why: "one's own", refused: aKey,
		prepare: func(t *testing.T, w *world) any {
			now, id := w.clock.Now(), "s"+w.n()
			require.NoError(t, w.store.InsertSession(context.Background(), auth.Session{
				ID: id, UserID: w.ann.UserID, CreatedAt: now, LastSeenAt: now, IdleFor: time.Hour, EndsAt: now.Add(time.Hour),
			}))
			return id
		},
		call: func(ctx context.Context, w *world, a auth.Actor, arg any) error {
			return w.EndSession(ctx, a, arg.(string))
		},
	},
	"EndOtherSessions": {kind: change, why: "one's own", refused: aKey, call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		return w.EndOtherSessions(ctx, a)
	}},
	"Refuse": {
		kind: read, why: "it refuses whoever it is, and leaves its trace in a house of its own",
		prepare: func(t *testing.T, _ *world) any { return newHouse(t) },
		call: func(ctx context.Context, _ *world, a auth.Actor, arg any) error {
			h := arg.(*house)
			if !fault.Is(h.Refuse(ctx, a, "role.create", fault.New(fault.Forbidden, "Nobody may.")), fault.Forbidden) {
				return errors.New("not refused")
			}
			events, err := h.log.List(ctx, audit.Filter{Limit: 1})
			if err == nil && (len(events) != 1 || events[0].Action != "role.create" || events[0].Outcome != audit.Refused) {
				err = errors.New("not on record")
			}
			return err
		},
	},
	"ChangePassword": {kind: change, why: "the present password is the permission", refused: aKey, call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		return w.ChangePassword(ctx, a, password, password)
	}},
}
