package api

import (
	"context"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
)

// Approvals reads and decides requests, and sets what is asked for.
type Approvals interface {
	Approvals(ctx context.Context, a auth.Actor, f workspace.ApprovalFilter) (list []workspace.Approval, more bool, err error)
	Approval(ctx context.Context, a auth.Actor, id string) (workspace.Approval, error)
	ApprovalContent(ctx context.Context, a auth.Actor, id, name string) ([]byte, error)
	ApproveRequest(ctx context.Context, a auth.Actor, id, digest string) (workspace.Approval, error)
	DenyRequest(ctx context.Context, a auth.Actor, id, reason string) (workspace.Approval, error)
	TryRequest(ctx context.Context, a auth.Actor, id string) (workspace.Approval, error)
	CancelRequest(ctx context.Context, a auth.Actor, id string) (workspace.Approval, error)
	Policy(ctx context.Context, a auth.Actor) (approval.Policy, error)
	SetPolicy(ctx context.Context, a auth.Actor, p approval.Policy) (approval.Policy, error)
	KeyPolicy(ctx context.Context, a auth.Actor, key string) (approval.Policy, error)
	SetKeyPolicy(ctx context.Context, a auth.Actor, key string, p approval.Policy) (approval.Policy, error)
}

// asksFor are the actions of calls that may have to be approved. They take the headers of such calls.
var asksFor = map[string]bool{
	"command.run": true, "command.stdin": true, "terminal.open": true, "sandbox.update": true,
	"file.write": true, "file.delete": true, "file.mkdir": true, "file.move": true, "file.copy": true, "file.chmod": true, "file.unpack": true,
}

const (
	approvalHeader = "Approval-Id"
	reasonHeader   = "Approval-Reason"
	passedKey      = "sandgate.passed"
	maxReason      = 1000 // characters
)

var approvalPattern = regexp.MustCompile(`^ap[a-z0-9]{20}$`)

// asking runs a call that may have to be approved: how its caller wants to be treated goes along with the request, and one
// that asked not to be kept waiting gets a 202.
func asking(run echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		call, async, err := readCall(c.Request())
		if err != nil {
			return err
		}
		ctx, passed := approval.WithCall(c.Request().Context(), call)
		c.SetRequest(c.Request().WithContext(ctx))
		c.Set(passedKey, passed)
		err = run(c)
		if async && fault.Is(err, fault.ApprovalNeeded) && !c.Response().Committed {
			_, body := describe(err)
			id, _ := body["approval_id"].(string)
			c.Response().Header().Set("Preference-Applied", "respond-async")
			return writeJSON(c, http.StatusAccepted, askedBody{id})
		}
		return err
	}
}

// askedBody is the answer to a call that did not want to wait.
type askedBody struct {
	ApprovalID string `json:"approval_id"`
}

// readCall takes the headers Approval-Id, Approval-Reason and Prefer (RFC 7240: wait=SECONDS, respond-async).
func readCall(r *http.Request) (call approval.Call, async bool, err error) {
	call = approval.Call{ID: r.Header.Get(approvalHeader), Reason: r.Header.Get(reasonHeader), Wait: approval.MaxWait}
	if call.ID != "" && !approvalPattern.MatchString(call.ID) {
		return call, false, fault.Field(approvalHeader, "is no id of an approval")
	}
	if !utf8.ValidString(call.Reason) || utf8.RuneCountInString(call.Reason) > maxReason {
		return call, false, fault.Field(reasonHeader, "may have up to %d characters of UTF-8", maxReason)
	}
	for _, v := range r.Header.Values("Prefer") {
		for _, p := range strings.FieldsFunc(v, func(c rune) bool { return c == ',' || c == ';' }) {
			name, value, _ := strings.Cut(strings.TrimSpace(p), "=")
			switch strings.ToLower(strings.TrimSpace(name)) {
			case "respond-async":
				async = true
			case "wait": // what cannot be read is ignored, as the RFC says of preferences
				if n, err := strconv.Atoi(strings.Trim(strings.TrimSpace(value), `"`)); err == nil && n >= 0 {
					call.Wait = min(time.Duration(min(n, 1000))*time.Second, approval.MaxWait)
				}
			}
		}
	}
	if async {
		call.Wait = 0
	}
	return call, async, nil
}

