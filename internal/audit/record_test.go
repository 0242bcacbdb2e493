package audit_test

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/internal/store"
)

func seqs(t *testing.T, l fixture, f audit.Filter) (out []int64) {
	t.Helper()
	events, err := l.List(context.Background(), f)
	require.NoError(t, err)
	for _, e := range events {
		out = append(out, e.Seq)
	}
	return out
}

func began(t *testing.T, l fixture, e audit.Event) *audit.Entry {
	t.Helper()
	entry, err := l.Begin(context.Background(), e)
	require.NoError(t, err)
	return entry
}

// An event stands where it began, whatever happens meanwhile, and pages do not move when outcomes come.
func TestEventsStandWhereTheyBegan(t *testing.T) {
	l := open(t, t.TempDir())
	slow := began(t, l, audit.Event{Action: "terminal.attach"}) // 1
	note(t, l, 2)                                               // 2, 3
	fast := began(t, l, audit.Event{Action: "command.run"})     // 4
	fast.End(fault.New(fault.NotFound, "Gone."), "")            // 5
	require.Equal(t, []int64{4, 3, 2, 1}, seqs(t, l, audit.Filter{}))
	require.Equal(t, []int64{1}, seqs(t, l, audit.Filter{Outcome: audit.Started}))
	slow.End(nil, "") // 6
	require.Equal(t, []int64{4, 3, 2, 1}, seqs(t, l, audit.Filter{}))
	require.Equal(t, []int64{1, 2, 3, 4}, seqs(t, l, audit.Filter{Oldest: true}))
	require.Equal(t, []int64{4}, seqs(t, l, audit.Filter{Outcome: audit.Failed}))
	require.Equal(t, []int64{3, 2, 1}, seqs(t, l, audit.Filter{Outcome: audit.OK}))
	require.Empty(t, seqs(t, l, audit.Filter{Outcome: audit.Started}))
	require.Equal(t, []int64{2, 3}, seqs(t, l, audit.Filter{Oldest: true, AfterSeq: 1, BeforeSeq: 4}))
	for seq, want := range map[int64]int64{1: 1, 6: 1, 4: 4, 5: 4, 3: 3} {
		e, err := l.Event(context.Background(), seq)
		require.NoError(t, err)
		require.Equal(t, want, e.Seq)
		require.False(t, e.Ended.IsZero())
	}
	_, err := l.Event(context.Background(), 7)
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
}

func TestSearch(t *testing.T) {
	l := open(t, t.TempDir())
	run := began(t, l, audit.Event{Action: "command.run", Actor: "ci-agent", Owner: "ann@example.org", Target: "python train.py --epochs 3", RequestID: "req7", SandboxID: "sbaaaaaaaaaaaaaaaaaaaa"})
	require.NoError(t, l.Note(context.Background(), audit.Event{Action: "file.write", Actor: "bob@example.org", Target: "/work/Übersicht \"q3\".csv", Outcome: audit.OK}))
	for q, want := range map[string][]int64{
		"train": {1}, "train.py": {1}, "TRAIN.PY": {1}, "tra epo": {1}, "rain": nil, "ann@example.org": {1}, "req7": {1}, "sbaaaaaaaaaaaaaaaaaaaa": {1}, "sbaaaa": {1},
		"command": {1}, "ubersicht": {2}, "übersicht": {2}, `"q3".csv`: {2}, "q3 train": nil, "/work": {2}, "epochs": {1},
		"": {2, 1},
	} {
		require.Equal(t, want, seqs(t, l, audit.Filter{Q: q}), "%q", q)
	}
	run.End(nil, "exit 7")
	require.Equal(t, []int64{1}, seqs(t, l, audit.Filter{Q: "exit 7"}), "what came after, too, at once")
	require.Equal(t, []int64{1}, seqs(t, l, audit.Filter{Q: "exit train", Actor: "ann@example.org", Action: "command."}))
	_, bad := verify(t, l)
	require.Zero(t, bad)
}

