package runsc

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

// both keeps what a command writes to either stream.
type both struct{ strings.Builder }

func (b *both) Stdout(p []byte) error { _, err := b.Write(p); return err }
func (b *both) Stderr(p []byte) error { _, err := b.Write(p); return err }

// One that waits in a pool gets its name when it gets an owner. The right to name it goes with that.
func TestANamelessSandboxIsNamedOnce(t *testing.T) {
	r := open(t, options(t))
	spec := sandbox.Spec{ID: sandbox.NewID(), Image: "base", Resources: small}
	require.NoError(t, r.Create(t.Context(), spec, func(string) error { return nil }))
	client := agent.NewClient(func(ctx context.Context, bulk bool) (io.ReadWriteCloser, error) { return r.Dial(ctx, spec.ID, bulk) })
	t.Cleanup(func() { _ = client.Close() })

	const caps = `cat /proc/1/task/*/status /proc/self/status | grep -E "Cap(Prm|Eff|Bnd)" | awk '{print $2}' | sort -u`
	run := func(command string) string {
		t.Helper()
		var out both
		exit, err := client.Run(t.Context(), agent.CommandSpec{ID: sandbox.RandomID("cmd"), Command: command, TimeoutMS: 30_000}, &out)
		require.NoError(t, err)
		require.Zero(t, exit.Code, out.String())
		return strings.TrimSpace(out.String())
	}
	require.NoError(t, client.Name(t.Context(), "quarterly-report"))
	require.Equal(t, "quarterly-report", run("hostname"))
	named := sandbox.Spec{ID: sandbox.NewID(), Image: "base", Hostname: "other", Resources: small}
	require.NoError(t, r.Create(t.Context(), named, func(string) error { return nil }))
	usual, err := inside(t.Context(), r, named.ID, "grep CapBnd /proc/1/status | awk '{print $2}'")
	require.NoError(t, err)
	require.Equal(t, strings.TrimSpace(usual), run(caps), "every thread of process 1, and what it starts, holds what it would in any other")
	_ = run("! hostname mine 2>/dev/null && ! unshare -m true 2>/dev/null")
	require.Error(t, client.Name(t.Context(), "again"))
	for _, bad := range []string{"", "a b", "a\nb", "A", strings.Repeat("a", 64)} {
		require.Error(t, client.Name(t.Context(), bad), "%q", bad)
	}
	require.Equal(t, "quarterly-report", run("hostname"))
}
