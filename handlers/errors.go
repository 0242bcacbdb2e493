package handlers

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"sandgate/internal/fault"
	"sandgate/internal/httpstatus"
	"sandgate/views"
	"sandgate/views/ui"
)

func asFault(err error, e **fault.Error) bool { return errors.As(err, e) }

// writeError is the one writer of errors: a page, a part of a page for htmx, or JSON for our own scripts. What it shows is
// the public sentence and the request id; the cause is in the log line of the request.
func (s *Server) writeError(err error, c echo.Context) {
	if c.Response().Committed {
		// The status is out: cut the connection, so that nobody takes what came for all of it.
		s.log.Info("answer broke off", "request_id", c.Response().Header().Get(requestIDHeader), "path", c.Request().URL.Path, "cause", err)
		panic(http.ErrAbortHandler)
	}
	err = known(err)
	status := httpstatus.OfError(err)
	var e *fault.Error
	if asFault(err, &e) {
		if seconds, ok := e.Extra["retry_after"]; ok {
			c.Response().Header().Set("Retry-After", retryAfter(seconds))
		}
	}
	c.Response().Header().Set("Cache-Control", "no-store")
	for _, name := range []string{"Content-Disposition", "Content-Length", "ETag", "Last-Modified"} {
		c.Response().Header().Del(name)
	}
	v := visitOf(s, c)
	if werr := v.writeProblem(status, err); werr != nil {
		s.log.Warn("write an error", "request_id", v.requestID(), "cause", werr)
	}
}

// known turns the router's own errors, and bodies that are too large, into ours.
func known(err error) error {
	if he, ok := errors.AsType[*echo.HTTPError](err); ok {
		switch he.Code {
		case http.StatusNotFound, http.StatusMethodNotAllowed:
			return fault.New(fault.NotFound, "There is nothing at this address.")
		}
		return err
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return fault.Wrap(err, fault.TooLarge, "That is more than this form takes.")
	}
	return err
}

func retryAfter(seconds any) string {
	switch n := seconds.(type) {
	case int:
		return strconv.Itoa(n)
	case int64:
		return strconv.FormatInt(n, 10)
	case float64:
		return strconv.Itoa(int(n) + 1)
	default:
		return "30"
	}
}

func visitOf(s *Server, c echo.Context) *visit {
	if v, ok := c.Get(visitKey).(*visit); ok {
		return v
	}
	return &visit{Context: c, s: s}
}

func (v *visit) writeProblem(status int, err error) error {
	r := v.Request()
	if strings.HasPrefix(r.Header.Get("Accept"), "application/json") || strings.HasPrefix(r.Header.Get("Accept"), "text/event-stream") {
		body := map[string]any{"detail": v.sentence(err), "code": fault.KindOf(err)}
		var e *fault.Error
		if asFault(err, &e) && e.Fields != nil {
			body["fields"] = e.Fields
		}
		return v.JSON(status, body)
	}
	if status == http.StatusUnauthorized && r.Header.Get("Upgrade") == "" {
		return v.toSignIn()
	}
	p := views.Problem{
		Shell: v.shell(heading(status), ""), Status: status, Heading: heading(status), Text: v.sentence(err), Advice: advice(err),
		RequestID: v.requestID(), Back: v.wayBack(),
	}
	if fault.Is(err, fault.ApprovalNeeded) {
		p.Heading = "This waits for a yes"
		p.Back = ui.Link{Text: "To the request", URL: v.approvalsBase() + "/" + approvalOf(err)}
	}
	if v.partial() {
		v.Response().Header().Set("HX-Retarget", "#toasts")
		v.Response().Header().Set("HX-Reswap", "beforeend")
		return v.render(status, p.Toast())
	}
	return v.render(status, p.Page())
}

// sentence is what a person reads. What waits for approval is done again by a click, not with a header.
func (v *visit) sentence(err error) string {
	if fault.Is(err, fault.ApprovalNeeded) {
		return "Somebody else is asked about this now. Once they have approved it, do the same again: it runs then, once."
	}
	return fault.Public(err)
}

func approvalOf(err error) string {
	var e *fault.Error
	if asFault(err, &e) {
		if id, ok := e.Extra["approval_id"].(string); ok {
			return id
		}
	}
	return ""
}

// toSignIn leads to the sign-in page and back afterwards. Only what can be asked again is come back to.
func (v *visit) toSignIn() error {
	to := "/sign-in"
	r := v.Request()
	if r.Method == http.MethodGet && !v.partial() {
		to += "?next=" + url.QueryEscape(r.URL.RequestURI())
	}
	if v.partial() {
		v.Response().Header().Set("HX-Redirect", to)
		return v.String(http.StatusUnauthorized, "")
	}
	return v.Redirect(http.StatusSeeOther, to)
}

func (v *visit) wayBack() ui.Link {
	switch {
	case v.actor.Workspace.Slug != "":
		return ui.Link{Text: "To the sandboxes", URL: v.base() + "/sandboxes"}
	case v.signedIn:
		return ui.Link{Text: "To your account", URL: "/account"}
	default:
		return ui.Link{Text: "Sign in", URL: "/sign-in"}
	}
}

func heading(status int) string {
	switch status {
	case http.StatusForbidden:
		return "You may not do that"
	case http.StatusNotFound:
		return "Not found"
	case http.StatusConflict, http.StatusPreconditionFailed:
		return "That does not go together"
	case http.StatusTooManyRequests:
		return "Too fast"
	case http.StatusServiceUnavailable:
		return "Not now"
	case http.StatusInternalServerError:
		return "Something went wrong"
	default:
		return "That did not work"
	}
}

// advice tells what an error means for one's work and what to do.
func advice(err error) string {
	switch fault.KindOf(err) {
	case fault.Forbidden:
		return "Nothing was changed. Somebody who manages members of this workspace can give you the right to it on People & keys."
	case fault.NotFound:
		return "It may be gone, or it was never here. Sandboxes that were killed leave the list; their story stays in the activity."
	case fault.SandboxDied:
		return "What was in it can't be reached any more. Its page says why it died; kill it to clear it away."
	case fault.SlowDown, fault.Starting:
		return "Nothing was changed. Wait half a minute and try again."
	case fault.HostFull, fault.QuotaExceeded:
		return "Kill what is not needed any more, or ask the operator for more room."
	case fault.Conflict, fault.Precondition:
		return "Nothing was changed. Look at the present state and decide again."
	case fault.Internal:
		return "It is not known whether the change took effect: look before you try again."
	default:
		return ""
	}
}
