package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/fault"
	"sandgate/sandbox"
)

const oneSandbox = `{"id":"sbaaaaaaaaaaaaaaaaaaaa","status":"running","reason":null,"created_at":"2026-11-30T12:00:00.123456Z",
	"last_activity":"2026-11-30T12:00:00.123456Z","label":"one","persistent":false,"image":"base","parent":null,"owner":{"kind":"key","name":"robot"},
	"expires_at":null,"idle":{"since":"2026-11-30T12:00:00.123456Z","alive_because":[],"action":"kill","at":null,"idle_timeout":0,"max_lifetime":null,"keep_while_busy":false},
	"resources":{"cpu":1,"memory_mb":1024,"disk_mb":4096,"pids":1024},"network":{"mode":"none","allow":[]},
	"approval":{"command":"allow","write":"allow","terminal":"allow","network":"allow","port":"allow","rules":[]},"approvals_waiting":0,"metadata":{}}`

func TestSandboxesAsTheOfficialClientReadsThem(t *testing.T) {
	b := start(t)

	got := b.do("POST", "/v1/sandboxes", `{"label":"one","persistent":false}`)
	assert.Equal(t, 200, got.status)
	assert.JSONEq(t, oneSandbox, got.body)
	assert.Equal(t, "one", b.f.created[0].Label)

	got = b.do("POST", "/v1/sandboxes", `{"label":null,"persistent":false}`)
	assert.Equal(t, 200, got.status)
	assert.Contains(t, got.body, `"label":null`)

	got = b.do("GET", "/v1/sandboxes", "")
	assert.JSONEq(t, "["+oneSandbox+"]", got.body)
	got = b.do("GET", "/v1/sandboxes/"+knownID, "")
	assert.JSONEq(t, oneSandbox, got.body)
	for _, id := range []string{knownID, goneID} {
		got = b.do("DELETE", "/v1/sandboxes/"+id, "")
		assert.Equal(t, 200, got.status)
		assert.JSONEq(t, `{"success":true}`, got.body)
	}
}

func TestCreateTakesTheOptionsThatAreThere(t *testing.T) {
	b := start(t)
	got := b.do("POST", "/v1/sandboxes", `{"label":"é","image":"base","cwd":"/srv","user":"nobody","env":{"A":"b"},"metadata":{"team":"x"},
		"resources":{"cpu":0.5,"memory_mb":256},"network":{"mode":"allow-list","allow":["example.org:443"]},"approval":{"command":"allow"},"secrets":{"TOKEN":"hunter2"},
		"platform_key":true,"idle_timeout":null,"max_lifetime":null,"keep_while_busy":true,"snapshot_id":"`+knownSnapshot+`"}`, "Idempotency-Key", "k1")
	require.Equal(t, 200, got.status, got.body)
	o := b.f.created[0]
	assert.Equal(t, "/srv", o.Cwd)
	assert.Equal(t, "nobody", o.User)
	assert.Equal(t, map[string]string{"A": "b"}, o.Env)
	assert.Equal(t, map[string]string{"team": "x"}, o.Metadata)
	assert.Equal(t, sandbox.Resources{CPU: 0.5, MemoryMB: 256}, o.Resources)
	assert.Equal(t, "k1", o.IdempotencyKey)
	assert.Equal(t, sandbox.NetworkPolicy{Mode: sandbox.NetworkAllowList, Allow: []string{"example.org:443"}}, o.Network)
	assert.True(t, o.PlatformKey)
	assert.Equal(t, knownSnapshot, o.SnapshotID)
	assert.Equal(t, map[string]string{"TOKEN": "hunter2"}, o.Secrets)
	assert.NotContains(t, got.body+b.log.String(), "hunter2")
}

