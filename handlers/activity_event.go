package handlers

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/a-h/templ"

	"sandgate/auth"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
	"sandgate/views"
	"sandgate/views/ui"
)

const shownInRow = 400 // bytes of a text that a line of the list shows

// event is a line of the list.
func (v *visit) event(e audit.Event) views.ActivityRow {
	r := views.ActivityRow{
		Seq: strconv.FormatInt(e.Seq, 10), URL: v.eventURL(e.Seq), At: v.s.clock(e.At), Actor: actorWords(e), Owner: display(e.Owner),
		Action: display(e.Action), Target: display(short(e.Target, shownInRow)),
		Outcome: outcome(e.Outcome), Address: display(e.Address), Detail: display(short(e.Detail, shownInRow)),
	}
	if sandbox.ID(e.SandboxID).Valid() {
		r.Sandbox, r.SandboxURL = e.SandboxID[:8]+"…", v.storyURL(e.SandboxID)
	}
	if e.Duration > 0 {
		r.Duration = took(e.Duration)
	}
	return r
}

func (v *visit) eventURL(seq int64) string {
	return v.base() + "/activity/" + strconv.FormatInt(seq, 10)
}

func (v *visit) storyURL(id string) string { return v.base() + "/activity/sandboxes/" + id }

func actorWords(e audit.Event) string {
	if e.ActorKind == auth.KeyUser {
		return "key " + display(e.Actor)
	}
	return display(e.Actor)
}

// outcome shows how an event ended. What has no outcome is running: what an ended server left behind is unknown.
func outcome(word string) ui.State {
	if word == audit.Started {
		return ui.State{Text: "running", Tone: ui.Ok, Busy: true}
	}
	tones := map[string]ui.Tone{audit.OK: ui.Ok, audit.Refused: ui.Warn, audit.Failed: ui.Bad, audit.Unknown: ui.Warn}
	return ui.State{Text: display(word), Tone: tones[word]}
}

func took(seconds float64) string {
	switch {
	case seconds < 0.001:
		return "< 1 ms"
	case seconds < 1:
		return strconv.Itoa(int(seconds*1000)) + " ms"
	case seconds < 60:
		return strconv.FormatFloat(seconds, 'f', 1, 64) + " s"
	default:
		return time.Duration(seconds * float64(time.Second)).Round(time.Second).String()
	}
}

// activityEvent is the page of one event, which its address names for good.
func (s *Server) activityEvent(v *visit) error {
	seq, err := strconv.ParseInt(v.Param("event"), 10, 64)
	if err != nil || seq < 1 {
		return fault.New(fault.NotFound, "Event not found")
	}
	e, printed, err := s.o.Service.ActivityEvent(v.ctx(), v.actor, seq)
	if err != nil {
		return err
	}
	p := views.ActivityEvent{
		Shell: v.shell(fmt.Sprintf("Event %d", e.Seq), "activity"), Row: v.event(e), Target: escapeHidden(e.Target), Facts: v.eventFacts(e), Digests: digests(e),
	}
	p.Row.Detail = display(e.Detail)
	switch {
	case printed != nil:
		p.Output = &views.Output{Stdout: escapeHidden(string(printed.Stdout)), Stderr: escapeHidden(string(printed.Stderr)), About: printedWords(*printed)}
	case e.OutputDigest != "":
		p.NoCopy = "What it printed is not kept any more, or not for you to see; its digest stays."
	}
	p.Links = v.eventLinks(e)
	return v.render(http.StatusOK, p.Page())
}

func printedWords(o audit.Output) string {
	words := "All of it"
	if kept := int64(len(o.Stdout) + len(o.Stderr)); o.Cut {
		words = fmt.Sprintf("The first %s of %s or more", size(kept), size(max(kept, o.StdoutTotal+o.StderrTotal)))
	}
	return words + ", as text; secrets of the sandbox are hidden."
}

func (v *visit) eventFacts(e audit.Event) []views.Detail {
	who := actorWords(e)
	if e.Owner != "" {
		who += " of " + display(e.Owner)
	}
	facts := []views.Detail{{Name: "Began", When: v.s.when(e.At)}}
	add := func(name, value, to string) {
		if value != "" {
			facts = append(facts, views.Detail{Name: name, Value: value, URL: to})
		}
	}
	if !e.Ended.IsZero() && e.EndSeq != e.Seq {
		facts = append(facts, views.Detail{Name: "Ended", When: v.s.when(e.Ended)})
		add("Took", took(e.Duration), "")
	}
	add("Who", who, v.activityURL("", nil, "actor", e.Actor))
	add("From", display(e.Address), "")
	if sandbox.ID(e.SandboxID).Valid() {
		add("Sandbox", e.SandboxID, v.storyURL(e.SandboxID))
	}
	add("Approval", display(e.ApprovalID), "")
	add("Request", display(e.RequestID), "")
	number := strconv.FormatInt(e.Seq, 10)
	if e.EndSeq > e.Seq {
		number += ", outcome " + strconv.FormatInt(e.EndSeq, 10)
	}
	add("Number in the record", number, "")
	return facts
}

