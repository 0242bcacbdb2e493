package handlers

import (
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"sandgate/auth"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
	"sandgate/sandbox/files"
	"sandgate/views"
	"sandgate/views/ui"
)

const recordingsPerPage = 100

var (
	ptyShape     = regexp.MustCompile(`^pty[a-z0-9]{20}$`)
	tapeShape    = regexp.MustCompile(`^rec[a-z0-9]{20}$`)
	requestShape = regexp.MustCompile(`^ap[a-z0-9]{20}$`)
)

// recordingList shows recordings: of the workspace, of ?sandbox=, or of ?pty=, which is where an event of the record leads to.
func (s *Server) recordingList(v *visit) error {
	f := workspace.RecordingFilter{Limit: recordingsPerPage}
	p := views.RecordingList{Shell: v.shell("Recordings", "activity"), AllURL: v.base() + "/recordings"}
	q := url.Values{}
	if id := v.QueryParam("sandbox"); sandbox.ID(id).Valid() {
		f.SandboxID, p.Of = id, "one sandbox"
		q.Set("sandbox", id)
	}
	if id := v.QueryParam("pty"); ptyShape.MatchString(id) {
		f.PTYs, p.Of = []string{id}, "one terminal"
		q.Set("pty", id)
	}
	if us, err := strconv.ParseInt(v.QueryParam("before"), 10, 64); err == nil && us > 0 && tapeShape.MatchString(v.QueryParam("id")) {
		f.Before, f.BeforeID = time.UnixMicro(us), v.QueryParam("id")
	}
	list, err := s.o.Service.Recordings(v.ctx(), v.actor, f)
	if err != nil {
		return err
	}
	if len(list) == 1 && f.PTYs != nil {
		return v.goTo(v.base() + "/recordings/" + list[0].ID)
	}
	for _, r := range list {
		p.Rows = append(p.Rows, v.recordingRow(r))
	}
	if len(list) == f.Limit {
		last := list[len(list)-1]
		q.Set("before", strconv.FormatInt(last.StartedAt.UnixMicro(), 10))
		q.Set("id", last.ID)
		p.Older = v.base() + "/recordings?" + q.Encode()
	}
	policy, err := s.o.Service.RecordingPolicy(v.ctx(), v.actor)
	if err == nil {
		p.Words = recordsWords[string(policy.Mode)]
	} else if !fault.Is(err, fault.Forbidden) {
		return err
	}
	if v.actor.May(auth.MembersManage) {
		p.Policy = v.base() + "/recording-policy"
	}
	return v.render(http.StatusOK, p.Page())
}

// tapesOf gives the recordings of the terminals that events are about, newest first, by terminal; none where the actor may see none.
func (v *visit) tapesOf(list ...audit.Event) map[string][]workspace.Recording {
	f := workspace.RecordingFilter{Limit: 10 * recordingsPerPage}
	for _, e := range list {
		if ptyShape.MatchString(e.Target) && !slices.Contains(f.PTYs, e.Target) {
			f.PTYs = append(f.PTYs, e.Target)
		}
	}
	if f.PTYs == nil || !v.actor.May(auth.SandboxesRead) && !v.actor.May(auth.AuditRead) {
		return nil
	}
	tapes, err := v.s.o.Service.Recordings(v.ctx(), v.actor, f)
	if err != nil {
		v.s.log.Warn("find recordings of events", "request_id", v.requestID(), "cause", err)
	}
	out := map[string][]workspace.Recording{}
	for _, r := range tapes {
		out[r.PTY] = append(out[r.PTY], r)
	}
	return out
}

// recordingLink leads from what happened in a terminal to its recording, at that moment of it.
func (v *visit) recordingLink(e audit.Event, tapes map[string][]workspace.Recording) []ui.Link {
	list := tapes[e.Target]
	if len(list) == 0 {
		return nil
	}
	r := list[len(list)-1] // the first part
	for _, other := range list {
		if !other.StartedAt.After(e.At) {
			r = other
			break
		}
	}
	to := v.base() + "/recordings/" + r.ID
	if t := e.At.Sub(r.StartedAt).Seconds(); t >= 1 {
		to += "#t=" + strconv.Itoa(int(t))
	}
	return []ui.Link{{Text: "Recording", URL: to}}
}

