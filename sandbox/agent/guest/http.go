package guest

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

const (
	maxJSON    = 40 << 20 // a command with 16 MiB of stdin in base64
	pingEvery  = 10 * time.Second
	firstFlush = 50 * time.Millisecond
)

// handler answers or returns why not.
type handler func(w http.ResponseWriter, r *http.Request) error

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	for pattern, h := range map[string]handler{
		"GET /v1/hello":                s.hello,
		"POST /v1/name":                s.name,
		"POST /v1/warm":                s.warm,
		"GET /v1/doings":               s.doings,
		"POST /v1/commands":            s.commandStart,
		"GET /v1/commands":             s.commandList,
		"GET /v1/commands/{id}":        s.commandGet,
		"GET /v1/commands/{id}/stream": s.commandStream,
		"GET /v1/commands/{id}/logs":   s.commandLogs,
		"POST /v1/commands/{id}/stdin": s.commandStdin,
		"POST /v1/commands/{id}/kill":  s.commandKill,
		"POST /v1/ptys":                s.ptyOpen,
		"GET /v1/ptys":                 s.ptyList,
		"GET /v1/ptys/{id}":            s.ptyGet,
		"PATCH /v1/ptys/{id}":          s.ptyRename,
		"DELETE /v1/ptys/{id}":         s.ptyClose,
		"POST /v1/ptys/{id}/attach":    s.ptyAttach,
		"GET /v1/files/stat":           onPath(s.fileStat),
		"GET /v1/files/place":          onPath(s.filePlace),
		"GET /v1/files/list":           onPath(s.fileList),
		"GET /v1/files/raw":            onPath(s.fileRead),
		"PUT /v1/files/raw":            s.fileWrite,
		"POST /v1/files/mkdir":         onPath(s.fileMkdir),
		"POST /v1/files/move":          s.fileMove,
		"DELETE /v1/files":             onPath(s.fileDelete),
		"GET /v1/files/archive":        onPath(s.fileArchive),
		"PUT /v1/files/archive":        s.fileUnpack,
		"GET /v1/files/search":         onPath(s.fileSearch),
		"GET /v1/files/watch":          onPath(s.fileWatch),
		"POST /v1/files/copy":          s.fileCopy,
		"POST /v1/files/chmod":         onPath(s.fileChmod),
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := h(w, r); err != nil {
				refuse(w, err)
			}
		})
	}
	return mux
}

// onPath reads the path that a call is about.
func onPath(h func(w http.ResponseWriter, r *http.Request, p string) error) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		p, err := pathOf(r, "path")
		if err != nil {
			return err
		}
		return h(w, r, p)
	}
}

// refuse writes the one error body. What is not a fault is told by its text: it is the sandbox's own, and the host
// shows it to nobody.
func refuse(w http.ResponseWriter, err error) {
	f := failureOf(err)
	status := http.StatusInternalServerError
	switch fault.KindOf(err) {
	case fault.BadRequest:
		status = http.StatusBadRequest
	case fault.Forbidden:
		status = http.StatusForbidden
	case fault.NotFound:
		status = http.StatusNotFound
	case fault.Conflict:
		status = http.StatusConflict
	case fault.Precondition:
		status = http.StatusPreconditionFailed
	case fault.TooLarge:
		status = http.StatusRequestEntityTooLarge
	case fault.Range:
		status = http.StatusRequestedRangeNotSatisfiable
	case fault.Invalid:
		status = http.StatusUnprocessableEntity
	case fault.SlowDown:
		status = http.StatusTooManyRequests
	}
	answer(w, status, f)
}

func failureOf(err error) agent.Failure {
	f := agent.Failure{Code: string(fault.KindOf(err)), Detail: err.Error()}
	if e, ok := errors.AsType[*fault.Error](err); ok {
		f.Detail, f.Fields = e.Public, e.Fields
		f.Reason, _ = e.Extra["reason"].(string)
	}
	return f
}

func answer(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{"code":"internal","detail":"encoding"}`)
	}
	h := w.Header()
	h["Content-Type"] = []string{"application/json"}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

func ok(w http.ResponseWriter, v any) error { answer(w, http.StatusOK, v); return nil }

func readJSON(w http.ResponseWriter, r *http.Request, v any) error {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxJSON))
	if err := d.Decode(v); err != nil {
		return fault.Wrap(err, fault.BadRequest, "The request is not the JSON that was expected.")
	}
	// The rest has to be read, or the connection cannot be used again.
	_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, 4<<10))
	return nil
}

func (s *Server) hello(w http.ResponseWriter, _ *http.Request) error {
	return ok(w, agent.Hello{Version: s.cfg.Version, BootID: s.boot})
}

// validID bounds what the host may call things: safe in an environment variable and a log.
func validID(id string) bool {
	if len(id) < 1 || len(id) > 64 {
		return false
	}
	for _, c := range []byte(id) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

func offset(r *http.Request, name string, otherwise int64) (int64, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < -1 {
		return 0, fault.Field(name, "is not an offset")
	}
	return n, nil
}

// pathOf reads a path parameter: base64url of bytes, without padding.
func pathOf(r *http.Request, name string) (string, error) {
	b, err := base64.RawURLEncoding.DecodeString(r.URL.Query().Get(name + "_b64"))
	if err != nil {
		return "", fault.Field(name, "is not base64")
	}
	p, err := agent.CleanPath(b)
	if err != nil {
		if e, ok := errors.AsType[*fault.Error](err); ok && name != "path" {
			return "", fault.Field(name, "%s", e.Fields["path"])
		}
		return "", err
	}
	return string(p), nil
}

// frameWriter writes frames of a command's stream.
type frameWriter struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	dirty bool // written since the last flush
	bytes int64
}

func newFrameWriter(w http.ResponseWriter) *frameWriter {
	w.Header()["Content-Type"] = []string{"application/octet-stream"}
	return &frameWriter{w: w, rc: http.NewResponseController(w)}
}

func (f *frameWriter) frame(t agent.FrameType, p []byte) error {
	var head [5]byte
	head[0] = byte(t)
	binary.BigEndian.PutUint32(head[1:], uint32(len(p)))
	if _, err := f.w.Write(head[:]); err != nil {
		return err
	}
	f.dirty = true
	f.bytes += int64(len(p)) + 5
	if len(p) == 0 {
		return nil
	}
	_, err := f.w.Write(p)
	return err
}

func (f *frameWriter) json(t agent.FrameType, v any) error {
	p, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return f.frame(t, p)
}

func (f *frameWriter) flush() error {
	f.dirty = false
	return f.rc.Flush()
}
