package audit_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/internal/store"
)

var key = bytes.Repeat([]byte{7}, 32)

type fixture struct {
	*audit.Log
	store *store.Store
	dir   string
}

// open gives a log on a data directory, with handles of its own, as each process has.
func open(t *testing.T, dir string) fixture {
	t.Helper()
	s, err := store.Open(context.Background(), filepath.Join(dir, "sandgate.db"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	l, err := audit.New(audit.Options{Store: s, Key: key, HeadFile: filepath.Join(dir, "audit.head")})
	require.NoError(t, err)
	return fixture{Log: l, store: s, dir: dir}
}

func note(t *testing.T, l fixture, n int) {
	t.Helper()
	for i := range n {
		require.NoError(t, l.Note(context.Background(), audit.Event{WorkspaceID: "ws1", Action: "file.write", Target: fmt.Sprint("/work/", i), Outcome: audit.OK}))
	}
}

func verify(t *testing.T, l fixture) (checked, bad int64) {
	t.Helper()
	v, err := l.Verify(context.Background())
	require.NoError(t, err)
	return v.Checked, v.Bad
}

// tamper does to the database what somebody with write access to the file could do.
func tamper(t *testing.T, dir string, statements ...string) {
	t.Helper()
	tamperAgain(t, dir, append([]string{`DROP TRIGGER audit_events_no_update`, `DROP TRIGGER audit_events_no_delete`}, statements...)...)
}

// tamperAgain is tamper where the triggers are gone already.
func tamperAgain(t *testing.T, dir string, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(dir, "sandgate.db"))
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	for _, s := range statements {
		_, err := db.Exec(s)
		require.NoError(t, err, s)
	}
}

func TestIntentAndOutcome(t *testing.T) {
	ctx := context.Background()
	l := open(t, t.TempDir())
	outcomes := []struct {
		err  error
		want string
	}{
		{nil, audit.OK},
		{fault.New(fault.Forbidden, "No."), audit.Refused},
		{fault.New(fault.ApprovalNeeded, "Ask."), audit.Refused},
		{fault.New(fault.ApprovalDenied, "No."), audit.Refused},
		{fault.New(fault.NotFound, "Gone."), audit.Failed},
		{errors.New("password=hunter2"), audit.Failed},
	}
	for _, o := range outcomes {
		entry, err := l.Begin(ctx, audit.Event{Action: "command.run", ActorKind: auth.Person, Actor: "ann"})
		require.NoError(t, err)
		entry.End(o.err, "exit 3")
		entry.End(nil, "a second end does not count")
		events, err := l.List(ctx, audit.Filter{Limit: 2})
		require.NoError(t, err)
		require.Equal(t, o.want, events[0].Outcome)
		require.Equal(t, events[0].Seq+1, events[0].EndSeq, "intent and outcome are one event")
		rows, err := l.Rows(ctx, events[0].Seq-1, 2)
		require.NoError(t, err)
		require.Equal(t, []string{audit.Started, o.want}, []string{rows[0].Outcome, rows[1].Outcome})
		require.Equal(t, rows[0].Seq, rows[1].IntentSeq)
		require.Contains(t, events[0].Detail, "exit 3")
		require.NotContains(t, events[0].Detail, "hunter2", "causes stay out of the record")
	}
	checked, bad := verify(t, l)
	require.EqualValues(t, 2*len(outcomes), checked)
	require.Zero(t, bad)
}

func TestEndOutlivesTheCaller(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	l := open(t, t.TempDir())
	entry, err := l.Begin(ctx, audit.Event{Action: "command.run"})
	require.NoError(t, err)
	cancel()
	entry.End(nil, "")
	events, err := l.List(context.Background(), audit.Filter{})
	require.NoError(t, err)
	require.Len(t, events, 1)
	require.Equal(t, audit.OK, events[0].Outcome)
}

func TestFailsClosed(t *testing.T) {
	l := open(t, t.TempDir())
	require.NoError(t, l.store.Close())
	_, err := l.Begin(context.Background(), audit.Event{Action: "command.run"})
	require.Error(t, err)
	require.Error(t, l.Note(context.Background(), audit.Event{Action: "command.run", Outcome: audit.OK}))
	require.Error(t, l.Note(context.Background(), audit.Event{Action: "command.run"}), "without an outcome")
}

func TestAnchorThatCannotBeWrittenFailsClosed(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir).store
	l, err := audit.New(audit.Options{Store: s, Key: key, HeadFile: filepath.Join(dir, "missing", "audit.head")})
	require.NoError(t, err)
	_, err = l.Begin(context.Background(), audit.Event{Action: "command.run"})
	require.Error(t, err)
}

