package workspace_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
)

func TestKeyActor(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	ann := h.setup(t, false)
	bob := h.join(t, ann, "bob@example.org", auth.Viewer, true)
	a, secret, k := h.key(t, bob, workspace.KeyForm{Name: "laptop", ForMe: true, Permissions: auth.Permissions{auth.SandboxesRun}})
	require.Equal(t, auth.KeyUser, a.Kind)
	require.Equal(t, bob.UserID, a.UserID)
	require.Equal(t, bob.Workspace, a.Workspace)
	require.Equal(t, "laptop", a.Name)
	require.Equal(t, "sandboxes:run", a.Permissions.String())
	require.Equal(t, "bob@example.org", k.OwnerEmail)
	require.Empty(t, k.Hash)
	require.True(t, strings.HasPrefix(secret, k.Prefix+"_"))

	// Its rights are its owner's of this moment.
	require.NoError(t, h.SetRun(ctx, ann, bob.UserID, false))
	a, err := h.KeyActor(ctx, secret, "", "")
	require.NoError(t, err)
	require.Empty(t, a.Permissions)
	require.NoError(t, h.SetRun(ctx, ann, bob.UserID, true))
	a, err = h.KeyActor(ctx, secret, "", "")
	require.NoError(t, err)
	require.True(t, a.May(auth.SandboxesRun))

	other, _ := auth.NewKeySecret()
	last := secret[len(secret)-20:]
	for _, bad := range []string{"", "sg_", secret + "x", secret[1:], other, strings.Replace(secret, last, strings.Repeat("A", 20), 1), "Bearer " + secret} {
		_, err := h.KeyActor(ctx, bad, "", "")
		wantKind(t, err, fault.Unauthenticated)
	}

	// Nobody's key outlives its owner's place.
	require.NoError(t, h.AdminDisableUser(ctx, "bob@example.org", true))
	_, err = h.KeyActor(ctx, secret, "", "")
	wantKind(t, err, fault.Unauthenticated)
	require.NoError(t, h.AdminDisableUser(ctx, "bob@example.org", false))
	_, err = h.KeyActor(ctx, secret, "", "")
	require.NoError(t, err)
	require.NoError(t, h.RemoveMember(ctx, ann, bob.UserID))
	_, err = h.KeyActor(ctx, secret, "", "")
	wantKind(t, err, fault.Unauthenticated)
}

func TestKeyExpiry(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	ann := h.setup(t, false)
	read := auth.Permissions{auth.SandboxesRead}
	for days, life := range map[int]time.Duration{0: 90 * 24 * time.Hour, 1: 24 * time.Hour, -1: 0} {
		_, secret, k := h.key(t, ann, workspace.KeyForm{Name: "k", ForMe: true, Permissions: read, ExpiresDays: days})
		if life == 0 {
			require.True(t, k.ExpiresAt.IsZero())
			continue
		}
		require.Equal(t, k.CreatedAt.Add(life), k.ExpiresAt)
		h.clock.pass(life - time.Second)
		_, err := h.KeyActor(ctx, secret, "", "")
		require.NoError(t, err)
		h.clock.pass(time.Second)
		_, err = h.KeyActor(ctx, secret, "", "")
		wantKind(t, err, fault.Unauthenticated)
	}
	for _, days := range []int{-2, 3651} {
		_, _, err := h.CreateKey(ctx, ann, workspace.KeyForm{Name: "k", ForMe: true, Permissions: read, ExpiresDays: days})
		wantKind(t, err, fault.Invalid)
	}
}

