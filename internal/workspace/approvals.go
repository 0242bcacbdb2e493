package workspace

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/effect"
	"sandgate/sandbox/idle"
)

// Approval is what is shown of a request: its record and what was asked for, with the sandbox's secrets masked.
type Approval struct {
	approval.Record
	Request approval.Request
	Mine    bool    // the actor asked, or may end it as its asker
	WhyNot  string  // why the actor cannot decide about it; "": they can
	Waiting bool    // a call waits for it, and goes on at once when it is approved
	Diff    string  // of a write of text over text, unified; "": none
	Effect  *Effect // what the command did in a copy; nil: it was not tried
	Trying  bool    // it is being tried
	Tryable bool
}

// ApprovalFilter chooses requests; zero values do not filter.
type ApprovalFilter struct {
	Status    approval.Status
	SandboxID string
	Cursor    string // id of the last one of the page before
	Limit     int    // 1..200; 0 is 50
}

var approvalReaders = []auth.Permission{auth.SandboxesRead, auth.ApprovalsDecide, auth.SandboxesManage}

func errNoApproval() error { return fault.New(fault.NotFound, "Approval not found") }

// Approvals lists requests of the workspace: pending ones oldest first, others newest first. more: there is a further page,
// after the last one. Needs read, manage or approvals:decide.
func (s *Service) Approvals(ctx context.Context, a auth.Actor, f ApprovalFilter) (list []Approval, more bool, err error) {
	if err := s.may(ctx, a, approval.Action{Name: "approval.list", SandboxID: f.SandboxID}, approvalReaders...); err != nil {
		return nil, false, err
	}
	if f.Limit == 0 {
		f.Limit = 50
	}
	f.Limit = min(max(f.Limit, 1), 200)
	records, err := s.o.Store.Approvals(ctx, approval.Filter{
		WorkspaceID: a.Workspace.ID, SandboxID: f.SandboxID, Status: f.Status, Before: f.Cursor, Limit: f.Limit + 1,
	})
	if err != nil {
		return nil, false, err
	}
	if more = len(records) > f.Limit; more {
		records = records[:f.Limit]
	}
	for _, rec := range records {
		v, err := s.shownApproval(ctx, a, rec)
		if err != nil {
			return nil, false, err
		}
		list = append(list, v)
	}
	return list, more, nil
}

// Approval gives one. Needs read, manage or approvals:decide. Foreign, unknown: fault.NotFound, the same body.
func (s *Service) Approval(ctx context.Context, a auth.Actor, id string) (Approval, error) {
	if err := s.may(ctx, a, approval.Action{Name: "approval.read"}, approvalReaders...); err != nil {
		return Approval{}, err
	}
	rec, err := s.locateApproval(ctx, a, id)
	if err != nil {
		return Approval{}, err
	}
	v, err := s.shownApproval(ctx, a, rec)
	if err == nil && v.Tryable {
		v.Effect, err = s.effectOf(ctx, rec)
	}
	if err == nil && rec.Kind == approval.Write {
		v.Diff, err = s.diffOf(ctx, rec, &v.Request)
	}
	return v, err
}

// maxDiffed bounds the texts that are compared, in bytes.
const maxDiffed = 256 << 10

// diffOf compares what would be written with what it replaces, where both are texts and are kept still.
func (s *Service) diffOf(ctx context.Context, rec approval.Record, r *approval.Request) (string, error) {
	var texts [2]string
	for i, name := range []string{approval.BlobOld, approval.BlobContent} {
		b := r.Blob(name)
		if b == nil || b.Size > maxDiffed {
			return "", nil
		}
		data, err := s.content(ctx, rec.ID, *b)
		if fault.Is(err, fault.NotFound) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		if !effect.IsText(data) {
			return "", nil
		}
		texts[i] = string(data)
	}
	return s.mask(ctx, rec.SandboxID).hide(effect.Unified(texts[0], texts[1])), nil
}

