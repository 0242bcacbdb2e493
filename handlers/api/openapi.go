package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/labstack/echo/v4"

	"sandgate/auth"
)

// document is the description of the whole face, made once from the table, the operations and the types that are sent and
// read. Immutable.
type document struct {
	api  *huma.OpenAPI
	json []byte
	page []byte
}

const (
	documentPath = "/v1/openapi.json"
	docsPath     = "/v1/docs"
)

// isOpen reports whether a path answers without a key: what the calls are is no secret.
func isOpen(path string) bool { return path == documentPath || path == docsPath }

// open lists the paths that isOpen names.
func (s *server) open() map[string]echo.HandlerFunc {
	return map[string]echo.HandlerFunc{documentPath: s.getDocument, docsPath: s.getDocs}
}

// getDocument: GET /v1/openapi.json.
func (s *server) getDocument(c echo.Context) error {
	c.Response().Header().Set("Cache-Control", "no-cache")
	return c.Blob(http.StatusOK, "application/json", s.doc.json)
}

// newDocument builds the document, and the page that shows it.
func newDocument(rows []route) (*document, error) {
	b := builder{schemas: huma.NewMapRegistry("#/components/schemas/", schemaName), seen: map[reflect.Type]bool{}}
	api := &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{
			Title: "Sandgate", Version: "1",
			Description: "Sandboxes over REST. Every answer bears X-Request-ID. A sandbox of another workspace, one that is gone and one that never was are answered alike: 404.",
		},
		Paths:    map[string]*huma.PathItem{},
		Security: []map[string][]string{{"X-API-Key": {}}, {"Bearer": {}}},
	}
	errorSchema := b.schema(of[errorBody]())
	b.schema(of[event]())
	b.schemas.Map()["ErrorBody"].AdditionalProperties = true // reason, retry_after, approval_id
	for _, r := range rows {
		op, known := operations[r.method+" "+r.path]
		if !known {
			return nil, fmt.Errorf("api: %s %s is not described: give it an entry in operations", r.method, r.path)
		}
		b.add(api, r, op, errorSchema)
	}
	b.open(api)
	api.Components = &huma.Components{
		Schemas: b.schemas,
		SecuritySchemes: map[string]*huma.SecurityScheme{
			"X-API-Key": {Type: "apiKey", In: "header", Name: "X-API-Key", Description: "A key, as People & keys and sandgate key create make it."},
			"Bearer":    {Type: "http", Scheme: "bearer", Description: "The same key."},
		},
	}
	d := &document{api: api}
	var err error
	if d.json, err = json.Marshal(api); err != nil {
		return nil, fmt.Errorf("write the document of the API: %w", err)
	}
	d.page, err = docsPage(api)
	return d, err
}

// schemaName names a type as readers of the document see it: SandboxBody, CreateRequest.
func schemaName(t reflect.Type, hint string) string { return huma.DefaultSchemaNamer(t, hint) }

// builder turns types into schemas.
type builder struct {
	schemas huma.Registry
	seen    map[reflect.Type]bool
}

// schema gives the schema of a type, and mends what the registry does not know about ours.
func (b *builder) schema(t reflect.Type) *huma.Schema {
	s := b.schemas.Schema(t, true, "")
	b.mend(t)
	return s
}

// mend goes through a type and those inside it: fields of embedded types belong to it, arrays are never null in an answer,
// and in a request every field that may be left out may be null as well.
func (b *builder) mend(t reflect.Type) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || b.seen[t] {
		return
	}
	b.seen[t] = true
	s := b.schemas.Map()[schemaName(t, "")]
	if s == nil {
		return
	}
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous && f.Type.Kind() == reflect.Struct {
			inner := b.schemas.SchemaFromRef(b.schema(f.Type).Ref)
			for name, p := range inner.Properties {
				s.Properties[name] = p
			}
			s.Required = append(s.Required, inner.Required...)
			continue
		}
		b.mend(f.Type)
	}
	request := strings.HasSuffix(t.Name(), "Request")
	for name, p := range s.Properties {
		if p.Type == huma.TypeArray {
			p.Nullable = false
		}
		if request && !slices.Contains(s.Required, name) {
			if p.Ref != "" {
				s.Properties[name] = &huma.Schema{AnyOf: []*huma.Schema{p, {Type: "null"}}}
				continue
			}
			p.Nullable = true
			if len(p.Enum) > 0 {
				p.Enum = append(p.Enum, nil)
			}
		}
	}
	slices.Sort(s.Required)
	s.Required = slices.Compact(s.Required) // the registry knows embedded types that are exported
}

