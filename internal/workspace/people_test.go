package workspace_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
)

func TestSetup(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	needed, err := h.SetupNeeded(ctx)
	require.NoError(t, err)
	require.True(t, needed)

	old, err := h.NewSetupToken(ctx)
	require.NoError(t, err)
	token, err := h.NewSetupToken(ctx)
	require.NoError(t, err)
	form := workspace.SetupForm{Token: token, Email: " Ann@Example.org", Password: password, WorkspaceName: " My Lab! ", RunCode: true}
	for _, wrong := range []string{"", "x", old} {
		f := form
		f.Token = wrong
		_, _, err := h.Setup(ctx, f, "192.0.2.1", "r")
		wantKind(t, err, fault.Forbidden)
	}
	for field, f := range map[string]workspace.SetupForm{
		"email":    {Token: token, Email: "x", Password: password, WorkspaceName: "Lab"},
		"password": {Token: token, Email: "ann@example.org", Password: "short", WorkspaceName: "Lab"},
		"name":     {Token: token, Email: "ann@example.org", Password: password, WorkspaceName: " \u0007"},
	} {
		_, _, err := h.Setup(ctx, f, "192.0.2.1", "r")
		wantKind(t, err, fault.Invalid)
		var e *fault.Error
		require.ErrorAs(t, err, &e)
		require.Contains(t, e.Fields, field)
	}
	u, w, err := h.Setup(ctx, form, "192.0.2.1", "r")
	require.NoError(t, err)
	require.Equal(t, "ann@example.org", u.Email)
	require.True(t, u.Admin)
	require.Empty(t, u.PasswordHash)
	require.Equal(t, "my-lab", w.Slug)
	require.Equal(t, "My Lab!", w.Name)
	a := h.person(t, u.ID, "my-lab")
	require.True(t, a.May(auth.SandboxesRun))
	require.True(t, a.May(auth.MembersManage))
	require.Len(t, h.events(t, audit.Filter{Action: "member.grant"}), 1, "the grant is on record")

	_, _, err = h.Setup(ctx, form, "192.0.2.1", "r")
	wantKind(t, err, fault.Forbidden)
	fresh, err := h.NewSetupToken(ctx)
	require.NoError(t, err)
	form.Token = fresh
	_, _, err = h.Setup(ctx, form, "192.0.2.1", "r")
	wantKind(t, err, fault.Forbidden) // there is an account already
	needed, err = h.SetupNeeded(ctx)
	require.NoError(t, err)
	require.False(t, needed)
}

func TestSetupTokenExpires(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	token, err := h.NewSetupToken(ctx)
	require.NoError(t, err)
	h.clock.pass(24 * time.Hour)
	_, _, err = h.Setup(ctx, workspace.SetupForm{Token: token, Email: "ann@example.org", Password: password, WorkspaceName: "Lab"}, "", "")
	wantKind(t, err, fault.Forbidden)
}

func TestRunIsNeverImplied(t *testing.T) {
	h := newHouse(t)
	require.False(t, h.setup(t, false).May(auth.SandboxesRun))
}

func TestSignIn(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	a := h.setup(t, false)
	u, err := h.SignIn(ctx, " ANN@example.org ", password, "192.0.2.1", "r")
	require.NoError(t, err)
	require.Equal(t, a.UserID, u.ID)
	require.Empty(t, u.PasswordHash)

	_, wrong := h.SignIn(ctx, "ann@example.org", "wrong-password", "192.0.2.2", "r")
	_, unknown := h.SignIn(ctx, "bob@example.org", "wrong-password", "192.0.2.3", "r")
	_, malformed := h.SignIn(ctx, strings.Repeat("x", 100_000), strings.Repeat("y", 100_000), "192.0.2.4", "r")
	for _, err := range []error{wrong, unknown, malformed} {
		wantKind(t, err, fault.Unauthenticated)
		require.Equal(t, fault.Public(wrong), fault.Public(err), "the same answer to all")
	}
	require.NoError(t, h.AdminDisableUser(ctx, "ann@example.org", true))
	_, err = h.SignIn(ctx, "ann@example.org", password, "192.0.2.1", "r")
	wantKind(t, err, fault.Unauthenticated)
	require.Equal(t, fault.Public(wrong), fault.Public(err))
	_, err = h.PersonActor(ctx, a.UserID, "", "lab", "", "")
	wantKind(t, err, fault.Unauthenticated)

	outcomes := map[string]int{}
	for _, e := range h.events(t, audit.Filter{Action: "session.sign_in"}) {
		outcomes[e.Outcome]++
		require.NotContains(t, e.Detail+e.Target, "wrong-password")
	}
	require.Equal(t, map[string]int{"ok": 1, "refused": 4}, outcomes)
}

