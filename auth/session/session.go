// Package session owns what keeps a browser signed in: a gorilla/sessions store whose cookie carries nothing but a random
// id, with everything else on the server, so that a session can be ended at once. It must never decide what a person may do.
package session

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/gorilla/sessions"

	"sandgate/auth"
	"sandgate/internal/fault"
)

// Limits of a session.
const (
	IdleLimit      = 8 * time.Hour
	AbsoluteLimit  = 7 * 24 * time.Hour
	AnonymousLimit = 10 * time.Minute // of one that carries only messages before sign-in
)

const (
	touchEvery = time.Minute // of the last use; finer would write to the database on every request
	maxData    = 16 << 10    // bytes of messages and the like
)

// Records keeps sessions durably; internal/store implements it. Missing is fault.NotFound.
type Records interface {
	InsertSession(ctx context.Context, s auth.Session) error
	SessionByID(ctx context.Context, id string) (auth.Session, error)
	SessionsOf(ctx context.Context, userID string) ([]auth.Session, error)
	SaveSessionData(ctx context.Context, id string, data []byte) error
	TouchSession(ctx context.Context, id string, at time.Time) error
	DeleteSession(ctx context.Context, id string) error
	DeleteSessionsOf(ctx context.Context, userID, keep string) error
}

// Options are what a Store needs.
type Options struct {
	Records Records
	Secure  bool             // the public URL is https: the cookie is then "__Host-sandgate" and never sent in clear
	Now     func() time.Time // default time.Now
	// Address gives a request's client address for the list of sessions; default the peer's, without its port.
	Address func(*http.Request) string
}

// Store is a sessions.Store over Records. Safe for concurrent use.
type Store struct {
	o Options
}

var _ sessions.Store = (*Store)(nil)

// New makes a Store.
func New(o Options) *Store {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Address == nil {
		o.Address = peer
	}
	return &Store{o: o}
}

func peer(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// CookieName gives the name of the cookie. The __Host- prefix makes browsers refuse one that a subdomain has planted.
func (s *Store) CookieName() string {
	if s.o.Secure {
		return "__Host-sandgate"
	}
	return "sandgate"
}

func (s *Store) cookie(value string, maxAge int) *http.Cookie {
	return &http.Cookie{
		Name: s.CookieName(), Value: value, Path: "/", MaxAge: maxAge,
		Secure: s.o.Secure, HttpOnly: true, SameSite: http.SameSiteLaxMode,
	}
}

// idOf gives the id of a cookie's value: its SHA-256 in hex. The value itself is kept nowhere.
func idOf(value string) string { return hex.EncodeToString(auth.HashSecret(value)) }

// row reads the live session that a request carries and notes its use.
func (s *Store) row(r *http.Request) (auth.Session, error) {
	c, err := r.Cookie(s.CookieName())
	if err != nil || c.Value == "" || len(c.Value) > 128 {
		return auth.Session{}, fault.New(fault.Unauthenticated, "You are not signed in.")
	}
	v, err := s.o.Records.SessionByID(r.Context(), idOf(c.Value))
	if fault.Is(err, fault.NotFound) {
		return auth.Session{}, fault.New(fault.Unauthenticated, "You are not signed in.")
	}
	if err != nil {
		return auth.Session{}, fmt.Errorf("read session: %w", err)
	}
	now := s.o.Now()
	if !now.Before(v.LiveUntil()) {
		return auth.Session{}, fault.New(fault.Unauthenticated, "Your session has expired. Sign in again.")
	}
	if now.Sub(v.LastSeenAt) >= touchEvery {
		if err := s.o.Records.TouchSession(r.Context(), v.ID, now); err != nil {
			return auth.Session{}, fmt.Errorf("touch session: %w", err)
		}
		v.LastSeenAt = now
	}
	return v, nil
}

// UserID tells who a request's live session belongs to. sessionID names it in lists and in auth.Actor; it is no secret.
func (s *Store) UserID(r *http.Request) (userID, sessionID string, ok bool) {
	v, err := s.row(r)
	return v.UserID, v.ID, err == nil && v.UserID != ""
}

// SignIn starts a new session for a person and ends the one that the request carries, so that an id planted before
// sign-in is worth nothing. Values of the old session, such as messages, are not taken along.
func (s *Store) SignIn(w http.ResponseWriter, r *http.Request, userID string) error {
	if userID == "" {
		return errors.New("sign in: no user")
	}
	if c, err := r.Cookie(s.CookieName()); err == nil {
		if err := s.o.Records.DeleteSession(r.Context(), idOf(c.Value)); err != nil {
			return fmt.Errorf("end the session before: %w", err)
		}
	}
	value, v := s.fresh(r, userID, IdleLimit, AbsoluteLimit)
	if err := s.o.Records.InsertSession(r.Context(), v); err != nil {
		return fmt.Errorf("start session: %w", err)
	}
	s.issue(w, r, value, AbsoluteLimit)
	return nil
}

func (s *Store) fresh(r *http.Request, userID string, idle, absolute time.Duration) (value string, v auth.Session) {
	value, now := auth.NewToken(), s.o.Now()
	return value, auth.Session{
		ID: idOf(value), UserID: userID, Address: bound(s.o.Address(r), 64), UserAgent: bound(r.UserAgent(), 256),
		CreatedAt: now, LastSeenAt: now, IdleFor: idle, EndsAt: now.Add(absolute),
	}
}

func bound(s string, n int) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) > n {
		s = strings.ToValidUTF8(s[:n], "")
	}
	return s
}

