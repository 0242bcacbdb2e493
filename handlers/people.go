package handlers

import (
	"net/http"
	"net/url"
	"strings"

	"sandgate/auth"
	"sandgate/internal/fault"
	"sandgate/views"
	"sandgate/views/ui"
)

func (s *Server) people(v *visit) error { return v.peoplePage(http.StatusOK, nil) }

// peoplePage shows the page; change may put a secret or a mistake on it.
func (v *visit) peoplePage(status int, change func(*views.People)) error {
	members, err := v.s.o.Service.Members(v.ctx(), v.actor)
	if err != nil {
		return err
	}
	p := views.People{
		Shell: v.shell("People & keys", "people"), CanMembers: v.actor.May(auth.MembersManage), CanKeys: v.actor.May(auth.KeysManage),
		Matrix: matrix(), NewKey: v.keyForm(), Invite: views.InviteForm{
			Action: v.base() + "/people/invitations", Email: ui.Field{Name: "email", Label: "E-mail"}, Roles: roleChoices(auth.Analyst),
		},
	}
	for _, m := range members {
		p.Members = append(p.Members, v.member(m))
	}
	if p.CanMembers {
		open, err := v.s.o.Service.Invitations(v.ctx(), v.actor)
		if err != nil {
			return err
		}
		for _, i := range open {
			p.Invitations = append(p.Invitations, views.InvitationRow{
				Email: display(i.Email), Role: string(i.Role), Run: i.Run, Expires: v.s.when(i.ExpiresAt),
				Withdraw: v.base() + "/people/invitations/" + url.PathEscape(i.ID) + "/withdraw",
			})
		}
	}
	keys, err := v.s.o.Service.Keys(v.ctx(), v.actor)
	if err != nil {
		return err
	}
	for _, k := range keys {
		p.Keys = append(p.Keys, v.keyRow(k))
	}
	if change != nil {
		change(&p)
	}
	return v.render(status, p.Page())
}

func (v *visit) member(m auth.Member) views.MemberRow {
	at := v.base() + "/people/" + url.PathEscape(m.UserID)
	r := views.MemberRow{
		Email: display(m.Email), Me: m.UserID == v.userID, Role: string(m.Role), Roles: roleChoices(m.Role), Disabled: m.Disabled,
		Joined: v.s.when(m.JoinedAt), RoleURL: at + "/role", RunURL: at + "/run", Remove: at + "/remove",
	}
	var others []string
	for _, g := range m.Granted {
		if g == auth.SandboxesRun {
			r.CanRun = true
		} else {
			others = append(others, string(g))
		}
	}
	r.Granted = strings.Join(others, ", ")
	return r
}

func roleChoices(chosen auth.Role) []ui.Choice {
	var out []ui.Choice
	for _, r := range auth.Roles {
		out = append(out, ui.Choice{Value: string(r), Text: string(r), Selected: r == chosen})
	}
	return out
}

var meanings = map[auth.Permission]string{
	auth.SandboxesRead:   "list and look into sandboxes, watch terminals",
	auth.SandboxesRun:    "create sandboxes, run, type, write files",
	auth.SandboxesManage: "limits, kill anybody's; runs nothing",
	auth.ApprovalsDecide: "approve or deny what waits",
	auth.AuditRead:       "read the activity of the workspace",
	auth.MembersManage:   "invite, roles, grants, remove",
	auth.KeysManage:      "everybody's keys, service accounts",
}

func matrix() views.Matrix {
	m := views.Matrix{}
	for _, r := range auth.Roles {
		m.Roles = append(m.Roles, string(r))
	}
	for _, p := range auth.AllPermissions {
		row := views.MatrixRow{Permission: string(p), Meaning: meanings[p]}
		for _, r := range auth.Roles {
			row.Has = append(row.Has, r.Permissions().Has(p))
		}
		m.Rows = append(m.Rows, row)
	}
	return m
}

