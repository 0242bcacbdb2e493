package workspace

import (
	"context"
	"encoding/hex"
	"errors"
	"time"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/internal/webhook"
	"sandgate/sandbox"
	"sandgate/sandbox/idle"
)

// asking is how an action is put before a person, and how what was kept takes the place of what the caller sent.
type asking struct {
	record sandbox.Record
	// given writes what would be done into a request: Params, Env, Secrets and Blobs that are given, from the very values
	// that are executed.
	given func(r *approval.Request) error
	// found adds what is there inside: State, further Blobs, Unbound. nil: nothing.
	found func(ctx context.Context, r *approval.Request) error
	// take replaces the values that are executed by those of a kept request.
	take func(r *approval.Request) error
	// changed tells what is not any more as a kept request says; "": nothing. nil: it binds nothing inside.
	changed func(ctx context.Context, r *approval.Request) (string, error)
	let     bool // a grant lets it through that was approved before
	// paths gives what a write touches, resolved inside; below: and what is below those. nil: no paths.
	paths func(ctx context.Context) ([][]byte, error)
	below bool
	// taken is told that the request is claimed, and executed next. nil: nothing more.
	taken func(r *approval.Request)
	// granted gives what a used request gives beyond itself. nil: nothing.
	granted func() approval.Grant
}

// claimed is a yes that is used up by what happens next.
type claimed struct {
	id  string
	end func(err error)
}

// finish notes what became of it; none: nothing.
func (c *claimed) finish(err error) {
	if c != nil {
		c.end(err)
	}
}

// maxReason bounds what requesters and approvers may write, in characters.
const maxReason = 1000

// pass is the gate: it lets an action through, refuses it, or has a person asked. What was approved is claimed when it
// returns, and the values of q are those that were kept.
func (s *Service) pass(ctx context.Context, a auth.Actor, what *approval.Action, q *asking) (*claimed, error) {
	if q != nil {
		what.Image = q.record.Image
	}
	if q != nil && q.paths != nil {
		list, err := s.policies(ctx, a.Workspace.ID, a.KeyID, what.SandboxID)
		if err != nil {
			return nil, err
		}
		if approval.NeedsPaths(list) { // else nobody has to ask inside
			if what.Paths, err = q.paths(ctx); err != nil {
				return nil, err
			}
			what.Below = q.below
		}
	}
	err := s.o.Gate.Pass(ctx, a, *what)
	need, ask := errors.AsType[*approval.Ask](err)
	call := approval.CallOf(ctx)
	named := call.ID != "" && what.Kind != approval.Other
	switch {
	case err != nil && !ask:
		return nil, err
	case !ask && !named, q != nil && q.let:
		return nil, nil
	case q == nil || q.given == nil || s.o.Seal == nil:
		return nil, fault.New(fault.ApprovalDenied, "This needs an approval, and it cannot be asked for.").With("reason", "policy")
	case need == nil:
		need = &approval.Ask{} // the policy has changed since: the request that is named says so
	}
	rec, err := s.asked(ctx, a, *what, q, need, call)
	if err != nil {
		return nil, err
	}
	if rec, err = s.decided(ctx, a, rec, call.Wait); err != nil {
		return nil, err
	}
	return s.claim(ctx, a, what, q, rec)
}

// asked gives the request of a call: the one that it names, one of the same call that nobody waits for, or a new one.
func (s *Service) asked(ctx context.Context, a auth.Actor, what approval.Action, q *asking, need *approval.Ask, call approval.Call) (approval.Record, error) {
	r := &approval.Request{
		ID: sandbox.RandomID("ap"), Kind: what.Kind, Action: what.Name, WorkspaceID: a.Workspace.ID, SandboxID: what.SandboxID,
		Incarnation: q.record.Incarnation, Image: q.record.Image, Reason: call.Reason, Why: need.Why, Policy: need.Policy,
		Requester: approval.Requester{Kind: a.Kind, UserID: a.UserID, KeyID: a.KeyID, Name: a.Name, Owner: a.Owner, From: a.Address},
		CreatedAt: s.o.Now().UTC().Truncate(time.Microsecond),
	}
	if r.Requester.UserID == "" && r.Requester.KeyID == "" {
		return approval.Record{}, fault.New(fault.ApprovalDenied, "Nobody knows who asks.")
	}
	if msg := textProblem(call.Reason, maxReason); msg != "" {
		return approval.Record{}, fault.Field("reason", "%s", msg)
	}
	if err := q.given(r); err != nil {
		return approval.Record{}, err
	}
	asked := hex.EncodeToString(s.o.Seal.Digest(r.Asked()))
	if call.ID != "" {
		return s.named(ctx, a, call.ID, what, asked)
	}
	same, err := s.o.Store.Approvals(ctx, approval.Filter{WorkspaceID: a.Workspace.ID, SandboxID: what.SandboxID, Asked: asked, Limit: 10})
	if err != nil {
		return approval.Record{}, err
	}
	for _, rec := range same {
		if s.desk.alone(rec.ID) && s.live(rec) {
			return rec, nil
		}
	}
	if q.found != nil {
		if err := q.found(ctx, r); err != nil {
			return approval.Record{}, err
		}
	}
	if r.Before, err = s.before(ctx, a, what.SandboxID); err != nil {
		return approval.Record{}, err
	}
	return s.request(ctx, a, what, r, asked)
}

