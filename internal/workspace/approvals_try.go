package workspace

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

// tries are the requests that are being tried in copies. The zero value is ready.
type tries struct {
	mu sync.Mutex
	of map[string]bool
}

func (t *tries) begin(id string) (end func(), ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of[id] {
		return nil, false
	}
	if t.of == nil {
		t.of = map[string]bool{}
	}
	t.of[id] = true
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.of, id)
	}, true
}

func (t *tries) under(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.of[id]
}

// TryRequest runs the command of a pending request in a copy of its sandbox that reaches nothing and is thrown away, and
// keeps with the request what it did. It takes up to some minutes. Needs approvals:decide, from a person who did not ask.
// No command, or tried already at this moment: fault.Conflict.
func (s *Service) TryRequest(ctx context.Context, a auth.Actor, id string) (Approval, error) {
	what := approval.Action{Kind: approval.Other, Name: "approval.try"}
	rec, err := s.mayDecide(ctx, a, what, id)
	if err != nil {
		return Approval{}, err
	}
	r, err := s.openRequest(rec)
	if err != nil {
		return Approval{}, err
	}
	if !tryable(r) {
		return Approval{}, fault.New(fault.Conflict, "Only a command can be tried in a copy of its sandbox.")
	}
	asker := auth.Actor{Kind: r.Requester.Kind, UserID: r.Requester.UserID, KeyID: r.Requester.KeyID, Name: r.Requester.Name, Workspace: a.Workspace}
	why, err := s.voided(ctx, asker, rec, r)
	if err != nil {
		return Approval{}, err
	}
	if why != "" {
		return Approval{}, s.void(ctx, a, rec, why)
	}
	end, ok := s.tries.begin(rec.ID)
	if !ok {
		return Approval{}, fault.New(fault.Conflict, "It is being tried already; wait for what it shows.")
	}
	defer s.feed.send(rec.WorkspaceID, Change{Kind: "approval", SandboxID: rec.SandboxID})
	defer end()
	s.feed.send(rec.WorkspaceID, Change{Kind: "approval", SandboxID: rec.SandboxID})
	what.SandboxID, what.Target, what.Digest, what.ApprovalID = rec.SandboxID, rec.ID, rec.Digest, rec.ID
	err = s.change(ctx, a, what, func(ctx context.Context) (string, error) { return s.try(ctx, a, rec, r) })
	if err != nil {
		return Approval{}, err
	}
	return s.Approval(ctx, a, rec.ID)
}

func tryable(r *approval.Request) bool {
	return r.Kind == approval.Command && r.Action != "command.stdin"
}

// try runs what was kept, not what somebody sends.
func (s *Service) try(ctx context.Context, a auth.Actor, rec approval.Record, r *approval.Request) (words string, err error) {
	box, err := s.o.Sandboxes.Record(ctx, sandbox.ID(rec.SandboxID))
	if err != nil {
		return "", err
	}
	for i := range r.Blobs {
		if b := &r.Blobs[i]; b.Given || b.Bound {
			if b.Data, err = s.content(ctx, rec.ID, *b); err != nil {
				return "", err
			}
		}
	}
	var c agent.CommandSpec
	q, err := s.askCommand(ctx, box, nil, &c) // only to take: nothing is looked for
	if err != nil {
		return "", err
	}
	if err := q.take(r); err != nil {
		return "", err
	}
	e, err := s.rehearse(ctx, box, c, a.Name)
	if err != nil {
		return "", s.explain(ctx, box, err)
	}
	text, err := json.Marshal(e)
	if err != nil {
		return "", err
	}
	words = fmt.Sprintf("exit %d; %d paths added, %d changed, %d deleted; %d kinds of connections refused", e.ExitCode, e.Added, e.Changed, e.Deleted, len(e.Denied))
	return words, s.o.Store.PutApprovalEffect(ctx, rec.ID, s.o.Seal.Seal(text, rec.ID+"/"+effectName))
}

const effectName = "effect"

