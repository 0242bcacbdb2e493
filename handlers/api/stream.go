package api

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"sandgate/auth"
	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

const (
	settle     = 250 * time.Millisecond // an error within it still gets a status of its own
	pingEvery  = 15 * time.Second
	writeLimit = 2 * time.Minute // a reader that takes nothing for so long is gone
)

// event is one JSON of a stream of events.
type event struct {
	Type     string `json:"type"`
	ID       string `json:"id,omitempty"`
	Text     string `json:"text,omitempty"`
	DataB64  []byte `json:"data_b64,omitempty"` // instead of text, where the bytes are not UTF-8
	ExitCode *int   `json:"exit_code,omitempty"`
	TimedOut *bool  `json:"timed_out,omitempty"`
	Signal   string `json:"signal,omitempty"`
	// Of an exit, beside the code.
	Truncated bool    `json:"truncated,omitempty"`
	Duration  float64 `json:"duration,omitempty"`
	Code      string  `json:"code,omitempty"`
	Detail    string  `json:"detail,omitempty"`
}

// events writes server-sent events and implements agent.Output. Safe for concurrent use: pings come from beside.
type events struct {
	c    echo.Context
	id   string
	rc   *http.ResponseController
	mu   sync.Mutex
	open bool
	// the beginnings of characters whose ends have not come yet
	outTail, errTail []byte
	err              error
}

// begin sends the status and the first event; later calls do nothing.
func (e *events) begin() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.beginLocked()
}

func (e *events) beginLocked() error {
	if e.open {
		return e.err
	}
	e.open = true
	h := e.c.Response().Header()
	h.Set(echo.HeaderContentType, "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	e.c.Response().WriteHeader(http.StatusOK)
	return e.sendLocked(event{Type: "init", ID: e.id})
}

// sendLocked writes one event and flushes it. The first error stays: whoever is not there does not come back.
func (e *events) sendLocked(v event) error {
	if e.err != nil {
		return e.err
	}
	p, err := json.Marshal(v)
	if err == nil {
		_ = e.rc.SetWriteDeadline(time.Now().Add(writeLimit)) // without it a reader that stops could hold the call for ever
		_, err = e.c.Response().Write(append(append([]byte("data: "), p...), '\n', '\n'))
	}
	if err == nil {
		err = e.rc.Flush()
	}
	e.err = err
	return err
}

// Stdout implements agent.Output.
func (e *events) Stdout(p []byte) error { return e.output("stdout", &e.outTail, p) }

// Stderr implements agent.Output.
func (e *events) Stderr(p []byte) error { return e.output("stderr", &e.errTail, p) }

func (e *events) output(kind string, tail *[]byte, p []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.beginLocked(); err != nil {
		return err
	}
	p = append(*tail, p...)
	cut := len(p) - openTail(p)
	*tail = append([]byte(nil), p[cut:]...)
	return e.chunkLocked(kind, p[:cut])
}

func (e *events) chunkLocked(kind string, p []byte) error {
	switch {
	case len(p) == 0:
		return nil
	case utf8.Valid(p):
		return e.sendLocked(event{Type: kind, Text: string(p)})
	}
	return e.sendLocked(event{Type: kind, DataB64: p})
}

// finish sends what is left and how it ended.
func (e *events) finish(r outcome) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.beginLocked(); err != nil {
		return err
	}
	if err := e.chunkLocked("stdout", e.outTail); err != nil {
		return err
	}
	if err := e.chunkLocked("stderr", e.errTail); err != nil {
		return err
	}
	if r.err != nil {
		return e.sendLocked(event{Type: "error", Code: string(fault.KindOf(r.err)), Detail: fault.Public(r.err)})
	}
	x := r.exit
	return e.sendLocked(event{
		Type: "exit", ExitCode: &x.Code, TimedOut: &x.TimedOut, Signal: x.Signal, Truncated: x.Truncated, Duration: x.Duration,
	})
}

func (e *events) ping() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.beginLocked(); err != nil {
		return err
	}
	return e.sendLocked(event{Type: "ping"})
}

// started reports whether the status is out.
func (e *events) started() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.open
}

// streamCommand runs a command in the foreground and tells it as it happens. The client hanging up kills it.
func (s *server) streamCommand(c echo.Context, spec agent.CommandSpec) error {
	ctx, release := s.svc.Guard(c.Request().Context(), actor(c), auth.SandboxesRun)
	defer release()
	a, id := actor(c), c.Param("id")
	return s.serveEvents(c, spec.ID, func(out agent.Output) (agent.Exit, error) {
		exit, err := s.svc.RunCommand(ctx, a, id, spec, out)
		return exit, causeOf(ctx, err)
	})
}

// followCommand: GET …/commands/{cmd}/stream?cursor=. What is kept since the cursor, then live, to the command's end.
func (s *server) followCommand(c echo.Context) error {
	cmd, err := commandID(c)
	if err != nil {
		return err
	}
	at, err := readCursor(c)
	if err != nil {
		return err
	}
	ctx, release := s.svc.Guard(c.Request().Context(), actor(c), auth.SandboxesRead)
	defer release()
	a, id := actor(c), c.Param("id")
	return s.serveEvents(c, cmd, func(out agent.Output) (agent.Exit, error) {
		exit, err := s.svc.FollowCommand(ctx, a, id, cmd, at.stdout, at.stderr, out)
		return exit, causeOf(ctx, err)
	})
}

// serveEvents carries one stream. An error that comes before anything was sent is an ordinary error answer.
func (s *server) serveEvents(c echo.Context, id string, do func(agent.Output) (agent.Exit, error)) error {
	e := &events{c: c, id: id, rc: http.NewResponseController(c.Response().Writer)}
	results := make(chan outcome, 1)
	go func() {
		exit, err := s.protected(c, func() (agent.Exit, error) { return do(e) })
		results <- outcome{exit, err}
	}()
	first := time.NewTimer(settle)
	defer first.Stop()
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	passed := passedOf(c)
	for {
		var err error
		select {
		case <-passed:
			passed = nil
			first.Reset(settle)
		case r := <-results:
			if r.err != nil {
				if !e.started() {
					return r.err
				}
				s.note(c, http.StatusOK, r.err)
			}
			err = e.finish(r)
			if err != nil {
				s.log.Info("a stream of events broke off", slog.String("request_id", requestID(c)), slog.Any("cause", err))
			}
			return nil
		case <-first.C:
			if passed == nil { // else a refusal still gets a status of its own
				err = e.begin()
			}
		case <-tick.C:
			if passed == nil {
				err = e.ping()
			}
		}
		if err != nil { // the client is gone; the request's context ends what runs, and its end is waited for
			first.Stop()
			tick.Stop()
			r := <-results
			s.log.Info("a stream of events broke off", slog.String("request_id", requestID(c)), slog.Any("cause", err), slog.Int("exit_code", r.exit.Code))
			return nil
		}
	}
}
