package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"sandgate/handlers"
	"sandgate/handlers/api"
)

// visitor is a browser without a screen: cookies, forms, no following of redirects.
type visitor struct {
	t      *testing.T
	url    string
	client *http.Client
}

func (s *server) visitor(email, password string) *visitor {
	s.t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(s.t, err)
	v := &visitor{s.t, s.url, &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	code, body := v.do("POST", "/sign-in", url.Values{"email": {email}, "password": {password}})
	require.Equal(s.t, http.StatusSeeOther, code, "%s", body)
	return v
}

func (v *visitor) do(method, path string, form url.Values) (int, []byte) {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, v.url+path, strings.NewReader(form.Encode()))
	require.NoError(v.t, err)
	if method != "GET" && method != "HEAD" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Origin", v.url)
		req.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	resp, err := v.client.Do(req)
	require.NoError(v.t, err, "%s %s", method, path)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(v.t, err, "%s %s", method, path)
	if next := resp.Header.Get("Location"); method == "GET" && resp.StatusCode == http.StatusSeeOther && !strings.HasPrefix(next, "/sign-in") {
		return v.do("GET", next, nil) // a part of a page leads to the page
	}
	return resp.StatusCode, body
}

// belongings are the ids of everything that somebody has, by the names that the route tables give them.
type belongings map[string]string

func (b belongings) fill(path string) string {
	for name, id := range b {
		path = regexp.MustCompile(`:`+name+`\b`).ReplaceAllString(path, id)
	}
	return path
}

// with replaces some.
func (b belongings) with(other belongings, names ...string) belongings {
	out := belongings{}
	for k, v := range b {
		out[k] = v
	}
	for _, n := range names {
		out[n] = other[n]
	}
	return out
}

// resident is a person with a workspace in which there is one of everything.
type resident struct {
	*visitor
	rest
	has belongings
}

func (s *server) resident(email, workspace string) *resident {
	s.t.Helper()
	password := s.person(email, workspace)
	r := &resident{visitor: s.visitor(email, password), rest: s.rest(s.key(workspace, "sandboxes:run", "sandboxes:manage", "audit:read"))}
	s.run("workspace", "grant", "--workspace", workspace, "--email", email, "--role", "admin", "--permission", "sandboxes:run", "--permission", "approvals:decide")
	id := r.create("of " + workspace)
	var cmd struct{ ID string }
	r.ok("POST", "/v1/sandboxes/"+id+"/commands", map[string]any{"command": "sleep 1000", "background": true}, &cmd)
	code, body := r.visitor.do("POST", "/w/"+workspace+"/people/invitations", url.Values{"email": {"guest@" + workspace + ".example"}, "role": {"viewer"}})
	require.Less(s.t, code, 400, "%s", body)
	_, people := r.visitor.do("GET", "/w/"+workspace+"/people", nil)
	find := func(pattern string) string {
		m := regexp.MustCompile(pattern).FindSubmatch(people)
		require.NotNil(s.t, m, "%s in %s", pattern, people)
		return string(m[1])
	}
	code, body = r.visitor.do("POST", "/w/"+workspace+"/recording-policy", url.Values{"mode": {"on"}, "max_mb": {"64"}, "total_mb": {"2048"}, "keep_days": {"90"}})
	require.Less(s.t, code, 400, "%s", body)
	r.has = belongings{
		"slug": workspace, "id": id, "pty": r.openPTY(id), "cmd": cmd.ID,
		"user": find(`/people/([^/"]+)/role`), "invitation": find(`/people/invitations/([^/"]+)/withdraw`), "key": find(`/keys/([^/"]+)/revoke`),
		"image": "base", "snapshot": r.snapshot(id),
	}
	var tapes struct{ Items []recordingJSON }
	r.ok("GET", "/v1/recordings?sandbox_id="+id, nil, &tapes)
	r.has["recording"] = tapes.Items[0].ID
	r.has["approval"], r.has["name"] = r.asked(), "stdin"
	r.has["event"] = fmt.Sprint(r.audit("sandbox_id=" + id).Items[0].Seq)
	return r
}

// asked makes a request that waits, for a command with input, and gives its id.
func (r rest) asked() string {
	r.t.Helper()
	var sb sandboxJSON
	r.ok("POST", "/v1/sandboxes", map[string]any{"label": "asks", "approval": map[string]string{"command": "ask"}}, &sb)
	var waits struct {
		ApprovalID string `json:"approval_id"`
	}
	r.with("Prefer", "respond-async").ok("POST", "/v1/sandboxes/"+sb.ID+"/commands", map[string]any{"command": "cat", "stdin": "x"}, &waits)
	require.Regexp(r.t, `^ap[a-z0-9]{20}$`, waits.ApprovalID)
	return waits.ApprovalID
}

