package workspace_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
)

// within is the promise: what is open ends so soon after the right is gone.
const within = time.Second

func TestGuardEnds(t *testing.T) {
	ctx := context.Background()
	session := func(id, user string, now time.Time) auth.Session {
		return auth.Session{ID: id, UserID: user, CreatedAt: now, LastSeenAt: now, IdleFor: time.Hour, EndsAt: now.Add(24 * time.Hour)}
	}
	type scene struct {
		h, other *house // other is another process on the same data directory
		ann, bob auth.Actor
		bobKey   auth.Actor
		agent    auth.Actor
	}
	cases := []struct {
		name string
		who  func(s scene) auth.Actor
		need auth.Permission
		do   func(t *testing.T, s scene)
		want fault.Kind // "": it stays open
	}{
		{"run taken", func(s scene) auth.Actor { return s.bob }, auth.SandboxesRun, func(t *testing.T, s scene) {
			require.NoError(t, s.h.SetRun(ctx, s.ann, s.bob.UserID, false))
		}, fault.Forbidden},
		{"run taken, only reading", func(s scene) auth.Actor { return s.bob }, auth.SandboxesRead, func(t *testing.T, s scene) {
			require.NoError(t, s.h.SetRun(ctx, s.ann, s.bob.UserID, false))
		}, ""},
		{"run taken in another process", func(s scene) auth.Actor { return s.bob }, auth.SandboxesRun, func(t *testing.T, s scene) {
			require.NoError(t, s.other.SetRun(ctx, s.ann, s.bob.UserID, false))
		}, fault.Forbidden},
		{"role changed in another process", func(s scene) auth.Actor { return s.bob }, auth.AuditRead, func(t *testing.T, s scene) {
			require.NoError(t, s.other.SetRole(ctx, s.ann, s.bob.UserID, auth.Viewer))
		}, fault.Forbidden},
		{"removed", func(s scene) auth.Actor { return s.bob }, auth.SandboxesRead, func(t *testing.T, s scene) {
			require.NoError(t, s.h.RemoveMember(ctx, s.ann, s.bob.UserID))
		}, fault.Forbidden},
		{"disabled on the host", func(s scene) auth.Actor { return s.bob }, auth.SandboxesRead, func(t *testing.T, s scene) {
			require.NoError(t, s.other.AdminDisableUser(ctx, "bob@example.org", true))
		}, fault.Unauthenticated},
		{"disabled, a key", func(s scene) auth.Actor { return s.bobKey }, auth.SandboxesRead, func(t *testing.T, s scene) {
			require.NoError(t, s.other.AdminDisableUser(ctx, "bob@example.org", true))
		}, fault.Unauthenticated},
		{"owner lost run, a key", func(s scene) auth.Actor { return s.bobKey }, auth.SandboxesRun, func(t *testing.T, s scene) {
			require.NoError(t, s.other.SetRun(ctx, s.ann, s.bob.UserID, false))
		}, fault.Forbidden},
		{"key revoked in another process", func(s scene) auth.Actor { return s.agent }, auth.SandboxesRun, func(t *testing.T, s scene) {
			_, err := s.other.AdminRevokeKey(ctx, s.agent.KeyID)
			require.NoError(t, err)
		}, fault.Unauthenticated},
		{"key expired", func(s scene) auth.Actor { return s.agent }, auth.SandboxesRun, func(_ *testing.T, s scene) {
			s.h.clock.pass(24 * time.Hour)
		}, fault.Unauthenticated},
		{"signed out", func(s scene) auth.Actor { return s.bob }, auth.SandboxesRead, func(t *testing.T, s scene) {
			require.NoError(t, s.h.SignedOut(ctx, s.bob))
		}, fault.Unauthenticated},
		{"signed out by a new password", func(s scene) auth.Actor { return s.bob }, auth.SandboxesRead, func(t *testing.T, s scene) {
			require.NoError(t, s.other.AdminSetPassword(ctx, "bob@example.org", "another-river-9"))
		}, fault.Unauthenticated},
		{"session expired", func(s scene) auth.Actor { return s.bob }, auth.SandboxesRead, func(_ *testing.T, s scene) {
			s.h.clock.pass(time.Hour)
		}, fault.Unauthenticated},
		{"session used meanwhile", func(s scene) auth.Actor { return s.bob }, auth.SandboxesRead, func(t *testing.T, s scene) {
			require.NoError(t, s.h.store.TouchSession(ctx, "s-bob", s.h.clock.Now().Add(30*time.Minute)))
			s.h.clock.pass(time.Hour)
		}, ""},
		{"somebody else changed", func(s scene) auth.Actor { return s.bob }, auth.SandboxesRun, func(t *testing.T, s scene) {
			require.NoError(t, s.h.SetRun(ctx, s.ann, s.ann.UserID, true))
			_, err := s.other.AdminRevokeKey(ctx, s.agent.KeyID)
			require.NoError(t, err)
		}, ""},
		{"the system itself", func(scene) auth.Actor { return auth.Actor{Kind: auth.System} }, auth.SandboxesRun, func(t *testing.T, s scene) {
			require.NoError(t, s.h.SetRun(ctx, s.ann, s.bob.UserID, false))
		}, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			s := scene{h: h, other: openHouse(t, h.dir, nil), ann: h.setup(t, false)}
			s.bob = h.join(t, s.ann, "bob@example.org", auth.Operator, true)
			require.NoError(t, h.store.InsertSession(ctx, session("s-bob", s.bob.UserID, h.clock.Now())))
			s.bob.SessionID = "s-bob"
			s.bobKey, _, _ = h.key(t, s.bob, workspace.KeyForm{Name: "bob", ForMe: true, Permissions: auth.Permissions{auth.SandboxesRun}})
			s.agent, _, _ = h.key(t, s.ann, workspace.KeyForm{Name: "agent", Permissions: auth.Permissions{auth.SandboxesRun}, ExpiresDays: 1})

			guarded, stop := h.Guard(ctx, c.who(s), c.need)
			defer stop()
			require.NoError(t, guarded.Err())
			c.do(t, s)
			start := time.Now()
			if c.want == "" {
				select {
				case <-guarded.Done():
					t.Fatalf("ended: %v", context.Cause(guarded))
				case <-time.After(within):
				}
				stop()
				require.ErrorIs(t, context.Cause(guarded), context.Canceled)
				return
			}
			select {
			case <-guarded.Done():
			case <-time.After(10 * within):
				t.Fatal("it stayed open")
			}
			require.Less(t, time.Since(start), within)
			wantKind(t, context.Cause(guarded), c.want)
		})
	}
}