// Pages of what is everywhere are the same as without looking for it, also where an outcome came long after its intent.
func TestSearchOfManyGoesByPages(t *testing.T) {
	l := open(t, t.TempDir())
	var slow []*audit.Entry
	for i := range 1200 {
		if i%300 == 150 {
			slow = append(slow, began(t, l, audit.Event{Action: "terminal.attach", Target: "pty"}))
		}
		require.NoError(t, l.Note(context.Background(), audit.Event{Action: "file.write", Actor: []string{"ann", "bob"}[i/1000], Target: "/work/common", Outcome: audit.OK}))
	}
	for _, e := range slow {
		e.End(nil, "common")
	}
	for _, f := range []audit.Filter{{}, {Actor: "ann"}, {Actor: "nobody"}, {Outcome: audit.OK}, {Action: "terminal."}} {
		f.Limit = 70
		for {
			f.Q = ""
			page := seqs(t, l, f)
			f.Q = "common"
			require.Equal(t, page, seqs(t, l, f), "%+v", f)
			if len(page) == 0 {
				break
			}
			f.BeforeSeq = page[len(page)-1]
		}
	}
}

// Whatever is looked for is text: no query is a mistake of ours.
func TestHostileQueriesAreText(t *testing.T) {
	l := open(t, t.TempDir())
	require.NoError(t, l.Note(context.Background(), audit.Event{Action: "command.run", Target: `grep "a" NEAR(b c) OR NOT d* ^e col:f`, Outcome: audit.OK}))
	for _, q := range []string{
		`"`, `""`, `"""`, `'`, `*`, `^`, `(`, `)`, `NEAR(`, `NEAR(a b, 5)`, `AND`, `OR`, `NOT`, `a AND`, `NOT a`, `col:f`, `actor:x`, `{actor target} : x`, `-a`, `+a`, `a + b`,
		`a"`, `"a`, `a"b`, `x" OR actor:"y`, `a" *`, "\x00", "a\x00b", "\xff\xfe", "\u202e", "%", "_", `\`, ";", "--", `'; DROP TABLE audit_events; --`, `audit_search`, strings.Repeat(`"`, 199), strings.Repeat("a ", 99),
		strings.Repeat("(", 200), "😀", "日本", "\t\n", "a\u0301",
	} {
		_, err := l.List(context.Background(), audit.Filter{Q: q})
		require.NoError(t, err, "%q", q)
	}
	for _, q := range []string{`NEAR(b`, `"a"`, `OR NOT`, `col:f`, `^e`, `d*`} {
		require.Equal(t, []int64{1}, seqs(t, l, audit.Filter{Q: q}), "%q", q)
	}
	require.Empty(t, seqs(t, l, audit.Filter{Q: `actor:grep`}))
}

// The index is made after the fact: thrown away, or left behind by a record that was cut, it is made again.
func TestIndexIsMadeAgain(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	note(t, l, 120)
	require.Len(t, seqs(t, l, audit.Filter{Q: "work", Limit: 500}), 120)
	tamper(t, dir, `DELETE FROM audit_events WHERE seq > 100`)
	note(t, l, 1) // and an event about the cut
	require.Equal(t, []int64{102}, seqs(t, l, audit.Filter{Q: "work", AfterSeq: 100}))
	require.Equal(t, []int64{101}, seqs(t, l, audit.Filter{Q: "missing"}))
	tamperAgain(t, dir, `UPDATE audit_searchable SET seq = 0`, `INSERT INTO audit_search (audit_search) VALUES ('delete-all')`)
	require.Len(t, seqs(t, l, audit.Filter{Q: "work", Limit: 500}), 101)
}

