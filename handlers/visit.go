package handlers

import (
	"bytes"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/a-h/templ"
	"github.com/labstack/echo/v4"

	"sandgate/auth"
	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/views"
	"sandgate/views/ui"
)

const (
	themeCookie = "sandgate_theme"
	lastCookie  = "sandgate_last" // slug of the workspace that was open last
)

// visit is one request to a page, with who makes it.
type visit struct {
	echo.Context
	userID    string
	sessionID string
	actor     auth.Actor // in the path's workspace; without one where the path names none
	signedIn  bool
	s         *Server
}

// visit finds who asks and judges the row's permission. The service judges again.
func (s *Server) visit(c echo.Context, r route) (*visit, error) {
	v := &visit{Context: c, s: s}
	v.userID, v.sessionID, v.signedIn = s.o.Sessions.UserID(c.Request())
	if r.public != "" {
		return v, nil
	}
	if !v.signedIn {
		return nil, fault.New(fault.Unauthenticated, "You are not signed in.")
	}
	var err error
	if v.actor, err = v.personActor(c.Param("slug")); err != nil {
		return nil, err
	}
	c.Set(visitKey, v) // so that an error page has the navigation beside it
	if len(r.need) > 0 {
		if err := s.permit(v, r); err != nil {
			return nil, err
		}
	}
	if strings.HasPrefix(r.path, sb) && !sandbox.ID(c.Param("id")).Valid() {
		return nil, fault.New(fault.NotFound, "Sandbox not found")
	}
	// Before anything else of the request is judged: a foreign id must not be told from an unknown one by a bad form.
	if strings.HasPrefix(r.path, sb+"/") && r.path != sb+"/kill" { // killing what is gone already is fine
		if _, err := s.o.Service.Sandbox(v.ctx(), v.actor, c.Param("id")); err != nil {
			return nil, err
		}
	}
	return v, nil
}

const visitKey = "sandgate.visit"

func (v *visit) personActor(slug string) (auth.Actor, error) {
	return v.s.o.Service.PersonActor(v.ctx(), v.userID, v.sessionID, slug, ClientIP(v.Request()), v.requestID())
}

// permit refuses who has none of the row's permissions, and puts that on record.
func (s *Server) permit(v *visit, r route) error {
	if slices.ContainsFunc(r.need, v.actor.May) {
		return nil
	}
	target := ""
	if id := sandbox.ID(v.Param("id")); id.Valid() {
		target = string(id)
	}
	if err := s.o.Service.Require(v.ctx(), v.actor, r.action, target, r.need...); err != nil {
		return err
	}
	return fault.New(fault.Forbidden, "You may not do that in this workspace.")
}

func (v *visit) ctx() context.Context { return v.Request().Context() }

func (v *visit) requestID() string { return v.Response().Header().Get(requestIDHeader) }

// base is where the workspace's pages begin.
func (v *visit) base() string { return "/w/" + url.PathEscape(v.actor.Workspace.Slug) }

// partial reports whether a script asks for a part of a page.
func (v *visit) partial() bool { return v.Request().Header.Get("HX-Request") == "true" }

// shell is what every page has around it. The list of workspaces is left out when it can't be read: the page matters more.
func (v *visit) shell(title, section string) views.Shell {
	s := views.Shell{Title: title, Section: section, Theme: v.theme(), Insecure: v.insecure()}
	if !v.signedIn || v.actor.UserID == "" {
		return s
	}
	s.Person, s.Workspace = display(v.actor.Name), display(v.actor.Workspace.Name)
	if v.actor.Workspace.Slug != "" {
		s.Base, s.Rights = v.base(), rightsWords(v.actor)
	}
	if s.Base != "" && slices.ContainsFunc(asked, v.actor.May) {
		s.Asked, s.Waiting = true, v.waiting()
	}
	all, err := v.s.o.Service.WorkspacesOf(v.ctx(), v.userID)
	if err != nil {
		v.s.log.Warn("list workspaces for the navigation", "request_id", v.requestID(), "cause", err)
	}
	for _, w := range all {
		s.Workspaces = append(s.Workspaces, ui.Link{
			Text: display(w.Name), URL: "/w/" + url.PathEscape(w.Slug) + "/sandboxes", On: w.Slug == v.actor.Workspace.Slug,
		})
	}
	if m, ok := notices[v.QueryParam("done")]; ok {
		s.Notices = append(s.Notices, m)
	}
	return s
}

// waiting counts requests for approval; what cannot be counted is none: the page matters more.
func (v *visit) waiting() (n int) {
	by, err := v.s.o.Service.PendingApprovals(v.ctx(), v.actor)
	if err != nil {
		v.s.log.Warn("count requests for approval", "request_id", v.requestID(), "cause", err)
	}
	for _, of := range by {
		n += of
	}
	return n
}

