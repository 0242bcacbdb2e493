package handlers

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"sandgate/auth"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/views"
	"sandgate/views/ui"
)

func (v *visit) keyForm() views.KeyForm {
	f := views.KeyForm{Action: v.base() + "/keys", Name: ui.Field{Name: "name", Label: "Name"}, CanService: v.actor.May(auth.KeysManage)}
	for _, p := range auth.AllPermissions {
		if p == auth.ApprovalsDecide { // nothing to decide yet
			continue
		}
		mine := v.actor.May(p)
		f.Permissions = append(f.Permissions, ui.Choice{
			Value: string(p), Text: meanings[p], Selected: mine && (p == auth.SandboxesRun || p == auth.SandboxesRead), Disabled: !mine && !f.CanService,
		})
	}
	for _, e := range []struct {
		value, text string
	}{{"7", "7 days"}, {"30", "30 days"}, {"90", "90 days"}, {"365", "a year"}, {"-1", "never"}} {
		f.Expiry = append(f.Expiry, ui.Choice{Value: e.value, Text: e.text, Selected: e.value == "90"})
	}
	return f
}

func (v *visit) keyRow(k auth.Key) views.KeyRow {
	r := views.KeyRow{
		Name: display(k.Name), Prefix: display(k.Prefix), Created: v.s.when(k.CreatedAt), Expires: v.s.when(k.ExpiresAt), Used: v.s.when(k.LastUsedAt),
	}
	if k.OwnerID != "" {
		r.Owner = display(k.OwnerEmail)
	}
	for _, p := range k.Permissions {
		r.Permissions = append(r.Permissions, string(p))
	}
	switch {
	case !k.RevokedAt.IsZero():
		r.Ended = "revoked"
	case !k.ExpiresAt.IsZero() && !k.ExpiresAt.After(v.s.o.Now()):
		r.Ended = "expired"
	case v.actor.May(auth.KeysManage) || k.OwnerID == v.userID && k.OwnerID != "":
		if v.actor.May(auth.KeysManage) {
			r.Policy = v.base() + "/keys/" + url.PathEscape(k.ID) + "/policy"
		}
		r.Revoke = v.base() + "/keys/" + url.PathEscape(k.ID) + "/revoke"
	}
	return r
}

// keyCreate makes a key and shows it, this once.
func (s *Server) keyCreate(v *visit) error {
	if _, err := v.FormParams(); err != nil {
		return err
	}
	form := v.Request().PostForm
	f := workspace.KeyForm{Name: strings.TrimSpace(form.Get("name")), ForMe: form.Get("service") != "1"}
	f.ExpiresDays, _ = strconv.Atoi(form.Get("expires"))
	for _, p := range auth.AllPermissions {
		if slices.Contains(form["permission"], string(p)) {
			f.Permissions = append(f.Permissions, p)
		}
	}
	key, secret, err := s.o.Service.CreateKey(v.ctx(), v.actor, f)
	if sentence, fields, ok := wrongIn(err); ok {
		return v.peoplePage(http.StatusUnprocessableEntity, func(p *views.People) {
			p.NewKey.Name.Value, p.NewKey.Name.Wrong, p.NewKey.Wrong, p.NewKey.Service = f.Name, fields["name"], sentence, !f.ForMe
			for i := range p.NewKey.Permissions {
				p.NewKey.Permissions[i].Selected = slices.Contains(form["permission"], p.NewKey.Permissions[i].Value)
			}
		})
	}
	if err != nil {
		return err
	}
	return v.peoplePage(http.StatusOK, func(p *views.People) {
		p.Shown = &views.ShownOnce{
			Title: "The key “" + display(key.Name) + "”", Secret: secret, Snippet: snippet(v.publicURL(), secret, ""),
			Words: "It is shown only now. Whoever has it may do what it lists; keep it like a password.",
		}
	})
}

func (v *visit) keyNamed() (auth.Key, error) {
	list, err := v.s.o.Service.Keys(v.ctx(), v.actor)
	if err != nil {
		return auth.Key{}, err
	}
	for _, k := range list {
		if k.ID == v.Param("key") {
			return k, nil
		}
	}
	return auth.Key{}, fault.New(fault.NotFound, "There is no such key.")
}

func (s *Server) keyRevokeForm(v *visit) error {
	k, err := v.keyNamed()
	if err != nil {
		return err
	}
	return v.renderForm(http.StatusOK, views.Confirm{
		Shell: v.shell("People & keys", "people"), Heading: "Revoke “" + display(k.Name) + "”?", Button: "Revoke", Danger: true,
		Action: v.base() + "/keys/" + url.PathEscape(k.ID) + "/revoke", Cancel: v.base() + "/people",
		Words: []string{"Scripts and agents that use it are refused at once, and it can't be brought back."},
	})
}

func (s *Server) keyRevoke(v *visit) error {
	if err := s.o.Service.RevokeKey(v.ctx(), v.actor, v.Param("key")); err != nil {
		return err
	}
	return v.goTo(v.base() + "/people?done=revoked#keys")
}