func TestCreateRefusesWhatItWouldIgnore(t *testing.T) {
	b := start(t)
	for body, field := range map[string]string{
		`{"platform_key":"yes"}`:                                        "platform_key",
		`{"secrets":{"T":1}}`:                                           "secrets",
		`{"idle_timeout":0}`:                                            "idle_timeout",
		`{"max_lifetime":2592001}`:                                      "max_lifetime",
		`{"keep_while_busy":"no"}`:                                      "keep_while_busy",
		`{"snapshot_id":"snapx"}`:                                       "snapshot_id",
		`{"snapshot_id":""}`:                                            "snapshot_id",
		`{"snapshot_id":"sbaaaaaaaaaaaaaaaaaaaa"}`:                      "snapshot_id",
		`{"network":{"mode":"open"}}`:                                   "network.mode",
		`{"network":{"allow":"a.example"}}`:                             "network.allow",
		`{"network":{"allow":[7]}}`:                                     "network.allow",
		`{"network":{"allow":["` + strings.Repeat("a", 301) + `"]}}`:    "network.allow",
		`{"network":{"allow":["a"` + strings.Repeat(`,"a"`, 64) + `]}}`: "network.allow",
		`{"network":{"mood":"none"}}`:                                   "network.mood",
		`{"approval":{"command":"may"}}`:                                "approval.command",
		`{"approval":{"port":null,"x":1}}`:                              "approval.x",
		`{"resources":{"cpu":0}}`:                                       "resources.cpu",
		`{"resources":{"cpu":"1"}}`:                                     "resources.cpu",
		`{"resources":{"pids":-1}}`:                                     "resources.pids",
		`{"resources":[]}`:                                              "resources",
		`{"label":7}`:                                                   "label",
		`{"label":"a\u0000b"}`:                                          "label",
		`{"label":"` + strings.Repeat("x", 201) + `"}`:                  "label",
		`{"env":{"A":1}}`:                                               "env",
		`{"env":{"A":"\u0000"}}`:                                        "env",
		`{"cwd":"work"}`:                                                "cwd",
		`{"Label":"x"}`:                                                 "Label",
		`{"lable":"x"}`:                                                 "lable",
		`[]`:                                                            "body",
		`null`:                                                          "body",
	} {
		got := b.do("POST", "/v1/sandboxes", body)
		assert.Equal(t, 422, got.status, body)
		assertError(t, got, "invalid", field)
	}
	assert.Empty(t, b.f.created)
}

func TestBodiesThatAreNotJSON(t *testing.T) {
	b := start(t)
	for _, body := range []string{
		`{`, `{"label":"x"`, `{"label":"x"}}`, `{"label":"x"} {}`, `{"label":"x","label":"y"}`, `{"metadata":{"a":"1","a":"2"}}`,
		`label=x`, "{\"label\":\"\xff\"}", `{"label":"\ud800"}`, `{"label":"\udc00\ud800"}`, `{"label":"\ud800A"}`, `{'a':1}`,
		strings.Repeat("[", 10000), `{"a":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`, `{"label":NaN}`,
	} {
		got := b.do("POST", "/v1/sandboxes", body)
		assert.Equal(t, 400, got.status, body[:min(40, len(body))])
		assertError(t, got, "bad_request", "")
	}
	got := b.do("POST", "/v1/sandboxes", `{"label":"\ud83d\ude00 \\ud800"}`)
	assert.Equal(t, 200, got.status, got.body)
	assert.Equal(t, "😀 \\ud800", b.f.created[0].Label)
	got = b.do("POST", "/v1/sandboxes", "label=x", "Content-Type", "application/x-www-form-urlencoded")
	assert.Equal(t, 400, got.status)
	got = b.do("POST", "/v1/sandboxes", "")
	assert.Equal(t, 200, got.status, "an empty body is all defaults")
}

func TestALabelOfTenMegabytes(t *testing.T) {
	b := start(t)
	got := b.do("POST", "/v1/sandboxes", `{"label":"`+strings.Repeat("x", 10<<20)+`"}`)
	assert.Equal(t, 413, got.status)
	assertError(t, got, "too_large", "")
	assert.Equal(t, 200, b.do("GET", "/v1/sandboxes", "").status)
}

func TestUnknownAndForeignIDsAreAnsweredAlike(t *testing.T) {
	b := start(t)
	const want = `{"detail":"Sandbox not found","code":"not_found"}`
	for _, id := range []string{otherID, goneID[:21], "sb", "x", "%2e%2e", "sb%00aaaaaaaaaaaaaaaaaaa", "SBaaaaaaaaaaaaaaaaaaaa", knownID + "a"} {
		got := b.do("GET", "/v1/sandboxes/"+id, "")
		assert.Equal(t, 404, got.status, id)
		assert.JSONEq(t, want, got.body, id)
		got = b.do("DELETE", "/v1/sandboxes/"+id, "")
		assert.Equal(t, 404, got.status, id)
		assert.JSONEq(t, want, got.body, id)
		got = b.do("POST", "/v1/sandboxes/"+id+"/commands", `{"command":"true"}`)
		assert.JSONEq(t, want, got.body, id)
	}
}

func TestWhatTheOfficialClientAsksWhenItStarts(t *testing.T) {
	b := start(t)
	assert.JSONEq(t, `[]`, b.do("GET", "/v1/nodes", "").body)
	assert.JSONEq(t, `{"items":[],"total":0,"page":2,"size":10,"pages":0}`, b.do("GET", "/v1/knowledge-bases?page=2&size=10", "").body)
	assert.Equal(t, 422, b.do("GET", "/v1/knowledge-bases?page=x", "").status)
	got := b.do("GET", "/v1/admin/me", "")
	assert.JSONEq(t, `{"id":"key1","name":"robot","tenant_admin":false,"value":"sg_abcdefgh_********","permissions":["sandboxes:run"],
		"workspace":{"id":"ws1","name":"One"}}`, got.body)
	assert.Equal(t, "********", masked("sg_short"))
	assert.Equal(t, "********", masked(strings.Repeat("x", 80)))
}

