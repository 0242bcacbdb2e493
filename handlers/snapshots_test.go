package handlers_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const aSnapshot = "snapaaaaaaaaaaaaaaaaaaaa"

func TestSnapshotsAreTakenListedStartedFromAndDeleted(t *testing.T) {
	f := furnished()
	h := server(t, f)
	at, list := page+"/"+sbRunning, strings.TrimSuffix(page, "/sandboxes")+"/snapshots"
	body := ask(h, "GET", at, nil).Body.String()
	require.Contains(t, body, at+"/snapshot\"")
	require.Contains(t, body, at+"/fork\"")
	require.NotContains(t, ask(h, "GET", at, nil, "who", "viewer").Body.String(), at+"/fork", "who may not run makes no more of it")

	w := ask(h, "POST", at+"/snapshot", url.Values{"name": {""}})
	require.Equal(t, 422, w.Code)
	require.Contains(t, w.Body.String(), "must not be empty")
	w = ask(h, "POST", at+"/snapshot", url.Values{"name": {"loaded"}})
	require.Equal(t, 303, w.Code)
	require.Equal(t, list+"?done=snapshot", w.Header().Get("Location"))
	require.Contains(t, f.called(), "snapshot "+sbRunning+" loaded")

	body = ask(h, "GET", list, nil).Body.String()
	require.Contains(t, body, "50 MB")
	require.Contains(t, body, list+"/"+aSnapshot+"/start")
	require.NotContains(t, body, hostile)
	require.Contains(t, ask(h, "GET", list+"/"+aSnapshot+"/start", nil).Body.String(), "Start from")
	require.Equal(t, 404, ask(h, "GET", list+"/snapbbbbbbbbbbbbbbbbbbbb/start", nil).Code)
	w = ask(h, "POST", list+"/"+aSnapshot+"/start", url.Values{"label": {"from it"}, "persistent": {"1"}, "idempotency_key": {"k"}})
	require.Equal(t, 303, w.Code)
	require.Equal(t, at, w.Header().Get("Location"))
	require.Equal(t, aSnapshot, f.created.SnapshotID)
	require.Equal(t, "from it", f.created.Label)
	require.True(t, f.created.Persistent)

	require.Contains(t, ask(h, "GET", list+"/"+aSnapshot+"/delete", nil).Body.String(), "brought back")
	w = ask(h, "POST", list+"/"+aSnapshot+"/delete", url.Values{})
	require.Equal(t, 303, w.Code)
	require.Contains(t, f.called(), "delete snapshot "+aSnapshot)

	require.Contains(t, ask(h, "GET", at+"/fork", nil).Body.String(), "Fork it")
	w = ask(h, "POST", at+"/fork", url.Values{})
	require.Equal(t, 303, w.Code)
	require.Contains(t, f.called(), "fork "+sbRunning)
}

func TestSnapshotListStream(t *testing.T) {
	f := furnished()
	srv := listening(t, f)
	list := strings.TrimSuffix(page, "/sandboxes") + "/snapshots"
	require.Equal(t, list+"/events", attr(one(t, tree(t, ask(server(t, f), "GET", list, nil)), "[sse-connect]"), "sse-connect"))
	events := follow(t, srv, list+"/events")
	require.Contains(t, next(t, events, "rows"), "keys and passwords")
	close(f.lost)
	require.Equal(t, "end: forbidden", next(t, events, "end"))
}
