package session_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/sessions"
	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/auth/session"
	"sandgate/internal/fault"
	"sandgate/internal/store"
)

type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func open(t *testing.T, secure bool) (*session.Store, *store.Store, *clock) {
	t.Helper()
	ctx := context.Background()
	db, err := store.Open(ctx, filepath.Join(t.TempDir(), "sandgate.db"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	for _, id := range []string{"us1", "us2"} {
		require.NoError(t, db.InsertUser(ctx, auth.User{ID: id, Email: id + "@example.org"}))
	}
	c := &clock{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	return session.New(session.Options{Records: db, Secure: secure, Now: c.Now}), db, c
}

// browser keeps cookies between requests.
type browser map[string]*http.Cookie

func (b browser) request() *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("User-Agent", "test \xff "+strings.Repeat("long", 200))
	for _, c := range b {
		r.AddCookie(c)
	}
	return r
}

func (b browser) take(w *httptest.ResponseRecorder) {
	for _, c := range w.Result().Cookies() {
		if c.MaxAge < 0 {
			delete(b, c.Name)
		} else {
			b[c.Name] = c
		}
	}
}

func signIn(t *testing.T, s *session.Store, b browser, user string) {
	t.Helper()
	w := httptest.NewRecorder()
	require.NoError(t, s.SignIn(w, b.request(), user))
	b.take(w)
}

func TestCookie(t *testing.T) {
	for _, secure := range []bool{true, false} {
		s, db, _ := open(t, secure)
		b := browser{}
		signIn(t, s, b, "us1")
		name := map[bool]string{true: "__Host-sandgate", false: "sandgate"}[secure]
		c := b[name]
		require.NotNil(t, c)
		require.Equal(t, name, s.CookieName())
		require.Equal(t, "/", c.Path)
		require.Empty(t, c.Domain)
		require.True(t, c.HttpOnly)
		require.Equal(t, secure, c.Secure)
		require.Equal(t, http.SameSiteLaxMode, c.SameSite)
		require.Len(t, c.Value, 43)

		rows, err := db.SessionsOf(context.Background(), "us1")
		require.NoError(t, err)
		require.Len(t, rows, 1)
		require.NotContains(t, rows[0].ID, c.Value, "only the hash is kept")
		require.LessOrEqual(t, len(rows[0].UserAgent), 256)
	}
}

func TestSignInAndOut(t *testing.T) {
	s, _, _ := open(t, false)
	b := browser{}
	_, _, ok := s.UserID(b.request())
	require.False(t, ok)

	signIn(t, s, b, "us1")
	user, id, ok := s.UserID(b.request())
	require.True(t, ok)
	require.Equal(t, "us1", user)
	before := *b[s.CookieName()]

	signIn(t, s, b, "us2")
	user, id2, ok := s.UserID(b.request())
	require.True(t, ok)
	require.Equal(t, "us2", user)
	require.NotEqual(t, id, id2, "a new id at each sign-in")
	_, _, ok = s.UserID(browser{before.Name: &before}.request())
	require.False(t, ok, "the one before is dead")

	w := httptest.NewRecorder()
	kept := *b[s.CookieName()]
	require.NoError(t, s.SignOut(w, b.request()))
	b.take(w)
	require.Empty(t, b)
	_, _, ok = s.UserID(browser{kept.Name: &kept}.request())
	require.False(t, ok, "the cookie is worth nothing after signing out")
	require.NoError(t, s.SignOut(httptest.NewRecorder(), b.request()), "twice is no error")
}

func TestSignInIsSeenInTheSameRequest(t *testing.T) {
	s, _, _ := open(t, false)
	r := browser{"other": {Name: "other", Value: "1"}}.request()
	require.NoError(t, s.SignIn(httptest.NewRecorder(), r, "us1"))
	user, _, ok := s.UserID(r)
	require.True(t, ok)
	require.Equal(t, "us1", user)
	c, err := r.Cookie("other")
	require.NoError(t, err)
	require.Equal(t, "1", c.Value)
}

func TestPlantedIDsAreWorthNothing(t *testing.T) {
	s, _, _ := open(t, false)
	for _, v := range []string{"x", strings.Repeat("A", 43), strings.Repeat("A", 5000), "../../etc"} {
		b := browser{s.CookieName(): {Name: s.CookieName(), Value: v}}
		_, _, ok := s.UserID(b.request())
		require.False(t, ok)
		signIn(t, s, b, "us1")
		require.NotEqual(t, v, b[s.CookieName()].Value)
	}
}

func TestLimits(t *testing.T) {
	s, _, c := open(t, false)
	b := browser{}
	signIn(t, s, b, "us1")
	live := func() bool { _, _, ok := s.UserID(b.request()); return ok }
	c.pass(session.IdleLimit - time.Second)
	require.True(t, live(), "use prolongs it")
	c.pass(session.IdleLimit - time.Second)
	require.True(t, live())
	c.pass(session.IdleLimit)
	require.False(t, live(), "idle for too long")

	signIn(t, s, b, "us1")
	for used := time.Duration(0); used < session.AbsoluteLimit-time.Hour; used += time.Hour {
		c.pass(time.Hour)
		require.True(t, live(), "%v", used)
	}
	c.pass(time.Hour)
	require.False(t, live(), "in use, but too old")
}

func TestListAndRevoke(t *testing.T) {
	ctx := context.Background()
	s, _, c := open(t, false)
	laptop, phone, other := browser{}, browser{}, browser{}
	signIn(t, s, laptop, "us1")
	c.pass(time.Minute)
	signIn(t, s, phone, "us1")
	signIn(t, s, other, "us2")
	all, err := s.List(ctx, "us1")
	require.NoError(t, err)
	require.Len(t, all, 2)

	_, phoneID, _ := s.UserID(phone.request())
	require.True(t, fault.Is(s.Revoke(ctx, "us2", phoneID), fault.NotFound), "not theirs")
	require.NoError(t, s.Revoke(ctx, "us1", phoneID))
	_, _, ok := s.UserID(phone.request())
	require.False(t, ok)
	_, id, ok := s.UserID(laptop.request())
	require.True(t, ok)

	signIn(t, s, phone, "us1")
	require.NoError(t, s.RevokeAll(ctx, "us1", id))
	_, _, ok = s.UserID(phone.request())
	require.False(t, ok)
	_, _, ok = s.UserID(laptop.request())
	require.True(t, ok, "all but this one")
	_, _, ok = s.UserID(other.request())
	require.True(t, ok)
}

func TestFlashes(t *testing.T) {
	s, _, c := open(t, false)
	for _, signedIn := range []bool{true, false} {
		b := browser{}
		if signedIn {
			signIn(t, s, b, "us1")
		}
		say := func(text string) {
			t.Helper()
			r, w := b.request(), httptest.NewRecorder()
			v, err := s.Get(r, "flash")
			require.NoError(t, err)
			v.AddFlash(text)
			require.NoError(t, v.Save(r, w))
			b.take(w)
		}
		hear := func() []any {
			t.Helper()
			r, w := b.request(), httptest.NewRecorder()
			v, err := s.Get(r, "flash")
			require.NoError(t, err)
			out := v.Flashes()
			require.NoError(t, v.Save(r, w))
			b.take(w)
			return out
		}
		say("key made")
		user, _, ok := s.UserID(b.request())
		require.Equal(t, signedIn, ok, "a message signs nobody in: %s", user)
		require.Equal(t, []any{"key made"}, hear())
		require.Empty(t, hear())
		say("late")
		c.pass(session.AnonymousLimit)
		require.Equal(t, signedIn, len(hear()) == 1)
	}
}

func TestNothingToKeepMakesNoSession(t *testing.T) {
	s, _, _ := open(t, false)
	r, w := browser{}.request(), httptest.NewRecorder()
	v, err := s.Get(r, "flash")
	require.NoError(t, err)
	require.True(t, v.IsNew)
	require.NoError(t, sessions.Save(r, w))
	require.Empty(t, w.Result().Cookies())

	v.Values["big"] = strings.Repeat("x", 1<<20)
	require.Error(t, v.Save(r, w), "values are bounded")
	v.Options.MaxAge = -1
	require.NoError(t, v.Save(r, w), "a negative age signs out")
}
