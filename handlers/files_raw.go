package handlers

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/files"
)

// attachment makes browsers save what comes, whatever it looks like: nothing from inside a sandbox is ever run or shown as
// a page of ours.
func attachment(h http.Header, name []byte) {
	h.Set("Content-Disposition", files.Disposition(name))
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
}

// fileDownload sends a file. A file that shrinks on the way is a broken connection, never a short file.
func (s *Server) fileDownload(v *visit) error {
	p, err := pathOf(v.Request().URL.Query(), "path")
	if err != nil {
		return err
	}
	length := int64(-1)
	if v.Request().Method == http.MethodHead {
		length = 0
	}
	info, body, err := s.o.Service.ReadFile(v.ctx(), v.actor, v.Param("id"), p, 0, length)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	h := v.Response().Header()
	attachment(h, baseName(p))
	if info.ETag != "" {
		h.Set("ETag", `"`+strings.Trim(info.ETag, `"`)+`"`)
	}
	if info.Size > 0 { // files of the kernel's say 0 and have something in them
		h.Set("Content-Length", strconv.FormatInt(info.Size, 10))
	}
	v.longAnswer()
	v.Response().WriteHeader(http.StatusOK)
	if v.Request().Method == http.MethodHead {
		return nil
	}
	if info.Size == 0 {
		_, err = io.Copy(v.Response(), io.LimitReader(body, 64<<20))
		return err
	}
	n, err := io.Copy(v.Response(), io.LimitReader(body, info.Size))
	if err == nil && n < info.Size {
		err = errors.New("download: the file became shorter while it was read")
	}
	return err
}

// longAnswer takes the server's time limit for pages off a transfer.
func (v *visit) longAnswer() {
	rc := http.NewResponseController(v.Response().Writer)
	_ = rc.SetWriteDeadline(time.Time{})
	_ = rc.SetReadDeadline(time.Time{})
}

// rasterTypes are what an <img> may show; an SVG is a program.
var rasterTypes = map[string]bool{"image/png": true, "image/jpeg": true, "image/gif": true, "image/webp": true}

// maxImage bounds an image that a page shows.
const maxImage = 20 << 20

// fileImage sends a picture for an <img> in a preview: only types that can't hold a script, by what the bytes are.
func (s *Server) fileImage(v *visit) error {
	p, err := pathOf(v.Request().URL.Query(), "path")
	if err != nil {
		return err
	}
	info, body, err := s.o.Service.ReadFile(v.ctx(), v.actor, v.Param("id"), p, 0, -1)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	if info.Size > maxImage {
		return fault.New(fault.TooLarge, "This image is too large to be shown here.")
	}
	start := make([]byte, 512)
	n, err := io.ReadFull(body, start)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fault.Wrap(err, fault.BadRequest, "This is no image that can be shown.")
	}
	media := http.DetectContentType(start[:n])
	if !rasterTypes[media] {
		return fault.New(fault.BadRequest, "This is no image that can be shown.")
	}
	h := v.Response().Header()
	attachment(h, baseName(p))
	h.Set("Content-Type", media)
	v.Response().WriteHeader(http.StatusOK)
	if _, err := v.Response().Write(start[:n]); err != nil {
		return err
	}
	_, err = io.Copy(v.Response(), io.LimitReader(body, maxImage))
	return err
}

// fileArchive sends a folder as one file. One that breaks off has no end, so that nobody takes it for whole.
func (s *Server) fileArchive(v *visit) error {
	p, err := pathOf(v.Request().URL.Query(), "path")
	if err != nil {
		return err
	}
	format := v.QueryParam("format")
	if format != "tar" && format != "zip" {
		return fault.Field("format", "must be tar or zip")
	}
	body, err := s.o.Service.ArchiveFiles(v.ctx(), v.actor, v.Param("id"), p, format)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	name := string(baseName(p))
	if name == "/" || name == "." {
		name = "root"
	}
	attachment(v.Response().Header(), []byte(name+"."+format))
	v.longAnswer()
	v.Response().WriteHeader(http.StatusOK)
	_, err = io.Copy(v.Response(), body)
	return err
}

// filePut takes a file as the body of the request and streams it through: our script's way to upload.
func (s *Server) filePut(v *visit) error {
	p, err := pathOf(v.Request().URL.Query(), "path")
	if err != nil {
		return err
	}
	v.longAnswer()
	o := agent.WriteOptions{Size: v.Request().ContentLength}
	if v.QueryParam("new") == "1" {
		o.IfNoneMatch = "*"
	}
	info, err := s.o.Service.WriteFile(v.ctx(), v.actor, v.Param("id"), p, v.Request().Body, o)
	if err != nil {
		return err
	}
	return v.JSON(http.StatusOK, map[string]any{"size": info.Size})
}

// fileUpload takes files from a form, one after the other as they come: nothing is kept on the way.
func (s *Server) fileUpload(v *visit) error {
	dir, err := pathOf(v.Request().URL.Query(), "path")
	if err != nil {
		return err
	}
	parts, err := v.Request().MultipartReader()
	if err != nil {
		return fault.Wrap(err, fault.BadRequest, "Choose files to upload.")
	}
	v.longAnswer()
	for count := 0; ; {
		part, err := parts.NextRawPart()
		if errors.Is(err, io.EOF) {
			if count == 0 {
				return fault.New(fault.Invalid, "Choose files to upload.")
			}
			return v.backTo(dir)
		}
		if err != nil {
			return fault.Wrap(err, fault.BadRequest, "The upload broke off.")
		}
		if part.FormName() != "file" || part.FileName() == "" {
			continue
		}
		name, err := fileName(part.FileName())
		if err != nil {
			return err
		}
		if _, err := s.o.Service.WriteFile(v.ctx(), v.actor, v.Param("id"), join(dir, name), part, agent.WriteOptions{Size: -1}); err != nil {
			return err
		}
		count++
	}
}

// backTo leads to the sandbox's page with a folder open.
func (v *visit) backTo(dir []byte) error {
	return v.goTo(v.base() + "/sandboxes/" + v.Param("id") + "?" + pathQuery("path", dir))
}