// ApprovalContent gives a content of a request by its blob's name, with secrets masked where masked says so: what is shown,
// not what is executed. Needs read, manage or approvals:decide.
func (s *Service) ApprovalContent(ctx context.Context, a auth.Actor, id, name string) (data []byte, err error) {
	if err := s.may(ctx, a, approval.Action{Name: "approval.read"}, approvalReaders...); err != nil {
		return nil, err
	}
	rec, err := s.locateApproval(ctx, a, id)
	if err != nil {
		return nil, err
	}
	r, err := s.openRequest(rec)
	if err != nil {
		return nil, err
	}
	b := r.Blob(name)
	if b == nil {
		return nil, fault.New(fault.NotFound, "Content not found")
	}
	if data, err = s.content(ctx, rec.ID, *b); err != nil {
		return nil, err
	}
	return []byte(s.mask(ctx, rec.SandboxID).hide(string(data))), nil
}

// PendingApprovals counts the requests that wait in the actor's workspace, by sandbox. Needs read, manage or approvals:decide.
func (s *Service) PendingApprovals(ctx context.Context, a auth.Actor) (map[string]int, error) {
	if err := s.may(ctx, a, approval.Action{Name: "approval.list"}, approvalReaders...); err != nil {
		return nil, err
	}
	return s.o.Store.CountPending(ctx, a.Workspace.ID)
}

func (s *Service) locateApproval(ctx context.Context, a auth.Actor, id string) (approval.Record, error) {
	if !approvalID.MatchString(id) {
		return approval.Record{}, errNoApproval()
	}
	rec, err := s.o.Store.Approval(ctx, id)
	if fault.Is(err, fault.NotFound) || err == nil && rec.WorkspaceID != a.Workspace.ID {
		return approval.Record{}, errNoApproval()
	}
	if (rec.Status == approval.Pending || rec.Status == approval.Approved) && err == nil && !s.live(rec) {
		rec.Status = approval.Expired // the sweep is about to say so
	}
	return rec, err
}

func (s *Service) shownApproval(ctx context.Context, a auth.Actor, rec approval.Record) (Approval, error) {
	r, err := s.openRequest(rec)
	if err != nil {
		return Approval{}, err
	}
	m := s.mask(ctx, rec.SandboxID)
	for _, pairs := range []map[string]string{r.Params, r.Env, r.State} {
		for k, v := range pairs {
			pairs[k] = m.hide(v)
		}
	}
	for i := range r.Blobs {
		r.Blobs[i].Path = m.hide(r.Blobs[i].Path)
	}
	for i := range r.Unbound {
		r.Unbound[i] = m.hide(r.Unbound[i])
	}
	r.Reason = m.hide(r.Reason)
	rec.Sealed = nil
	v := Approval{Record: rec, Request: *r, Mine: rec.UserID == a.UserID && rec.KeyID == a.KeyID, Waiting: !s.desk.alone(rec.ID)}
	v.WhyNot = whyNot(a, rec)
	v.Tryable, v.Trying = tryable(r), s.tries.under(rec.ID)
	return v, nil
}

// whyNot says why an actor cannot decide about a request. Nobody decides about their own, through whichever key, and no
// key that belongs to nobody decides at all.
func whyNot(a auth.Actor, rec approval.Record) string {
	switch {
	case !a.May(auth.ApprovalsDecide):
		return "needs the permission approvals:decide"
	case a.Kind == auth.System || a.UserID == "":
		return "a decision is a person's: this key belongs to nobody"
	case rec.UserID == "" && rec.KeyID == "":
		return "nobody knows who asked"
	case rec.UserID == a.UserID:
		return "nobody decides about their own request, through a key of theirs neither"
	}
	return ""
}

// mayDecide refuses who cannot decide about a request, on record.
func (s *Service) mayDecide(ctx context.Context, a auth.Actor, what approval.Action, id string) (approval.Record, error) {
	if err := s.may(ctx, a, what, auth.ApprovalsDecide); err != nil {
		return approval.Record{}, err
	}
	rec, err := s.locateApproval(ctx, a, id)
	if err != nil {
		return rec, err
	}
	if why := whyNot(a, rec); why != "" {
		what.Target, what.SandboxID, what.ApprovalID = rec.ID, rec.SandboxID, rec.ID
		err := fault.New(fault.Forbidden, "You cannot decide about this request: %s.", why)
		return rec, errors.Join(s.o.Audit.Note(ctx, event(a, what, audit.Refused, why)), err)
	}
	if rec.Status != approval.Pending {
		return rec, s.tooLate(rec)
	}
	return rec, nil
}