// named gives the request that a call names, if it is the caller's own and for the same.
func (s *Service) named(ctx context.Context, a auth.Actor, id string, what approval.Action, asked string) (approval.Record, error) {
	rec, err := s.o.Store.Approval(ctx, id)
	switch {
	case fault.Is(err, fault.NotFound) || err == nil && (rec.WorkspaceID != a.Workspace.ID || rec.UserID != a.UserID || rec.KeyID != a.KeyID):
		return rec, fault.Field("Approval-Id", "there is no such request of yours")
	case err != nil:
		return rec, err
	case rec.SandboxID != what.SandboxID || rec.Asked != asked:
		return rec, fault.New(fault.Conflict, "The approval %s is for something else: what it is for must be repeated exactly.", id).With("approval_id", id).With("reason", "different")
	}
	return rec, nil
}

// live reports whether a request can still become, or be, a yes.
func (s *Service) live(rec approval.Record) bool {
	now := s.o.Now()
	return rec.Status == approval.Pending && now.Before(rec.ExpiresAt) || rec.Status == approval.Approved && now.Before(rec.UseBy)
}

// pastEvents is how many events come before a request.
const pastEvents = 10

// before gives what the requester did in the sandbox last. The record has secrets masked.
func (s *Service) before(ctx context.Context, a auth.Actor, id string) ([]approval.Past, error) {
	events, err := s.o.Audit.List(ctx, audit.Filter{WorkspaceID: a.Workspace.ID, SandboxID: id, Actor: a.Name, Limit: pastEvents})
	if err != nil {
		return nil, err
	}
	out := []approval.Past{}
	for _, e := range events {
		out = append(out, approval.Past{Seq: e.Seq, At: e.At, Action: e.Action, Target: cut(e.Target, 200), Outcome: e.Outcome})
	}
	return out, nil
}

// cut shortens text to n bytes at a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xc0 == 0x80 {
		n--
	}
	return s[:n] + "…"
}

// request keeps a new one, on record, and tells whoever can decide.
func (s *Service) request(ctx context.Context, a auth.Actor, what approval.Action, r *approval.Request, asked string) (approval.Record, error) {
	text, err := r.Canonical()
	if err != nil {
		return approval.Record{}, err
	}
	rec := approval.Record{
		ID: r.ID, WorkspaceID: r.WorkspaceID, SandboxID: r.SandboxID, Kind: r.Kind, Status: approval.Pending,
		Digest: approval.Sum(text), Asked: asked, Sealed: s.o.Seal.Seal(text, r.ID), UserID: a.UserID, KeyID: a.KeyID,
		CreatedAt: r.CreatedAt, ExpiresAt: r.CreatedAt.Add(approval.DecideWithin),
	}
	var contents []approval.Content
	for _, b := range r.Blobs {
		rec.Bytes += b.Size
		contents = append(contents, approval.Content{Name: b.Name, Sealed: s.o.Seal.Seal(b.Data, r.ID+"/"+b.Name)})
	}
	hold, err := s.o.Sandboxes.Use(ctx, sandbox.ID(r.SandboxID), idle.Approval)
	if err != nil {
		return rec, err
	}
	// On record first: no request stands before an approver that the record does not know of.
	if err := s.noteApproval(ctx, a, rec, "approval.request", audit.OK, what.Name+": "+cut(what.Target, 500)); err != nil {
		hold()
		return rec, err
	}
	if err := s.o.Store.InsertApproval(ctx, rec, contents); err != nil {
		hold()
		return rec, err
	}
	s.desk.hold(rec, hold)
	s.approvalChanged(a, rec, "approval.request", what.Name)
	// Who and what kind, never what: the receiver may not be one who may see it.
	s.o.Hook.Send(webhook.Event{Type: "approval.requested", Until: rec.ExpiresAt, Data: map[string]string{
		"id": rec.ID, "workspace": a.Workspace.Name, "sandbox_id": rec.SandboxID, "action": what.Name, "requester": a.Name,
		"digest": rec.Digest, "expires_at": rec.ExpiresAt.UTC().Format(time.RFC3339),
	}})
	return rec, nil
}

