package api

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"sandgate/auth"
	"sandgate/internal/fault"
)

// live writes server-sent events that are not a command's: one JSON each. Safe for concurrent use: pings come from beside.
type live struct {
	c    echo.Context
	rc   *http.ResponseController
	mu   sync.Mutex
	open bool
	err  error // the first one stays: whoever is not there does not come back
}

// notice is an event that the stream itself sends.
type notice struct {
	Type   string `json:"type"` // "ping", "end", "error"
	Code   string `json:"code,omitempty"`
	Detail string `json:"detail,omitempty"`
}

func (l *live) send(v any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	p, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if !l.open {
		l.open = true
		h := l.c.Response().Header()
		h.Set(echo.HeaderContentType, "text/event-stream")
		h.Set("X-Accel-Buffering", "no")
		l.c.Response().WriteHeader(http.StatusOK)
	}
	_ = l.rc.SetWriteDeadline(time.Now().Add(writeLimit)) // without it a reader that stops could hold the call for ever
	if _, l.err = l.c.Response().Write(append(append([]byte("data: "), p...), '\n', '\n')); l.err == nil {
		l.err = l.rc.Flush()
	}
	return l.err
}

func (l *live) started() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// serveLive carries a stream of events until do ends or the client leaves. An error that comes before anything was sent is
// an ordinary error answer; a later one is the stream's last event, and so is an end in good order.
func (s *server) serveLive(c echo.Context, do func(ctx context.Context, send func(any) error) error) error {
	ctx, cancel := context.WithCancelCause(c.Request().Context())
	defer cancel(nil)
	stop := context.AfterFunc(s.life, func() {
		cancel(fault.New(fault.Starting, "The server is stopping; come back in a moment."))
	})
	defer stop()
	l := &live{c: c, rc: http.NewResponseController(c.Response().Writer)}
	done := make(chan error, 1)
	go func() { // ends with do, which ends with ctx
		done <- s.recovered(func(echo.Context) error { return do(ctx, l.send) })(c)
	}()
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			if cause, ours := errors.AsType[*fault.Error](context.Cause(ctx)); ours && (err == nil || fault.Is(err, fault.Internal)) {
				err = cause
			}
			if err != nil && !l.started() {
				return err
			}
			last := notice{Type: "end"}
			if err != nil {
				s.note(c, http.StatusOK, err)
				last = notice{Type: "error", Code: string(fault.KindOf(err)), Detail: fault.Public(err)}
			}
			if err := l.send(last); err != nil {
				s.log.Info("a stream of events broke off", slog.String("request_id", requestID(c)), slog.Any("cause", err))
			}
			return nil
		case <-tick.C:
			if l.started() && l.send(notice{Type: "ping"}) != nil {
				cancel(nil)
			}
		}
	}
}

// guardAny guards a stream by the first of the permissions that the actor has.
func (s *server) guardAny(ctx context.Context, a auth.Actor, anyOf []auth.Permission) (context.Context, context.CancelFunc) {
	for _, p := range anyOf {
		if a.May(p) {
			return s.svc.Guard(ctx, a, p)
		}
	}
	return s.svc.Guard(ctx, a, anyOf[0])
}
