package handlers

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"sandgate/auth"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/views"
	"sandgate/views/ui"
)

const activityPerPage = 100

// activity is the record's page. Without audit:read one may see a single sandbox's story.
func (s *Server) activity(v *visit) error {
	f, q := activityFilter(v)
	if !v.actor.May(auth.AuditRead) && f.SandboxID == "" {
		return s.noActivity(v)
	}
	list, err := s.o.Service.Activity(v.ctx(), v.actor, f)
	if err != nil {
		return err
	}
	p := views.Activity{
		Shell: v.shell("Activity", "activity"), Find: f.Q, Action: f.Action, Actor: f.Actor, ActorShown: display(f.Actor), SandboxID: f.SandboxID,
		From: q.Get("from"), To: q.Get("to"), Filtered: len(q) > 0, Actions: actionChoices(f.Action), Clear: v.base() + "/activity",
	}
	more := len(list) == f.Limit
	if more {
		older := url.Values{}
		for k := range q {
			older.Set(k, q.Get(k))
		}
		older.Set("before", strconv.FormatInt(list[len(list)-1].Seq, 10))
		p.Older = v.base() + "/activity?" + older.Encode()
	}
	for _, e := range withoutIntents(list) {
		p.Rows = append(p.Rows, v.event(e))
	}
	return v.render(http.StatusOK, p.Page())
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
	for _, name := range []string{"q", "action", "actor", "sandbox", "from", "to"} {
		if value := strings.TrimSpace(v.QueryParam(name)); value != "" && len(value) <= 300 {
			q.Set(name, value)
		}
	}
	f := audit.Filter{WorkspaceID: v.actor.Workspace.ID, Q: q.Get("q"), Action: q.Get("action"), Actor: q.Get("actor"), Limit: activityPerPage}
	if id := sandbox.ID(q.Get("sandbox")); id.Valid() {
		f.SandboxID = string(id)
	} else {
		q.Del("sandbox")
	}
	if t, err := time.Parse(time.DateOnly, q.Get("from")); err == nil {
		f.From = t
	} else {
		q.Del("from")
	}
	if t, err := time.Parse(time.DateOnly, q.Get("to")); err == nil {
		f.To = t.Add(24 * time.Hour)
	} else {
		q.Del("to")
	}
	f.BeforeSeq, _ = strconv.ParseInt(v.QueryParam("before"), 10, 64)
	return f, q
}

// withoutIntents leaves out the first of the two lines of a change whose outcome is in the list as well. An intent without
// its outcome stays: that is what one looks for after a crash.
func withoutIntents(list []audit.Event) []audit.Event {
	done := map[int64]bool{}
	for _, e := range list {
		if e.IntentSeq != 0 {
			done[e.IntentSeq] = true
		}
	}
	var out []audit.Event
	for _, e := range list {
		if !done[e.Seq] {
			out = append(out, e)
		}
	}
	return out
}

func actionChoices(chosen string) []ui.Choice {
	out := []ui.Choice{{Value: "", Text: "Every action"}}
	found := chosen == ""
	for _, c := range []ui.Choice{
		{Value: "sandbox.", Text: "Sandboxes"},
		{Value: "command.", Text: "Commands"},
		{Value: "file.", Text: "Files"},
		{Value: "terminal.", Text: "Terminals"},
		{Value: "session.", Text: "Sign-ins"},
		{Value: "member.", Text: "Members"},
		{Value: "key.", Text: "Keys"},
	} {
		c.Selected = c.Value == chosen
		found = found || c.Selected
		out = append(out, c)
	}
	if !found {
		out = append(out, ui.Choice{Value: chosen, Text: display(chosen), Selected: true})
	}
	return out
}

func (v *visit) event(e audit.Event) views.ActivityRow {
	r := views.ActivityRow{
		Seq: strconv.FormatInt(e.Seq, 10), At: v.s.clock(e.At), Actor: display(e.Actor), Action: display(e.Action), Target: display(short(e.Target, 400)),
		Outcome: outcome(e.Outcome), Address: display(e.Address), Detail: display(short(e.Detail, 400)), RequestID: e.RequestID,
	}
	if e.ActorKind == auth.KeyUser {
		r.Actor = "key " + r.Actor
	}
	if sandbox.ID(e.SandboxID).Valid() {
		r.Sandbox, r.SandboxURL = e.SandboxID[:8]+"…", v.base()+"/sandboxes/"+e.SandboxID
	}
	if e.Duration > 0 {
		r.Duration = took(e.Duration)
	}
	return r
}

func outcome(word string) ui.State {
	tones := map[string]ui.Tone{"ok": ui.Ok, "refused": ui.Warn, "failed": ui.Bad}
	return ui.State{Text: display(word), Tone: tones[word]}
}

func took(seconds float64) string {
	switch {
	case seconds < 1:
		return strconv.Itoa(int(seconds*1000)) + " ms"
	case seconds < 60:
		return strconv.FormatFloat(seconds, 'f', 1, 64) + " s"
	default:
		return time.Duration(seconds * float64(time.Second)).Round(time.Second).String()
	}
}
