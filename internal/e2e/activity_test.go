package e2e

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"sandgate/internal/testenv"
)

// told is a receiver of the webhook; it takes what is signed well.
type told struct {
	*httptest.Server
	mu    sync.Mutex
	heads []string // SEQ:HASH, in order
	wrong []string
}

func newTold(t *testing.T, secret string) *told {
	t.Helper()
	r := &told{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(req.Header.Get("webhook-id") + "." + req.Header.Get("webhook-timestamp") + "." + string(b)))
		var e struct {
			Type string
			Data struct {
				Seq  int64
				Hash string
			}
		}
		err := json.Unmarshal(b, &e)
		r.mu.Lock()
		defer r.mu.Unlock()
		if err != nil || req.Header.Get("webhook-signature") != "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)) || e.Type != "audit.head" {
			r.wrong = append(r.wrong, string(b))
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		r.heads = append(r.heads, fmt.Sprintf("%d:%s", e.Data.Seq, e.Data.Hash))
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *told) last() (head string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.heads) == 0 {
		return "", 0
	}
	return r.heads[len(r.heads)-1], len(r.heads)
}

const hookSecret = "the secret of the receiver"

// telling gives the flags of a server that tells a receiver of ours.
func telling(t *testing.T, r *told) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte(hookSecret+"\n"), 0o600))
	return []string{"--webhook-url", r.URL + "/heads", "--webhook-secret-file", file, "--webhook-allow", "127.0.0.0/8", "--head-every", "1s"}
}

type auditPage struct {
	Items []struct {
		Seq                             int64
		Action, Outcome, Actor, Target  string
		Owner, Detail, OldDigest, Other string
	}
	Cursor *string
}

func (r rest) audit(query string) auditPage {
	r.t.Helper()
	var p auditPage
	r.ok("GET", "/v1/audit?"+query, nil, &p)
	return p
}

