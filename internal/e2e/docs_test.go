package e2e

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/testenv"
)

// examples gives the curl examples of docs/api.md, in order; one that opens a quote goes on until it is closed.
func examples(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testenv.Top(t), "docs", "api.md"))
	require.NoError(t, err)
	var out []string
	open := false
	for line := range strings.SplitSeq(string(text), "\n") {
		code, indented := strings.CutPrefix(line, "    ")
		starts := strings.HasPrefix(code, "sg ") || strings.HasPrefix(code, "curl ")
		if !indented || !open && !starts {
			continue
		}
		if open {
			out[len(out)-1] += "\n" + code
		} else {
			out = append(out, code)
		}
		open = strings.Count(out[len(out)-1], "'")%2 == 1
	}
	return out
}

// wanted is the status that an example says in a comment at its end.
var wanted = regexp.MustCompile(`# (\d{3})$`)

// Every example of docs/api.md does what it says, run by a shell in the order of the page.
func TestTheExamplesOfTheDocs(t *testing.T) {
	host := newInstallation(t)
	s := host.serve()
	host.person("ann@example.org", "alpha")
	host.run("workspace", "grant", "--workspace", "alpha", "--email", "ann@example.org", "--role", "admin", "--permission", "sandboxes:run", "--permission", "approvals:decide")
	key := host.run("key", "create", "--workspace", "alpha", "--name", "docs", "--owner", "ann@example.org",
		"--permission", "sandboxes:run,sandboxes:manage,members:manage,keys:manage,audit:read,approvals:decide")
	api := s.rest(key)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "big.csv"), []byte(strings.Repeat("a,b,c\n", 1000)), 0o600))
	var me struct{ Workspace struct{ ID string } }
	api.ok("GET", "/v1/admin/me", nil, &me)
	id := api.create("docs")
	vars := map[string]string{"SANDGATE_URL": s.url, "SANDGATE_KEY": key, "ID": id, "PTY": api.openPTY(id), "GROUP": me.Workspace.ID, "ROLE": "viewer"}
	background := func() string {
		var c struct{ ID string }
		api.ok("POST", "/v1/sandboxes/"+id+"/commands", map[string]any{"command": "cat", "background": true}, &c)
		return c.ID
	}
	vars["CMD"] = background()
	api.ok("PUT", "/v1/recording-policy", map[string]any{"mode": "on"}, nil)
	api.ok("DELETE", "/v1/sandboxes/"+id+"/ptys/"+api.openPTY(id), nil, nil)
	require.Eventually(t, func() bool { // the one that was open before is recorded from now on, too
		var list struct{ Items []recordingJSON }
		api.ok("GET", "/v1/recordings", nil, &list)
		for _, r := range list.Items {
			if r.EndedAt != nil {
				vars["RECORDING"] = r.ID
			}
		}
		return vars["RECORDING"] != ""
	}, 2*time.Minute, 50*time.Millisecond)
	asking := func(of rest) string {
		var box struct{ ID string }
		of.ok("POST", "/v1/sandboxes", map[string]any{"approval": map[string]string{"command": "ask"}}, &box)
		var asked struct {
			ApprovalID string `json:"approval_id"`
		}
		of.with("Prefer", "respond-async").ok("POST", "/v1/sandboxes/"+box.ID+"/commands", map[string]any{"command": "cat", "stdin": "x"}, &asked)
		return asked.ApprovalID
	}
	agent := s.rest(host.key("alpha", "sandboxes:run"))
	vars["APPROVAL"] = asking(agent)
	const shell = `
		curl() { command curl --max-time "$LIMIT" -w '\n%{http_code}' "$@"; }
		sg() { curl -sS -H "X-API-Key: $SANDGATE_KEY" -H "Content-Type: application/json" "$@"; }
	`
	all := examples(t)
	require.Greater(t, len(all), 30)
	for _, example := range all {
		// What an example ends is made for it.
		switch {
		case strings.Contains(example, "-X DELETE $SANDGATE_URL/v1/sandboxes/$ID "):
			vars["ID"] = api.create("to be killed")
		case strings.Contains(example, "$ID/suspend"), strings.Contains(example, "$ID/resume"):
			vars["ID"] = api.createPersistent("to sleep")
		case strings.Contains(example, "$APPROVAL/cancel"):
			vars["APPROVAL"] = asking(api)
		case strings.Contains(example, "$APPROVAL/deny"):
			vars["APPROVAL"] = asking(agent)
		case strings.Contains(example, "$CMD/kill"):
			vars["CMD"] = background()
		}
		limit := "30"
		if strings.Contains(example, " -N ") {
			limit = "4" // it may go on for ever: the status has come by then
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		cmd := exec.CommandContext(ctx, "bash", "-c", shell+example)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "LIMIT="+limit)
		for name, v := range vars {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
		out, err := cmd.Output()
		cancel()
		body, status, found := cutLast(strings.TrimSpace(string(out)), "\n")
		if !found {
			body, status = "", strings.TrimSpace(string(out))
		}
		code, aerr := strconv.Atoi(status)
		require.NoError(t, aerr, "%s: %v: %s", example, err, out)
		if want := wanted.FindStringSubmatch(example); want != nil {
			require.Equal(t, want[1], status, "%s: %s", example, body)
		} else {
			require.True(t, code >= 200 && code < 300, "%s: %d %s", example, code, body)
		}
		vars["ID"] = id
		var made struct{ ID string }
		if json.Unmarshal([]byte(body), &made) == nil && strings.Contains(example, "-X POST") {
			switch {
			case strings.HasPrefix(made.ID, "ke"):
				vars["KEY"] = made.ID
			case strings.HasPrefix(made.ID, "snap"):
				vars["SNAPSHOT"] = made.ID
			case strings.HasPrefix(made.ID, "sb") && made.ID != id:
				api.ok("DELETE", "/v1/sandboxes/"+made.ID, nil, nil)
			}
		}
	}
}

// cutLast cuts at the last separator.
func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
