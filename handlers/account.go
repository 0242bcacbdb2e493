package handlers

import (
	"net/http"
	"net/url"

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

func (s *Server) account(v *visit) error { return v.accountPage(http.StatusOK, ui.Field{}) }

func (v *visit) accountPage(status int, name ui.Field) error {
	name.Name, name.Label, name.Hint = "name", "New workspace", "You become its admin. Running code in it is granted apart, on its People & keys page."
	p := views.Account{Shell: v.shell("Account", "account"), NewName: name, CanCreate: v.actor.MakesPlaces}
	p.Workspaces = p.Shell.Workspaces
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
		return v.accountPage(http.StatusUnprocessableEntity, ui.Field{Value: name, Wrong: sentence})
	}
	if err != nil {
		return err
	}
	return v.Redirect(http.StatusSeeOther, "/w/"+url.PathEscape(ws.Slug)+"/people?done=workspace")
}
