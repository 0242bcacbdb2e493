package workspace

import (
	"context"
	"errors"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/idle"
)

// openRequest reads a kept request: what was sealed, and digests to what was decided about.
func (s *Service) openRequest(rec approval.Record) (*approval.Request, error) {
	text, err := s.o.Seal.Open(rec.Sealed, rec.ID)
	if err != nil {
		return nil, fault.Wrap(err, fault.Conflict, "The request cannot be read: sealing.key is not the one that it was sealed with.")
	}
	if approval.Sum(text) != rec.Digest {
		return nil, fault.New(fault.Conflict, "The kept request is not what its digest says.")
	}
	r, err := approval.ReadRequest(text)
	if err != nil {
		return nil, err
	}
	if r.ID != rec.ID || r.SandboxID != rec.SandboxID || r.WorkspaceID != rec.WorkspaceID || r.Kind != rec.Kind ||
		r.Requester.UserID != rec.UserID || r.Requester.KeyID != rec.KeyID {
		return nil, fault.New(fault.Conflict, "The kept request is another one than its record says.")
	}
	return r, nil
}

// content reads a kept content, which is what its digest says.
func (s *Service) content(ctx context.Context, id string, b approval.Blob) ([]byte, error) {
	sealed, err := s.o.Store.ApprovalContent(ctx, id, b.Name)
	if err != nil {
		return nil, err
	}
	data, err := s.o.Seal.Open(sealed, id+"/"+b.Name)
	if err != nil {
		return nil, fault.Wrap(err, fault.Conflict, "The content of the request cannot be read.")
	}
	if approval.Sum(data) != b.SHA256 || int64(len(data)) != b.Size {
		return nil, fault.New(fault.Conflict, "The kept content is not what its digest says.")
	}
	return data, nil
}

// claim uses an approved request up: it reads what was kept again, takes it in place of what the caller sent, sees that
// it digests to what was approved and that nothing it was bound to has changed, and moves the row, all before anything
// is executed. From there on it never runs again, whatever happens.
func (s *Service) claim(ctx context.Context, a auth.Actor, what *approval.Action, q *asking, rec approval.Record) (*claimed, error) {
	rec, err := s.o.Store.Approval(ctx, rec.ID)
	if err != nil {
		return nil, err
	}
	if rec.Status != approval.Approved || !s.live(rec) {
		return nil, s.notApproved(rec)
	}
	r, err := s.openRequest(rec)
	if err != nil {
		return nil, err
	}
	why, err := s.voided(ctx, a, rec, r)
	if why == "" && err == nil && q.changed != nil {
		why, err = q.changed(ctx, r)
	}
	if err != nil {
		return nil, err
	}
	if why != "" {
		return nil, s.void(ctx, a, rec, why)
	}
	for i := range r.Blobs {
		if b := &r.Blobs[i]; b.Given || b.Bound {
			if b.Data, err = s.content(ctx, rec.ID, *b); err != nil {
				return nil, err
			}
		}
	}
	if err := q.take(r); err != nil {
		return nil, err
	}
	if same, err := sameAs(q, r, rec.Digest); err != nil || !same {
		return nil, errors.Join(err, s.void(ctx, a, rec, "what would be executed is not what was approved"))
	}
	ok, err := s.o.Store.ClaimApproval(ctx, rec.ID, rec.Digest, s.o.Now())
	if err != nil {
		return nil, err
	}
	if !ok {
		if rec, err = s.o.Store.Approval(ctx, rec.ID); err != nil {
			return nil, err
		}
		return nil, s.notApproved(rec)
	}
	rec.Status = approval.Used
	if q.taken != nil {
		q.taken(r)
	}
	what.ApprovalID = rec.ID
	hold, herr := s.o.Sandboxes.Use(ctx, sandbox.ID(rec.SandboxID), idle.Call)
	if herr != nil {
		hold = func() {}
	}
	s.approvalChanged(a, rec, "approval.use", "")
	c := &claimed{id: rec.ID}
	c.end = func(err error) {
		defer hold()
		outcome, g := audit.OutcomeOf(err), approval.Grant{}
		if err == nil && q.granted != nil {
			g = q.granted()
		}
		if ferr := s.o.Store.FinishApproval(context.WithoutCancel(ctx), rec.ID, outcome, g); ferr != nil {
			s.o.Log.Error("note what became of an approval", "approval", rec.ID, "cause", ferr.Error())
		}
		s.feed.send(rec.WorkspaceID, Change{Kind: "approval", SandboxID: rec.SandboxID})
	}
	if err := s.noteApproval(ctx, a, rec, "approval.use", audit.OK, what.Name); err != nil {
		c.end(err)
		return nil, err
	}
	return c, nil
}