// effectOf gives what a request's command did in a copy; nil: it was not tried.
func (s *Service) effectOf(ctx context.Context, rec approval.Record) (*Effect, error) {
	sealed, err := s.o.Store.ApprovalContent(ctx, rec.ID, effectName)
	if fault.Is(err, fault.NotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	text, err := s.o.Seal.Open(sealed, rec.ID+"/"+effectName)
	if err != nil {
		return nil, fault.Wrap(err, fault.Conflict, "What the command did in a copy cannot be read.")
	}
	e := &Effect{}
	return e, json.Unmarshal(text, e)
}

// DenyAndStop denies a request and lets its sandbox ask for nothing of this kind any more: its policy refuses it from now
// on. Needs approvals:decide, from a person who did not ask.
func (s *Service) DenyAndStop(ctx context.Context, a auth.Actor, id, reason string) (Approval, error) {
	denied, err := s.DenyRequest(ctx, a, id, reason)
	if err != nil {
		return denied, err
	}
	what := approval.Action{Kind: approval.Other, Name: "policy.set", SandboxID: denied.SandboxID, Target: denied.SandboxID, ApprovalID: denied.ID}
	p, err := s.o.Store.PolicyOf(ctx, denied.SandboxID)
	if err != nil {
		return denied, err
	}
	// Before every rule of the sandbox: the first that matches counts.
	p.Rules = append([]approval.Rule{{Kind: denied.Kind, Answer: approval.Deny}}, p.Rules...)
	if len(p.Rules) > approval.MaxRules {
		p.Rules = p.Rules[:approval.MaxRules]
	}
	err = s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		return policyWords(p), s.o.Store.SetPolicy(ctx, a.Workspace.ID, denied.SandboxID, p, s.o.Now())
	})
	if err == nil {
		s.policyChanged(ctx, a.Workspace.ID)
	}
	return denied, err
}

// ApprovalPast is what was decided about requests like one, among the newest of the workspace.
type ApprovalPast struct {
	Asked, Approved, Denied int // by the same requester
	Same, SameApproved      int // for the very same, by whomever
}

// pastRequests is how many of the newest requests are looked at.
const pastRequests = 200

// ApprovalHistory tells what was decided about the same requester and about the very same action before. Needs read, manage
// or approvals:decide.
func (s *Service) ApprovalHistory(ctx context.Context, a auth.Actor, v Approval) (p ApprovalPast, err error) {
	if err := s.may(ctx, a, approval.Action{Name: "approval.list", SandboxID: v.SandboxID}, approvalReaders...); err != nil {
		return p, err
	}
	records, err := s.o.Store.Approvals(ctx, approval.Filter{WorkspaceID: a.Workspace.ID, Limit: pastRequests})
	if err != nil {
		return p, err
	}
	want := v.Request.Params["command"]
	for _, rec := range records {
		if rec.ID == v.ID || rec.CreatedAt.After(v.CreatedAt) || rec.Status == approval.Pending {
			continue
		}
		yes := rec.Status == approval.Approved || rec.Status == approval.Used || !rec.Decision.At.IsZero() && rec.Status != approval.Denied
		if rec.UserID == v.UserID && rec.KeyID == v.KeyID {
			p.Asked++
			switch {
			case yes:
				p.Approved++
			case rec.Status == approval.Denied:
				p.Denied++
			}
		}
		if want == "" || rec.Kind != v.Kind {
			continue
		}
		r, err := s.openRequest(rec)
		if err != nil { // of another sealing key: it tells nothing
			continue
		}
		if s.mask(ctx, rec.SandboxID).hide(r.Params["command"]) == want && r.Action == v.Request.Action {
			p.Same++
			if yes {
				p.SameApproved++
			}
		}
	}
	return p, nil
}

// SameRequests gives the further requests that wait for the very same as one, by the same requester. Needs read, manage or
// approvals:decide.
func (s *Service) SameRequests(ctx context.Context, a auth.Actor, v Approval) (out []Approval, err error) {
	if err := s.may(ctx, a, approval.Action{Name: "approval.list", SandboxID: v.SandboxID}, approvalReaders...); err != nil {
		return nil, err
	}
	records, err := s.o.Store.Approvals(ctx, approval.Filter{
		WorkspaceID: a.Workspace.ID, SandboxID: v.SandboxID, Status: approval.Pending, Limit: approval.MaxPendingSandbox,
	})
	for _, rec := range records {
		if rec.ID != v.ID && rec.Asked == v.Asked && s.live(rec) {
			out = append(out, Approval{Record: rec})
		}
	}
	return out, err
}
