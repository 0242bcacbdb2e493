package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/testenv"
	"sandgate/sandbox/sandboxtest"
)

// installation is a data directory and the built programs that work on it.
type installation struct {
	t    *testing.T
	data string
	// inhabited says that somebody has an account, so that no link for the first one is to be expected.
	inhabited bool
}

// newInstallation makes an empty data directory. When the test ends, every sandbox is killed and the host is counted:
// whatever still bears the installation's mark fails the test.
func newInstallation(t *testing.T) *installation {
	t.Helper()
	testenv.Image(t)
	data, err := os.MkdirTemp("", "sandgate-e2e-")
	require.NoError(t, err)
	i := &installation{t: t, data: data}
	t.Cleanup(func() {
		i.run("sandbox", "kill", "--all")
		i.nothingLeft()
		require.NoError(t, os.RemoveAll(data))
	})
	return i
}

// nothingLeft fails when anything on the host bears the installation's mark.
func (i *installation) nothingLeft() {
	i.t.Helper()
	inst, err := os.ReadFile(filepath.Join(i.data, "inst"))
	require.NoError(i.t, err)
	left, err := sandboxtest.Census(string(inst), i.data)
	require.NoError(i.t, err)
	require.Empty(i.t, left, "still on the host, bearing our mark")
}

// command prepares `sandgate ARGS --data …`.
func (i *installation) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, testenv.Program(i.t, "sandgate"), args...)
	cmd.Env = append(os.Environ(), "SANDGATE_DATA="+i.data, "SANDGATE_CACHE="+testenv.CacheDir())
	return cmd
}

// run runs `sandgate ARGS` to its end and gives what it printed; a failure fails the test.
func (i *installation) run(args ...string) string { return i.runWith("", args...) }

func (i *installation) runWith(stdin string, args ...string) string {
	i.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := i.command(ctx, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	require.NoError(i.t, cmd.Run(), "sandgate %s: %s", strings.Join(args, " "), &errs)
	return strings.TrimSpace(out.String())
}

// person makes an account with a workspace of its own in which it may run code; it gives a password.
func (i *installation) person(email, workspace string) (password string) {
	i.t.Helper()
	password, i.inhabited = "correct horse battery "+email, true
	i.runWith(password+"\n", "user", "create", "--email", email, "--password-stdin")
	i.run("workspace", "create", workspace)
	i.run("workspace", "grant", "--workspace", workspace, "--email", email, "--role", "admin", "--permission", "sandboxes:run")
	return password
}

// key makes an API key of a service account.
func (i *installation) key(workspace string, permissions ...string) string {
	i.t.Helper()
	return i.run("key", "create", "--workspace", workspace, "--name", "e2e", "--permission", strings.Join(permissions, ","))
}

// server is a running `sandgate serve`.
type server struct {
	*installation
	cmd    *exec.Cmd
	url    string // http://127.0.0.1:PORT
	setup  string // the link for the first administrator, while there is none
	exited chan struct{}
}

// serve starts the server and waits until it listens.
func (i *installation) serve(flags ...string) *server {
	i.t.Helper()
	s := &server{installation: i, exited: make(chan struct{})}
	s.cmd = i.command(context.Background(), append([]string{"serve", "--listen", "127.0.0.1:0", "--pool", "0"}, flags...)...)
	stdout, err := s.cmd.StdoutPipe()
	require.NoError(i.t, err)
	log, err := os.OpenFile(filepath.Join(i.data, "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(i.t, err)
	s.cmd.Stderr = log
	require.NoError(i.t, s.cmd.Start())

	lines := make(chan string, 16)
	go func() { // ends when the server does
		defer close(lines)
		for in := bufio.NewScanner(stdout); in.Scan(); {
			select {
			case lines <- in.Text():
			default: // nobody waits for later lines
			}
		}
	}()
	go func() {
		defer close(s.exited)
		_, _ = s.cmd.Process.Wait()
		_ = log.Close()
	}()
	i.t.Cleanup(func() {
		s.stop(syscall.SIGTERM)
		if i.t.Failed() {
			i.t.Logf("what went wrong by the server's log:\n%s\nits end:\n%s", worst(log.Name(), 4<<10), tail(log.Name(), 4<<10))
		}
	})
	deadline := time.After(30 * time.Second)
	for s.url == "" {
		select {
		case line, open := <-lines:
			require.True(i.t, open, "the server ended: %s", tail(log.Name(), 4<<10))
			if rest, ok := strings.CutPrefix(line, "listening on "); ok {
				s.url = rest
			}
		case <-deadline:
			require.Fail(i.t, "the server does not listen", tail(log.Name(), 4<<10))
		}
	}
	// The link follows at once where there is no administrator yet.
	for wait := time.After(5 * time.Second); s.setup == "" && !i.inhabited; {
		select {
		case line := <-lines:
			if _, rest, ok := strings.Cut(line, "first sign-in: "); ok {
				s.setup = rest
			}
		case <-wait:
			require.Fail(i.t, "no link for the first sign-in")
		}
	}
	return s
}

// stop ends the server with a signal and waits for it.
func (s *server) stop(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		require.NoError(s.t, err)
	}
	select {
	case <-s.exited:
	case <-time.After(20 * time.Second):
		_ = s.cmd.Process.Kill()
		require.Fail(s.t, "the server does not stop", "signal %v", sig)
	}
}

// worst gives the warnings and errors of a log, at most so many bytes of the last of them.
func worst(path string, n int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	var out []byte
	for line := range bytes.Lines(b) {
		if bytes.Contains(line, []byte(" level=ERROR ")) || bytes.Contains(line, []byte(" level=WARN ")) {
			out = append(out, line...)
		}
	}
	return string(out[max(0, len(out)-n):])
}

func tail(path string, n int64) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }()
	if st, err := f.Stat(); err == nil && st.Size() > n {
		_, _ = f.Seek(-n, io.SeekEnd)
	}
	b, _ := io.ReadAll(f)
	return string(b)
}
