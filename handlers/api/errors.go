package api

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"sandgate/internal/fault"
	"sandgate/internal/httpstatus"
)

// writeError is the one writer of error answers: a status from the table, the public sentence, the code word, and the
// further keys that the error bears. What is not a fault is logged with the request id and told as one fixed sentence.
func (s *server) writeError(err error, c echo.Context) {
	if c.Response().Committed {
		// The status is out, so the answer cannot become an error any more. Cut it, so that nobody takes it for whole.
		s.note(c, http.StatusOK, err)
		panic(http.ErrAbortHandler)
	}
	status, body := describe(causeOf(c.Request().Context(), err))
	s.note(c, status, err)
	if after, ok := body["retry_after"].(int); ok && after > 0 {
		c.Response().Header().Set("Retry-After", strconv.Itoa(after))
	} else if status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests {
		c.Response().Header().Set("Retry-After", "5")
	}
	if werr := writeJSON(c, status, body); werr != nil {
		s.log.Info("an error answer could not be sent", slog.String("request_id", requestID(c)), slog.Any("cause", werr))
	}
}

// describe gives the status and the JSON body of an error.
func describe(err error) (int, map[string]any) {
	if he, ok := errors.AsType[*echo.HTTPError](err); ok {
		switch he.Code {
		case http.StatusNotFound:
			return he.Code, map[string]any{"detail": "There is no such call.", "code": string(fault.NotFound)}
		case http.StatusMethodNotAllowed:
			return he.Code, map[string]any{"detail": "This address has no such method; the header Allow lists those it has.", "code": "method_not_allowed"}
		}
	}
	body := map[string]any{}
	if fe, ok := errors.AsType[*fault.Error](err); ok {
		for k, v := range fe.Extra {
			if k != "client" { // the official client takes a top-level key of that name for an argument of its own
				body[k] = v
			}
		}
		if len(fe.Fields) > 0 {
			body["fields"] = fe.Fields
		}
	}
	kind := fault.KindOf(err)
	body["detail"], body["code"] = fault.Public(err), string(kind)
	return httpstatus.Of(kind), body
}

// causeOf prefers the reason for which a guarded context ended to the bare "canceled" that it caused.
func causeOf(ctx context.Context, err error) error {
	if errors.Is(err, context.Canceled) {
		if cause, ok := errors.AsType[*fault.Error](context.Cause(ctx)); ok {
			return cause
		}
	}
	return err
}

// note writes the log line of an answer that failed: the caller's mistakes as information, ours as errors.
func (s *server) note(c echo.Context, status int, err error) {
	level, msg := slog.LevelInfo, "request refused"
	hungUp := c.Request().Context().Err() != nil
	if status == http.StatusInternalServerError && !hungUp {
		level, msg = slog.LevelError, "request failed"
	}
	s.log.LogAttrs(c.Request().Context(), level, msg,
		slog.String("request_id", requestID(c)), slog.String("method", c.Request().Method), slog.String("route", c.Path()),
		slog.Int("status", status), slog.String("cause", err.Error()))
}

// writeJSON answers with JSON. Text that is not UTF-8 gets the replacement character; nothing is escaped for HTML.
func writeJSON(c echo.Context, status int, v any) error {
	c.Response().Header().Set(echo.HeaderContentType, "application/json")
	c.Response().WriteHeader(status)
	enc := json.NewEncoder(c.Response())
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// done is the body of a change that has nothing else to tell.
func done(c echo.Context) error { return writeJSON(c, http.StatusOK, doneBody{true}) }
