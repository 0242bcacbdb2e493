package api

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sandgate/auth"
)

func testDocument(t *testing.T) *document {
	t.Helper()
	d, err := newDocument((&server{}).routes())
	require.NoError(t, err)
	return d
}

// operationOf finds the document's word on a row.
func operationOf(d *document, r route) *huma.Operation {
	path := r.path
	for name := range pathParams {
		path = strings.Replace(path, ":"+name, "{"+name+"}", 1)
	}
	item := d.api.Paths[path]
	if item == nil {
		return nil
	}
	return map[string]*huma.Operation{"GET": item.Get, "POST": item.Post, "PUT": item.Put, "PATCH": item.Patch, "DELETE": item.Delete}[r.method]
}

func TestTableAndDocumentAgree(t *testing.T) {
	d := testDocument(t)
	rows, described := (&server{}).routes(), map[string]bool{}
	for _, r := range rows {
		op := operationOf(d, r)
		if !assert.NotNil(t, op, "%s %s is not in the document", r.method, r.path) {
			continue
		}
		assert.ElementsMatch(t, r.need, op.Extensions["x-permission"], "%s %s", r.method, r.path)
		assert.NotEmpty(t, op.Summary, "%s %s", r.method, r.path)
		for _, part := range strings.Split(r.path, "/") {
			if strings.HasPrefix(part, ":") {
				assert.True(t, slices.ContainsFunc(op.Parameters, func(p *huma.Param) bool { return p.In == "path" && p.Name == part[1:] && p.Required }), "%s of %s %s", part, r.method, r.path)
			}
		}
		assert.Contains(t, op.Responses, "401")
		described[r.method+" "+r.path] = true
	}
	for row := range operations {
		assert.True(t, described[row], "%s is described, but no call", row)
	}
	calls := 0
	ids := map[string]bool{}
	for _, item := range d.api.Paths {
		for _, op := range []*huma.Operation{item.Get, item.Head, item.Post, item.Put, item.Patch, item.Delete} {
			if op != nil {
				calls++
				assert.False(t, ids[op.OperationID], "%s twice", op.OperationID)
				ids[op.OperationID] = true
			}
		}
	}
	assert.Equal(t, len(rows)+3, calls, "the rows, HEAD of raw files, the document and its page")
}

// The document is a good one in the eyes of somebody else's library.
func TestDocumentIsValid(t *testing.T) {
	loaded := load(t)
	require.Equal(t, "3.1.0", loaded.OpenAPI)
	require.NoError(t, loaded.Validate(context.Background(), openapi3.DisableExamplesValidation()))
}

func load(t *testing.T) *openapi3.T {
	t.Helper()
	loaded, err := openapi3.NewLoader().LoadFromData(testDocument(t).json)
	require.NoError(t, err)
	return loaded
}

func TestDocumentAndPageNeedNoKey(t *testing.T) {
	b := start(t)
	a := b.do("GET", "/v1/openapi.json", "", "X-API-Key", "")
	require.Equal(t, 200, a.status)
	require.Equal(t, "application/json", a.header.Get("Content-Type"))
	require.True(t, json.Valid([]byte(a.body)))
	page := b.do("GET", "/v1/docs", "", "X-API-Key", "")
	require.Equal(t, 200, page.status)
	require.NotContains(t, page.header.Get("Content-Security-Policy"), "unsafe")
	require.NotContains(t, page.body, "<script")
	require.NotContains(t, page.body, "http:", "it asks nobody else for anything")
	require.NotContains(t, page.body, "https:")
	for _, r := range (&server{}).routes() {
		require.Contains(t, page.body, operationID(r))
	}
	require.Equal(t, 405, b.do("POST", "/v1/docs", "", "X-API-Key", "").status)
	require.Equal(t, 401, b.do("GET", "/v1/openapi.jso", "", "X-API-Key", "").status)
	require.Empty(t, b.f.called())
}