func TestErrorsOfTheService(t *testing.T) {
	b := start(t)
	for _, row := range []struct {
		err    error
		status int
		body   string
	}{
		{fault.New(fault.Conflict, "No."), 409, `{"detail":"No.","code":"conflict"}`},
		{
			fault.New(fault.SandboxDied, "It died.").With("reason", "out_of_memory").With("client", "x"), 409,
			`{"detail":"It died.","code":"sandbox_died","reason":"out_of_memory"}`,
		},
		{fault.New(fault.HostFull, "Full."), 503, `{"detail":"Full.","code":"host_full"}`},
		{fault.New(fault.QuotaExceeded, "Enough."), 409, `{"detail":"Enough.","code":"quota_exceeded"}`},
		{fault.New(fault.SlowDown, "Slow.").With("retry_after", 7), 429, `{"detail":"Slow.","code":"slow_down","retry_after":7}`},
		{fault.Wrap(errors.New("password hunter2"), fault.Starting, "Wait."), 503, `{"detail":"Wait.","code":"starting"}`},
		{
			errors.New("dial /secret: hunter2"), 500,
			`{"detail":"Something went wrong on our side. The request id finds it in the server's log.","code":"internal"}`,
		},
	} {
		b.f.err = row.err
		got := b.do("POST", "/v1/sandboxes", `{}`)
		assert.Equal(t, row.status, got.status)
		assert.JSONEq(t, row.body, got.body)
		assert.NotContains(t, got.body, "hunter2")
		assert.Contains(t, b.log.String(), got.header.Get("X-Request-ID"))
		if row.status == 429 {
			assert.Equal(t, "7", got.header.Get("Retry-After"))
		}
	}
	assert.Contains(t, b.log.String(), "hunter2", "the log has the cause")

	b.f.err, b.f.panicky = nil, true
	got := b.do("POST", "/v1/sandboxes", `{}`)
	assert.Equal(t, 500, got.status)
	assertError(t, got, "internal", "")
	assert.NotContains(t, got.body, "hunter2")
	got = b.do("POST", "/v1/sandboxes/"+knownID+"/commands", `{"command":"true"}`)
	assert.Equal(t, 500, got.status, "a panic while a command runs is an answer too")
}

// assertError checks the shape that every error has.
func assertError(t *testing.T, got answer, code, field string) {
	t.Helper()
	var body struct {
		Detail string            `json:"detail"`
		Code   string            `json:"code"`
		Fields map[string]string `json:"fields"`
	}
	require.NoError(t, json.Unmarshal([]byte(got.body), &body), got.body)
	assert.NotEmpty(t, body.Detail)
	assert.Equal(t, code, body.Code, got.body)
	assert.NotEmpty(t, got.header.Get("X-Request-ID"))
	assert.Equal(t, "application/json", got.header.Get("Content-Type"))
	if field != "" {
		assert.Contains(t, body.Fields, field, got.body)
	}
}

func TestKeysAndCookies(t *testing.T) {
	b := start(t)
	for _, row := range []struct {
		name   string
		header []string
		status int
	}{
		{"no key", []string{"X-API-Key", ""}, 401},
		{"wrong key", []string{"X-API-Key", "sg_wrong"}, 401},
		{"long key", []string{"X-API-Key", strings.Repeat("k", 5000)}, 401},
		{"bearer", []string{"X-API-Key", "", "Authorization", "Bearer " + fullKey}, 200},
		{"bearer, lower case", []string{"X-API-Key", "", "Authorization", "bearer " + fullKey}, 200},
		{"basic", []string{"X-API-Key", "", "Authorization", "Basic eDp5"}, 401},
		{"the same twice", []string{"Authorization", "Bearer " + fullKey}, 200},
		{"two keys", []string{"Authorization", "Bearer sg_other"}, 400},
		{"cookie alone", []string{"X-API-Key", "", "Cookie", "__Host-sandgate=x"}, 401},
		{"cookie and key", []string{"Cookie", "__Host-sandgate=x"}, 400},
		{"plain cookie and key", []string{"Cookie", "a=b; sandgate_session=x"}, 400},
		{"foreign cookie and key", []string{"Cookie", "lb=1"}, 200},
	} {
		got := b.do("GET", "/v1/sandboxes", "", row.header...)
		assert.Equal(t, row.status, got.status, row.name)
		if row.status != 200 {
			assertError(t, got, map[int]string{400: "bad_request", 401: "unauthenticated"}[row.status], "")
			assert.NotContains(t, got.body, fullKey)
		}
	}
	assert.NotContains(t, b.log.String(), fullKey)
}