// requestLink leads from what was asked about to the request.
func (v *visit) requestLink(e audit.Event) []ui.Link {
	if !requestShape.MatchString(e.ApprovalID) || !slices.ContainsFunc(asked, v.actor.May) {
		return nil
	}
	return []ui.Link{{Text: "Request", URL: v.approvalsBase() + "/" + e.ApprovalID}}
}

var recordsWords = map[string]string{
	"off":    "Terminals of this workspace are not recorded.",
	"on":     "Terminals of this workspace are recorded.",
	"always": "Every terminal of this workspace is recorded: one that cannot be does not open.",
}

var endWords = map[string]ui.State{
	"":           {Text: "goes on", Tone: ui.Ok},
	"exited":     {Text: "exited"},
	"gone":       {Text: "sandbox gone"},
	"limit":      {Text: "full"},
	"turned_off": {Text: "turned off"},
	"failed":     {Text: "broke off", Tone: ui.Bad},
}

func (v *visit) recordingRow(r workspace.Recording) views.RecordingRow {
	at := v.base() + "/recordings/" + r.ID
	row := views.RecordingRow{
		ID: r.ID, URL: at, Of: display(r.Label), By: display(r.By), State: endWords[r.End], Started: v.s.when(r.StartedAt), Size: size(r.Bytes),
	}
	if row.Of == "" {
		row.Of = r.SandboxID
	}
	if r.Part > 1 {
		row.Of += ", part " + strconv.Itoa(r.Part)
	}
	if r.ByKind == string(auth.KeyUser) {
		row.By = "key " + row.By
	}
	if r.EndedAt.IsZero() {
		row.Length = took(time.Since(r.StartedAt).Seconds())
		return row
	}
	row.Length = took(r.EndedAt.Sub(r.StartedAt).Seconds())
	if v.actor.May(auth.SandboxesManage) {
		row.Delete = at + "/delete"
	}
	return row
}

// playerPolicy lets this one page compile the player's terminal, which is WebAssembly. Scripts still come from here alone, and none
// can make one of a text.
func playerPolicy(policy string) string {
	return strings.Replace(policy, "script-src 'self'", "script-src 'self' 'wasm-unsafe-eval'", 1)
}

// recordingPage plays one; #t=SECONDS is a moment in it.
func (s *Server) recordingPage(v *visit) error {
	r, err := s.o.Service.Recording(v.ctx(), v.actor, v.Param("recording"))
	if err != nil {
		return err
	}
	p := views.RecordingPage{
		Shell: v.shell("Recording", "activity"), Row: v.recordingRow(r), Cast: v.base() + "/recordings/" + r.ID + "/cast",
		Input: r.Input, Goes: r.EndedAt.IsZero(), List: v.base() + "/recordings",
	}
	if slices.ContainsFunc(asked, v.actor.May) {
		p.Requests = v.approvalsBase() + "/"
	}
	p.Facts = []views.Detail{
		{Name: "Sandbox", Value: r.SandboxID, URL: v.base() + "/sandboxes/" + r.SandboxID},
		{Name: "Terminal", Value: r.PTY},
		{Name: "Opened by", Value: p.Row.By},
		{Name: "Began", When: p.Row.Started},
		{Name: "Length", Value: p.Row.Length},
		{Name: "Size", Value: p.Row.Size},
	}
	h := v.Response().Header()
	h.Set("Content-Security-Policy", playerPolicy(h.Get("Content-Security-Policy")))
	return v.render(http.StatusOK, p.Page())
}

