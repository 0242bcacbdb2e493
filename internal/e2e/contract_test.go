package e2e

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/testenv"
)

// Schemathesis makes calls of every kind from the document, right and wrong ones, and checks each answer against it.
// testdata/schemathesis says what is left out, and why.
func TestTheServerKeepsToItsDocument(t *testing.T) {
	program := testenv.Schemathesis(t)
	host := newInstallation(t)
	s := host.serve()
	host.person("ann@example.org", "alpha")
	key := host.run("key", "create", "--workspace", "alpha", "--name", "contract", "--owner", "ann@example.org",
		"--permission", "sandboxes:run,sandboxes:manage,members:manage,keys:manage")
	api := s.rest(key)
	id, gone, changed := api.create("contract"), api.create("gone"), api.create("changed")
	api.ok("DELETE", "/v1/sandboxes/"+gone, nil, nil)
	var command struct{ ID string }
	api.ok("POST", "/v1/sandboxes/"+id+"/commands", map[string]any{"command": "echo hi; cat", "background": true}, &command)
	var me struct{ Workspace struct{ ID string } }
	api.ok("GET", "/v1/admin/me", nil, &me)

	dir := t.TempDir() // it leaves files where it runs
	require.NoError(t, os.CopyFS(dir, os.DirFS("testdata/schemathesis")))
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	// More than one worker trips over its own parser, and is no faster.
	cmd := exec.CommandContext(ctx, program, "--config-file", filepath.Join(dir, "schemathesis.toml"), "run", s.url+"/v1/openapi.json",
		"--workers", "1", "--continue-on-failure", "--no-color", "--generation-database", "none",
		"--max-time", "75") // quiet, all of it takes less
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "SANDGATE_URL="+s.url, "SANDGATE_KEY="+key, "SANDBOX_ID="+id, "GONE_ID="+gone, "CHANGED_ID="+changed, "COMMAND_ID="+command.ID,
		"ENDED_ID="+api.exec(id, "echo hi").ID, "TERMINAL_ID="+api.openPTY(id), "WORKSPACE_ID="+me.Workspace.ID)
	out, err := cmd.CombinedOutput()
	if err != nil { // not by require: its lines have a limit
		faults := out[max(0, len(out)-8<<10):]
		for _, heading := range []string{" ERRORS ", " FAILURES "} { // an error is a call without an answer
			if _, after, ok := bytes.Cut(out, []byte(heading)); ok {
				faults = after[:min(len(after), 8<<10)]
				break
			}
		}
		t.Fatalf("%v: %s", err, faults)
	}
	t.Logf("%s", out[max(0, len(out)-600):])
}
