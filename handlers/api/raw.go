package api

import (
	"errors"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/files"
)

// maxUnsized bounds a file whose size is not known beforehand (one of /proc), in bytes.
const maxUnsized = 64 << 20

// safeHeaders keep a browser from running what a sandbox wrote: it is bytes to be saved, whatever it looks like.
func safeHeaders(h http.Header, name string) {
	h.Set(echo.HeaderContentType, "application/octet-stream")
	h.Set("Content-Disposition", files.Disposition([]byte(name)))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
}

// baseName is the last part of a path, for saving.
func baseName(p []byte) string {
	switch b := path.Base(string(p)); b {
	case "/", ".", "..":
		return "root"
	default:
		return b
	}
}

// getRaw: GET and HEAD …/files/raw?path=, with conditions and one range.
func (s *server) getRaw(c echo.Context) error {
	p, err := queryPath(c)
	if err != nil {
		return err
	}
	r := c.Request()
	want := r.Header.Get("Range")
	first := int64(-1)
	if r.Method == http.MethodHead || want != "" {
		first = 0 // only what the file is; its bytes are asked for once it is known which
	}
	info, body, err := s.svc.ReadFile(r.Context(), actor(c), c.Param("id"), p, 0, first)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	h := c.Response().Header()
	tag := quoted(info.ETag)
	h.Set("ETag", tag)
	status, err := conditions(r, tag)
	if err != nil {
		return err
	}
	h.Set("Accept-Ranges", "bytes")
	if status != 0 {
		c.Response().WriteHeader(status)
		return nil
	}
	safeHeaders(h, baseName(p))
	h.Set("Last-Modified", info.ModifiedAt.UTC().Format(http.TimeFormat))
	part := span{0, info.Size}
	unsized := info.Size == 0 || virtual(p)
	if want != "" && !unsized && ifRange(r, tag) {
		found, ok, err := parseRange(want, info.Size)
		if err != nil {
			h.Set("Content-Range", "bytes */"+strconv.FormatInt(info.Size, 10))
			dropFileHeaders(h)
			return err
		}
		if ok {
			part, status = found, http.StatusPartialContent
			h.Set("Content-Range", part.contentRange(info.Size))
		}
	}
	if status == 0 {
		status = http.StatusOK
	}
	if !unsized {
		h.Set(echo.HeaderContentLength, strconv.FormatInt(part.length, 10))
	}
	if r.Method == http.MethodHead {
		c.Response().WriteHeader(status)
		return nil
	}
	if first == 0 { // opened for its description: open it again for its bytes
		if unsized {
			part.length = -1
		}
		again, bytes, err := s.svc.ReadFile(r.Context(), actor(c), c.Param("id"), p, part.offset, part.length)
		if err == nil && quoted(again.ETag) != tag && !unsized {
			_ = bytes.Close()
			err = fault.New(fault.Conflict, "The file changed while it was being read. Ask again.")
		}
		if err != nil {
			dropFileHeaders(h)
			return err
		}
		_ = body.Close()
		body = bytes
	}
	c.Response().WriteHeader(status)
	if unsized {
		return copyUnsized(c.Response(), body)
	}
	if part.length > 0 {
		c.Response().Flush() // a file that breaks off early must be a cut answer, not a connection that says nothing
	}
	n, err := io.Copy(c.Response(), io.LimitReader(body, part.length))
	if err == nil && n < part.length {
		err = errors.New("the file became shorter while it was read")
	}
	return err // the status is out: the writer of errors cuts the connection, so that nobody takes this for all
}

// copyUnsized sends a file that has no true size, up to a bound beyond which the answer is cut visibly.
func copyUnsized(w io.Writer, body io.Reader) error {
	n, err := io.Copy(w, io.LimitReader(body, maxUnsized+1))
	if err == nil && n > maxUnsized {
		err = errors.New("a file without a size went on for too long")
	}
	return err
}

// virtual tells paths whose sizes lie: the kernel makes their content up when they are read.
func virtual(p []byte) bool {
	clean := path.Clean(string(p))
	return strings.HasPrefix(clean, "/proc/") || strings.HasPrefix(clean, "/sys/")
}

// dropFileHeaders takes back what describes a file, for an answer that is an error instead.
func dropFileHeaders(h http.Header) {
	for _, name := range []string{"Content-Disposition", "Last-Modified", "Accept-Ranges", "Content-Length", "ETag"} {
		h.Del(name)
	}
}

// putRaw: PUT …/files/raw?path=, the body being the file. If-Match and If-None-Match: * guard against lost updates.
func (s *server) putRaw(c echo.Context) error {
	p, err := queryPath(c)
	if err != nil {
		return err
	}
	r := c.Request()
	o := agent.WriteOptions{Size: r.ContentLength}
	if r.Header.Get("Content-Range") != "" {
		return fault.New(fault.BadRequest, "A file is written whole: Content-Range is not taken.")
	}
	if o.IfMatch, err = oneTag(r, "If-Match"); err != nil {
		return err
	}
	if o.IfNoneMatch, err = oneTag(r, "If-None-Match"); err != nil {
		return err
	}
	if o.IfNoneMatch != "" && o.IfNoneMatch != "*" {
		return fault.Field("If-None-Match", "must be * here: write only when nothing is there")
	}
	if err := refuseApprovalID(c); err != nil {
		return err
	}
	info, err := s.svc.WriteFile(r.Context(), actor(c), c.Param("id"), p, r.Body, o)
	if err != nil {
		return err
	}
	c.Response().Header().Set("ETag", quoted(info.ETag))
	return writeJSON(c, http.StatusOK, toEntry(info))
}

// archive: GET …/files/archive?path=&format=tar|zip. It streams; an archive that breaks off ends without its end.
func (s *server) archive(c echo.Context) error {
	p, err := queryPath(c)
	if err != nil {
		return err
	}
	format := c.QueryParam("format")
	if format == "" {
		format = "tar"
	}
	if format != "tar" && format != "zip" {
		return fault.Field("format", "must be one of tar, zip")
	}
	r, err := s.svc.ArchiveFiles(c.Request().Context(), actor(c), c.Param("id"), p, format)
	if err != nil {
		return err
	}
	defer r.Close()
	safeHeaders(c.Response().Header(), baseName(p)+"."+format)
	c.Response().WriteHeader(http.StatusOK)
	c.Response().Flush() // an archive that breaks off early must be a cut answer, not a connection that says nothing
	_, err = io.Copy(c.Response(), r)
	return err
}