var requestID = regexp.MustCompile(`(?i)request [a-z0-9-]{6,}|"request_id": ?"[^"]*"`)

// Somebody in another workspace finds nothing: every page, call and socket that takes an id answers to a foreign one as it
// answers to one that never was.
func TestForeignIDsAreNotFound(t *testing.T) {
	host := newInstallation(t)
	s := host.serve()
	ann, bob := s.resident("ann@example.org", "alpha"), s.resident("bob@example.org", "beta")
	unknown := belongings{
		"slug": "nowhere", "id": "sb" + strings.Repeat("0", 20), "pty": "pty" + strings.Repeat("0", 20), "cmd": "cmd" + strings.Repeat("0", 20),
		"user": "us" + strings.Repeat("0", 20), "invitation": "iv" + strings.Repeat("0", 20), "key": "ky" + strings.Repeat("0", 20), "image": "base",
		"snapshot": "snap" + strings.Repeat("0", 20), "event": "999999999", "approval": "ap" + strings.Repeat("0", 20), "name": "stdin", "recording": "rec" + strings.Repeat("0", 20),
	}

	t.Run("pages", func(t *testing.T) {
		walked := 0
		for _, route := range handlers.Routes() {
			if !strings.Contains(route.Path, ":") || strings.HasSuffix(route.Path, "/ws") || strings.HasPrefix(route.Path, "/account/") {
				continue // what is below /account is of the person alone; handlers tests it
			}
			names := regexp.MustCompile(`:(\w+)`).FindAllStringSubmatch(route.Path, -1)
			for _, n := range names {
				name := n[1]
				if name == "image" || name == "name" || name == "pty" {
					continue // closing a terminal that one's own sandbox does not have is as good as done
				}
				// Bob's own everything, but this one thing (and what hangs on it) is Ann's.
				foreign := bob.has.with(ann.has, name)
				never := bob.has.with(unknown, name)
				if name == "slug" {
					foreign, never = ann.has, ann.has.with(unknown, "slug")
				}
				code, body := bob.visitor.do(route.Method, foreign.fill(route.Path)+"?path=/work", url.Values{"path": {"/work/x"}, "name": {"x"}, "role": {"viewer"}})
				if code != http.StatusNotFound {
					t.Errorf("%d: %s %s with a foreign %s: %s", code, route.Method, route.Path, name, body)
				}
				_, other := bob.visitor.do(route.Method, never.fill(route.Path)+"?path=/work", url.Values{"path": {"/work/x"}, "name": {"x"}, "role": {"viewer"}})
				same(t, foreign, body, never, other)
				walked++
			}
		}
		require.Greater(t, walked, 40)
		code, _ := bob.visitor.do("POST", "/w/beta/sandboxes/kill", url.Values{"id": {ann.has["id"]}, "typed": {"1"}})
		require.Equal(t, http.StatusNotFound, code, "killing a foreign sandbox among one's own")
	})
	t.Run("calls", func(t *testing.T) {
		walked := 0
		for _, route := range api.Routes() {
			if !strings.Contains(route.Path, ":id") && !strings.Contains(route.Path, ":snapshot") && !strings.Contains(route.Path, ":recording") || strings.HasSuffix(route.Path, "/ws") {
				continue
			}
			foreign, never := bob.has.with(ann.has, "id", "cmd", "pty", "snapshot", "recording"), bob.has.with(unknown, "id", "cmd", "pty", "snapshot", "recording")
			body := map[string]any{"command": "true", "path": "/work/x", "content": "", "encoding": "utf-8", "source": "/work/x", "destination": "/work/y", "data": "", "signal": "KILL", "cols": 80, "rows": 24, "label": "x", "mode": "0644", "name": "kept"}
			code, answer := bob.rest.do(route.Method, foreign.fill(route.Path)+"?path=/work/x&name=x", only(t, body, route.Method, route.Path))
			if code != http.StatusNotFound {
				t.Errorf("%d: %s %s: %s", code, route.Method, route.Path, answer)
			}
			_, other := bob.rest.do(route.Method, never.fill(route.Path)+"?path=/work/x&name=x", only(t, body, route.Method, route.Path))
			same(t, foreign, answer, never, other)
			walked++
			for _, n := range []string{"cmd", "pty"} { // one's own sandbox, but the other's command or terminal
				if strings.Contains(route.Path, ":"+n) {
					code, answer := bob.rest.do(route.Method, bob.has.with(ann.has, n).fill(route.Path), only(t, body, route.Method, route.Path))
					require.Equal(t, http.StatusNotFound, code, "%s %s with a foreign %s: %s", route.Method, route.Path, n, answer)
				}
			}
		}
		require.Greater(t, walked, 20)
	})
	t.Run("sockets", func(t *testing.T) {
		paths := map[string]http.Header{
			"/w/:slug/sandboxes/:id/ptys/:pty/ws": {"Origin": {s.url}, "Cookie": {bob.cookies()}},
			"/v1/sandboxes/:id/ptys/:pty/ws":      {"X-Api-Key": {bob.key}},
		}
		for path, header := range paths {
			for _, has := range []belongings{bob.has.with(ann.has, "id", "pty"), bob.has.with(ann.has, "pty"), ann.has, bob.has.with(unknown, "id", "pty")} {
				if has["slug"] == "alpha" && !strings.Contains(path, ":slug") {
					has = bob.has.with(ann.has, "id", "pty")
				}
				require.Equal(t, websocket.StatusCode(4004), closeCode(t, s.url+has.fill(path), header), "%s with %v", path, has)
			}
		}
	})

	// Nothing of Ann's was touched by all of that.
	require.Equal(t, "still here\n", ann.exec(ann.has["id"], "echo still here").Stdout)
	var c struct{ Status string }
	ann.ok("GET", belongings(ann.has).fill("/v1/sandboxes/:id/commands/:cmd"), nil, &c)
	require.Equal(t, "running", c.Status)
	for _, r := range []*resident{ann, bob} {
		r.ok("DELETE", "/v1/snapshots/"+r.has["snapshot"], nil, nil)
	}
}

