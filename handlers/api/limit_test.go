package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/term"
)

func TestRateOfAKey(t *testing.T) {
	l := NewLimits(2, 0)
	at := time.Unix(1000, 0)
	l.now = func() time.Time { return at }
	for range 4 {
		require.NoError(t, l.Take("a"))
	}
	err := l.Take("a")
	require.Equal(t, fault.SlowDown, fault.KindOf(err))
	_, body := describe(err)
	require.Equal(t, 1, body["retry_after"])
	require.NoError(t, l.Take("b"), "another key notices nothing")
	at = at.Add(500 * time.Millisecond)
	require.NoError(t, l.Take("a"), "refused calls cost nothing")
	require.Error(t, l.Take("a"))
}

func TestLimitsAreBounded(t *testing.T) {
	l := NewLimits(1, 5)
	leave, err := l.Enter("busy", true)
	require.NoError(t, err)
	for i := range maxLimited + 100 {
		require.NoError(t, l.Take(fmt.Sprint(i)))
	}
	require.Len(t, l.byKey, maxLimited)
	require.Equal(t, maxLimited, l.recent.Len())
	require.Equal(t, 1, l.byKey["busy"].Value.(*allowance).open, "what has a call open is not forgotten")
	leave()
	require.Zero(t, l.byKey["busy"].Value.(*allowance).open)
}

func TestSlowDownOverHTTP(t *testing.T) {
	b := start(t, func(o *Options) { o.Limits = NewLimits(0.5, 0) })
	require.Equal(t, 200, b.do("GET", "/v1/nodes", "").status)
	a := b.do("GET", "/v1/nodes", "")
	require.Equal(t, 429, a.status)
	require.Contains(t, a.body, `"slow_down"`)
	require.Equal(t, "2", a.header.Get("Retry-After"))
	require.Equal(t, 429, b.do("GET", "/v1/no/such/call", "").status)
	require.Equal(t, 200, b.do("GET", "/v1/docs", "", "X-API-Key", "").status)
	conn, _, err := b.dial(fill(socketPath))
	require.NoError(t, err)
	require.Equal(t, term.CloseTooSlow, closeCode(t.Context(), conn))
}

func TestOpenCallsOfAKey(t *testing.T) {
	b := start(t, func(o *Options) { o.Limits = NewLimits(0, 2) })
	entered, end := make(chan struct{}), make(chan struct{})
	b.f.run = func(context.Context, agent.CommandSpec, agent.Output) (agent.Exit, error) {
		entered <- struct{}{}
		<-end
		return agent.Exit{}, nil
	}
	answers := make(chan int, 2)
	for range 2 {
		go func() { answers <- b.do("POST", fill("/v1/sandboxes/:id/commands"), `{"command":"true"}`).status }()
		<-entered
	}
	a := b.do("POST", fill("/v1/sandboxes/:id/commands"), `{"command":"true"}`)
	require.Equal(t, 409, a.status)
	require.Contains(t, a.body, `"quota_exceeded"`)
	a = b.do("GET", "/v1/sandboxes", "")
	require.Equal(t, 429, a.status)
	require.Equal(t, "1", a.header.Get("Retry-After"))
	conn, _, err := b.dial(fill(socketPath))
	require.NoError(t, err)
	require.Equal(t, term.CloseTooSlow, closeCode(t.Context(), conn))
	close(end)
	require.Equal(t, 200, <-answers)
	require.Equal(t, 200, <-answers)
	require.Eventually(t, func() bool { return b.do("GET", "/v1/sandboxes", "").status == 200 }, 60*time.Second, 10*time.Millisecond)
}

// slowly sends the head of a request and then a piece of body now and then; it gives the status line, and how long it took.
func slowly(t *testing.T, b *bench, head, piece string, every time.Duration, pieces int) (string, time.Duration) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	begin := time.Now()
	_, err = fmt.Fprintf(conn, "%s\r\nHost: x\r\nX-API-Key: %s\r\n\r\n", head, fullKey)
	require.NoError(t, err)
	status := make(chan string, 1)
	go func() {
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		line, _ := bufio.NewReader(conn).ReadString('\n')
		status <- line
	}()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for range pieces {
		select {
		case line := <-status:
			return line, time.Since(begin)
		case <-tick.C:
			_, _ = conn.Write([]byte(piece)) // the other end may be gone: the status tells
		}
	}
	return <-status, time.Since(begin)
}

