package workspace

import (
	"context"
	"strings"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/fault"
	"sandgate/sandbox"
)

// What follows is for commands on the host: whoever may read the data directory may do it. The actor is the system; gate
// and record are the same as everywhere. Only cmd calls it.

func adminAction(name, target string) approval.Action {
	return approval.Action{Kind: approval.Other, Name: name, Target: target}
}

// AdminCreateUser makes an account; admin lets the person create workspaces.
func (s *Service) AdminCreateUser(ctx context.Context, email, password string, admin bool) (auth.User, error) {
	email, err := auth.NormalEmail(email)
	if err != nil {
		return auth.User{}, err
	}
	if err := auth.CheckNewPassword(password, email); err != nil {
		return auth.User{}, err
	}
	hash, err := s.people.hash.Hash(ctx, password)
	if err != nil {
		return auth.User{}, err
	}
	u := auth.User{ID: sandbox.RandomID("us"), Email: email, PasswordHash: hash, Admin: admin, CreatedAt: s.o.Now()}
	err = s.change(ctx, host(""), adminAction("user.create", email), func(ctx context.Context) (detail string, err error) {
		if admin {
			detail = "administrator of the installation"
		}
		return detail, s.o.Store.InsertUser(ctx, u)
	})
	u.PasswordHash = ""
	return u, err
}

// AdminUsers lists all accounts by e-mail, without password hashes.
func (s *Service) AdminUsers(ctx context.Context) ([]auth.User, error) {
	users, err := s.o.Store.Users(ctx)
	for i := range users {
		users[i].PasswordHash = ""
	}
	return users, err
}

// AdminDisableUser disables an account, which ends its sessions, keys' use and open streams, or enables it again.
func (s *Service) AdminDisableUser(ctx context.Context, email string, disabled bool) error {
	u, err := s.userByEmail(ctx, email)
	if err != nil {
		return err
	}
	name := "user.disable"
	if !disabled {
		name = "user.enable"
	}
	err = s.change(ctx, host(""), adminAction(name, u.Email), func(ctx context.Context) (string, error) {
		return "", s.o.Store.SetDisabled(ctx, u.ID, disabled)
	})
	s.peopleChanged("")
	return err
}

// AdminSetPassword gives an account a new password and signs the person out everywhere.
func (s *Service) AdminSetPassword(ctx context.Context, email, password string) error {
	u, err := s.userByEmail(ctx, email)
	if err != nil {
		return err
	}
	if err := auth.CheckNewPassword(password, u.Email); err != nil {
		return err
	}
	hash, err := s.people.hash.Hash(ctx, password)
	if err != nil {
		return err
	}
	err = s.change(ctx, host(""), adminAction("user.set_password", u.Email), func(ctx context.Context) (string, error) {
		return "signed out everywhere", s.o.Store.SetPassword(ctx, u.ID, hash, true)
	})
	s.peopleChanged("")
	return err
}

func (s *Service) userByEmail(ctx context.Context, email string) (auth.User, error) {
	email, err := auth.NormalEmail(email)
	if err != nil {
		return auth.User{}, err
	}
	u, err := s.o.Store.UserByEmail(ctx, email)
	if fault.Is(err, fault.NotFound) {
		return u, fault.New(fault.NotFound, "There is no account of %s.", email)
	}
	return u, err
}

// AdminCreateWorkspace makes a workspace without members.
func (s *Service) AdminCreateWorkspace(ctx context.Context, name string) (auth.Workspace, error) {
	name, err := workspaceName(name)
	if err != nil {
		return auth.Workspace{}, err
	}
	w := s.newWorkspace(name)
	a := host(w.ID)
	err = s.change(ctx, a, adminAction("workspace.create", name), func(ctx context.Context) (detail string, err error) {
		w, err = s.o.Store.InsertWorkspace(ctx, w, auth.Member{})
		return "slug " + w.Slug, err
	})
	return w, err
}

// AdminWorkspaces lists all workspaces by name.
func (s *Service) AdminWorkspaces(ctx context.Context) ([]auth.Workspace, error) {
	return s.o.Store.Workspaces(ctx)
}

// AdminWorkspace finds a workspace by its slug, or by its name where only one has it.
func (s *Service) AdminWorkspace(ctx context.Context, slugOrName string) (auth.Workspace, error) {
	w, err := s.o.Store.WorkspaceBySlug(ctx, slugOrName)
	if !fault.Is(err, fault.NotFound) {
		return w, err
	}
	all, err := s.o.Store.Workspaces(ctx)
	if err != nil {
		return w, err
	}
	found := 0
	for _, one := range all {
		if strings.EqualFold(one.Name, slugOrName) {
			w, found = one, found+1
		}
	}
	switch found {
	case 0:
		return w, fault.New(fault.NotFound, "There is no workspace %.60q.", slugOrName)
	case 1:
		return w, nil
	default:
		return auth.Workspace{}, fault.New(fault.Conflict, "%d workspaces are named %.60q. Use the slug.", found, slugOrName)
	}
}

