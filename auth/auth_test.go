package auth_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/fault"
)

// cheap keeps tests fast; the shape of the work is the same.
var cheap = auth.HashParams{MemoryKiB: 64, Time: 1, Threads: 1}

func TestRolesHoldWhatTheContractSays(t *testing.T) {
	want := map[auth.Role]string{
		auth.Viewer:   "sandboxes:read",
		auth.Analyst:  "sandboxes:read",
		auth.Approver: "sandboxes:read,approvals:decide,audit:read",
		auth.Operator: "sandboxes:read,sandboxes:manage,audit:read",
		auth.Admin:    "sandboxes:read,sandboxes:manage,audit:read,members:manage,keys:manage",
	}
	require.Len(t, auth.Roles, len(want))
	for _, r := range auth.Roles {
		require.Equal(t, want[r], r.Permissions().String(), r)
		require.False(t, r.Permissions().Has(auth.SandboxesRun), "%s must not hold run", r)
	}
	require.Empty(t, auth.Role("owner").Permissions())
	require.False(t, auth.Role("owner").Valid())
}

func TestRightsOfAMember(t *testing.T) {
	m := auth.Member{Role: auth.Viewer, Granted: auth.Permissions{auth.SandboxesRun, auth.KeysManage}}
	require.Equal(t, "sandboxes:read,sandboxes:run,keys:manage", m.Rights().String())
	m.Disabled = true
	require.Empty(t, m.Rights())
}

func TestRightsOfAKey(t *testing.T) {
	all := auth.Permissions(auth.AllPermissions)
	owner := auth.Member{WorkspaceID: "w", UserID: "u", Role: auth.Viewer, Granted: auth.Permissions{auth.SandboxesRun}}
	cases := []struct {
		name  string
		key   auth.Key
		owner auth.Member
		want  string
	}{
		{"cut to the owner's rights", auth.Key{WorkspaceID: "w", OwnerID: "u", Permissions: all}, owner, "sandboxes:read,sandboxes:run"},
		{"cut to its own list", auth.Key{WorkspaceID: "w", OwnerID: "u", Permissions: auth.Permissions{auth.SandboxesRead}}, owner, "sandboxes:read"},
		{"owner gone", auth.Key{WorkspaceID: "w", OwnerID: "u", Permissions: all}, auth.Member{}, ""},
		{"somebody else's place", auth.Key{WorkspaceID: "w", OwnerID: "u", Permissions: all}, auth.Member{WorkspaceID: "w", UserID: "v", Role: auth.Admin}, ""},
		{"another workspace", auth.Key{WorkspaceID: "w", OwnerID: "u", Permissions: all}, auth.Member{WorkspaceID: "x", UserID: "u", Role: auth.Admin}, ""},
		{"owner disabled", auth.Key{WorkspaceID: "w", OwnerID: "u", Permissions: all}, auth.Member{WorkspaceID: "w", UserID: "u", Role: auth.Admin, Disabled: true}, ""},
		{"service account", auth.Key{WorkspaceID: "w", Permissions: auth.Permissions{auth.SandboxesRun, auth.AuditRead}}, auth.Member{}, "sandboxes:run,audit:read"},
		{"service account mints and decides nothing", auth.Key{WorkspaceID: "w", Permissions: all}, auth.Member{}, "sandboxes:read,sandboxes:run,sandboxes:manage,audit:read,members:manage"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, c.key.Rights(c.owner).String()) })
	}
}

func TestPermissionSets(t *testing.T) {
	run := auth.Permissions{auth.SandboxesRun}
	require.True(t, run.Has(auth.SandboxesRead), "run includes read")
	require.False(t, auth.Permissions{auth.SandboxesRead}.Has(auth.SandboxesRun))
	require.False(t, auth.Permissions{auth.SandboxesManage}.Has(auth.SandboxesRead))
	missing, ok := auth.Permissions{auth.SandboxesRead, auth.AuditRead}.Within(run)
	require.False(t, ok)
	require.Equal(t, auth.AuditRead, missing)

	require.Equal(t, "sandboxes:run,audit:read", auth.Permissions{"audit:read", "sandboxes:own", auth.SandboxesRun, "audit:read"}.Sorted().String())
}

func TestKeyShape(t *testing.T) {
	secret, prefix := auth.NewKeySecret()
	require.Regexp(t, `^sg_[0-9A-Za-z]{8}_[0-9A-Za-z]{43}$`, secret)
	got, ok := auth.KeyPrefix(secret)
	require.True(t, ok)
	require.Equal(t, prefix, got)
	require.True(t, auth.SecretMatches(secret, auth.HashSecret(secret)))

	for i := range secret {
		c := byte('a')
		if secret[i] == c {
			c = 'b'
		}
		broken := secret[:i] + string(c) + secret[i+1:]
		_, ok := auth.KeyPrefix(broken)
		require.False(t, ok, "a changed character at %d must show", i)
		require.False(t, auth.SecretMatches(broken, auth.HashSecret(secret)))
	}
	for _, s := range []string{"", "sg_", secret[1:], secret + "a", strings.Repeat("é", len(secret)/2), "sg_" + strings.Repeat("\x00", len(secret)-3)} {
		_, ok := auth.KeyPrefix(s)
		require.False(t, ok, "%q", s)
	}
}