// rightsWords tells a person in a few words what they may do here.
func rightsWords(a auth.Actor) string {
	if a.May(auth.SandboxesRun) {
		return "may run code"
	}
	return "may look, not run code"
}

// notices are what a page says after something was done; only the key travels in the address.
var notices = map[string]ui.Message{
	"recorded":  {Tone: ui.Ok, Text: "What is recorded is set.", More: "Terminals that are open follow."},
	"killed":    {Tone: ui.Ok, Text: "Killed. Everything that was inside is gone."},
	"gone":      {Tone: ui.Warn, Text: "That sandbox is gone: it was killed or it expired.", More: "Its story stays in the activity."},
	"role":      {Tone: ui.Ok, Text: "The role is changed."},
	"granted":   {Tone: ui.Ok, Text: "Granted: this person may run code here now.", More: "The grant is on record."},
	"taken":     {Tone: ui.Ok, Text: "Taken back: terminals and streams that needed it are closed."},
	"removed":   {Tone: ui.Ok, Text: "Removed from this workspace."},
	"withdrawn": {Tone: ui.Ok, Text: "The invitation link works no more."},
	"revoked":   {Tone: ui.Ok, Text: "The key works no more."},
	"password":  {Tone: ui.Ok, Text: "The password is changed.", More: "Everywhere else you are signed out."},
	"session":   {Tone: ui.Ok, Text: "Signed out there."},
	"sessions":  {Tone: ui.Ok, Text: "Signed out everywhere else."},
	"network":   {Tone: ui.Ok, Text: "The network is changed."},
	"limits":    {Tone: ui.Ok, Text: "The limits are set."},
	"snapshot":  {Tone: ui.Ok, Text: "The snapshot is taken. The sandbox runs on."},
	"approved":  {Tone: ui.Ok, Text: "Approved, for one time.", More: "A call that waits goes on at once."},
	"denied":    {Tone: ui.Ok, Text: "Denied. Whoever asked reads the reason."},
	"trying":    {Tone: ui.Ok, Text: "It is still being tried.", More: "What it does appears here by itself."},
	"policy":    {Tone: ui.Ok, Text: "The policy is set. It holds at once."},
	"cancelled": {Tone: ui.Ok, Text: "Taken back."},
	"deleted":   {Tone: ui.Ok, Text: "The snapshot is deleted."},
	"workspace": {Tone: ui.Ok, Text: "The workspace is there.", More: "Grant yourself sandboxes:run on People & keys if you want to run code in it."},
}

func (v *visit) theme() string {
	c, err := v.Cookie(themeCookie)
	if err == nil && (c.Value == "light" || c.Value == "dark") {
		return c.Value
	}
	return "system"
}

// insecure reports whether the page travels in the clear between machines.
func (v *visit) insecure() bool {
	if v.s.https(v.Request()) {
		return false
	}
	return !loopback(v.Request().Host)
}

// render renders to a buffer first, so that a failure is an error page and never half a page.
func (v *visit) render(status int, part templ.Component) error {
	var b bytes.Buffer
	if err := part.Render(v.ctx(), &b); err != nil {
		return err
	}
	return v.Blob(status, "text/html; charset=utf-8", b.Bytes())
}

// formPage is a page that is also shown in a dialog.
type formPage interface {
	Page() templ.Component
	Body() templ.Component
}

// renderForm answers with the form alone where a script asks, with the page else. A form with a mistake in it is a 422.
func (v *visit) renderForm(status int, p formPage) error {
	if v.partial() {
		return v.render(status, p.Body())
	}
	return v.render(status, p.Page())
}

// goTo leads on after a change: a script is told by a header, a form by a redirect.
func (v *visit) goTo(to string) error {
	if v.partial() {
		v.Response().Header().Set("HX-Redirect", to)
		return v.String(http.StatusOK, "")
	}
	return v.Redirect(http.StatusSeeOther, to)
}

// wrongIn sorts an error that a form can show: the sentence, and what is wrong with each field. Any other error is ok == false.
func wrongIn(err error) (sentence string, fields map[string]string, ok bool) {
	var e *fault.Error
	switch fault.KindOf(err) {
	case fault.Invalid, fault.Conflict, fault.QuotaExceeded, fault.HostFull, fault.Starting, fault.SlowDown, fault.BadRequest, fault.TooLarge:
	default:
		return "", nil, false
	}
	if asFault(err, &e) {
		return e.Public, e.Fields, true
	}
	return "", nil, false
}
