package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
)

// The server is killed at an unhappy moment: sandboxes, commands and terminals go on, and the next server takes them up.
func TestSandboxesOutliveACrashOfTheServer(t *testing.T) {
	host := newInstallation(t)
	s := host.serve()
	host.person("ann@example.org", "alpha")
	key := host.key("alpha", "sandboxes:run")
	api := s.rest(key)

	id := api.create("survivor")
	var background struct{ ID string }
	api.ok("POST", "/v1/sandboxes/"+id+"/commands", map[string]any{
		"command": "for i in 1 2 3; do while [ ! -e /work/go ]; do sleep 0.1; done; done; echo went on", "background": true,
	}, &background)
	pty := api.openPTY(id)
	term := api.view(id, pty, "")
	term.typeText("echo before-$((40+2)); MARK=kept\n")
	term.sees("before-42\r\n")
	seen := term.offset()

	s.stop(syscall.SIGKILL)
	s = host.serve()
	api = s.rest(key)

	var sb sandboxJSON
	api.ok("GET", "/v1/sandboxes/"+id, nil, &sb)
	require.Equal(t, "running", sb.Status)
	require.Equal(t, "survivor", sb.Label)
	require.Equal(t, "hello\n", api.exec(id, "touch /work/go; echo hello").Stdout)

	// The terminal continues exactly where this viewer was, and a viewer that comes late sees what was before.
	again := api.view(id, pty, fmt.Sprintf("?since=%d", seen))
	again.typeText("echo $MARK-$((40+3))\n")
	again.sees("kept-43\r\n")
	require.NotContains(t, again.text(), "before-42", "bytes before the offset came again")
	late := api.view(id, pty, "")
	late.until("snapshot with the scrollback", func() bool { return bytes.Contains(late.snapshot, []byte("before-42")) })

	require.Eventually(t, func() bool {
		var c struct {
			Status string
			Exit   struct{ ExitCode int }
		}
		api.ok("GET", "/v1/sandboxes/"+id+"/commands/"+background.ID, nil, &c)
		return c.Status == "exited"
	}, 60*time.Second, 50*time.Millisecond)
	var logs struct{ Stdout string }
	api.ok("GET", "/v1/sandboxes/"+id+"/commands/"+background.ID+"/logs", nil, &logs)
	require.Equal(t, "went on\n", logs.Stdout)

	require.Contains(t, host.run("sandbox", "kill", "--all"), "1 killed")
	require.Equal(t, websocket.StatusCode(4004), again.closedWith())
	code, _ := api.do("GET", "/v1/sandboxes/"+id, nil)
	require.Equal(t, http.StatusNotFound, code)
	host.nothingLeft()
}

// With the server down the command does the work itself.
func TestKillAllWorksWithTheServerDown(t *testing.T) {
	host := newInstallation(t)
	s := host.serve()
	host.person("ann@example.org", "alpha")
	api := s.rest(host.key("alpha", "sandboxes:run"))
	for n := range 3 {
		id := api.create(fmt.Sprintf("n%d", n))
		require.Zero(t, api.exec(id, "sleep 1000 & disown; true").ExitCode)
	}
	s.stop(syscall.SIGKILL)
	require.Contains(t, host.run("sandbox", "kill", "--all"), "3 killed")
	host.nothingLeft()

	s = host.serve()
	var list []sandboxJSON
	s.rest(api.key).ok("GET", "/v1/sandboxes", nil, &list)
	require.Empty(t, list)
}

// A server that is killed in the middle of creating leaves nothing that the next one does not remove.
func TestAKilledCreationLeavesNothing(t *testing.T) {
	host := newInstallation(t)
	s := host.serve()
	host.person("ann@example.org", "alpha")
	key := host.key("alpha", "sandboxes:run")
	for round := range 5 {
		done := make(chan struct{})
		go func() {
			defer close(done)
			// The answer is lost with the server; only the call matters.
			req, err := http.NewRequest("POST", s.url+"/v1/sandboxes", bytes.NewReader([]byte(`{"label": "half"}`)))
			if err != nil {
				return
			}
			req.Header.Set("X-API-Key", key)
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_ = resp.Body.Close()
			}
		}()
		select {
		case <-done:
		case <-time.After(time.Duration(20+40*round) * time.Millisecond):
		}
		s.stop(syscall.SIGKILL)
		<-done
		s = host.serve()
		api := s.rest(key)
		var list []sandboxJSON
		api.ok("GET", "/v1/sandboxes", nil, &list)
		for _, sb := range list { // the creation had ended before the kill
			require.Equal(t, "running", sb.Status)
			api.ok("DELETE", "/v1/sandboxes/"+sb.ID, nil, nil)
		}
		host.nothingLeft()
	}
}
