package audit_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/audit"
	"sandgate/internal/store"
)

// columns are all that a row of the record has but its number.
var columns = []string{
	"at", "workspace_id", "actor_kind", "actor_id", "actor", "address", "sandbox_id", "action", "target", "outcome", "duration_us", "digest",
	"approval_id", "request_id", "detail", "intent_seq", "prev_hash", "hash", "format", "owner", "old_digest", "new_digest", "output_digest",
}

// lived is a record with something of everything in it, closed.
func lived(t *testing.T) (dir string, rows int64) {
	t.Helper()
	ctx := context.Background()
	dir = t.TempDir()
	s, err := store.Open(ctx, filepath.Join(dir, "sandgate.db"))
	require.NoError(t, err)
	l, err := audit.New(audit.Options{Store: s, Key: key, HeadFile: filepath.Join(dir, "audit.head")})
	require.NoError(t, err)
	for i := range 20 {
		e, err := l.Begin(ctx, audit.Event{
			WorkspaceID: "w1", ActorKind: auth.KeyUser, ActorID: "k1", Actor: "nightly", Owner: "ann@example.org", Address: "192.0.2.1", SandboxID: "sb1",
			Action: "command.run", Target: fmt.Sprint("make ", i), Digest: "d", RequestID: fmt.Sprint("r", i),
		})
		require.NoError(t, err)
		e.EndWith(nil, "exit 0", audit.Facts{OldDigest: "none", NewDigest: "n"}, &audit.Output{Stdout: []byte(fmt.Sprint("made ", i)), StdoutTotal: 7})
		require.NoError(t, l.Note(ctx, audit.Event{WorkspaceID: "w1", Actor: "eve", Action: "sandbox.create", Outcome: audit.Refused, Detail: "needs sandboxes:run"}))
	}
	require.NoError(t, l.Flush(ctx))
	v, err := l.Verify(ctx)
	require.NoError(t, err)
	require.True(t, v.Holds(), v.Contrary)
	require.EqualValues(t, 20, v.Copies)
	require.NoError(t, s.Close())
	return dir, v.Checked
}

// forgery is one thing that somebody with write access to the file could do.
type forgery struct {
	name string
	sql  []string
}

// forge makes the nth of them at random.
func forge(r *rand.Rand, n int, rows int64) forgery {
	at := func() int64 { return 1 + r.Int64N(rows) }
	value := func(column string) string {
		switch column {
		case "at", "duration_us", "intent_seq":
			return fmt.Sprint(column, " + ", 1+r.Int64N(1000))
		case "format":
			return []string{"1", "3", "0"}[r.IntN(3)]
		case "prev_hash", "hash":
			return "randomblob(32)"
		}
		return fmt.Sprintf("%s || '%c'", column, 'a'+r.IntN(26))
	}
	shift := func(from, by int64) []string { // renumbers what follows, by way of numbers that nobody has
		return []string{
			fmt.Sprintf("UPDATE audit_events SET seq = -seq WHERE seq >= %d", from),
			fmt.Sprintf("UPDATE audit_events SET seq = -seq + %d WHERE seq < 0", by),
		}
	}
	swap := func(a, b int64) []string {
		return []string{
			fmt.Sprintf("UPDATE audit_events SET seq = -%d WHERE seq = %d", a, a), fmt.Sprintf("UPDATE audit_events SET seq = %d WHERE seq = %d", a, b),
			fmt.Sprintf("UPDATE audit_events SET seq = %d WHERE seq = -%d", b, a),
		}
	}
	insert := func(seq, like int64, more string) string {
		keep := strings.Join(columns[:16], ", ")
		return fmt.Sprintf(`INSERT INTO audit_events (seq, %s, prev_hash, hash, format, owner, old_digest, new_digest, output_digest)
			SELECT %d, %s, randomblob(32), hash, format, owner%s, old_digest, new_digest, output_digest FROM audit_events WHERE seq = %d`, keep, seq, keep, more, like)
	}
	kind := r.IntN(8)
	if n < len(columns) {
		kind = 0
	}
	switch kind {
	case 0, 1: // each column at least once
		c, seq := columns[n%len(columns)], at()
		return forgery{fmt.Sprintf("edit %s of %d", c, seq), []string{fmt.Sprintf("UPDATE audit_events SET %s = %s WHERE seq = %d", c, value(c), seq)}}
	case 2:
		seq := at()
		f := forgery{fmt.Sprintf("delete %d", seq), []string{fmt.Sprintf("DELETE FROM audit_events WHERE seq = %d", seq)}}
		if r.IntN(2) == 0 { // and close the gap
			f.name += " and close the gap"
			f.sql = append(f.sql, shift(seq+1, -1)...)
		}
		return f
	case 3:
		seq := at()
		return forgery{fmt.Sprintf("cut the end at %d", seq), []string{fmt.Sprintf("DELETE FROM audit_events WHERE seq >= %d", seq)}}
	case 4:
		seq := at()
		return forgery{fmt.Sprintf("insert at %d", seq), append(shift(seq, 1), insert(seq, seq+1, ""))}
	case 5:
		return forgery{"append", []string{insert(rows+1, at(), " || 'x'")}}
	case 6:
		a := at()
		b := 1 + (a+r.Int64N(rows-1))%rows
		if a == b {
			b = 1 + b%rows
		}
		return forgery{fmt.Sprintf("swap %d and %d", a, b), swap(a, b)}
	default:
		return forgery{"edit a copy", []string{[]string{
			"UPDATE audit_outputs SET stdout = x'00'", "UPDATE audit_outputs SET stdout_total = 1", "UPDATE audit_outputs SET cut = 1 - cut",
			"UPDATE audit_outputs SET stderr = x'01'", "UPDATE audit_outputs SET seq = seq + 1",
		}[r.IntN(5)] + " WHERE seq = (SELECT seq FROM audit_outputs ORDER BY random() LIMIT 1)"}}
	}
}

