package guest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/internal/testenv"
	"sandgate/sandbox/agent"
)

var lastID struct {
	sync.Mutex
	n int
}

func newID() string {
	lastID.Lock()
	defer lastID.Unlock()
	lastID.n++
	return fmt.Sprintf("cmd%020d", lastID.n)
}

func TestExitCodes(t *testing.T) {
	client, _ := newAgent(t)
	for _, c := range []struct {
		command string
		code    int
		signal  string
	}{
		{"true", 0, ""},
		{"exit 1", 1, ""},
		{"exit 255", 255, ""},
		{"exit 128", 128, ""},
		{"/etc/passwd", 126, ""},
		{"no-such-program-at-all", 127, ""},
		{"kill -9 $$", 137, "KILL"},
		{"kill -TERM $$", 143, "TERM"},
		{"sh -c 'kill -9 $$'; exit $?", 137, ""},
	} {
		var out output
		exit, err := client.Run(within(t, 20*time.Second), agent.CommandSpec{ID: newID(), Command: c.command}, &out)
		require.NoError(t, err, c.command)
		require.Equal(t, c.code, exit.Code, c.command)
		require.Equal(t, c.signal, exit.Signal, c.command)
		require.False(t, exit.TimedOut)
	}
}

func TestRefusedCommands(t *testing.T) {
	client, _ := newAgent(t)
	for name, c := range map[string]struct {
		spec  agent.CommandSpec
		field string
	}{
		"empty":        {agent.CommandSpec{Command: ""}, "command"},
		"blank":        {agent.CommandSpec{Command: " \n"}, "command"},
		"nul":          {agent.CommandSpec{Command: "a\x00b"}, "command"},
		"timeout -1":   {agent.CommandSpec{Command: "true", TimeoutMS: -1}, "timeout"},
		"timeout 1e9":  {agent.CommandSpec{Command: "true", TimeoutMS: 1e12}, "timeout"},
		"unknown user": {agent.CommandSpec{Command: "true", User: "nobody-of-this-name"}, "user"},
		"missing cwd":  {agent.CommandSpec{Command: "true", Cwd: "/no/such/directory"}, "cwd"},
		"relative cwd": {agent.CommandSpec{Command: "true", Cwd: "tmp"}, "cwd"},
		"bad variable": {agent.CommandSpec{Command: "true", Env: map[string]string{"A=B": "c"}}, "env"},
	} {
		c.spec.ID = newID()
		_, err := client.Run(within(t, 10*time.Second), c.spec, &output{})
		require.Equal(t, fault.Invalid, fault.KindOf(err), "%s: %v", name, err)
		var e *fault.Error
		require.ErrorAs(t, err, &e)
		require.Contains(t, e.Fields, c.field, name)
	}
}

func TestCommandSurroundings(t *testing.T) {
	client, work := newAgent(t)
	var out output
	_, err := client.Run(within(t, 10*time.Second), agent.CommandSpec{
		ID: newID(), Env: map[string]string{"A": "b c"}, Stdin: []byte("typed"),
		Command: `pwd; echo "$A"; cat; echo; echo $LANG; echo $HOME; case $PATH in */usr/local/bin*) echo path;; esac; echo wrong >&2`,
	}, &out)
	require.NoError(t, err)
	require.Equal(t, work+"\nb c\ntyped\nC.UTF-8\n/root\npath\n", string(out.out))
	require.Equal(t, "wrong\n", string(out.err))
}

func TestCommandUser(t *testing.T) {
	testenv.Root(t) // starts commands as other users
	client, _ := newAgent(t)
	for user, want := range map[string]string{"": "0:0", "daemon": "1:1", "1234": "1234:1234", "1234:5": "1234:5"} {
		var out output
		_, err := client.Run(within(t, 10*time.Second),
			agent.CommandSpec{ID: newID(), Command: "echo $(id -u):$(id -g)", User: user, Cwd: "/"}, &out)
		require.NoError(t, err)
		require.Equal(t, want+"\n", string(out.out), user)
	}
}

func TestAllBytesOfOutput(t *testing.T) {
	client, work := newAgent(t)
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	require.NoError(t, os.WriteFile(filepath.Join(work, "all"), bytes.Repeat(all, 1000), 0o600))
	var out output
	_, err := client.Run(within(t, 10*time.Second), agent.CommandSpec{ID: newID(), Command: "cat all"}, &out)
	require.NoError(t, err)
	require.Equal(t, bytes.Repeat(all, 1000), out.out)
}

func TestOutputIsCutAtItsLimit(t *testing.T) {
	client, _ := newAgent(t)
	for size, truncated := range map[int]bool{10 << 20: false, agent.MaxOutput: false, agent.MaxOutput + 1: true, 40 << 20: true} {
		var out output
		exit, err := client.Run(within(t, 60*time.Second),
			agent.CommandSpec{ID: newID(), Command: fmt.Sprintf("head -c %d /dev/zero", size)}, &out)
		require.NoError(t, err)
		require.Equal(t, truncated, exit.Truncated, size)
		require.Len(t, out.out, min(size, agent.MaxOutput))
		require.Zero(t, exit.Code)
	}
}