func TestSignInHashesAnewWhenParametersChange(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	a := h.setup(t, false)
	old, err := auth.NewHasher(auth.HashParams{MemoryKiB: 32, Time: 1, Threads: 1}).Hash(ctx, password)
	require.NoError(t, err)
	require.NoError(t, h.store.SetPassword(ctx, a.UserID, old, false))
	_, err = h.SignIn(ctx, "ann@example.org", password, "", "")
	require.NoError(t, err)
	u, err := h.store.UserByID(ctx, a.UserID)
	require.NoError(t, err)
	require.Contains(t, u.PasswordHash, "m=64,")
	_, err = h.SignIn(ctx, "ann@example.org", password, "", "")
	require.NoError(t, err)
}

func TestSignInThrottle(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	h.setup(t, false)
	try := func(email, pw, from string) error {
		_, err := h.SignIn(ctx, email, pw, from, "r")
		return err
	}
	wait := func(err error) time.Duration {
		t.Helper()
		var e *fault.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, fault.SlowDown, e.Kind)
		return time.Duration(e.Extra["retry_after"].(int)) * time.Second
	}
	for range 6 {
		wantKind(t, try("ann@example.org", "wrong-password", "192.0.2.1"), fault.Unauthenticated)
	}
	require.Equal(t, time.Second, wait(try("ann@example.org", password, "198.51.100.7")), "the account waits, wherever one comes from")
	require.Error(t, try("bob@example.org", "wrong-password", "192.0.2.1"))
	longest := time.Duration(0)
	for range 30 {
		if err := try("ann@example.org", "wrong-password", "203.0.113.9"); fault.Is(err, fault.SlowDown) {
			longest = wait(err)
			h.clock.pass(longest)
		}
	}
	require.Equal(t, 15*time.Minute, longest, "the wait doubles up to its cap")
	h.clock.pass(longest)
	require.NoError(t, try("ann@example.org", password, "192.0.2.50"), "nobody is locked out for good")
	require.NoError(t, try("ann@example.org", password, "192.0.2.50"), "success forgets")

	for i := range 25 { // many accounts from one address, which has an IPv6 network to itself
		err := try(strings.Repeat("x", i+1)+"@example.org", "wrong-password", "2001:db8::"+string(rune('a'+i%6)))
		if i < 21 {
			wantKind(t, err, fault.Unauthenticated)
		} else {
			wantKind(t, err, fault.SlowDown)
		}
	}
	require.NoError(t, try("ann@example.org", password, "2001:db8:0:1::1"), "the network next door does not wait")
}

func TestThrottleCountsBeforeHashing(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	h.setup(t, false)
	var wg sync.WaitGroup
	kinds := make([]fault.Kind, 40)
	for i := range kinds {
		wg.Go(func() {
			_, err := h.SignIn(ctx, "ann@example.org", "wrong-password", "192.0.2.1", "r")
			kinds[i] = fault.KindOf(err)
		})
	}
	wg.Wait()
	tried := 0
	for _, k := range kinds {
		if k == fault.Unauthenticated {
			tried++
		}
	}
	require.Equal(t, 6, tried, "of many at once only the free ones and one more are tried: %v", kinds)
}