// tooLate is for who decides about what is decided.
func (s *Service) tooLate(rec approval.Record) error {
	words := map[approval.Status]string{
		approval.Approved: "was approved already", approval.Denied: "was denied already", approval.Used: "was approved and used already",
		approval.Expired: "has expired", approval.Cancelled: "was cancelled", approval.Void: "is void",
	}
	msg := "The request " + orWord(words[rec.Status], "was decided meanwhile")
	if rec.Decision.By != "" {
		msg += ", by " + rec.Decision.By
	}
	if rec.Why != "" {
		msg += ": " + rec.Why
	}
	return fault.New(fault.Conflict, "%s.", msg).With("reason", string(rec.Status)).With("approval_id", rec.ID)
}

// ApproveRequest says yes to exactly what the digest stands for; "" stands for what is kept. A call that waits for it goes
// on at once. Needs approvals:decide, from a person who did not ask. Decided already, expired, another digest, or what it
// is bound to has changed: fault.Conflict.
func (s *Service) ApproveRequest(ctx context.Context, a auth.Actor, id, digest string) (Approval, error) {
	what := approval.Action{Kind: approval.Other, Name: "approval.approve"}
	rec, err := s.mayDecide(ctx, a, what, id)
	if err != nil {
		return Approval{}, err
	}
	if digest != "" && digest != rec.Digest {
		return Approval{}, fault.New(fault.Conflict, "The digest is not that of the request: look at it again before you decide.").With("approval_id", rec.ID)
	}
	r, err := s.openRequest(rec)
	if err != nil {
		return Approval{}, err
	}
	asker := auth.Actor{Kind: r.Requester.Kind, UserID: r.Requester.UserID, KeyID: r.Requester.KeyID, Name: r.Requester.Name, Workspace: a.Workspace}
	why, err := s.voided(ctx, asker, rec, r)
	if err != nil {
		return Approval{}, err
	}
	if why != "" {
		return Approval{}, s.void(ctx, a, rec, why)
	}
	return s.decide(ctx, a, what, rec, approval.Approved, "")
}

// DenyRequest says no, with a reason that the requester reads. Needs approvals:decide, from a person who did not ask.
func (s *Service) DenyRequest(ctx context.Context, a auth.Actor, id, reason string) (Approval, error) {
	what := approval.Action{Kind: approval.Other, Name: "approval.deny"}
	rec, err := s.mayDecide(ctx, a, what, id)
	if err != nil {
		return Approval{}, err
	}
	if msg := textProblem(reason, maxReason); msg != "" {
		return Approval{}, fault.Field("reason", "%s", msg)
	}
	return s.decide(ctx, a, what, rec, approval.Denied, reason)
}

func (s *Service) decide(ctx context.Context, a auth.Actor, what approval.Action, rec approval.Record, to approval.Status, reason string) (Approval, error) {
	what.SandboxID, what.Target, what.Digest, what.ApprovalID = rec.SandboxID, rec.ID, rec.Digest, rec.ID
	err := s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		now := s.o.Now()
		d := approval.Decision{By: a.Name, UserID: a.UserID, KeyID: a.KeyID, At: now, Reason: reason}
		var useBy time.Time
		if to == approval.Approved {
			useBy = now.Add(approval.UseWithin)
		}
		ok, err := s.o.Store.DecideApproval(ctx, rec.ID, rec.Digest, to, d, useBy)
		if err == nil && !ok {
			if rec, err = s.o.Store.Approval(ctx, rec.ID); err == nil {
				err = s.tooLate(rec)
			}
		}
		return reason, err
	})
	if err != nil {
		return Approval{}, err
	}
	if rec, err = s.o.Store.Approval(ctx, rec.ID); err != nil {
		return Approval{}, err
	}
	s.approvalChanged(a, rec, what.Name, reason)
	return s.shownApproval(ctx, a, rec)
}

