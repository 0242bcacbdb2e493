package runsc

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/testenv"
	"sandgate/sandbox"
	"sandgate/sandbox/image"
	"sandgate/sandbox/sandboxtest"
)

// TestMain lets the test binary stand in for a server that is killed in the middle of a creation: see crash_test.go.
func TestMain(m *testing.M) {
	if os.Getenv("SANDGATE_TEST_CRASH") != "" {
		crash()
	}
	code := m.Run()
	_ = os.RemoveAll(agentDir)
	os.Exit(code)
}

var agentDir string

// agentBinary builds the agent once.
var agentBinary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "sandgate-agent-")
	if err != nil {
		return "", err
	}
	agentDir = dir
	path := filepath.Join(dir, "sandgate-agent")
	cmd := exec.Command("go", "build", "-o", path, "sandgate/cmd/sandgate-agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

// options are those of a new installation of the test's own, which must leave nothing behind.
func options(t *testing.T) Options {
	t.Helper()
	binary := testenv.Runsc(t)
	testenv.Image(t)
	agent, err := agentBinary()
	require.NoError(t, err)
	images, err := image.Open(testenv.CacheDir())
	require.NoError(t, err)
	// Not t.TempDir: it puts the test's name into the path, with characters that are refused.
	data, err := os.MkdirTemp("", "sandgate-data-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(data)) })
	o := Options{
		Binary: binary, AgentBinary: agent, Images: images, DataDir: data,
		Inst: sandbox.RandomID("")[:4],
	}
	t.Cleanup(func() { nothingLeft(t, o, "at the end") })
	return o
}

// nothingLeft waits until nothing of an installation is on the host: bridges of the test's own end a moment after their
// sandbox.
func nothingLeft(t *testing.T, o Options, when string, args ...any) {
	t.Helper()
	var left []string
	require.Eventually(t, func() bool {
		var err error
		left, err = sandboxtest.Census(o.Inst, o.DataDir)
		return err == nil && len(left) == 0
	}, 2*time.Minute, 10*time.Millisecond, append([]any{"left on the host " + when + ": %v"}, append(args, &left)...)...)
}

func open(t *testing.T, o Options) *Runtime {
	t.Helper()
	r, err := New(o)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		found, err := r.Found(ctx)
		require.NoError(t, err)
		for _, id := range found {
			require.NoError(t, r.Remove(ctx, id))
		}
		require.NoError(t, r.Close())
	})
	return r
}

// start makes a sandbox with small limits.
func start(t *testing.T, r *Runtime, res sandbox.Resources) sandbox.ID {
	t.Helper()
	id := sandbox.NewID()
	spec := sandbox.Spec{ID: id, Image: "base", Hostname: "test", Resources: res}
	require.NoError(t, r.Create(t.Context(), spec, func(string) error { return nil }))
	return id
}

var small = sandbox.Resources{CPU: 1, MemoryMB: 256, DiskMB: 256, PIDs: 256}

// inside runs a command in the sandbox by runsc itself and gives its output.
func inside(ctx context.Context, r *Runtime, id sandbox.ID, command string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, r.o.Binary, append(r.flags(), "exec", string(id), "bash", "-c", command)...).CombinedOutput()
	return string(out), err
}

func TestRunscKeepsTheContract(t *testing.T) {
	sandboxtest.RunRuntime(t, func(t *testing.T) sandboxtest.Subject {
		o := options(t)
		return sandboxtest.Subject{
			Runtime: open(t, o), Image: "base",
			Left: func() ([]string, error) { return sandboxtest.Census(o.Inst, o.DataDir) },
		}
	})
}
