package handlers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/views"
	"sandgate/views/ui"
)

// maxQueueLine is how much of a command an entry of the queue shows, in bytes: its page shows all of it.
const maxQueueLine = 160

// approvalsPerPage is how many requests a list shows.
const approvalsPerPage = 50

// closedStatuses are the filters of the list of what was decided, in the order of its tabs.
var closedStatuses = []struct {
	status approval.Status
	text   string
}{
	{approval.Approved, "Approved"},
	{approval.Used, "Used"},
	{approval.Denied, "Denied"},
	{approval.Expired, "Expired"},
	{approval.Cancelled, "Taken back"},
	{approval.Void, "Void"},
}

// approvals is the queue, with the request that the address names beside it, or the oldest one.
func (s *Server) approvals(v *visit) error {
	status := statusOf(v)
	p := views.Approvals{Shell: v.shell("Approvals", "approvals"), MayWatch: v.actor.May(auth.ApprovalsDecide), Tabs: v.approvalTabs(status)}
	list, more, err := v.requests(status, v.QueryParam("before"))
	if err != nil {
		return err
	}
	open := v.Param("approval")
	if open == "" && status == "" && len(list) > 0 {
		open = list[0].ID
	}
	p.Queue = v.queue(list, more, status, open)
	live := url.Values{}
	if status != "" {
		live.Set("status", string(status))
	}
	if open != "" {
		one, err := s.o.Service.Approval(v.ctx(), v.actor, open)
		if err != nil {
			return err
		}
		if p.Request, err = v.request(one); err != nil {
			return err
		}
		live.Set("show", one.ID)
	}
	p.Events = v.approvalsBase() + "/events?" + live.Encode()
	if p.Queue.Waiting > 0 {
		p.Title = fmt.Sprintf("(%d) Approvals", p.Queue.Waiting)
	}
	return v.render(http.StatusOK, p.Page())
}

// statusOf is which requests the address asks for; "": those that wait.
func statusOf(v *visit) approval.Status {
	for _, c := range closedStatuses {
		if string(c.status) == v.QueryParam("status") {
			return c.status
		}
	}
	return ""
}

func (v *visit) approvalsBase() string { return v.base() + "/approvals" }

// requests gives a page of the list; waiting ones when no status is asked for.
func (v *visit) requests(status approval.Status, before string) ([]workspace.Approval, bool, error) {
	f := workspace.ApprovalFilter{Status: status, Cursor: before, Limit: approvalsPerPage}
	if status == "" {
		f.Status = approval.Pending
	}
	return v.s.o.Service.Approvals(v.ctx(), v.actor, f)
}

func (v *visit) approvalTabs(on approval.Status) []ui.Link {
	tabs := []ui.Link{{Text: "Waiting", URL: v.approvalsBase(), On: on == ""}}
	for _, c := range closedStatuses {
		tabs = append(tabs, ui.Link{Text: c.text, URL: v.approvalsBase() + "?status=" + string(c.status), On: on == c.status})
	}
	return tabs
}

// queue is the list of requests.
func (v *visit) queue(list []workspace.Approval, more bool, status approval.Status, open string) views.ApprovalQueue {
	q := views.ApprovalQueue{Closed: status != ""}
	names := v.sandboxNames()
	for _, one := range list {
		i := views.ApprovalItem{
			ID: one.ID, URL: v.approvalsBase() + "/" + one.ID, Title: titleOf(one), When: v.s.when(one.CreatedAt), On: one.ID == open,
			Who: display(one.Request.Requester.Name) + " in " + nameOr(names, one.SandboxID),
		}
		if one.Kind == approval.Command {
			i.Line = display(short(one.Request.Params["command"], maxQueueLine))
		}
		if status != "" {
			i.URL += "?status=" + string(status)
		} else if one.Waiting {
			i.State = ui.State{Text: "a call waits", Tone: ui.Warn}
		}
		q.Items = append(q.Items, i)
	}
	switch {
	case status == "" && len(list) > 0:
		q.Waiting = len(list)
		q.Words = fmt.Sprintf("%s waiting · oldest %s", atLeast(len(list), more), v.s.when(list[0].CreatedAt).Text)
	case len(list) == 0:
		q.Words = "none"
	default:
		q.Words = atLeast(len(list), more) + ", newest first"
	}
	if more {
		at := v.approvalsBase() + "?before=" + list[len(list)-1].ID
		if status != "" {
			at += "&status=" + string(status)
		}
		q.Older = at
	}
	return q
}

