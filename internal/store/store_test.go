package store_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/fault"
	"sandgate/internal/store"
	"sandgate/sandbox"
)

var epochStart = time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)

// open gives a store in a new data directory, and a second handle on it: what another process would have.
func open(t *testing.T) (s, other *store.Store, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "data dir with ? and %", "sandgate.db")
	handle := func() *store.Store {
		s, err := store.Open(context.Background(), path)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		return s
	}
	return handle(), handle(), path
}

func user(n int) auth.User {
	return auth.User{ID: fmt.Sprintf("us%d", n), Email: fmt.Sprintf("p%d@example.org", n), PasswordHash: "x", CreatedAt: epochStart}
}

// place makes a workspace with user 1 as its admin and user 2 as a viewer.
func place(t *testing.T, s *store.Store) auth.Workspace {
	t.Helper()
	ctx := context.Background()
	require.NoError(t, s.InsertUser(ctx, user(1)))
	require.NoError(t, s.InsertUser(ctx, user(2)))
	w, err := s.InsertWorkspace(ctx, auth.Workspace{ID: "ws1", Slug: "lab", Name: "Lab", CreatedAt: epochStart},
		auth.Member{WorkspaceID: "ws1", UserID: "us1", Role: auth.Admin, JoinedAt: epochStart})
	require.NoError(t, err)
	require.NoError(t, s.PutMember(ctx, auth.Member{WorkspaceID: "ws1", UserID: "us2", Role: auth.Viewer, JoinedAt: epochStart}))
	return w
}

func TestMigrationsHaveNoGaps(t *testing.T) {
	files, err := os.ReadDir("migrations")
	require.NoError(t, err)
	name := regexp.MustCompile(`^(\d{5})_[a-z_]+\.sql$`)
	for i, f := range files {
		m := name.FindStringSubmatch(f.Name())
		require.NotNil(t, m, "%s: the name is not NNNNN_words.sql", f.Name())
		n, err := strconv.Atoi(m[1])
		require.NoError(t, err)
		require.Equal(t, i+1, n, "%s: numbers have no gaps and no repeats", f.Name())
	}
	require.NotEmpty(t, files)
}

func TestDatabaseIsPrivate(t *testing.T) {
	s, _, path := open(t)
	require.NoError(t, s.InsertUser(context.Background(), user(1))) // makes the -wal file
	dir, err := os.Stat(filepath.Dir(path))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), dir.Mode().Perm())
	files, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	for _, f := range files {
		info, err := f.Info()
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), f.Name())
	}
}

