package e2e

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// stream is an open stream of events.
type stream struct {
	t      *testing.T
	events chan map[string]any
	close  func()
}

// follow opens a stream of events.
func (r rest) follow(method, path string, body any) *stream {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	p, err := json.Marshal(body)
	require.NoError(r.t, err)
	req, err := http.NewRequestWithContext(ctx, method, r.url+path, bytes.NewReader(p))
	require.NoError(r.t, err)
	req.Header.Set("X-API-Key", r.key)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "text/event-stream")
	resp, err := http.DefaultClient.Do(req)
	require.NoError(r.t, err)
	require.Equal(r.t, http.StatusOK, resp.StatusCode)
	s := &stream{t: r.t, events: make(chan map[string]any, 4096), close: cancel}
	go func() { // ends with the stream, at the latest with the context
		defer close(s.events)
		defer func() { _ = resp.Body.Close() }()
		in := bufio.NewReader(resp.Body)
		for {
			line, err := in.ReadBytes('\n')
			if err != nil {
				return
			}
			if data, ok := bytes.CutPrefix(line, []byte("data: ")); ok {
				var e map[string]any
				if json.Unmarshal(data, &e) == nil {
					s.events <- e
				}
			}
		}
	}()
	r.t.Cleanup(cancel)
	return s
}

// next gives the first event that has these values.
func (s *stream) next(want map[string]any) map[string]any {
	s.t.Helper()
	deadline := time.After(20 * time.Second)
	var last map[string]any
	for {
		select {
		case e, open := <-s.events:
			require.True(s.t, open, "the stream ended before %v, after %v", want, last)
			last = e
			hit := true
			for k, v := range want {
				hit = hit && e[k] == v
			}
			if hit {
				return e
			}
		case <-deadline:
			require.Fail(s.t, "an event did not come", "%v", want)
		}
	}
}

// rss gives the resident memory of the server, in bytes.
func (s *server) rss() int64 {
	s.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	require.NoError(s.t, err)
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			require.NoError(s.t, err)
			return n << 10
		}
	}
	require.Fail(s.t, "no VmRSS")
	return 0
}