// alive reports whether a process lives that has word in its arguments.
func alive(word string) []string {
	var found []string
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		args, _ := os.ReadFile(d + "/cmdline")
		if bytes.Contains(args, []byte(word)) {
			found = append(found, filepath.Base(d)+" "+strings.ReplaceAll(string(args), "\x00", " "))
		}
	}
	return found
}

func TestTimeoutLeavesNothing(t *testing.T) {
	client, work := newAgent(t)
	for name, script := range map[string]string{
		"plain":        `echo begun; exec sleep MARK`,
		"ignores TERM": `trap "" TERM INT HUP; echo begun; while :; do sleep MARK; done`,
		"double fork":  `(setsid sh -c 'trap "" TERM; (setsid sleep MARK &) ; sleep MARK' &) ; echo begun; sleep MARK`,
		"forks on":     `echo begun; f() { while :; do sleep MARK & sleep 0.05; done; }; f & f & f`,
		"hides":        `(env -i setsid sh -c '(setsid sleep MARK >/dev/null 2>&1 </dev/null &)' >/dev/null 2>&1 </dev/null &) ; sleep 0.2; echo begun; sleep MARK`,
		"hides early":  `env -i setsid sh -c '(setsid sleep MARK >/dev/null 2>&1 </dev/null &)' >/dev/null 2>&1 </dev/null; echo begun; exec sleep MARK`,
		"detached":     `setsid sleep MARK >/dev/null 2>&1 </dev/null & echo begun; wait`,
	} {
		mark := strconv.Itoa(100_000 + len(name)*1000 + os.Getpid()%1000)
		path := filepath.Join(work, "script")
		require.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(script, "MARK", mark)), 0o700))
		var out output
		exit, err := client.Run(within(t, 20*time.Second),
			agent.CommandSpec{ID: newID(), Command: "bash ./script", TimeoutMS: 500}, &out)
		require.NoError(t, err, name)
		require.Equal(t, 124, exit.Code, name)
		require.True(t, exit.TimedOut, name)
		require.Equal(t, "begun\n", string(out.out), name)
		require.Empty(t, alive(mark), name)
	}
}

func TestHeldPipeAnswersSoon(t *testing.T) {
	client, _ := newAgent(t)
	start := time.Now()
	var out output
	id := newID()
	exit, err := client.Run(within(t, 20*time.Second), agent.CommandSpec{ID: id, Command: "sleep 30 & echo done"}, &out)
	require.NoError(t, err)
	require.Zero(t, exit.Code)
	require.Equal(t, "done\n", string(out.out))
	require.Less(t, time.Since(start), 3*time.Second)
	require.GreaterOrEqual(t, time.Since(start), agent.DrainAfterExit)
	require.NoError(t, client.Kill(within(t, 10*time.Second), id, "KILL"))
}

func TestCancelKillsTheTree(t *testing.T) {
	client, _ := newAgent(t)
	mark := strconv.Itoa(200_000 + os.Getpid()%1000)
	ctx, cancel := context.WithCancel(context.Background())
	begun := &onOutput{f: cancel}
	_, err := client.Run(ctx, agent.CommandSpec{ID: newID(), Command: "(setsid sleep " + mark + " &); echo begun; sleep " + mark}, begun)
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, alive(mark))
}

// onOutput calls f at the first output.
type onOutput struct {
	f    func()
	once sync.Once
}

func (o *onOutput) Stdout([]byte) error { o.once.Do(o.f); return nil }
func (o *onOutput) Stderr([]byte) error { return nil }

func TestBackground(t *testing.T) {
	client, _ := newAgent(t)
	ctx := within(t, 30*time.Second)
	id := newID()
	spec := agent.CommandSpec{ID: id, Command: "while read -r l; do echo got $l; done; exit 3", KeepStdin: true, Tag: "t"}
	c, err := client.Start(ctx, spec)
	require.NoError(t, err)
	require.Equal(t, "running", c.Status)
	again, err := client.Start(ctx, spec)
	require.NoError(t, err)
	require.Equal(t, c.StartedAt, again.StartedAt, "an id starts once")
	require.NoError(t, client.Stdin(ctx, id, []byte("one\n"), false))
	require.Eventually(t, func() bool {
		out, _, _, err := client.Logs(ctx, id, 0, 0)
		return err == nil && string(out) == "got one\n"
	}, 60*time.Second, 5*time.Millisecond)
	require.NoError(t, client.Stdin(ctx, id, []byte("two\n"), true))
	var out output
	exit, err := client.Follow(ctx, id, 4, 0, &out)
	require.NoError(t, err)
	require.Equal(t, 3, exit.Code)
	require.Equal(t, "one\ngot two\n", string(out.out))
	list, err := client.Commands(ctx)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, "exited", list[0].Status)
	require.Equal(t, fault.Conflict, fault.KindOf(client.Stdin(ctx, id, []byte("x"), false)))
	_, err = client.Command(ctx, newID())
	require.Equal(t, fault.NotFound, fault.KindOf(err))
}