func atLeast(n int, more bool) string {
	if more {
		return itoa(n) + " or more"
	}
	return itoa(n)
}

// sandboxNames are what living sandboxes are called. What cannot be read is left out: the ids stay.
func (v *visit) sandboxNames() map[string]string {
	names := map[string]string{}
	all, err := v.s.o.Service.Sandboxes(v.ctx(), v.actor)
	if err != nil {
		v.s.log.Warn("list sandboxes for their names", "request_id", v.requestID(), "cause", err)
	}
	for _, b := range all {
		names[string(b.ID)] = sandboxName(b)
	}
	return names
}

func nameOr(names map[string]string, id string) string {
	if n, ok := names[id]; ok {
		return n
	}
	return id
}

// approvalEvents streams the queue and, where one is open, what changes of it.
func (s *Server) approvalEvents(v *visit) error {
	show, status := v.QueryParam("show"), statusOf(v)
	return v.stream(func(out *events) error {
		list, more, err := v.requests(status, "")
		if err != nil {
			return err
		}
		if err := out.fragment("queue", v.queue(list, more, status, show).List()); err != nil {
			return err
		}
		if show == "" {
			if len(list) > 0 && status == "" { // the page says that nothing waits
				return out.value("first", list[0].ID)
			}
			return nil
		}
		one, err := s.o.Service.Approval(v.ctx(), v.actor, show)
		if err != nil {
			return err
		}
		r, err := v.request(one)
		if err != nil {
			return err
		}
		return errors.Join(out.fragment("state", r.Now()), out.fragment("effect", r.Tried()), out.fragment("decision", r.Decision()))
	})
}

// chosen are the request of the address and, where the form says so, those that ask for the very same: ids with digests.
func chosen(v *visit, digest string) [][2]string {
	out := [][2]string{{v.Param("approval"), digest}}
	if v.FormValue("same") != "1" {
		return out
	}
	form, err := v.FormParams()
	if err != nil {
		return out
	}
	for _, w := range form["with"] {
		if id, d, ok := strings.Cut(w, " "); ok && len(out) < approval.MaxPendingSandbox {
			out = append(out, [2]string{id, d})
		}
	}
	return out
}

func (s *Server) approvalApprove(v *visit) error {
	if _, err := s.o.Service.Approval(v.ctx(), v.actor, v.Param("approval")); err != nil {
		return err // a foreign one must not be told from an unknown one by a bad form
	}
	digest := v.FormValue("digest")
	if digest == "" {
		return fault.Field("digest", "must be that of the request that you looked at")
	}
	for i, one := range chosen(v, digest) {
		_, err := s.o.Service.ApproveRequest(v.ctx(), v.actor, one[0], one[1])
		if err != nil && (i == 0 || !fault.Is(err, fault.Conflict)) { // one of the others was decided meanwhile: that is no failure of this
			return v.requestRefused(err)
		}
	}
	return v.goTo(v.nextRequest("approved"))
}

// requestRefused shows the request as it is now with what went wrong.
func (v *visit) requestRefused(err error) error {
	if !fault.Is(err, fault.Conflict) {
		return err
	}
	one, gerr := v.s.o.Service.Approval(v.ctx(), v.actor, v.Param("approval"))
	if gerr != nil {
		return err
	}
	r, gerr := v.request(one)
	if gerr != nil {
		return err
	}
	var e *fault.Error
	sentence := "It could not be decided."
	if asFault(err, &e) {
		sentence = display(e.Public)
	}
	list, more, gerr := v.requests("", "")
	if gerr != nil {
		return err
	}
	p := views.Approvals{
		Shell: v.shell("Approvals", "approvals"), MayWatch: v.actor.May(auth.ApprovalsDecide), Tabs: v.approvalTabs(""),
		Queue: v.queue(list, more, "", one.ID), Request: r, Events: v.approvalsBase() + "/events?show=" + one.ID,
	}
	p.Notices = append(p.Notices, ui.Message{Tone: ui.Bad, Text: sentence})
	return v.render(http.StatusConflict, p.Page())
}

// nextRequest leads to what waits next, or to the empty queue.
func (v *visit) nextRequest(done string) string {
	list, _, err := v.requests("", "")
	if err != nil || len(list) == 0 {
		return v.approvalsBase() + "?done=" + done
	}
	return v.approvalsBase() + "/" + list[0].ID + "?done=" + done
}