// passedOf is closed once the gate let the call through; nil for calls that never wait there.
func passedOf(c echo.Context) <-chan struct{} {
	ch, _ := c.Get(passedKey).(<-chan struct{})
	return ch
}

type requesterBody struct {
	Kind  string  `json:"kind" doc:"person or key."`
	Name  string  `json:"name"`
	Owner *string `json:"owner" doc:"E-mail of the person whose key it is; null for a service account."`
}

type blobBody struct {
	Name   string `json:"name" doc:"What …/contents/{name} gives."`
	Path   string `json:"path,omitempty"`
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
	Bound  bool   `json:"bound" doc:"It is what is executed or written."`
	// of scripts
	Compared bool `json:"compared" doc:"It is compared right before the command starts, which does not start if it is another."`
}

type asksCommandBody struct {
	Command    string            `json:"command"`
	Cwd        string            `json:"cwd"`
	User       string            `json:"user"`
	Env        map[string]string `json:"env" doc:"Secrets of the sandbox are masked."`
	Secrets    []string          `json:"secrets" doc:"Names of secrets that it gets beside."`
	Timeout    float64           `json:"timeout" doc:"Seconds; 0: none."`
	Background bool              `json:"background"`
	Stdin      *blobBody         `json:"stdin,omitempty"`
}

type asksWriteBody struct {
	Action      string  `json:"action" doc:"file.write, file.move, …"`
	Path        string  `json:"path" doc:"As it was resolved inside."`
	Asked       string  `json:"asked" doc:"As it was asked for."`
	Destination string  `json:"destination,omitempty"`
	Mode        string  `json:"mode,omitempty"`
	Recursive   bool    `json:"recursive,omitempty"`
	Size        int64   `json:"size"`
	OldDigest   *string `json:"old_digest" doc:"SHA-256 of what it replaces; null: nothing, or nothing that has one."`
	NewDigest   *string `json:"new_digest"`
	Diff        *string `json:"diff" doc:"Unified, of texts."`
}

type pastBody struct {
	At      string `json:"at"`
	Action  string `json:"action"`
	Target  string `json:"target"`
	Outcome string `json:"outcome"`
}

type decisionBody struct {
	By     string  `json:"by"`
	At     string  `json:"at"`
	Reason *string `json:"reason"`
}

type approvalRecordBody struct {
	ID         string            `json:"id"`
	Kind       string            `json:"kind"`
	Action     string            `json:"action"`
	Status     string            `json:"status" enum:"pending,approved,denied,expired,cancelled,used,void"`
	SandboxID  string            `json:"sandbox_id"`
	Requester  requesterBody     `json:"requester"`
	Reason     *string           `json:"reason" doc:"In the requester's words."`
	Why        string            `json:"why" doc:"Which policy asked."`
	CreatedAt  string            `json:"created_at"`
	ExpiresAt  string            `json:"expires_at" doc:"To be decided before."`
	UseBy      *string           `json:"use_by" doc:"Approved: to be used before."`
	Digest     string            `json:"digest" doc:"SHA-256 of everything that is decided about."`
	Command    *asksCommandBody  `json:"command,omitempty"`
	Write      *asksWriteBody    `json:"write,omitempty"`
	Details    map[string]string `json:"details,omitempty" doc:"Of other kinds: what would be done."`
	Contents   []blobBody        `json:"contents"`
	Compared   []string          `json:"compared" doc:"Scripts that the command names: compared right before it starts, which it does not if one is another."`
	Bound      []string          `json:"bound" doc:"Paths whose content is bound: the kept copy is what is used."`
	NotBound   []string          `json:"not_bound" doc:"What the decision does not cover, in words."`
	Before     []pastBody        `json:"before" doc:"What the requester did in the sandbox last."`
	Waiting    bool              `json:"waiting" doc:"A call waits for it, and goes on at once when it is approved."`
	Decision   *decisionBody     `json:"decision,omitempty"`
	UsedAt     *string           `json:"used_at"`
	Outcome    *string           `json:"outcome" doc:"Of a used one: ok, failed, refused, or unknown: the server ended before it was known."`
	EndedWhy   *string           `json:"ended_why" doc:"Of one that is expired, cancelled or void."`
	MayDecide  bool              `json:"may_decide" doc:"Whether this key may decide about it."`
	WhyNot     *string           `json:"why_not"`
	Effect     *effectBody       `json:"effect,omitempty" doc:"What the command did in a copy; absent: it was not tried."`
	GrantUntil *string           `json:"grant_until" doc:"Of a terminal: until when its requester may type in it."`
}

