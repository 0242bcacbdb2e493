package api

import (
	"net/http"
	"regexp"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/sandbox"
)

// auditBody is a page of the record.
type auditBody struct {
	Items  []auditItem `json:"items"`
	Cursor *string     `json:"cursor" doc:"Asks for the next page, of older events; null on the last."`
}

// auditItem is one event: what began, with how it ended.
type auditItem struct {
	Seq          int64    `json:"seq" doc:"Its number in the record of the whole installation."`
	At           string   `json:"at" doc:"When it began."`
	EndedAt      *string  `json:"ended_at"`
	Actor        string   `json:"actor" doc:"A person's e-mail, a key's name, or system."`
	ActorKind    string   `json:"actor_kind"`
	Owner        *string  `json:"owner" doc:"Whose key it is."`
	Address      *string  `json:"address"`
	SandboxID    *string  `json:"sandbox_id"`
	Action       string   `json:"action" doc:"noun.verb, such as command.run."`
	Target       *string  `json:"target" doc:"The command, the path, …; secrets are hidden. Texts may come from inside a sandbox."`
	Outcome      string   `json:"outcome" doc:"ok, refused, failed; started while it goes on; unknown where the server ended before it did."`
	Duration     *float64 `json:"duration" doc:"Seconds."`
	Digest       *string  `json:"digest" doc:"SHA-256 of what was asked for."`
	OldDigest    *string  `json:"old_digest" doc:"Of a write, or a deletion of a file: SHA-256 of the file before; none, large or unreadable where there is none."`
	NewDigest    *string  `json:"new_digest" doc:"Of a write: SHA-256 of the file after."`
	OutputDigest *string  `json:"output_digest" doc:"Of the copy of a command's output that is kept."`
	ApprovalID   *string  `json:"approval_id"`
	RequestID    *string  `json:"request_id"`
	Detail       *string  `json:"detail"`
}

func toAudit(e audit.Event) auditItem {
	b := auditItem{
		Seq: e.Seq, At: stamp(e.At), EndedAt: stampOrNull(e.Ended), Actor: e.Actor, ActorKind: string(e.ActorKind), Owner: orNull(e.Owner),
		Address: orNull(e.Address), SandboxID: orNull(e.SandboxID), Action: e.Action, Target: orNull(e.Target), Outcome: e.Outcome,
		Digest: orNull(e.Digest), OldDigest: orNull(e.OldDigest), NewDigest: orNull(e.NewDigest), OutputDigest: orNull(e.OutputDigest),
		ApprovalID: orNull(e.ApprovalID), RequestID: orNull(e.RequestID), Detail: orNull(e.Detail),
	}
	if e.EndSeq > e.Seq {
		b.Duration = &e.Duration
	}
	return b
}

const maxAuditWord = 200 // bytes of a text in a filter

var auditCursor = regexp.MustCompile(`^[1-9]\d{0,17}$`)

// listAudit: GET /v1/audit?from&to&actor&action&outcome&sandbox_id&q&limit&cursor.
func (s *server) listAudit(c echo.Context) error {
	f := audit.Filter{
		Actor: c.QueryParam("actor"), Action: c.QueryParam("action"), Outcome: c.QueryParam("outcome"), SandboxID: c.QueryParam("sandbox_id"), Q: c.QueryParam("q"),
	}
	for name, text := range map[string]string{"actor": f.Actor, "action": f.Action, "outcome": f.Outcome, "q": f.Q} {
		if len(text) > maxAuditWord {
			return fault.Field(name, "is longer than %d bytes", maxAuditWord)
		}
	}
	if f.SandboxID != "" && !sandbox.ID(f.SandboxID).Valid() {
		return fault.Field("sandbox_id", "is no id of a sandbox")
	}
	for name, to := range map[string]*time.Time{"from": &f.From, "to": &f.To} {
		text := c.QueryParam(name)
		if text == "" {
			continue
		}
		t, err := time.Parse(time.RFC3339Nano, text)
		if err != nil || t.Year() < 1970 || t.Year() > 9999 {
			return fault.Field(name, "must be a time as RFC 3339 writes it")
		}
		*to = t
	}
	var err error
	if f.Limit, err = queryWhole(c, "limit", 1, 500, 100); err != nil {
		return err
	}
	if cursor := c.QueryParam("cursor"); cursor != "" {
		if !auditCursor.MatchString(cursor) {
			return fault.Field("cursor", "must be one that an earlier answer gave")
		}
		f.BeforeSeq, _ = strconv.ParseInt(cursor, 10, 64) // 18 digits fit
	}
	list, err := s.svc.Activity(c.Request().Context(), actor(c), f)
	if err != nil {
		return err
	}
	page := auditBody{Items: make([]auditItem, 0, len(list))}
	for _, e := range list {
		page.Items = append(page.Items, toAudit(e))
	}
	if len(list) == f.Limit {
		next := strconv.FormatInt(list[len(list)-1].Seq, 10)
		page.Cursor = &next
	}
	return writeJSON(c, http.StatusOK, page)
}