// samples are a query and a body that a call takes; for those that need one.
var samples = map[string]struct{ query, body string }{
	"POST /v1/sandboxes":                         {"", `{"label":"a","env":{"A":"b"},"secrets":{"TOKEN":"long enough"},"metadata":{"team":"x"},"resources":{"cpu":1},"network":{"mode":"allow-list","allow":["example.org"]},"platform_key":true,"persistent":false,"idle_timeout":60,"max_lifetime":600,"keep_while_busy":false}`},
	"PATCH /v1/sandboxes/:id":                    {"", `{"label":"b","metadata":{"team":"y"},"network":{"mode":"none"},"idle_timeout":60,"max_lifetime":600,"keep_while_busy":true}`},
	"PUT /v1/recording-policy":                   {"", `{"mode":"on","input":false,"max_mb":32,"total_mb":1024,"keep_days":30}`},
	"PUT /v1/limits":                             {"", `{"memory_mb":2048,"sandboxes":50}`},
	"POST /v1/sandboxes/:id/snapshots":           {"", `{"name":"with the data loaded"}`},
	"GET /v1/audit":                              {"?from=2026-01-02T03:04:05Z&to=2026-12-02T03:04:05%2B01:00&actor=a&action=command.&outcome=ok&q=x&limit=3&cursor=9", ""},
	"POST /v1/sandboxes/:id/keepalive":           {"", `{"timeout":60}`},
	"GET /v1/sandboxes/:id/metrics/history":      {"?since=2026-01-02T03:04:05Z", ""},
	"GET /v1/sandboxes/:id/metrics/stream":       {"?interval=60", ""},
	"POST /v1/sandboxes/:id/commands":            {"", `{"command":"true","timeout":5}`},
	"POST /v1/sandboxes/:id/commands/:cmd/stdin": {"", `{"data":"x","eof":true}`},
	"POST /v1/sandboxes/:id/commands/:cmd/kill":  {"", `{"signal":"TERM"}`},
	"GET /v1/sandboxes/:id/files":                {"?path=/work/a&encoding=base64", ""},
	"POST /v1/sandboxes/:id/files":               {"", `{"path":"/work/b","content":"hi"}`},
	"DELETE /v1/sandboxes/:id/files":             {"?path=/work/a&recursive=true", ""},
	"GET /v1/sandboxes/:id/files/list":           {"?path=/work/a&limit=5", ""},
	"GET /v1/sandboxes/:id/files/stat":           {"?path=/work/a", ""},
	"POST /v1/sandboxes/:id/files/mkdir":         {"", `{"path":"/work/d"}`},
	"POST /v1/sandboxes/:id/files/move":          {"", `{"source":"/work/a","destination":"/work/c"}`},
	"GET /v1/sandboxes/:id/files/raw":            {"?path=/work/a", ""},
	"PUT /v1/sandboxes/:id/files/raw":            {"?path=/work/b", "bytes"},
	"GET /v1/sandboxes/:id/files/archive":        {"?path=/work/a", ""},
	"PUT /v1/sandboxes/:id/files/archive":        {"?path=/work/c", oneFile},
	"GET /v1/sandboxes/:id/files/search":         {"?path=/work/a&limit=5&name=*", ""},
	"GET /v1/sandboxes/:id/files/watch":          {"?path=/work/&recursive=true", ""},
	"POST /v1/sandboxes/:id/files/copy":          {"", `{"source":"/work/a","destination":"/work/c"}`},
	"POST /v1/sandboxes/:id/files/chmod":         {"", `{"path":"/work/a","mode":"0600"}`},
	"POST /v1/sandboxes/:id/ptys":                {"", `{"cols":80}`},
	"PATCH /v1/sandboxes/:id/ptys/:pty":          {"", `{"name":"build"}`},
	"GET /v1/approvals":                          {"?status=pending&limit=5", ""},
	"POST /v1/approvals/:approval/approve":       {"", `{"digest":"d1"}`},
	"POST /v1/approvals/:approval/deny":          {"", `{"reason":"no"}`},
	"PUT /v1/policy":                             {"", `{"port":"ask","rules":[{"kind":"port","answer":"deny","requester":"*@example.org"}]}`},
	"PUT /v1/admin/system-keys/:key/policy":      {"", `{"write":"ask","rules":[{"kind":"write","answer":"allow","path":"/work/**"}]}`},
	"POST /v1/admin/groups":                      {"", `{"name":"lab","description":null}`},
	"POST /v1/admin/groups/:group/api-keys":      {"", `{"name":"k","tenant_admin":false}`},
	"POST /v1/admin/system-keys":                 {"", `{"name":"k","permissions":["sandboxes:read"],"tenant_admin":false}`},
	"POST /v1/admin/roles":                       {"", `{"name":"r","permissions":{"sandboxes:run":true},"description":null}`},
}

