package api

import (
	"context"
	"time"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox/effect"
)

func anApproval(status approval.Status) workspace.Approval {
	at := time.Unix(100, 0)
	return workspace.Approval{
		Record: approval.Record{
			ID: knownApproval, SandboxID: knownID, Kind: approval.Write, Status: status, Digest: "d1", CreatedAt: at, ExpiresAt: at,
			Decision: approval.Decision{By: "ann@example.org", At: at, Reason: "no"},
		},
		Request: approval.Request{
			Kind: approval.Write, Action: "file.write", Requester: approval.Requester{Kind: auth.KeyUser, Name: "robot"}, Reason: "why not",
			Params: map[string]string{"path": "/work/a"}, State: map[string]string{"path": "/work/b", "old_sha256": "00"},
			Blobs:   []approval.Blob{approval.NewBlob(approval.BlobContent, []byte("x"), true, true)},
			Unbound: []string{"the rest"}, Before: []approval.Past{{At: at, Action: "command.run", Target: "true", Outcome: "ok"}},
		},
	}
}

func (f *fake) one(call, id string, v workspace.Approval) (workspace.Approval, error) {
	if err := f.saw(call, ""); err != nil {
		return v, err
	}
	if id != knownApproval {
		return v, fault.New(fault.NotFound, "Approval not found")
	}
	return v, nil
}

func (f *fake) Approvals(_ context.Context, _ auth.Actor, filter workspace.ApprovalFilter) ([]workspace.Approval, bool, error) {
	command := anApproval(approval.Used)
	command.Kind, command.Request.Action = approval.Command, "command.run"
	command.Request.Params = map[string]string{"command": "true", "cwd": "/work", "timeout_ms": "1500"}
	return []workspace.Approval{anApproval(approval.Pending), command}, filter.Limit == 5, f.saw("Approvals", "")
}

func (f *fake) Approval(_ context.Context, _ auth.Actor, id string) (workspace.Approval, error) {
	return f.one("Approval", id, anApproval(approval.Pending))
}

func (f *fake) ApprovalContent(_ context.Context, _ auth.Actor, id, name string) ([]byte, error) {
	_, err := f.one("ApprovalContent "+name, id, workspace.Approval{})
	return []byte("<script>"), err
}

func (f *fake) ApproveRequest(_ context.Context, _ auth.Actor, id, digest string) (workspace.Approval, error) {
	f.decided = append(f.decided, "approve "+digest)
	return f.one("ApproveRequest", id, anApproval(approval.Approved))
}

func (f *fake) DenyRequest(_ context.Context, _ auth.Actor, id, reason string) (workspace.Approval, error) {
	f.decided = append(f.decided, "deny "+reason)
	return f.one("DenyRequest", id, anApproval(approval.Denied))
}

func (f *fake) TryRequest(_ context.Context, _ auth.Actor, id string) (workspace.Approval, error) {
	a := anApproval(approval.Pending)
	a.Effect = &workspace.Effect{
		ExitCode: 3, Added: 1, Files: []effect.Change{{Path: "/work/a", What: effect.Added, Kind: effect.File, Size: 1, Digest: "d"}},
		Denied: []workspace.Denied{{Protocol: "tcp", Destination: "203.0.113.9", Port: 80, Why: "network is off", Count: 1}}, NotShown: []string{"much"},
	}
	return f.one("TryRequest", id, a)
}

func (f *fake) CancelRequest(_ context.Context, _ auth.Actor, id string) (workspace.Approval, error) {
	return f.one("CancelRequest", id, anApproval(approval.Cancelled))
}

func (f *fake) Policy(context.Context, auth.Actor) (approval.Policy, error) {
	return f.policy, f.saw("Policy", "")
}

func (f *fake) SetPolicy(_ context.Context, _ auth.Actor, p approval.Policy) (approval.Policy, error) {
	f.policy = p
	return p, f.saw("SetPolicy", "")
}

func (f *fake) KeyPolicy(context.Context, auth.Actor, string) (approval.Policy, error) {
	return f.policy, f.saw("KeyPolicy", "")
}

func (f *fake) SetKeyPolicy(_ context.Context, _ auth.Actor, _ string, p approval.Policy) (approval.Policy, error) {
	f.policy = p
	return p, f.saw("SetKeyPolicy", "")
}
