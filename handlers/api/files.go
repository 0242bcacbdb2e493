package api

import (
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"sandgate/auth"
	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

type entryBody struct {
	Name       string  `json:"name"`
	NameB64    []byte  `json:"name_b64,omitempty"` // where the name is not UTF-8
	Path       string  `json:"path"`
	PathB64    []byte  `json:"path_b64,omitempty"` // where the path is not UTF-8
	Type       string  `json:"type"`
	Size       int64   `json:"size"`
	Mode       string  `json:"mode"` // octal digits: "0644"
	Owner      string  `json:"owner"`
	Group      string  `json:"group"`
	ModifiedAt string  `json:"modified_at"`
	Target     *string `json:"target,omitempty"` // of a symlink, as written
	TargetB64  []byte  `json:"target_b64,omitempty"`
	TargetType string  `json:"target_type,omitempty"` // what a symlink leads to; absent when it leads nowhere
	ETag       string  `json:"etag,omitempty"`
}

func toEntry(f agent.FileInfo) entryBody {
	b := entryBody{
		Name: string(f.NameB64), Path: string(f.PathB64), Type: f.Type, Size: f.Size, Mode: octal(f.Mode),
		Owner: f.Owner, Group: f.Group, ModifiedAt: stamp(f.ModifiedAt), TargetType: f.TargetType, ETag: quoted(f.ETag),
	}
	b.NameB64, b.PathB64 = ifNotText(f.NameB64), ifNotText(f.PathB64)
	if f.Type == "symlink" {
		target := string(f.TargetB64)
		b.Target, b.TargetB64 = &target, ifNotText(f.TargetB64)
	}
	return b
}

// octal writes permission bits as four octal digits.
func octal(mode uint32) string {
	s := strconv.FormatUint(uint64(mode&0o7777), 8)
	return strings.Repeat("0", 4-len(s)) + s
}

func ifNotText(p []byte) []byte {
	if utf8.Valid(p) {
		return nil
	}
	return p
}

// content gives bytes from a text field and the field that says how they are written.
func (o *object) content(name, encoding string, limit int) []byte {
	how := o.oneOf(encoding, "utf-8", "utf-8", "base64")
	text := o.text(name, filesBody)
	if how == "utf-8" {
		if len(text) > limit {
			o.fail(name, "is longer than "+strconv.Itoa(limit)+" bytes")
		}
		return []byte(text)
	}
	p, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		o.fail(name, "is not base64")
	}
	if len(p) > limit {
		o.fail(name, "is longer than "+strconv.Itoa(limit)+" bytes")
	}
	return p
}

// queryPath gives the path of the query: path, or in base64 path_b64.
func queryPath(c echo.Context) ([]byte, error) {
	q := c.QueryParams()
	p, field, msg := choosePath("path", q.Get("path"), q.Has("path"), q.Get("path_b64"), q.Has("path_b64"), true)
	if msg != "" {
		return nil, fault.Field(field, "%s", msg)
	}
	return p, nil
}

// queryWhole gives a whole number of the query.
func queryWhole(c echo.Context, name string, lo, hi, def int) (int, error) {
	v := c.QueryParam(name)
	if v == "" {
		return def, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < lo || n > hi {
		return 0, fault.Field(name, "must be a whole number from %d to %d", lo, hi)
	}
	return n, nil
}

// readFile: GET …/files?path=&encoding=.
func (s *server) readFile(c echo.Context) error {
	path, err := queryPath(c)
	if err != nil {
		return err
	}
	encoding := c.QueryParam("encoding")
	if encoding == "" {
		encoding = "utf-8"
	}
	if encoding != "utf-8" && encoding != "base64" {
		return fault.Field("encoding", "must be one of utf-8, base64")
	}
	p, err := s.readWhole(c, path)
	if err != nil {
		return err
	}
	defer p.close()
	if encoding == "utf-8" && !p.text() {
		return fault.Field("encoding", "the file is not UTF-8 text: read it with encoding=base64")
	}
	c.Response().Header().Set(echo.HeaderContentType, "application/json")
	c.Response().WriteHeader(http.StatusOK)
	return writeLong(c.Response(), []longText{{name: "content", from: p, base64: encoding == "base64"}}, contentHead{string(path), ifNotText(path), encoding})
}

// inlineRead is how much of a file comes over the connection that is there already, in bytes; more costs one of its own.
const inlineRead = 256 << 10

// readWhole reads a file of at most s.content bytes; the caller closes it. It does not believe the size: files of /proc
// say that they are empty.
func (s *server) readWhole(c echo.Context, path []byte) (*spool, error) {
	small := min(inlineRead, s.content+1)
	for _, limit := range []int64{small, s.content + 1} {
		p, err := s.readUpTo(c, path, limit)
		if p != nil || err != nil {
			return p, err
		}
	}
	return nil, s.errTooLong()
}

// readUpTo reads a file of less than limit bytes; nil when it is longer.
func (s *server) readUpTo(c echo.Context, path []byte, limit int64) (p *spool, err error) {
	info, r, err := s.svc.ReadFile(c.Request().Context(), actor(c), c.Param("id"), path, 0, limit)
	if err != nil {
		return nil, err
	}
	defer func() {
		if cerr := r.Close(); err == nil {
			err = cerr
		}
		if err != nil && p != nil {
			p.close()
			p = nil
		}
	}()
	switch {
	case info.Size > s.content:
		return nil, s.errTooLong()
	case info.Size >= limit:
		return nil, nil
	}
	p = &spool{dir: s.spoolDir, limit: limit}
	if _, err := io.Copy(p, io.LimitReader(r, limit)); err != nil {
		return p, err
	}
	if p.cut {
		return p, errors.New("read file: no room for it on this host")
	}
	if p.size == limit {
		p.close()
		return nil, nil
	}
	return p, nil
}

func (s *server) errTooLong() error {
	return fault.New(fault.TooLarge, "The file is larger than the %d bytes that this call takes: use files/raw.", s.content)
}

// writeFile: POST …/files {"path","content","encoding"}.
func (s *server) writeFile(c echo.Context) error {
	path, content, err := s.readWrite(c)
	if err != nil {
		return err
	}
	defer content.close()
	_, err = s.svc.WriteFile(c.Request().Context(), actor(c), c.Param("id"), path, content.reader(), agent.WriteOptions{Size: content.size})
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, writtenBody{string(path), ifNotText(path), content.size})
}