func digests(e audit.Event) []views.Digest {
	var out []views.Digest
	add := func(name, hex string) {
		if hex != "" {
			out = append(out, views.Digest{Name: name, Hex: display(hex)})
		}
	}
	add("What was asked for", e.Digest)
	if e.NewDigest != "" || e.OldDigest != "" {
		before := views.Digest{Name: "Before"}
		switch e.OldDigest {
		case "", agent.ReplacedClosed:
			before.Word = "unknown"
		case agent.ReplacedNone:
			before.Word = "there was no file"
		case agent.ReplacedLarge:
			before.Word = "a file of more than " + size(agent.MaxReplaced)
		default:
			before.Hex = display(e.OldDigest)
		}
		if e.Action == "file.write" || e.Action == "file.delete" {
			out = append(out, before)
		}
	}
	add("After", e.NewDigest)
	add("Output, as it is kept", e.OutputDigest)
	return out
}

func (v *visit) eventLinks(e audit.Event) []ui.Link {
	if !sandbox.ID(e.SandboxID).Valid() {
		return nil
	}
	out := []ui.Link{{Text: "In the sandbox's story", URL: v.storyURL(e.SandboxID) + "?from=" + strconv.FormatInt(e.Seq, 10) + "#event-" + strconv.FormatInt(e.Seq, 10)}}
	return append(out, v.recordingLink(e)...)
}

const (
	storyPerPage = 100
	storyBefore  = 5 // events that stand before the one that a link leads to
)

// sandboxStory is everything that happened to a sandbox, oldest first; it stays when the sandbox is gone. Its last page is live.
func (s *Server) sandboxStory(v *visit) error {
	id := v.Param("id")
	r, err := s.o.Service.SandboxStory(v.ctx(), v.actor, id)
	if err != nil {
		return err
	}
	f := audit.Filter{WorkspaceID: v.actor.Workspace.ID, SandboxID: id, Oldest: true, Limit: storyPerPage}
	f.AfterSeq, err = v.storyStart(f)
	if err != nil {
		return err
	}
	end, err := s.o.Service.RecordEnd(v.ctx(), v.actor) // before the list: what comes in between is new
	if err != nil {
		return err
	}
	only := url.Values{"sandbox": {id}}
	p := views.SandboxStory{
		Shell: v.shell("Story of "+storyName(r), "activity"), ID: id, Label: display(r.Label), State: storyState(r), Facts: v.storyFacts(r),
		List: v.activityURL("", only), NDJSON: v.activityURL("/export", only, "format", audit.NDJSON), CSV: v.activityURL("/export", only, "format", audit.CSV),
	}
	if r.Status != sandbox.Gone {
		p.Open = v.base() + "/sandboxes/" + id
	}
	if p.Told, err = v.storyRows(f, 0); err != nil {
		return err
	}
	if p.Told.Later == "" && r.Status != sandbox.Gone {
		p.Events = fmt.Sprintf("%s/live?after=%d&since=%d", v.storyURL(id), f.AfterSeq, end)
	}
	if f.AfterSeq > 0 {
		p.Earlier = v.storyURL(id)
		before := f
		before.Oldest, before.AfterSeq, before.BeforeSeq, before.Limit = false, 0, f.AfterSeq+1, storyPerPage+1
		earlier, err := s.o.Service.Activity(v.ctx(), v.actor, before)
		if err != nil {
			return err
		}
		switch {
		case len(earlier) == 0:
			p.Earlier = ""
		case len(earlier) > storyPerPage:
			p.Earlier += "?after=" + strconv.FormatInt(earlier[storyPerPage].Seq, 10)
		}
	}
	return v.render(http.StatusOK, p.Page())
}

// storyRows is a page of a story; events with a number above since are marked as new, 0 marks none.
func (v *visit) storyRows(f audit.Filter, since int64) (out views.StoryRows, err error) {
	list, err := v.s.o.Service.Activity(v.ctx(), v.actor, f)
	if err != nil {
		return out, err
	}
	for _, e := range list {
		r := v.event(e)
		if r.New = since > 0 && e.Seq > since; r.New {
			out.New++
		}
		out.Rows = append(out.Rows, r)
	}
	if len(list) == f.Limit {
		out.Later = v.storyURL(f.SandboxID) + "?after=" + strconv.FormatInt(list[len(list)-1].Seq, 10)
	}
	return out, nil
}

