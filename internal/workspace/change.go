package workspace

import (
	"context"
	"errors"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/sandbox"
)

// errNotFound is the one answer to foreign and unknown ids.
func errNotFound() error { return fault.New(fault.NotFound, "Sandbox not found") }

// may refuses an actor who has none of the permissions, and puts the refusal on record.
func (s *Service) may(ctx context.Context, a auth.Actor, what approval.Action, any ...auth.Permission) error {
	for _, p := range any {
		if a.May(p) {
			return nil
		}
	}
	what.Target = s.mask(ctx, what.SandboxID).hide(what.Target)
	err := fault.New(fault.Forbidden, "This needs the permission %s, which you do not have in this workspace.", any[0])
	if nerr := s.o.Audit.Note(ctx, event(a, what, "refused", "needs "+string(any[0]))); nerr != nil {
		return nerr
	}
	return err
}

// mayAsOwner refuses who neither owns a sandbox nor has manage, and puts the refusal on record. verb is what they wanted.
func (s *Service) mayAsOwner(ctx context.Context, a auth.Actor, what approval.Action, r sandbox.Record, verb string) error {
	if a.May(auth.SandboxesManage) || owns(a, r) {
		return nil
	}
	what.Target = s.mask(ctx, what.SandboxID).hide(what.Target)
	err := fault.New(fault.Forbidden, "Only %s or somebody with sandboxes:manage can %s this sandbox.", r.OwnerName, verb)
	return errors.Join(s.o.Audit.Note(ctx, event(a, what, audit.Refused, "not the owner")), err)
}

// change is the one way to change something: gate, intent, the change itself, outcome. do returns a detail for the record.
// Secrets of the sandbox show in none of it. What has to be approved is refused: see changeAsking.
func (s *Service) change(ctx context.Context, a auth.Actor, what approval.Action, do func(ctx context.Context) (detail string, err error)) error {
	return s.changeAsking(ctx, a, what, nil, do)
}

// changeAsking is change for what a person can be asked about.
func (s *Service) changeAsking(ctx context.Context, a auth.Actor, what approval.Action, q *asking, do func(ctx context.Context) (detail string, err error)) error {
	hidden := s.mask(ctx, what.SandboxID)
	what.Target = hidden.hide(what.Target)
	yes, err := s.pass(ctx, a, &what, q)
	if err != nil {
		if fault.Is(err, fault.ApprovalNeeded) || ctx.Err() != nil { // nothing is refused yet; the request is on record by itself
			return err
		}
		if nerr := s.o.Audit.Note(ctx, event(a, what, audit.Refused, fault.Public(err))); nerr != nil {
			return nerr
		}
		return err
	}
	entry, err := s.o.Audit.Begin(ctx, event(a, what, "started", ""))
	if err != nil {
		yes.finish(err)
		return err
	}
	approval.CallOf(ctx).Pass()
	s.happened(a, what, audit.Started, "")
	var found findings
	detail, err := do(found.in(ctx))
	detail = hidden.hide(detail)
	entry.EndWith(hidden.hideError(err), detail, found.facts, found.copy(hidden))
	yes.finish(err)
	s.happened(a, what, audit.OutcomeOf(err), detail)
	return err
}

// event is the record's line for an action of an actor.
func event(a auth.Actor, what approval.Action, outcome, detail string) audit.Event {
	id := a.UserID
	if a.Kind == auth.KeyUser {
		id = a.KeyID
	}
	return audit.Event{
		WorkspaceID: a.Workspace.ID, ActorKind: a.Kind, ActorID: id, Actor: a.Name, Owner: a.Owner, Address: a.Address, RequestID: a.RequestID,
		SandboxID: what.SandboxID, Action: what.Name, Target: what.Target, Digest: what.Digest, ApprovalID: what.ApprovalID, Outcome: outcome, Detail: detail,
	}
}
