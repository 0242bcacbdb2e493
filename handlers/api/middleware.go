package api

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"sandgate/auth"
	"sandgate/internal/fault"
	"sandgate/sandbox"
)

const (
	requestIDHeader = "X-Request-ID"
	actorKey        = "sandgate.actor"
	secretKey       = "sandgate.secret"
	patienceKey     = "sandgate.patience"
	bodyKey         = "sandgate.body"
)

// sessionCookies are the prefixes of our own cookies' names. A request that bears one and a key could be a page of
// somebody else riding on a sign-in, or a proxy that mixes two callers: it is refused rather than guessed at.
var sessionCookies = []string{"sandgate", "__Host-sandgate", "__Secure-sandgate"}

// identify gives the request its id (one that an outer handler chose is kept, a client's is not) and the headers that
// every answer bears.
func (s *server) identify(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		h := c.Response().Header()
		if h.Get(requestIDHeader) == "" {
			h.Set(requestIDHeader, strings.ToLower(rand.Text()))
		}
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Referrer-Policy", "no-referrer")
		c.Set(patienceKey, s.patience)
		if c.Request().ContentLength != 0 { // what reads the body gives it more time as it comes; nothing else waits for it
			_ = http.NewResponseController(c.Response().Writer).SetReadDeadline(time.Now().Add(s.patience))
		}
		return next(c)
	}
}

// recovered turns a panic into a 500 with a line in the log. An aborted answer stays aborted.
func (s *server) recovered(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) (err error) {
		defer func() {
			switch p := recover(); {
			case p == nil:
			case isAbort(p):
				panic(p)
			default:
				err = fmt.Errorf("%s %s: panic: %v\n%s", c.Request().Method, c.Path(), p, debug.Stack())
			}
		}()
		return next(c)
	}
}

// isAbort tells the one panic that net/http itself asks for.
func isAbort(p any) bool {
	err, ok := p.(error)
	return ok && errors.Is(err, http.ErrAbortHandler)
}

// authenticate finds whose key the request bears. It runs for unknown paths too: nothing is told to who has no key.
func (s *server) authenticate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if isOpen(c.Path()) {
			return next(c)
		}
		secret, err := s.secretFor(c)
		if err != nil {
			return s.refuseCaller(c, err)
		}
		a, err := s.svc.KeyActor(c.Request().Context(), secret, s.clientIP(c.Request()), requestID(c))
		if err != nil {
			return s.refuseCaller(c, err)
		}
		if err := s.limits.Take(a.KeyID); err != nil {
			return s.refuseCaller(c, err)
		}
		c.Set(actorKey, a)
		c.Set(secretKey, secret)
		return next(c)
	}
}

// secretOf takes the key from X-API-Key or Authorization: Bearer. Two that differ are refused.
func secretOf(r *http.Request) (string, error) {
	var found []string
	found = append(found, r.Header.Values("X-API-Key")...)
	for _, v := range r.Header.Values("Authorization") {
		scheme, token, ok := strings.Cut(v, " ")
		if !ok || !strings.EqualFold(scheme, "Bearer") {
			return "", fault.New(fault.Unauthenticated, "Give the API key in the header X-API-Key, or as Authorization: Bearer.")
		}
		found = append(found, strings.TrimSpace(token))
	}
	if len(found) == 0 || found[0] == "" {
		return "", fault.New(fault.Unauthenticated, "Give an API key in the header X-API-Key.")
	}
	for _, f := range found[1:] {
		if f != found[0] {
			return "", fault.New(fault.BadRequest, "The request bears two different API keys.")
		}
	}
	if len(found[0]) > 512 {
		return "", fault.New(fault.Unauthenticated, "The API key is not valid.")
	}
	for _, k := range r.Cookies() {
		for _, prefix := range sessionCookies {
			if strings.HasPrefix(k.Name, prefix) {
				return "", fault.New(fault.BadRequest, "The request bears an API key and a sign-in cookie: send one of them.")
			}
		}
	}
	return found[0], nil
}

// permit checks the table's permission, and the shape of ids: what cannot be an id is as unknown as one that is not there.
func (s *server) permit(r route) echo.HandlerFunc {
	return func(c echo.Context) error {
		id := sandbox.ID(c.Param("id"))
		if r.need != nil {
			a := actor(c)
			target := ""
			if id.Valid() {
				target = string(id)
			}
			if !mayAny(a, r.need) {
				if err := s.svc.Require(c.Request().Context(), a, r.action, target, r.need...); err != nil {
					return err
				}
				return fault.New(fault.Forbidden, "This key may not do that.") // never trust a yes that the key itself denies
			}
		}
		if strings.Contains(r.path, ":id") && !id.Valid() && !strings.HasSuffix(r.path, "/ws") {
			return errNoSandbox()
		}
		leave, err := s.limits.Enter(actor(c).KeyID, r.stream)
		if err != nil {
			return s.refuseCaller(c, err)
		}
		defer leave()
		if asksFor[r.action] && r.method != http.MethodGet {
			return asking(r.run)(c)
		}
		return r.run(c)
	}
}

func mayAny(a auth.Actor, need []auth.Permission) bool {
	for _, p := range need {
		if a.May(p) {
			return true
		}
	}
	return false
}

// refuseMethod answers a method that is not there, OPTIONS with the others: there is no cross-origin use to announce.
func refuseMethod(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if allow, ok := c.Get(echo.ContextKeyHeaderAllow).(string); ok { // the router found the path, but not the method
			c.Set(echo.ContextKeyHeaderAllow, strings.TrimPrefix(allow, http.MethodOptions+", "))
			return echo.MethodNotAllowedHandler(c)
		}
		return next(c)
	}
}

func errNoSandbox() error { return fault.New(fault.NotFound, "Sandbox not found") }

func actor(c echo.Context) auth.Actor {
	a, _ := c.Get(actorKey).(auth.Actor)
	return a
}

func requestID(c echo.Context) string { return c.Response().Header().Get(requestIDHeader) }
