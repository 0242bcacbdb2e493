package workspace

import (
	"context"
	"errors"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/fault"
	"sandgate/sandbox"
)

// AdminKill ends a sandbox of any workspace for somebody with a shell on the host. Gone already: nil.
func (s *Service) AdminKill(ctx context.Context, id string) error {
	r, err := s.o.Sandboxes.Record(ctx, sandbox.ID(id))
	if fault.Is(err, fault.NotFound) {
		return errNotFound()
	}
	if err != nil || r.Status == sandbox.Gone {
		return err
	}
	what := approval.Action{Kind: approval.Other, Name: "sandbox.kill", SandboxID: id, Target: r.Label}
	return s.change(ctx, host(r.WorkspaceID), what, func(ctx context.Context) (string, error) {
		return "by a command on the host", s.o.Sandboxes.Kill(ctx, r.ID, sandbox.ReasonKilled)
	})
}

// AdminKillAll ends every sandbox of the installation; it tries all and joins the errors.
func (s *Service) AdminKillAll(ctx context.Context) (killed int, err error) {
	records, err := s.o.Sandboxes.Records(ctx, sandbox.Filter{})
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, r := range records {
		if err := s.AdminKill(ctx, string(r.ID)); err != nil {
			errs = append(errs, err)
			continue
		}
		killed++
	}
	return killed, errors.Join(errs...)
}

// host is the actor of commands on the host.
func host(workspaceID string) auth.Actor {
	return auth.Actor{Kind: auth.System, Name: "host", Workspace: auth.Workspace{ID: workspaceID}}
}
