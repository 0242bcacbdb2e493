package workspace_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox/agent"
)

// court is a world whose gate is that of the product: ann asks, judy decides.
type court struct {
	*world
	judy auth.Actor
}

func newCourt(t *testing.T) *court {
	t.Helper()
	c := &court{}
	c.world = newWorldWith(t, func(o *workspace.Options) {
		policies, ok := o.Store.(approval.Policies)
		require.True(t, ok)
		o.Gate = approval.NewGate(policies)
	})
	c.judy = c.join(t, c.ann, "judy@example.org", auth.Approver, false)
	return c
}

// asks makes a sandbox of ann's with a policy.
func (c *court) asks(t *testing.T, p approval.Policy) string {
	t.Helper()
	made, err := c.CreateSandbox(t.Context(), c.ann, workspace.CreateOptions{Label: "asks", Cwd: c.tmp, User: c.user, Approval: p})
	require.NoError(t, err)
	return string(made.ID)
}

var asksCommands = approval.Policy{Command: approval.AskIt}

// waits gives the id of the request that an error is about.
func waits(t *testing.T, err error) string {
	t.Helper()
	wantKind(t, err, fault.ApprovalNeeded)
	fe, _ := errors.AsType[*fault.Error](err)
	id, _ := fe.Extra["approval_id"].(string)
	require.NotEmpty(t, id)
	return id
}

// with gives a context whose caller names a request.
func named(ctx context.Context, id string) context.Context {
	ctx, _ = approval.WithCall(ctx, approval.Call{ID: id})
	return ctx
}

func (c *court) run(ctx context.Context, a auth.Actor, box, command string) (agent.Exit, error) {
	return c.RunCommand(ctx, a, box, agent.CommandSpec{Command: command}, nothing{})
}

// The first path: asked, held back, approved, run once.
func TestACommandRunsOnceAfterTheYes(t *testing.T) {
	c := newCourt(t)
	ctx := t.Context()
	box := c.asks(t, asksCommands)
	file := filepath.Join(c.tmp, "ran")
	command := "echo x >> " + file

	_, err := c.run(ctx, c.ann, box, command)
	id := waits(t, err)
	require.NoFileExists(t, file)
	got, err := c.Approval(ctx, c.judy, id)
	require.NoError(t, err)
	require.Equal(t, approval.Pending, got.Status)
	require.Equal(t, command, got.Request.Params["command"])
	require.Empty(t, got.WhyNot)
	sb, err := c.Sandbox(ctx, c.ann, box)
	require.NoError(t, err)
	require.Equal(t, 1, sb.Waiting)
	require.Contains(t, sb.Idle.Because, "approval")

	_, err = c.run(named(ctx, id), c.ann, box, command)
	require.Equal(t, id, waits(t, err))
	got, err = c.ApproveRequest(ctx, c.judy, id, got.Digest)
	require.NoError(t, err)
	require.Equal(t, approval.Approved, got.Status)
	require.NoFileExists(t, file, "a yes alone runs nothing")

	_, err = c.run(named(ctx, id), c.ann, box, command+"; true")
	wantKind(t, err, fault.Conflict)
	_, err = c.run(named(ctx, id), c.ann, box, command)
	require.NoError(t, err)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "x\n", string(text))
	_, err = c.run(named(ctx, id), c.ann, box, command)
	wantKind(t, err, fault.Conflict)
	got, err = c.Approval(ctx, c.judy, id)
	require.NoError(t, err)
	require.Equal(t, approval.Used, got.Status)
	require.Equal(t, audit.OK, got.Outcome)

	var actions []string
	for _, e := range c.events(t, audit.Filter{SandboxID: box}) {
		if e.ApprovalID == id {
			actions = append(actions, e.Action+" "+e.Outcome)
		}
	}
	require.Equal(t, []string{
		"command.run ok", "approval.use ok", "approval.approve ok", "approval.request ok",
	}, actions, "newest first")
}

