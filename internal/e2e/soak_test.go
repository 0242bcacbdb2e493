//go:build soak

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Ten thousand commands one after the other: no wrong code, no byte lost or added, and server and agent end as they were.
func TestTenThousandCommands(t *testing.T) {
	const commands, warmUp = 10_000, 500
	host := newInstallation(t)
	s := host.serve()
	host.person("ann@example.org", "alpha")
	api := s.rest(host.key("alpha", "sandboxes:run"))
	id := api.create("soak")

	var before, after held
	begin := time.Now()
	for n := range warmUp + commands {
		if n == warmUp {
			before = s.held(api, id)
			begin = time.Now()
		}
		line, want := soakCommand(n)
		got := api.exec(id, line)
		require.Equal(t, want.ExitCode, got.ExitCode, "%d: %s", n, line)
		require.True(t, want.Stdout == got.Stdout, "%d: %s: stdout has %d bytes, not %d", n, line, len(got.Stdout), len(want.Stdout))
		require.True(t, want.Stderr == got.Stderr, "%d: %s: stderr has %d bytes, not %d", n, line, len(got.Stderr), len(want.Stderr))
		require.False(t, got.TimedOut || got.Truncated, "%d: %s", n, line)
	}
	took := time.Since(begin)
	require.Eventually(t, func() bool { // what is kept for a while goes
		after = s.held(api, id)
		return after.serverFDs <= before.serverFDs+4 && after.agentFDs <= before.agentFDs+4
	}, 2*time.Minute, time.Second, "descriptors: before %+v", before)
	t.Logf("%d commands in %s; before %+v, after %+v", commands, took.Round(time.Second), before, after)
	require.LessOrEqual(t, after.serverMiB, before.serverMiB+32, "memory of the server")
	require.LessOrEqual(t, after.agentMiB, before.agentMiB+32, "memory of the agent")
	require.LessOrEqual(t, after.serverThreads, before.serverThreads+8, "threads of the server")
	require.LessOrEqual(t, after.agentThreads, before.agentThreads+8, "threads of the agent")
	require.InDelta(t, before.processes, after.processes, 1, "processes inside; one may stand by for the next command")

	s.stop(syscall.SIGQUIT) // writes the stack of every goroutine into the log, and ends
	log, err := os.ReadFile(filepath.Join(host.data, "server.log"))
	require.NoError(t, err)
	goroutines := bytes.Count(log, []byte("\ngoroutine "))
	t.Logf("%d goroutines at the end", goroutines)
	require.Positive(t, goroutines)
	require.Less(t, goroutines, 60, "goroutines of an idle server with one sandbox")
	host.run("audit", "verify")
}

// soakCommand gives the n-th command and what it must say: every exit code, signals, and output of many sizes on both streams.
func soakCommand(n int) (line string, want executionJSON) {
	size := n * 7919 % 5000
	if n%500 == 499 {
		size = 1 << 20
	}
	out, errs := soakText(n, size), soakText(n+1, size/3)
	line = fmt.Sprintf("yes %s | head -c %d; yes %s | head -c %d >&2; ", soakWord(n), len(out), soakWord(n+1), len(errs))
	want = executionJSON{Stdout: out, Stderr: errs, ExitCode: n % 256}
	switch {
	case n%10 == 0: // no output, no child
		return fmt.Sprintf("exit %d", n%256), executionJSON{ExitCode: n % 256}
	case n%97 == 0:
		want.ExitCode = 128 + int(syscall.SIGTERM)
		return line + "kill -TERM $$", want
	}
	return line + fmt.Sprintf("exit %d", n%256), want
}

func soakWord(n int) string { return "word-" + strconv.Itoa(n) }

func soakText(n, size int) string {
	line := soakWord(n) + "\n"
	return strings.Repeat(line, size/len(line)+1)[:size]
}

// held is what server and agent hold on to.
type held struct {
	serverFDs, serverThreads int
	serverMiB                int
	agentFDs, agentThreads   int
	agentMiB                 int
	processes                int
}

func (s *server) held(api rest, id string) (h held) {
	s.t.Helper()
	dir := fmt.Sprintf("/proc/%d", s.cmd.Process.Pid)
	fds, err := os.ReadDir(dir + "/fd")
	require.NoError(s.t, err)
	status, err := os.ReadFile(dir + "/status")
	require.NoError(s.t, err)
	h.serverFDs, h.serverThreads, h.serverMiB = len(fds), statusLine(s.t, string(status), "Threads"), statusLine(s.t, string(status), "VmRSS")/1024

	inside := api.exec(id, "ls /proc/1/fd | wc -l; ls -d /proc/[0-9]* | wc -l; cat /proc/1/status").Stdout
	var rest string
	_, err = fmt.Sscan(inside, &h.agentFDs, &h.processes)
	require.NoError(s.t, err, inside)
	_, rest, _ = strings.Cut(inside, "\n")
	h.agentThreads, h.agentMiB = statusLine(s.t, rest, "Threads"), statusLine(s.t, rest, "VmRSS")/1024
	return h
}

func statusLine(t *testing.T, status, name string) int {
	t.Helper()
	for line := range strings.Lines(status) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name+":" {
			n, err := strconv.Atoi(f[1])
			require.NoError(t, err)
			return n
		}
	}
	require.Fail(t, "no such line", "%s in %s", name, status)
	return 0
}