// oneFile is an archive.
var oneFile = func() string {
	var b strings.Builder
	w := tar.NewWriter(&b)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "f", Mode: 0o644}), w.Close()); err != nil {
		panic(err)
	}
	return b.String()
}()

// endless are the streams that their clients end.
var endless = map[string]bool{
	"/v1/sandboxes/:id/metrics/stream": true,
	"/v1/sandboxes/:id/events":         true,
	"/v1/events":                       true,
	"/v1/sandboxes/:id/files/watch":    true,
}

// fill puts ids that the fake knows into a path.
func fill(path string) string {
	return strings.NewReplacer(":id", knownID, ":cmd", knownCmd, ":pty", knownPTY, ":group", "ws1", ":key", "ke1", ":snapshot", knownSnapshot, ":role", "viewer", ":approval", knownApproval, ":name", "content", ":recording", knownRecording).Replace(path)
}

// Real answers, good and bad, of every call fit the document; so do the requests.
func TestAnswersFitTheDocument(t *testing.T) {
	loaded := load(t)
	b := start(t)
	b.f.keys[fullKey] = auth.AllPermissions
	for _, r := range (&server{}).routes() {
		if r.path == socketPath {
			continue
		}
		sample := samples[r.method+" "+r.path]
		wrong := strings.NewReplacer("/work/a", "/work/missing", "?path=", "?path=relative").Replace(sample.query)
		for _, try := range []struct{ name, path, query, body, key string }{
			{"good", fill(r.path), sample.query, sample.body, fullKey},
			{"another query", fill(r.path), wrong, sample.body, fullKey},
			{"not JSON", fill(r.path), sample.query, "{", fullKey},
			{"unknown id", strings.ReplaceAll(fill(r.path), knownID, otherID), sample.query, sample.body, fullKey},
			{"wrong key", fill(r.path), sample.query, sample.body, "sg_unknown"},
		} {
			t.Run(try.name+" "+r.method+" "+r.path, func(t *testing.T) {
				b.f.archive = io.NopCloser(strings.NewReader("archive"))
				b.f.files["/work/a"] = []byte("hello")
				content := "application/json"
				if operations[r.method+" "+r.path].media != "" {
					content = octets
				}
				ask := b.do
				if endless[r.path] {
					ask = b.glance
				}
				a := ask(r.method, try.path+try.query, try.body, "X-API-Key", try.key, "Content-Type", content)
				check(t, loaded, r, try.path+try.query, a)
				if try.name == "good" && a.status != 403 {
					require.Less(t, a.status, 400, "%s", a.body)
				}
			})
		}
	}
}

// check validates one answer.
func check(t *testing.T, loaded *openapi3.T, r route, target string, a answer) {
	t.Helper()
	path := r.path
	for name := range pathParams {
		path = strings.Replace(path, ":"+name, "{"+name+"}", 1)
	}
	item := loaded.Paths.Value(path)
	require.NotNil(t, item, path)
	op := item.GetOperation(r.method)
	require.NotNil(t, op.Responses.Value(strconv.Itoa(a.status)), "%d is not in the document: %s", a.status, a.body)
	request, err := http.NewRequest(r.method, "http://x"+target, nil)
	require.NoError(t, err)
	err = openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{
			Request: request, Route: &routers.Route{Spec: loaded, Path: path, PathItem: item, Method: r.method, Operation: op},
		},
		Status: a.status, Header: a.header, Body: io.NopCloser(strings.NewReader(a.body)),
	})
	require.NoError(t, err, "%d %s", a.status, a.body)
}

