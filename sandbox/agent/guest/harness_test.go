package guest_test

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sandgate/sandbox/agent"
	"sandgate/sandbox/agent/guest"
)

func TestMain(m *testing.M) {
	// Orphans of the commands come to us, as they do to process 1 in a sandbox.
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	os.Exit(m.Run())
}

// newAgent serves an agent on sockets in a temporary directory and gives a client to it and its work directory.
func newAgent(t testing.TB) (*agent.Client, string) {
	t.Helper()
	client, work, _ := newAgentDial(t)
	return client, work
}

func newAgentDial(t testing.TB) (*agent.Client, string, agent.Dialer) {
	t.Helper()
	dir, work := t.TempDir(), t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	server := guest.New(guest.Config{Workdir: work, Spill: dir, Version: "test"})
	mux, err := net.Listen("unix", filepath.Join(dir, "mux"))
	require.NoError(t, err)
	bulk, err := net.Listen("unix", filepath.Join(dir, "bulk"))
	require.NoError(t, err)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(ctx, mux, bulk) }()
	dial := func(_ context.Context, isBulk bool) (io.ReadWriteCloser, error) {
		name := "mux"
		if isBulk {
			name = "bulk"
		}
		return net.Dial("unix", filepath.Join(dir, name))
	}
	client := agent.NewClient(dial)
	t.Cleanup(func() {
		_ = client.Close()
		cancel()
		<-done
		_ = server.Close()
	})
	return client, work, dial
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// output keeps what a command printed.
type output struct{ out, err []byte }

func (o *output) Stdout(p []byte) error { o.out = append(o.out, p...); return nil }
func (o *output) Stderr(p []byte) error { o.err = append(o.err, p...); return nil }