// The head is told while the server runs and when it stops; what was under way when it was killed shows as unknown; the chain
// holds all that was told.
func TestTheRecordOutlivesTheServer(t *testing.T) {
	host := newInstallation(t)
	receiver := newTold(t, hookSecret)
	s := host.serve(telling(t, receiver)...)
	host.person("ann@example.org", "alpha")
	key := host.run("key", "create", "--workspace", "alpha", "--name", "robot", "--owner", "ann@example.org", "--permission", "sandboxes:run,audit:read")
	api := s.rest(key)
	id := api.create("told")
	require.Equal(t, "hi\n", api.exec(id, "echo hi").Stdout)
	api.ok("POST", "/v1/sandboxes/"+id+"/files", map[string]any{"path": "/work/=a,\"b\"\x1b[31m.txt", "content": "x"}, nil)

	page := api.audit("sandbox_id=" + id)
	require.Equal(t, []string{"file.write", "command.run", "sandbox.create"}, []string{page.Items[0].Action, page.Items[1].Action, page.Items[2].Action})
	require.Equal(t, []string{"robot", "ann@example.org", "exit 0"}, []string{page.Items[1].Actor, page.Items[1].Owner, page.Items[1].Detail})
	require.Nil(t, page.Cursor)
	first := api.audit("sandbox_id=" + id + "&limit=2")
	require.Equal(t, "sandbox.create", api.audit("sandbox_id=" + id + "&limit=2&cursor=" + *first.Cursor).Items[0].Action)
	require.Len(t, api.audit("q=echo+hi").Items, 1)
	for _, q := range []string{`%22`, `NEAR(`, `%00`, `*`, `a%20AND`, `%ff`} {
		api.audit("q=" + q)
	}

	// A command is under way when the server is killed.
	begun := make(chan struct{})
	go func() { // ends with the server
		defer close(begun)
		req, err := http.NewRequest("POST", s.url+"/v1/sandboxes/"+id+"/commands", strings.NewReader(`{"command":"sleep 1000"}`))
		if err != nil {
			return
		}
		req.Header.Set("X-API-Key", key)
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close()
		}
	}()
	require.Eventually(t, func() bool { return len(api.audit("outcome=started&q=sleep").Items) == 1 }, 2*time.Minute, 50*time.Millisecond)
	require.Eventually(t, func() bool { _, n := receiver.last(); return n >= 2 }, 2*time.Minute, 50*time.Millisecond, "no head was told")
	head, _ := receiver.last()
	s.stop(syscall.SIGKILL)
	<-begun
	require.Contains(t, host.run("audit", "verify", "--head", head), "the chain holds")

	s = host.serve(telling(t, receiver)...)
	api = s.rest(key)
	unknown := api.audit("outcome=unknown")
	require.Len(t, unknown.Items, 1)
	require.Equal(t, "sleep 1000", unknown.Items[0].Target)
	require.Equal(t, "hi again\n", api.exec(id, "echo hi again").Stdout)
	s.stop(syscall.SIGTERM)
	head, _ = receiver.last()
	require.Contains(t, host.run("audit", "verify", "--head", head), "head "+head, "what is told at the end is the end")
	require.Empty(t, receiver.wrong)

	var rows bytes.Buffer
	rows.WriteString(host.run("audit", "export", "--format", "csv", "--sandbox", id, "--action", "file."))
	require.NotContains(t, rows.String(), "\x1b")
	records, err := csv.NewReader(&rows).ReadAll()
	require.NoError(t, err)
	require.Len(t, records, 2)
	require.Len(t, strings.Split(host.run("audit", "export", "--workspace", "alpha", "--outcome", "unknown"), "\n"), 1)

	// Somebody edits the database.
	edit := exec.Command("python3", "-c", `import sqlite3, sys
d = sqlite3.connect(sys.argv[1])
d.execute("DROP TRIGGER audit_events_no_update")
d.execute("UPDATE audit_events SET target = 'echo bye' WHERE target = 'echo hi'")
d.commit()`, filepath.Join(host.data, "sandgate.db"))
	out, err := edit.CombinedOutput()
	require.NoError(t, err, "%s", out)
	cmd := host.command(t.Context(), "audit", "verify")
	out, err = cmd.CombinedOutput()
	require.Error(t, err)
	require.Equal(t, 1, cmd.ProcessState.ExitCode())
	require.Contains(t, string(out), "is not what was recorded")
}

// rowOf is an event in the list by its text.
func rowOf(text string) string {
	return fmt.Sprintf(`[...document.querySelectorAll("#rows tr[data-id]")].find(r => r.innerText.includes(%q))`, text)
}

