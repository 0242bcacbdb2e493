package guest

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/sandbox/agent"
)

// standingBy gives a server with a process that stands by, and its pid.
func standingBy(t *testing.T) (*Server, int) {
	t.Helper()
	s := New(Config{Workdir: t.TempDir(), Spill: t.TempDir()})
	t.Cleanup(func() { _ = s.Close() })
	if s.starter == "" {
		t.Log("nothing stands by on this processor")
		return s, 0
	}
	return s, readied(t, s)
}

func readied(t *testing.T, s *Server) int {
	t.Helper()
	s.standBy()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.NotNil(t, s.ready)
	return s.ready.pid
}

// ended runs a command to its end and gives it with its output.
func ended(t *testing.T, s *Server, spec agent.CommandSpec) (c *command, out string) {
	t.Helper()
	if spec.ID == "" {
		spec.ID = fmt.Sprintf("cmd%d", time.Now().UnixNano())
	}
	c, err := s.runCommand(spec)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		c.mu.Lock()
		exit, changed := c.exit, c.changed
		var all []byte
		for i := range c.logs {
			b := make([]byte, c.logs[i].size)
			n, err := c.logs[i].readAt(b, 0)
			all = append(all, b[:n]...)
			require.NoError(t, err)
		}
		c.mu.Unlock()
		out = string(all)
		if exit != nil {
			return c, out
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("%q does not end; so far %q", spec.Command, out)
		}
	}
}

func TestACommandIsWhatStoodBy(t *testing.T) {
	s, pid := standingBy(t)
	dir := t.TempDir()
	c, out := ended(t, s, agent.CommandSpec{
		Command: `pwd; echo "$A"; readlink /proc/$$/fd/0; ls /proc/$$/fd | grep -x 3; ps -o sid= -o pgid= -p $$ | xargs; echo wrong >&2; exit 7`,
		Cwd:     dir, Env: map[string]string{"A": "b c"},
	})
	require.Equal(t, fmt.Sprintf("%s\nb c\n/dev/null\n%d %d\nwrong\n", dir, c.pid, c.pid), out)
	require.Equal(t, 7, c.exit.Code)
	if pid != 0 {
		require.Equal(t, pid, c.pid)
		require.Nil(t, s.ready, "it is used once")
		require.NotEqual(t, pid, readied(t, s))
	}
	// Plain lines are started without bash, and what they are started as is all that they see.
	c, out = ended(t, s, agent.CommandSpec{Command: "env", Cwd: dir, Env: map[string]string{"A": "b c"}})
	require.Zero(t, c.exit.Code)
	require.Subset(t, strings.Split(out, "\n"), []string{"A=b c", "PWD=" + dir, "SHLVL=0", "_=/usr/bin/env", markVar + "=" + c.id})
	// The end of each kind.
	for line, want := range map[string]int{"true": 0, "false": 1, "kill -9 $$": 137, "exec /nowhere": 127, "/tmp": 126} {
		readied(t, s)
		c, out = ended(t, s, agent.CommandSpec{Command: line})
		require.Equal(t, want, c.exit.Code, "%s: %s", line, out)
	}
}

// Nothing of a command that was begun by what stood by outlives its time: it is the head of a tree like any other.
func TestTheTreeOfWhatStoodByIsKilledWhole(t *testing.T) {
	s, pid := standingBy(t)
	c, out := ended(t, s, agent.CommandSpec{
		Command:   `env -i setsid sh -c '(sleep 3141592 & echo $!) & wait' & wait; sleep 100`,
		TimeoutMS: 1500,
	})
	require.Equal(t, 124, c.exit.Code)
	require.True(t, c.exit.TimedOut)
	if pid != 0 {
		require.Equal(t, pid, c.pid)
	}
	require.Eventually(t, func() bool {
		text, err := os.ReadFile("/proc/" + strings.TrimSpace(out) + "/stat")
		p, ok := parseStat(0, text)
		return err != nil || ok && p.state == 'Z'
	}, 60*time.Second, 10*time.Millisecond, "the orphan %s", out)
}

