package workspace

import (
	"context"
	"fmt"
	"time"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/sandbox"
)

// maxInvitations bounds the open ones of a workspace.
const maxInvitations = 500

// Members lists members; needs members:manage, or read for names and roles alone.
func (s *Service) Members(ctx context.Context, a auth.Actor) ([]auth.Member, error) {
	if err := s.may(ctx, a, approval.Action{Name: "member.list"}, auth.MembersManage, auth.SandboxesRead); err != nil {
		return nil, err
	}
	all, err := s.o.Store.Members(ctx, a.Workspace.ID)
	if err != nil || a.May(auth.MembersManage) {
		return all, err
	}
	for i, m := range all {
		all[i] = auth.Member{WorkspaceID: m.WorkspaceID, UserID: m.UserID, Email: m.Email, Role: m.Role}
	}
	return all, nil
}

// Invite makes a link token for an e-mail (single use, 7 days); run grants sandboxes:run on joining, on record. Needs
// members:manage. An invitation before to the same e-mail dies; a member is fault.Conflict.
func (s *Service) Invite(ctx context.Context, a auth.Actor, email string, role auth.Role, run bool) (token string, err error) {
	what := approval.Action{Kind: approval.Other, Name: "member.invite", Target: email}
	if err := s.may(ctx, a, what, auth.MembersManage); err != nil {
		return "", err
	}
	if email, err = auth.NormalEmail(email); err != nil {
		return "", err
	}
	if !role.Valid() {
		return "", fault.Field("role", "There is no such role.")
	}
	if err := s.invitable(ctx, a.Workspace.ID, email); err != nil {
		return "", err
	}
	token, what.Target = auth.NewToken(), email
	i := auth.Invitation{
		ID: sandbox.RandomID("in"), WorkspaceID: a.Workspace.ID, Email: email, Role: role, Run: run, Hash: auth.HashSecret(token),
		InvitedBy: a.Name, CreatedAt: s.o.Now(), ExpiresAt: s.o.Now().Add(invitationLife),
	}
	err = s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		return describe(joining(i, auth.User{}, i.CreatedAt)), s.o.Store.PutInvitation(ctx, i)
	})
	if err != nil {
		return "", err
	}
	s.peopleChanged(a.Workspace.ID)
	return token, nil
}

func (s *Service) invitable(ctx context.Context, workspaceID, email string) error {
	members, err := s.o.Store.Members(ctx, workspaceID)
	if err != nil {
		return err
	}
	for _, m := range members {
		if m.Email == email {
			return fault.New(fault.Conflict, "%s is a member already.", email)
		}
	}
	open, err := s.o.Store.Invitations(ctx, workspaceID, s.o.Now())
	if err == nil && len(open) >= maxInvitations {
		return fault.New(fault.QuotaExceeded, "There are %d open invitations. Withdraw some first.", len(open))
	}
	return err
}

// joining gives the membership that an invitation promises.
func joining(i auth.Invitation, u auth.User, now time.Time) auth.Member {
	m := auth.Member{WorkspaceID: i.WorkspaceID, UserID: u.ID, Email: i.Email, Role: i.Role, JoinedAt: now}
	if i.Run {
		m.Granted = auth.Permissions{auth.SandboxesRun}
	}
	return m
}

// Invitation is one that is still open.
type Invitation struct {
	ID         string
	Email      string
	Role       auth.Role
	Run        bool
	ExpiresAt  time.Time
	Workspace  auth.Workspace
	HasAccount bool // the e-mail has an account: the page asks for its password instead of a new one; only by token
}

// Invitations lists open ones; needs members:manage.
func (s *Service) Invitations(ctx context.Context, a auth.Actor) ([]Invitation, error) {
	if err := s.may(ctx, a, approval.Action{Name: "invitation.list"}, auth.MembersManage); err != nil {
		return nil, err
	}
	open, err := s.o.Store.Invitations(ctx, a.Workspace.ID, s.o.Now())
	out := make([]Invitation, len(open))
	for n, i := range open {
		out[n] = shownInvitation(i, a.Workspace)
	}
	return out, err
}

func shownInvitation(i auth.Invitation, w auth.Workspace) Invitation {
	return Invitation{ID: i.ID, Email: i.Email, Role: i.Role, Run: i.Run, ExpiresAt: i.ExpiresAt, Workspace: w}
}

// WithdrawInvitation ends one; needs members:manage.
func (s *Service) WithdrawInvitation(ctx context.Context, a auth.Actor, id string) error {
	what := approval.Action{Kind: approval.Other, Name: "member.withdraw_invitation", Target: id}
	if err := s.may(ctx, a, what, auth.MembersManage); err != nil {
		return err
	}
	err := s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		return "", s.o.Store.DeleteInvitation(ctx, a.Workspace.ID, id)
	})
	s.peopleChanged(a.Workspace.ID)
	return err
}

// InvitationByToken shows one to the person invited. Wrong, used, old: fault.NotFound.
func (s *Service) InvitationByToken(ctx context.Context, token string) (Invitation, error) {
	i, w, err := s.o.Store.InvitationByHash(ctx, auth.HashSecret(token), s.o.Now())
	if err != nil {
		return Invitation{}, err
	}
	out := shownInvitation(i, w)
	_, err = s.o.Store.UserByEmail(ctx, i.Email)
	if err != nil && !fault.Is(err, fault.NotFound) {
		return Invitation{}, err
	}
	out.HasAccount = err == nil
	return out, nil
}