// add describes one row.
func (b *builder) add(api *huma.OpenAPI, r route, op operation, errorSchema *huma.Schema) {
	o := &huma.Operation{
		OperationID: operationID(r), Method: r.method, Path: r.path, Summary: op.summary, Description: about(r, op), Tags: []string{op.tag},
		Extensions: map[string]any{"x-permission": r.need}, Responses: map[string]*huma.Response{},
	}
	if r.need == nil {
		o.Extensions["x-permission"] = []auth.Permission{}
	}
	path := r.path
	for _, part := range strings.Split(r.path, "/") {
		if name, is := strings.CutPrefix(part, ":"); is {
			p := pathParams[name]
			p.name, p.required = name, true
			o.Parameters = append(o.Parameters, p.in("path"))
			path = strings.Replace(path, part, "{"+name+"}", 1)
		}
	}
	for _, p := range op.query {
		o.Parameters = append(o.Parameters, p.in("query"))
	}
	for _, p := range op.headers {
		o.Parameters = append(o.Parameters, p.in("header"))
	}
	switch {
	case op.body != nil:
		o.RequestBody = &huma.RequestBody{
			Content: map[string]*huma.MediaType{"application/json": {Schema: b.schema(op.body)}}, Required: len(b.required(op.body)) > 0,
		}
	case op.media != "":
		o.RequestBody = &huma.RequestBody{Content: map[string]*huma.MediaType{op.media: {Schema: &huma.Schema{Type: "string", Format: "binary"}}}, Required: true}
	}
	for _, a := range op.answers {
		o.Responses[strconv.Itoa(a.status)] = b.response(a)
	}
	if asksFor[r.action] && r.method != http.MethodGet {
		b.asks(o)
	}
	for _, status := range refusals(r, op) {
		o.Responses[strconv.Itoa(status)] = &huma.Response{
			Description: http.StatusText(status), Headers: answerHeaders(retryHeader(status)...),
			Content: map[string]*huma.MediaType{"application/json": {Schema: errorSchema}},
		}
	}
	// By the listener itself, which reads no further: a line of text.
	o.Responses["431"] = &huma.Response{Description: "The address and the headers are longer than 64 KiB."}
	item := api.Paths[path]
	if item == nil {
		item = &huma.PathItem{}
		api.Paths[path] = item
	}
	place(item, r.method, o)
	if r.path == rawPath && r.method == http.MethodGet {
		head := *o
		head.OperationID, head.Summary = "head"+strings.TrimPrefix(o.OperationID, "get"), "Describe a file's bytes"
		item.Head = &head
	}
}

// asks describes the headers of a call that may have to be approved, and the answer to one that does not wait.
func (b *builder) asks(o *huma.Operation) {
	for _, p := range asksHeaders {
		o.Parameters = append(o.Parameters, p.in("header"))
	}
	schema, about := b.schema(of[askedBody]()), "It waits for approval; asked for by Prefer: respond-async."
	if r := o.Responses["202"]; r != nil {
		schema = &huma.Schema{AnyOf: []*huma.Schema{r.Content["application/json"].Schema, schema}}
		about = r.Description + " Or: " + about
	}
	o.Responses["202"] = &huma.Response{
		Description: about, Headers: answerHeaders("Preference-Applied"), Content: map[string]*huma.MediaType{"application/json": {Schema: schema}},
	}
}

const rawPath = "/v1/sandboxes/:id/files/raw"

func place(item *huma.PathItem, method string, o *huma.Operation) {
	switch method {
	case http.MethodGet:
		item.Get = o
	case http.MethodPost:
		item.Post = o
	case http.MethodPut:
		item.Put = o
	case http.MethodPatch:
		item.Patch = o
	case http.MethodDelete:
		item.Delete = o
	}
}