// sameAs writes the request again from the values that are about to be executed.
func sameAs(q *asking, kept *approval.Request, digest string) (bool, error) {
	again := *kept
	again.Params, again.Env, again.Secrets, again.Blobs = nil, nil, nil, nil
	if err := q.given(&again); err != nil {
		return false, err
	}
	for _, b := range kept.Blobs {
		if b.Bound && !b.Given {
			b = withData(b)
		}
		if !b.Given {
			again.Blobs = append(again.Blobs, b)
		}
	}
	d, err := again.Digest()
	return d == digest, err
}

// withData digests the data of a blob again.
func withData(b approval.Blob) approval.Blob {
	n := approval.NewBlob(b.Name, b.Data, b.Given, b.Bound)
	n.Path = b.Path
	return n
}

// voided tells what a request was bound to and is not any more, apart from what is inside of the sandbox; "": nothing.
func (s *Service) voided(ctx context.Context, a auth.Actor, rec approval.Record, r *approval.Request) (string, error) {
	box, err := s.o.Sandboxes.Record(ctx, sandbox.ID(rec.SandboxID))
	switch {
	case fault.Is(err, fault.NotFound) || err == nil && (box.Status == sandbox.Gone || box.Status == sandbox.Failed):
		return "the sandbox is gone", nil
	case err != nil:
		return "", err
	case box.Incarnation != r.Incarnation:
		return "the sandbox was started anew since", nil
	case box.Image != r.Image:
		return "the sandbox has another image", nil
	}
	policy, err := s.policyDigest(ctx, rec.WorkspaceID, rec.KeyID, rec.SandboxID)
	if err != nil {
		return "", err
	}
	if policy != r.Policy {
		return "the policy has changed since", nil
	}
	if why, err := s.lost(ctx, a, auth.SandboxesRun, "the requester may not run code here any more"); why != "" || err != nil {
		return why, err
	}
	if rec.Status == approval.Approved {
		by := auth.Actor{Kind: auth.Person, UserID: rec.Decision.UserID, Workspace: a.Workspace}
		if rec.Decision.KeyID != "" {
			by.Kind, by.KeyID = auth.KeyUser, rec.Decision.KeyID
		}
		return s.lost(ctx, by, auth.ApprovalsDecide, "who approved it may not decide any more")
	}
	return "", nil
}

// lost gives why where somebody has a permission no more.
func (s *Service) lost(ctx context.Context, a auth.Actor, p auth.Permission, why string) (string, error) {
	_, err := s.still(ctx, a, p)
	switch fault.KindOf(err) {
	case "":
		return "", nil
	case fault.Internal:
		return "", err
	}
	return why, nil
}

// void ends a request because of what changed, on record, and gives the error for its caller.
func (s *Service) void(ctx context.Context, a auth.Actor, rec approval.Record, why string) error {
	return errors.Join(s.endApproval(ctx, a, rec, approval.Void, "approval.void", why), s.notApproved(approval.Record{ID: rec.ID, Status: approval.Void, Why: why}))
}

// endApproval makes an open request final. One that is final already stays.
func (s *Service) endApproval(ctx context.Context, a auth.Actor, rec approval.Record, to approval.Status, action, why string) error {
	if err := s.noteApproval(ctx, a, rec, action, audit.OK, why); err != nil {
		return err
	}
	ended, err := s.o.Store.EndApproval(ctx, rec.ID, to, why)
	if err != nil || !ended {
		return err
	}
	rec.Status, rec.Why = to, why
	s.approvalChanged(a, rec, action, why)
	return nil
}