// AcceptInvitation joins: makes the account with the password, or checks the password of an account that exists.
// Wrong, used, old: fault.NotFound. Wrong password: as SignIn, and the invitation stays.
func (s *Service) AcceptInvitation(ctx context.Context, token, password, address, requestID string) (auth.User, auth.Workspace, error) {
	now := s.o.Now()
	i, w, err := s.o.Store.InvitationByHash(ctx, auth.HashSecret(token), now)
	if err != nil {
		return auth.User{}, auth.Workspace{}, err
	}
	what := approval.Action{Kind: approval.Other, Name: "member.join", Target: i.Email}
	u, isNew, err := s.invited(ctx, what, i, password, address, requestID)
	if err != nil {
		return auth.User{}, auth.Workspace{}, err
	}
	var newUser *auth.User
	if isNew {
		newUser = &u
	}
	m := joining(i, u, now)
	a := auth.Actor{Kind: auth.Person, UserID: u.ID, Name: u.Email, Workspace: w, Address: address, RequestID: requestID}
	err = s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		return describe(m) + ", invited by " + i.InvitedBy, s.o.Store.AcceptInvitation(ctx, i.ID, now, newUser, m)
	})
	if err != nil {
		return auth.User{}, auth.Workspace{}, err
	}
	s.peopleChanged(w.ID)
	if i.Run {
		grant := approval.Action{Kind: approval.Other, Name: "member.grant", Target: u.Email}
		err = s.o.Audit.Note(ctx, event(a, grant, audit.OK, string(auth.SandboxesRun)+", by invitation of "+i.InvitedBy))
	}
	u.PasswordHash = ""
	return u, w, err
}

// invited gives the account of somebody invited: the one that exists, if the password is right, or one to be made.
func (s *Service) invited(ctx context.Context, what approval.Action, i auth.Invitation, password, address, requestID string) (u auth.User, isNew bool, err error) {
	_, err = s.o.Store.UserByEmail(ctx, i.Email)
	if err == nil {
		u, _, err = s.checkPassword(ctx, what, i.Email, password, address, requestID)
		return u, false, err
	}
	if !fault.Is(err, fault.NotFound) {
		return u, false, err
	}
	if err := auth.CheckNewPassword(password, i.Email); err != nil {
		return u, false, err
	}
	hash, err := s.people.hash.Hash(ctx, password)
	return auth.User{ID: sandbox.RandomID("us"), Email: i.Email, PasswordHash: hash, CreatedAt: s.o.Now()}, true, err
}

// changeMember is what SetRole, SetRun and RemoveMember share.
func (s *Service) changeMember(ctx context.Context, a auth.Actor, name, userID string, do func(ctx context.Context, m auth.Member) (string, error)) error {
	what := approval.Action{Kind: approval.Other, Name: name, Target: userID}
	if err := s.may(ctx, a, what, auth.MembersManage); err != nil {
		return err
	}
	m, err := s.o.Store.Member(ctx, a.Workspace.ID, userID)
	if err != nil {
		return err
	}
	what.Target = m.Email
	err = s.change(ctx, a, what, func(ctx context.Context) (string, error) { return do(ctx, m) })
	s.peopleChanged(a.Workspace.ID)
	return err
}

// SetRole gives a member another role; like SetRun and RemoveMember it needs members:manage, and ends what the member may
// no longer have open. The last admin of a workspace cannot be removed or lose the role (fault.Conflict).
func (s *Service) SetRole(ctx context.Context, a auth.Actor, userID string, role auth.Role) error {
	const name = "member.set_role"
	if err := s.may(ctx, a, approval.Action{Name: name, Target: userID}, auth.MembersManage); err != nil {
		return err
	}
	if !role.Valid() {
		return fault.Field("role", "There is no such role.")
	}
	return s.changeMember(ctx, a, name, userID, func(ctx context.Context, m auth.Member) (string, error) {
		return fmt.Sprintf("%s to %s", m.Role, role), s.o.Store.SetRole(ctx, m.WorkspaceID, m.UserID, role)
	})
}

// SetRun grants or takes sandboxes:run.
func (s *Service) SetRun(ctx context.Context, a auth.Actor, userID string, run bool) error {
	name := "member.grant"
	if !run {
		name = "member.revoke"
	}
	return s.changeMember(ctx, a, name, userID, func(ctx context.Context, m auth.Member) (string, error) {
		return string(auth.SandboxesRun), s.o.Store.Grant(ctx, m.WorkspaceID, m.UserID, auth.SandboxesRun, run)
	})
}

// RemoveMember ends a membership, and the keys that the person owns in the workspace.
func (s *Service) RemoveMember(ctx context.Context, a auth.Actor, userID string) error {
	return s.changeMember(ctx, a, "member.remove", userID, func(ctx context.Context, m auth.Member) (string, error) {
		return describe(m), s.o.Store.DeleteMember(ctx, m.WorkspaceID, m.UserID, s.o.Now())
	})
}