func TestHostileTextIsBoundedAndKeepsTheChain(t *testing.T) {
	l := open(t, t.TempDir())
	hostile := []string{
		strings.Repeat("x", 1<<20), strings.Repeat("ü", 4<<10), "\xff\xfe\x00 \u202e", strings.Repeat("\xff", 5000), strings.Repeat("a", 4096), strings.Repeat("a", 4095) + "ü",
		strings.Repeat("a", 4093) + "\xff\xff",
	}
	for _, h := range hostile {
		require.NoError(t, l.Note(context.Background(), audit.Event{Action: h, Target: h, Detail: h, Actor: h, RequestID: h, ActorKind: auth.ActorKind(h), Outcome: audit.OK}))
	}
	checked, bad := verify(t, l)
	require.EqualValues(t, len(hostile), checked)
	require.Zero(t, bad)
	events, err := l.List(context.Background(), audit.Filter{})
	require.NoError(t, err)
	for _, e := range events {
		require.LessOrEqual(t, len(e.Target), 4<<10)
		require.LessOrEqual(t, len(e.Detail), 4<<10)
		require.LessOrEqual(t, len(e.Actor), 512)
		require.Equal(t, strings.ToValidUTF8(e.Target, "?"), e.Target)
	}
	require.Equal(t, strings.Repeat("a", 4096), events[2].Target, "what fits is kept whole")
	require.Contains(t, events[4].Target, `\xff\xfe`)
}

func TestTampering(t *testing.T) {
	cases := []struct {
		name string
		sql  []string
		bad  int64
	}{
		{"a text changed", []string{`UPDATE audit_events SET target = '/etc' WHERE seq = 5`}, 5},
		{"a time changed", []string{`UPDATE audit_events SET at = at + 1 WHERE seq = 7`}, 7},
		{"an outcome changed", []string{`UPDATE audit_events SET outcome = 'refused' WHERE seq = 10`}, 10},
		{"texts moved between columns", []string{`UPDATE audit_events SET action = 'file', target = '.write' || target WHERE seq = 3`}, 3},
		{"a row removed", []string{`DELETE FROM audit_events WHERE seq = 4`}, 4},
		{"the first row removed", []string{`DELETE FROM audit_events WHERE seq = 1`}, 1},
		{"rows swapped", []string{
			`UPDATE audit_events SET seq = 100 WHERE seq = 2`, `UPDATE audit_events SET seq = 2 WHERE seq = 3`, `UPDATE audit_events SET seq = 3 WHERE seq = 100`,
		}, 2},
		{"a row removed and the rest moved up", []string{
			`DELETE FROM audit_events WHERE seq = 4`, `UPDATE audit_events SET seq = -seq WHERE seq > 4`, `UPDATE audit_events SET seq = -seq - 1 WHERE seq < 0`,
		}, 4},
		{"the end cut off", []string{`DELETE FROM audit_events WHERE seq > 8`}, 9},
		{"everything removed", []string{`DELETE FROM audit_events`}, 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			l := open(t, dir)
			note(t, l, 10)
			_, bad := verify(t, l)
			require.Zero(t, bad)
			tamper(t, dir, c.sql...)
			_, bad = verify(t, l)
			require.Equal(t, c.bad, bad)

			// More events do not heal it, in this process or after a new start.
			note(t, l, 1)
			note(t, open(t, dir), 3)
			_, bad = verify(t, l)
			require.NotZero(t, bad, "it must stay visible")
		})
	}
}