func TestSlowBodiesAreCutOff(t *testing.T) {
	b := start(t, func(o *Options) { o.BodyPatience = 300 * time.Millisecond })
	b.f.keys[fullKey] = auth.AllPermissions
	files := fill("/v1/sandboxes/:id/files")
	const forever = 1 << 20

	line, took := slowly(t, b, "POST "+files+" HTTP/1.1\r\nContent-Length: 1000", " ", 50*time.Millisecond, forever)
	require.Contains(t, line, " 400 ", "a body that trickles")
	require.Less(t, took, 3*time.Second)
	line, took = slowly(t, b, "POST "+files+" HTTP/1.1\r\nTransfer-Encoding: chunked", "1\r\n \r\n", 50*time.Millisecond, forever)
	require.Contains(t, line, " 400 ", "chunks for ever")
	require.Less(t, took, 3*time.Second)
	line, took = slowly(t, b, "PUT "+files+"/raw?path=/work/a HTTP/1.1\r\nContent-Length: 1000", "", time.Hour, 0)
	require.NotContains(t, line, " 200 ", "an upload that brings nothing")
	require.Less(t, took, 3*time.Second)

	line, _ = slowly(t, b, "PUT "+files+"/raw?path=/work/a HTTP/1.1\r\nContent-Length: 12", "x", 100*time.Millisecond, 12)
	require.Contains(t, line, " 200 ", "an upload may take its time, as long as something comes")
	require.Equal(t, "xxxxxxxxxxxx", string(b.f.files["/work/a"]))

	// A call that takes its time after its body is not cut off by what was the body's.
	b.f.run = func(ctx context.Context, _ agent.CommandSpec, _ agent.Output) (agent.Exit, error) {
		select {
		case <-ctx.Done():
			return agent.Exit{Code: 9}, nil
		case <-time.After(900 * time.Millisecond):
			return agent.Exit{}, nil
		}
	}
	a := b.do("POST", fill("/v1/sandboxes/:id/commands"), `{"command":"true"}`)
	require.Contains(t, a.body, `"exit_code":0`)
}

// Who is refused before the body is read does not hold the connection with it.
func TestUnreadBodiesAreCutOff(t *testing.T) {
	b := start(t, func(o *Options) { o.BodyPatience = 200 * time.Millisecond })
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	_, err = fmt.Fprintf(conn, "POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: sg_wrong\r\nContent-Length: 1000\r\n\r\n")
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(5*time.Second)))
	in := bufio.NewReader(conn)
	line, err := in.ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, " 401 ")
	for err == nil {
		_, err = in.ReadByte()
	}
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	var timeout net.Error
	require.False(t, errors.As(err, &timeout) && timeout.Timeout(), "the server closed it: %v", err)
}

func TestAdministration(t *testing.T) {
	b := start(t)
	b.f.keys[fullKey] = auth.Permissions{auth.SandboxesRun, auth.KeysManage, auth.MembersManage}
	require.JSONEq(t, `[{"id":"ws1","name":"One","description":null}]`, b.do("GET", "/v1/admin/groups", "").body)
	a := b.do("POST", "/v1/admin/groups/ws1/api-keys", `{"name":"k","tenant_admin":false}`)
	require.Equal(t, 200, a.status)
	require.Contains(t, a.body, `"permissions":["sandboxes:run","members:manage"]`, "all it has, less what no service account has")
	require.Contains(t, a.body, fullKey)
	require.Equal(t, 404, b.do("POST", "/v1/admin/groups/ws2/api-keys", `{"name":"k"}`).status)
	require.Equal(t, 422, b.do("POST", "/v1/admin/groups/ws1/api-keys", `{"name":"k","tenant_admin":true}`).status)
	require.Equal(t, 422, b.do("POST", "/v1/admin/system-keys", `{"name":"k","permissions":["flows:run"]}`).status)
	require.Equal(t, 422, b.do("POST", "/v1/admin/system-keys", `{"name":"k","permissions":["sandboxes:run","sandboxes:run"]}`).status)
	a = b.do("GET", "/v1/admin/system-keys", "")
	require.Contains(t, a.body, `"value":"sg_abcdefgh_********"`)
	require.Contains(t, b.do("GET", "/v1/admin/users", "").body, `"tenant_admin":true,"is_active":true,"role":"admin"`)
	require.Contains(t, b.do("GET", "/v1/admin/roles", "").body, `{"id":"viewer","name":"viewer","description":"built in","permissions":{"sandboxes:read":true}}`)
	for _, refused := range []string{"POST /v1/admin/groups", "DELETE /v1/admin/groups/ws1", "POST /v1/admin/roles", "DELETE /v1/admin/roles/viewer"} {
		method, path, _ := strings.Cut(refused, " ")
		body := ""
		if method == "POST" {
			body = `{"name":"x"}`
		}
		require.Equal(t, 403, b.do(method, path, body).status, refused)
	}
	require.Equal(t, 404, b.do("DELETE", "/v1/admin/roles/emperor", "").status)
	require.Equal(t, 404, b.do("DELETE", "/v1/admin/groups/ws2", "").status)
}