// A dead key that is tried over and over does not flood the record.
func TestDeadKeyIsNotedRarely(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	ann := h.setup(t, false)
	_, secret, k := h.key(t, ann, workspace.KeyForm{Name: "k", ForMe: true, Permissions: auth.Permissions{auth.SandboxesRead}})
	require.NoError(t, h.RevokeKey(ctx, ann, k.ID))
	require.NoError(t, h.RevokeKey(ctx, ann, k.ID), "twice is no error")
	for range 50 {
		_, err := h.KeyActor(ctx, secret, "192.0.2.9", "r")
		wantKind(t, err, fault.Unauthenticated)
	}
	events := h.events(t, audit.Filter{Action: "key.refused"})
	require.Len(t, events, 1)
	require.Equal(t, "the key is revoked", events[0].Detail)
	require.NotContains(t, events[0].Target, secret)
}

func TestLastUsedHasMinuteGrain(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	ann := h.setup(t, false)
	_, secret, k := h.key(t, ann, workspace.KeyForm{Name: "k", ForMe: true, Permissions: auth.Permissions{auth.SandboxesRead}})
	used := func() time.Time {
		t.Helper()
		_, err := h.KeyActor(ctx, secret, "", "")
		require.NoError(t, err)
		got, err := h.store.KeyByID(ctx, k.ID)
		require.NoError(t, err)
		return got.LastUsedAt
	}
	first := used()
	h.clock.pass(59 * time.Second)
	require.Equal(t, first, used())
	h.clock.pass(time.Second)
	require.Equal(t, first.Add(time.Minute), used())
}

// Who may make which key: the rules of minting as a table.
func TestMinting(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	admin := h.setup(t, false)
	viewer := h.join(t, admin, "viewer@example.org", auth.Viewer, false)
	runner := h.join(t, admin, "runner@example.org", auth.Viewer, true)
	approver := h.join(t, admin, "approver@example.org", auth.Approver, false)
	_, err := h.AdminGrant(ctx, "lab", "viewer@example.org", "", auth.Permissions{auth.KeysManage})
	require.NoError(t, err)
	keeper := h.person(t, viewer.UserID, "lab") // a viewer with keys:manage
	_, err = h.AdminGrant(ctx, "lab", "ann@example.org", "", auth.Permissions{auth.SandboxesRun})
	require.NoError(t, err)
	runningAdmin := h.person(t, admin.UserID, "lab")

	adminKey, _, _ := h.key(t, runningAdmin, workspace.KeyForm{Name: "mint", ForMe: true, Permissions: auth.Permissions{auth.KeysManage, auth.SandboxesRead}})
	plainKey, _, _ := h.key(t, runningAdmin, workspace.KeyForm{Name: "plain", ForMe: true, Permissions: auth.Permissions{auth.SandboxesRun}})
	agent, _, _ := h.key(t, runningAdmin, workspace.KeyForm{Name: "agent", Permissions: auth.Permissions{auth.SandboxesRun, auth.MembersManage}})

	p := func(ps ...auth.Permission) auth.Permissions { return ps }
	cases := []struct {
		name  string
		who   auth.Actor
		forMe bool
		ps    auth.Permissions
		want  fault.Kind
	}{
		{"a viewer's own key", viewer, true, p(auth.SandboxesRead), ""},
		{"a viewer's own key to run", viewer, true, p(auth.SandboxesRun), fault.Forbidden},
		{"a viewer's service account", runner, false, p(auth.SandboxesRead), fault.Forbidden},
		{"a runner's own key", runner, true, p(auth.SandboxesRun, auth.SandboxesRead), ""},
		{"an admin without run, own key to run", admin, true, p(auth.SandboxesRun), fault.Forbidden},
		{"an approver's own key to decide", approver, true, p(auth.ApprovalsDecide), ""},
		{"an admin's agent to run, by name", admin, false, p(auth.SandboxesRun), ""},
		{"an admin's agent to mint", admin, false, p(auth.KeysManage), fault.Invalid},
		{"an admin's agent to decide", admin, false, p(auth.ApprovalsDecide), fault.Forbidden},
		{"a key-keeper's agent to manage members", keeper, false, p(auth.MembersManage), fault.Forbidden},
		{"a key-keeper's agent to run", keeper, false, p(auth.SandboxesRun), ""},
		{"a key without keys:manage", plainKey, true, p(auth.SandboxesRun), fault.Forbidden},
		{"a key makes a key of its own rights", adminKey, true, p(auth.SandboxesRead), ""},
		{"a key makes an agent of its own rights", adminKey, false, p(auth.SandboxesRead), ""},
		{"a key makes more than it has, for its owner", adminKey, true, p(auth.SandboxesRun), fault.Forbidden},
		{"a key makes more than it has, for an agent", adminKey, false, p(auth.SandboxesRun), fault.Forbidden},
		{"an agent mints for itself", agent, true, p(auth.SandboxesRun), fault.Forbidden},
		{"an agent mints an agent", agent, false, p(auth.SandboxesRun), fault.Forbidden},
		{"nothing", viewer, true, nil, fault.Invalid},
		{"an unknown word", viewer, true, p("sandboxes:own"), fault.Forbidden},
		{"one word twice", viewer, true, p(auth.SandboxesRead, auth.SandboxesRead), fault.Invalid},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			k, secret, err := h.CreateKey(ctx, c.who, workspace.KeyForm{Name: "k", ForMe: c.forMe, Permissions: c.ps})
			wantKind(t, err, c.want)
			if err != nil {
				require.Empty(t, secret)
				return
			}
			a, err := h.KeyActor(ctx, secret, "", "")
			require.NoError(t, err)
			require.Equal(t, c.ps.Sorted(), a.Permissions)
			if c.forMe {
				require.Equal(t, c.who.UserID, k.OwnerID)
			} else {
				require.Empty(t, k.OwnerID)
			}
			created := h.events(t, audit.Filter{Action: "key.create", Limit: 1})[0]
			require.Equal(t, "ok", created.Outcome)
			require.Contains(t, created.Detail, c.ps.Sorted().String(), "what it may do is on record")
			require.NotContains(t, created.Detail+created.Target, secret)
		})
	}
	for _, name := range []string{"", "  ", strings.Repeat("x", 81), "a\x00b", "a\nb"} {
		_, _, err := h.CreateKey(ctx, viewer, workspace.KeyForm{Name: name, ForMe: true, Permissions: p(auth.SandboxesRead)})
		wantKind(t, err, fault.Invalid)
	}
}

