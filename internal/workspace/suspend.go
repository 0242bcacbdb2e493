package workspace

import (
	"context"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/fault"
	"sandgate/sandbox"
)

// SuspendSandbox keeps a persistent sandbox on disk and frees the host of it: one's own (needs run) or anyone's (needs
// manage). One that is suspended already is fine.
func (s *Service) SuspendSandbox(ctx context.Context, a auth.Actor, id string) (Sandbox, error) {
	what := approval.Action{Kind: approval.Other, Name: "sandbox.suspend", SandboxID: id}
	if err := s.may(ctx, a, what, auth.SandboxesManage, auth.SandboxesRun); err != nil {
		return Sandbox{}, err
	}
	r, err := s.locate(ctx, a, id)
	if err != nil {
		return Sandbox{}, err
	}
	what.Target = r.Label
	if err := s.mayAsOwner(ctx, a, what, r, "suspend"); err != nil {
		return Sandbox{}, err
	}
	if r.Status == sandbox.Suspended {
		return s.shownWhole(ctx, a, r)
	}
	err = s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		return "", s.o.Sandboxes.Suspend(ctx, r.ID)
	})
	return s.now(ctx, a, r.ID, err)
}

// ResumeSandbox wakes a suspended one; any call that needs what is inside does the same. Needs run.
func (s *Service) ResumeSandbox(ctx context.Context, a auth.Actor, id string) (Sandbox, error) {
	what := approval.Action{Kind: approval.Other, Name: "sandbox.resume", SandboxID: id}
	if err := s.may(ctx, a, what, auth.SandboxesRun); err != nil {
		return Sandbox{}, err
	}
	r, err := s.locate(ctx, a, id)
	if err != nil {
		return Sandbox{}, err
	}
	if r.Status == sandbox.Running {
		return s.shownWhole(ctx, a, r)
	}
	what.Target = r.Label
	err = s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		_, err := s.o.Sandboxes.Resume(ctx, r.ID)
		if err == nil {
			s.o.Sandboxes.Touch(ctx, r.ID)
		}
		return "", err
	})
	return s.now(ctx, a, r.ID, err)
}

// now gives what a change made of a sandbox.
func (s *Service) now(ctx context.Context, a auth.Actor, id sandbox.ID, err error) (Sandbox, error) {
	if err != nil {
		return Sandbox{}, err
	}
	r, err := s.o.Sandboxes.Record(ctx, id)
	if err != nil {
		return Sandbox{}, err
	}
	return s.shownWhole(ctx, a, r)
}

// errAsleep refuses to wake a sandbox for somebody who may only look.
func errAsleep() error {
	return fault.New(fault.Conflict, "The sandbox is suspended. Somebody who may run code here has to wake it before it can be looked into.").With("reason", "suspended")
}
