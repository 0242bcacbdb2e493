package api

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sandgate/sandbox/term"
)

// dialBare connects without a key.
func (b *bench) dialBare(path string, header http.Header) (*websocket.Conn, *http.Response, error) {
	return websocket.Dial(b.t.Context(), b.url+path, &websocket.DialOptions{HTTPHeader: header, Subprotocols: []string{term.Subprotocol}})
}

func (b *bench) ticket(t *testing.T) string {
	t.Helper()
	got := b.do("POST", ptysPath+"/"+knownPTY+"/ticket", "")
	require.Equal(t, http.StatusOK, got.status, got.body)
	var body ticketBody
	require.NoError(t, json.Unmarshal([]byte(got.body), &body))
	require.Regexp(t, "^tk[a-z0-9]{26}$", body.Ticket)
	return body.Ticket
}

func TestATicketOpensOneTerminalOnce(t *testing.T) {
	b := start(t)
	ws := ptysPath + "/" + knownPTY + "/ws"
	codeOf := func(path string) int {
		t.Helper()
		c, _, err := b.dialBare(path, nil)
		require.NoError(t, err)
		return closeCode(t.Context(), c)
	}
	name := b.ticket(t)
	assert.Equal(t, 1000, codeOf(ws+"?since=7&ticket="+name))
	<-b.f.viewed
	assert.EqualValues(t, 7, b.f.since)
	assert.Equal(t, term.CloseExpired, codeOf(ws+"?ticket="+name), "a second time")
	assert.Equal(t, term.CloseExpired, codeOf(ws+"?ticket="))
	assert.Equal(t, term.CloseExpired, codeOf(ws+"?ticket=tkaaaaaaaaaaaaaaaaaaaaaaaaaa"))

	// For another terminal it is worth nothing, and spent.
	name = b.ticket(t)
	assert.Equal(t, term.CloseExpired, codeOf(ptysPath+"/ptybbbbbbbbbbbbbbbbbbbb/ws?ticket="+name))
	assert.Equal(t, term.CloseExpired, codeOf(ws+"?ticket="+name))
	name = b.ticket(t)
	assert.Equal(t, term.CloseExpired, codeOf("/v1/sandboxes/"+otherID+"/ptys/"+knownPTY+"/ws?ticket="+name))

	// It is for the websocket alone, and does not stand beside a key.
	name = b.ticket(t)
	assert.Equal(t, http.StatusUnauthorized, b.do("GET", ptysPath+"?ticket="+name, "", "X-API-Key", "").status)
	c, _, err := b.dial(ws + "?ticket=" + name)
	require.NoError(t, err)
	assert.NotEqual(t, 1000, closeCode(t.Context(), c))

	// The key is judged when the ticket is used, and Origin and Host as ever.
	_, resp, err := b.dialBare(ws+"?ticket="+name, http.Header{"Origin": {"https://evil.example"}})
	require.Error(t, err)
	assert.Equal(t, http.StatusForbidden, resp.StatusCode)
	name = b.ticket(t)
	kept := b.f.keys[fullKey]
	delete(b.f.keys, fullKey)
	assert.Equal(t, term.CloseExpired, codeOf(ws+"?ticket="+name))
	b.f.keys[fullKey] = kept
	assert.Equal(t, 404, b.do("POST", ptysPath+"/ptyx/ticket", "").status)
}

func TestTicketsExpireAndAreBounded(t *testing.T) {
	k := newTickets()
	now := time.Unix(1e9, 0)
	k.now = func() time.Time { return now }
	name, until, err := k.issue("secret", knownID, knownPTY)
	require.NoError(t, err)
	require.LessOrEqual(t, until.Sub(now), 30*time.Second)
	now = until
	_, err = k.take(name, knownID, knownPTY)
	require.Error(t, err)
	for range maxTickets {
		_, _, err = k.issue("secret", knownID, knownPTY)
		require.NoError(t, err)
	}
	_, _, err = k.issue("secret", knownID, knownPTY)
	require.Error(t, err)
	now = now.Add(ticketLife)
	name, _, err = k.issue("secret", knownID, knownPTY)
	require.NoError(t, err)
	require.Len(t, k.open, 1, "what nobody used is forgotten")
	secret, err := k.take(name, knownID, knownPTY)
	require.NoError(t, err)
	require.Equal(t, "secret", secret)
}

func TestTicketsAreNotLogged(t *testing.T) {
	b := start(t)
	name := b.ticket(t)
	c, _, err := b.dialBare(ptysPath+"/"+knownPTY+"/ws?ticket="+name, nil)
	require.NoError(t, err)
	closeCode(t.Context(), c)
	c, _, err = b.dialBare(ptysPath+"/"+knownPTY+"/ws?ticket="+name, nil)
	require.NoError(t, err)
	closeCode(t.Context(), c)
	assert.NotContains(t, b.log.String(), name)
}
