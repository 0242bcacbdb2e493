package workspace

import (
	"context"
	"strings"
	"time"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/fault"
	"sandgate/sandbox"
)

const (
	maxKeys        = 1000 // that are not revoked, of a workspace
	maxKeyName     = 80
	defaultKeyDays = 90
	maxKeyDays     = 3650
)

// KeyForm describes a new key. ForMe: owned by the actor, cut by the actor's rights; else a service account.
type KeyForm struct {
	Name        string
	ForMe       bool
	Permissions auth.Permissions
	ExpiresDays int // 0: 90; -1: never
}

// CreateKey makes a key and returns its secret, once. A person's own key may list what the person has, and needs nothing
// more. A service account needs keys:manage and may list what its maker has, and, from a person, sandboxes:run, which is
// granted by name and on record wherever it is granted. A key makes keys only with keys:manage, and only of rights that it
// has itself; a service account makes none.
func (s *Service) CreateKey(ctx context.Context, a auth.Actor, f KeyForm) (key auth.Key, secret string, err error) {
	what := approval.Action{Kind: approval.Other, Name: "key.create", Target: f.Name}
	if err := s.mayMint(ctx, a, what, f); err != nil {
		return auth.Key{}, "", err
	}
	owner := ""
	if f.ForMe {
		owner = a.UserID
	}
	key, secret, err = s.newKey(ctx, a.Workspace.ID, owner, f)
	if err != nil {
		return auth.Key{}, "", err
	}
	what.Target = key.Name
	if err := s.insertKey(ctx, a, what, key); err != nil {
		return auth.Key{}, "", err
	}
	key.OwnerEmail, key.Hash = ownerName(a, key), nil
	return key, secret, nil
}

func ownerName(a auth.Actor, k auth.Key) string {
	if k.OwnerID != "" && a.Kind == auth.Person {
		return a.Name
	}
	return ""
}

// mayMint refuses an actor who may not make this key.
func (s *Service) mayMint(ctx context.Context, a auth.Actor, what approval.Action, f KeyForm) error {
	byPerson := a.Kind == auth.Person
	if a.UserID == "" || a.Workspace.ID == "" {
		return s.refuse(ctx, a, what, fault.New(fault.Forbidden, "A service account cannot make keys."))
	}
	if !byPerson || !f.ForMe {
		if err := s.may(ctx, a, what, auth.KeysManage); err != nil {
			return err
		}
	}
	allowed := a.Permissions
	if byPerson && !f.ForMe {
		allowed = allowed.With(auth.SandboxesRun)
	}
	if missing, ok := f.Permissions.Within(allowed); !ok {
		return s.refuse(ctx, a, what, fault.New(fault.Forbidden, "You cannot give a key the permission %.40s, which you do not have yourself.", string(missing)))
	}
	return nil
}

// newKey checks a form and makes the key, not stored yet.
func (s *Service) newKey(ctx context.Context, workspaceID, ownerID string, f KeyForm) (k auth.Key, secret string, err error) {
	bad := map[string]string{}
	name := strings.TrimSpace(f.Name)
	if msg := textProblem(name, maxKeyName); msg != "" {
		bad["name"] = msg
	} else if name == "" {
		bad["name"] = "must not be empty"
	}
	switch {
	case len(f.Permissions) == 0:
		bad["permissions"] = "must hold at least one"
	case len(f.Permissions.Sorted()) != len(f.Permissions):
		bad["permissions"] = "must be known ones, each once"
	case ownerID == "" && len(f.Permissions.Without(auth.ServiceAccountNever...)) != len(f.Permissions):
		bad["permissions"] = "must not hold keys:manage or approvals:decide for a service account"
	}
	if f.ExpiresDays < -1 || f.ExpiresDays > maxKeyDays {
		bad["expires_days"] = "must be between 1 and 3650, or -1 for never"
	}
	if err := fieldsFault(bad); err != nil {
		return k, "", err
	}
	n, err := s.o.Store.CountKeys(ctx, workspaceID)
	if err != nil {
		return k, "", err
	}
	if n >= maxKeys {
		return k, "", fault.New(fault.QuotaExceeded, "This workspace has %d keys. Revoke some first.", n)
	}
	secret, prefix := auth.NewKeySecret()
	k = auth.Key{
		ID: sandbox.RandomID("ke"), WorkspaceID: workspaceID, Name: name, OwnerID: ownerID, Permissions: f.Permissions.Sorted(),
		Prefix: prefix, Hash: auth.HashSecret(secret), CreatedAt: s.o.Now(),
	}
	switch f.ExpiresDays {
	case -1:
	case 0:
		k.ExpiresAt = k.CreatedAt.Add(defaultKeyDays * 24 * time.Hour)
	default:
		k.ExpiresAt = k.CreatedAt.Add(time.Duration(f.ExpiresDays) * 24 * time.Hour)
	}
	return k, secret, nil
}

func (s *Service) insertKey(ctx context.Context, a auth.Actor, what approval.Action, k auth.Key) error {
	err := s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		kind := "service account"
		if k.OwnerID != "" {
			kind = "personal"
		}
		return kind + " " + k.Prefix + ": " + k.Permissions.String(), s.o.Store.InsertKey(ctx, k)
	})
	s.peopleChanged(k.WorkspaceID)
	return err
}

// Keys lists: all with keys:manage, else one's own.
func (s *Service) Keys(ctx context.Context, a auth.Actor) ([]auth.Key, error) {
	owner := a.UserID
	if a.May(auth.KeysManage) {
		owner = ""
	} else if owner == "" {
		return nil, nil // a service account has no keys of its own
	}
	keys, err := s.o.Store.Keys(ctx, a.Workspace.ID, owner)
	for i := range keys {
		keys[i].Hash = nil
	}
	return keys, err
}

// RevokeKey ends a key at once: one's own, or any with keys:manage.
func (s *Service) RevokeKey(ctx context.Context, a auth.Actor, id string) error {
	what := approval.Action{Kind: approval.Other, Name: "key.revoke", Target: id}
	k, err := s.o.Store.KeyByID(ctx, id)
	if err != nil {
		return err
	}
	if k.WorkspaceID != a.Workspace.ID {
		return fault.New(fault.NotFound, "Key not found")
	}
	what.Target = k.Name
	if mine := a.Kind == auth.Person && k.OwnerID == a.UserID; !mine {
		if err := s.may(ctx, a, what, auth.KeysManage); err != nil {
			return err
		}
	}
	return s.revokeKey(ctx, a, what, k.Key)
}

func (s *Service) revokeKey(ctx context.Context, a auth.Actor, what approval.Action, k auth.Key) error {
	err := s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		return k.Prefix, s.o.Store.RevokeKey(ctx, k.WorkspaceID, k.ID, s.o.Now())
	})
	s.peopleChanged(k.WorkspaceID)
	return err
}
