package api

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // of the page
	"encoding/base64"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/labstack/echo/v4"
)

//go:embed docs.html
var docsHTML string

//go:embed docs.css
var docsCSS string

var docsTemplate = template.Must(template.New("docs").Parse(docsHTML))

// docsPolicy lets the page have its one style and nothing else: no script, no request to anywhere.
var docsPolicy = func() string {
	sum := sha256.Sum256([]byte(docsCSS))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}()

// getDocs: GET /v1/docs. The document as a page, made when the server starts.
func (s *server) getDocs(c echo.Context) error {
	c.Response().Header().Set("Cache-Control", "no-cache")
	c.Response().Header().Set("Content-Security-Policy", docsPolicy)
	return c.Blob(http.StatusOK, "text/html; charset=utf-8", s.doc.page)
}

type docsCall struct {
	ID, Method, Path, Summary, About string
	Params                           []docsField
	Body                             []docsBody
	Answers                          []docsAnswer
}

type docsField struct {
	Name, In, Type, Ref, About string
	Required                   bool
}

type docsBody struct{ Media, Type, Ref string }

type docsAnswer struct {
	Status, About string
	Bodies        []docsBody
}

type docsPart struct {
	Name  string
	Calls []docsCall
}

type docsType struct {
	Name   string
	Fields []docsField
}

// docsPage renders the document.
func docsPage(api *huma.OpenAPI) ([]byte, error) {
	byTag := map[string][]docsCall{}
	for _, path := range slices.Sorted(maps.Keys(api.Paths)) {
		item := api.Paths[path]
		for _, m := range []struct {
			method string
			op     *huma.Operation
		}{{"GET", item.Get}, {"HEAD", item.Head}, {"POST", item.Post}, {"PUT", item.Put}, {"PATCH", item.Patch}, {"DELETE", item.Delete}} {
			if m.op != nil {
				byTag[m.op.Tags[0]] = append(byTag[m.op.Tags[0]], callOf(m.method, path, m.op))
			}
		}
	}
	view := struct {
		Style template.CSS
		About string
		Parts []docsPart
		Types []docsType
	}{Style: template.CSS(docsCSS), About: api.Info.Description}
	for _, tag := range slices.Sorted(maps.Keys(byTag)) {
		view.Parts = append(view.Parts, docsPart{tag, byTag[tag]})
	}
	schemas := api.Components.Schemas.Map()
	for _, name := range slices.Sorted(maps.Keys(schemas)) {
		t := docsType{Name: name}
		for _, field := range slices.Sorted(maps.Keys(schemas[name].Properties)) {
			p := schemas[name].Properties[field]
			t.Fields = append(t.Fields, docsField{
				Name: field, Type: typeText(p), Ref: refName(p), About: p.Description, Required: slices.Contains(schemas[name].Required, field),
			})
		}
		view.Types = append(view.Types, t)
	}
	var out bytes.Buffer
	if err := docsTemplate.Execute(&out, view); err != nil {
		return nil, fmt.Errorf("write the page of the API: %w", err)
	}
	return out.Bytes(), nil
}

func callOf(method, path string, op *huma.Operation) docsCall {
	c := docsCall{ID: op.OperationID, Method: method, Path: path, Summary: op.Summary, About: op.Description}
	if method == http.MethodHead {
		c.ID = "head-" + op.OperationID
	}
	for _, p := range op.Parameters {
		c.Params = append(c.Params, docsField{Name: p.Name, In: p.In, Type: typeText(p.Schema), About: p.Description, Required: p.Required})
	}
	if op.RequestBody != nil {
		c.Body = bodiesOf(op.RequestBody.Content)
	}
	for _, status := range slices.Sorted(maps.Keys(op.Responses)) {
		r := op.Responses[status]
		c.Answers = append(c.Answers, docsAnswer{status, r.Description, bodiesOf(r.Content)})
	}
	return c
}

func bodiesOf(content map[string]*huma.MediaType) []docsBody {
	var out []docsBody
	for _, media := range slices.Sorted(maps.Keys(content)) {
		s := content[media].Schema
		out = append(out, docsBody{media, typeText(s), refName(s)})
	}
	return out
}

// refName is the named type that a schema is, holds, or may be; "" for none.
func refName(s *huma.Schema) string {
	switch {
	case s == nil:
		return ""
	case s.Ref != "":
		return s.Ref[strings.LastIndexByte(s.Ref, '/')+1:]
	case s.Items != nil:
		return refName(s.Items)
	case len(s.AnyOf) > 0:
		return refName(s.AnyOf[0])
	}
	return ""
}

// typeText says in a few words what a schema takes.
func typeText(s *huma.Schema) string {
	switch {
	case s == nil:
		return ""
	case s.Ref != "":
		return refName(s)
	case len(s.AnyOf) > 0:
		return typeText(s.AnyOf[0]) + " or null"
	case s.Type == huma.TypeArray:
		return "list of " + typeText(s.Items)
	case s.Type == huma.TypeObject:
		if inner, ok := s.AdditionalProperties.(*huma.Schema); ok {
			return "object of " + typeText(inner)
		}
		return "object"
	}
	words := []string{s.Type}
	if len(s.Enum) > 0 {
		words = nil
		for _, e := range s.Enum {
			if e != nil {
				words = append(words, fmt.Sprint(e))
			}
		}
		words = []string{strings.Join(words, " | ")}
	}
	if s.ContentEncoding != "" {
		words = append(words, "in "+s.ContentEncoding)
	}
	if s.Minimum != nil || s.Maximum != nil {
		words = append(words, "from "+limitText(s.Minimum)+" to "+limitText(s.Maximum))
	}
	if s.MaxLength != nil {
		words = append(words, "of at most "+strconv.Itoa(*s.MaxLength)+" characters")
	}
	if s.Nullable {
		words = append(words, "or null")
	}
	return strings.Join(words, " ")
}

func limitText(f *float64) string {
	if f == nil {
		return "any"
	}
	return strconv.FormatFloat(*f, 'g', -1, 64)
}