func TestGuardRefusesAtOnce(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	ann := h.setup(t, false)
	guarded, stop := h.Guard(ctx, ann, auth.SandboxesRun)
	defer stop()
	require.Error(t, guarded.Err())
	wantKind(t, context.Cause(guarded), fault.Forbidden)
	require.Zero(t, workspace.WatchCount(h.Service))
}

func TestGuardLeavesNothing(t *testing.T) {
	h := newHouse(t)
	ann := h.setup(t, false)
	parent, end := context.WithCancel(context.Background())
	for range 20 {
		_, stop := h.Guard(parent, ann, auth.SandboxesRead)
		defer stop()
	}
	require.Equal(t, 20, workspace.WatchCount(h.Service))
	end()
	require.Eventually(t, func() bool { return workspace.WatchCount(h.Service) == 0 }, 60*time.Second, 10*time.Millisecond)
	guarded, stop := h.Guard(context.Background(), ann, auth.SandboxesRead)
	require.NoError(t, guarded.Err(), "and begins anew")
	stop()
	require.Eventually(t, func() bool { return workspace.WatchCount(h.Service) == 0 }, 60*time.Second, 10*time.Millisecond)
}

// When rights cannot be read for seconds, nothing stays open on their account.
func TestGuardEndsWhenBlind(t *testing.T) {
	h := newHouse(t)
	ann := h.setup(t, false)
	guarded, stop := h.Guard(context.Background(), ann, auth.SandboxesRead)
	defer stop()
	require.NoError(t, h.store.Close())
	select {
	case <-guarded.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("it stayed open")
	}
	wantKind(t, context.Cause(guarded), fault.Internal)
}