// issue sets the cookie in the answer, and in the request, so that what runs later in the same request sees the new session.
func (s *Store) issue(w http.ResponseWriter, r *http.Request, value string, life time.Duration) {
	http.SetCookie(w, s.cookie(value, int(life.Seconds())))
	kept := r.Cookies()
	r.Header.Del("Cookie")
	for _, c := range kept {
		if c.Name != s.CookieName() {
			r.AddCookie(c)
		}
	}
	if value != "" {
		r.AddCookie(&http.Cookie{Name: s.CookieName(), Value: value})
	}
}

// SignOut ends the session that a request carries and takes its cookie away. Without a session it does only the latter.
func (s *Store) SignOut(w http.ResponseWriter, r *http.Request) error {
	var err error
	if c, cerr := r.Cookie(s.CookieName()); cerr == nil {
		err = s.o.Records.DeleteSession(r.Context(), idOf(c.Value))
	}
	http.SetCookie(w, s.cookie("", -1))
	return err
}

// List gives a person's live sessions, last used first.
func (s *Store) List(ctx context.Context, userID string) ([]auth.Session, error) {
	all, err := s.o.Records.SessionsOf(ctx, userID)
	if err != nil {
		return nil, err
	}
	live, now := all[:0], s.o.Now()
	for _, v := range all {
		if now.Before(v.LiveUntil()) {
			live = append(live, v)
		}
	}
	return live, nil
}

// Revoke ends one session of a person. One that is not theirs is fault.NotFound.
func (s *Store) Revoke(ctx context.Context, userID, sessionID string) error {
	v, err := s.o.Records.SessionByID(ctx, sessionID)
	if err != nil {
		return err
	}
	if v.UserID != userID {
		return fault.New(fault.NotFound, "Session not found")
	}
	return s.o.Records.DeleteSession(ctx, sessionID)
}

// RevokeAll ends all sessions of a person but keep, which may be "".
func (s *Store) RevokeAll(ctx context.Context, userID, keep string) error {
	return s.o.Records.DeleteSessionsOf(ctx, userID, keep)
}

// ---- sessions.Store: for flash messages ----

// Get gives the request's session, once per request.
func (s *Store) Get(r *http.Request, name string) (*sessions.Session, error) {
	return sessions.GetRegistry(r).Get(s, name)
}

// New reads the request's session. There is one kind of session, whatever the name; without a live one it is new and empty.
func (s *Store) New(r *http.Request, name string) (*sessions.Session, error) {
	out := sessions.NewSession(s, name)
	out.Options = &sessions.Options{Path: "/", MaxAge: int(AbsoluteLimit.Seconds()), Secure: s.o.Secure, HttpOnly: true, SameSite: http.SameSiteLaxMode}
	out.IsNew = true
	v, err := s.row(r)
	if fault.Is(err, fault.Unauthenticated) {
		return out, nil
	}
	if err != nil {
		return out, err
	}
	out.ID, out.IsNew = v.ID, false
	if len(v.Data) > 0 {
		if err := gob.NewDecoder(bytes.NewReader(v.Data)).Decode(&out.Values); err != nil {
			return out, fmt.Errorf("read session values: %w", err)
		}
	}
	return out, nil
}

// Save keeps a session's values. A negative MaxAge ends it. Without a session before, and something to keep, one of ten
// minutes begins that belongs to nobody.
func (s *Store) Save(r *http.Request, w http.ResponseWriter, v *sessions.Session) error {
	if v.Options != nil && v.Options.MaxAge < 0 {
		return s.SignOut(w, r)
	}
	var data bytes.Buffer
	if len(v.Values) > 0 {
		if err := gob.NewEncoder(&data).Encode(v.Values); err != nil {
			return fmt.Errorf("save session values: %w", err)
		}
	}
	if data.Len() > maxData {
		return fmt.Errorf("save session values: %d bytes are too many", data.Len())
	}
	if v.ID != "" {
		err := s.o.Records.SaveSessionData(r.Context(), v.ID, data.Bytes())
		if fault.Is(err, fault.NotFound) {
			return nil // ended meanwhile: nothing to keep
		}
		return err
	}
	if data.Len() == 0 {
		return nil
	}
	value, row := s.fresh(r, "", AnonymousLimit, AnonymousLimit)
	row.Data = data.Bytes()
	if err := s.o.Records.InsertSession(r.Context(), row); err != nil {
		return fmt.Errorf("start session: %w", err)
	}
	v.ID, v.IsNew = row.ID, false
	s.issue(w, r, value, AnonymousLimit)
	return nil
}
