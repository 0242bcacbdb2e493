package workspace_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/audit"
	"sandgate/internal/workspace"
	"sandgate/sandbox/agent"
)

// peopleAccounts are the methods about people, keys and the record.
var peopleAccounts = map[string]account{
	"SetupNeeded": {kind: read, why: "asked before anybody can sign in", call: func(ctx context.Context, w *world, _ auth.Actor, _ any) error {
		_, err := w.SetupNeeded(ctx)
		return err
	}},
	"NewSetupToken": {kind: change, why: "the server itself", call: func(ctx context.Context, w *world, _ auth.Actor, _ any) error {
		_, err := w.NewSetupToken(ctx)
		return err
	}},
	"Setup": {
		kind: change, why: "the token is the permission",
		prepare: func(t *testing.T, _ *world) any {
			h := newHouse(t)
			token, err := h.NewSetupToken(context.Background())
			require.NoError(t, err)
			return emptyHouse{h, token}
		},
		call: func(ctx context.Context, w *world, _ auth.Actor, arg any) error {
			// The world has its administrator; this one happens in a house of its own, watched by the world's instruments.
			e := arg.(emptyHouse)
			s, err := workspace.New(workspace.Options{Store: e.store, Audit: w.log, Gate: w.gate, Now: w.clock.Now})
			if err != nil {
				return err
			}
			workspace.CheapHashes(s)
			_, _, err = s.Setup(ctx, workspace.SetupForm{Token: e.token, Email: "new@example.org", Password: password, WorkspaceName: "New"}, "", "")
			return err
		},
	},
	"SignIn": {kind: change, why: "the password is the permission", call: func(ctx context.Context, w *world, _ auth.Actor, _ any) error {
		_, err := w.SignIn(ctx, "ann@example.org", password, "192.0.2.1", "r")
		return err
	}},
	"SignedOut": {
		kind: change, why: "one's own session",
		prepare: func(t *testing.T, w *world) any {
			now, id := w.clock.Now(), "s"+w.n()
			require.NoError(t, w.store.InsertSession(context.Background(), auth.Session{
				ID: id, UserID: w.ann.UserID, CreatedAt: now, LastSeenAt: now, IdleFor: time.Hour, EndsAt: now.Add(time.Hour),
			}))
			return id
		},
		call: func(ctx context.Context, w *world, a auth.Actor, arg any) error {
			a.SessionID = arg.(string)
			return w.SignedOut(ctx, a)
		},
	},
	"PersonActor": {kind: read, why: "makes the actor", call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		_, err := w.PersonActor(ctx, a.UserID, "", "lab", "", "")
		return err
	}},
	"KeyActor": {
		kind: read, why: "makes the actor; it notes when the key was last used",
		prepare: func(t *testing.T, w *world) any {
			_, secret, _ := w.key(t, w.ann, workspace.KeyForm{Name: "k", ForMe: true, Permissions: auth.Permissions{auth.SandboxesRead}})
			return secret
		},
		call: func(ctx context.Context, w *world, _ auth.Actor, arg any) error {
			_, err := w.KeyActor(ctx, arg.(string), "", "")
			return err
		},
	},
	"Guard": {kind: read, why: "checks the permission that it is given", call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		guarded, stop := w.Guard(ctx, a, auth.SandboxesRead)
		defer stop()
		return guarded.Err()
	}},
	"Require": {kind: read, needs: readNeeds, call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		return w.Require(ctx, a, "sandbox.read", "", auth.SandboxesRead)
	}},
	"WorkspacesOf": {kind: read, why: "one's own", call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		_, err := w.WorkspacesOf(ctx, a.UserID)
		return err
	}},
	"CreateWorkspace": {
		kind: change, why: "needs an account that may, and no permission in any workspace",
		refused: func(w *world) auth.Actor { return w.bob },
		call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
			_, err := w.CreateWorkspace(ctx, a, "Another")
			return err
		},
	},
	"Members": {kind: read, needs: []auth.Permission{auth.MembersManage, auth.SandboxesRead}, call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		_, err := w.Members(ctx, a)
		return err
	}},
	"Invite": {kind: change, needs: memberNeeds, call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		_, err := w.Invite(ctx, a, "p"+w.n()+"@example.org", auth.Viewer, true)
		return err
	}},
	"Invitations": {kind: read, needs: memberNeeds, call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		_, err := w.Invitations(ctx, a)
		return err
	}},
	"WithdrawInvitation": {
		kind: change, needs: memberNeeds,
		prepare: func(t *testing.T, w *world) any {
			_, err := w.Invite(context.Background(), w.ann, "guest@example.org", auth.Viewer, false)
			require.NoError(t, err)
			open, err := w.Invitations(context.Background(), w.ann)
			require.NoError(t, err)
			return open[0].ID
		},
		call: func(ctx context.Context, w *world, a auth.Actor, arg any) error {
			return w.WithdrawInvitation(ctx, a, arg.(string))
		},
	},
	"InvitationByToken": {
		kind: read, why: "the token is the permission", prepare: invitation,
		call: func(ctx context.Context, w *world, _ auth.Actor, arg any) error {
			_, err := w.InvitationByToken(ctx, arg.(string))
			return err
		},
	},
	"AcceptInvitation": {
		kind: change, why: "the token is the permission", prepare: invitation,
		call: func(ctx context.Context, w *world, _ auth.Actor, arg any) error {
			_, _, err := w.AcceptInvitation(ctx, arg.(string), password, "192.0.2.1", "r")
			return err
		},
	},
	"SetRole": {kind: change, needs: memberNeeds, call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		return w.SetRole(ctx, a, w.bob.UserID, auth.Operator)
	}},
	"SetRun": {kind: change, needs: memberNeeds, call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		return w.SetRun(ctx, a, w.bob.UserID, true)
	}},
	"RemoveMember": {
		kind: change, needs: memberNeeds,
		prepare: func(t *testing.T, w *world) any {
			return w.join(t, w.ann, "p"+w.n()+"@example.org", auth.Viewer, false).UserID
		},
		call: func(ctx context.Context, w *world, a auth.Actor, arg any) error {
			return w.RemoveMember(ctx, a, arg.(string))
		},
	},
	"CreateKey": {kind: change, needs: []auth.Permission{auth.KeysManage}, call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		_, _, err := w.CreateKey(ctx, a, workspace.KeyForm{Name: "agent", Permissions: auth.Permissions{auth.SandboxesRun}})
		return err
	}},
	"Keys": {kind: read, why: "without keys:manage one's own", call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		_, err := w.Keys(ctx, a)
		return err
	}},
	"RevokeKey": {
		kind: change, needs: []auth.Permission{auth.KeysManage},
		prepare: func(t *testing.T, w *world) any {
			_, _, k := w.key(t, w.bob, workspace.KeyForm{Name: "bob's", ForMe: true, Permissions: auth.Permissions{auth.SandboxesRead}})
			return k.ID
		},
		call: func(ctx context.Context, w *world, a auth.Actor, arg any) error {
			return w.RevokeKey(ctx, a, arg.(string))
		},
	},
	"WorkspaceLimits": {kind: read, needs: []auth.Permission{auth.SandboxesRead, auth.SandboxesManage, auth.MembersManage}, call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		_, err := w.WorkspaceLimits(ctx, a)
		return err
	}},
	"SetWorkspaceLimits": {kind: change, needs: memberNeeds, call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		_, err := w.SetWorkspaceLimits(ctx, a, workspace.Limits{Sandboxes: 50})
		return err
	}},
	"Activity": {kind: read, needs: []auth.Permission{auth.AuditRead}, call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		_, err := w.Activity(ctx, a, audit.Filter{})
		return err
	}},
	"ExportActivity": {kind: change, needs: []auth.Permission{auth.AuditRead}, call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		return w.ExportActivity(ctx, a, audit.Filter{}, audit.CSV, io.Discard)
	}},
	"ActivityEvent": {kind: read, needs: anyReader, prepare: func(t *testing.T, w *world) any {
		t.Helper()
		box := w.sandbox(t)
		_, err := w.RunCommand(context.Background(), w.ann, box, agent.CommandSpec{Command: "echo hi"}, nothing{})
		require.NoError(t, err)
		return w.events(t, audit.Filter{SandboxID: box, Action: "command.run"})[0].Seq
	}, call: func(ctx context.Context, w *world, a auth.Actor, arg any) error {
		_, _, err := w.ActivityEvent(ctx, a, arg.(int64))
		return err
	}},
	"SandboxStory": {kind: read, needs: anyReader, prepare: shared, call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
		_, err := w.SandboxStory(ctx, a, id)
		return err
	})},
	"RecordState": {kind: read, needs: []auth.Permission{auth.AuditRead}, call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		_, err := w.RecordState(ctx, a)
		return err
	}},
	"RecordEnd": {kind: read, needs: anyReader, call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		_, err := w.RecordEnd(ctx, a)
		return err
	}},
}

var anyReader = []auth.Permission{auth.AuditRead, auth.SandboxesRead, auth.SandboxesManage}

type emptyHouse struct {
	*house
	token string
}

func invitation(t *testing.T, w *world) any {
	t.Helper()
	token, err := w.Invite(context.Background(), w.ann, "p"+w.n()+"@example.org", auth.Viewer, false)
	require.NoError(t, err)
	return token
}
