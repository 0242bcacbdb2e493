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
