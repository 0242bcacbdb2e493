package api

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/sandbox/term"
)

const ptysPath = "/v1/sandboxes/" + knownID + "/ptys"

func TestTerminals(t *testing.T) {
	b := start(t)
	got := b.do("POST", ptysPath, `{"cols":80,"rows":24,"cwd":"/","env":{"A":"b"},"user":"root"}`)
	assert.Equal(t, 200, got.status)
	assert.JSONEq(t, `{"id":"`+knownPTY+`","name":"","status":"running","cols":80,"rows":24,"driver":"robot","viewers":[],"oldest":0,"next":0,
		"created_at":"0001-01-01T00:00:00.000000Z","exit_code":null,"signal":null}`, got.body)
	assert.Equal(t, 200, b.do("POST", ptysPath, "").status)
	assert.True(t, strings.HasPrefix(b.do("GET", ptysPath, "").body, "["))
	assert.Equal(t, 200, b.do("GET", ptysPath+"/"+knownPTY, "").status)
	assert.Contains(t, b.do("PATCH", ptysPath+"/"+knownPTY, `{"name":"build"}`).body, `"name":"build"`)
	assertError(t, b.do("PATCH", ptysPath+"/"+knownPTY, `{}`), "invalid", "name")
	assertError(t, b.do("PATCH", ptysPath+"/"+knownPTY, `{"name":7}`), "invalid", "name")
	assert.JSONEq(t, `{"success":true}`, b.do("DELETE", ptysPath+"/"+knownPTY, "").body)
	for _, method := range []string{"GET", "DELETE"} {
		assert.Equal(t, 404, b.do(method, ptysPath+"/ptyx", "").status)
	}
	for body, field := range map[string]string{`{"cols":1}`: "cols", `{"cols":501}`: "cols", `{"rows":0}`: "rows", `{"rows":"24"}`: "rows", `{"cwd":"x"}`: "cwd"} {
		assertError(t, b.do("POST", ptysPath, body), "invalid", field)
	}
}

func (b *bench) dial(path string, header ...string) (*websocket.Conn, *http.Response, error) {
	h := http.Header{"X-Api-Key": {fullKey}}
	for i := 0; i+1 < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return websocket.Dial(b.t.Context(), b.url+path, &websocket.DialOptions{HTTPHeader: h, Subprotocols: []string{term.Subprotocol}})
}

// closeCode reads to the end and gives the close code.
func closeCode(ctx context.Context, c *websocket.Conn) int {
	for {
		if _, _, err := c.Read(ctx); err != nil {
			return int(websocket.CloseStatus(err))
		}
	}
}

func TestTerminalWebsocket(t *testing.T) {
	b := start(t)
	ws := ptysPath + "/" + knownPTY + "/ws"
	c, _, err := b.dial(ws + "?since=42")
	require.NoError(t, err)
	assert.Equal(t, term.Subprotocol, c.Subprotocol())
	kind, p, err := c.Read(t.Context())
	require.NoError(t, err)
	assert.Equal(t, websocket.MessageBinary, kind)
	assert.Equal(t, "hi", string(p[9:]))
	assert.Equal(t, 1000, closeCode(t.Context(), c))
	<-b.f.viewed
	assert.EqualValues(t, 42, b.f.since)

	c, _, err = b.dial(ws)
	require.NoError(t, err)
	assert.Equal(t, 1000, closeCode(t.Context(), c))
	<-b.f.viewed
	assert.EqualValues(t, -1, b.f.since, "without an offset a snapshot is asked for")
}

func TestTerminalWebsocketRefusals(t *testing.T) {
	b := start(t)
	b.f.keys["none"] = auth.Permissions{auth.AuditRead}
	ws := ptysPath + "/" + knownPTY + "/ws"
	for _, row := range []struct {
		name, path string
		header     []string
		code       int
	}{
		{"foreign sandbox", strings.Replace(ws, knownID, otherID, 1), nil, 4004},
		{"no sandbox's id", strings.Replace(ws, knownID, "sbx", 1), nil, 4004},
		{"no terminal's id", ptysPath + "/ptyx/ws", nil, 4004},
		{"bad offset", ws + "?since=x", nil, 4004},
		{"no permission", ws, []string{"X-Api-Key", "none"}, 4003},
		{"wrong key", ws, []string{"X-Api-Key", "sg_wrong"}, 4008},
		{"cookie and key", ws, []string{"Cookie", "__Host-sandgate=x"}, 4003},
	} {
		c, _, err := b.dial(row.path, row.header...)
		if assert.NoError(t, err, row.name) {
			assert.Equal(t, row.code, closeCode(t.Context(), c), row.name)
		}
	}
	for _, row := range []struct {
		name   string
		header []string
		status int
	}{
		{"foreign origin", []string{"Origin", "https://evil.test"}, 403},
		{"null origin", []string{"Origin", "null"}, 403},
		{"foreign host", []string{"Host", "evil.test"}, 403},
	} {
		opts := &websocket.DialOptions{HTTPHeader: http.Header{"X-Api-Key": {fullKey}}}
		if row.header[0] == "Host" {
			opts.Host = row.header[1]
		} else {
			opts.HTTPHeader.Set(row.header[0], row.header[1])
		}
		_, resp, err := websocket.Dial(t.Context(), b.url+ws, opts)
		assert.Error(t, err, row.name)
		if assert.NotNil(t, resp, row.name) {
			assert.Equal(t, row.status, resp.StatusCode, row.name)
		}
	}
	assert.Equal(t, 401, b.do("GET", ws, "", "X-API-Key", "sg_wrong").status, "what is no websocket gets a status")
	got := b.do("GET", ws, "")
	assert.Equal(t, http.StatusUpgradeRequired, got.status)
}
