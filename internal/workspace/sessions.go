package workspace

import (
	"context"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/fault"
)

// OwnSessions lists where a person is signed in, last used first. For persons.
func (s *Service) OwnSessions(ctx context.Context, a auth.Actor) ([]auth.Session, error) {
	if err := s.selfOnly(ctx, a, "session.list"); err != nil {
		return nil, err
	}
	all, err := s.o.Store.SessionsOf(ctx, a.UserID)
	if err != nil {
		return nil, err
	}
	live, now := all[:0], s.o.Now()
	for _, v := range all {
		if now.Before(v.LiveUntil()) {
			v.Data = nil
			live = append(live, v)
		}
	}
	return live, nil
}

// EndSession signs a person out in one place; what is open there ends. One that is not theirs: fault.NotFound.
func (s *Service) EndSession(ctx context.Context, a auth.Actor, id string) error {
	if err := s.selfOnly(ctx, a, "session.revoke"); err != nil {
		return err
	}
	v, err := s.o.Store.SessionByID(ctx, id)
	if fault.Is(err, fault.NotFound) || err == nil && v.UserID != a.UserID {
		return fault.New(fault.NotFound, "Session not found")
	}
	if err != nil {
		return err
	}
	what := approval.Action{Kind: approval.Other, Name: "session.revoke", Target: a.Name}
	err = s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		return "of " + v.Address, s.o.Store.DeleteSession(ctx, id)
	})
	s.peopleChanged("")
	return err
}

// EndOtherSessions signs a person out everywhere but here.
func (s *Service) EndOtherSessions(ctx context.Context, a auth.Actor) error {
	if err := s.selfOnly(ctx, a, "session.revoke"); err != nil {
		return err
	}
	what := approval.Action{Kind: approval.Other, Name: "session.revoke", Target: a.Name}
	err := s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		return "all others", s.o.Store.DeleteSessionsOf(ctx, a.UserID, a.SessionID)
	})
	s.peopleChanged("")
	return err
}

// ChangePassword gives a person a new password for the one they have, and signs them out everywhere but here. A wrong
// present one is fault.Invalid about the field "current"; guesses are slowed down as at the door.
func (s *Service) ChangePassword(ctx context.Context, a auth.Actor, current, password string) error {
	if err := s.selfOnly(ctx, a, "user.set_password"); err != nil {
		return err
	}
	what := approval.Action{Kind: approval.Other, Name: "user.set_password", Target: a.Name}
	if _, _, err := s.checkPassword(ctx, what, a.Name, current, a.Address, a.RequestID); err != nil {
		if fault.Is(err, fault.Unauthenticated) {
			return fault.Field("current", "is not your present password")
		}
		return err
	}
	if err := auth.CheckNewPassword(password, a.Name); err != nil {
		return err
	}
	hash, err := s.people.hash.Hash(ctx, password)
	if err != nil {
		return err
	}
	err = s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		if err := s.o.Store.SetPassword(ctx, a.UserID, hash, false); err != nil {
			return "", err
		}
		return "signed out everywhere else", s.o.Store.DeleteSessionsOf(ctx, a.UserID, a.SessionID)
	})
	s.peopleChanged("")
	return err
}

// selfOnly refuses everybody but a signed-in person: a key has no sessions and no password.
func (s *Service) selfOnly(ctx context.Context, a auth.Actor, action string) error {
	if a.Kind == auth.Person && a.UserID != "" {
		return nil
	}
	return s.refuse(ctx, a, approval.Action{Kind: approval.Other, Name: action}, fault.New(fault.Forbidden, "Only a signed-in person can do this."))
}
