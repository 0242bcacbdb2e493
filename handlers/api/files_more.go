package api

import (
	"context"
	"net/http"
	"path"
	"regexp"
	"strconv"

	"github.com/labstack/echo/v4"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

// hitBody is a file that was found.
type hitBody struct {
	entryBody
	Line int64  `json:"line,omitempty"` // of the first match, from 1
	Text string `json:"text,omitempty"` // of that line
}

// searchBody is a page of what was found.
type searchBody struct {
	Entries []hitBody `json:"entries"`
	Cursor  *string   `json:"cursor" doc:"Goes on from here; null when all was searched."`
	Stopped *string   `json:"stopped" doc:"What ended the page early: limit, time, entries or bytes."`
	Partial int       `json:"partial" doc:"Files and directories that could not be searched whole."`
}

// searchFiles: GET …/files/search?path=&name=&content=&limit=&cursor=. A page may end early, with a cursor to go on from.
func (s *server) searchFiles(c echo.Context) error {
	p, err := queryPath(c)
	if err != nil {
		return err
	}
	limit, err := queryWhole(c, "limit", 1, 1000, 200)
	if err != nil {
		return err
	}
	v := c.QueryParams()
	q := agent.SearchQuery{Name: v.Get("name"), Content: []byte(v.Get("content")), Limit: limit, Cursor: v.Get("cursor")}
	if b64 := v.Get("content_b64"); b64 != "" {
		if len(q.Content) > 0 {
			return fault.Field("content", "is given twice, as text and as base64")
		}
		if q.Content, err = decodeBase64(b64); err != nil {
			return fault.Field("content_b64", "is not base64")
		}
	}
	if msg := agent.SearchName(q.Name); msg != "" {
		return fault.Field("name", "%s", msg)
	}
	if _, err := path.Match(q.Name, ""); err != nil {
		return fault.Field("name", "is not a pattern: close its brackets, and let nothing end in a backslash")
	}
	switch {
	case q.Name == "" && len(q.Content) == 0:
		return fault.Field("name", "or content must be given")
	case len(q.Content) > agent.MaxNeedle:
		return fault.Field("content", "is longer than %d bytes", agent.MaxNeedle)
	case len(q.Cursor) > 8<<10:
		return fault.Field("cursor", "must be one that an earlier answer gave")
	}
	page, err := s.svc.SearchFiles(c.Request().Context(), actor(c), c.Param("id"), p, q)
	if err != nil {
		return err
	}
	entries := make([]hitBody, 0, len(page.Hits))
	for _, h := range page.Hits {
		entries = append(entries, hitBody{toEntry(h.FileInfo), h.Line, string(h.Text)})
	}
	return writeJSON(c, http.StatusOK, searchBody{entries, orNull(page.Cursor), orNull(page.Stopped), page.Partial})
}

// changeBody is one event of a watch.
type changeBody struct {
	Type      string `json:"type"`
	Path      string `json:"path,omitempty"`
	PathB64   []byte `json:"path_b64,omitempty"`
	To        string `json:"to,omitempty"`
	ToB64     []byte `json:"to_b64,omitempty"`
	Directory bool   `json:"directory,omitempty"`
}

// watchFiles: GET …/files/watch?path=&recursive=.
func (s *server) watchFiles(c echo.Context) error {
	p, err := queryPath(c)
	if err != nil {
		return err
	}
	recursive, err := queryFlag(c, "recursive")
	if err != nil {
		return err
	}
	a, id := actor(c), c.Param("id")
	return s.serveLive(c, func(ctx context.Context, send func(any) error) error {
		return s.svc.WatchFiles(ctx, a, id, p, recursive, func(f agent.FileChange) error {
			return send(changeBody{
				Type: f.Type, Path: string(f.PathB64), PathB64: ifNotText(f.PathB64),
				To: string(f.ToB64), ToB64: ifNotText(f.ToB64), Directory: f.Directory,
			})
		})
	})
}

// queryFlag gives a bool of the query; false when absent.
func queryFlag(c echo.Context, name string) (bool, error) {
	switch c.QueryParam(name) {
	case "", "false", "0":
		return false, nil
	case "true", "1":
		return true, nil
	}
	return false, fault.Field(name, "must be true or false")
}

var modePattern = regexp.MustCompile(`^[0-7]{3,4}$`)

// chmodFile: POST …/files/chmod {"path","mode"}; the mode is octal digits, as in a listing.
func (s *server) chmodFile(c echo.Context) error {
	o, err := readObject(c, smallBody)
	if err != nil {
		return err
	}
	p, mode := o.path("path", true), o.word("mode", 4)
	if !modePattern.MatchString(mode) {
		o.fail("mode", `must be three or four octal digits as text: "0644"`)
	}
	if err := o.check(); err != nil {
		return err
	}
	bits, err := strconv.ParseUint(mode, 8, 12)
	if err != nil {
		return fault.Field("mode", "must be octal digits")
	}
	info, err := s.svc.ChmodFile(c.Request().Context(), actor(c), c.Param("id"), p, uint32(bits))
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, toEntry(info))
}

// archiveFormat reads format of the query; tar unless given.
func archiveFormat(c echo.Context) (string, error) {
	switch f := c.QueryParam("format"); f {
	case "":
		return "tar", nil
	case "tar", "tar.gz", "zip":
		return f, nil
	}
	return "", fault.Field("format", "must be one of tar, tar.gz, zip")
}

// unpackedBody tells what an archive became, and where.
type unpackedBody struct {
	Path    string `json:"path"`
	PathB64 []byte `json:"path_b64,omitempty"`
	agent.Unpacked
}

// unpack: PUT …/files/archive?path=&format=, the body being the archive. All of it is unpacked, or nothing.
func (s *server) unpack(c echo.Context) error {
	p, err := queryPath(c)
	if err != nil {
		return err
	}
	format, err := archiveFormat(c)
	if err != nil {
		return err
	}
	r := c.Request()
	if r.Header.Get("Content-Encoding") != "" {
		return fault.New(fault.BadRequest, "An archive is sent as it is: Content-Encoding is not taken.")
	}
	// Any pace will do, as long as something comes: unpacking many files inside takes longer than any one of them to arrive.
	in := &patient{r: r.Body, rc: http.NewResponseController(c.Response().Writer), step: 1, patience: s.patience}
	u, err := s.svc.UnpackFiles(r.Context(), actor(c), c.Param("id"), p, format, in, r.ContentLength)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, unpackedBody{string(p), ifNotText(p), u})
}