func TestAnchorTampering(t *testing.T) {
	other := []byte(strings.Repeat("0", 20) + " " + strings.Repeat("0", 64) + " " + strings.Repeat("0", 64) + "\n")
	cases := map[string]func(path string) error{
		"removed":   os.Remove,
		"emptied":   func(p string) error { return os.Truncate(p, 0) },
		"forged":    func(p string) error { return os.WriteFile(p, other, 0o600) },
		"garbage":   func(p string) error { return os.WriteFile(p, []byte("hello"), 0o600) },
		"very long": func(p string) error { return os.WriteFile(p, bytes.Repeat([]byte("9"), 1<<20), 0o600) },
	}
	for name, do := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l := open(t, dir)
			note(t, l, 3)
			require.NoError(t, do(filepath.Join(dir, "audit.head")))
			_, bad := verify(t, l)
			require.NotZero(t, bad)
			note(t, l, 1)
			_, bad = verify(t, l)
			require.EqualValues(t, 4, bad, "the event about it")
			events, err := l.List(context.Background(), audit.Filter{Action: audit.ActionCut})
			require.NoError(t, err)
			require.Len(t, events, 1)
		})
	}
}

// An anchor behind the chain is what a crash between both leaves.
func TestAnchorBehindIsFine(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	note(t, l, 2)
	old, err := os.ReadFile(filepath.Join(dir, "audit.head"))
	require.NoError(t, err)
	note(t, l, 2)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "audit.head"), old, 0o600))
	note(t, open(t, dir), 1)
	checked, bad := verify(t, l)
	require.EqualValues(t, 5, checked)
	require.Zero(t, bad)
}

func TestAnotherKeyDoesNotVerify(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	note(t, l, 2)
	other, err := audit.New(audit.Options{Store: l.store, Key: bytes.Repeat([]byte{8}, 32), HeadFile: filepath.Join(dir, "audit.head")})
	require.NoError(t, err)
	v, err := other.Verify(context.Background())
	bad := v.Bad
	require.NoError(t, err)
	require.EqualValues(t, 1, bad)
	_, err = audit.New(audit.Options{Store: l.store, Key: key[:16], HeadFile: "x"})
	require.Error(t, err)
}

// Rows refuse to change unless somebody takes the triggers away first.
func TestRowsAreAppendOnly(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	note(t, l, 1)
	db, err := sql.Open("sqlite", filepath.Join(dir, "sandgate.db"))
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	for _, s := range []string{`UPDATE audit_events SET target = ''`, `DELETE FROM audit_events`} {
		_, err := db.Exec(s)
		require.ErrorContains(t, err, "append-only")
	}
}

// Two processes (two handles each with its own lock) write at once: one chain comes out.
func TestManyWritersMakeOneChain(t *testing.T) {
	const writers, each = 4, 200
	dir := t.TempDir()
	logs := []fixture{open(t, dir), open(t, dir)}
	var wg sync.WaitGroup
	errs := make(chan error, writers)
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				e := audit.Event{Action: "command.run", Target: fmt.Sprint(w, " ", i), Outcome: audit.OK}
				if err := logs[w%2].Note(context.Background(), e); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	for _, l := range logs {
		checked, bad := verify(t, l)
		require.EqualValues(t, writers*each, checked)
		require.Zero(t, bad)
	}
}

func TestCloseOpen(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	l := open(t, dir)
	done, err := l.Begin(ctx, audit.Event{Action: "file.write"})
	require.NoError(t, err)
	done.End(nil, "")
	_, err = l.Begin(ctx, audit.Event{Action: "command.run", Target: "make", WorkspaceID: "ws1"})
	require.NoError(t, err)

	next := open(t, dir) // as after a crash
	n, err := next.CloseOpen(ctx)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	events, err := next.List(ctx, audit.Filter{Limit: 2})
	require.NoError(t, err)
	require.Equal(t, audit.Unknown, events[0].Outcome)
	require.EqualValues(t, []int64{3, 4}, []int64{events[0].Seq, events[0].EndSeq})
	require.Equal(t, "make", events[0].Target)
	n, err = next.CloseOpen(ctx)
	require.NoError(t, err)
	require.Zero(t, n)
	_, bad := verify(t, next)
	require.Zero(t, bad)
}

