package guest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strconv"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

// maxSynthetic is how much of a procfs file is read: all of it at once, since its size is not true.
const maxSynthetic = 1 << 20

func (s *Server) fileStat(w http.ResponseWriter, r *http.Request, p string) error {
	info, err := s.stat(p)
	if err != nil {
		return err
	}
	return ok(w, info)
}

// filePlace tells where a path really is. nofollow leaves a last symlink as it is.
func (s *Server) filePlace(w http.ResponseWriter, r *http.Request, p string) error {
	real, err := realPlace(p, r.URL.Query().Get("nofollow") != "1")
	if err != nil {
		return fileFault(err)
	}
	out := agent.Place{PathB64: []byte(real)}
	if info, err := s.stat(real); err == nil {
		out.Type, out.Size, out.ETag = info.Type, info.Size, info.ETag
	}
	return ok(w, out)
}

func (s *Server) fileList(w http.ResponseWriter, r *http.Request, p string) error {
	q := r.URL.Query()
	limit, err1 := strconv.Atoi(q.Get("limit"))
	depth, err2 := strconv.Atoi(q.Get("depth"))
	if err1 != nil || err2 != nil || limit < 1 || limit > 1000 || depth < 1 || depth > 10 {
		return fault.Field("limit", "is 1 to 1000, and depth 1 to 10")
	}
	l, err := s.list(r.Context(), p, q.Get("cursor"), limit, depth)
	if err != nil {
		return err
	}
	return ok(w, l)
}

func (s *Server) fileRead(w http.ResponseWriter, r *http.Request, p string) error {
	from, err := offset(r, "offset", 0)
	if err != nil {
		return err
	}
	length, err := offset(r, "length", -1)
	if err != nil {
		return err
	}
	f, fi, err := openRegular(p)
	if err != nil {
		return err
	}
	defer f.Close()
	info := s.info(p, fi)
	var content io.ReadSeeker = f
	if synthetic(f) {
		text, err := io.ReadAll(io.LimitReader(f, maxSynthetic))
		if err != nil {
			return fault.Wrap(err, fault.BadRequest, "This file of the system cannot be read as a whole.")
		}
		info.Size, content = int64(len(text)), bytes.NewReader(text)
	}
	from = max(from, 0)
	if from > info.Size {
		return fault.New(fault.Range, "The file ends before this place.")
	}
	n := info.Size - from
	if length >= 0 {
		n = min(n, length)
	}
	if n > plausible(f) && !synthetic(f) {
		return errHole(info.Size)
	}
	inline, err := offset(r, "inline", -1)
	if err != nil {
		return err
	}
	notInline := inline >= 0 && n > inline
	if notInline {
		n = 0
	}
	if from > 0 {
		if _, err := content.Seek(from, io.SeekStart); err != nil {
			return fileFault(err)
		}
	}
	text, err := json.Marshal(info)
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set(agent.FileHeader, base64.RawURLEncoding.EncodeToString(text))
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Length", strconv.FormatInt(n, 10))
	if notInline {
		h.Set(agent.NotInline, "1")
	}
	w.WriteHeader(http.StatusOK)
	// A file that shrinks leaves the body short of its announced length, which the host sees as an error.
	size := min(max(n, 1), 1<<20)
	_, _ = io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{io.LimitReader(content, n)}, make([]byte, size))
	return nil
}

func (s *Server) fileWrite(w http.ResponseWriter, r *http.Request) error {
	info, err := s.fileWritten(r)
	if err != nil {
		// An answer that comes while the body still does may be lost with the connection; so the body is heard out.
		if r.Header.Get("Expect") == "" || !isFault(err, fault.Precondition, fault.Invalid, fault.BadRequest) {
			_, _ = io.Copy(io.Discard, r.Body)
		}
		return err
	}
	return ok(w, info)
}

func isFault(err error, kinds ...fault.Kind) bool {
	for _, k := range kinds {
		if fault.Is(err, k) {
			return true
		}
	}
	return false
}

func (s *Server) fileWritten(r *http.Request) (agent.FileInfo, error) {
	p, err := pathOf(r, "path")
	if err != nil {
		return agent.FileInfo{}, err
	}
	q := r.URL.Query()
	mode, err := strconv.ParseUint("0"+q.Get("mode"), 8, 12)
	if err != nil {
		return agent.FileInfo{}, fault.Field("mode", "is not an octal mode")
	}
	size, err := offset(r, "size", -1)
	if err != nil {
		return agent.FileInfo{}, err
	}
	return s.write(p, r.Body, agent.WriteOptions{
		Size: size, Mode: uint32(mode), NoParents: q.Get("no_parents") == "1",
		IfMatch: r.Header.Get("If-Match"), IfNoneMatch: r.Header.Get("If-None-Match"),
	})
}

func (s *Server) fileMkdir(w http.ResponseWriter, r *http.Request, p string) error {
	info, err := s.mkdir(p)
	if err != nil {
		return err
	}
	return ok(w, info)
}

func (s *Server) fileMove(w http.ResponseWriter, r *http.Request) error {
	source, err := pathOf(r, "source")
	if err != nil {
		return err
	}
	destination, err := pathOf(r, "destination")
	if err != nil {
		return err
	}
	info, err := s.move(r.Context(), source, destination, r.URL.Query().Get("overwrite") == "1")
	if err != nil {
		return err
	}
	return ok(w, info)
}

func (s *Server) fileDelete(w http.ResponseWriter, r *http.Request, p string) error {
	deleted, err := s.delete(p, r.URL.Query().Get("recursive") == "1")
	if err != nil {
		return err
	}
	return ok(w, deleted)
}

func (s *Server) fileArchive(w http.ResponseWriter, r *http.Request, p string) error {
	format := r.URL.Query().Get("format")
	if !agent.ArchiveFormat(format) {
		return fault.Field("format", agent.ArchiveFormats)
	}
	fi, err := os.Stat(p)
	if err != nil {
		return fileFault(err)
	}
	if !fi.IsDir() && !fi.Mode().IsRegular() {
		return fault.New(fault.BadRequest, "This is neither a directory nor a regular file.")
	}
	if fi.IsDir() {
		if p, err = resolve(p); err != nil {
			return fileFault(err)
		}
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.WriteHeader(http.StatusOK)
	if err := s.archive(r.Context(), w, p, format); err != nil {
		panic(http.ErrAbortHandler) // cuts the stream, so that it cannot be taken for a whole one
	}
	return nil
}