// storyEvents streams the last page of a story whenever something came to the record.
func (s *Server) storyEvents(v *visit) error {
	id := v.Param("id")
	if _, err := s.o.Service.SandboxStory(v.ctx(), v.actor, id); err != nil {
		return err
	}
	f := audit.Filter{WorkspaceID: v.actor.Workspace.ID, SandboxID: id, Oldest: true, Limit: storyPerPage}
	after, err := strconv.ParseInt(v.QueryParam("after"), 10, 64)
	if err == nil && after > 0 {
		f.AfterSeq = after
	}
	return v.tail(func(since int64) (string, templ.Component, error) {
		rows, err := v.storyRows(f, since)
		return "rows", rows.Table(), err
	})
}

// storyStart reads where the page begins: after an event, or a little before the one that a link leads to.
func (v *visit) storyStart(f audit.Filter) (int64, error) {
	if after, err := strconv.ParseInt(v.QueryParam("after"), 10, 64); err == nil && after > 0 {
		return after, nil
	}
	from, err := strconv.ParseInt(v.QueryParam("from"), 10, 64)
	if err != nil || from < 1 {
		return 0, nil
	}
	f.Oldest, f.BeforeSeq, f.Limit = false, from, storyBefore+1
	before, err := v.s.o.Service.Activity(v.ctx(), v.actor, f)
	if err != nil || len(before) <= storyBefore {
		return 0, err
	}
	return before[storyBefore].Seq, nil
}

func storyName(r sandbox.Record) string {
	if r.Label != "" {
		return display(r.Label)
	}
	return string(r.ID)
}

func storyState(r sandbox.Record) ui.State {
	if r.Status == sandbox.Gone {
		return ui.State{Text: "gone", Tone: ui.Idle}
	}
	return state(r.Status)
}

func (v *visit) storyFacts(r sandbox.Record) []views.Detail {
	owner := display(r.OwnerName)
	if r.OwnerKind == string(auth.KeyUser) {
		owner = "key " + owner
	}
	facts := []views.Detail{{Name: "Owner", Value: owner}, {Name: "Image", Value: display(r.Image)}, {Name: "Created", When: v.s.when(r.CreatedAt)}}
	if r.Parent != "" {
		facts = append(facts, views.Detail{Name: "Started from", Value: display(r.Parent)})
	}
	if r.Reason != "" {
		facts = append(facts, views.Detail{Name: "Reason", Value: display(r.Reason)})
	}
	return facts
}

// days is a time in days where it is some.
func days(d time.Duration) string {
	if d >= 48*time.Hour {
		return strconv.Itoa(int(d.Hours()/24)) + " days"
	}
	return span(d)
}

// recordPage tells about the record itself.
func (s *Server) recordPage(v *visit) error {
	st, err := s.o.Service.RecordState(v.ctx(), v.actor)
	if err != nil {
		return err
	}
	head := strconv.FormatInt(st.Head.Seq, 10) + ":" + hex.EncodeToString(st.Head.Hash)
	p := views.RecordPage{
		Shell: v.shell("The record", "activity"), Head: head, Verify: "sandgate audit verify --head " + head,
		Holds: ui.Message{Text: "Nobody has looked at the whole record since the server started."},
		Facts: []views.Detail{
			{Name: "Rows of the chain", Value: strconv.FormatInt(st.Sizes.Events, 10) + ", of all workspaces; kept for good"},
			{Name: "Copies of output", Value: fmt.Sprintf("%d, %s of %s; the oldest go first, and after %s", st.Sizes.Copies, size(st.Sizes.CopiesBytes), size(st.Keeping.Bytes), days(st.Keeping.Age))},
			{Name: "Database", Value: size(st.Sizes.Database)},
		},
	}
	if c := st.Verdict; c != nil {
		p.Holds = ui.Message{Tone: ui.Ok, Text: "The record holds.", More: fmt.Sprintf("%d rows and %d copies of output were as recorded, %s.", c.Checked, c.Copies, v.s.when(c.At).Exact)}
		if !c.Holds() {
			p.Holds = ui.Message{Tone: ui.Bad, Text: "The record does not hold: " + display(c.Contrary), More: fmt.Sprintf("%d rows before that hold. Looked at %s.", c.Checked, v.s.when(c.At).Exact)}
		}
	}
	if t := st.Told; t != nil {
		m := ui.Message{Tone: ui.Ok, Text: "The head is told to " + display(t.Host) + ".", More: "Last taken " + v.s.when(t.Delivered).Exact}
		switch {
		case t.Failed != "":
			m = ui.Message{Tone: ui.Warn, Text: display(t.Host) + " does not take it: " + display(short(t.Failed, shownInRow)), More: fmt.Sprintf("%d wait and are tried again; %d were given up.", t.Waiting, t.Lost)}
		case t.Delivered.IsZero():
			m.More = "Nothing was taken yet."
		}
		p.Told = &m
	}
	return v.render(http.StatusOK, p.Page())
}
