package e2e

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// bridges counts the programs in a sandbox that somebody outside is connected to: the connections to its control socket. The
// server and these tests share a network, and so the list of sockets.
func bridges(t *testing.T, id string) int {
	t.Helper()
	text, err := os.ReadFile("/proc/net/unix")
	require.NoError(t, err)
	n := 0
	for line := range strings.Lines(string(text)) {
		const connected = "03"
		if f := strings.Fields(line); len(f) == 8 && f[5] == connected && strings.HasSuffix(f[7], "/runsc-"+id+".sock") {
			n++
		}
	}
	return n
}

// Half a minute after the last call nothing leads into a sandbox any more, and nobody notices: what streams goes on, what is
// called afterwards works, ends of commands are told, and the records are read without going inside.
func TestBridgesCloseAndOpenUnnoticed(t *testing.T) {
	host := newInstallation(t)
	s := host.serve()
	host.person("ann@example.org", "alpha")
	key := host.key("alpha", "sandboxes:run")
	api := s.rest(key)
	const path = "/v1/sandboxes/"
	used, shown, watched, at := api.create("used"), api.create("shown"), api.create("watched"), api.create("at-work")
	// The first bridge is process 1's own stdin and stdout, which nobody sees from here; another server has others.
	s.stop(syscall.SIGTERM)
	s = host.serve()
	api = s.rest(key)
	require.Equal(t, "1\n", api.exec(used, "echo 1").Stdout)
	require.Equal(t, 1, bridges(t, used))
	events := api.follow("GET", "/v1/events", nil)
	events.next(map[string]any{"type": "ready"})
	view := api.view(shown, api.openPTY(shown), "")
	view.until("the first snapshot", func() bool { return view.snapshot != nil })
	view.typeText("echo fir''st\r")
	view.sees("first")
	changes := api.follow("GET", path+watched+"/files/watch?path=/work", nil)
	changes.next(map[string]any{"type": "ready"})
	var work struct{ ID string }
	api.ok("POST", path+at+"/commands", map[string]any{"command": "sleep 50; echo done", "background": true}, &work)

	rested := time.Now().Add(33 * time.Second) // a bridge is kept for 30
	require.Eventually(t, func() bool {
		return time.Now().After(rested) && bridges(t, used) == 0
	}, 2*time.Minute, 500*time.Millisecond, "bridges that nobody uses are closed")
	var m struct {
		PIDs int64 `json:"pids"`
	}
	api.ok("GET", path+used+"/metrics", nil, &m)
	require.Positive(t, m.PIDs)
	api.ok("GET", "/v1/sandboxes", nil, nil)
	require.Zero(t, bridges(t, used), "reading meters and records leads nowhere")

	view.forget()
	view.typeText("echo sec''ond\r")
	view.sees("second")
	require.Equal(t, "2\n", api.exec(used, "echo 2").Stdout)
	require.Equal(t, 1, bridges(t, used), "the next call opens one")
	require.Equal(t, "4\n", api.exec(watched, "touch /work/new; echo 4").Stdout)
	changes.next(map[string]any{"type": "create", "path": "/work/new"})
	events.next(map[string]any{"type": "command.exit", "target": work.ID})
	var logs struct{ Stdout string }
	api.ok("GET", path+at+"/commands/"+work.ID+"/logs", nil, &logs)
	require.Equal(t, "done\n", logs.Stdout)
}