// noteApproval puts an event about a request on record.
func (s *Service) noteApproval(ctx context.Context, a auth.Actor, rec approval.Record, action, outcome, detail string) error {
	e := event(a, approval.Action{Name: action, SandboxID: rec.SandboxID, Target: rec.ID, Digest: rec.Digest, ApprovalID: rec.ID}, outcome, detail)
	e.WorkspaceID = rec.WorkspaceID
	return s.o.Audit.Note(ctx, e)
}

// markWords are what recordings of a sandbox's terminals show of its requests, with the id after it: nothing that anybody wrote.
var markWords = map[string]string{
	"approval.request": "asked", "approval.approve": "approved", "approval.deny": "denied", "approval.use": "used",
	"approval.cancel": "taken back", "approval.expire": "expired", "approval.void": "void",
}

// approvalChanged tells pages, recordings, listeners, and whoever waits.
func (s *Service) approvalChanged(a auth.Actor, rec approval.Record, action, detail string) {
	s.desk.wake(rec.ID)
	if word, ok := markWords[action]; ok {
		s.MarkTerminals(sandbox.ID(rec.SandboxID), "", word+": "+rec.ID)
	}
	if rec.Status != approval.Pending && rec.Status != approval.Approved {
		s.desk.release(rec.ID)
	}
	s.feed.send(rec.WorkspaceID, Change{Kind: "approval", SandboxID: rec.SandboxID})
	s.feed.send(rec.WorkspaceID, Change{Kind: "sandbox", SandboxID: rec.SandboxID})
	s.events.send(rec.WorkspaceID, Event{
		Type: action, At: s.o.Now(), SandboxID: rec.SandboxID, Actor: a.Name, Target: rec.ID, Outcome: string(rec.Status), Detail: detail,
	})
}

// lookAgain is how often a call that waits reads its request though nobody told it to: another process may have decided.
const lookAgain = 2 * time.Second

// decided waits, at most so long, until a request is approved. Every other end is an error of its own.
func (s *Service) decided(ctx context.Context, a auth.Actor, rec approval.Record, wait time.Duration) (approval.Record, error) {
	changed, leave := s.desk.wait(rec.ID)
	defer func() { leave() }()
	timeout := time.NewTimer(min(wait, approval.MaxWait))
	defer timeout.Stop()
	for late := wait <= 0; ; {
		rec, err := s.o.Store.Approval(ctx, rec.ID)
		if err != nil {
			return rec, err
		}
		if rec.Status == approval.Approved && s.live(rec) {
			return rec, nil
		}
		if rec.Status != approval.Pending || !s.live(rec) {
			return rec, s.notApproved(rec)
		}
		if late {
			return rec, s.notApproved(rec)
		}
		again := time.NewTimer(lookAgain)
		select {
		case <-changed:
			leave()
			changed, leave = s.desk.wait(rec.ID)
		case <-again.C:
		case <-timeout.C:
			late = true
		case <-ctx.Done():
			again.Stop()
			return rec, context.Cause(ctx)
		}
		again.Stop()
	}
}

// notApproved is the error of a call whose request is no yes. Each status is told apart.
func (s *Service) notApproved(rec approval.Record) error {
	status := rec.Status
	if (status == approval.Pending || status == approval.Approved) && !s.live(rec) {
		status = approval.Expired
	}
	var e *fault.Error
	switch status {
	case approval.Pending:
		e = fault.New(fault.ApprovalNeeded, "This waits for approval. Repeat it with the header Approval-Id: %s once it is approved.", rec.ID).
			With("expires_at", rec.ExpiresAt.UTC().Format(time.RFC3339))
	case approval.Denied:
		e = fault.New(fault.ApprovalDenied, "%s denied this.", rec.Decision.By).With("reason", rec.Decision.Reason)
		if rec.Decision.Reason != "" {
			e.Public = rec.Decision.By + " denied this: " + rec.Decision.Reason
		}
	case approval.Used:
		e = fault.New(fault.Conflict, "The approval was used already: it is good for one time.").With("reason", "used").With("outcome", rec.Outcome)
	case approval.Expired:
		e = fault.New(fault.Conflict, "The request has expired; ask again.").With("reason", "expired")
	case approval.Cancelled:
		e = fault.New(fault.Conflict, "The request was cancelled.").With("reason", "cancelled")
	case approval.Void:
		e = fault.New(fault.Conflict, "The approval is void: %s. Ask again.", orWord(rec.Why, "what it was for has changed")).With("reason", "void")
	default:
		e = fault.New(fault.Conflict, "The request was decided meanwhile; look at it again.").With("reason", string(status))
	}
	return e.With("approval_id", rec.ID)
}

func orWord(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