// CancelRequest takes back one's own request (needs run), approved or not.
func (s *Service) CancelRequest(ctx context.Context, a auth.Actor, id string) (Approval, error) {
	what := approval.Action{Kind: approval.Other, Name: "approval.cancel"}
	if err := s.may(ctx, a, what, auth.SandboxesRun); err != nil {
		return Approval{}, err
	}
	rec, err := s.locateApproval(ctx, a, id)
	if err != nil {
		return Approval{}, err
	}
	what.SandboxID, what.Target, what.Digest, what.ApprovalID = rec.SandboxID, rec.ID, rec.Digest, rec.ID
	if rec.KeyID != a.KeyID && (rec.UserID != a.UserID || a.Kind != auth.Person) || rec.UserID != a.UserID {
		err := fault.New(fault.Forbidden, "Only who asked can take a request back.")
		return Approval{}, errors.Join(s.o.Audit.Note(ctx, event(a, what, audit.Refused, "not the requester")), err)
	}
	if rec.Status != approval.Pending && rec.Status != approval.Approved {
		return Approval{}, s.tooLate(rec)
	}
	err = s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		ok, err := s.o.Store.EndApproval(ctx, rec.ID, approval.Cancelled, "the requester took it back")
		if err == nil && !ok {
			if rec, err = s.o.Store.Approval(ctx, rec.ID); err == nil {
				err = s.tooLate(rec)
			}
		}
		return "", err
	})
	if err != nil {
		return Approval{}, err
	}
	if rec, err = s.o.Store.Approval(ctx, rec.ID); err != nil {
		return Approval{}, err
	}
	s.approvalChanged(a, rec, what.Name, "")
	return s.shownApproval(ctx, a, rec)
}

// ---- the clock ----

const (
	approvalsEvery = 500 * time.Millisecond
	pruneEvery     = time.Hour
)

// SweepApprovals ends requests whose time is over, until ctx ends. Those that were open when the server stopped keep their
// sandboxes alive again.
func (s *Service) SweepApprovals(ctx context.Context) {
	if err := s.takeUpApprovals(ctx); err != nil && ctx.Err() == nil {
		s.o.Log.Error("take up requests for approval", "cause", err.Error())
	}
	tick := time.NewTicker(approvalsEvery)
	defer tick.Stop()
	var pruned time.Time
	for ctx.Err() == nil {
		if err := s.expireApprovals(ctx); err != nil && ctx.Err() == nil {
			s.o.Log.Error("expire requests for approval", "cause", err.Error())
		}
		if now := s.o.Now(); now.Sub(pruned).Abs() >= pruneEvery {
			pruned = now
			if err := s.o.Store.PruneApprovals(ctx, now); err != nil && ctx.Err() == nil {
				s.o.Log.Error("prune contents of requests", "cause", err.Error())
			}
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

func (s *Service) takeUpApprovals(ctx context.Context) error {
	open, err := s.o.Store.OpenApprovals(ctx)
	for _, rec := range open {
		if hold, herr := s.o.Sandboxes.Use(ctx, sandbox.ID(rec.SandboxID), idle.Approval); herr == nil {
			s.desk.hold(rec, hold)
		}
	}
	return err
}

func (s *Service) expireApprovals(ctx context.Context) error {
	ended, err := s.o.Store.ExpireApprovals(ctx, s.o.Now())
	for _, rec := range ended {
		a := system()
		a.Workspace.ID = rec.WorkspaceID
		err = errors.Join(err, s.noteApproval(ctx, a, rec, "approval.expire", audit.OK, rec.Why))
		s.approvalChanged(a, rec, "approval.expire", rec.Why)
	}
	return err
}

// voidOf ends what waits for a sandbox that is gone or was started anew.
func (s *Service) voidOf(box sandbox.Record) {
	ids := s.desk.of(string(box.ID))
	if len(ids) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), forgetLimit)
	defer cancel()
	a := system()
	a.Workspace.ID = box.WorkspaceID
	for _, id := range ids {
		err := s.voidIfChanged(ctx, a, id, box)
		if err != nil {
			s.o.Log.Error("void a request", "approval", id, "cause", err.Error())
		}
	}
}

func (s *Service) voidIfChanged(ctx context.Context, a auth.Actor, id string, box sandbox.Record) error {
	rec, err := s.o.Store.Approval(ctx, id)
	if err != nil {
		return err
	}
	r, err := s.openRequest(rec)
	if err != nil {
		return err
	}
	switch {
	case box.Status == sandbox.Gone || box.Status == sandbox.Failed:
		return s.endApproval(ctx, a, rec, approval.Void, "approval.void", "the sandbox is gone")
	case box.Incarnation != r.Incarnation:
		return s.endApproval(ctx, a, rec, approval.Void, "approval.void", fmt.Sprintf("the sandbox was started anew since (%d)", box.Incarnation))
	}
	return nil
}
