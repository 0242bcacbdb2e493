package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// memoryMB is the resident memory of the server.
func (s *server) memoryMB() int {
	s.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	require.NoError(s.t, err)
	_, rest, found := strings.Cut(string(text), "VmRSS:")
	require.True(s.t, found)
	kb, err := strconv.Atoi(strings.Fields(rest)[0])
	require.NoError(s.t, err)
	return kb >> 10
}

// Ten gigabytes of output are cut at the limit, and said to be; the server does not hold them.
func TestEndlessOutputIsCut(t *testing.T) {
	host := newInstallation(t)
	s := host.serve()
	host.person("ann@example.org", "alpha")
	api := s.rest(host.key("alpha", "sandboxes:run"))
	id := api.create("endless")
	api.exec(id, "true")
	before := s.memoryMB()
	var e executionJSON
	api.ok("POST", "/v1/sandboxes/"+id+"/commands", map[string]any{
		"command": "head -c 64M /dev/zero | tr '\\0' x >/tmp/x; for i in {1..160}; do cat /tmp/x; done; echo done >&2; exit 3", "timeout": 110,
	}, &e)
	require.True(t, e.Truncated)
	require.Len(t, e.Stdout, 16<<20)
	require.Equal(t, "done\n", e.Stderr, "it went on to its end")
	require.Equal(t, 3, e.ExitCode)
	require.Less(t, s.memoryMB()-before, 160, "16 MiB, and what it takes to write them as JSON")

	// One that is never read to its end, and never ends, is stopped by its time.
	api.ok("POST", "/v1/sandboxes/"+id+"/commands", map[string]any{"command": "yes", "timeout": 2}, &e)
	require.True(t, e.TimedOut && e.Truncated, "%v %v", e.TimedOut, e.Truncated)
	require.Equal(t, 124, e.ExitCode)
	require.Equal(t, "still here\n", api.exec(id, "echo still here").Stdout)
}

// A request that is nothing but headers, and other things that no client sends, get an answer or an end, soon.
func TestAbsurdRequests(t *testing.T) {
	host := newInstallation(t)
	s := host.serve()
	host.person("ann@example.org", "alpha")
	key := host.key("alpha", "sandboxes:run")
	ask := func(raw string) string {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
		go func() { _, _ = conn.Write([]byte(raw)) }() // the other end may have had enough before it has all
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil {
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
		}
		return line
	}
	head := "Host: " + strings.TrimPrefix(s.url, "http://") + "\r\nX-API-Key: " + key + "\r\n"
	var many strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&many, "X-Header-%d: %d\r\n", i, i)
	}
	require.Contains(t, ask("GET /v1/sandboxes HTTP/1.1\r\n"+head+many.String()+"\r\n"), " 431 ")
	require.Contains(t, ask("GET /v1/sandboxes?x="+strings.Repeat("x", 1<<20)+" HTTP/1.1\r\n"+head+"\r\n"), " 431 ")
	require.Contains(t, ask("GET /v1/sandboxes HTTP/1.1\r\n"+head+"X-API-Key: other\r\n\r\n"), " 400 ")
	require.Contains(t, ask("POST /v1/sandboxes HTTP/1.1\r\n"+head+"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nzzz"), " 400 ")
	require.Contains(t, ask("POST /v1/sandboxes HTTP/1.1\r\n"+head+"Content-Length: -1\r\n\r\n"), " 400 ")
	require.Contains(t, ask("POST /v1/sandboxes HTTP/1.1\r\n"+head+"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n"), " 400 ")
	// Less than a byte a second: given up after a while, with an answer.
	begin := time.Now()
	require.Contains(t, ask("POST /v1/sandboxes HTTP/1.1\r\n"+head+"Content-Length: 100\r\n\r\n{"), " 400 ")
	require.Less(t, time.Since(begin), 25*time.Second)

	api := s.rest(key)
	code, body := api.do("GET", "/v1/sandboxes", nil)
	require.Equal(t, 200, code)
	require.True(t, json.Valid(body))
	require.JSONEq(t, "[]", string(body), "nothing of that made a sandbox")
}
