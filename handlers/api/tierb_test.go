package api

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
)

const onePath = "/v1/sandboxes/" + knownID

func TestSearch(t *testing.T) {
	b := start(t)
	b.f.files["/work"] = nil
	got := b.do("GET", at("/search", "/work")+"&name=*.py&content=a+b&limit=7&cursor=x", "")
	require.Equal(t, 200, got.status, got.body)
	assert.Equal(t, "*.py", b.f.query.Name)
	assert.Equal(t, "a b", string(b.f.query.Content))
	assert.Equal(t, 7, b.f.query.Limit)
	assert.Equal(t, "x", b.f.query.Cursor)
	var page struct {
		Entries []struct {
			Path, Text string
			Line       int
		}
		Cursor, Stopped string
		Partial         int
	}
	require.NoError(t, json.Unmarshal([]byte(got.body), &page))
	assert.Equal(t, "here", page.Entries[0].Text)
	assert.Equal(t, "/work", page.Entries[0].Path)
	assert.Equal(t, "limit", page.Stopped)
	require.Equal(t, 200, b.do("GET", at("/search", "/work")+"&content_b64=_w%3D%3D", "").status)
	assert.Equal(t, "\xff", string(b.f.query.Content))
	for q, field := range map[string]string{
		"":                                     "name",
		"name=a/b":                             "name",
		"name=[":                               "name",
		"name=%00":                             "name",
		"name=" + strings.Repeat("x", 256):     "name",
		"content=" + strings.Repeat("x", 4097): "content",
		"content=a&content_b64=YQ":             "content",
		"content_b64=!":                        "content_b64",
		"name=a&limit=0":                       "limit",
		"name=a&limit=1001":                    "limit",
		"name=a&cursor=" + strings.Repeat("x", 9000): "cursor",
	} {
		assertError(t, b.do("GET", at("/search", "/work")+"&"+q, ""), "invalid", field)
	}
	assertError(t, b.do("GET", at("/search", "work")+"&name=a", ""), "invalid", "path")
}

func TestWatchingFiles(t *testing.T) {
	b := start(t)
	got := b.do("GET", at("/watch", "/work")+"&recursive=true", "")
	require.Equal(t, 200, got.status)
	assert.Equal(t, "text/event-stream", got.header.Get("Content-Type"))
	events := eventsOf(t, got.body)
	require.Len(t, events, 4)
	assert.JSONEq(t, `{"type":"ready","path":"/work","directory":true}`, events[0])
	assert.JSONEq(t, `{"type":"rename","path":"/work/\ufffd","path_b64":"L3dvcmsv/w==","to":"/work/b"}`, events[1])
	assert.JSONEq(t, `{"type":"overflow"}`, events[2])
	assert.JSONEq(t, `{"type":"end"}`, events[3])
	assertError(t, b.do("GET", at("/watch", "/work")+"&recursive=maybe", ""), "invalid", "recursive")
	assertError(t, b.do("GET", at("/watch", "work"), ""), "invalid", "path")

	b.f.late = fault.New(fault.Forbidden, "Taken away.")
	events = eventsOf(t, b.do("GET", at("/watch", "/work"), "").body)
	assert.JSONEq(t, `{"type":"error","code":"forbidden","detail":"Taken away."}`, events[len(events)-1])
	b.f.err = fault.New(fault.NotFound, "There is nothing at this path.")
	assertError(t, b.do("GET", at("/watch", "/work"), ""), "not_found", "")
	b.f.err, b.f.panicky = nil, true
	assertError(t, b.do("GET", at("/watch", "/work"), ""), "internal", "")
}

