// Package handlers owns the pages: one route table, the middleware in front of it, forms, live streams and the terminal's
// websocket. It must never see the store, a runtime or the host: what it shows and does goes through the service it is given.
package handlers

import (
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"sandgate/internal/webhost"
)

// Options are what New needs.
type Options struct {
	Service  Service        // required
	Sessions Sessions       // required
	Images   Images         // required
	Names    *webhost.Names // required: host names and origins that this server answers to
	Log      *slog.Logger   // required
	// API answers everything under /v1; nil leaves the REST face out.
	API http.Handler
	// MCP answers /mcp; nil leaves it out.
	MCP http.Handler
	// PublicURL is shown in links and snippets, its path stands in front of every address, and it decides whether browsers are told to stay on https; "" takes the
	// address of the request.
	PublicURL string
	// TrustedProxies may say in X-Forwarded-For who their client is; nobody else is believed.
	TrustedProxies []netip.Prefix
	// NoNetwork says that sandboxes have none here, so that forms offer none.
	NoNetwork bool
	Now       func() time.Time // default time.Now
	// Tick is how often a live page reads usage and activity again without being told of a change; default 4 s.
	Tick time.Duration
}

// Server answers everything that comes in over HTTP. Safe for concurrent use.
type Server struct {
	o    Options
	log  *slog.Logger
	echo *echo.Echo
	csrf *http.CrossOriginProtection
	cpu  cpuReadings
}

// New checks the options and builds the server.
func New(o Options) (*Server, error) {
	if o.Service == nil || o.Sessions == nil || o.Images == nil || o.Names == nil || o.Log == nil {
		return nil, errors.New("handlers: service, sessions, images, names and log are required")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Tick == 0 {
		o.Tick = 4 * time.Second
	}
	o.PublicURL = strings.TrimSuffix(o.PublicURL, "/")
	s := &Server{o: o, log: o.Log, csrf: http.NewCrossOriginProtection()}
	for _, origin := range o.Names.Origins() {
		if err := s.csrf.AddTrustedOrigin(origin); err != nil {
			return nil, err
		}
	}
	s.build()
	return s, nil
}

// Handler gives the one handler of the whole server.
func (s *Server) Handler() http.Handler {
	if u, err := url.Parse(s.o.PublicURL); err == nil && u.Path != "" {
		return under(u.Path, s.echo)
	}
	return s.echo
}

// build puts middleware and routes together. The order of the middleware is written here and nowhere else: everything has an
// id before it can be logged, everything is logged, and nothing runs before the host name was judged.
func (s *Server) build() {
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.HTTPErrorHandler = s.writeError
	e.Pre(
		s.identify,  // request id and client address
		s.logAccess, // sees the status of everything below it
		s.recovered, // a panic is a 500 with an id
		s.checkHost, // a name that is not ours gets nothing
		s.harden,    // headers of every answer
	)
	for _, r := range s.routes() {
		e.Add(r.method, r.path, s.serve(r))
	}
	s.echo = e
}