// Two hundred edits, deletions, insertions and reorderings of the stored record, each on a record that held: all are found.
func TestEveryForgeryIsFound(t *testing.T) {
	dir, rows := lived(t)
	seed := uint64(20261130)
	r := rand.New(rand.NewPCG(seed, 1))
	found := map[string]int{}
	b, err := os.ReadFile(filepath.Join(dir, "sandgate.db"))
	require.NoError(t, err)
	kept := filepath.Join(t.TempDir(), "kept.db")
	require.NoError(t, os.WriteFile(kept, b, 0o600))
	l := open(t, dir)
	db, err := sql.Open("sqlite", filepath.Join(dir, "sandgate.db"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(1)
	do := func(what string, statements ...string) {
		t.Helper()
		for _, s := range statements {
			_, err := db.Exec(s)
			require.NoError(t, err, "%s: %s", what, s)
		}
	}
	do("prepare", `ATTACH '`+kept+`' AS kept`, `DROP TRIGGER audit_events_no_update`, `DROP TRIGGER audit_events_no_delete`,
		`DROP TRIGGER audit_open_insert`, `DROP TRIGGER audit_open_delete`)
	for n := range 200 {
		f := forge(r, n, rows)
		do(f.name, append(append([]string{"BEGIN"}, f.sql...), "COMMIT")...)
		v, err := l.Verify(context.Background())
		require.NoError(t, err, f.name)
		require.False(t, v.Holds(), "seed %d, number %d: %s is not found", seed, n, f.name)
		require.NotEmpty(t, v.Contrary)
		found[strings.Fields(f.name)[0]]++
		do("put back", "BEGIN", `DELETE FROM main.audit_events`, `INSERT INTO main.audit_events SELECT * FROM kept.audit_events`,
			`DELETE FROM main.audit_outputs`, `INSERT INTO main.audit_outputs SELECT * FROM kept.audit_outputs`, "COMMIT")
	}
	v, err := l.Verify(context.Background())
	require.NoError(t, err)
	require.True(t, v.Holds(), v.Contrary)
	t.Log(found)
	require.Len(t, found, 6)
}

// What was recorded before there were facts still holds, and cannot be given any.
func TestOlderRowsHold(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	note(t, l, 3)
	old, err := l.Rows(context.Background(), 0, 10)
	require.NoError(t, err)
	var statements []string
	prev := make([]byte, 32)
	for _, r := range old {
		r.PrevHash, r.Format = prev, 1
		prev = audit.HashOf(l.Log, r)
		statements = append(statements, fmt.Sprintf("UPDATE audit_events SET format = 1, prev_hash = x'%x', hash = x'%x' WHERE seq = %d", r.PrevHash, prev, r.Seq))
	}
	tamper(t, dir, statements...)
	require.NoError(t, os.Remove(filepath.Join(dir, "audit.head")))
	require.NoError(t, audit.Anchor(l.Log, audit.Head{Seq: 3, Hash: prev}))
	next := open(t, dir)
	note(t, next, 2)
	checked, bad := verify(t, next)
	require.EqualValues(t, []int64{5, 0}, []int64{checked, bad})
	tamperAgain(t, dir, "UPDATE audit_events SET owner = 'x' WHERE seq = 2")
	_, bad = verify(t, next)
	require.EqualValues(t, 2, bad)
}

// A head that was published finds what a whole new record would hide.
func TestPublishedHeads(t *testing.T) {
	l := open(t, t.TempDir())
	note(t, l, 3)
	head, err := l.Head(context.Background())
	require.NoError(t, err)
	note(t, l, 2)
	v, err := l.Verify(context.Background(), head)
	require.NoError(t, err)
	require.True(t, v.Holds())
	other := open(t, t.TempDir())
	note(t, other, 5)
	v, err = other.Verify(context.Background(), head)
	require.NoError(t, err)
	require.EqualValues(t, 3, v.Bad)
	v, err = l.Verify(context.Background(), audit.Head{Seq: 9, Hash: head.Hash})
	require.NoError(t, err)
	require.EqualValues(t, 6, v.Bad)
	last, ok := l.LastVerdict()
	require.True(t, ok)
	require.Equal(t, v, last)
}