// A call that waits goes on at once, and is told of a no.
func TestACallThatWaits(t *testing.T) {
	c := newCourt(t)
	box := c.asks(t, asksCommands)
	ask := func() (string, chan error) {
		changes := c.Changes(t.Context(), c.judy)
		ctx, _ := approval.WithCall(t.Context(), approval.Call{Wait: time.Minute, Reason: "because"})
		done := make(chan error, 1)
		go func() {
			_, err := c.run(ctx, c.ann, box, "true")
			done <- err
		}()
		for {
			for ch := range changes {
				if ch.Kind == "approval" {
					break
				}
			}
			list, _, err := c.Approvals(t.Context(), c.judy, workspace.ApprovalFilter{Status: approval.Pending})
			require.NoError(t, err)
			if len(list) == 1 {
				require.Equal(t, "because", list[0].Request.Reason)
				return list[0].ID, done
			}
		}
	}
	id, done := ask()
	_, err := c.ApproveRequest(t.Context(), c.judy, id, "")
	require.NoError(t, err)
	require.NoError(t, <-done)

	id, done = ask()
	_, err = c.DenyRequest(t.Context(), c.judy, id, "not today")
	require.NoError(t, err)
	err = <-done
	wantKind(t, err, fault.ApprovalDenied)
	fe, _ := errors.AsType[*fault.Error](err)
	require.Equal(t, id, fe.Extra["approval_id"])
	require.Equal(t, "not today", fe.Extra["reason"])
}

func createFrom(snapshot string, p approval.Policy) workspace.CreateOptions {
	return workspace.CreateOptions{SnapshotID: snapshot, Approval: p}
}

func patchApproval(p approval.Policy) workspace.SandboxPatch {
	return workspace.SandboxPatch{Approval: &p}
}

// Who asked never decides, through whichever key; a key that belongs to nobody decides nothing.
func TestNobodyDecidesAboutTheirOwn(t *testing.T) {
	c := newCourt(t)
	ctx := t.Context()
	box := c.asks(t, asksCommands)
	_, err := c.run(ctx, c.ann, box, "true")
	id := waits(t, err)
	ownKey, _, _ := c.key(t, c.ann, workspace.KeyForm{Name: "ann's", ForMe: true, Permissions: runNeeds})
	ownKey.Permissions = auth.AllPermissions // whatever the rules about keys say
	agent, _, _ := c.key(t, c.ann, workspace.KeyForm{Name: "agent", Permissions: runNeeds})
	agent.Permissions = auth.AllPermissions
	for name, a := range map[string]auth.Actor{"ann": c.ann, "ann's key": ownKey, "a service account": agent, "nobody": {Workspace: c.ann.Workspace, Permissions: auth.AllPermissions}} {
		_, err := c.ApproveRequest(ctx, a, id, "")
		wantKind(t, err, fault.Forbidden)
		_, err = c.DenyRequest(ctx, a, id, "")
		require.Equal(t, fault.Forbidden, fault.KindOf(err), name)
	}
	_, err = c.run(ctx, ownKey, box, "true # by key")
	byKey := waits(t, err)
	_, err = c.ApproveRequest(ctx, c.ann, byKey, "")
	wantKind(t, err, fault.Forbidden)
	_, err = c.run(ctx, agent, box, "true # by the agent")
	byAgent := waits(t, err)
	_, err = c.ApproveRequest(ctx, c.ann, byAgent, "")
	require.NoError(t, err, "it is nobody's own")
	_, err = c.run(named(ctx, byAgent), c.ann, box, "true # by the agent")
	require.Equal(t, fault.Invalid, fault.KindOf(err), "a yes to somebody else")
	_, err = c.ApproveRequest(ctx, c.judy, id, "0000")
	wantKind(t, err, fault.Conflict)
	_, err = c.ApproveRequest(ctx, c.judy, id, "")
	require.NoError(t, err)
}

