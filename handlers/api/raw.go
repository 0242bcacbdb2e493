package api

import (
	"errors"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"

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

// plan is what of a file is to be answered, and how.
type plan struct {
	tag     string
	status  int
	part    span
	whole   bool  // part is all of it
	unsized bool  // its size is not to be believed
	most    int64 // bytes that were asked for; -1: all
}

// planOf judges the conditions and the range of a request against a file. An error comes with the headers that it needs.
func planOf(r *http.Request, h http.Header, p []byte, info agent.FileInfo) (plan, error) {
	pl := plan{
		tag: quoted(info.ETag), status: http.StatusOK, part: span{0, info.Size}, whole: true, unsized: info.Size == 0 || virtual(p),
	}
	if status, err := conditions(r, pl.tag); err != nil || status != 0 {
		pl.status = status
		return pl, err
	}
	want := r.Header.Get("Range")
	if want == "" || pl.unsized || !ifRange(r, pl.tag) {
		return pl, nil
	}
	part, ok, err := parseRange(want, info.Size)
	if err != nil {
		h.Set("Content-Range", "bytes */"+strconv.FormatInt(info.Size, 10))
		return pl, err
	}
	if ok {
		pl.part, pl.whole, pl.status = part, false, http.StatusPartialContent
	}
	return pl, nil
}

// getRaw: GET and HEAD …/files/raw?path=, with conditions and one range. What the file is must be known before it is known
// which bytes of it are wanted, so a range or a large file is opened twice; should it change in between, the plan is made
// again for what was opened.
func (s *server) getRaw(c echo.Context) error {
	p, err := queryPath(c)
	if err != nil {
		return err
	}
	r := c.Request()
	opened := span{0, inlineRead}
	if r.Method == http.MethodHead || r.Header.Get("Range") != "" {
		opened.length = 0
	}
	for range 4 {
		info, body, err := s.svc.ReadFile(r.Context(), actor(c), c.Param("id"), p, opened.offset, opened.length)
		if err != nil {
			return err
		}
		pl, err := planOf(r, c.Response().Header(), p, info)
		ready := r.Method == http.MethodHead || pl.status == http.StatusNotModified || opened.length < 0 && pl.whole ||
			opened.offset == pl.part.offset && opened.length >= max(pl.part.length, 1) && !virtual(p)
		if err != nil || ready {
			if err == nil {
				pl.most = opened.length
				err = sendRaw(c, p, info, pl, body)
			}
			_ = body.Close()
			return err
		}
		_ = body.Close()
		if opened = pl.part; pl.whole {
			opened.length = -1
		}
	}
	return fault.New(fault.Conflict, "The file keeps changing while it is being read. Ask again.")
}

// sendRaw answers with a file as planned. Once the status is out an error cuts the connection, so that nobody takes what
// was sent for all of it.
func sendRaw(c echo.Context, p []byte, info agent.FileInfo, pl plan, body io.Reader) error {
	h := c.Response().Header()
	h.Set("ETag", pl.tag)
	h.Set("Accept-Ranges", "bytes")
	if pl.status != http.StatusNotModified {
		safeHeaders(h, baseName(p))
		h.Set("Last-Modified", info.ModifiedAt.UTC().Format(http.TimeFormat))
		if !pl.unsized {
			h.Set(echo.HeaderContentLength, strconv.FormatInt(pl.part.length, 10))
		}
		if !pl.whole {
			h.Set("Content-Range", pl.part.contentRange(info.Size))
		}
	}
	c.Response().WriteHeader(pl.status)
	if c.Request().Method == http.MethodHead || pl.status == http.StatusNotModified {
		return nil
	}
	if pl.unsized {
		return copyUnsized(c.Response(), body, pl.most)
	}
	if pl.part.length > inlineRead {
		c.Response().Flush() // a file that breaks off early must be a cut answer, not a connection that says nothing
	}
	n, err := copyLarge(c.Response(), io.LimitReader(body, pl.part.length))
	if err == nil && n < pl.part.length {
		err = errors.New("the file became shorter while it was read")
	}
	return err
}

// transferBuffers are as large as the pipe to a sandbox gives at once: with the 32 KiB of io.Copy a large file would cost
// eight times the system calls.
var transferBuffers = sync.Pool{New: func() any { b := make([]byte, 256<<10); return &b }}

func copyLarge(w io.Writer, r io.Reader) (int64, error) {
	buf := transferBuffers.Get().(*[]byte)
	defer transferBuffers.Put(buf)
	// Without its shortcuts, which would choose buffers of their own.
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, *buf)
}

// copyUnsized sends a file that has no true size; most bytes of it were asked for, -1: all. One that may go on beyond what
// was read is cut visibly.
func copyUnsized(w io.Writer, body io.Reader, most int64) error {
	if most < 0 || most > maxUnsized {
		most = maxUnsized + 1
	}
	n, err := io.Copy(w, io.LimitReader(body, most))
	if err == nil && n == most {
		err = errors.New("a file without a size went on for too long")
	}
	return err
}

// virtual tells paths whose sizes lie: the kernel makes their content up when they are read.
func virtual(p []byte) bool {
	clean := path.Clean(string(p))
	return strings.HasPrefix(clean, "/proc/") || strings.HasPrefix(clean, "/sys/")
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
	// Any pace will do, as long as something comes.
	in := &patient{r: r.Body, rc: http.NewResponseController(c.Response().Writer), step: 1, patience: s.patience}
	info, err := s.svc.WriteFile(r.Context(), actor(c), c.Param("id"), p, in, o)
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
	format, err := archiveFormat(c)
	if err != nil {
		return err
	}
	r, err := s.svc.ArchiveFiles(c.Request().Context(), actor(c), c.Param("id"), p, format)
	if err != nil {
		return err
	}
	defer r.Close()
	safeHeaders(c.Response().Header(), baseName(p)+"."+format)
	c.Response().WriteHeader(http.StatusOK)
	c.Response().Flush() // an archive that breaks off early must be a cut answer, not a connection that says nothing
	_, err = copyLarge(c.Response(), r)
	return err
}