func toBlob(b approval.Blob) blobBody {
	return blobBody{b.Name, b.Path, b.SHA256, b.Size, b.Bound, b.Compared()}
}

func toApproval(v workspace.Approval) approvalRecordBody {
	r := v.Request
	b := approvalRecordBody{
		ID: v.ID, Kind: string(v.Kind), Action: r.Action, Status: string(v.Status), SandboxID: v.SandboxID,
		Requester: requesterBody{string(r.Requester.Kind), r.Requester.Name, orNull(r.Requester.Owner)},
		Reason:    orNull(r.Reason), Why: r.Why, CreatedAt: stamp(v.CreatedAt), ExpiresAt: stamp(v.ExpiresAt), UseBy: stampOrNull(v.UseBy),
		Digest: v.Digest, Contents: []blobBody{}, Bound: []string{}, Compared: []string{}, NotBound: r.Unbound, Before: []pastBody{}, Waiting: v.Waiting,
		UsedAt: stampOrNull(v.UsedAt), Outcome: orNull(v.Outcome), EndedWhy: orNull(v.Why), MayDecide: v.WhyNot == "", WhyNot: orNull(v.WhyNot),
		GrantUntil: stampOrNull(v.Grant.Until), Effect: toEffect(v.Effect),
	}
	if b.NotBound == nil {
		b.NotBound = []string{}
	}
	for _, p := range r.Before {
		b.Before = append(b.Before, pastBody{stamp(p.At), p.Action, p.Target, p.Outcome})
	}
	for _, blob := range r.Blobs {
		b.Contents = append(b.Contents, toBlob(blob))
		if blob.Bound && blob.Path != "" {
			b.Bound = append(b.Bound, blob.Path)
		}
		if blob.Compared() {
			b.Compared = append(b.Compared, blob.Path)
		}
	}
	if !v.Decision.At.IsZero() {
		b.Decision = &decisionBody{v.Decision.By, stamp(v.Decision.At), orNull(v.Decision.Reason)}
	}
	switch {
	case v.Kind == approval.Command && r.Action != "command.stdin":
		b.Command = toAsksCommand(r)
	case v.Kind == approval.Write:
		b.Write = toAsksWrite(v)
	default:
		b.Details = r.Params
	}
	return b
}

func toAsksCommand(r approval.Request) *asksCommandBody {
	ms, _ := strconv.ParseInt(r.Params["timeout_ms"], 10, 64)
	b := &asksCommandBody{
		Command: r.Params["command"], Cwd: r.Params["cwd"], User: r.Params["user"], Env: r.Env, Secrets: r.Secrets,
		Timeout: float64(ms) / 1000, Background: r.Params["background"] == "true",
	}
	if b.Env == nil {
		b.Env = map[string]string{}
	}
	if b.Secrets == nil {
		b.Secrets = []string{}
	}
	if stdin := r.Blob(approval.BlobStdin); stdin != nil {
		in := toBlob(*stdin)
		b.Stdin = &in
	}
	return b
}

