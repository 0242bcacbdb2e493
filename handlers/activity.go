package handlers

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/a-h/templ"

	"sandgate/auth"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/views"
	"sandgate/views/ui"
)

const (
	activityPerPage = 50
	maxActivityWord = 200
)

// activity is the record's page. Without audit:read one may see a single sandbox's story.
func (s *Server) activity(v *visit) error {
	f, q := activityFilter(v)
	if !v.actor.May(auth.AuditRead) && f.SandboxID == "" {
		return s.noActivity(v)
	}
	end, err := s.o.Service.RecordEnd(v.ctx(), v.actor) // before the list: what comes in between is new
	if err != nil {
		return err
	}
	rows, err := v.activityRows(f, q, 0)
	if err != nil {
		return err
	}
	p := views.Activity{
		Shell: v.shell("Activity", "activity"), Find: f.Q, Actions: actionChoices(f.Action), Outcomes: outcomeChoices(f.Outcome),
		Spans: v.spans(q), From: inputTime(q.Get("from"), f.From), To: inputTime(q.Get("to"), f.To), Narrowed: v.narrowed(f, q),
		Filtered: len(q) > 0, Rows: rows, Clear: v.base() + "/activity",
		NDJSON: v.activityURL("/export", q, "format", audit.NDJSON), CSV: v.activityURL("/export", q, "format", audit.CSV),
	}
	for _, name := range []string{"actor", "sandbox"} {
		if q.Has(name) {
			p.Hidden = append(p.Hidden, ui.Field{Name: name, Value: q.Get(name)})
		}
	}
	if v.actor.May(auth.AuditRead) {
		p.Record = v.base() + "/activity/record"
	}
	if f.BeforeSeq > 0 {
		p.Newest = v.activityURL("", q)
	} else {
		p.Events = v.activityURL("/live", q, "since", strconv.FormatInt(end, 10))
	}
	return v.render(http.StatusOK, p.Page())
}

// activityRows is a page of the list; events with a number above since are marked as new, 0 marks none.
func (v *visit) activityRows(f audit.Filter, q url.Values, since int64) (views.ActivityRows, error) {
	list, err := v.s.o.Service.Activity(v.ctx(), v.actor, f)
	if err != nil {
		return views.ActivityRows{}, err
	}
	p := views.ActivityRows{Filtered: len(q) > 0, Clear: v.base() + "/activity"}
	if len(list) == f.Limit {
		p.Older = v.activityURL("", q, "before", strconv.FormatInt(list[len(list)-1].Seq, 10))
	}
	for _, e := range list {
		r := v.event(e)
		r.ActorURL = v.activityURL("", q, "actor", e.Actor)
		if r.New = since > 0 && e.Seq > since; r.New {
			p.New++
		}
		p.Rows = append(p.Rows, r)
	}
	return p, nil
}

// activityEvents streams the first page whenever something came to the record.
func (s *Server) activityEvents(v *visit) error {
	f, q := activityFilter(v)
	if !v.actor.May(auth.AuditRead) && f.SandboxID == "" {
		return s.noActivity(v)
	}
	f.BeforeSeq = 0
	return v.tail(func(since int64) (string, templ.Component, error) {
		rows, err := v.activityRows(f, q, since)
		return "rows", rows.Table(), err
	})
}

// tail streams what show gives whenever something came to the record after the page was loaded, whose end the address says.
func (v *visit) tail(show func(since int64) (name string, what templ.Component, err error)) error {
	since, err := strconv.ParseInt(v.QueryParam("since"), 10, 64)
	if err != nil || since < 1 {
		since = 1 // of a record that had nothing in it
	}
	need := auth.AuditRead
	if !v.actor.May(need) {
		need = auth.SandboxesRead
	}
	seen := since // the page has what was there
	return v.streamFor(need, min(v.s.o.Tick, tailEvery), false, func(out *events) error {
		end, err := v.s.o.Service.RecordEnd(v.ctx(), v.actor)
		if err != nil {
			return err
		}
		if end == seen {
			return out.open()
		}
		name, what, err := show(since)
		if err != nil {
			return err
		}
		seen = end
		return out.fragment(name, what)
	})
}