func TestFilters(t *testing.T) {
	ctx := context.Background()
	l := open(t, t.TempDir())
	start := time.Now()
	add := func(e audit.Event) {
		t.Helper()
		e.Outcome = audit.OK
		require.NoError(t, l.Note(ctx, e))
	}
	require.NoError(t, l.store.InsertUser(ctx, auth.User{ID: "us1", Email: "ann@example.org"}))
	_, err := l.store.InsertWorkspace(ctx, auth.Workspace{ID: "w1", Slug: "w1", Name: "w1"}, auth.Member{WorkspaceID: "w1", UserID: "us1", Role: auth.Admin})
	require.NoError(t, err)
	add(audit.Event{WorkspaceID: "w1", Action: "command.run", Actor: "ann", SandboxID: "sb1", Target: "100% _done_"})
	add(audit.Event{WorkspaceID: "w1", Action: "command.kill", Actor: "bob", SandboxID: "sb2", Target: "x"})
	add(audit.Event{WorkspaceID: "w2", Action: "command.run", Actor: "ann", SandboxID: "sb1", Target: "other"})
	add(audit.Event{Action: "session.sign_in", ActorID: "us1", Actor: "ann"})
	add(audit.Event{Action: "session.sign_in", ActorID: "us2", Actor: "eve"})
	add(audit.Event{Action: "user.create", ActorID: "us1", Actor: "ann"})
	seqs := func(f audit.Filter) (out []int64) {
		t.Helper()
		events, err := l.List(ctx, f)
		require.NoError(t, err)
		for _, e := range events {
			out = append(out, e.Seq)
		}
		return out
	}
	require.Equal(t, []int64{4, 2, 1}, seqs(audit.Filter{WorkspaceID: "w1"}), "its own, and sign-ins of its members")
	require.Equal(t, []int64{3}, seqs(audit.Filter{WorkspaceID: "w2"}))
	require.Equal(t, []int64{3, 2, 1}, seqs(audit.Filter{Action: "command."}))
	require.Equal(t, []int64{3, 1}, seqs(audit.Filter{Action: "command.run"}))
	require.Equal(t, []int64{2}, seqs(audit.Filter{Actor: "bob"}))
	require.Equal(t, []int64{1}, seqs(audit.Filter{WorkspaceID: "w1", SandboxID: "sb1"}))
	require.Equal(t, []int64{1}, seqs(audit.Filter{Q: "100% _"}), "no wildcards")
	require.Empty(t, seqs(audit.Filter{Q: "1%d"}))
	require.Equal(t, []int64{2, 1}, seqs(audit.Filter{BeforeSeq: 3}))
	require.Equal(t, []int64{6, 5}, seqs(audit.Filter{Limit: 2}))
	require.Len(t, seqs(audit.Filter{From: start.Add(-time.Minute), To: time.Now().Add(time.Minute)}), 6)
	require.Empty(t, seqs(audit.Filter{To: start.Add(-time.Minute)}))
}

func BenchmarkIntentAndOutcome(b *testing.B) {
	dir := b.TempDir()
	s, err := store.Open(context.Background(), filepath.Join(dir, "sandgate.db"))
	require.NoError(b, err)
	defer func() { _ = s.Close() }()
	l, err := audit.New(audit.Options{Store: s, Key: key, HeadFile: filepath.Join(dir, "audit.head")})
	require.NoError(b, err)
	for b.Loop() {
		e, err := l.Begin(context.Background(), audit.Event{WorkspaceID: "ws", Action: "command.run", Target: "true"})
		require.NoError(b, err)
		e.End(nil, "exit 0")
	}
}