func TestNewPasswords(t *testing.T) {
	cases := map[string]bool{
		"tall-river-42":                         true,
		strings.Repeat("ab", 128):               true,
		"ten chars!":                            true,
		"éééééééééx":                            true,
		"":                                      false,
		"short":                                 false,
		"nine char":                             false,
		strings.Repeat("ab", 128) + "c":         false,
		"aaaaaaaaaaaa":                          false,
		"Password123":                           false,
		"qwertyuiop":                            false,
		"ann@example.org":                       false,
		"not utf-8 \xff here":                   false,
		"correct horse battery staple":          false,
		"correct horse battery staple, reordre": true,
	}
	for p, ok := range cases {
		err := auth.CheckNewPassword(p, "ann@example.org")
		require.Equal(t, ok, err == nil, "%q: %v", p, err)
		if !ok {
			require.True(t, fault.Is(err, fault.Invalid))
			require.NotContains(t, err.Error(), "ann@")
		}
	}
}

func TestHasher(t *testing.T) {
	ctx := context.Background()
	h := auth.NewHasher(cheap)
	phc, err := h.Hash(ctx, "tall-river-42")
	require.NoError(t, err)
	require.Regexp(t, `^\$argon2id\$v=19\$m=64,t=1,p=1\$[^$]+\$[^$]+$`, phc)

	again, err := h.Hash(ctx, "tall-river-42")
	require.NoError(t, err)
	require.NotEqual(t, phc, again, "each hash has a salt of its own")

	ok, stale, err := h.Check(ctx, "tall-river-42", phc)
	require.NoError(t, err)
	require.True(t, ok)
	require.False(t, stale)
	ok, _, err = h.Check(ctx, "tall-river-43", phc)
	require.NoError(t, err)
	require.False(t, ok)

	ok, _, err = h.Check(ctx, "anything", "")
	require.NoError(t, err)
	require.False(t, ok, "an unknown account has no right password")
	ok, _, err = h.Check(ctx, strings.Repeat("x", auth.PasswordMaxBytes+1), phc)
	require.NoError(t, err)
	require.False(t, ok)

	_, stale, err = auth.NewHasher(auth.HashParams{MemoryKiB: 128, Time: 1, Threads: 1}).Check(ctx, "tall-river-42", phc)
	require.NoError(t, err)
	require.True(t, stale, "other parameters ask for a new hash")

	for _, bad := range []string{"x", "$argon2i$v=19$m=64,t=1,p=1$AA$AA", "$argon2id$v=19$m=99999999,t=1,p=1$AAAA$AAAA", "$argon2id$v=19$m=64,t=0,p=1$AAAA$AAAA"} {
		_, _, err := h.Check(ctx, "tall-river-42", bad)
		require.Error(t, err, bad)
	}
}

// The semaphore lets two hashes run; whoever waits gives up with their context, and a crowd is turned away.
func TestHasherIsBounded(t *testing.T) {
	h := auth.NewHasher(auth.HashParams{MemoryKiB: 8 << 10, Time: 2, Threads: 1})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	kinds := map[fault.Kind]int{}
	for range 200 {
		wg.Go(func() {
			_, err := h.Hash(ctx, "tall-river-42")
			mu.Lock()
			defer mu.Unlock()
			kinds[fault.KindOf(err)]++
		})
	}
	wg.Wait()
	require.Positive(t, kinds[""])
	require.Equal(t, 200, kinds[""]+kinds[fault.SlowDown])

	done, stop := context.WithCancel(context.Background())
	stop()
	for range 20 { // a free slot may win against an ended context, but not each time
		if _, err := h.Hash(done, "tall-river-42"); err != nil {
			require.ErrorIs(t, err, context.Canceled)
			return
		}
	}
}

func TestNormalEmail(t *testing.T) {
	got, err := auth.NormalEmail("  Ann.B+x@Example.ORG ")
	require.NoError(t, err)
	require.Equal(t, "ann.b+x@example.org", got)
	for _, bad := range []string{
		"", "a", "@", "a@", "@b", "ann", "ann@b@c", "Ann <ann@example.org>", "ann@exa mple.org", "ann\x00@example.org",
		"ann@example.org,bob@example.org", "аnn@example.org", `"a b"@example.org`, strings.Repeat("a", 250) + "@b.cc",
	} {
		_, err := auth.NormalEmail(bad)
		require.True(t, fault.Is(err, fault.Invalid), "%q", bad)
	}
}

func TestSessionLife(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	v := auth.Session{LastSeenAt: start, IdleFor: time.Hour, EndsAt: start.Add(90 * time.Minute)}
	require.Equal(t, start.Add(time.Hour), v.LiveUntil())
	v.LastSeenAt = start.Add(time.Hour)
	require.Equal(t, start.Add(90*time.Minute), v.LiveUntil())
}

func TestKeyLife(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	live := func(change func(*auth.KeyHolder)) bool {
		k := auth.KeyHolder{Key: auth.Key{OwnerID: "u"}, Owner: auth.Member{UserID: "u"}}
		change(&k)
		return k.Live(now)
	}
	require.True(t, live(func(*auth.KeyHolder) {}))
	require.True(t, live(func(k *auth.KeyHolder) { k.ExpiresAt = now.Add(1) }))
	require.False(t, live(func(k *auth.KeyHolder) { k.ExpiresAt = now }))
	require.False(t, live(func(k *auth.KeyHolder) { k.RevokedAt = now.Add(-1) }))
	require.False(t, live(func(k *auth.KeyHolder) { k.Owner.Disabled = true }))
	require.False(t, live(func(k *auth.KeyHolder) { k.Owner = auth.Member{} }))
	require.True(t, live(func(k *auth.KeyHolder) { k.OwnerID, k.Owner = "", auth.Member{} }))
}