// tailEvery is how often a page that is open asks whether the record has grown.
const tailEvery = 700 * time.Millisecond

// activityExport sends what the filter chooses as a file, as it is read.
func (s *Server) activityExport(v *visit) error {
	f, _ := activityFilter(v)
	if !v.actor.May(auth.AuditRead) && f.SandboxID == "" {
		return s.noActivity(v)
	}
	format, kind := v.QueryParam("format"), ""
	switch format {
	case audit.NDJSON:
		kind = "application/x-ndjson"
	case audit.CSV:
		kind = "text/csv; charset=utf-8; header=present"
	default:
		return fault.Field("format", "must be %s or %s", audit.NDJSON, audit.CSV)
	}
	h := v.Response().Header()
	attachment(h, []byte("activity-"+v.actor.Workspace.Slug+"-"+s.o.Now().UTC().Format("2006-01-02T150405Z")+"."+format))
	h.Set("Content-Type", kind)
	v.longAnswer()
	return s.o.Service.ExportActivity(v.ctx(), v.actor, f, format, v.Response())
}

// noActivity is the page for who may not read the record; the refusal itself is on it.
func (s *Server) noActivity(v *visit) error {
	if err := s.o.Service.Require(v.ctx(), v.actor, "audit.list", "", auth.AuditRead); err != nil {
		return err
	}
	return fault.New(fault.Forbidden, "Reading the activity of the whole workspace needs audit:read. That of one sandbox is on its own page.")
}

// activityFilter reads the address; kept are only the words that mean something, so that links stay short.
func activityFilter(v *visit) (audit.Filter, url.Values) {
	q := url.Values{}
	for _, name := range []string{"q", "action", "outcome", "actor", "sandbox", "from", "to"} {
		if value := strings.TrimSpace(v.QueryParam(name)); value != "" {
			q.Set(name, short(value, maxActivityWord-len("…")))
		}
	}
	f := audit.Filter{
		WorkspaceID: v.actor.Workspace.ID, Q: q.Get("q"), Action: q.Get("action"), Actor: q.Get("actor"), Outcome: q.Get("outcome"), Limit: activityPerPage,
	}
	if id := sandbox.ID(q.Get("sandbox")); id.Valid() {
		f.SandboxID = string(id)
	} else {
		q.Del("sandbox")
	}
	now := v.s.o.Now()
	for name, to := range map[string]*time.Time{"from": &f.From, "to": &f.To} {
		t, day := moment(q.Get(name), now)
		switch {
		case t.IsZero():
			q.Del(name)
		case day && name == "to":
			*to = t.Add(24 * time.Hour)
		default:
			*to = t
		}
	}
	f.BeforeSeq, _ = strconv.ParseInt(v.QueryParam("before"), 10, 64)
	return f, q
}

// spans are how far back one usually looks; the address says "24h", so that it means the same tomorrow.
var spans = []struct{ word, text string }{{"1h", "Last hour"}, {"24h", "24 hours"}, {"7d", "7 days"}, {"30d", "30 days"}}

// moment reads a time as an address has it: how long ago, a day (then day is true), a minute, or RFC 3339. UTC unless it
// says otherwise; zero for anything else.
func moment(text string, now time.Time) (t time.Time, day bool) {
	if n, ok := strings.CutSuffix(text, "d"); ok {
		if days, err := strconv.Atoi(n); err == nil && days > 0 && days < 10_000 {
			return now.Add(-time.Duration(days) * 24 * time.Hour), false
		}
	}
	if n, ok := strings.CutSuffix(text, "h"); ok {
		if hours, err := strconv.Atoi(n); err == nil && hours > 0 && hours < 100_000 {
			return now.Add(-time.Duration(hours) * time.Hour), false
		}
	}
	for _, layout := range []string{time.DateOnly, "2006-01-02T15:04", "2006-01-02T15:04:05", time.RFC3339} {
		if t, err := time.Parse(layout, text); err == nil && t.Year() > 1970 && t.Year() < 10_000 {
			return t.UTC(), layout == time.DateOnly
		}
	}
	return time.Time{}, false
}

