package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/coder/websocket"
)

// call does one request. ok: it was answered with yes. refused: it was answered with no, in a way that says that nothing was
// done. Neither: nobody knows. may tells whether any refusal is to be expected; else only a few are, and all others go down
// as faults while the server lives.
func (c *crashClient) call(method, path string, body, out any, may func() bool) (ok, refused bool) {
	var in io.Reader
	switch b := body.(type) {
	case nil:
	case []byte:
		in = bytes.NewReader(b)
	default:
		j, err := json.Marshal(b)
		if err != nil {
			c.fault("%s", err)
			return false, false
		}
		in = bytes.NewReader(j)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, in)
	if err != nil {
		c.fault("%s", err)
		return false, false
	}
	req.Header.Set("X-API-Key", c.key)
	req.Header.Set("Content-Type", "application/json")
	what := method + " " + words(path)
	resp, err := http.DefaultClient.Do(req)
	var answer []byte
	if err == nil {
		answer, err = io.ReadAll(resp.Body)
		_ = resp.Body.Close()
	}
	if err != nil {
		if c.open.Load() {
			c.fault("%s %s: %s", method, path, err)
		}
		c.did(what + " unanswered")
		return false, false
	}
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusAccepted {
		c.did(what)
		if out != nil {
			if err := json.Unmarshal(answer, out); err != nil {
				c.fault("%s %s: %s: %s", method, path, err, answer)
			}
		}
		return true, false
	}
	var problem struct{ Code string }
	_ = json.Unmarshal(answer, &problem)
	c.did(what + " " + problem.Code)
	if expected := problem.Code == "conflict" || problem.Code == "starting" || may(); !expected || problem.Code == "internal" {
		c.fault("%s %s: %d %s", method, path, resp.StatusCode, answer)
	}
	return false, problem.Code == "conflict" || problem.Code == "quota_exceeded"
}

// words is a path without what differs from call to call.
func words(path string) string {
	path, _, _ = strings.Cut(path, "?")
	var out []string
	for _, p := range strings.Split(strings.TrimPrefix(path, "/v1/"), "/") {
		if len(p) < 20 {
			out = append(out, p)
		}
	}
	return strings.Join(out, "/")
}

// typed types a line into a terminal that writes a file, and waits until the terminal says that it did.
func (c *crashClient) typed(a *account, pty, name string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(c.url, "http")+"/v1/sandboxes/"+a.id+"/ptys/"+pty+"/ws", &websocket.DialOptions{
		HTTPHeader: http.Header{"X-API-Key": {c.key}}, Subprotocols: []string{"sandgate.term.v1"},
	})
	if err != nil {
		c.lost(a, "dial a terminal", err)
		return false
	}
	defer func() { _ = conn.CloseNow() }()
	conn.SetReadLimit(8 << 20)
	typed := false
	var seen []byte
	for {
		kind, p, err := conn.Read(ctx)
		if err != nil {
			c.lost(a, "a terminal", err)
			return false
		}
		if kind == websocket.MessageBinary && len(p) >= 9 {
			seen = append(seen, p[9:]...)
			if bytes.Contains(seen, []byte("done "+name+" 2")) {
				c.did("terminal")
				return true
			}
			if !typed {
				typed = true
				// What another viewer types is typed by nobody: the one who came first drives.
				_ = conn.Write(ctx, websocket.MessageText, []byte(`{"type":"take_control"}`))
				line := "mkdir -p /work/kept; echo " + name + " >/work/kept/" + name + " && echo done " + name + " $((1+1))\r"
				if err := conn.Write(ctx, websocket.MessageBinary, append([]byte{0}, line...)); err != nil {
					c.lost(a, "type", err)
					return false
				}
			}
		}
	}
}

// lost notes that a terminal broke: a fault while the server and the sandbox live.
func (c *crashClient) lost(a *account, what string, err error) {
	c.did("terminal broken")
	if c.open.Load() && !c.doomed(a)() && websocket.CloseStatus(err) == -1 {
		c.fault("%s of %s: %s", what, a.id, err)
	}
}