func TestPersonActor(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	ann := h.setup(t, false)
	_, unknown := h.PersonActor(ctx, ann.UserID, "", "nowhere", "", "")
	wantKind(t, unknown, fault.NotFound)
	other, err := h.AdminCreateWorkspace(ctx, "Other")
	require.NoError(t, err)
	_, foreign := h.PersonActor(ctx, ann.UserID, "", other.Slug, "", "")
	wantKind(t, foreign, fault.NotFound)
	require.Equal(t, fault.Public(unknown), fault.Public(foreign))
	a, err := h.PersonActor(ctx, ann.UserID, "", "", "", "")
	require.NoError(t, err)
	require.Empty(t, a.Permissions)
	require.Equal(t, "ann@example.org", a.Name)
	_, err = h.PersonActor(ctx, ann.UserID, "no-such-session", "lab", "", "")
	wantKind(t, err, fault.Unauthenticated)
	_, err = h.PersonActor(ctx, "us-nobody", "", "lab", "", "")
	wantKind(t, err, fault.Unauthenticated)
}

func TestInvitations(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	ann := h.setup(t, false)
	token, err := h.Invite(ctx, ann, "Bob@example.org", auth.Operator, true)
	require.NoError(t, err)
	i, err := h.InvitationByToken(ctx, token)
	require.NoError(t, err)
	require.Equal(t, "bob@example.org", i.Email)
	require.False(t, i.HasAccount)
	require.Equal(t, "Lab", i.Workspace.Name)
	for _, e := range h.events(t, audit.Filter{}) {
		require.NotContains(t, e.Detail+e.Target, token)
	}

	_, _, err = h.AcceptInvitation(ctx, token, "short", "", "")
	wantKind(t, err, fault.Invalid)
	u, w, err := h.AcceptInvitation(ctx, token, password, "", "")
	require.NoError(t, err)
	bob := h.person(t, u.ID, w.Slug)
	require.Equal(t, "sandboxes:read,sandboxes:run,sandboxes:manage,audit:read", bob.Permissions.String())
	for _, dead := range []string{token, "", "x"} {
		_, err = h.InvitationByToken(ctx, dead)
		wantKind(t, err, fault.NotFound)
		_, _, err = h.AcceptInvitation(ctx, dead, password, "", "")
		wantKind(t, err, fault.NotFound)
	}
	_, err = h.Invite(ctx, ann, "bob@example.org", auth.Viewer, false)
	wantKind(t, err, fault.Conflict)
	_, err = h.Invite(ctx, ann, "carl@example.org", "owner", false)
	wantKind(t, err, fault.Invalid)
	_, err = h.Invite(ctx, ann, "carl", auth.Viewer, false)
	wantKind(t, err, fault.Invalid)

	// Somebody with an account proves that it is theirs; a wrong password leaves the invitation.
	second, err := h.CreateWorkspace(ctx, ann, "Second")
	require.NoError(t, err)
	ann2 := h.person(t, ann.UserID, second.Slug)
	token, err = h.Invite(ctx, ann2, "bob@example.org", auth.Viewer, false)
	require.NoError(t, err)
	i, err = h.InvitationByToken(ctx, token)
	require.NoError(t, err)
	require.True(t, i.HasAccount)
	_, _, err = h.AcceptInvitation(ctx, token, "not-the-password", "", "")
	wantKind(t, err, fault.Unauthenticated)
	again, _, err := h.AcceptInvitation(ctx, token, password, "", "")
	require.NoError(t, err)
	require.Equal(t, bob.UserID, again.ID)
	spaces, err := h.WorkspacesOf(ctx, bob.UserID)
	require.NoError(t, err)
	require.Len(t, spaces, 2)

	// Withdrawn and old ones are dead.
	token, err = h.Invite(ctx, ann, "carl@example.org", auth.Viewer, false)
	require.NoError(t, err)
	open, err := h.Invitations(ctx, ann)
	require.NoError(t, err)
	require.Len(t, open, 1)
	wantKind(t, h.WithdrawInvitation(ctx, ann2, open[0].ID), fault.NotFound)
	require.NoError(t, h.WithdrawInvitation(ctx, ann, open[0].ID))
	_, err = h.InvitationByToken(ctx, token)
	wantKind(t, err, fault.NotFound)
	token, err = h.Invite(ctx, ann, "carl@example.org", auth.Viewer, false)
	require.NoError(t, err)
	h.clock.pass(7 * 24 * time.Hour)
	_, _, err = h.AcceptInvitation(ctx, token, password, "", "")
	wantKind(t, err, fault.NotFound)
}