func (v *visitor) cookies() string {
	u, err := url.Parse(v.url)
	require.NoError(v.t, err)
	var out []string
	for _, c := range v.client.Jar.Cookies(u) {
		out = append(out, c.Name+"="+c.Value)
	}
	return strings.Join(out, "; ")
}

// only is the part of a body that a call takes: unknown fields would be refused before anything is looked up.
func only(t *testing.T, all map[string]any, method, path string) any {
	t.Helper()
	if method == "GET" || method == "HEAD" || method == "DELETE" {
		return nil
	}
	fields := map[string][]string{
		"/commands": {"command"}, "/stdin": {"data"}, "/kill": {"signal"}, "/files": {"path", "content", "encoding"},
		"/mkdir": {"path"}, "/move": {"source", "destination"}, "/ptys": {"cols", "rows"}, "/ticket": nil, "/raw": nil, "/archive": nil,
		"/:id": {"label"}, "/:pty": {"name"}, "/suspend": nil, "/resume": nil, "/fork": nil, "/snapshots": {"name"}, "/keepalive": nil, "/copy": {"source", "destination"}, "/chmod": {"path", "mode"},
	}
	names, known := fields[path[strings.LastIndex(path, "/"):]]
	require.True(t, known, "%s %s: say in this test what its body is", method, path)
	body := map[string]any{}
	for _, n := range names {
		body[n] = all[n]
	}
	b, err := json.Marshal(body)
	require.NoError(t, err)
	return b
}

// same fails when two answers differ in more than the request's own id and the ids that were asked for.
func same(t *testing.T, asked belongings, a []byte, askedToo belongings, b []byte) {
	t.Helper()
	clean := func(has belongings, body []byte) string {
		for name, id := range has {
			body = bytes.ReplaceAll(body, []byte(id), []byte(name))
		}
		return string(requestID.ReplaceAll(body, []byte("request")))
	}
	require.Equal(t, clean(askedToo, b), clean(asked, a))
}

func closeCode(t *testing.T, address string, header http.Header) websocket.StatusCode {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, resp, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(address, "http"), &websocket.DialOptions{HTTPHeader: header, Subprotocols: []string{"sandgate.term.v1"}})
	require.NoError(t, err, "%v", resp)
	defer func() { _ = conn.CloseNow() }()
	for {
		if _, _, err := conn.Read(ctx); err != nil {
			return websocket.CloseStatus(err)
		}
	}
}
