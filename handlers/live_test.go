package handlers_test

import (
	"bufio"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"sandgate/handlers"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
	"sandgate/sandbox/term"
)

// listening starts a real server on a port of its own.
func listening(t *testing.T, f *fake) *httptest.Server {
	t.Helper()
	srv := httptest.NewUnstartedServer(nil)
	s, err := handlers.New(handlers.Options{
		Service: f, Sessions: fakeSessions{}, Images: fakeImages{state: "ready"}, Names: names(t, srv.Listener.Addr().String()),
		Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return now }, Tick: 10 * time.Millisecond,
	})
	require.NoError(t, err)
	srv.Config.Handler = s.Handler()
	srv.Start()
	t.Cleanup(srv.Close)
	return srv
}

// follow opens a live stream and gives its events as "name: first line of data".
func follow(t *testing.T, srv *httptest.Server, path string) <-chan string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, "GET", srv.URL+path, nil)
	require.NoError(t, err)
	r.AddCookie(&http.Cookie{Name: "who", Value: "ana"})
	resp, err := srv.Client().Do(r)
	require.NoError(t, err)
	t.Cleanup(func() { _ = resp.Body.Close() })
	require.Equal(t, 200, resp.StatusCode)
	require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	out := make(chan string, 100)
	go func() {
		defer close(out)
		scan := bufio.NewScanner(resp.Body)
		scan.Buffer(nil, 1<<20)
		name := ""
		for scan.Scan() {
			if n, ok := strings.CutPrefix(scan.Text(), "event: "); ok {
				name = n
			}
			if d, ok := strings.CutPrefix(scan.Text(), "data: "); ok && name != "" {
				out <- name + ": " + d
				name = ""
			}
		}
	}()
	return out
}

// next waits for an event that begins with want.
func next(t *testing.T, events <-chan string, want string) string {
	t.Helper()
	deadline := time.After(5 * time.Second)
	for {
		select {
		case e, ok := <-events:
			require.True(t, ok, "the stream ended before %q", want)
			if strings.HasPrefix(e, want) {
				return e
			}
		case <-deadline:
			require.Fail(t, "no event", want)
		}
	}
}

func TestListStream(t *testing.T) {
	f := furnished()
	events := follow(t, listening(t, f), page+"/events?q=new-one")
	require.Contains(t, next(t, events, "rows"), "Nothing matches")
	f.mu.Lock()
	f.sandboxes = append(f.sandboxes, workspace.Sandbox{Record: sandbox.Record{ID: "sbffffffffffffffffffff", Label: "new-one", Status: sandbox.Running}})
	f.mu.Unlock()
	f.changed <- workspace.Change{Kind: "sandbox"}
	require.Contains(t, next(t, events, "rows"), "new-one")
}

func TestNothingIsSentTwice(t *testing.T) {
	f := furnished()
	events := follow(t, listening(t, f), page+"/events")
	next(t, events, "rows")
	f.changed <- workspace.Change{Kind: "sandbox"}
	close(f.lost)
	require.Equal(t, "end: forbidden", next(t, events, ""), "no second, equal table before the end")
}

func TestStreamEndsWithTheRight(t *testing.T) {
	f := furnished()
	srv := listening(t, f)
	list, one := follow(t, srv, page+"/events"), follow(t, srv, page+"/"+sbRunning+"/events")
	next(t, list, "rows")
	next(t, one, "head")
	next(t, one, "ptys: []")
	close(f.lost)
	for _, events := range []<-chan string{list, one} {
		require.Equal(t, "end: forbidden", next(t, events, "end"))
		require.Eventually(t, func() bool { _, open := <-events; return !open }, 2*time.Second, time.Millisecond)
	}
}

func TestStreamTellsThatASandboxIsGone(t *testing.T) {
	f := furnished()
	events := follow(t, listening(t, f), page+"/"+sbRunning+"/events")
	next(t, events, "side")
	f.mu.Lock()
	f.sandboxes = nil
	f.mu.Unlock()
	require.Equal(t, "end: gone", next(t, events, "end"))
}

func TestStreamNeedsASession(t *testing.T) {
	h := server(t, furnished())
	require.Equal(t, 401, ask(h, "GET", page+"/events", nil, "who", "", "Accept", "text/event-stream").Code)
}

func TestTerminalSocket(t *testing.T) {
	f := furnished()
	srv := listening(t, f)
	dial := func(who, origin, path string) (*websocket.Conn, int) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		h := http.Header{"Cookie": {"who=" + who}}
		if origin != "" {
			h.Set("Origin", origin)
		}
		ws, resp, _ := websocket.Dial(ctx, srv.URL+path, &websocket.DialOptions{HTTPHeader: h, Subprotocols: []string{term.Subprotocol}})
		require.NotNil(t, resp)
		if ws != nil {
			t.Cleanup(func() { _ = ws.CloseNow() })
		}
		return ws, resp.StatusCode
	}
	at := page + "/" + sbRunning + "/ptys/ptyaaaaaaaaaaaaaaaaaaaa/ws"
	for _, origin := range []string{"", "null", "http://evil.example", srv.URL + ".evil.example", strings.Replace(srv.URL, "http", "https", 1)} {
		_, status := dial("ana", origin, at)
		require.Equal(t, 403, status, "origin %q is refused before the upgrade", origin)
	}
	ws, status := dial("ana", srv.URL, at)
	require.Equal(t, 101, status)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, p, err := ws.Read(ctx)
	require.NoError(t, err)
	require.Contains(t, string(p), "hello")
	for _, c := range []struct {
		who, path string
		code      websocket.StatusCode
	}{
		{"", at, 4008}, {"stranger", at, 4004}, {"ana", "/w/other/sandboxes/" + sbRunning + "/ptys/x/ws", 4004}, {"ana", page + "/nonsense/ptys/x/ws", 4004},
	} {
		ws, status = dial(c.who, srv.URL, c.path)
		require.Equal(t, 101, status, "a refusal is a close code, because browsers see nothing else")
		_, _, err = ws.Read(ctx)
		require.Equal(t, c.code, websocket.CloseStatus(err), "%+v", c)
	}
}

func TestTerminalsForTheScript(t *testing.T) {
	f := furnished()
	h := server(t, f)
	w := ask(h, "POST", page+"/"+sbRunning+"/ptys", nil, "Accept", "application/json", "Sec-Fetch-Site", "same-origin")
	require.Equal(t, 200, w.Code)
	require.Contains(t, w.Body.String(), `"cols":80`)
	require.Contains(t, ask(h, "GET", page+"/"+sbRunning+"/ptys", nil).Body.String(), `"name":"Terminal 1"`)
	require.Equal(t, 303, ask(h, "POST", page+"/"+sbRunning+"/ptys/pty1/close", map[string][]string{}).Code)
	require.Contains(t, f.called(), "close pty1")
}