func TestMembers(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	ann := h.setup(t, false)
	bob := h.join(t, ann, "bob@example.org", auth.Viewer, true)

	full, err := h.Members(ctx, ann)
	require.NoError(t, err)
	require.Len(t, full, 2)
	require.Equal(t, "sandboxes:run", full[1].Granted.String())
	some, err := h.Members(ctx, bob)
	require.NoError(t, err)
	require.Equal(t, auth.Viewer, some[1].Role)
	require.Empty(t, some[1].Granted, "names and roles alone")

	wantKind(t, h.SetRole(ctx, ann, ann.UserID, auth.Viewer), fault.Conflict)
	wantKind(t, h.RemoveMember(ctx, ann, ann.UserID), fault.Conflict)
	wantKind(t, h.SetRole(ctx, ann, bob.UserID, "owner"), fault.Invalid)
	wantKind(t, h.SetRole(ctx, ann, "us-nobody", auth.Viewer), fault.NotFound)
	require.NoError(t, h.SetRun(ctx, ann, bob.UserID, false))
	require.NoError(t, h.SetRole(ctx, ann, bob.UserID, auth.Admin))
	bob = h.person(t, bob.UserID, "lab")
	require.Equal(t, auth.Admin.Permissions(), bob.Permissions)
	require.NoError(t, h.RemoveMember(ctx, bob, ann.UserID))
	_, err = h.PersonActor(ctx, ann.UserID, "", "lab", "", "")
	wantKind(t, err, fault.NotFound)
	_, err = h.Members(ctx, auth.Actor{Kind: auth.Person, UserID: ann.UserID, Workspace: bob.Workspace})
	wantKind(t, err, fault.Forbidden)
}

// A member of one workspace gets nowhere in another one, whatever ids they know.
func TestOtherWorkspaceIsNotFound(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	ann := h.setup(t, false)
	bob := h.join(t, ann, "bob@example.org", auth.Viewer, false)
	_, _, key := h.key(t, bob, workspace.KeyForm{Name: "k", ForMe: true, Permissions: auth.Permissions{auth.SandboxesRead}})
	second, err := h.CreateWorkspace(ctx, ann, "Second")
	require.NoError(t, err)
	foreign := h.person(t, ann.UserID, second.Slug)
	wantKind(t, h.SetRole(ctx, foreign, bob.UserID, auth.Admin), fault.NotFound)
	wantKind(t, h.SetRun(ctx, foreign, bob.UserID, true), fault.NotFound)
	wantKind(t, h.RemoveMember(ctx, foreign, bob.UserID), fault.NotFound)
	wantKind(t, h.RevokeKey(ctx, foreign, key.ID), fault.NotFound)
	keys, err := h.Keys(ctx, foreign)
	require.NoError(t, err)
	require.Empty(t, keys)
	events, err := h.Activity(ctx, foreign, audit.Filter{WorkspaceID: ann.Workspace.ID})
	require.NoError(t, err)
	for _, e := range events {
		require.NotEqual(t, ann.Workspace.ID, e.WorkspaceID)
	}
}

func TestWorkspaces(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	ann := h.setup(t, false)
	bob := h.join(t, ann, "bob@example.org", auth.Admin, false)
	_, err := h.CreateWorkspace(ctx, bob, "Mine")
	wantKind(t, err, fault.Forbidden)
	byKey, _, _ := h.key(t, ann, workspace.KeyForm{Name: "k", ForMe: true, Permissions: auth.Permissions{auth.MembersManage}})
	_, err = h.CreateWorkspace(ctx, byKey, "Mine")
	wantKind(t, err, fault.Forbidden)
	_, err = h.CreateWorkspace(ctx, ann, strings.Repeat("x", 61))
	wantKind(t, err, fault.Invalid)
	for name, slug := range map[string]string{"Ünï Côde": "n-c-de", "日本": "workspace", "A -- b": "a-b", strings.Repeat("long", 15): strings.Repeat("long", 10)} {
		w, err := h.CreateWorkspace(ctx, ann, name)
		require.NoError(t, err)
		require.Equal(t, slug, w.Slug)
	}
	w, err := h.CreateWorkspace(ctx, ann, "Lab")
	require.NoError(t, err)
	require.Equal(t, "lab-2", w.Slug)
	require.Equal(t, auth.Admin.Permissions(), h.person(t, ann.UserID, "lab-2").Permissions)
}

