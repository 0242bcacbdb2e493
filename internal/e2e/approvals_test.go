package e2e

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/testenv"
)

type approvalJSON struct {
	ID, Status, Outcome, Digest string
	SandboxID                   string `json:"sandbox_id"`
}

// judge gives a client that may decide: a key of a person who asks for nothing.
func (s *server) judge() rest {
	s.t.Helper()
	const email = "judy@example.org"
	s.runWith("correct horse battery "+email+"\n", "user", "create", "--email", email, "--password-stdin")
	s.run("workspace", "grant", "--workspace", "alpha", "--email", email, "--role", "approver")
	return s.rest(s.run("key", "create", "--workspace", "alpha", "--name", "judge", "--owner", email, "--permission", "sandboxes:read,approvals:decide"))
}

func (r rest) createAsking() string {
	r.t.Helper()
	var sb sandboxJSON
	r.ok("POST", "/v1/sandboxes", map[string]any{"label": "asks", "approval": map[string]string{"command": "ask", "write": "ask"}}, &sb)
	return sb.ID
}

// ask sends a command and gives the id of its request.
func (r rest) ask(id, command string) string {
	r.t.Helper()
	var asked struct {
		ApprovalID string `json:"approval_id"`
	}
	r.with("Prefer", "respond-async").ok("POST", "/v1/sandboxes/"+id+"/commands", map[string]any{"command": command}, &asked)
	require.NotEmpty(r.t, asked.ApprovalID)
	return asked.ApprovalID
}

// The SDK from the package index, unmodified, where a person decides.
func TestTheSDKWaitsForApproval(t *testing.T) {
	python := testenv.SDK(t)
	host := newInstallation(t)
	s := host.serve()
	host.person("ann@example.org", "alpha")
	judge, key := s.judge(), host.key("alpha", "sandboxes:run")
	box := s.rest(key).createAsking()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "testdata/approvals.py", box)
	cmd.Env = append(os.Environ(), "NOXUS_BACKEND_URL="+s.url, "NOXUS_API_KEY="+key, "JUDGE_API_KEY="+judge.key)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "the client sees what is documented")
}

// Requests that wait outlive the server; a yes is used once, before or after.
func TestRequestsOutliveTheServer(t *testing.T) {
	host := newInstallation(t)
	s := host.serve()
	host.person("ann@example.org", "alpha")
	judge, api := s.judge(), s.rest(host.key("alpha", "sandboxes:run"))
	box := api.createAsking()
	waiting := make([]string, 5)
	for i := range waiting {
		waiting[i] = api.ask(box, "echo "+strings.Repeat("x", i+1)+" >> /work/ran")
	}
	var a approvalJSON
	judge.ok("POST", "/v1/approvals/"+waiting[0]+"/approve", map[string]any{}, &a)
	s.stop(syscall.SIGKILL)
	s = host.serve()
	judge.url, api.url = s.url, s.url
	var page struct{ Items []approvalJSON }
	judge.ok("GET", "/v1/approvals?status=pending", nil, &page)
	require.Len(t, page.Items, 4)
	require.Equal(t, waiting[1], page.Items[0].ID, "oldest first")
	run := func(i int) int {
		code, _ := api.with("Approval-Id", waiting[i]).with("Prefer", "wait=0").do("POST", "/v1/sandboxes/"+box+"/commands", map[string]any{"command": "echo " + strings.Repeat("x", i+1) + " >> /work/ran"})
		return code
	}
	require.Equal(t, http.StatusOK, run(0), "a yes that was said before")
	require.Equal(t, http.StatusConflict, run(0))
	require.Equal(t, http.StatusConflict, run(1), "not decided yet")
	judge.ok("POST", "/v1/approvals/"+waiting[1]+"/approve", map[string]any{}, &a)
	require.Equal(t, http.StatusOK, run(1))
	code, text := judge.do("GET", "/v1/sandboxes/"+box+"/files/raw?path=/work/ran", nil)
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "x\nxx\n", string(text))
}
