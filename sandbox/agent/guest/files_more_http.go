package guest

import (
	"context"
	"encoding/base64"
	"net/http"
	"os"
	"path"
	"strconv"
	"syscall"
	"time"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

func (s *Server) fileSearch(w http.ResponseWriter, r *http.Request, p string) error {
	q := r.URL.Query()
	name, err1 := base64.RawURLEncoding.DecodeString(q.Get("name_b64"))
	content, err2 := base64.RawURLEncoding.DecodeString(q.Get("content_b64"))
	limit, err3 := strconv.Atoi(q.Get("limit"))
	switch {
	case err1 != nil || agent.SearchName(string(name)) != "":
		return fault.Field("name", "is not a pattern")
	case err2 != nil || len(content) > agent.MaxNeedle:
		return fault.Field("content", "is longer than %d bytes", agent.MaxNeedle)
	case err3 != nil || limit < 1 || limit > 1000:
		return fault.Field("limit", "is outside 1 to 1000")
	}
	page, err := s.search(r.Context(), p, agent.SearchQuery{Name: string(name), Content: content, Cursor: q.Get("cursor"), Limit: limit})
	if err != nil {
		return err
	}
	return ok(w, page)
}

func (s *Server) fileWatch(w http.ResponseWriter, r *http.Request, p string) error {
	select {
	case s.watchers <- struct{}{}:
		defer func() { <-s.watchers }()
	default:
		return fault.New(fault.Conflict, "There are %d watches on this sandbox's files already.", agent.MaxWatchers)
	}
	fw := newFrameWriter(w)
	tell := func(c agent.FileChange) error {
		if err := fw.json(agent.FrameChange, c); err != nil {
			return err
		}
		return fw.flush()
	}
	err := s.watchFiles(r.Context(), p, r.URL.Query().Get("recursive") == "1", tell, fw.ping)
	if fw.bytes == 0 {
		return err
	}
	if err == nil {
		_ = fw.json(agent.FrameEnd, struct{}{})
	}
	return nil // the host is gone, or has been told
}

func (f *frameWriter) ping() error {
	if err := f.frame(agent.FramePing, nil); err != nil {
		return err
	}
	return f.flush()
}

// long answers with the outcome of what may take its time; pings keep the host waiting.
func (s *Server) long(w http.ResponseWriter, r *http.Request, do func(context.Context) (any, error)) error {
	type outcome struct {
		v   any
		err error
	}
	done := make(chan outcome, 1)
	go func() { // ends with do, which ends with the request
		v, err := do(r.Context())
		done <- outcome{v, err}
	}()
	fw := newFrameWriter(w)
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case o := <-done:
			if o.err == nil {
				return fw.json(agent.FrameExit, o.v)
			}
			if fw.bytes == 0 {
				return o.err
			}
			return fw.json(agent.FrameError, failureOf(o.err))
		case <-tick.C:
			if err := fw.ping(); err != nil {
				<-done
				return nil //nolint:nilerr // the host is gone
			}
		}
	}
}

func (s *Server) fileCopy(w http.ResponseWriter, r *http.Request) error {
	source, err := pathOf(r, "source")
	if err != nil {
		return err
	}
	destination, err := pathOf(r, "destination")
	if err != nil {
		return err
	}
	return s.long(w, r, func(ctx context.Context) (any, error) { return s.copy(ctx, source, destination) })
}

// copy copies beside the destination first, so that what appears there is whole.
func (s *Server) copy(ctx context.Context, source, destination string) (agent.FileInfo, error) {
	for _, p := range []string{source, destination} {
		if err := s.guard(p); err != nil && p != s.cfg.Workdir {
			return agent.FileInfo{}, err
		}
	}
	if _, err := os.Lstat(source); err != nil {
		return agent.FileInfo{}, fileFault(err)
	}
	if within(destination, source) {
		return agent.FileInfo{}, fault.New(fault.BadRequest, "A directory cannot be copied into itself.")
	}
	if _, err := os.Lstat(destination); err == nil {
		return agent.FileInfo{}, fault.New(fault.Conflict, "Something is there already.")
	}
	tmp, err := os.MkdirTemp(path.Dir(destination), ".sandgate-copy-")
	if err != nil {
		if os.IsNotExist(err) {
			return agent.FileInfo{}, fault.New(fault.NotFound, "The destination's directory does not exist.")
		}
		return agent.FileInfo{}, fileFault(err)
	}
	defer os.RemoveAll(tmp)
	staged := path.Join(tmp, "x")
	if err := copyTree(ctx, source, staged); err != nil {
		return agent.FileInfo{}, fileFault(err)
	}
	s.renames.Lock()
	defer s.renames.Unlock()
	if err := rename(staged, destination, false); err != nil {
		return agent.FileInfo{}, fileFault(err)
	}
	return s.stat(destination)
}

func (s *Server) fileChmod(w http.ResponseWriter, r *http.Request, p string) error {
	mode, err := strconv.ParseUint(r.URL.Query().Get("mode"), 8, 12)
	if err != nil {
		return fault.Field("mode", "is not an octal mode")
	}
	if err := s.guard(p); err != nil && p != s.cfg.Workdir {
		return err
	}
	fi, err := os.Lstat(p)
	if err != nil {
		return fileFault(err)
	}
	if fi.Mode().Type() == os.ModeSymlink {
		return fault.New(fault.BadRequest, "This is a link; what it leads to has a mode.")
	}
	if err := syscall.Chmod(p, uint32(mode)); err != nil {
		return fileFault(err)
	}
	info, err := s.stat(p)
	if err != nil {
		return err
	}
	return ok(w, info)
}
