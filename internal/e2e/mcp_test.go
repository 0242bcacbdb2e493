package e2e

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/testenv"
)

// The official client from npm finds what it expects, over HTTP and over the bridge; everything it did is on record.
func TestTheOfficialMCPClient(t *testing.T) {
	node := testenv.Node(t)
	host := newInstallation(t)
	s := host.serve()
	host.person("ann@example.org", "alpha")
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, node, "testdata/mcp.mjs")
	cmd.Env = append(os.Environ(), "URL="+s.url, "KEY="+host.key("alpha", "sandboxes:run"), "READ_KEY="+host.key("alpha", "sandboxes:read"),
		"SANDGATE="+testenv.Program(t, "sandgate"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "MCP holds")
	host.run("audit", "verify")
}
