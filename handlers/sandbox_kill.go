package handlers

import (
	"errors"
	"fmt"
	"net/http"
	"slices"

	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
	"sandgate/views"
	"sandgate/views/ui"
)

const maxSelected = 200

// selected gives the sandboxes whose ids the form names; unknown ones are left out.
func (s *Server) selected(v *visit, ids []string) ([]workspace.Sandbox, error) {
	if len(ids) > maxSelected {
		return nil, fault.New(fault.Invalid, "At most %d sandboxes can be killed at once.", maxSelected)
	}
	all, err := s.o.Service.Sandboxes(v.ctx(), v.actor)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(b workspace.Sandbox) bool { return !slices.Contains(ids, string(b.ID)) }), nil
}

func sandboxName(b workspace.Sandbox) string {
	if b.Label != "" {
		return display(b.Label)
	}
	return string(b.ID)
}

// sandboxesKillForm asks before killing those that the list's boxes or a row's link name.
func (s *Server) sandboxesKillForm(v *visit) error {
	chosen, err := s.selected(v, v.QueryParams()["id"])
	if err != nil {
		return err
	}
	list := v.base() + "/sandboxes"
	p := views.Confirm{
		Shell: v.shell("Kill sandboxes", "sandboxes"), Action: list + "/kill", Cancel: list, Danger: true,
		Words: []string{"Processes, files and terminals inside are gone at once and can't be brought back."},
	}
	switch len(chosen) {
	case 0:
		p.Heading, p.Words, p.Button, p.Danger = "Nothing to kill", []string{"None of them is there any more, or none was selected."}, "To the list", false
		p.Action = list + "/kill"
		return v.renderForm(http.StatusOK, p)
	case 1:
		p.Heading, p.Button = "Kill “"+sandboxName(chosen[0])+"”?", "Kill it"
	default:
		p.Heading, p.Button = fmt.Sprintf("Kill %d sandboxes?", len(chosen)), fmt.Sprintf("Kill %d", len(chosen))
	}
	for _, b := range chosen {
		p.Items = append(p.Items, sandboxName(b)+" · "+string(b.ID)+" · "+display(b.OwnerName))
		p.Hidden = append(p.Hidden, ui.Field{Name: "id", Value: string(b.ID)})
	}
	return v.renderForm(http.StatusOK, p)
}

// sandboxesKill kills each; one that can't be killed does not keep the others alive.
func (s *Server) sandboxesKill(v *visit) error {
	if _, err := v.FormParams(); err != nil {
		return err
	}
	ids := v.Request().PostForm["id"]
	if len(ids) > maxSelected {
		return fault.New(fault.Invalid, "At most %d sandboxes can be killed at once.", maxSelected)
	}
	var failed []error
	for _, id := range ids {
		if !sandbox.ID(id).Valid() {
			failed = append(failed, fault.New(fault.NotFound, "Sandbox not found"))
			continue
		}
		if err := s.o.Service.KillSandbox(v.ctx(), v.actor, id); err != nil {
			failed = append(failed, err)
		}
	}
	switch {
	case len(failed) == 1:
		return failed[0]
	case len(failed) > 1:
		return fault.Wrap(errors.Join(failed...), fault.KindOf(failed[0]), "%d of %d could not be killed: %s", len(failed), len(ids), fault.Public(failed[0]))
	case len(ids) == 0:
		return v.goTo(v.base() + "/sandboxes")
	}
	return v.goTo(v.base() + "/sandboxes?done=killed")
}

// sandboxKillForm asks on a sandbox's own page: there one has to type what is meant.
func (s *Server) sandboxKillForm(v *visit) error {
	b, err := s.o.Service.Sandbox(v.ctx(), v.actor, v.Param("id"))
	if err != nil {
		return err
	}
	return v.renderForm(http.StatusOK, killPage(v, b))
}

func killPage(v *visit, b workspace.Sandbox) views.Confirm {
	at := v.base() + "/sandboxes/" + string(b.ID)
	return views.Confirm{
		Shell: v.shell("Kill "+sandboxName(b), "sandboxes"), Heading: "Kill “" + sandboxName(b) + "”?", Action: at + "/kill", Cancel: at, Danger: true,
		Words: []string{"Processes, files and terminals inside are gone at once and can't be brought back."}, Typed: typedWord(b), Button: "Kill it",
	}
}

// typedWord is what has to be typed: the label where it is plain to type, else the end of the id.
func typedWord(b workspace.Sandbox) string {
	plain := len(b.Label) > 0 && len(b.Label) <= 30
	for _, r := range b.Label {
		plain = plain && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.')
	}
	if plain {
		return b.Label
	}
	return string(b.ID)[len(b.ID)-4:]
}

func (s *Server) sandboxKill(v *visit) error {
	id := v.Param("id")
	b, err := s.o.Service.Sandbox(v.ctx(), v.actor, id)
	if fault.Is(err, fault.NotFound) {
		if err := s.o.Service.KillSandbox(v.ctx(), v.actor, id); err != nil {
			return err
		}
		return v.goTo(v.base() + "/sandboxes?done=gone")
	}
	if err != nil {
		return err
	}
	if v.FormValue("typed") != typedWord(b) {
		p := killPage(v, b)
		p.Wrong = "Nothing was killed: what you typed is not “" + p.Typed + "”."
		return v.renderForm(http.StatusUnprocessableEntity, p)
	}
	if err := s.o.Service.KillSandbox(v.ctx(), v.actor, id); err != nil {
		return err
	}
	return v.goTo(v.base() + "/sandboxes?done=killed")
}
