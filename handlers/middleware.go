package handlers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"sandgate/internal/fault"
)

const requestIDHeader = "X-Request-ID"

// saneID is what a request id of a proxy of ours may look like; anything else is replaced.
var saneID = regexp.MustCompile(`^[A-Za-z0-9_-]{8,64}$`)

// contextKey is the type of our keys in a request's context.
type contextKey int

const clientKey contextKey = iota

// ClientIP gives the address of a request's client as the server judged it; the REST face uses it too.
func ClientIP(r *http.Request) string {
	if a, ok := r.Context().Value(clientKey).(string); ok {
		return a
	}
	return peer(r)
}

func peer(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// identify gives every request an id, shown in every answer and log line, and its client's address. Only proxies that
// were named may choose the id or tell the address.
func (s *Server) identify(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		address, proxied := s.client(r)
		id := r.Header.Get(requestIDHeader)
		if !proxied || !saneID.MatchString(id) {
			id = strings.ToLower(rand.Text())
		}
		c.Response().Header().Set(requestIDHeader, id)
		c.SetRequest(r.WithContext(context.WithValue(r.Context(), clientKey, address)))
		return next(c)
	}
}

// client gives the address of who asks, and whether a trusted proxy told it: the last address in X-Forwarded-For that is
// not a trusted proxy itself.
func (s *Server) client(r *http.Request) (address string, proxied bool) {
	address = peer(r)
	if !s.trusted(address) {
		return address, false
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, hop := range slices.Backward(hops) {
		hop = strings.TrimSpace(hop)
		if _, err := netip.ParseAddr(hop); err != nil {
			break
		}
		address = hop
		if !s.trusted(hop) {
			break
		}
	}
	return address, true
}

func (s *Server) trusted(address string) bool {
	a, err := netip.ParseAddr(address)
	return err == nil && slices.ContainsFunc(s.o.TrustedProxies, func(p netip.Prefix) bool { return p.Contains(a.Unmap()) })
}

// logAccess writes one line a request. The query is left out: links of setup and invitations carry their token there.
func (s *Server) logAccess(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		start := s.o.Now()
		err := next(c)
		if err != nil {
			c.Error(err) // writes the answer, so that its status can be logged
		}
		r, w := c.Request(), c.Response()
		level, cause := slog.LevelInfo, slog.Attr{}
		if w.Status >= http.StatusInternalServerError && r.Context().Err() == nil { // else nobody is there to be answered
			level = slog.LevelError
		}
		if err != nil {
			cause = slog.String("cause", err.Error())
		}
		s.log.LogAttrs(r.Context(), level, "request",
			slog.String("request_id", w.Header().Get(requestIDHeader)), slog.String("method", r.Method), slog.String("path", r.URL.Path),
			slog.Int("status", w.Status), slog.Int64("bytes", w.Size), slog.Duration("took", s.o.Now().Sub(start)),
			slog.String("address", ClientIP(r)), cause)
		return nil
	}
}

// recovered turns a panic into an error. An aborted answer stays aborted.
func (s *Server) recovered(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) (err error) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if perr, ok := p.(error); ok && errors.Is(perr, http.ErrAbortHandler) {
				panic(p)
			}
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}()
		return next(c)
	}
}

// checkHost refuses names that are not ours, so that a page of somebody else whose name was pointed here gets nothing.
func (s *Server) checkHost(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if !s.o.Names.HostAllowed(c.Request()) {
			const words = "This server does not answer to that host name. The operator can allow it with --hosts."
			if strings.HasPrefix(c.Request().URL.Path, "/v1") {
				return c.JSON(http.StatusForbidden, map[string]string{"detail": words, "code": string(fault.Forbidden)})
			}
			return c.String(http.StatusForbidden, words+"\n")
		}
		return next(c)
	}
}

// policy is what pages may load: everything from here, nothing inline but styles, which the terminal makes as it runs.
func policy(r *http.Request, public string) string {
	if u, err := url.Parse(public); err == nil && u.Host != "" && u.Host != r.Host { // a proxy that names us differently
		public = " ws://" + u.Host + " wss://" + u.Host
	} else {
		public = ""
	}
	return "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self'; " +
		"connect-src 'self' ws://" + r.Host + " wss://" + r.Host + public + "; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; object-src 'none'"
}

// harden sets the headers of every answer. Host was judged before, so it is safe to repeat.
func (s *Server) harden(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		h := c.Response().Header()
		h.Set("Content-Security-Policy", policy(c.Request(), s.o.PublicURL))
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		// Not no-referrer: browsers then say "Origin: null" for forms, all that there is over plain http to tell our own by.
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()")
		if s.https(c.Request()) {
			h.Set("Strict-Transport-Security", "max-age=31536000")
		}
		return next(c)
	}
}

// https reports whether browsers reach this server encrypted.
func (s *Server) https(r *http.Request) bool {
	return r.TLS != nil || strings.HasPrefix(s.o.PublicURL, "https://")
}

// serve wraps a route's handler in what its row in the table asks for.
func (s *Server) serve(r route) echo.HandlerFunc {
	return func(c echo.Context) error {
		if r.raw != nil {
			return r.raw(c)
		}
		req := c.Request()
		if err := s.csrf.Check(req); err != nil {
			return fault.Wrap(err, fault.Forbidden, "This request came from a page of another site and was not carried out.")
		}
		if silentAboutOrigin(req) {
			return fault.New(fault.Forbidden, "This request bears a sign-in but does not say which page it came from, and was not carried out.")
		}
		if !r.stream {
			if err := readForm(c); err != nil {
				return err
			}
		}
		c.Response().Header().Set("Cache-Control", "no-store")
		v, err := s.visit(c, r)
		if err != nil {
			return err
		}
		return r.run(v)
	}
}

// silentAboutOrigin reports what the CSRF rule lets pass: a change that tells nothing of where it came from. Programs
// without a cookie may do so; every browser that sends one tells.
func silentAboutOrigin(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return false
	}
	return r.Header.Get("Cookie") != "" && r.Header.Get("Origin") == "" && r.Header.Get("Sec-Fetch-Site") == ""
}

// readForm reads a form within bounds of size and time, so that nobody holds a connection by sending slowly.
func readForm(c echo.Context) error {
	req := c.Request()
	req.Body = http.MaxBytesReader(c.Response(), req.Body, maxForm)
	if req.Method != http.MethodPost {
		return nil
	}
	rc := http.NewResponseController(c.Response().Writer)
	limited := rc.SetReadDeadline(time.Now().Add(formTime)) == nil
	err := req.ParseMultipartForm(maxForm)
	if limited { // a limit that passes while the answer is made would end the request
		_ = rc.SetReadDeadline(time.Time{})
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return fault.New(fault.TooLarge, "The form is larger than %d MiB.", maxForm>>20)
	}
	if err != nil && !errors.Is(err, http.ErrNotMultipart) {
		return fault.Wrap(err, fault.BadRequest, "The form of this request cannot be read.")
	}
	return nil
}

const (
	// formTime is how long a form may take to arrive.
	formTime = 30 * time.Second
	// maxForm bounds a form's body; uploads stream and are bounded by the sandbox's disk.
	maxForm = 1 << 20
	// streamWrite is how long a live stream waits for a browser that does not read.
	streamWrite = 10 * time.Second
)
