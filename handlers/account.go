package handlers

import (
	"net/http"
	"net/url"
	"strings"

	"sandgate/internal/workspace"
	"sandgate/views"
	"sandgate/views/ui"
)

func workspaceSetup(v *visit) workspace.SetupForm {
	return workspace.SetupForm{
		Token: v.FormValue("token"), Email: v.FormValue("email"), Password: v.FormValue("password"),
		WorkspaceName: v.FormValue("workspace"), RunCode: v.FormValue("run") == "1",
	}
}

func (s *Server) account(v *visit) error { return v.accountPage(http.StatusOK, ui.Field{}, nil) }

// accountPage shows it; wrong says what is wrong with the fields of the password's form.
func (v *visit) accountPage(status int, name ui.Field, wrong map[string]string) error {
	name.Name, name.Label, name.Hint = "name", "New workspace", "You become its admin. Running code in it is granted apart, on its People & keys page."
	p := views.Account{Shell: v.shell("Account", "account"), NewName: name, CanCreate: v.actor.MakesPlaces}
	p.Workspaces = p.Shell.Workspaces
	p.Current = ui.Field{Name: "current", Label: "Present password", Wrong: wrong["current"]}
	p.New = ui.Field{Name: "password", Label: "New password", Hint: "At least 10 characters. Everywhere else you are signed out.", Wrong: wrong["password"]}
	sessions, err := v.s.o.Service.OwnSessions(v.ctx(), v.actor)
	if err != nil {
		return err
	}
	for _, one := range sessions {
		p.Sessions = append(p.Sessions, views.SessionRow{
			Browser: browserName(one.UserAgent), Address: display(one.Address), Begun: v.s.when(one.CreatedAt), Used: v.s.when(one.LastSeenAt),
			Here: one.ID == v.actor.SessionID, End: "/account/sessions/" + url.PathEscape(one.ID) + "/end",
		})
	}
	for _, t := range []struct{ value, text string }{{"system", "As the system"}, {"light", "Light"}, {"dark", "Dark"}} {
		p.Themes = append(p.Themes, ui.Choice{Value: t.value, Text: t.text, Selected: t.value == v.theme()})
	}
	return v.render(status, p.Page())
}

func (s *Server) setTheme(v *visit) error {
	theme := v.FormValue("theme")
	if theme != "light" && theme != "dark" {
		theme = "system"
	}
	v.keep(themeCookie, theme)
	return v.Redirect(http.StatusSeeOther, "/account")
}

func (s *Server) createWorkspace(v *visit) error {
	name := v.FormValue("name")
	ws, err := s.o.Service.CreateWorkspace(v.ctx(), v.actor, name)
	if sentence, fields, ok := wrongIn(err); ok {
		if msg := fields["name"]; msg != "" {
			sentence = msg
		}
		return v.accountPage(http.StatusUnprocessableEntity, ui.Field{Value: name, Wrong: sentence}, nil)
	}
	if err != nil {
		return err
	}
	return v.Redirect(http.StatusSeeOther, "/w/"+url.PathEscape(ws.Slug)+"/people?done=workspace")
}

func (s *Server) changePassword(v *visit) error {
	err := s.o.Service.ChangePassword(v.ctx(), v.actor, v.FormValue("current"), v.FormValue("password"))
	if sentence, fields, ok := wrongIn(err); ok {
		if len(fields) == 0 {
			fields = map[string]string{"current": sentence}
		}
		return v.accountPage(http.StatusUnprocessableEntity, ui.Field{}, fields)
	}
	if err != nil {
		return err
	}
	return v.Redirect(http.StatusSeeOther, "/account?done=password")
}

func (s *Server) endSession(v *visit) error {
	if err := s.o.Service.EndSession(v.ctx(), v.actor, v.Param("session")); err != nil {
		return err
	}
	return v.Redirect(http.StatusSeeOther, "/account?done=session")
}

func (s *Server) endOtherSessions(v *visit) error {
	if err := s.o.Service.EndOtherSessions(v.ctx(), v.actor); err != nil {
		return err
	}
	return v.Redirect(http.StatusSeeOther, "/account?done=sessions")
}

// browserName makes of a User-Agent what people call their browser; it is a claim, and shown as one.
func browserName(agent string) string {
	system := "an unknown system"
	for _, s := range [][2]string{{"Android", "Android"}, {"iPhone", "iPhone"}, {"iPad", "iPad"}, {"Windows", "Windows"}, {"Mac OS X", "macOS"}, {"CrOS", "ChromeOS"}, {"Linux", "Linux"}} {
		if strings.Contains(agent, s[0]) {
			system = s[1]
			break
		}
	}
	for _, b := range [][2]string{{"Firefox/", "Firefox"}, {"Edg/", "Edge"}, {"OPR/", "Opera"}, {"Chrome/", "Chrome"}, {"Safari/", "Safari"}} {
		if strings.Contains(agent, b[0]) {
			return b[1] + " on " + system
		}
	}
	if agent == "" {
		return "An unnamed program"
	}
	return display(short(agent, 60))
}