func TestCopyChmodAndUnpack(t *testing.T) {
	b := start(t)
	got := b.do("POST", filesPath+"/copy", `{"source":"/a","destination":"/b"}`)
	require.Equal(t, 200, got.status, got.body)
	assert.Contains(t, got.body, `"path":"/b"`)
	assertError(t, b.do("POST", filesPath+"/copy", `{"source":"/a"}`), "invalid", "destination")
	assertError(t, b.do("POST", filesPath+"/copy", `{"source":"a","destination":"/b"}`), "invalid", "source")
	assertError(t, b.do("POST", filesPath+"/copy", `{"source":"/a","destination":"/b","overwrite":true}`), "invalid", "overwrite")

	got = b.do("POST", filesPath+"/chmod", `{"path":"/a","mode":"4755"}`)
	require.Equal(t, 200, got.status, got.body)
	assert.Contains(t, got.body, `"mode":"4755"`)
	for _, mode := range []string{`"+x"`, `"9"`, `"8888"`, `"07777"`, `420`, `""`, `null`, `"0o64"`} {
		assertError(t, b.do("POST", filesPath+"/chmod", `{"path":"/a","mode":`+mode+`}`), "invalid", "mode")
	}

	got = b.do("PUT", at("/archive", "/work"), "bytes", "Content-Type", "application/x-tar")
	require.Equal(t, 200, got.status, got.body)
	assert.JSONEq(t, `{"path":"/work","files":5,"directories":0,"links":0,"bytes":5}`, got.body)
	require.Equal(t, 200, b.do("PUT", at("/archive", "/work")+"&format=zip", "x").status)
	assert.Equal(t, []string{"UnpackFiles tar", "UnpackFiles zip"}, b.f.called()[len(b.f.called())-2:])
	assertError(t, b.do("PUT", at("/archive", "/work")+"&format=rar", "x"), "invalid", "format")
	assertError(t, b.do("PUT", at("/archive", "work"), "x"), "invalid", "path")
	assertError(t, b.do("PUT", at("/archive", "/work"), "x", "Content-Encoding", "gzip"), "bad_request", "")
	assertError(t, b.do("PUT", at("/archive", "/work"), "x", "Approval-Id", "apx"), "invalid", "Approval-Id")
}

func TestMetrics(t *testing.T) {
	b := start(t)
	got := b.do("GET", onePath+"/metrics", "")
	require.Equal(t, 200, got.status, got.body)
	assert.JSONEq(t, `{"at":"1970-01-01T00:01:40.000000Z","cpu_seconds":1,"cpu":null,"memory_bytes":7,"pids":3,"disk_bytes":null}`, got.body)
	got = b.do("GET", onePath+"/metrics/history?since=2026-01-02T03:04:05Z", "")
	assert.JSONEq(t, `{"items":[{"at":"2026-01-02T03:04:05.000000Z","cpu_seconds":2,"cpu":0.25,"memory_bytes":7,"pids":3,"disk_bytes":9}],"grain":10}`, got.body)
	assertError(t, b.do("GET", onePath+"/metrics/history?since=yesterday", ""), "invalid", "since")
	for _, q := range []string{"0", "61", "x", "1.5"} {
		assertError(t, b.do("GET", onePath+"/metrics/stream?interval="+q, ""), "invalid", "interval")
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "GET", b.url+onePath+"/metrics/stream?interval=60", nil)
	require.NoError(t, err)
	r.Header.Set("X-API-Key", fullKey)
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	p := make([]byte, 4096)
	n, err := resp.Body.Read(p)
	require.NoError(t, err)
	assert.Contains(t, string(p[:n]), `data: {"type":"sample","at":`)
	b.f.revoke()
	rest, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.Contains(t, string(rest), `"code":"forbidden"`)
}

func TestEventsOfSandboxes(t *testing.T) {
	b := start(t)
	for _, path := range []string{onePath + "/events", "/v1/events"} {
		events := eventsOf(t, b.do("GET", path, "").body)
		require.Len(t, events, 4)
		assert.Contains(t, events[0], `"type":"ready"`)
		assert.Contains(t, events[1], `"status":"gone","reason":"killed"`)
		assert.Contains(t, events[2], `"actor":"robot","target":"true","outcome":"ok","detail":"exit 0"`)
		assert.JSONEq(t, `{"type":"end"}`, events[3])
	}
	assertError(t, b.do("GET", "/v1/sandboxes/"+otherID+"/events", ""), "not_found", "")
}

func TestKeepAlive(t *testing.T) {
	b := start(t)
	require.Equal(t, 200, b.do("POST", onePath+"/keepalive", `{"timeout":90}`).status)
	assert.Equal(t, 90*time.Second, b.f.kept)
	require.Equal(t, 200, b.do("POST", onePath+"/keepalive", `{}`).status)
	assert.Zero(t, b.f.kept)
	for body, field := range map[string]string{
		`{"timeout":0}`: "timeout", `{"timeout":-1}`: "timeout", `{"timeout":1e3}`: "timeout", `{"timeout":"9"}`: "timeout",
		`{"timeout":2592001}`: "timeout", `{"time":1}`: "time", `[]`: "body",
	} {
		assertError(t, b.do("POST", onePath+"/keepalive", body), "invalid", field)
	}
}

