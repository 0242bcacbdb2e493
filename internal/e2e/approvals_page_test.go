package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/testenv"
)

// answer is what a call that waited for a decision got.
type answer struct {
	code int
	body []byte
}

// later makes a call that may wait.
func (r rest) later(method, path string, body any) <-chan answer {
	out := make(chan answer, 1)
	go func() {
		code, b := r.do(method, path, body)
		out <- answer{code, b}
	}()
	return out
}

// An agent asks; a person who may not run code sees what it is, tries it in a copy, decides from the keyboard alone, and the
// agent's call goes on with exactly that.
func TestApprovalsInTheBrowser(t *testing.T) {
	testenv.Browser(t)
	host := newInstallation(t)
	told := make(chan string, 100)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		told <- string(body)
	}))
	defer receiver.Close()
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("sixteen bytes or more"), 0o600))
	s := host.serve("--webhook-url", receiver.URL, "--webhook-allow", "127.0.0.0/8", "--webhook-secret-file", secret)
	host.person("ann@example.org", "research")
	password := host.colleague("bob@example.org", "research", "approver")
	agent := s.rest(host.key("research", "sandboxes:run"))
	var sb sandboxJSON
	agent.ok("POST", "/v1/sandboxes", map[string]any{"label": "nightly agent", "approval": map[string]any{"command": "ask", "write": "ask"}}, &sb)

	p := newTab(t, s.url)
	p.signIn("bob@example.org", password)
	p.open("/w/research/approvals")
	p.until("an empty queue", `document.body.textContent.includes("Nothing waits for a decision")`)
	p.keepAll("approvals-none")
	const command = `mkdir -p /work/out && echo new >/work/out/a && sed -i 's/GNU/ACME/' /etc/issue; rm -rf /usr/share/doc
curl -sS -m 5 http://203.0.113.9/; (setsid sleep 300 &) ; echo done`
	ran := agent.later("POST", "/v1/sandboxes/"+sb.ID+"/commands", map[string]any{"command": command, "timeout": 60})
	p.until("the request, by itself", `document.querySelector("[data-request] .cmd")?.textContent.includes("rm -rf /usr/share/doc")`)
	require.Eventually(t, func() bool {
		select {
		case body := <-told:
			return strings.Contains(body, `"approval.requested"`) && strings.Contains(body, sb.ID) && !strings.Contains(body, "share/doc")
		default:
			return false
		}
	}, 2*time.Minute, 10*time.Millisecond, "the operator's address is told, and not what it is")
	require.True(t, eval[bool](p, `[...document.querySelectorAll(".cmd .p-bad")].some(e => e.textContent == "rm")`), "what deserves a second look is marked")
	p.until("how many wait, in the title", `document.title.startsWith("(1)")`)
	p.keepAll("approvals-command")

	p.click("#effect button", "Try it in a copy")
	p.until("what it would do", `document.querySelector("#effect .tiles")`)
	shown := eval[string](p, `document.querySelector("#effect").textContent`)
	for _, want := range []string{"/usr/share/doc", "/work/out/a", "/etc/issue", "203.0.113.9:80", "sleep", "done"} {
		require.Contains(t, shown, want)
	}
	p.keepAll("approvals-effect")
	require.Contains(t, agent.stat(sb.ID, "/work/out/a"), "not_found", "the sandbox itself is as it was")

	p.press("a") // Enter is the confirmation
	p.until("the button", `document.activeElement.textContent.includes("Approve this, once")`)
	p.press("\r")
	got := <-ran
	require.Equal(t, http.StatusOK, got.code, "%s", got.body)
	var e executionJSON
	require.NoError(t, json.Unmarshal(got.body, &e))
	require.Equal(t, "done\n", e.Stdout)
	p.until("an empty queue again", `document.body.textContent.includes("Approved, for one time")`)

	write := agent.later("POST", "/v1/sandboxes/"+sb.ID+"/files", map[string]any{"path": "/etc/issue", "content": "Welcome\nto ACME\n"})
	p.until("the write", `document.querySelector("[data-request] .diff")?.textContent.includes("to ACME")`)
	p.keepAll("approvals-write")
	p.press("d")
	p.until("the question", `document.querySelector("dialog[open] textarea[name=reason]")`)
	p.fill("dialog textarea[name=reason]", "Leave /etc alone.")
	p.keepAll("approvals-deny")
	p.click("dialog button", "Deny")
	got = <-write
	require.Equal(t, http.StatusForbidden, got.code)
	require.Contains(t, string(got.body), "Leave /etc alone.")
	require.Contains(t, string(got.body), "approval_denied")

	p.until("an empty queue once more", `document.body.textContent.includes("Whoever asked reads the reason")`)
	p.open("/w/research/approvals?status=used")
	p.click("a.ask-item", "Run a command")
	p.until("its story", `document.querySelector("#decision").textContent.includes("it ran")`)
	p.keepAll("approvals-used")
	host.run("audit", "verify")
}

// stat asks for a file; a missing one is a word.
func (r rest) stat(id, path string) string {
	r.t.Helper()
	_, b := r.do("GET", "/v1/sandboxes/"+id+"/files/stat?path="+path, nil)
	return string(b)
}