// inputTime is a moment for an input; a span by its word is shown by its chip alone.
func inputTime(word string, t time.Time) string {
	if t.IsZero() || strings.HasSuffix(word, "h") || strings.HasSuffix(word, "d") {
		return ""
	}
	return t.Format("2006-01-02T15:04")
}

// activityURL is an address below the activity with a filter in it and some words changed.
func (v *visit) activityURL(below string, q url.Values, set ...string) string {
	out := url.Values{}
	for k := range q {
		out.Set(k, q.Get(k))
	}
	for i := 0; i+1 < len(set); i += 2 {
		if set[i+1] == "" {
			out.Del(set[i])
		} else {
			out.Set(set[i], set[i+1])
		}
	}
	at := v.base() + "/activity" + below
	if len(out) > 0 {
		at += "?" + out.Encode()
	}
	return at
}

func (v *visit) spans(q url.Values) []ui.Link {
	out := []ui.Link{{Text: "Any time", URL: v.activityURL("", q, "from", "", "to", ""), On: !q.Has("from") && !q.Has("to")}}
	for _, s := range spans {
		out = append(out, ui.Link{Text: s.text, URL: v.activityURL("", q, "from", s.word, "to", ""), On: q.Get("from") == s.word && !q.Has("to")})
	}
	return out
}

// narrowed names what the list is narrowed to and no input shows.
func (v *visit) narrowed(f audit.Filter, q url.Values) []ui.Link {
	var out []ui.Link
	if f.Actor != "" {
		out = append(out, ui.Link{Text: "by " + display(f.Actor), URL: v.activityURL("", q, "actor", "")})
	}
	if f.SandboxID != "" {
		out = append(out, ui.Link{Text: "in " + f.SandboxID, URL: v.activityURL("", q, "sandbox", "")})
	}
	return out
}

func actionChoices(chosen string) []ui.Choice {
	return choices(chosen, []ui.Choice{
		{Value: "", Text: "Every action"},
		{Value: "sandbox.", Text: "Sandboxes"},
		{Value: "command.", Text: "Commands"},
		{Value: "file.", Text: "Files"},
		{Value: "terminal.", Text: "Terminals"},
		{Value: "network.", Text: "Network"},
		{Value: "approval.", Text: "Approvals"},
		{Value: "snapshot.", Text: "Snapshots"},
		{Value: "session.", Text: "Sign-ins"},
		{Value: "member.", Text: "Members"},
		{Value: "key.", Text: "Keys"},
		{Value: "audit.", Text: "The record"},
	})
}

func outcomeChoices(chosen string) []ui.Choice {
	return choices(chosen, []ui.Choice{
		{Value: "", Text: "Every outcome"},
		{Value: audit.OK, Text: "Went well"},
		{Value: audit.Refused, Text: "Refused"},
		{Value: audit.Failed, Text: "Failed"},
		{Value: audit.Started, Text: "Running"},
		{Value: audit.Unknown, Text: "Unknown"},
	})
}

// choices marks the chosen one, which is added where it is none of them: links may be finer than the list.
func choices(chosen string, list []ui.Choice) []ui.Choice {
	i := slices.IndexFunc(list, func(c ui.Choice) bool { return c.Value == chosen })
	if i < 0 {
		return append(list, ui.Choice{Value: chosen, Text: display(chosen), Selected: true})
	}
	list[i].Selected = true
	return list
}
