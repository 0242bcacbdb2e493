package workspace

import (
	"context"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
)

// maxQuery bounds a text looked for in the record, in bytes.
const maxQuery = 200

// Activity gives a page of the record: with audit:read of the workspace; without it needs read and a SandboxID in the filter.
func (s *Service) Activity(ctx context.Context, a auth.Actor, f audit.Filter) ([]audit.Event, error) {
	needs := []auth.Permission{auth.AuditRead}
	if f.SandboxID != "" {
		needs = append(needs, auth.SandboxesRead, auth.SandboxesManage)
	}
	if err := s.may(ctx, a, approval.Action{Name: "audit.read", SandboxID: f.SandboxID}, needs...); err != nil {
		return nil, err
	}
	if len(f.Q) > maxQuery || len(f.Actor) > maxQuery || len(f.Action) > maxQuery || len(f.SandboxID) > maxQuery {
		return nil, fault.New(fault.Invalid, "The filter is too long.")
	}
	if a.Workspace.ID == "" {
		return nil, fault.New(fault.NotFound, "Workspace not found")
	}
	f.WorkspaceID = a.Workspace.ID
	return s.o.Audit.List(ctx, f)
}