func (s *Server) approvalDenyForm(v *visit) error {
	one, err := s.o.Service.Approval(v.ctx(), v.actor, v.Param("approval"))
	if err != nil {
		return err
	}
	f, err := v.denyPage(one)
	if err != nil {
		return err
	}
	return v.renderForm(http.StatusOK, f)
}

func (v *visit) denyPage(one workspace.Approval) (views.DenyForm, error) {
	at := v.approvalsBase() + "/" + one.ID
	f := views.DenyForm{
		Shell: v.shell("Deny", "approvals"), Heading: "Deny: " + titleOf(one), Action: at + "/deny", Cancel: at,
		Reason: ui.Field{Name: "reason", Label: "Reason", Hint: "Whoever asked reads it."},
		Stop:   ui.Field{Name: "stop", Label: "Deny and stop asking: this sandbox may do none of this from now on", Hint: "What it asks approval for can only become stricter: this is not taken back."},
	}
	same, err := v.sameAs(one)
	f.Same = same
	return f, err
}

func (v *visit) sameAs(one workspace.Approval) (out []views.Same, err error) {
	same, err := v.s.o.Service.SameRequests(v.ctx(), v.actor, one)
	for _, o := range same {
		out = append(out, views.Same{ID: o.ID, Digest: o.Digest})
	}
	return out, err
}

func (s *Server) approvalDeny(v *visit) error {
	reason := strings.TrimSpace(v.FormValue("reason"))
	for i, one := range chosen(v, "") {
		var err error
		if v.FormValue("stop") == "1" && i == 0 {
			_, err = s.o.Service.DenyAndStop(v.ctx(), v.actor, one[0], reason)
		} else {
			_, err = s.o.Service.DenyRequest(v.ctx(), v.actor, one[0], reason)
		}
		if sentence, fields, ok := wrongIn(err); ok && i == 0 {
			return v.denyWrong(sentence, fields)
		}
		if err != nil && (i == 0 || !fault.Is(err, fault.Conflict)) {
			return err
		}
	}
	return v.goTo(v.nextRequest("denied"))
}

func (v *visit) denyWrong(sentence string, fields map[string]string) error {
	one, err := v.s.o.Service.Approval(v.ctx(), v.actor, v.Param("approval"))
	if err != nil {
		return err
	}
	f, err := v.denyPage(one)
	if err != nil {
		return err
	}
	f.Wrong = display(sentence)
	f.Reason.Value, f.Reason.Wrong = v.FormValue("reason"), fields["reason"]
	return v.renderForm(http.StatusUnprocessableEntity, f)
}

// tryAnswer is how long a page waits for a trial before it says that it goes on.
const tryAnswer = 20 * time.Second

// approvalTry has a command tried in a copy. The trial goes on when the browser leaves; the stream shows how it ended.
func (s *Server) approvalTry(v *visit) error {
	id := v.Param("approval")
	ctx := context.WithoutCancel(v.ctx())
	done := make(chan error, 1)
	go func() {
		_, err := s.o.Service.TryRequest(ctx, v.actor, id)
		done <- err
		if err != nil && !errors.As(err, new(*fault.Error)) {
			s.log.Error("try a command", "approval", id, "cause", err)
		}
	}()
	wait := time.NewTimer(tryAnswer)
	defer wait.Stop()
	select {
	case err := <-done:
		if err != nil {
			return v.requestRefused(err)
		}
		return v.goTo(v.approvalsBase() + "/" + id + "#effect")
	case <-wait.C:
		return v.goTo(v.approvalsBase() + "/" + id + "?done=trying")
	}
}

func (s *Server) approvalCancel(v *visit) error {
	if _, err := s.o.Service.CancelRequest(v.ctx(), v.actor, v.Param("approval")); err != nil {
		return v.requestRefused(err)
	}
	return v.goTo(v.approvalsBase() + "?done=cancelled")
}

// approvalContent sends a content of a request: as an attachment, or an image for an <img>.
func (s *Server) approvalContent(v *visit) error {
	data, err := s.o.Service.ApprovalContent(v.ctx(), v.actor, v.Param("approval"), v.Param("name"))
	if err != nil {
		return err
	}
	h := v.Response().Header()
	attachment(h, []byte(v.Param("approval")+"-"+v.Param("name")))
	if v.QueryParam("image") == "1" {
		media := http.DetectContentType(data)
		if !rasterTypes[media] {
			return fault.New(fault.BadRequest, "This is no image that can be shown.")
		}
		h.Set("Content-Type", media)
	}
	v.Response().WriteHeader(http.StatusOK)
	_, err = v.Response().Write(data)
	return err
}
