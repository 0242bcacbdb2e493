package workspace

import (
	"context"
	"fmt"
	"math"
	"time"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
)

// SignIn checks e-mail and password: the same time and the same error for unknown e-mail and wrong password
// (fault.Unauthenticated); throttled per account and address (fault.SlowDown with Extra "retry_after", in seconds).
func (s *Service) SignIn(ctx context.Context, email, password, address, requestID string) (auth.User, error) {
	// What is no address is looked up all the same: its answer must not come sooner.
	email = normalForSignIn(email)
	what := approval.Action{Kind: approval.Other, Name: "session.sign_in", Target: email}
	u, stale, err := s.checkPassword(ctx, what, email, password, address, requestID)
	if err != nil {
		return auth.User{}, err
	}
	a := auth.Actor{Kind: auth.Person, UserID: u.ID, Name: u.Email, Address: address, RequestID: requestID}
	err = s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		if !stale {
			return "", nil
		}
		hash, err := s.people.hash.Hash(ctx, password)
		if err != nil {
			return "", err
		}
		return "password hashed anew", s.o.Store.SetPassword(ctx, u.ID, hash, false)
	})
	u.PasswordHash = ""
	return u, err
}

func normalForSignIn(email string) string {
	if normal, err := auth.NormalEmail(email); err == nil {
		return normal
	}
	return email[:min(len(email), 254)]
}

// checkPassword is the one place where passwords of accounts are tried. The attempt is counted before the hash is
// computed, so that many at once count as many.
func (s *Service) checkPassword(ctx context.Context, what approval.Action, email, password, address, requestID string) (u auth.User, stale bool, err error) {
	account, from := accountKey(email), addressKey(address)
	if err := s.slowDown(s.people.throttle.take(s.o.Now(), account, from)); err != nil {
		return u, false, err
	}
	u, err = s.o.Store.UserByEmail(ctx, email)
	if err != nil && !fault.Is(err, fault.NotFound) {
		return u, false, err
	}
	ok, stale, err := s.people.hash.Check(ctx, password, u.PasswordHash)
	if err != nil {
		s.people.throttle.forgive(account, from)
		return u, false, err
	}
	if !ok || u.Disabled {
		a := auth.Actor{Kind: auth.Person, UserID: u.ID, Name: email, Address: address, RequestID: requestID}
		return auth.User{}, false, s.refuse(ctx, a, what, fault.New(fault.Unauthenticated, "The e-mail address or the password is wrong."))
	}
	s.people.throttle.clear(account)
	s.people.throttle.forgive(from)
	return u, stale, nil
}

// slowDown makes the refusal of a throttle.
func (s *Service) slowDown(wait time.Duration) error {
	if wait <= 0 {
		return nil
	}
	seconds := int(math.Ceil(wait.Seconds()))
	return fault.New(fault.SlowDown, "Too many attempts. Try again in %s.", inWords(seconds)).With("retry_after", seconds)
}

func inWords(seconds int) string {
	switch {
	case seconds == 1:
		return "a second"
	case seconds < 120:
		return fmt.Sprintf("%d seconds", seconds)
	default:
		return fmt.Sprintf("%d minutes", (seconds+59)/60)
	}
}

// SignedOut ends the actor's session, notes it, and ends streams of that session within 2 s.
func (s *Service) SignedOut(ctx context.Context, a auth.Actor) error {
	what := approval.Action{Kind: approval.Other, Name: "session.sign_out", Target: a.Name}
	err := s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		if a.SessionID == "" {
			return "", nil
		}
		return "", s.o.Store.DeleteSession(ctx, a.SessionID)
	})
	s.peopleChanged("")
	return err
}

