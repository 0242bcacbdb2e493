package handlers_test

import (
	"context"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
)

func (f *fake) Approvals(_ context.Context, _ auth.Actor, filter workspace.ApprovalFilter) (list []workspace.Approval, more bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.approvals {
		if filter.Status == "" || a.Status == filter.Status {
			list = append(list, a)
		}
	}
	return list, false, nil
}

func (f *fake) Approval(_ context.Context, _ auth.Actor, id string) (workspace.Approval, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.approvals {
		if a.ID == id {
			return a, nil
		}
	}
	return workspace.Approval{}, fault.New(fault.NotFound, "Approval not found")
}

func (f *fake) ApprovalContent(_ context.Context, _ auth.Actor, id, name string) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if data, ok := f.content[id+"/"+name]; ok {
		return data, nil
	}
	return nil, fault.New(fault.NotFound, "Content not found")
}

func (f *fake) ApprovalHistory(context.Context, auth.Actor, workspace.Approval) (workspace.ApprovalPast, error) {
	return workspace.ApprovalPast{Asked: 14, Approved: 12, Denied: 1, Same: 3, SameApproved: 3}, nil
}

func (f *fake) SameRequests(_ context.Context, _ auth.Actor, v workspace.Approval) (out []workspace.Approval, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.approvals {
		if a.ID != v.ID && a.Asked != "" && a.Asked == v.Asked {
			out = append(out, a)
		}
	}
	return out, nil
}

func (f *fake) PendingApprovals(context.Context, auth.Actor) (map[string]int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := map[string]int{}
	for _, a := range f.approvals {
		if a.Status == approval.Pending {
			n[a.SandboxID]++
		}
	}
	return n, nil
}

func (f *fake) decide(call, id string) (workspace.Approval, error) {
	if err := f.note(call); err != nil {
		return workspace.Approval{}, err
	}
	return f.Approval(context.Background(), auth.Actor{}, id)
}

func (f *fake) ApproveRequest(_ context.Context, _ auth.Actor, id, digest string) (workspace.Approval, error) {
	return f.decide("approve "+id+" "+digest, id)
}

func (f *fake) DenyRequest(_ context.Context, _ auth.Actor, id, reason string) (workspace.Approval, error) {
	return f.decide("deny "+id+" "+reason, id)
}

func (f *fake) DenyAndStop(_ context.Context, _ auth.Actor, id, reason string) (workspace.Approval, error) {
	return f.decide("deny and stop "+id+" "+reason, id)
}

func (f *fake) Policy(context.Context, auth.Actor) (approval.Policy, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.policy, nil
}

func (f *fake) SetPolicy(_ context.Context, _ auth.Actor, p approval.Policy) (approval.Policy, error) {
	if err := p.Check(""); err != nil {
		return p, err
	}
	f.mu.Lock()
	f.policy = p
	f.mu.Unlock()
	return p, f.note("policy of the workspace")
}

func (f *fake) KeyPolicy(context.Context, auth.Actor, string) (approval.Policy, error) {
	return approval.Policy{Command: approval.AskIt}, nil
}

func (f *fake) SetKeyPolicy(_ context.Context, _ auth.Actor, key string, p approval.Policy) (approval.Policy, error) {
	return p, f.note("policy of key " + key)
}

func (f *fake) TryRequest(_ context.Context, _ auth.Actor, id string) (workspace.Approval, error) {
	return f.decide("try "+id, id)
}

func (f *fake) CancelRequest(_ context.Context, _ auth.Actor, id string) (workspace.Approval, error) {
	return f.decide("cancel "+id, id)
}