// readWrite takes the body of a write apart. The content waits in a spool for a sandbox that may be slow to take it.
func (s *server) readWrite(c echo.Context) (path []byte, content *spool, err error) {
	o, leave, err := s.readLarge(c)
	if err != nil {
		return nil, nil, err
	}
	defer leave()
	path = o.path("path", true)
	if !o.has("content") {
		o.fail("content", "must be given")
	}
	p := o.content("content", "encoding", filesBody)
	if err := o.check(); err != nil {
		return nil, nil, err
	}
	if int64(len(p)) > s.content {
		return nil, nil, s.errTooLong()
	}
	content = &spool{dir: s.spoolDir, limit: s.content}
	if _, err := content.Write(p); err != nil || content.cut {
		content.close()
		return nil, nil, errors.Join(err, errors.New("keep content: no room for it on this host"))
	}
	return path, content, nil
}

// deleteFile: DELETE …/files?path=&recursive=.
func (s *server) deleteFile(c echo.Context) error {
	path, err := queryPath(c)
	if err != nil {
		return err
	}
	recursive, err := queryFlag(c, "recursive")
	if err != nil {
		return err
	}
	if err := s.svc.DeleteFile(c.Request().Context(), actor(c), c.Param("id"), path, recursive); err != nil {
		return err
	}
	return done(c)
}

// listFiles: GET …/files/list?path=&limit=&cursor=&depth=.
func (s *server) listFiles(c echo.Context) error {
	path, err := queryPath(c)
	if err != nil {
		return err
	}
	limit, err := queryWhole(c, "limit", 1, 1000, 200)
	if err != nil {
		return err
	}
	depth, err := queryWhole(c, "depth", 1, 10, 1)
	if err != nil {
		return err
	}
	cursor := c.QueryParam("cursor")
	if len(cursor) > 8<<10 {
		return fault.Field("cursor", "must be one that an earlier answer gave")
	}
	l, err := s.svc.ListFiles(c.Request().Context(), actor(c), c.Param("id"), path, cursor, limit, depth)
	if err != nil {
		return err
	}
	entries := make([]entryBody, 0, len(l.Entries))
	for _, f := range l.Entries {
		entries = append(entries, toEntry(f))
	}
	return writeJSON(c, http.StatusOK, listingBody{entries, orNull(l.Cursor), l.Total})
}

// statFile: GET …/files/stat?path=. A symlink is described itself.
func (s *server) statFile(c echo.Context) error {
	path, err := queryPath(c)
	if err != nil {
		return err
	}
	info, err := s.svc.StatFile(c.Request().Context(), actor(c), c.Param("id"), path)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, toEntry(info))
}

// makeDirectory: POST …/files/mkdir {"path"}.
func (s *server) makeDirectory(c echo.Context) error {
	o, err := readObject(c, smallBody)
	if err != nil {
		return err
	}
	path := o.path("path", true)
	if err := o.check(); err != nil {
		return err
	}
	info, err := s.svc.MakeDirectory(c.Request().Context(), actor(c), c.Param("id"), path)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, toEntry(info))
}

// moveFile: POST …/files/move {"source","destination"}. What is at the destination stays.
func (s *server) moveFile(c echo.Context) error { return s.relocate(c, s.svc.MoveFile) }

// copyFile: POST …/files/copy {"source","destination"}. What is at the destination stays.
func (s *server) copyFile(c echo.Context) error { return s.relocate(c, s.svc.CopyFile) }

// relocate is what both share.
func (s *server) relocate(c echo.Context, do func(ctx context.Context, a auth.Actor, id string, source, destination []byte) (agent.FileInfo, error)) error {
	o, err := readObject(c, smallBody)
	if err != nil {
		return err
	}
	source, destination := o.path("source", true), o.path("destination", true)
	if err := o.check(); err != nil {
		return err
	}
	info, err := do(c.Request().Context(), actor(c), c.Param("id"), source, destination)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, toEntry(info))
}