func TestKeysListAndRevoke(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	ann := h.setup(t, false)
	bob := h.join(t, ann, "bob@example.org", auth.Viewer, false)
	read := auth.Permissions{auth.SandboxesRead}
	annKey, _, ka := h.key(t, ann, workspace.KeyForm{Name: "a", ForMe: true, Permissions: read})
	bobKey, _, kb := h.key(t, bob, workspace.KeyForm{Name: "b", ForMe: true, Permissions: read})
	agent, _, kc := h.key(t, ann, workspace.KeyForm{Name: "c", Permissions: read})
	count := func(a auth.Actor) int {
		t.Helper()
		keys, err := h.Keys(ctx, a)
		require.NoError(t, err)
		for _, k := range keys {
			require.Nil(t, k.Hash)
		}
		return len(keys)
	}
	require.Equal(t, 3, count(ann))
	require.Equal(t, 1, count(bob))
	require.Equal(t, 1, count(annKey), "without keys:manage one's owner's")
	require.Equal(t, 0, count(agent))

	wantKind(t, h.RevokeKey(ctx, bob, ka.ID), fault.Forbidden)
	wantKind(t, h.RevokeKey(ctx, bob, kc.ID), fault.Forbidden)
	wantKind(t, h.RevokeKey(ctx, bobKey, kb.ID), fault.Forbidden)
	wantKind(t, h.RevokeKey(ctx, bob, "ke-nothing"), fault.NotFound)
	require.NoError(t, h.RevokeKey(ctx, bob, kb.ID))
	require.NoError(t, h.RevokeKey(ctx, ann, kc.ID))
	require.Equal(t, 3, count(ann), "the list shows revoked ones too")
}