func TestOutputsAreKeptBesideTheChain(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	s, err := store.Open(ctx, filepath.Join(dir, "sandgate.db"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	l, err := audit.New(audit.Options{
		Store: s, Key: key, HeadFile: filepath.Join(dir, "audit.head"), Now: func() time.Time { return now }, Keep: audit.Keeping{Age: 24 * time.Hour, Bytes: 10_000},
	})
	require.NoError(t, err)
	run := func(size int) audit.Event {
		e, err := l.Begin(ctx, audit.Event{Action: "command.run"})
		require.NoError(t, err)
		e.EndWith(nil, "exit 0", audit.Facts{}, &audit.Output{Stdout: bytes.Repeat([]byte{0xff}, size), StdoutTotal: int64(size)})
		list, err := l.List(ctx, audit.Filter{Limit: 1})
		require.NoError(t, err)
		return list[0]
	}
	first := run(1000)
	o, err := l.Output(ctx, first)
	require.NoError(t, err, "at once, although nobody has written it yet")
	require.Len(t, o.Stdout, 1000)
	require.NoError(t, l.Flush(ctx))
	again, err := l.Output(ctx, first)
	require.NoError(t, err)
	require.Equal(t, o.Digest(), again.Digest())
	require.Equal(t, first.OutputDigest, again.Digest())

	now = now.Add(25 * time.Hour)
	second := run(4000)
	require.NoError(t, l.Flush(ctx))
	require.NoError(t, l.Prune(ctx))
	_, err = l.Output(ctx, first)
	require.True(t, fault.Is(err, fault.NotFound), "too old: %v", err)
	_, err = l.Output(ctx, second)
	require.NoError(t, err)
	third, fourth := run(4000), run(4000)
	require.NoError(t, l.Flush(ctx))
	require.NoError(t, l.Prune(ctx))
	_, err = l.Output(ctx, second)
	require.True(t, fault.Is(err, fault.NotFound), "too many: %v", err)
	for _, e := range []audit.Event{third, fourth} {
		_, err = l.Output(ctx, e)
		require.NoError(t, err)
	}
	sizes, err := l.Sizes(ctx)
	require.NoError(t, err)
	require.EqualValues(t, []int64{8, 2, 8000}, []int64{sizes.Events, sizes.Copies, sizes.CopiesBytes})
	require.Positive(t, sizes.Database)
	v, err := l.Verify(ctx)
	require.NoError(t, err)
	require.True(t, v.Holds(), "what went by its age is no fault")
	require.EqualValues(t, 2, v.Copies)
	_, err = l.Output(ctx, audit.Event{Seq: 1})
	require.True(t, fault.Is(err, fault.NotFound))
}

// Nobody waits for a copy: where the database cannot take them, the oldest that wait stay and the rest is left out.
func TestCopiesThatCannotBeWrittenAreBounded(t *testing.T) {
	l := open(t, t.TempDir())
	big := &audit.Output{Stdout: make([]byte, audit.MaxOutput), StdoutTotal: audit.MaxOutput}
	for range 260 { // 256 of them are 16 MiB
		began(t, l, audit.Event{Action: "command.run"}).EndWith(nil, "", audit.Facts{}, big)
	}
	require.NoError(t, l.Flush(context.Background()))
	sizes, err := l.Sizes(context.Background())
	require.NoError(t, err)
	require.EqualValues(t, 256, sizes.Copies)
	checked, bad := verify(t, l)
	require.EqualValues(t, []int64{520, 0}, []int64{checked, bad})
}

func TestTend(t *testing.T) {
	l := open(t, t.TempDir())
	note(t, l, 10)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { l.Tend(ctx); close(ended) }()
	began(t, l, audit.Event{Action: "command.run"}).EndWith(nil, "", audit.Facts{}, &audit.Output{Stdout: []byte("x"), StdoutTotal: 1})
	require.Eventually(t, func() bool {
		sizes, err := l.Sizes(ctx)
		v, ok := l.LastVerdict()
		return err == nil && sizes.Copies == 1 && ok && v.Holds()
	}, time.Minute, 5*time.Millisecond)
	require.Eventually(t, func() bool {
		more, err := l.store.IndexAudit(ctx, 0) // nothing: only asks
		return err == nil && !more
	}, time.Minute, 50*time.Millisecond)
	cancel()
	<-ended
}

func TestExport(t *testing.T) {
	ctx := context.Background()
	l := open(t, t.TempDir())
	hostile := "=cmd|' /C calc'!A0\n2030-01-01 admin login ok\x1b]0;pwn\x07\u202e\U000e0001<script>"
	for i := range 1100 { // more than two pages
		e := audit.Event{WorkspaceID: "w1", Actor: "ann@example.org", ActorKind: auth.Person, Action: "file.write", Target: fmt.Sprint("/work/", i), Outcome: audit.OK}
		if i == 7 {
			e.Target, e.Detail = hostile, "@sum, \"quoted\""
		}
		require.NoError(t, l.Note(ctx, e))
	}
	require.NoError(t, l.Note(ctx, audit.Event{WorkspaceID: "w2", Actor: "eve", Action: "file.write", Outcome: audit.OK}))

	var nd bytes.Buffer
	require.NoError(t, l.Export(ctx, audit.Filter{WorkspaceID: "w1", Limit: 3}, audit.NDJSON, &nd))
	lines := strings.Split(strings.TrimSuffix(nd.String(), "\n"), "\n")
	require.Len(t, lines, 1100)
	for i, line := range lines {
		var x struct {
			Seq            int64
			Target, Detail string
		}
		require.NoError(t, json.Unmarshal([]byte(line), &x))
		require.EqualValues(t, i+1, x.Seq)
		if i == 7 {
			require.Equal(t, hostile, x.Target, "nothing is lost by escaping")
		}
	}
	var table bytes.Buffer
	require.NoError(t, l.Export(ctx, audit.Filter{WorkspaceID: "w1"}, audit.CSV, &table))
	for _, text := range []string{nd.String(), table.String()} {
		require.NotContains(t, text, "\x1b", "nothing that a terminal obeys")
		require.NotContains(t, text, "\u202e")
		require.NotContains(t, text, "\U000e0001")
	}
	records, err := csv.NewReader(&table).ReadAll()
	require.NoError(t, err)
	require.Len(t, records, 1101)
	require.Equal(t, []string{"seq", "at", "ended_at", "actor_kind", "actor"}, records[0][:5])
	row := map[string]string{}
	for i, name := range records[0] {
		row[name] = records[8][i]
	}
	require.True(t, strings.HasPrefix(row["target"], "'=cmd|"), row["target"])
	require.NotContains(t, row["target"], "\n", "an event is one line")
	require.Equal(t, `'@sum, "quoted"`, row["detail"])
	require.Error(t, l.Export(ctx, audit.Filter{}, "xml", &nd))

	var chain bytes.Buffer
	require.NoError(t, l.ExportChain(ctx, &chain))
	rows := strings.Split(strings.TrimSuffix(chain.String(), "\n"), "\n")
	require.Len(t, rows, 1101)
	var last struct {
		Seq        int64
		Hash, Prev string
	}
	require.NoError(t, json.Unmarshal([]byte(rows[1100]), &last))
	head, err := l.Head(ctx)
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("%x", head.Hash), last.Hash)
}

func TestCells(t *testing.T) {
	for text, want := range map[string]string{
		"plain": "plain", "": "", "-1": "'-1", "+1": "'+1", "=1+1": "'=1+1", "@x": "'@x", "\t=1": `\t=1`, "\r=1": `\r=1`, " =1": "' =1", `"=1`: `'"=1`, "＝1": "'＝1",
		"a=b": "a=b", "/work/x": "/work/x", "'=1": "''=1", "a\nb": `a\nb`, "\u00a0=1": "'\u00a0=1", "%0A": "'%0A", "|x": "'|x", "\x9b31m": "\ufffd31m", "\u009b31m": `\u{9b}31m`,
	} {
		require.Equal(t, want, audit.Cell(text), "%q", text)
	}
}

// Whoever looks at a record while its first events come finds nothing missing.
func TestVerifyWhileItBegins(t *testing.T) {
	for range 5 {
		l := open(t, t.TempDir())
		noted := make(chan error)
		go func() { noted <- l.Note(context.Background(), audit.Event{Action: "key.create", Outcome: audit.OK}) }()
		for range 20 {
			v, err := l.Verify(context.Background())
			require.NoError(t, err)
			require.True(t, v.Holds(), v.Contrary)
		}
		require.NoError(t, <-noted)
	}
}