// PersonActor gives the actor of a signed-in person in the workspace with this slug. Unknown slug or no member: fault.NotFound.
// slug "" gives an actor without a workspace, for the account and workspace pages. Disabled or signed out: fault.Unauthenticated.
func (s *Service) PersonActor(ctx context.Context, userID, sessionID, slug, address, requestID string) (auth.Actor, error) {
	a := auth.Actor{Kind: auth.Person, UserID: userID, SessionID: sessionID, Address: address, RequestID: requestID}
	u, _, err := s.person(ctx, a)
	if err != nil {
		return auth.Actor{}, err
	}
	a.Name, a.MakesPlaces = u.Email, u.Admin
	if slug == "" {
		return a, nil
	}
	m, w, err := s.o.Store.MemberBySlug(ctx, userID, slug)
	if err != nil {
		return auth.Actor{}, err
	}
	a.Workspace, a.Permissions = w, m.Rights()
	return a, nil
}

// person gives the account of an actor who is still signed in, and until when, if nothing else happens.
func (s *Service) person(ctx context.Context, a auth.Actor) (u auth.User, until time.Time, err error) {
	u, err = s.o.Store.UserByID(ctx, a.UserID)
	if fault.Is(err, fault.NotFound) || err == nil && u.Disabled {
		return u, until, fault.New(fault.Unauthenticated, "This account does not exist any more or is disabled.")
	}
	if err != nil || a.SessionID == "" {
		return u, until, err
	}
	v, err := s.o.Store.SessionByID(ctx, a.SessionID)
	if err != nil && !fault.Is(err, fault.NotFound) {
		return u, until, err
	}
	if err != nil || v.UserID != a.UserID || !s.o.Now().Before(v.LiveUntil()) {
		return u, until, fault.New(fault.Unauthenticated, "You are signed out. Sign in again.")
	}
	return u, v.LiveUntil(), nil
}

// lastUsedGrain is how exact a key's last use is kept; finer would write to the database on every request.
const lastUsedGrain = time.Minute

// KeyActor gives the actor of an API key: its list cut by its owner's rights at this moment. Wrong, expired, revoked, owner
// disabled or gone: fault.Unauthenticated.
func (s *Service) KeyActor(ctx context.Context, secret, address, requestID string) (auth.Actor, error) {
	refused := fault.New(fault.Unauthenticated, "The API key is not valid.")
	prefix, ok := auth.KeyPrefix(secret)
	if !ok {
		return auth.Actor{}, refused
	}
	k, err := s.keyByPrefix(ctx, prefix)
	if fault.Is(err, fault.NotFound) {
		return auth.Actor{}, refused
	}
	if err != nil {
		return auth.Actor{}, err
	}
	now := s.o.Now()
	a := auth.Actor{
		Kind: auth.KeyUser, UserID: k.OwnerID, KeyID: k.ID, Name: k.Name, Owner: k.OwnerEmail, Workspace: k.Workspace,
		Permissions: k.Rights(k.Owner), Address: address, RequestID: requestID,
	}
	if !auth.SecretMatches(secret, k.Hash) || !k.Live(now) {
		// A script with a dead key may come a hundred times a second; the record has it once a minute, then ever more rarely.
		if s.people.noted.take(now, throttleKey{name: k.ID, base: time.Minute}) <= 0 {
			what := approval.Action{Kind: approval.Other, Name: "key.refused", Target: k.Prefix}
			if err := s.o.Audit.Note(ctx, event(a, what, audit.Refused, keyProblem(k, now))); err != nil {
				return auth.Actor{}, err
			}
		}
		return auth.Actor{}, refused
	}
	if now.Sub(k.LastUsedAt) >= lastUsedGrain {
		if err := s.o.Store.TouchKey(ctx, k.ID, now); err != nil {
			return auth.Actor{}, err
		}
		s.people.keys.used(k.ID, now)
	}
	return a, nil
}

func keyProblem(k auth.KeyHolder, now time.Time) string {
	switch {
	case !k.RevokedAt.IsZero():
		return "the key is revoked"
	case !k.ExpiresAt.IsZero() && !now.Before(k.ExpiresAt):
		return "the key has expired"
	case !k.Live(now):
		return "the key's owner is disabled or no member any more"
	default:
		return "the secret is wrong"
	}
}