func TestWhatStandsByAndIsGoneOrStoppedIsNoHarm(t *testing.T) {
	s, pid := standingBy(t)
	if pid == 0 {
		return
	}
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	c, out := ended(t, s, agent.CommandSpec{Command: "echo goes on", TimeoutMS: 30_000})
	require.Equal(t, "goes on\n", out)
	require.Equal(t, pid, c.pid)

	pid = readied(t, s)
	b := s.ready
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	ws := <-b.done // as if nobody had noticed: telling it fails
	require.True(t, ws.Signaled())
	c, out = ended(t, s, agent.CommandSpec{Command: "echo afresh"})
	require.Equal(t, "afresh\n", out)
	require.NotEqual(t, pid, c.pid)

	pid = readied(t, s)
	again := make(chan syscall.WaitStatus, 1)
	again <- ws
	s.ready.release()
	s.ready.done = again // noticed
	c, out = ended(t, s, agent.CommandSpec{Command: "echo afresh"})
	require.Equal(t, "afresh\n", out)
	require.NotEqual(t, pid, c.pid)
}

func TestWhatCannotBeDoneByWhatStandsBy(t *testing.T) {
	s, pid := standingBy(t)
	if pid == 0 {
		return
	}
	long := strings.Repeat("x", 64<<10) // more than it could be told
	c, out := ended(t, s, agent.CommandSpec{Command: "cat; echo " + long, Stdin: []byte("in\n")})
	require.Equal(t, "in\n"+long+"\n", out)
	require.NotEqual(t, pid, c.pid, "it has no standard input")
	require.Equal(t, pid, s.ready.pid, "it is kept for others")
	if os.Getuid() == 0 {
		c, out = ended(t, s, agent.CommandSpec{Command: "id -u", User: "65534", Cwd: "/"})
		require.Equal(t, "65534\n", out)
		require.NotEqual(t, pid, c.pid, "it is root")
	}
	c, out = ended(t, s, agent.CommandSpec{Command: "echo " + long})
	require.Equal(t, long+"\n", out)
	require.NotEqual(t, pid, c.pid, "that is more than it can be told")
	_, err := s.runCommand(agent.CommandSpec{ID: "cmdx", Command: "true", Cwd: "/nowhere"})
	require.Error(t, err)
}

func TestWhatStandsByIsGivenUp(t *testing.T) {
	s, pid := standingBy(t)
	if pid == 0 {
		return
	}
	gone := func(b *standby) {
		t.Helper()
		select {
		case <-b.done:
		case <-time.After(30 * time.Second):
			t.Fatal("it stands by still")
		}
		require.Nil(t, s.ready)
	}
	b := s.ready
	s.standBy()
	require.Same(t, b, s.ready, "one at a time")
	s.dismiss(b) // as when its time is over
	gone(b)

	readied(t, s)
	b = s.ready
	s.callOff()
	gone(b)

	// One whose time is over just when somebody takes it is the taker's.
	readied(t, s)
	b = s.takeStandby()
	s.dismiss(b)
	require.NoError(t, b.become("/", "/bin/true", []string{"true"}, nil))
	require.Equal(t, 0, (<-b.done).ExitStatus())

	readied(t, s)
	b = s.ready
	require.NoError(t, s.Close())
	gone(b)
	s.standBy()
	require.Nil(t, s.ready, "a closed server starts nothing")
}

// A command that says it is the last has nothing stand by after it, and warming is no command at all.
func TestWhatNothingStandsByAfter(t *testing.T) {
	s, pid := standingBy(t)
	client := agent.NewClient(func(context.Context, bool) (io.ReadWriteCloser, error) {
		host, inside := net.Pipe()
		go s.ServeConn(inside, false)
		return host, nil
	})
	t.Cleanup(func() { _ = client.Close() })
	require.NoError(t, client.Warm(t.Context()))
	commands, err := client.Commands(t.Context())
	require.NoError(t, err)
	require.Empty(t, commands)
	if pid == 0 {
		return
	}
	require.Equal(t, pid, s.ready.pid)
	ready := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.ready != nil || s.readying
	}
	for _, last := range []bool{true, false} {
		exit, err := client.Run(t.Context(), agent.CommandSpec{ID: fmt.Sprint("cmd", last), Command: "exit 4", Last: last}, none{})
		require.NoError(t, err)
		require.Equal(t, 4, exit.Code)
		if last {
			require.Never(t, ready, 300*time.Millisecond, 10*time.Millisecond)
		} else {
			require.Eventually(t, ready, 2*time.Minute, 10*time.Millisecond)
		}
	}
}

type none struct{}

func (none) Stdout([]byte) error { return nil }
func (none) Stderr([]byte) error { return nil }