// What a request was bound to voids it by changing.
func TestWhatVoidsARequest(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, c *court, box string){
		"a new incarnation": func(t *testing.T, c *court, box string) {
			_, err := c.SuspendSandbox(t.Context(), c.ann, box)
			require.NoError(t, err)
			_, err = c.ResumeSandbox(t.Context(), c.ann, box)
			require.NoError(t, err)
		},
		"another policy": func(t *testing.T, c *court, _ string) {
			_, err := c.SetPolicy(t.Context(), c.ann, approval.Policy{Port: approval.Deny})
			require.NoError(t, err)
		},
		"a stricter sandbox": func(t *testing.T, c *court, box string) {
			_, err := c.UpdateSandbox(t.Context(), c.ann, box, patchApproval(approval.Policy{Command: approval.AskIt, Write: approval.Deny}))
			require.NoError(t, err)
		},
		"the approver's permission": func(t *testing.T, c *court, _ string) {
			require.NoError(t, c.SetRole(t.Context(), c.ann, c.judy.UserID, auth.Viewer))
		},
		"the approver's account": func(t *testing.T, c *court, _ string) {
			require.NoError(t, c.AdminDisableUser(t.Context(), "judy@example.org", true))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCourt(t)
			made, err := c.CreateSandbox(t.Context(), c.ann, workspace.CreateOptions{Cwd: c.tmp, User: c.user, Approval: asksCommands, Persistent: true})
			require.NoError(t, err)
			box, file := string(made.ID), filepath.Join(c.tmp, "ran")
			_, err = c.run(t.Context(), c.ann, box, "touch "+file)
			id := waits(t, err)
			c.approve(t, id)
			change(t, c, box)
			_, err = c.run(named(t.Context(), id), c.ann, box, "touch "+file)
			wantKind(t, err, fault.Conflict)
			fe, _ := errors.AsType[*fault.Error](err)
			require.Equal(t, "void", fe.Extra["reason"])
			require.NoFileExists(t, file)
			v, err := c.Approval(t.Context(), c.ann, id)
			require.NoError(t, err)
			require.Equal(t, approval.Void, v.Status)
			require.NotEmpty(t, v.Why)
		})
	}
}

// The ends of a request are told apart, and its clock is exact.
func TestTheClockOfARequest(t *testing.T) {
	c := newCourt(t)
	ctx := t.Context()
	box := c.asks(t, asksCommands)
	ask := func(n string) string {
		_, err := c.run(ctx, c.ann, box, "true # "+n)
		return waits(t, err)
	}
	id := ask("decided in the last moment")
	c.clock.pass(approval.DecideWithin - time.Microsecond)
	_, err := c.ApproveRequest(ctx, c.judy, id, "")
	require.NoError(t, err)
	c.clock.pass(approval.UseWithin - time.Microsecond)
	_, err = c.run(named(ctx, id), c.ann, box, "true # decided in the last moment")
	require.NoError(t, err)

	late := ask("too late to decide")
	c.clock.pass(approval.DecideWithin)
	_, err = c.ApproveRequest(ctx, c.judy, late, "")
	wantKind(t, err, fault.Conflict)
	unused := ask("too late to use")
	c.approve(t, unused)
	c.clock.pass(approval.UseWithin)
	_, err = c.run(named(ctx, unused), c.ann, box, "true # too late to use")
	wantKind(t, err, fault.Conflict)
	swept, cancel := context.WithCancel(ctx)
	go c.SweepApprovals(swept)
	defer cancel()
	for _, id := range []string{late, unused} {
		require.Eventually(t, func() bool {
			r, err := c.store.Approval(ctx, id)
			return err == nil && r.Status == approval.Expired
		}, time.Minute, 10*time.Millisecond)
	}
	gone := ask("taken back")
	_, err = c.CancelRequest(ctx, c.ann, gone)
	require.NoError(t, err)
	_, err = c.run(named(ctx, gone), c.ann, box, "true # taken back")
	fe, _ := errors.AsType[*fault.Error](err)
	require.Equal(t, "cancelled", fe.Extra["reason"])
}