// TestBridgeBreaksDuringRun cuts every bridge again and again while a command prints: nothing is lost or doubled.
func TestBridgeBreaksDuringRun(t *testing.T) {
	_, _, dial := newAgentDial(t)
	var mu sync.Mutex
	var last io.Closer
	client := agent.NewClient(func(ctx context.Context, bulk bool) (io.ReadWriteCloser, error) {
		conn, err := dial(ctx, bulk)
		mu.Lock()
		last = conn
		mu.Unlock()
		return conn, err
	})
	t.Cleanup(func() { _ = client.Close() })
	cut := &cutter{every: 8 << 10, cut: func() { mu.Lock(); _ = last.Close(); mu.Unlock() }}
	exit, err := client.Run(within(t, 60*time.Second),
		agent.CommandSpec{ID: newID(), Command: "for i in $(seq 1 20); do seq 1 500; sleep 0.01; done; exit 9"}, cut)
	require.NoError(t, err)
	require.Equal(t, 9, exit.Code)
	var want strings.Builder
	for range 20 {
		for i := 1; i <= 500; i++ {
			fmt.Fprintln(&want, i)
		}
	}
	require.Equal(t, want.String(), cut.got.String())
	require.Greater(t, cut.cuts, 1)
}

type cutter struct {
	every, cuts int
	cut         func()
	got         bytes.Buffer
}

func (c *cutter) Stdout(p []byte) error {
	before := c.got.Len() / c.every
	c.got.Write(p)
	if c.got.Len()/c.every > before && c.cuts < 8 {
		c.cuts++
		c.cut()
	}
	return nil
}
func (c *cutter) Stderr([]byte) error { return nil }

func TestSlowReaderStopsTheProgram(t *testing.T) {
	client, work := newAgent(t)
	ctx := within(t, 30*time.Second)
	release := make(chan struct{})
	got := make(chan error, 1)
	go func() {
		_, err := client.Run(ctx, agent.CommandSpec{
			ID: newID(), Command: `for i in $(seq 1 200); do head -c 65536 /dev/zero; echo $i > count; done`,
		}, &blocked{release: release})
		got <- err
	}()
	count := func() int {
		text, _ := os.ReadFile(filepath.Join(work, "count"))
		n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		return n
	}
	require.Eventually(t, func() bool { return count() >= 10 }, 60*time.Second, 5*time.Millisecond)
	// It comes to rest well before its end: two looks in a row see the same number.
	lastSeen, still := -1, 0
	require.Eventually(t, func() bool {
		if n := count(); n == lastSeen {
			still++
		} else {
			lastSeen, still = n, 0
		}
		return still > 20
	}, 20*time.Second, 20*time.Millisecond)
	require.Less(t, lastSeen, 199)
	close(release)
	require.NoError(t, <-got)
	require.Equal(t, 200, count())
}

type blocked struct{ release chan struct{} }

func (b *blocked) Stdout([]byte) error { <-b.release; return nil }
func (b *blocked) Stderr([]byte) error { return nil }

func TestOutputErrorEndsTheStreamOnly(t *testing.T) {
	client, _ := newAgent(t)
	ctx := within(t, 20*time.Second)
	id := newID()
	stop := errors.New("enough")
	_, err := client.Run(ctx, agent.CommandSpec{ID: id, Command: "echo a; sleep 0.2; echo b; exit 5"}, failing{stop})
	require.ErrorIs(t, err, stop)
	var out output
	exit, err := client.Follow(ctx, id, 0, 0, &out)
	require.NoError(t, err)
	require.Equal(t, 5, exit.Code)
	require.Equal(t, "a\nb\n", string(out.out))
}

type failing struct{ err error }

func (f failing) Stdout([]byte) error { return f.err }
func (f failing) Stderr([]byte) error { return f.err }

func TestManyAtOnce(t *testing.T) {
	client, _ := newAgent(t)
	ctx := within(t, 60*time.Second)
	var wg sync.WaitGroup
	for i := range 100 {
		id := newID()
		wg.Go(func() {
			var out output
			exit, err := client.Run(ctx, agent.CommandSpec{ID: id, Command: fmt.Sprintf("echo %d; exit %d", i, i)}, &out)
			if err != nil || exit.Code != i || string(out.out) != fmt.Sprintf("%d\n", i) {
				t.Errorf("%d: %v %+v %q", i, err, exit, out.out)
			}
		})
	}
	wg.Wait()
}

func TestDeadBridge(t *testing.T) {
	client := agent.NewClient(func(context.Context, bool) (io.ReadWriteCloser, error) { return nil, net.ErrClosed })
	_, err := client.Hello(within(t, 5*time.Second))
	require.ErrorIs(t, err, agent.ErrBridge)
}

func BenchmarkTrue(b *testing.B) {
	client, _ := newAgent(b)
	for b.Loop() {
		if _, err := client.Run(context.Background(), agent.CommandSpec{ID: newID(), Command: "true"}, &output{}); err != nil {
			b.Fatal(err)
		}
	}
}