// readFields gives the names of the fields that a call asked its body for.
func readFields(t *testing.T, b *bench, r route, body map[string]any) (map[string]bool, answer) {
	t.Helper()
	text, err := json.Marshal(body)
	require.NoError(t, err)
	b.mu.Lock()
	b.body = nil
	b.mu.Unlock()
	a := b.do(r.method, fill(r.path), string(text))
	b.mu.Lock()
	defer b.mu.Unlock()
	names := map[string]bool{}
	var gather func(o *object)
	gather = func(o *object) {
		for n := range o.known {
			names[o.prefix+n] = true
		}
		for _, in := range o.inner {
			gather(in)
		}
	}
	if b.body != nil {
		gather(b.body)
	}
	return names, a
}

// spying remembers the body that a call read.
func (b *bench) spying(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		err := next(c)
		b.mu.Lock()
		b.body, _ = c.Get(bodyKey).(*object)
		b.mu.Unlock()
		return err
	}
}

// properties gives the fields of a body's schema by the names that errors have for them, those of objects inside too.
func properties(d *document, s *huma.Schema, prefix string) map[string]*huma.Schema {
	out := map[string]*huma.Schema{}
	for _, any := range s.AnyOf {
		maps.Copy(out, properties(d, any, prefix))
	}
	if s.Ref != "" {
		s = d.api.Components.Schemas.SchemaFromRef(s.Ref)
	}
	for name, p := range s.Properties {
		out[prefix+name] = p
		maps.Copy(out, properties(d, p, prefix+name+"."))
	}
	return out
}

func bodies(d *document) map[*route]*huma.Schema {
	out := map[*route]*huma.Schema{}
	for _, r := range (&server{}).routes() {
		if operations[r.method+" "+r.path].body != nil {
			out[&r] = operationOf(d, r).RequestBody.Content["application/json"].Schema
		}
	}
	return out
}

// nest puts a value at a name with dots.
func nest(name string, v any) map[string]any {
	first, rest, inside := strings.Cut(name, ".")
	if inside {
		return map[string]any{first: nest(rest, v)}
	}
	return map[string]any{first: v}
}

// Every field of the document is one that the server reads, and the other way round.
func TestBodiesHaveTheFieldsOfTheDocument(t *testing.T) {
	d, b := testDocument(t), start(t)
	b.f.keys[fullKey] = auth.AllPermissions
	for r, schema := range bodies(d) {
		want, body := map[string]bool{}, map[string]any{}
		for name, p := range properties(d, schema, "") {
			want[name] = true
			if len(p.AnyOf) > 0 {
				body[name] = map[string]any{} // an object, so that those inside it are asked for
			}
		}
		got, a := readFields(t, b, *r, body)
		assert.Equal(t, want, got, "%s %s: %s", r.method, r.path, a.body)
	}
}

// Each field of each body is refused by its own name when it has another type, and when it goes beyond its bound.
func TestEveryFieldIsChecked(t *testing.T) {
	d, b := testDocument(t), start(t)
	b.f.keys[fullKey] = auth.AllPermissions
	tried := 0
	for r, schema := range bodies(d) {
		for name, p := range properties(d, schema, "") {
			if strings.HasPrefix(name, "resources.") {
				p = &huma.Schema{Type: p.Type} // their bounds are the service's
			}
			for _, bad := range beyond(p) {
				a := b.do(r.method, fill(r.path), text(t, nest(name, bad)))
				tried++
				var e struct {
					Code   string
					Fields map[string]string
				}
				require.NoError(t, json.Unmarshal([]byte(a.body), &e), "%s", a.body)
				shown := fmt.Sprintf("%.60v", bad)
				assert.Equal(t, 422, a.status, "%s %s with %s = %s: %s", r.method, r.path, name, shown, a.body)
				_, itself := e.Fields[name]
				_, inside := e.Fields[name+".a"] // of an object that has no field a
				for field := range e.Fields {    // of an element of a list
					inside = inside || strings.HasPrefix(field, name+"[")
				}
				assert.True(t, itself || inside && (len(p.AnyOf) > 0 || p.Type == huma.TypeArray), "%s %s with %s = %s: %s", r.method, r.path, name, shown, a.body)
				assert.NotContains(t, e.Fields[name], "not known", "%s %s", r.path, name)
			}
		}
		a := b.do(r.method, fill(r.path), `{"no_such_field": 1}`)
		assert.Equal(t, 422, a.status, "%s %s: %s", r.method, r.path, a.body)
		assert.Contains(t, a.body, "no_such_field")
	}
	assert.Greater(t, tried, 200)
	assert.Empty(t, b.f.called(), "nothing of that got anywhere")
}