func (b *builder) required(t reflect.Type) []string {
	return b.schemas.SchemaFromRef(b.schemas.Schema(t, true, "").Ref).Required
}

func (p param) in(where string) *huma.Param {
	schema := p.schema
	return &huma.Param{Name: p.name, In: where, Description: p.about, Required: p.required, Schema: &schema}
}

func (b *builder) response(a reply) *huma.Response {
	r := &huma.Response{Description: a.about, Headers: answerHeaders(a.headers...)}
	if a.json == nil && a.media == "" {
		return r
	}
	r.Content = map[string]*huma.MediaType{}
	if a.json != nil {
		r.Content["application/json"] = &huma.MediaType{Schema: b.schema(a.json)}
	}
	if a.media != "" {
		r.Content[a.media] = &huma.MediaType{Schema: &huma.Schema{Type: "string"}}
	}
	if a.media == eventStream { // which has no schema as a whole
		r.Content[a.media] = &huma.MediaType{Extensions: map[string]any{"x-event": b.events(a.events)}}
	}
	return r
}

// events describes the data of one event: a command's unless said otherwise.
func (b *builder) events(kinds []reflect.Type) *huma.Schema {
	if len(kinds) == 0 {
		return b.schema(of[event]())
	}
	var s huma.Schema
	for _, t := range kinds {
		s.AnyOf = append(s.AnyOf, b.schema(t))
	}
	return &s
}

func answerHeaders(more ...string) map[string]*huma.Param {
	out := map[string]*huma.Param{}
	for _, name := range append(more, requestIDHeader) {
		out[name] = &huma.Param{Schema: &huma.Schema{Type: "string"}}
	}
	return out
}

func retryHeader(status int) []string {
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		return []string{"Retry-After"}
	}
	return nil
}

// refusals are the statuses that an error of this call can have.
func refusals(r route, op operation) []int {
	out := append([]int{400, 401, 429, 500, 503}, op.refusals...)
	if r.need != nil || r.path == socketPath {
		out = append(out, 403)
	}
	if strings.Contains(r.path, ":") {
		out = append(out, 404)
	}
	if r.stream {
		out = append(out, 409) // as many calls open as a key may have
	}
	if op.body != nil {
		out = append(out, 413, 422)
	}
	if asksFor[r.action] && r.method != http.MethodGet {
		out = append(out, 409, 413, 422)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// about is the description, with who may.
func about(r route, op operation) string {
	words := make([]string, len(r.need))
	for i, p := range r.need {
		words[i] = string(p)
	}
	who := "Any valid key."
	if len(words) > 0 {
		who = "Needs " + strings.Join(words, " or ") + "."
	}
	return strings.TrimSpace(op.about + " " + who)
}

// operationID makes a name from method and path: getSandboxesIdFilesRaw.
func operationID(r route) string {
	id := strings.ToLower(r.method)
	for _, part := range strings.FieldsFunc(strings.TrimPrefix(r.path, "/v1/"), func(c rune) bool { return strings.ContainsRune("/:-", c) }) {
		id += strings.ToUpper(part[:1]) + part[1:]
	}
	return id
}

// open describes the two paths that need no key.
func (b *builder) open(api *huma.OpenAPI) {
	free := []map[string][]string{{}}
	for path, media := range map[string]string{documentPath: "application/json", docsPath: "text/html"} {
		summary, schema := "This document", &huma.Schema{Type: "object", AdditionalProperties: true}
		if path == docsPath {
			summary, schema = "This document as a page", &huma.Schema{Type: "string"}
		}
		r := route{method: http.MethodGet, path: path}
		api.Paths[path] = &huma.PathItem{Get: &huma.Operation{
			OperationID: operationID(r), Summary: summary, Description: "No key is needed.", Tags: []string{"document"}, Security: free,
			Responses: map[string]*huma.Response{"200": {
				Description: "It.", Headers: answerHeaders(), Content: map[string]*huma.MediaType{media: {Schema: schema}},
			}},
		}}
	}
}
