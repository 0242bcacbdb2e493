package handlers_test

import (
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
)

// The page says since when a sandbox is unused, why it lives, and what happens when; in its last minute it asks.
func TestLifeOnThePage(t *testing.T) {
	f := furnished()
	h := server(t, f)
	b := &f.sandboxes[0]
	require.Equal(t, sbRunning, string(b.ID))
	b.Status, b.Life = sandbox.Running, sandbox.Life{IdleTimeout: 15 * time.Minute, MaxLifetime: 24 * time.Hour, KeepWhileBusy: true}
	b.ExpiresAt = now.Add(20 * time.Hour)
	b.Idle = workspace.Idle{Since: now.Add(-4 * time.Minute), Action: workspace.ActionKill, At: now.Add(11 * time.Minute)}
	at := page + "/" + string(b.ID)
	side := text(one(t, tree(t, ask(h, "GET", at, nil)), "#side"))
	require.Contains(t, side, "Unused since")
	require.Contains(t, side, "unless something uses it")
	require.Contains(t, side, "in any case")
	require.Empty(t, all(tree(t, ask(h, "GET", at, nil)), "#warning form"))
	require.Contains(t, text(one(t, tree(t, ask(h, "GET", page, nil)), "#row-"+string(b.ID))), "ends ")

	b.Idle.Because, b.Idle.At = []string{"command", "cpu"}, time.Time{}
	side = text(one(t, tree(t, ask(h, "GET", at, nil)), "#side"))
	require.Contains(t, side, "Alive: a command runs, something inside computes.")
	require.Contains(t, side, "nothing has used it for 15 min")

	b.Idle.Because, b.Idle.At = nil, now.Add(40*time.Second)
	n := tree(t, ask(h, "GET", at, nil))
	require.Contains(t, text(one(t, n, "#warning")), "because nothing has used it")
	require.Equal(t, at+"/keepalive", attr(one(t, n, "#warning form"), "action"))
	w := ask(h, "POST", at+"/keepalive", url.Values{})
	require.Equal(t, 303, w.Code)
	require.Equal(t, []string{"keep " + string(b.ID)}, f.calls)

	b.ExpiresAt = now.Add(30 * time.Second)
	n = tree(t, ask(h, "GET", at, nil))
	require.Contains(t, text(one(t, n, "#warning")), "longest life is over")
	require.Empty(t, all(n, "#warning form"), "no button helps")
}

func TestAccountSessionsAndPassword(t *testing.T) {
	f := furnished()
	h := server(t, f)
	n := tree(t, ask(h, "GET", "/account", nil))
	require.Contains(t, text(one(t, n, "#sessions")), "Chrome on Linux")
	require.Contains(t, text(one(t, n, "#sessions")), "this one")
	require.Equal(t, 303, ask(h, "POST", "/account/sessions/other/end", url.Values{}).Code)
	require.Equal(t, 303, ask(h, "POST", "/account/sessions/end", url.Values{}).Code)
	require.Equal(t, 303, ask(h, "POST", "/account/password", url.Values{"current": {"a"}, "password": {"b"}}).Code)
	require.Equal(t, []string{"end other", "end others", "password a b"}, f.calls)
	f.fail = fault.Field("current", "is not your present password")
	w := ask(h, "POST", "/account/password", url.Values{"current": {"a"}, "password": {"b"}})
	require.Equal(t, 422, w.Code)
	require.Contains(t, text(one(t, tree(t, w), "#current-wrong")), "not your present")
}
