package handlers_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/audit"
	"sandgate/internal/webhook"
	"sandgate/internal/workspace"
)

const activityPage = "/w/research/activity"

func TestPageOfAnEvent(t *testing.T) {
	f := furnished()
	f.events[0].Owner, f.events[0].ActorKind, f.events[0].EndSeq, f.events[0].Ended = "ana@example.org", auth.KeyUser, 12, now
	f.events[0].OutputDigest = strings.Repeat("ab", 32)
	f.printed = &audit.Output{Stdout: []byte("<script>alert(1)</script>\x1b[31mred\u202e\n"), Stderr: []byte("oh"), StdoutTotal: 90_000, StderrTotal: 2, Cut: true}
	h := server(t, f)
	w := ask(h, "GET", activityPage+"/9", nil)
	n := tree(t, w)
	require.Len(t, all(n, "pre.output"), 2)
	require.Contains(t, text(all(n, "pre.output")[0]), "<script>", "it is text")
	require.NotContains(t, w.Body.String(), "\x1b")
	require.NotContains(t, w.Body.String(), "\u202e")
	require.Contains(t, w.Body.String(), "The first")
	require.Contains(t, text(one(t, n, "main")), "key ana@example.org of ana@example.org")
	f.printed = nil
	require.Contains(t, ask(h, "GET", activityPage+"/9", nil).Body.String(), "not kept any more")

	f.events[2].NewDigest, f.events[2].OldDigest, f.events[2].Action = "n", "none", "file.write"
	require.Contains(t, ask(h, "GET", activityPage+"/7", nil).Body.String(), "there was no file")
	for _, bad := range []string{"0", "-1", "x", "99999999999999999999", "1e3", "404"} {
		require.Equal(t, 404, ask(h, "GET", activityPage+"/"+bad, nil).Code, bad)
	}
}

func TestStoryOfASandbox(t *testing.T) {
	f := furnished()
	h := server(t, f)
	n := tree(t, ask(h, "GET", activityPage+"/sandboxes/"+sbRunning, nil))
	require.Len(t, all(n, "tbody tr"), 5)
	require.True(t, f.asked.Oldest)
	require.Equal(t, sbRunning, f.asked.SandboxID)
	require.Equal(t, 404, ask(h, "GET", activityPage+"/sandboxes/sbzzzzzzzzzzzzzzzzzzzz", nil).Code)
	require.Equal(t, 404, ask(h, "GET", activityPage+"/sandboxes/x", nil).Code)
	require.NotEmpty(t, all(tree(t, ask(h, "GET", page+"/"+sbRunning, nil)), `a[href="`+activityPage+"/sandboxes/"+sbRunning+`"]`), "its own page leads there")
}

func TestPageOfTheRecord(t *testing.T) {
	f := furnished()
	f.record = workspace.RecordState{Head: audit.Head{Seq: 7, Hash: []byte{0xab}}, Keeping: audit.Keeping{Age: time.Hour, Bytes: 1 << 20}}
	h := server(t, f)
	get := func() string { return text(one(t, tree(t, ask(h, "GET", activityPage+"/record", nil)), "main")) }
	require.Contains(t, get(), "7:ab")
	require.Contains(t, get(), "Nobody has looked")
	f.record.Verdict = &audit.Verdict{At: now, Checked: 7}
	require.Contains(t, get(), "The record holds.")
	f.record.Verdict = &audit.Verdict{At: now, Checked: 3, Bad: 4, Contrary: "Event 4 is not what was recorded.\u202e"}
	require.Contains(t, get(), "does not hold: Event 4")
	f.record.Told = &webhook.State{Host: "hooks.example.org", Delivered: now}
	require.Contains(t, get(), "told to hooks.example.org")
	f.record.Told.Failed = "the receiver answered 500"
	require.Contains(t, get(), "does not take it: the receiver answered 500")
}

func TestExportOfActivity(t *testing.T) {
	f := furnished()
	h := server(t, f)
	w := ask(h, "GET", activityPage+"/export?format=csv&q=x", nil)
	require.Equal(t, "csv of x", w.Body.String())
	require.Contains(t, w.Header().Get("Content-Disposition"), "attachment")
	require.Contains(t, w.Header().Get("Content-Type"), "text/csv")
	require.Equal(t, "application/x-ndjson", ask(h, "GET", activityPage+"/export?format=ndjson", nil).Header().Get("Content-Type"))
	require.Equal(t, 422, ask(h, "GET", activityPage+"/export?format=xml", nil).Code)
	f.rights["tom"] = auth.Permissions{auth.SandboxesRead}
	require.Equal(t, 403, ask(h, "GET", activityPage+"/export?format=csv", nil, "who", "tom").Code)
	require.Equal(t, 200, ask(h, "GET", activityPage+"/export?format=csv&sandbox="+sbRunning, nil, "who", "tom").Code)
}

// A story follows the record too, in its order, as long as there is room on the page.
func TestStoryIsLive(t *testing.T) {
	f := furnished()
	story := activityPage + "/sandboxes/" + sbRunning
	live := one(t, tree(t, ask(server(t, f), "GET", story, nil)), "[sse-connect]")
	at := attr(live, "sse-connect")
	require.Equal(t, story+"/live?after=0&since=9", at)
	events := follow(t, listening(t, f), at)
	f.mu.Lock()
	f.events = append([]audit.Event{{Seq: 77, Action: "command.run", Target: "later", Outcome: "started", At: now}}, f.events...)
	f.mu.Unlock()
	rows := next(t, events, "rows")
	require.Contains(t, rows, `id="event-77" data-id="77" class="new"`)
	require.Contains(t, rows, `id="event-9" data-id="9" class=""`)
	f.mu.Lock()
	require.True(t, f.asked.Oldest)
	require.Equal(t, sbRunning, f.asked.SandboxID)
	f.mu.Unlock()
	close(f.lost)
	require.Equal(t, "end: forbidden", next(t, events, "end"))
	require.Equal(t, 404, ask(server(t, furnished()), "GET", activityPage+"/sandboxes/sbzzzzzzzzzzzzzzzzzzzz/live", nil).Code)
}

// The list follows the record: what came since the page was loaded is marked.
func TestActivityIsLive(t *testing.T) {
	f := furnished()
	live := one(t, tree(t, ask(server(t, f), "GET", activityPage+"?q=x", nil)), "[sse-connect]")
	at := attr(live, "sse-connect")
	require.Contains(t, at, activityPage+"/live?q=x&since=9")
	events := follow(t, listening(t, f), at)
	f.mu.Lock()
	f.events = append([]audit.Event{{Seq: 77, Action: "command.run", Target: "later", Outcome: "started", At: now}}, f.events...)
	f.mu.Unlock()
	rows := next(t, events, "rows")
	require.Contains(t, rows, `id="event-77" data-id="77" class="new"`)
	require.Contains(t, rows, `id="event-9" data-id="9" class=""`)
	close(f.lost)
	require.Equal(t, "end: forbidden", next(t, events, "end"))
}