// TestEveryRouteHasItsPermission walks the table with keys that have one permission each.
func TestEveryRouteHasItsPermission(t *testing.T) {
	b := start(t)
	for _, p := range auth.AllPermissions {
		b.f.keys["key "+string(p)] = auth.Permissions{p}
	}
	b.f.keys["key without"] = auth.Permissions{}
	public := map[string]string{
		"GET /v1/nodes":                      "the official client asks before anything else",
		"GET /v1/admin/me":                   "what the key itself is",
		"GET /v1/knowledge-bases":            "always empty",
		"GET /v1/sandboxes/:id/ptys/:pty/ws": "refused by the service with a close code, after the upgrade",
	}
	s := &server{svc: b.f}
	for _, r := range s.routes() {
		if r.need == nil {
			assert.Contains(t, public, r.method+" "+r.path)
			continue
		}
		assert.NotEmpty(t, r.action)
		path := strings.NewReplacer(":id", knownID, ":cmd", knownCmd, ":pty", knownPTY).Replace(r.path)
		for secret, has := range b.f.keys {
			if mayAny(auth.Actor{Permissions: has}, r.need) {
				continue
			}
			before := len(b.f.called())
			got := b.do(r.method, path, "", "X-API-Key", secret)
			assert.Equal(t, http.StatusForbidden, got.status, "%s %s with %v", r.method, path, has)
			assertError(t, got, "forbidden", "")
			assert.Len(t, b.f.called(), before, "the service was asked to act")
		}
		assert.Contains(t, strings.Join(b.f.refused, "\n"), r.action, "the refusal is on record")
		if r.method != http.MethodGet && !strings.HasSuffix(r.path, "/ticket") { // nothing that changes is open to a reader
			assert.NotContains(t, r.need, auth.SandboxesRead)
		}
	}
}

func TestMethodsAndPathsThatAreNotThere(t *testing.T) {
	b := start(t)
	for _, row := range []struct {
		method, path string
		status       int
	}{
		{"GET", "/v1/", 404},
		{"GET", "/v1/none", 404},
		{"GET", "/v1/sandboxes/" + knownID + "/metrics/none", 404},
		{"POST", "/v1/sandboxes/" + knownID + "/nap", 404},
		{"PUT", "/v1/sandboxes", 405},
		{"PUT", "/v1/sandboxes/" + knownID, 405},
		{"OPTIONS", "/v1/sandboxes", 405},
		{"OPTIONS", "/v1/none", 404},
		{"POST", "/v1/sandboxes/" + knownID + "/files/archive", 405},
	} {
		got := b.do(row.method, row.path, "", "Origin", "https://evil.test", "Access-Control-Request-Method", "POST")
		assert.Equal(t, row.status, got.status, row.method+" "+row.path)
		assertError(t, got, map[int]string{404: "not_found", 405: "method_not_allowed"}[row.status], "")
		for name := range got.header {
			assert.False(t, strings.HasPrefix(name, "Access-Control"), name)
		}
		if row.status == 405 {
			assert.NotEmpty(t, got.header.Get("Allow"))
		}
	}
	got := b.do("GET", "/v1/none", "", "X-API-Key", "")
	assert.Equal(t, 401, got.status, "who has no key learns nothing of what is there")
	got = b.do("HEAD", "/v1/sandboxes", "")
	assert.Equal(t, 200, got.status)
	assert.Empty(t, got.body)
}

func TestEveryAnswerBearsTheSameHeaders(t *testing.T) {
	b := start(t)
	for _, path := range []string{"/v1/sandboxes", "/v1/none", "/v1/sandboxes/x"} {
		got := b.do("GET", path, "", requestIDHeader, "chosen-by-the-client")
		assert.Len(t, got.header.Get(requestIDHeader), 26)
		assert.Equal(t, "nosniff", got.header.Get("X-Content-Type-Options"))
		assert.Equal(t, "no-store", got.header.Get("Cache-Control"))
		assert.Contains(t, got.header.Get("Content-Security-Policy"), "default-src 'none'")
	}
}

func TestPassagesTakeNoOptions(t *testing.T) {
	b := start(t)
	for _, path := range []string{"suspend", "resume", "fork"} {
		got := b.do("POST", "/v1/sandboxes/"+knownID+"/"+path, `{"network":{"mode":"none"}}`)
		assert.Equal(t, 422, got.status, path)
		assert.Contains(t, got.body, "network", path)
		assert.NotEqual(t, 422, b.do("POST", "/v1/sandboxes/"+knownID+"/"+path, "").status, path)
		assert.NotEqual(t, 422, b.do("POST", "/v1/sandboxes/"+knownID+"/"+path, "{}").status, path)
	}
}