// recordingCast is the recording itself; who reads it is on record.
func (s *Server) recordingCast(v *visit) error {
	p, err := s.o.Service.PlayRecording(v.ctx(), v.actor, v.Param("recording"))
	if err != nil {
		return err
	}
	defer p.Close() //nolint:errcheck // only read
	h := v.Response().Header()
	h.Set("Content-Type", "application/x-asciicast")
	h.Set("Content-Disposition", files.Disposition([]byte(p.ID+".cast")))
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	http.ServeContent(v.Response(), v.Request(), "", p.Modified, p)
	return nil
}

func (s *Server) recordingDeleteForm(v *visit) error {
	r, err := s.o.Service.Recording(v.ctx(), v.actor, v.Param("recording"))
	if err != nil {
		return err
	}
	at := v.base() + "/recordings/" + r.ID
	return v.renderForm(http.StatusOK, views.Confirm{
		Shell: v.shell("Delete a recording", "activity"), Heading: "Delete this recording?", Action: at + "/delete", Cancel: at,
		Words: []string{"It can't be brought back. That it was there, and who deleted it, stays on record."}, Button: "Delete it", Danger: true,
	})
}

func (s *Server) recordingDelete(v *visit) error {
	if err := s.o.Service.DeleteRecording(v.ctx(), v.actor, v.Param("recording")); err != nil {
		return err
	}
	return v.goTo(v.base() + "/recordings")
}

func (s *Server) recordingPolicyForm(v *visit) error {
	p, err := s.o.Service.RecordingPolicy(v.ctx(), v.actor)
	if err != nil {
		return err
	}
	return v.renderForm(http.StatusOK, v.recordingForm(p))
}

func (v *visit) recordingForm(p workspace.RecordingPolicy) views.RecordingForm {
	f := views.RecordingForm{
		Shell: v.shell("What is recorded", "activity"), Input: p.Input, Action: v.base() + "/recording-policy", Cancel: v.base() + "/recordings",
		Modes: []views.RecordingMode{
			{Value: "off", Text: "Nothing", Means: "Who opened terminals, and who watched, is on record; what was printed is not."},
			{Value: "on", Text: "Terminals", Means: "Recorded while that is possible: with a full disk they open all the same."},
			{Value: "always", Text: "Every terminal, always", Means: "One that cannot be recorded does not open, and nobody stays at one whose recording breaks off."},
		},
		Fields: []ui.Field{
			{Name: "max_mb", Label: "MiB of one recording", Value: strconv.FormatInt(p.MaxMB, 10), Hint: "Then it ends; with “always” it goes on in another part."},
			{Name: "total_mb", Label: "MiB of all recordings", Value: strconv.FormatInt(p.TotalMB, 10), Hint: "The oldest are deleted first, on record."},
			{Name: "keep_days", Label: "Days that they are kept", Value: strconv.Itoa(p.KeepDays)},
		},
	}
	for i := range f.Modes {
		f.Modes[i].Chosen = f.Modes[i].Value == string(p.Mode)
	}
	return f
}

func (s *Server) setRecordingPolicy(v *visit) error {
	p := workspace.RecordingPolicy{Mode: workspace.RecordingMode(v.FormValue("mode")), Input: v.FormValue("input") == "1"}
	number := func(name string) int64 { // no number is zero, which is below every bound
		n, _ := strconv.ParseInt(strings.TrimSpace(v.FormValue(name)), 10, 64)
		return n
	}
	p.MaxMB, p.TotalMB, p.KeepDays = number("max_mb"), number("total_mb"), int(number("keep_days"))
	_, err := s.o.Service.SetRecordingPolicy(v.ctx(), v.actor, p)
	if sentence, fields, ok := wrongIn(err); ok {
		f := v.recordingForm(p)
		f.Wrong = sentence
		for i := range f.Fields {
			f.Fields[i].Value, f.Fields[i].Wrong = v.FormValue(f.Fields[i].Name), fields[f.Fields[i].Name]
		}
		return v.renderForm(http.StatusUnprocessableEntity, f)
	}
	if err != nil {
		return err
	}
	return v.goTo(v.base() + "/recordings?done=recorded")
}