func text(t *testing.T, v any) string {
	t.Helper()
	p, err := json.Marshal(v)
	require.NoError(t, err)
	return string(p)
}

// beyond gives values that a schema does not take.
func beyond(s *huma.Schema) []any {
	wrong := []any{"text", 1.5, true, []any{map[string]any{}}, map[string]any{"a": []any{}}}
	var out []any
	for _, v := range wrong {
		_, isText := v.(string)
		_, isFlag := v.(bool)
		_, isNumber := v.(float64)
		if isText && s.Type == "string" || isFlag && s.Type == "boolean" || isNumber && s.Type == "number" {
			continue
		}
		out = append(out, v)
	}
	if s.MaxLength != nil && *s.MaxLength <= 1<<18 {
		out = append(out, strings.Repeat("x", *s.MaxLength+1))
	}
	if s.Minimum != nil {
		out = append(out, *s.Minimum-1, -1e300)
	}
	if s.Maximum != nil {
		out = append(out, *s.Maximum+1, 1e300)
	}
	if len(s.Enum) > 0 {
		out = append(out, "no such word")
	}
	if s.MaxProperties != nil {
		many := map[string]any{}
		for i := range *s.MaxProperties + 1 {
			many["k"+strconv.Itoa(i)] = "v"
		}
		out = append(out, many)
	}
	if s.ContentEncoding == "base64" {
		out = append(out, "not base64!")
	}
	return out
}

// What is not one JSON text, or could be read as two things, is a 400 of every call with a body.
func TestEveryBodyIsChecked(t *testing.T) {
	d, b := testDocument(t), start(t)
	b.f.keys[fullKey] = auth.AllPermissions
	for r, schema := range bodies(d) {
		names := slices.Sorted(maps.Keys(properties(d, schema, "")))
		one := names[len(names)-1]
		first, _, _ := strings.Cut(one, ".")
		for what, body := range map[string]string{
			"cut short":        `{"` + first + `":`,
			"cut in a string":  `{"` + first + `":"`,
			"twice":            `{"` + first + `":null,"` + first + `":null}`,
			"twice, escaped":   fmt.Sprintf(`{"%s":null,"\u%04x%s":null}`, first, first[0], first[1:]),
			"more after it":    `{} {}`,
			"not UTF-8":        "{\"" + first + "\":\"\xff\"}",
			"a name not UTF-8": "{\"\xc3\":1}",
			"half a pair":      `{"` + first + `":"\ud800"}`,
			"deep":             `{"` + first + `":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`,
			"NaN":              `{"` + first + `":NaN}`,
		} {
			a := b.do(r.method, fill(r.path), body)
			assert.Equal(t, 400, a.status, "%s %s, %s: %s", r.method, r.path, what, a.body)
		}
		for what, body := range map[string]string{"a list": `[]`, "a number": `1`, "null": `null`} {
			a := b.do(r.method, fill(r.path), body)
			assert.Equal(t, 422, a.status, "%s %s, %s: %s", r.method, r.path, what, a.body)
		}
		size := 2 << 20
		if body := operations[r.method+" "+r.path].body; body == of[commandRequest]() || body == of[stdinRequest]() || body == of[writeRequest]() {
			size = 25 << 20
		}
		a := b.do(r.method, fill(r.path), `{"`+first+`":"`+strings.Repeat("x", size)+`"}`)
		assert.Equal(t, 413, a.status, "%s %s: %.200s", r.method, r.path, a.body)
	}
	assert.Empty(t, b.f.called())
}