func TestAdminCommands(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	_, err := h.AdminCreateUser(ctx, "ann@example.org", password, true)
	require.NoError(t, err)
	_, err = h.AdminCreateUser(ctx, "ann@example.org", password, true)
	wantKind(t, err, fault.Conflict)
	_, err = h.AdminCreateUser(ctx, "bob@example.org", "short", false)
	wantKind(t, err, fault.Invalid)
	w, err := h.AdminCreateWorkspace(ctx, "The Lab")
	require.NoError(t, err)

	m, err := h.AdminGrant(ctx, "the lab", "ann@example.org", auth.Operator, auth.Permissions{auth.SandboxesRun})
	require.NoError(t, err)
	require.Equal(t, "sandboxes:read,sandboxes:run,sandboxes:manage,audit:read", m.Rights().String())
	m, err = h.AdminGrant(ctx, w.Slug, "ann@example.org", "", auth.Permissions{auth.KeysManage})
	require.NoError(t, err)
	require.Equal(t, auth.Operator, m.Role)
	require.Equal(t, "sandboxes:run,keys:manage", m.Granted.String())
	_, err = h.AdminGrant(ctx, "nowhere", "ann@example.org", auth.Viewer, nil)
	wantKind(t, err, fault.NotFound)
	_, err = h.AdminGrant(ctx, w.Slug, "eve@example.org", auth.Viewer, nil)
	wantKind(t, err, fault.NotFound)

	k, secret, err := h.AdminCreateKey(ctx, workspace.AdminKeyForm{Workspace: w.Slug, Name: "ci", Permissions: auth.Permissions{auth.SandboxesRun}})
	require.NoError(t, err)
	require.Equal(t, h.clock.Now().Add(90*24*time.Hour), k.ExpiresAt)
	a, err := h.KeyActor(ctx, secret, "", "")
	require.NoError(t, err)
	require.Equal(t, "sandboxes:run", a.Permissions.String())
	_, _, err = h.AdminCreateKey(ctx, workspace.AdminKeyForm{Workspace: w.Slug, Name: "ci", OwnerEmail: "eve@example.org", Permissions: auth.Permissions{auth.SandboxesRun}})
	wantKind(t, err, fault.NotFound)
	keys, err := h.AdminKeys(ctx, w.Slug)
	require.NoError(t, err)
	require.Len(t, keys, 1)
	_, err = h.AdminRevokeKey(ctx, k.Prefix)
	require.NoError(t, err)
	_, err = h.KeyActor(ctx, secret, "", "")
	wantKind(t, err, fault.Unauthenticated)
	_, err = h.AdminRevokeKey(ctx, "sg_nothere")
	wantKind(t, err, fault.NotFound)

	require.NoError(t, h.AdminSetPassword(ctx, "ann@example.org", "another-river-9"))
	_, err = h.SignIn(ctx, "ann@example.org", password, "", "")
	wantKind(t, err, fault.Unauthenticated)
	_, err = h.SignIn(ctx, "ann@example.org", "another-river-9", "", "")
	require.NoError(t, err)
	users, err := h.AdminUsers(ctx)
	require.NoError(t, err)
	require.Len(t, users, 1)
	require.Empty(t, users[0].PasswordHash)
	for _, e := range h.events(t, audit.Filter{Action: "user."}) {
		require.Equal(t, auth.System, e.ActorKind)
	}
	v, err := h.log.Verify(ctx)
	bad := v.Bad
	require.NoError(t, err)
	require.Zero(t, bad)
}
