package workspace_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/internal/seal"
	"sandgate/internal/store"
	"sandgate/internal/workspace"
)

const password = "tall-river-42"

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

// gate lets all through and remembers what passed.
type gate struct {
	mu     sync.Mutex
	passed []approval.Action
	refuse error
	during func() // called once, by the next action that passes
}

func (g *gate) Pass(_ context.Context, _ auth.Actor, what approval.Action) error {
	g.mu.Lock()
	during := g.during
	g.during = nil
	g.mu.Unlock()
	if during != nil {
		during()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.passed = append(g.passed, what)
	return g.refuse
}

func (g *gate) take() []approval.Action {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := g.passed
	g.passed = nil
	return out
}

// house is a service on a data directory with real SQLite.
type house struct {
	*workspace.Service
	store *store.Store
	log   *audit.Log
	gate  *gate
	clock *clock
	dir   string
	audit *breakable
}

// breakable is the record's store; it refuses to write while broken is set.
type breakable struct {
	*store.Store
	broken atomic.Bool
}

func (b *breakable) AppendAudit(ctx context.Context, plan func(audit.Head) ([]audit.Row, error)) error {
	if b.broken.Load() {
		return errBroken
	}
	return b.Store.AppendAudit(ctx, plan)
}

func (b *breakable) ExtendAudit(ctx context.Context, head audit.Head, row audit.Row) (bool, error) {
	if b.broken.Load() {
		return false, errBroken
	}
	return b.Store.ExtendAudit(ctx, head, row)
}

var errBroken = errors.New("the record cannot be written")

// migrated is an empty database of the present schema: to migrate one for every test takes most of the time.
var migrated = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "sandgate-test-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "sandgate.db")
	s, err := store.Open(context.Background(), path)
	if err != nil {
		return nil, err
	}
	if err := s.Close(); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
})

func newHouse(t *testing.T) *house { return buildHouse(t, nil) }

// buildHouse makes a new data directory with a service on it.
func buildHouse(t testing.TB, more func(*workspace.Options)) *house {
	t.Helper()
	dir := t.TempDir()
	empty, err := migrated()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sandgate.db"), empty, 0o600))
	return openHouse(t, dir, more)
}

func openHouse(t testing.TB, dir string, more func(*workspace.Options)) *house {
	t.Helper()
	h := &house{gate: &gate{}, clock: &clock{now: time.Now().UTC().Truncate(time.Microsecond)}, dir: dir}
	var err error
	h.store, err = store.Open(context.Background(), filepath.Join(dir, "sandgate.db"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.store.Close()) })
	h.audit = &breakable{Store: h.store}
	h.log, err = audit.New(audit.Options{Store: h.audit, Key: bytes.Repeat([]byte{1}, 32), HeadFile: filepath.Join(dir, "audit.head"), Now: h.clock.Now})
	require.NoError(t, err)
	box, err := seal.New(bytes.Repeat([]byte{2}, seal.KeyLen))
	require.NoError(t, err)
	o := workspace.Options{Store: h.store, Audit: h.log, Gate: h.gate, Seal: box, Now: h.clock.Now}
	if more != nil {
		more(&o)
	}
	h.Service, err = workspace.New(o)
	require.NoError(t, err)
	workspace.CheapHashes(h.Service)
	return h
}

// setup makes the first administrator ann with workspace "lab".
func (h *house) setup(t testing.TB, run bool) auth.Actor {
	t.Helper()
	ctx := context.Background()
	token, err := h.NewSetupToken(ctx)
	require.NoError(t, err)
	u, w, err := h.Setup(ctx, workspace.SetupForm{Token: token, Email: "ann@example.org", Password: password, WorkspaceName: "Lab", RunCode: run}, "192.0.2.1", "r1")
	require.NoError(t, err)
	return h.person(t, u.ID, w.Slug)
}

func (h *house) person(t testing.TB, userID, slug string) auth.Actor {
	t.Helper()
	a, err := h.PersonActor(context.Background(), userID, "", slug, "192.0.2.1", "r1")
	require.NoError(t, err)
	return a
}

// join makes a new person a member.
func (h *house) join(t *testing.T, admin auth.Actor, email string, role auth.Role, run bool) auth.Actor {
	t.Helper()
	ctx := context.Background()
	token, err := h.Invite(ctx, admin, email, role, run)
	require.NoError(t, err)
	u, w, err := h.AcceptInvitation(ctx, token, password, "192.0.2.1", "r1")
	require.NoError(t, err)
	return h.person(t, u.ID, w.Slug)
}

func (h *house) key(t testing.TB, a auth.Actor, f workspace.KeyForm) (auth.Actor, string, auth.Key) {
	t.Helper()
	ctx := context.Background()
	k, secret, err := h.CreateKey(ctx, a, f)
	require.NoError(t, err)
	b, err := h.KeyActor(ctx, secret, "192.0.2.1", "r1")
	require.NoError(t, err)
	return b, secret, k
}

func (h *house) events(t *testing.T, f audit.Filter) []audit.Event {
	t.Helper()
	events, err := h.log.List(context.Background(), f)
	require.NoError(t, err)
	return events
}

func wantKind(t *testing.T, err error, k fault.Kind) {
	t.Helper()
	require.Equal(t, k, fault.KindOf(err), "%v", err)
}
