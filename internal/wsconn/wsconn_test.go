package wsconn_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"sandgate/internal/httpstatus"
	"sandgate/internal/webhost"
	"sandgate/internal/wsconn"
	"sandgate/sandbox/term"
)

// serve answers upgrades with the rules and echoes one message, then closes with 4003.
func serve(t *testing.T, cookie bool) *httptest.Server {
	t.Helper()
	srv := httptest.NewUnstartedServer(nil)
	names, err := webhost.New(webhost.Options{Listen: srv.Listener.Addr().String()})
	require.NoError(t, err)
	srv.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, answered, err := wsconn.Accept(w, r, wsconn.Options{Names: names, Subprotocol: term.Subprotocol, Cookie: cookie})
		if err != nil {
			if !answered {
				w.WriteHeader(httpstatus.OfError(err))
			}
			return
		}
		var conn term.Conn = c
		binary, p, err := conn.Read(r.Context())
		if err == nil {
			_ = conn.Write(r.Context(), binary, p)
		}
		_ = conn.Close(term.CloseForbidden, strings.Repeat("é", 100))
	})
	srv.Start()
	t.Cleanup(srv.Close)
	return srv
}

func TestOriginIsJudgedBeforeTheUpgrade(t *testing.T) {
	for _, c := range []struct {
		name   string
		cookie bool
		origin string
		want   int
	}{
		{"cookie, own origin", true, "own", 101},
		{"cookie, none", true, "", 403},
		{"cookie, foreign", true, "http://evil.example", 403},
		{"cookie, null", true, "null", 403},
		{"key, none", false, "", 101},
		{"key, foreign", false, "http://evil.example", 403},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv := serve(t, c.cookie)
			h := http.Header{}
			if c.origin == "own" {
				h.Set("Origin", srv.URL)
			} else if c.origin != "" {
				h.Set("Origin", c.origin)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			ws, resp, err := websocket.Dial(ctx, srv.URL, &websocket.DialOptions{HTTPHeader: h})
			require.NotNil(t, resp)
			require.Equal(t, c.want, resp.StatusCode)
			if err == nil {
				_ = ws.CloseNow()
			}
		})
	}
}

func TestMessagesAndCloseCode(t *testing.T) {
	srv := serve(t, false)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, srv.URL, &websocket.DialOptions{Subprotocols: []string{term.Subprotocol}})
	require.NoError(t, err)
	require.Equal(t, term.Subprotocol, ws.Subprotocol())
	big := make([]byte, 1<<20+1)
	ws.SetReadLimit(2 << 20)
	require.NoError(t, ws.Write(ctx, websocket.MessageBinary, big))
	typ, p, err := ws.Read(ctx)
	require.NoError(t, err)
	require.Equal(t, websocket.MessageBinary, typ)
	require.Len(t, p, len(big))
	_, _, err = ws.Read(ctx)
	require.Equal(t, websocket.StatusCode(4003), websocket.CloseStatus(err))
}

func TestTooLargeMessageEndsTheConnection(t *testing.T) {
	srv := serve(t, false)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, srv.URL, nil)
	require.NoError(t, err)
	_ = ws.Write(ctx, websocket.MessageBinary, make([]byte, 1<<20+4096))
	_, _, err = ws.Read(ctx)
	require.Error(t, err)
}