func TestNewerDatabaseIsRefused(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "sandgate.db")
	s, err := store.Open(ctx, path)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	raw, err := sql.Open("sqlite", path)
	require.NoError(t, err)
	_, err = raw.ExecContext(ctx, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, 1)`)
	require.NoError(t, err)
	require.NoError(t, raw.Close())
	_, err = store.Open(ctx, path)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
}

func TestManyOpenAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sandgate.db")
	var wg sync.WaitGroup
	errs := make(chan error, 8)
	for range 8 {
		wg.Go(func() {
			s, err := store.Open(context.Background(), path)
			if err == nil {
				_, err = s.CountUsers(context.Background())
				_ = s.Close()
			}
			errs <- err
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
}

func TestUsers(t *testing.T) {
	ctx := context.Background()
	s, other, _ := open(t)
	u := user(1)
	u.Admin = true
	require.NoError(t, s.InsertUser(ctx, u))
	got, err := other.UserByEmail(ctx, u.Email)
	require.NoError(t, err)
	require.Equal(t, u, got)
	again := user(2)
	again.Email = u.Email
	require.True(t, fault.Is(s.InsertUser(ctx, again), fault.Conflict))
	_, err = s.UserByID(ctx, "us9")
	require.True(t, fault.Is(err, fault.NotFound))
	require.True(t, fault.Is(s.SetDisabled(ctx, "us9", true), fault.NotFound))
}

func TestSlugsGetNumbers(t *testing.T) {
	ctx := context.Background()
	s, _, _ := open(t)
	for i, want := range []string{"lab", "lab-2", "lab-3"} {
		w, err := s.InsertWorkspace(ctx, auth.Workspace{ID: fmt.Sprint("ws", i), Slug: "lab", Name: "Lab"}, auth.Member{})
		require.NoError(t, err)
		require.Equal(t, want, w.Slug)
	}
}

func TestLastAdminStays(t *testing.T) {
	ctx := context.Background()
	s, _, _ := open(t)
	w := place(t, s)
	conflict := func(err error) { t.Helper(); require.True(t, fault.Is(err, fault.Conflict), "%v", err) }
	conflict(s.SetRole(ctx, w.ID, "us1", auth.Viewer))
	conflict(s.DeleteMember(ctx, w.ID, "us1", epochStart))
	conflict(s.PutMember(ctx, auth.Member{WorkspaceID: w.ID, UserID: "us1", Role: auth.Viewer}))
	m, err := s.Member(ctx, w.ID, "us1")
	require.NoError(t, err)
	require.Equal(t, auth.Admin, m.Role, "a refused change leaves nothing behind")

	require.NoError(t, s.SetRole(ctx, w.ID, "us2", auth.Admin))
	require.NoError(t, s.SetDisabled(ctx, "us2", true))
	conflict(s.SetRole(ctx, w.ID, "us1", auth.Viewer)) // the other one cannot sign in
	require.NoError(t, s.SetDisabled(ctx, "us2", false))
	require.NoError(t, s.SetRole(ctx, w.ID, "us1", auth.Viewer))
	require.NoError(t, s.DeleteMember(ctx, w.ID, "us1", epochStart))
	require.True(t, fault.Is(s.DeleteMember(ctx, w.ID, "us1", epochStart), fault.NotFound))
}

func TestTwoAdminsCannotRemoveEachOtherAtOnce(t *testing.T) {
	ctx := context.Background()
	s, other, _ := open(t)
	w := place(t, s)
	require.NoError(t, s.SetRole(ctx, w.ID, "us2", auth.Admin))
	var wg sync.WaitGroup
	var errs [2]error
	wg.Go(func() { errs[0] = s.DeleteMember(ctx, w.ID, "us1", epochStart) })
	wg.Go(func() { errs[1] = other.DeleteMember(ctx, w.ID, "us2", epochStart) })
	wg.Wait()
	members, err := s.Members(ctx, w.ID)
	require.NoError(t, err)
	require.Len(t, members, 1, "%v", errs)
}

func TestGrants(t *testing.T) {
	ctx := context.Background()
	s, other, _ := open(t)
	w := place(t, s)
	require.NoError(t, s.Grant(ctx, w.ID, "us2", auth.SandboxesRun, true))
	require.NoError(t, s.Grant(ctx, w.ID, "us2", auth.AuditRead, true))
	require.NoError(t, s.Grant(ctx, w.ID, "us2", auth.SandboxesRun, true))
	m, got, err := other.MemberBySlug(ctx, "us2", "lab")
	require.NoError(t, err)
	require.Equal(t, w, got)
	require.Equal(t, "sandboxes:run,audit:read", m.Granted.String())
	require.NoError(t, s.Grant(ctx, w.ID, "us2", auth.SandboxesRun, false))
	m, err = s.Member(ctx, w.ID, "us2")
	require.NoError(t, err)
	require.Equal(t, "audit:read", m.Granted.String())
	require.True(t, fault.Is(s.Grant(ctx, w.ID, "us9", auth.SandboxesRun, true), fault.NotFound))
	_, _, err = s.MemberBySlug(ctx, "us9", "lab")
	require.True(t, fault.Is(err, fault.NotFound))
	_, _, err2 := s.MemberBySlug(ctx, "us2", "nowhere")
	require.Equal(t, err.Error(), err2.Error(), "no member and no workspace are the same")
}

func TestKeysOfALeavingMemberStayDead(t *testing.T) {
	ctx := context.Background()
	s, _, _ := open(t)
	w := place(t, s)
	k := auth.Key{
		ID: "ke1", WorkspaceID: w.ID, Name: "laptop", OwnerID: "us2", Permissions: auth.Permissions{auth.SandboxesRead}, Prefix: "sg_12345678",
		Hash: auth.HashSecret("s"), CreatedAt: epochStart, ExpiresAt: epochStart.Add(time.Hour),
	}
	require.NoError(t, s.InsertKey(ctx, k))
	h, err := s.KeyByPrefix(ctx, k.Prefix)
	require.NoError(t, err)
	k.OwnerEmail = "p2@example.org"
	require.Equal(t, k, h.Key)
	require.Equal(t, w, h.Workspace)
	require.Equal(t, "us2", h.Owner.UserID)
	require.True(t, h.Live(epochStart))

	require.NoError(t, s.DeleteMember(ctx, w.ID, "us2", epochStart))
	require.NoError(t, s.PutMember(ctx, auth.Member{WorkspaceID: w.ID, UserID: "us2", Role: auth.Viewer}))
	h, err = s.KeyByID(ctx, "ke1")
	require.NoError(t, err)
	require.False(t, h.Live(epochStart))
}

func TestFirstAdministratorOnlyOnce(t *testing.T) {
	ctx := context.Background()
	s, other, _ := open(t)
	hash := auth.HashSecret("token")
	require.NoError(t, s.SetSetupToken(ctx, hash, epochStart.Add(time.Hour)))
	var wg sync.WaitGroup
	var errs [8]error
	for i := range errs {
		wg.Go(func() {
			at := []*store.Store{s, other}[i%2]
			_, errs[i] = at.CreateFirst(ctx, hash, epochStart, user(i), auth.Workspace{ID: fmt.Sprint("ws", i), Slug: "lab", Name: "Lab"},
				auth.Member{WorkspaceID: fmt.Sprint("ws", i), UserID: fmt.Sprint("us", i), Role: auth.Admin})
		})
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else {
			require.True(t, fault.Is(err, fault.Forbidden), "%v", err)
		}
	}
	require.Equal(t, 1, won)
	n, err := s.CountUsers(ctx)
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

func TestInvitationIsUsedOnce(t *testing.T) {
	ctx := context.Background()
	s, other, _ := open(t)
	w := place(t, s)
	i := auth.Invitation{
		ID: "in1", WorkspaceID: w.ID, Email: "p3@example.org", Role: auth.Viewer, Hash: auth.HashSecret("t"), InvitedBy: "p1", CreatedAt: epochStart,
		ExpiresAt: epochStart.Add(time.Hour),
	}
	require.NoError(t, s.PutInvitation(ctx, i))
	got, at, err := other.InvitationByHash(ctx, i.Hash, epochStart)
	require.NoError(t, err)
	require.Equal(t, i, got)
	require.Equal(t, w, at)
	_, _, err = s.InvitationByHash(ctx, i.Hash, i.ExpiresAt)
	require.True(t, fault.Is(err, fault.NotFound), "expired")

	u := user(3)
	m := auth.Member{WorkspaceID: w.ID, UserID: "us3", Role: auth.Viewer}
	require.True(t, fault.Is(s.AcceptInvitation(ctx, "in1", i.ExpiresAt, &u, m), fault.NotFound), "expired")
	require.NoError(t, s.AcceptInvitation(ctx, "in1", epochStart, &u, m))
	require.True(t, fault.Is(s.AcceptInvitation(ctx, "in1", epochStart, &u, m), fault.NotFound), "used")

	again := i
	again.ID, again.Hash = "in2", auth.HashSecret("t2")
	require.NoError(t, s.PutInvitation(ctx, again))
	newer := i
	newer.ID, newer.Hash = "in3", auth.HashSecret("t3")
	require.NoError(t, s.PutInvitation(ctx, newer))
	open, err := s.Invitations(ctx, w.ID, epochStart)
	require.NoError(t, err)
	require.Len(t, open, 1, "the one before dies")
	require.True(t, fault.Is(s.AcceptInvitation(ctx, "in3", epochStart, nil, m), fault.Conflict), "a member already")
}

func TestEpochGrowsWithWhatTakesRights(t *testing.T) {
	ctx := context.Background()
	s, other, _ := open(t)
	w := place(t, s)
	k := auth.Key{ID: "ke1", WorkspaceID: w.ID, Name: "k", Permissions: auth.Permissions{auth.SandboxesRead}, Prefix: "sg_1", Hash: []byte{1}}
	require.NoError(t, s.InsertKey(ctx, k))
	v := auth.Session{ID: "s1", UserID: "us2", CreatedAt: epochStart, LastSeenAt: epochStart, IdleFor: time.Hour, EndsAt: epochStart.Add(time.Hour)}
	require.NoError(t, s.InsertSession(ctx, v))
	epoch := func() int64 {
		t.Helper()
		n, err := other.AuthzEpoch(ctx)
		require.NoError(t, err)
		return n
	}
	steps := []struct {
		name  string
		grows bool
		do    func() error
	}{
		{"use a key", false, func() error { return s.TouchKey(ctx, "ke1", epochStart) }},
		{"use a session", false, func() error { return s.TouchSession(ctx, "s1", epochStart.Add(time.Minute)) }},
		{"keep a message", false, func() error { return s.SaveSessionData(ctx, "s1", []byte("x")) }},
		{"role", true, func() error { return s.SetRole(ctx, w.ID, "us2", auth.Operator) }},
		{"grant", true, func() error { return s.Grant(ctx, w.ID, "us2", auth.SandboxesRun, true) }},
		{"take", true, func() error { return s.Grant(ctx, w.ID, "us2", auth.SandboxesRun, false) }},
		{"revoke a key", true, func() error { return s.RevokeKey(ctx, w.ID, "ke1", epochStart) }},
		{"sign out", true, func() error { return s.DeleteSession(ctx, "s1") }},
		{"sign out what is out", false, func() error { return s.DeleteSession(ctx, "s1") }},
		{"disable", true, func() error { return s.SetDisabled(ctx, "us2", true) }},
		{"remove", true, func() error { return s.DeleteMember(ctx, w.ID, "us2", epochStart) }},
	}
	for _, step := range steps {
		before := epoch()
		require.NoError(t, step.do(), step.name)
		require.Equal(t, step.grows, epoch() > before, step.name)
	}
}

func TestSessionsAreSwept(t *testing.T) {
	ctx := context.Background()
	s, _, _ := open(t)
	require.NoError(t, s.InsertUser(ctx, user(1)))
	add := func(id string, at time.Time) {
		t.Helper()
		require.NoError(t, s.InsertSession(ctx, auth.Session{ID: id, UserID: "us1", CreatedAt: at, LastSeenAt: at, IdleFor: time.Hour, EndsAt: at.Add(3 * time.Hour)}))
	}
	add("idle", epochStart)
	add("used", epochStart)
	require.NoError(t, s.TouchSession(ctx, "used", epochStart.Add(50*time.Minute)))
	require.NoError(t, s.TouchSession(ctx, "used", epochStart), "going back in time changes nothing")
	add("new", epochStart.Add(time.Hour))
	all, err := s.SessionsOf(ctx, "us1")
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.Equal(t, "new", all[0].ID)
	require.Equal(t, "used", all[1].ID)
	require.NoError(t, s.DeleteSessionsOf(ctx, "us1", "new"))
	_, err = s.SessionByID(ctx, "used")
	require.True(t, fault.Is(err, fault.NotFound))
	require.NoError(t, s.SetPassword(ctx, "us1", "y", true))
	_, err = s.SessionByID(ctx, "new")
	require.True(t, fault.Is(err, fault.NotFound), "a new password signs out everywhere")
}

func TestSandboxRecords(t *testing.T) {
	ctx := context.Background()
	s, other, _ := open(t)
	w := place(t, s)
	r := sandbox.Record{
		ID: sandbox.NewID(), WorkspaceID: w.ID, Label: "it's; DROP TABLE", Image: "base", OwnerKind: "person", OwnerID: "us1", OwnerName: "p1@example.org",
		Status: sandbox.Creating, Cwd: "/work", User: "root", Env: map[string]string{"A": "\x00 ü \""}, Metadata: map[string]string{},
		Resources: sandbox.DefaultResources, CreatedAt: epochStart, LastActivity: epochStart, Incarnation: 1,
	}
	require.NoError(t, s.InsertSandboxWithin(ctx, r, sandbox.Quota{}))
	require.True(t, fault.Is(s.InsertSandboxWithin(ctx, r, sandbox.Quota{}), fault.Conflict))
	got, err := other.SandboxByID(ctx, r.ID)
	require.NoError(t, err)
	require.Equal(t, r, got)

	var wg sync.WaitGroup
	var won [8]bool
	for i := range won {
		wg.Go(func() {
			at := []*store.Store{s, other}[i%2]
			ok, err := at.ChangeStatus(ctx, r.ID, sandbox.Creating, sandbox.Running, "", epochStart)
			won[i] = ok && err == nil
		})
	}
	wg.Wait()
	n := 0
	for _, w := range won {
		if w {
			n++
		}
	}
	require.Equal(t, 1, n, "one of many moves it")

	require.NoError(t, s.TouchSandbox(ctx, r.ID, epochStart.Add(time.Minute)))
	require.NoError(t, s.TouchSandbox(ctx, r.ID, epochStart))
	got, err = s.SandboxByID(ctx, r.ID)
	require.NoError(t, err)
	require.Equal(t, epochStart.Add(time.Minute), got.LastActivity)

	require.NoError(t, s.NoteStep(ctx, r.ID, "netns", epochStart))
	require.NoError(t, s.NoteStep(ctx, r.ID, "cgroup", epochStart))
	steps, err := s.Steps(ctx, r.ID)
	require.NoError(t, err)
	require.Equal(t, []string{"netns", "cgroup"}, steps)
	for range 100 {
		require.NoError(t, s.NoteStep(ctx, r.ID, "checkpoint", epochStart))
	}
	steps, err = s.Steps(ctx, r.ID)
	require.NoError(t, err)
	require.Len(t, steps, 64, "the oldest are forgotten")

	ok, err := s.ChangeStatus(ctx, r.ID, sandbox.Running, sandbox.Gone, sandbox.ReasonKilled, epochStart.Add(time.Hour))
	require.NoError(t, err)
	require.True(t, ok)
	steps, err = s.Steps(ctx, r.ID)
	require.NoError(t, err)
	require.Empty(t, steps, "the journal ends with the sandbox")
	live, err := s.Sandboxes(ctx, sandbox.Filter{WorkspaceID: w.ID})
	require.NoError(t, err)
	require.Empty(t, live)
	all, err := s.Sandboxes(ctx, sandbox.Filter{WorkspaceID: w.ID, IncludeGone: true})
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Equal(t, epochStart.Add(time.Hour), all[0].EndedAt)
	require.Equal(t, sandbox.ReasonKilled, all[0].Reason)
	_, err = s.SandboxByID(ctx, sandbox.NewID())
	require.True(t, fault.Is(err, fault.NotFound))
}

func TestIdempotencyKeys(t *testing.T) {
	ctx := context.Background()
	s, other, _ := open(t)
	w := place(t, s)
	claimed, _, _, err := s.ClaimIdempotencyKey(ctx, w.ID, "k", "d1", "sb1", epochStart)
	require.NoError(t, err)
	require.True(t, claimed)
	claimed, digest, id, err := other.ClaimIdempotencyKey(ctx, w.ID, "k", "d2", "sb2", epochStart)
	require.NoError(t, err)
	require.False(t, claimed)
	require.Equal(t, "d1", digest)
	require.Equal(t, sandbox.ID("sb1"), id)
	require.NoError(t, s.ReleaseIdempotencyKey(ctx, w.ID, "k"))
	claimed, _, _, err = s.ClaimIdempotencyKey(ctx, w.ID, "k", "d2", "sb2", epochStart)
	require.NoError(t, err)
	require.True(t, claimed)
	claimed, _, _, err = s.ClaimIdempotencyKey(ctx, w.ID, "k", "d3", "sb3", epochStart.Add(time.Minute))
	require.NoError(t, err)
	require.False(t, claimed)
	claimed, _, _, err = s.ClaimIdempotencyKey(ctx, w.ID, "k", "d2", "sb2", epochStart.Add(3*time.Minute))
	require.NoError(t, err)
	require.True(t, claimed, "no record was ever written for it")
	claimed, _, id, err = s.ClaimIdempotencyKey(ctx, w.ID, "k", "d3", "sb3", epochStart.Add(25*time.Hour))
	require.NoError(t, err)
	require.True(t, claimed, "forgotten after a day")
	require.Equal(t, sandbox.ID("sb3"), id)
}
