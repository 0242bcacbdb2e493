package handlers

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"sandgate/auth"
	"sandgate/internal/fault"
	"sandgate/views"
	"sandgate/views/ui"
)

// home sends people where they belong: the list of the workspace that they had open last.
func (s *Server) home(v *visit) error {
	if !v.signedIn {
		return v.Redirect(http.StatusSeeOther, "/sign-in")
	}
	all, err := s.o.Service.WorkspacesOf(v.ctx(), v.userID)
	if err != nil {
		return err
	}
	return v.Redirect(http.StatusSeeOther, landing(all, v.cookieValue(lastCookie)))
}

// landing is the list of the workspace with the slug last, else of the first; the account page for members of none.
func landing(all []auth.Workspace, last string) string {
	if len(all) == 0 {
		return "/account"
	}
	slug := all[0].Slug
	for _, w := range all {
		if w.Slug == last {
			slug = last
		}
	}
	return "/w/" + url.PathEscape(slug) + "/sandboxes"
}

func (s *Server) workspaceHome(v *visit) error {
	return v.Redirect(http.StatusSeeOther, v.base()+"/sandboxes")
}

// localPath gives next when it leads to a page of ours, else "/": never to another site.
func localPath(next string) string {
	u, err := url.Parse(next)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || u.Opaque != "" {
		return "/"
	}
	if !strings.HasPrefix(next, "/") || strings.HasPrefix(next, "//") || strings.ContainsAny(next, "\\\r\n\t") || len(next) > 2048 {
		return "/"
	}
	return next
}

func (s *Server) signInForm(v *visit) error {
	next := localPath(v.QueryParam("next"))
	if v.signedIn {
		return v.Redirect(http.StatusSeeOther, next)
	}
	p := views.SignIn{Shell: v.shell("Sign in", ""), Next: next}
	if need, err := s.o.Service.SetupNeeded(v.ctx()); err == nil && need {
		p.Notices = append(p.Notices, ui.Message{Text: "Nobody has an account yet.", More: "The server printed a link for the first administrator when it started; open that one."})
	}
	return v.render(http.StatusOK, p.Page())
}

func (s *Server) signIn(v *visit) error {
	email, next := v.FormValue("email"), localPath(v.FormValue("next"))
	user, err := s.o.Service.SignIn(v.ctx(), email, v.FormValue("password"), ClientIP(v.Request()), v.requestID())
	switch fault.KindOf(err) {
	case "":
	case fault.Unauthenticated, fault.SlowDown, fault.Invalid:
		p := views.SignIn{Shell: v.shell("Sign in", ""), Next: next, Email: email, Wrong: fault.Public(err)}
		return v.render(http.StatusUnprocessableEntity, p.Page())
	default:
		return err
	}
	return v.enter(user, next)
}

// enter starts a session for a person and goes on.
func (v *visit) enter(user auth.User, next string) error {
	if err := v.s.o.Sessions.SignIn(v.Response(), v.Request(), user.ID); err != nil {
		return err
	}
	return v.Redirect(http.StatusSeeOther, next)
}

func (s *Server) signOut(v *visit) error {
	if v.signedIn {
		// Without a workspace: signing out ends what is open in all of them.
		if a, err := v.personActor(""); err == nil {
			if err := s.o.Service.SignedOut(v.ctx(), a); err != nil {
				return err
			}
		}
	}
	if err := s.o.Sessions.SignOut(v.Response(), v.Request()); err != nil {
		return err
	}
	return v.Redirect(http.StatusSeeOther, "/sign-in")
}

// sessionState tells a page whose live stream broke whether to connect again or to go to the sign-in page.
func (s *Server) sessionState(v *visit) error {
	if !v.signedIn {
		return fault.New(fault.Unauthenticated, "You are not signed in.")
	}
	return v.JSON(http.StatusOK, map[string]bool{"signed_in": true})
}

var newPasswordHint = fmt.Sprintf("At least %d characters; 15 or more are better.", auth.PasswordMinRunes)