func toAsksWrite(v workspace.Approval) *asksWriteBody {
	r := v.Request
	b := &asksWriteBody{
		Action: r.Action, Path: r.State["path"], Asked: r.Params["path"], Destination: r.Params["destination"], Mode: r.Params["mode"],
		Recursive: r.Params["recursive"] == "true", OldDigest: orNull(r.State["old_sha256"]), Diff: orNull(v.Diff),
	}
	if content := r.Blob(approval.BlobContent); content != nil {
		b.Size, b.NewDigest = content.Size, &content.SHA256
	}
	return b
}

type approvalsBody struct {
	Items  []approvalRecordBody `json:"items"`
	Cursor *string              `json:"cursor" doc:"Of the next page; null: this is the last."`
}

// listApprovals: GET /v1/approvals?status=&sandbox_id=&limit=&cursor=.
func (s *server) listApprovals(c echo.Context) error {
	limit, err := queryWhole(c, "limit", 1, 200, 50)
	if err != nil {
		return err
	}
	f := workspace.ApprovalFilter{Status: approval.Status(c.QueryParam("status")), SandboxID: c.QueryParam("sandbox_id"), Cursor: c.QueryParam("cursor"), Limit: limit}
	known := f.Status == ""
	for _, st := range approval.Statuses {
		known = known || f.Status == st
	}
	switch {
	case !known:
		return fault.Field("status", "must be one of pending, approved, denied, expired, cancelled, used, void")
	case f.Cursor != "" && !approvalPattern.MatchString(f.Cursor):
		return fault.Field("cursor", "must be one that an earlier answer gave")
	case f.SandboxID != "" && !sandbox.ID(f.SandboxID).Valid():
		return fault.Field("sandbox_id", "is no id of a sandbox")
	}
	list, more, err := s.svc.Approvals(c.Request().Context(), actor(c), f)
	if err != nil {
		return err
	}
	out := approvalsBody{Items: make([]approvalRecordBody, 0, len(list))}
	for _, v := range list {
		out.Items = append(out.Items, toApproval(v))
	}
	if more {
		out.Cursor = &list[len(list)-1].ID
	}
	return writeJSON(c, http.StatusOK, out)
}

// getApproval: GET /v1/approvals/{approval}.
func (s *server) getApproval(c echo.Context) error {
	return answerApproval(c)(s.svc.Approval(c.Request().Context(), actor(c), c.Param("approval")))
}

func answerApproval(c echo.Context) func(workspace.Approval, error) error {
	return func(v workspace.Approval, err error) error {
		if err != nil {
			return err
		}
		return writeJSON(c, http.StatusOK, toApproval(v))
	}
}

// approvalContent: GET /v1/approvals/{approval}/contents/{name}.
func (s *server) approvalContent(c echo.Context) error {
	data, err := s.svc.ApprovalContent(c.Request().Context(), actor(c), c.Param("approval"), c.Param("name"))
	if err != nil {
		return err
	}
	safeHeaders(c.Response().Header(), c.Param("name"))
	c.Response().WriteHeader(http.StatusOK)
	_, err = c.Response().Write(data)
	return err
}

// approve: POST /v1/approvals/{approval}/approve {"digest"}.
func (s *server) approve(c echo.Context) error {
	o, err := readObject(c, smallBody)
	if err != nil {
		return err
	}
	digest := o.word("digest", 64)
	if err := o.check(); err != nil {
		return err
	}
	return answerApproval(c)(s.svc.ApproveRequest(c.Request().Context(), actor(c), c.Param("approval"), digest))
}

// deny: POST /v1/approvals/{approval}/deny {"reason"}.
func (s *server) deny(c echo.Context) error {
	o, err := readObject(c, smallBody)
	if err != nil {
		return err
	}
	reason := o.line("reason", maxReason)
	if err := o.check(); err != nil {
		return err
	}
	return answerApproval(c)(s.svc.DenyRequest(c.Request().Context(), actor(c), c.Param("approval"), reason))
}

// cancelApproval: POST /v1/approvals/{approval}/cancel.
func (s *server) cancelApproval(c echo.Context) error {
	return answerApproval(c)(s.svc.CancelRequest(c.Request().Context(), actor(c), c.Param("approval")))
}