func TestPatch(t *testing.T) {
	b := start(t)
	got := b.do("PATCH", onePath, `{"label":"two","metadata":{"a":"b"}}`)
	require.Equal(t, 200, got.status, got.body)
	assert.Contains(t, got.body, `"label":"two"`)
	assert.Equal(t, map[string]string{"a": "b"}, b.f.patch.Metadata)
	require.Equal(t, 200, b.do("PATCH", onePath, `{"label":null}`).status)
	assert.Empty(t, *b.f.patch.Label)
	assert.Nil(t, b.f.patch.Metadata)
	require.Equal(t, 200, b.do("PATCH", onePath, `{"metadata":null}`).status)
	assert.Nil(t, b.f.patch.Label)
	assert.Equal(t, map[string]string{}, b.f.patch.Metadata)
	require.Equal(t, 200, b.do("PATCH", onePath, `{"network":{"mode":"allow-list","allow":["a.example"]}}`).status)
	assert.Equal(t, &sandbox.NetworkPolicy{Mode: sandbox.NetworkAllowList, Allow: []string{"a.example"}}, b.f.patch.Network)
	assert.Nil(t, b.f.patch.Label)
	require.Equal(t, 200, b.do("PATCH", onePath, `{"resources":{"memory_mb":2048}}`).status)
	assert.Equal(t, &sandbox.Resources{MemoryMB: 2048}, b.f.patch.Resources)
	require.Equal(t, 200, b.do("PATCH", onePath, `{"idle_timeout":60,"max_lifetime":null,"keep_while_busy":false}`).status)
	assert.Equal(t, time.Minute, *b.f.patch.IdleTimeout)
	assert.Nil(t, b.f.patch.MaxLifetime)
	assert.False(t, *b.f.patch.KeepWhileBusy)
	for body, field := range map[string]string{
		`{}`:                          "body",
		``:                            "body",
		`{"label":7}`:                 "label",
		`{"label":"a\u0000"}`:         "label",
		`{"metadata":{"a":1}}`:        "metadata",
		`{"metadata":[]}`:             "metadata",
		`{"idle_timeout":0}`:          "idle_timeout",
		`{"idle_timeout":1.5}`:        "idle_timeout",
		`{"max_lifetime":"1"}`:        "max_lifetime",
		`{"keep_while_busy":1}`:       "keep_while_busy",
		`{"resources":{"cpu":-1}}`:    "resources.cpu",
		`{"resources":{"gpu":1}}`:     "resources.gpu",
		`{"resources":7}`:             "resources",
		`{"network":{}}`:              "network.mode",
		`{"network":null}`:            "network.mode",
		`{"network":{"mode":"open"}}`: "network.mode",
		`{"approval":{"port":"x"}}`:   "approval.port",
		`{"image":"other"}`:           "image",
	} {
		assertError(t, b.do("PATCH", onePath, body), "invalid", field)
	}
	b.f.keys["managing"] = auth.Permissions{auth.SandboxesManage}
	require.Equal(t, 200, b.do("PATCH", onePath, `{"label":"x"}`, "X-API-Key", "managing").status)
}

func TestWorkspaceLimits(t *testing.T) {
	b := start(t)
	b.f.keys["admin"] = auth.Permissions{auth.MembersManage}
	got := b.do("PUT", "/v1/limits", `{"cpu":0.5,"sandboxes":7,"disk_mb":null}`, "X-API-Key", "admin")
	require.Equal(t, 200, got.status, got.body)
	assert.Equal(t, workspace.Limits{Most: sandbox.Resources{CPU: 0.5}, Sandboxes: 7}, b.f.limits)
	assert.Contains(t, got.body, `"own":{"cpu":0.5,"memory_mb":null,"disk_mb":null,"pids":null,"sandboxes":7}`)
	assert.Contains(t, got.body, `"sandboxes":3}`)
	for body, field := range map[string]string{
		`{"cpu":0}`: "cpu", `{"memory_mb":1}`: "memory_mb", `{"disk_mb":1}`: "disk_mb", `{"pids":1}`: "pids", `{"sandboxes":0}`: "sandboxes", `{"x":1}`: "x",
	} {
		assertError(t, b.do("PUT", "/v1/limits", body, "X-API-Key", "admin"), "invalid", field)
	}
}

// A server that stops says so to those who watch, and waits for none of them.
func TestStreamsEndWithTheServer(t *testing.T) {
	life, stop := context.WithCancel(t.Context())
	b := start(t, func(o *Options) { o.Life = life })
	b.f.sampled = stop // the stream is open when the server stops
	events := eventsOf(t, b.do("GET", onePath+"/metrics/stream?interval=60", "").body)
	assert.Contains(t, events[len(events)-1], `"code":"starting"`)
}