func setupPage(v *visit, token string) views.Setup {
	return views.Setup{
		Shell: v.shell("Welcome", ""), Token: token,
		Email:     ui.Field{Name: "email", Label: "E-mail"},
		Password:  ui.Field{Name: "password", Label: "Password", Hint: newPasswordHint},
		Workspace: ui.Field{Name: "workspace", Label: "Name of the first workspace", Value: "Research", Hint: "Sandboxes, members and keys belong to a workspace."},
	}
}

func (s *Server) setupForm(v *visit) error {
	need, err := s.o.Service.SetupNeeded(v.ctx())
	if err != nil {
		return err
	}
	if !need {
		return fault.New(fault.Forbidden, "This link was used already: the first administrator exists.")
	}
	return v.render(http.StatusOK, setupPage(v, v.QueryParam("token")).Page())
}

func (s *Server) setup(v *visit) error {
	f := workspaceSetup(v)
	user, ws, err := s.o.Service.Setup(v.ctx(), f, ClientIP(v.Request()), v.requestID())
	if sentence, fields, ok := wrongIn(err); ok {
		p := setupPage(v, f.Token)
		p.Email.Value, p.Workspace.Value, p.RunCode, p.Wrong = f.Email, f.WorkspaceName, f.RunCode, sentence
		p.Email.Wrong, p.Password.Wrong, p.Workspace.Wrong = fields["email"], fields["password"], fields["name"]
		return v.render(http.StatusUnprocessableEntity, p.Page())
	}
	if err != nil {
		return err
	}
	to := "/w/" + url.PathEscape(ws.Slug) + "/sandboxes"
	if f.RunCode {
		to += "/new"
	}
	return v.enter(user, to)
}

func (s *Server) inviteForm(v *visit) error {
	token := v.QueryParam("token")
	in, err := s.o.Service.InvitationByToken(v.ctx(), token)
	if err != nil {
		return staleInvitation(err)
	}
	return v.render(http.StatusOK, invitePage(v, token, in.Email, in.Workspace.Name, string(in.Role), in.Run, in.HasAccount).Page())
}

// staleInvitation says in words what a dead link means.
func staleInvitation(err error) error {
	if fault.Is(err, fault.NotFound) {
		return fault.Wrap(err, fault.NotFound, "This invitation link works no more: it was used, withdrawn, or is older than 7 days. Ask for a new one.")
	}
	return err
}

func invitePage(v *visit, token, email, into, role string, run, hasAccount bool) views.Invite {
	p := views.Invite{
		Shell: v.shell("Join "+display(into), ""), Token: token, Email: email, Into: display(into), Role: role, Run: run, HasAccount: hasAccount,
		Password: ui.Field{Name: "password", Label: "Choose a password", Hint: newPasswordHint},
	}
	if hasAccount {
		p.Password.Label, p.Password.Hint = "Your password", "You have an account here already; this is its password."
	}
	return p
}

func (s *Server) acceptInvite(v *visit) error {
	token := v.FormValue("token")
	in, err := s.o.Service.InvitationByToken(v.ctx(), token)
	if err != nil {
		return staleInvitation(err)
	}
	user, ws, err := s.o.Service.AcceptInvitation(v.ctx(), token, v.FormValue("password"), ClientIP(v.Request()), v.requestID())
	sentence, fields, ok := wrongIn(err)
	if fault.Is(err, fault.Unauthenticated) {
		sentence, ok = fault.Public(err), true
	}
	if ok {
		p := invitePage(v, token, in.Email, in.Workspace.Name, string(in.Role), in.Run, in.HasAccount)
		p.Wrong, p.Password.Wrong = sentence, fields["password"]
		return v.render(http.StatusUnprocessableEntity, p.Page())
	}
	if err != nil {
		return err
	}
	return v.enter(user, "/w/"+url.PathEscape(ws.Slug)+"/sandboxes")
}

func (v *visit) cookieValue(name string) string {
	c, err := v.Cookie(name)
	if err != nil {
		return ""
	}
	return c.Value
}

// keep sets a cookie of a year that holds a choice, nothing secret.
func (v *visit) keep(name, value string) {
	v.SetCookie(&http.Cookie{
		Name: name, Value: value, Path: "/", MaxAge: int((365 * 24 * time.Hour).Seconds()),
		HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: v.s.https(v.Request()),
	})
}