// Readers that stop reading stop the commands that they read from, and cost the server next to nothing. The event that
// comes first arrives while the command runs; those who hang up end it.
func TestAStalledReaderStopsTheOutput(t *testing.T) {
	const readers, most = 6, 32 << 20
	host := newInstallation(t)
	s := host.serve()
	host.person("ann@example.org", "alpha")
	api := s.rest(host.key("alpha", "sandboxes:run"))
	id := api.create("loud")
	require.Equal(t, "ready\n", api.exec(id, "echo ready").Stdout)
	before := s.rss()

	address := strings.TrimPrefix(s.url, "http://")
	conns := make([]net.Conn, readers)
	for i := range conns {
		conn, err := net.Dial("tcp", address)
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		require.NoError(t, conn.(*net.TCPConn).SetReadBuffer(64<<10))
		conns[i] = conn
		// The loop counts what it got rid of; yes alone would show nothing from outside.
		body := fmt.Sprintf(`{"command":"n=0; while yes | head -c 262144; do n=$((n+1)); echo $n > /work/progress%d; done"}`, i)
		_, err = fmt.Fprintf(conn, "POST /v1/sandboxes/%s/commands HTTP/1.1\r\nHost: %s\r\nX-API-Key: %s\r\nAccept: text/event-stream\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			id, address, api.key, len(body), body)
		require.NoError(t, err)
		head := make([]byte, 1024) // the answer has begun while the command runs for ever
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
		_, err = conn.Read(head)
		require.NoError(t, err)
		require.Contains(t, string(head), "200 OK")
	}
	progress := func() string {
		return api.exec(id, "cat /work/progress* 2>/dev/null").Stdout
	}
	last, same := "", 0
	require.Eventually(t, func() bool { // it stands still
		now := progress()
		if now != last {
			last, same = now, 0
			return false
		}
		same++
		return len(strings.Fields(now)) == readers && same >= 8
	}, time.Minute, 250*time.Millisecond)
	for _, n := range strings.Fields(last) {
		blocks, err := strconv.Atoi(n)
		require.NoError(t, err)
		require.Less(t, blocks, 16<<20/262144, "the command went on to its limit")
	}
	grown := s.rss() - before
	t.Logf("%d stalled readers: the server grew by %d KiB", readers, grown>>10)
	require.Less(t, grown, int64(most))

	for _, conn := range conns {
		require.NoError(t, conn.Close())
	}
	require.Eventually(t, func() bool {
		var list []struct{ Status string }
		api.ok("GET", "/v1/sandboxes/"+id+"/commands", nil, &list)
		for _, c := range list {
			if c.Status != "exited" {
				return false
			}
		}
		return true
	}, 20*time.Second, 100*time.Millisecond)
	require.Equal(t, "0\n", api.exec(id, "pgrep -c -x yes; true").Stdout)
}

// A background command survives its client and the server: logs go on at the cursor, stdin is still open, tags are kept,
// signals arrive.
func TestBackgroundCommandsOutliveTheServer(t *testing.T) {
	host := newInstallation(t)
	s := host.serve()
	host.person("ann@example.org", "alpha")
	api := s.rest(host.key("alpha", "sandboxes:run"))
	id := api.create("background")
	type command struct {
		ID, Status, Tag, Stdout, Cursor, Signal string
		ExitCode                                *int `json:"exit_code"`
	}
	commands := "/v1/sandboxes/" + id + "/commands"
	var echo, sleeper command
	api.ok("POST", commands, map[string]any{"command": "while read line; do echo got $line; done; echo end; exit 7", "background": true, "tag": "echo"}, &echo)
	api.ok("POST", commands, map[string]any{"command": "sleep 1000", "background": true}, &sleeper)
	logs := func(cursor, want string) command {
		t.Helper()
		var l command
		require.Eventually(t, func() bool {
			api.ok("GET", commands+"/"+echo.ID+"/logs?cursor="+cursor, nil, &l)
			return l.Stdout == want
		}, 60*time.Second, 50*time.Millisecond, "logs from %q", cursor)
		return l
	}
	api.ok("POST", commands+"/"+echo.ID+"/stdin", map[string]any{"data": "one\n"}, nil)
	at := logs("", "got one\n")

	s.stop(syscall.SIGKILL)
	s = host.serve()
	api = s.rest(api.key)
	api.ok("POST", commands+"/"+echo.ID+"/stdin", map[string]any{"data": "dHdvCg==", "encoding": "base64"}, nil)
	at = logs(at.Cursor, "got two\n")
	require.Equal(t, "running", at.Status)
	require.Equal(t, "echo", at.Tag)
	follower := api.follow("GET", commands+"/"+echo.ID+"/stream?cursor="+at.Cursor, nil)
	follower.next(map[string]any{"type": "init"})
	api.ok("POST", commands+"/"+echo.ID+"/stdin", map[string]any{"data": "", "eof": true}, nil)
	follower.next(map[string]any{"type": "stdout", "text": "end\n"})
	follower.next(map[string]any{"type": "exit", "exit_code": 7.0})
	code, body := api.do("POST", commands+"/"+echo.ID+"/stdin", map[string]any{"data": "x"})
	require.Equal(t, http.StatusConflict, code, "%s", body)

	api.ok("POST", commands+"/"+sleeper.ID+"/kill", map[string]any{"signal": "TERM"}, nil)
	require.Eventually(t, func() bool {
		api.ok("GET", commands+"/"+sleeper.ID, nil, &sleeper)
		return sleeper.Status == "exited"
	}, 60*time.Second, 50*time.Millisecond)
	require.Equal(t, 143, *sleeper.ExitCode)
	require.Equal(t, "TERM", sleeper.Signal)
}

// Every byte of a stream is the one that was written, in both forms.
func TestStreamsKeepEveryByte(t *testing.T) {
	host := newInstallation(t)
	s := host.serve()
	host.person("ann@example.org", "alpha")
	api := s.rest(host.key("alpha", "sandboxes:run"))
	id := api.create("exact")
	st := api.follow("POST", "/v1/sandboxes/"+id+"/commands", map[string]any{"command": "head -c 3000000 /dev/urandom | tee /work/r; yes é | head -c 300001 | tee -a /work/r"})
	var got bytes.Buffer
	for e := range st.events {
		switch {
		case e["data_b64"] != nil:
			p, err := json.Marshal(e["data_b64"])
			require.NoError(t, err)
			var raw []byte
			require.NoError(t, json.Unmarshal(p, &raw))
			got.Write(raw)
		case e["type"] == "stdout":
			got.WriteString(e["text"].(string))
		}
	}
	code, want := api.do("GET", "/v1/sandboxes/"+id+"/files/raw?path=/work/r", nil)
	require.Equal(t, http.StatusOK, code)
	require.Len(t, want, 3300001)
	require.True(t, bytes.Equal(want, got.Bytes()), "%d bytes", got.Len())
}

// The calls beside the official client's, in a true sandbox.
func TestTierBInASandbox(t *testing.T) {
	host := newInstallation(t)
	s := host.serve()
	host.person("ann@example.org", "alpha")
	api := s.rest(host.key("alpha", "sandboxes:run"))
	events := api.follow("GET", "/v1/events", nil)
	events.next(map[string]any{"type": "ready"})
	var sb sandboxJSON
	api.ok("POST", "/v1/sandboxes", map[string]any{"label": "b", "secrets": map[string]string{"TOKEN": "hunter2-is-secret"}}, &sb)
	one := "/v1/sandboxes/" + sb.ID
	events.next(map[string]any{"type": "sandbox.status", "sandbox_id": sb.ID, "status": "running"})
	require.Equal(t, "hunter2-is-secret\n", api.exec(sb.ID, "echo $TOKEN; : hunter2-is-secret").Stdout)
	require.Equal(t, "echo $TOKEN; : [secret TOKEN]", events.next(map[string]any{"type": "command.run", "outcome": "ok"})["target"])

	watch := api.follow("GET", one+"/files/watch?path=/work&recursive=true", nil)
	watch.next(map[string]any{"type": "ready"})
	api.exec(sb.ID, "mkdir -p /work/src && echo 'import os' > /work/src/run.py && mv /work/src/run.py /work/src/go.py && chmod 600 /work/src/go.py && rm /work/src/go.py; echo 'import sys' > /work/src/a.py")
	watch.next(map[string]any{"type": "create", "path": "/work/src", "directory": true})
	watch.next(map[string]any{"type": "create", "path": "/work/src/a.py"})
	watch.close()

	var page struct {
		Entries []struct {
			Path, Text string
			Line       int
		}
	}
	api.ok("GET", one+"/files/search?path=/work&name=*.py&content=sys", nil, &page)
	require.Len(t, page.Entries, 1)
	require.Equal(t, "/work/src/a.py", page.Entries[0].Path)
	require.Equal(t, "import sys", page.Entries[0].Text)
	api.ok("POST", one+"/files/copy", map[string]any{"source": "/work/src", "destination": "/work/copy"}, nil)
	api.ok("POST", one+"/files/chmod", map[string]any{"path": "/work/copy/a.py", "mode": "0640"}, nil)
	require.Equal(t, "640 root\nimport sys\n", api.exec(sb.ID, "stat -c '%a %U' /work/copy/a.py; cat /work/copy/a.py").Stdout)

	for _, format := range []string{"tar", "zip"} {
		code, archive := api.do("GET", one+"/files/archive?path=/work/src&format="+format, nil)
		require.Equal(t, http.StatusOK, code)
		var u struct{ Files int }
		api.ok("PUT", one+"/files/archive?path="+url.QueryEscape("/work/in "+format)+"&format="+format, archive, &u)
		require.Equal(t, 1, u.Files)
		require.Equal(t, "import sys\n", api.exec(sb.ID, "cat '/work/in "+format+"/src/a.py'").Stdout)
	}
	var bad bytes.Buffer
	w := tar.NewWriter(&bad)
	require.NoError(t, w.WriteHeader(&tar.Header{Name: "../evil", Mode: 0o644}))
	require.NoError(t, w.Close())
	code, body := api.do("PUT", one+"/files/archive?path=/work/x", bad.Bytes())
	require.Equal(t, http.StatusUnprocessableEntity, code, "%s", body)

	// /tmp is another file system than the root: a copy crosses, and a watch works there too.
	api.ok("POST", one+"/files/copy", map[string]any{"source": "/work/src", "destination": "/tmp/src"}, nil)
	watch = api.follow("GET", one+"/files/watch?path=/tmp", nil)
	watch.next(map[string]any{"type": "ready"})
	api.exec(sb.ID, "touch /tmp/here")
	watch.next(map[string]any{"type": "create", "path": "/tmp/here"})

	meters := api.follow("GET", one+"/metrics/stream?interval=1", nil)
	require.Positive(t, meters.next(map[string]any{"type": "sample"})["memory_bytes"])
	require.NotNil(t, meters.next(map[string]any{"type": "sample"})["cpu"])
	var history struct{ Items []struct{ Pids int } }
	require.Eventually(t, func() bool {
		api.ok("GET", one+"/metrics/history", nil, &history)
		return len(history.Items) > 0
	}, 20*time.Second, 200*time.Millisecond)
	require.Positive(t, history.Items[0].Pids)

	var patched sandboxJSON
	api.ok("PATCH", one, map[string]any{"label": "renamed"}, &patched)
	require.Equal(t, "renamed", patched.Label)
	api.ok("DELETE", one, nil, nil)
	events.next(map[string]any{"type": "sandbox.status", "sandbox_id": sb.ID, "status": "gone"})
	for _, name := range []string{"sandgate.db", "sandgate.db-wal", "server.log"} {
		text, err := os.ReadFile(host.data + "/" + name)
		if err == nil {
			require.NotContains(t, string(text), "hunter2", name)
		}
	}
	require.Contains(t, host.run("audit", "verify"), "the chain holds")
}
