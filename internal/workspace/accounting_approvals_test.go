package workspace_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox/agent"
)

var (
	askedNeeds  = []auth.Permission{auth.SandboxesRead, auth.ApprovalsDecide, auth.SandboxesManage}
	decideNeeds = []auth.Permission{auth.ApprovalsDecide}
	policyNeeds = []auth.Permission{auth.SandboxesRead, auth.ApprovalsDecide, auth.SandboxesManage, auth.MembersManage}
	keyNeeds    = []auth.Permission{auth.KeysManage}
)

// pending makes a request that waits, of somebody else than ann unless it is hers.
func pending(own bool) func(t *testing.T, w *world) any {
	return func(t *testing.T, w *world) any {
		t.Helper()
		box := w.sandbox(t)
		none, err := approval.DigestOf(nil)
		require.NoError(t, err)
		asker := w.ann
		if !own {
			asker, _, _ = w.key(t, w.ann, workspace.KeyForm{Name: "agent" + w.n(), Permissions: runNeeds})
		}
		w.gate.mu.Lock()
		w.gate.refuse = &approval.Ask{Why: "test", Policy: none}
		w.gate.mu.Unlock()
		_, err = w.RunCommand(context.Background(), asker, box, agent.CommandSpec{Command: "true " + w.n(), Stdin: []byte("x")}, nothing{})
		w.gate.close(nil)
		fe, ok := errors.AsType[*fault.Error](err)
		require.True(t, ok, "%v", err)
		id, _ := fe.Extra["approval_id"].(string)
		return id
	}
}

// approvalAccounts are the methods about requests and policies.
var approvalAccounts = map[string]account{
	"Approvals": {kind: read, needs: askedNeeds, call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		_, _, err := w.Approvals(ctx, a, workspace.ApprovalFilter{})
		return err
	}},
	"Approval": {kind: read, needs: askedNeeds, prepare: pending(true), call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
		_, err := w.Approval(ctx, a, id)
		return err
	})},
	"ApprovalContent": {kind: read, needs: askedNeeds, prepare: pending(true), call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
		_, err := w.ApprovalContent(ctx, a, id, approval.BlobStdin)
		return err
	})},
	"PendingApprovals": {kind: read, needs: askedNeeds, call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		_, err := w.PendingApprovals(ctx, a)
		return err
	}},
	"ApproveRequest": {kind: change, needs: decideNeeds, prepare: pending(false), call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
		_, err := w.ApproveRequest(ctx, a, id, "")
		return err
	})},
	"DenyRequest": {kind: change, needs: decideNeeds, prepare: pending(false), call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
		_, err := w.DenyRequest(ctx, a, id, "no")
		return err
	})},
	"TryRequest": {kind: change, needs: decideNeeds, prepare: pending(false), call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
		_, err := w.TryRequest(ctx, a, id)
		return err
	})},
	"DenyAndStop": {kind: change, needs: decideNeeds, prepare: pending(false), call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
		_, err := w.DenyAndStop(ctx, a, id, "no more")
		return err
	})},
	"ApprovalHistory": {kind: read, needs: askedNeeds, call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		_, err := w.ApprovalHistory(ctx, a, workspace.Approval{})
		return err
	}},
	"SameRequests": {kind: read, needs: askedNeeds, call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		_, err := w.SameRequests(ctx, a, workspace.Approval{})
		return err
	}},
	"CancelRequest": {kind: change, needs: runNeeds, prepare: pending(true), call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
		_, err := w.CancelRequest(ctx, a, id)
		return err
	})},
	"SweepApprovals": {kind: read, why: "the server itself", call: func(ctx context.Context, w *world, _ auth.Actor, _ any) error {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		w.SweepApprovals(ctx)
		return nil
	}},
	"Policy": {kind: read, needs: policyNeeds, call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		_, err := w.Policy(ctx, a)
		return err
	}},
	"SetPolicy": {kind: change, needs: memberNeeds, call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		_, err := w.SetPolicy(ctx, a, approval.Policy{})
		return err
	}},
	"KeyPolicy": {kind: read, needs: keyNeeds, prepare: anyKey, call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
		_, err := w.KeyPolicy(ctx, a, id)
		return err
	})},
	"SetKeyPolicy": {kind: change, needs: keyNeeds, prepare: anyKey, call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
		_, err := w.SetKeyPolicy(ctx, a, id, approval.Policy{})
		return err
	})},
}

func anyKey(t *testing.T, w *world) any {
	t.Helper()
	_, _, k := w.key(t, w.ann, workspace.KeyForm{Name: "k" + w.n(), Permissions: runNeeds})
	return k.ID
}