// AdminMembers lists a workspace's members by e-mail.
func (s *Service) AdminMembers(ctx context.Context, slugOrName string) ([]auth.Member, error) {
	w, err := s.AdminWorkspace(ctx, slugOrName)
	if err != nil {
		return nil, err
	}
	return s.o.Store.Members(ctx, w.ID)
}

// AdminGrant makes a person a member, or gives a member another role ("" keeps it, and is viewer for a new member), and
// adds permissions beside the role.
func (s *Service) AdminGrant(ctx context.Context, slugOrName, email string, role auth.Role, add auth.Permissions) (auth.Member, error) {
	w, err := s.AdminWorkspace(ctx, slugOrName)
	if err != nil {
		return auth.Member{}, err
	}
	u, err := s.userByEmail(ctx, email)
	if err != nil {
		return auth.Member{}, err
	}
	if role != "" && !role.Valid() {
		return auth.Member{}, fault.Field("role", "There is no role %.40q.", string(role))
	}
	m, err := s.o.Store.Member(ctx, w.ID, u.ID)
	if fault.Is(err, fault.NotFound) {
		m, err = auth.Member{WorkspaceID: w.ID, UserID: u.ID, Email: u.Email, Role: auth.Viewer, JoinedAt: s.o.Now()}, nil
	}
	if err != nil {
		return auth.Member{}, err
	}
	if role != "" {
		m.Role = role
	}
	m.Granted = m.Granted.With(add...)
	a := host(w.ID)
	err = s.change(ctx, a, adminAction("member.grant", u.Email), func(ctx context.Context) (string, error) {
		return describe(m), s.o.Store.PutMember(ctx, m)
	})
	s.peopleChanged(w.ID)
	return m, err
}

// AdminKeyForm describes a key made on the host; with an OwnerEmail it is that member's, else a service account's.
type AdminKeyForm struct {
	Workspace   string // slug or name
	Name        string
	OwnerEmail  string
	ExpiresDays int // 0: 90; -1: never
	Permissions auth.Permissions
}

// AdminCreateKey makes a key and returns its secret, once.
func (s *Service) AdminCreateKey(ctx context.Context, f AdminKeyForm) (auth.Key, string, error) {
	w, err := s.AdminWorkspace(ctx, f.Workspace)
	if err != nil {
		return auth.Key{}, "", err
	}
	owner := ""
	if f.OwnerEmail != "" {
		u, err := s.userByEmail(ctx, f.OwnerEmail)
		if err != nil {
			return auth.Key{}, "", err
		}
		if _, err := s.o.Store.Member(ctx, w.ID, u.ID); err != nil {
			return auth.Key{}, "", err
		}
		owner = u.ID
	}
	k, secret, err := s.newKey(ctx, w.ID, owner, KeyForm{Name: f.Name, Permissions: f.Permissions, ExpiresDays: f.ExpiresDays})
	if err != nil {
		return auth.Key{}, "", err
	}
	a := host(w.ID)
	if err := s.insertKey(ctx, a, adminAction("key.create", k.Name), k); err != nil {
		return auth.Key{}, "", err
	}
	k.Hash = nil
	return k, secret, nil
}

// AdminKeys lists a workspace's keys.
func (s *Service) AdminKeys(ctx context.Context, slugOrName string) ([]auth.Key, error) {
	w, err := s.AdminWorkspace(ctx, slugOrName)
	if err != nil {
		return nil, err
	}
	keys, err := s.o.Store.Keys(ctx, w.ID, "")
	for i := range keys {
		keys[i].Hash = nil
	}
	return keys, err
}

// AdminRevokeKey ends a key, named by its id, its prefix, or the key itself.
func (s *Service) AdminRevokeKey(ctx context.Context, idOrPrefix string) (auth.Key, error) {
	if prefix, ok := auth.KeyPrefix(idOrPrefix); ok {
		idOrPrefix = prefix
	}
	k, err := s.o.Store.KeyByID(ctx, idOrPrefix)
	if fault.Is(err, fault.NotFound) {
		k, err = s.o.Store.KeyByPrefix(ctx, idOrPrefix)
	}
	if fault.Is(err, fault.NotFound) {
		return auth.Key{}, fault.New(fault.NotFound, "There is no such key.")
	}
	if err != nil {
		return auth.Key{}, err
	}
	a := host(k.WorkspaceID)
	err = s.revokeKey(ctx, a, adminAction("key.revoke", k.Name), k.Key)
	k.Hash = nil
	return k.Key, err
}