func (s *Server) invite(v *visit) error {
	email, role, grant := strings.TrimSpace(v.FormValue("email")), auth.Role(v.FormValue("role")), v.FormValue("run") == "1"
	token, err := s.o.Service.Invite(v.ctx(), v.actor, email, role, grant)
	if sentence, fields, ok := wrongIn(err); ok {
		return v.peoplePage(http.StatusUnprocessableEntity, func(p *views.People) {
			p.Invite.Email.Value, p.Invite.Email.Wrong, p.Invite.Run, p.Invite.Roles = email, orElse(fields["email"], sentence), grant, roleChoices(role)
		})
	}
	if err != nil {
		return err
	}
	return v.peoplePage(http.StatusOK, func(p *views.People) {
		p.Shown = &views.ShownOnce{
			Title: "The invitation link for " + display(email), Secret: v.publicURL() + "/invite?token=" + url.QueryEscape(token),
			Words: "It is shown only now, works once and for 7 days. Send it over a way that only this person reads.",
		}
	})
}

func (s *Server) withdraw(v *visit) error {
	if err := s.o.Service.WithdrawInvitation(v.ctx(), v.actor, v.Param("invitation")); err != nil {
		return err
	}
	return v.goTo(v.base() + "/people?done=withdrawn")
}

func (s *Server) setRole(v *visit) error {
	if err := s.o.Service.SetRole(v.ctx(), v.actor, v.Param("user"), auth.Role(v.FormValue("role"))); err != nil {
		return err
	}
	return v.goTo(v.base() + "/people?done=role")
}

// memberNamed finds the member of the path; somebody else's is as unknown as nobody's.
func (v *visit) memberNamed() (auth.Member, error) {
	list, err := v.s.o.Service.Members(v.ctx(), v.actor)
	if err != nil {
		return auth.Member{}, err
	}
	for _, m := range list {
		if m.UserID == v.Param("user") {
			return m, nil
		}
	}
	return auth.Member{}, fault.New(fault.NotFound, "There is no such member.")
}

func (s *Server) runForm(v *visit) error {
	m, err := v.memberNamed()
	if err != nil {
		return err
	}
	c := views.Confirm{Shell: v.shell("People & keys", "people"), Action: v.base() + "/people/" + url.PathEscape(m.UserID) + "/run", Cancel: v.base() + "/people"}
	if m.Granted.Has(auth.SandboxesRun) {
		c.Heading, c.Button, c.Danger = "Take running code back from "+display(m.Email)+"?", "Take it back", true
		c.Words = []string{"Their terminals and streams here close within two seconds; their keys can run nothing more. What runs inside goes on until it is killed."}
		c.Hidden = []ui.Field{{Name: "run", Value: "0"}}
	} else {
		c.Heading, c.Button = "Let "+display(m.Email)+" run code here?", "Grant sandboxes:run"
		c.Words = []string{"They may then create sandboxes, run commands, type in terminals and write files in this workspace. Your name stands beside the grant on the record."}
		c.Hidden = []ui.Field{{Name: "run", Value: "1"}}
	}
	return v.renderForm(http.StatusOK, c)
}

func (s *Server) setRun(v *visit) error {
	grant := v.FormValue("run") == "1"
	if err := s.o.Service.SetRun(v.ctx(), v.actor, v.Param("user"), grant); err != nil {
		return err
	}
	if grant {
		return v.goTo(v.base() + "/people?done=granted")
	}
	return v.goTo(v.base() + "/people?done=taken")
}

func (s *Server) removeForm(v *visit) error {
	m, err := v.memberNamed()
	if err != nil {
		return err
	}
	return v.renderForm(http.StatusOK, views.Confirm{
		Shell: v.shell("People & keys", "people"), Heading: "Remove " + display(m.Email) + "?", Button: "Remove", Danger: true,
		Action: v.base() + "/people/" + url.PathEscape(m.UserID) + "/remove", Cancel: v.base() + "/people",
		Words: []string{"What they have open here closes within two seconds, and their keys of this workspace end. Their sandboxes stay."},
	})
}

func (s *Server) remove(v *visit) error {
	if err := s.o.Service.RemoveMember(v.ctx(), v.actor, v.Param("user")); err != nil {
		return err
	}
	if v.Param("user") == v.userID {
		return v.goTo("/account")
	}
	return v.goTo(v.base() + "/people?done=removed")
}
