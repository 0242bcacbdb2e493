package runsc

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

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

	const caps = `cat /proc/[0-9]*/task/*/status 2>/dev/null | grep -E "Cap(Prm|Eff|Bnd)" | awk '{print $2}' | sort -u`
	run := func(command string) string {
		t.Helper()
		var out both
		exit, err := client.Run(t.Context(), agent.CommandSpec{ID: sandbox.RandomID("cmd"), Command: command, TimeoutMS: 30_000}, &out)
		require.NoError(t, err)
		require.Zero(t, exit.Code, out.String())
		return strings.TrimSpace(out.String())
	}
	named := sandbox.Spec{ID: sandbox.NewID(), Image: "base", Hostname: "other", Resources: small}
	require.NoError(t, r.Create(t.Context(), named, func(string) error { return nil }))
	usual, err := inside(t.Context(), r, named.ID, "grep CapBnd /proc/1/status | awk '{print $2}'")
	require.NoError(t, err)
	require.NoError(t, client.Warm(t.Context()))
	_ = run("true")
	require.Eventually(t, func() bool { // what stands by from before holds that right as well
		_, err := inside(t.Context(), r, spec.ID, `grep -lax "standby." /proc/[0-9]*/cmdline`)
		return err == nil
	}, 20*time.Second, 50*time.Millisecond)
	require.NoError(t, client.Name(t.Context(), "quarterly-report"))
	require.Equal(t, strings.TrimSpace(usual), run(caps), "every thread of process 1, what it starts, the bridge and what stands by hold what they would in any other")
	require.Equal(t, "quarterly-report", run("hostname"))
	// Root inside may take the place of the bridge's program, and is then what the next bridge runs.
	run(`mv /.sandgate /old && mkdir /.sandgate && printf '#!/bin/sh\ngrep CapEff /proc/self/status >/held; exec /old/agent "$@"\n' >/.sandgate/agent && chmod 755 /.sandgate/agent`)
	require.NoError(t, r.answers(t.Context(), spec.ID))
	require.Equal(t, strings.TrimSpace(usual), run("awk '{print $2}' /held"))
	_ = run("! hostname mine 2>/dev/null && ! unshare -m true 2>/dev/null")
	require.Error(t, client.Name(t.Context(), "again"))
	for _, bad := range []string{"", "a b", "a\nb", "A", strings.Repeat("a", 64)} {
		require.Error(t, client.Name(t.Context(), bad), "%q", bad)
	}
	require.Equal(t, "quarterly-report", run("hostname"))
}
