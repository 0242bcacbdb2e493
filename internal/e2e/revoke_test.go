package e2e

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
)

// A key that is revoked ends everything that it has open: what runs, what is followed, and what is watched.
func TestRevokingAKeyEndsWhatItHasOpen(t *testing.T) {
	host := newInstallation(t)
	s := host.serve()
	host.person("ann@example.org", "alpha")
	keeper, key := s.rest(host.key("alpha", "sandboxes:run")), host.key("alpha", "sandboxes:run")
	id := keeper.create("revoke")
	var command struct{ ID string }
	keeper.ok("POST", "/v1/sandboxes/"+id+"/commands", map[string]any{"command": "while :; do echo tick; sleep 0.1; done", "background": true}, &command)
	pty := keeper.openPTY(id)

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ends := make(chan string, 8)
	// open makes a call with the key, and waits until something has come.
	open := func(name, method, path, accept, body string, wait bool) {
		begun := make(chan error, 1)
		go func() {
			req, err := http.NewRequestWithContext(ctx, method, s.url+"/v1/sandboxes/"+id+path, bytes.NewReader([]byte(body)))
			if err != nil {
				begun <- err
				return
			}
			req.Header.Set("X-API-Key", key)
			req.Header.Set("Accept", accept)
			if !wait {
				begun <- nil
			}
			resp, err := http.DefaultClient.Do(req)
			if err == nil && wait {
				_, err = resp.Body.Read(make([]byte, 1))
				begun <- err
			}
			if err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
			ends <- name
		}()
		require.NoError(t, <-begun, name)
	}
	open("a background command that is followed", "GET", "/commands/"+command.ID+"/stream", "", "", true)
	open("a command that is run and followed", "POST", "/commands", "text/event-stream", `{"command":"echo hi; sleep 1001"}`, true)
	open("a command that is waited for", "POST", "/commands", "", `{"command":"touch /work/waited; sleep 1002"}`, false)
	require.Eventually(t, func() bool {
		code, _ := keeper.do("GET", "/v1/sandboxes/"+id+"/files/stat?path=/work/waited", nil)
		return code == 200
	}, 60*time.Second, 50*time.Millisecond)
	conn, _, err := websocket.Dial(ctx, s.url+"/v1/sandboxes/"+id+"/ptys/"+pty+"/ws", &websocket.DialOptions{
		HTTPHeader: http.Header{"X-Api-Key": {key}}, Subprotocols: []string{"sandgate.term.v1"},
	})
	require.NoError(t, err)
	defer func() { _ = conn.CloseNow() }()
	_, _, err = conn.Read(ctx)
	require.NoError(t, err)
	codes := make(chan websocket.StatusCode, 1)
	go func() {
		for {
			if _, _, err := conn.Read(ctx); err != nil {
				codes <- websocket.CloseStatus(err)
				ends <- "a terminal"
				return
			}
		}
	}()

	host.run("key", "revoke", key)
	late := time.After(2 * time.Second)
	left := map[string]bool{
		"a background command that is followed": true, "a command that is run and followed": true, "a command that is waited for": true, "a terminal": true,
	}
	for len(left) > 0 {
		select {
		case name := <-ends:
			delete(left, name)
		case <-late:
			require.Fail(t, "still open 2 s after the key was revoked", "%v", left)
		}
	}
	require.Equal(t, websocket.StatusCode(4008), <-codes)
	code, _ := s.rest(key).do("GET", "/v1/sandboxes", nil)
	require.Equal(t, http.StatusUnauthorized, code)
	require.Equal(t, "", keeper.exec(id, "ps -eo args | grep '[s]leep 100[12]' || true").Stdout, "what it ran is gone")
	var c struct{ Status string }
	keeper.ok("GET", "/v1/sandboxes/"+id+"/commands/"+command.ID, nil, &c)
	require.Equal(t, "running", c.Status, "somebody else's goes on")
}
