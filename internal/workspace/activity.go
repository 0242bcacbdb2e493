package workspace

import (
	"context"
	"io"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/internal/webhook"
	"sandgate/sandbox"
)

// maxQuery bounds a text looked for in the record, in bytes.
const maxQuery = 200

// mayRead refuses who may not read the record: of the workspace with audit:read, of one sandbox with read or manage.
func (s *Service) mayRead(ctx context.Context, a auth.Actor, name, sandboxID string) error {
	needs := []auth.Permission{auth.AuditRead}
	if sandboxID != "" {
		needs = append(needs, auth.SandboxesRead, auth.SandboxesManage)
	}
	if err := s.may(ctx, a, approval.Action{Name: name, SandboxID: sandboxID}, needs...); err != nil {
		return err
	}
	if a.Workspace.ID == "" {
		return fault.New(fault.NotFound, "Workspace not found")
	}
	return nil
}

// ownFilter bounds a filter and holds it to the actor's workspace.
func ownFilter(a auth.Actor, f audit.Filter) (audit.Filter, error) {
	if len(f.Q) > maxQuery || len(f.Actor) > maxQuery || len(f.Action) > maxQuery || len(f.SandboxID) > maxQuery || len(f.Outcome) > maxQuery {
		return f, fault.New(fault.Invalid, "The filter is too long.")
	}
	f.WorkspaceID = a.Workspace.ID
	return f, nil
}

// Activity gives a page of the record: with audit:read of the workspace; without it needs read and a SandboxID in the filter.
func (s *Service) Activity(ctx context.Context, a auth.Actor, f audit.Filter) ([]audit.Event, error) {
	if err := s.mayRead(ctx, a, "audit.read", f.SandboxID); err != nil {
		return nil, err
	}
	f, err := ownFilter(a, f)
	if err != nil {
		return nil, err
	}
	return s.o.Audit.List(ctx, f)
}

// ExportActivity writes what a filter chooses in a format of package audit, and puts that on record before the first byte.
// Permissions as for Activity. A right that is lost ends it in the middle.
func (s *Service) ExportActivity(ctx context.Context, a auth.Actor, f audit.Filter, format string, w io.Writer) error {
	if err := s.mayRead(ctx, a, "audit.export", f.SandboxID); err != nil {
		return err
	}
	f, err := ownFilter(a, f)
	if err != nil {
		return err
	}
	if format != audit.NDJSON && format != audit.CSV {
		return fault.Field("format", "must be %s or %s", audit.NDJSON, audit.CSV)
	}
	need := auth.AuditRead
	if !a.May(need) {
		need = auth.SandboxesRead
		if !a.May(need) {
			need = auth.SandboxesManage
		}
	}
	what := approval.Action{Kind: approval.Other, Name: "audit.export", SandboxID: f.SandboxID, Target: format}
	return s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		guarded, release := s.Guard(ctx, a, need)
		defer release()
		err := s.o.Audit.Export(guarded, f, format, w)
		if err != nil && guarded.Err() != nil && ctx.Err() == nil {
			return "", context.Cause(guarded)
		}
		return "", err
	})
}

// ActivityEvent gives one event, and the copy of what its command printed where there is one (else nil). It needs audit:read,
// or read or manage where it is about a sandbox. Foreign and unknown ones are not found.
func (s *Service) ActivityEvent(ctx context.Context, a auth.Actor, seq int64) (audit.Event, *audit.Output, error) {
	if err := s.may(ctx, a, approval.Action{Name: "audit.read"}, auth.AuditRead, auth.SandboxesRead, auth.SandboxesManage); err != nil {
		return audit.Event{}, nil, err
	}
	notFound := fault.New(fault.NotFound, "Event not found")
	e, err := s.o.Audit.Event(ctx, seq)
	if err != nil && !fault.Is(err, fault.NotFound) {
		return audit.Event{}, nil, err
	}
	if err != nil || e.WorkspaceID != a.Workspace.ID || a.Workspace.ID == "" {
		return audit.Event{}, nil, notFound
	}
	if e.SandboxID == "" && !a.May(auth.AuditRead) {
		return audit.Event{}, nil, notFound
	}
	o, err := s.o.Audit.Output(ctx, e)
	switch {
	case fault.Is(err, fault.NotFound):
		return e, nil, nil
	case err != nil:
		return audit.Event{}, nil, err
	case !a.May(auth.AuditRead) && !a.May(auth.SandboxesRead):
		return e, nil, nil // manage looks at no output of commands
	}
	return e, &o, nil
}

// SandboxStory gives the record of a sandbox of the workspace, also of one that is gone. Needs audit:read, read or manage.
func (s *Service) SandboxStory(ctx context.Context, a auth.Actor, id string) (sandbox.Record, error) {
	if err := s.mayRead(ctx, a, "audit.read", id); err != nil {
		return sandbox.Record{}, err
	}
	if !sandbox.ID(id).Valid() || s.o.Sandboxes == nil {
		return sandbox.Record{}, errNotFound()
	}
	r, err := s.o.Sandboxes.Record(ctx, sandbox.ID(id))
	if fault.Is(err, fault.NotFound) || err == nil && r.WorkspaceID != a.Workspace.ID {
		return sandbox.Record{}, errNotFound()
	}
	return r, err
}

// RecordState is how the record of the whole installation is.
type RecordState struct {
	Head    audit.Head
	Verdict *audit.Verdict // of the last look at all of it; nil before the first
	Sizes   audit.Sizes
	Keeping audit.Keeping
	Told    *webhook.State // who is told of the head; nil: nobody
}

// RecordState tells how the record is. Needs audit:read.
func (s *Service) RecordState(ctx context.Context, a auth.Actor) (RecordState, error) {
	if err := s.mayRead(ctx, a, "audit.read", ""); err != nil {
		return RecordState{}, err
	}
	var out RecordState
	var err error
	if out.Head, err = s.o.Audit.Head(ctx); err != nil {
		return out, err
	}
	if out.Sizes, err = s.o.Audit.Sizes(ctx); err != nil {
		return out, err
	}
	out.Keeping = s.o.Audit.Keeping()
	if v, ok := s.o.Audit.LastVerdict(); ok {
		out.Verdict = &v
	}
	if t, ok := s.o.Hook.State(); ok {
		out.Told = &t
	}
	return out, nil
}

// RecordEnd gives the number of the last row of the record, by which one sees that something happened. Permissions as for
// ActivityEvent.
func (s *Service) RecordEnd(ctx context.Context, a auth.Actor) (int64, error) {
	if err := s.may(ctx, a, approval.Action{Name: "audit.read"}, auth.AuditRead, auth.SandboxesRead, auth.SandboxesManage); err != nil {
		return 0, err
	}
	h, err := s.o.Audit.Head(ctx)
	return h.Seq, err
}