// Somebody finds on the Activity page what was done, while it is done.
func TestActivityInTheBrowser(t *testing.T) {
	testenv.Browser(t)
	host := newInstallation(t)
	receiver := newTold(t, hookSecret)
	s := host.serve(telling(t, receiver)...)
	p := newTab(t, s.url)
	p.setUp(s.setup, "ann@example.org", "Research")
	p.create("story")
	key := host.run("key", "create", "--workspace", "research", "--name", "ci-agent", "--owner", "ann@example.org", "--permission", "sandboxes:run")
	api := s.rest(key)
	id := api.create("told")
	api.exec(id, "echo printed-this; echo and-that >&2; printf '\\033[31m<b>red'")
	for _, content := range []string{"one", "two"} {
		api.ok("POST", "/v1/sandboxes/"+id+"/files", map[string]any{"path": "/work/notes.txt", "content": content}, nil)
	}
	code, _ := s.rest(host.key("research", "sandboxes:read")).do("POST", "/v1/sandboxes", map[string]any{})
	require.Equal(t, 403, code)

	// Live: what comes is marked, and waits while text is selected.
	p.click("nav a", "Activity")
	p.until("what was done", rowOf("/work/notes.txt"))
	p.until("that it is live", `document.querySelector("[data-live-mark]").dataset.state === "on"`)
	api.exec(id, "echo came-later")
	p.until("the new one, marked", rowOf("came-later")+`?.classList.contains("new")`)
	require.False(t, eval[bool](p, rowOf("printed-this")+`.classList.contains("new")`))
	eval[chromedp.Void](p, `getSelection().selectAllChildren(`+rowOf("came-later")+`)`)
	api.exec(id, "echo while-selecting")
	p.until("that it waits", `document.querySelector("[data-live-mark]").dataset.state === "held"`)
	require.False(t, eval[bool](p, `Boolean(`+rowOf("while-selecting")+`)`))
	eval[chromedp.Void](p, `getSelection().removeAllRanges()`)
	p.until("what waited", rowOf("while-selecting"))
	p.keepAll("activity")

	// Filters stand in the address; a file has the same events.
	p.fill("input[name=q]", "notes two")
	p.press("\r")
	p.until("nothing", `document.querySelector(".empty")?.innerText.includes("Nothing matches")`)
	p.fill("input[name=q]", "notes")
	p.press("\r")
	p.until("two writes", `location.search.includes("q=notes") && document.querySelectorAll("#rows tr[data-id]").length === 2`)
	p.click("details.export summary", "Export")
	p.click("details.export a", "CSV")
	require.Eventually(t, func() bool {
		found, _ := filepath.Glob(filepath.Join(p.downloads, "activity-research-*.csv"))
		if len(found) != 1 {
			return false
		}
		b, err := os.ReadFile(found[0])
		return err == nil && strings.Count(string(b), "/work/notes.txt") == 2 && !strings.Contains(string(b), "came-later")
	}, time.Minute, 50*time.Millisecond)

	// One event has an address for good, and a place in its sandbox's story.
	p.click("#rows a.when", "")
	p.until("its page", `/\/activity\/\d+$/.test(location.pathname) && document.querySelector("#digests")`)
	sum := func(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }
	require.Contains(t, eval[string](p, `document.querySelector("main").innerText`), sum("one"))
	require.Contains(t, eval[string](p, `document.querySelector("main").innerText`), sum("two"))
	p.open("/w/research/activity?q=printed-this")
	p.click("#rows a.when", "")
	p.until("what it printed", `document.querySelector("pre.output")?.textContent.includes("printed-this")`)
	require.Contains(t, eval[string](p, `[...document.querySelectorAll("pre.output")].map(e => e.textContent).join("|")`), `\u{1B}[31m<b>red`)
	p.keepAll("event")
	p.click("a.btn", "In the sandbox")
	p.until("the story", `location.pathname.includes("/activity/sandboxes/") && document.querySelector("tr:target")`)
	p.keepAll("story")
	api.ok("DELETE", "/v1/sandboxes/"+id, nil, nil)
	p.open("/w/research/activity/sandboxes/" + id)
	p.until("that it is gone", `document.querySelector(".bar .st").textContent === "gone"`)
	require.Equal(t, []string{"sandbox.create", "sandbox.kill"}, eval[[]string](p, `(c => [c[0], c.at(-1)])([...document.querySelectorAll("td code")].map(e => e.textContent))`))

	p.open("/w/research/activity/record")
	p.until("that it holds", `document.querySelector(".notice.ok")?.innerText.includes("holds")`)
	p.until("who is told", `document.querySelector("main").innerText.includes("The head is told to 127.0.0.1")`)
	head := eval[string](p, `document.querySelector("#record-head").textContent`)
	require.Contains(t, host.run("audit", "verify", "--head", head), "the chain holds")
	p.keepAll("record")

	// Without scripts.
	plain := p.beside()
	_, err := chromedp.Call(plain.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	require.NoError(t, err)
	plain.open("/w/research/activity")
	plain.fill("input[name=q]", "notes")
	plain.click("button", "Filter")
	plain.until("two writes", `document.querySelectorAll("#rows tr[data-id]").length === 2`)
	plain.click("a.chip", "Last hour")
	plain.until("both filters", `location.search.includes("from=1h") && location.search.includes("q=notes") && document.querySelectorAll("#rows tr[data-id]").length === 2`)
	plain.click("#rows td a.id", "")
	plain.until("the story", `location.pathname.includes("/activity/sandboxes/")`)
}
