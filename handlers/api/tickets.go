package api

import (
	"crypto/rand"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"sandgate/internal/fault"
)

const (
	ticketLife = 30 * time.Second
	maxTickets = 4096 // that nobody has used yet
)

// ticketBody is the answer of POST …/ticket.
type ticketBody struct {
	Ticket    string `json:"ticket"` // for the query of …/ws, once
	ExpiresAt string `json:"expires_at"`
}

// tickets stand in for a key where none can be sent: a browser's websocket has no headers of its own, and a key in an address
// would stay in logs. Each opens one terminal, once, within seconds. Safe for concurrent use.
type tickets struct {
	now func() time.Time

	mu   sync.Mutex
	open map[string]ticket
}

// ticket keeps the key, so that it is judged anew when the ticket is used.
type ticket struct {
	secret, sandbox, pty string
	until                time.Time
}

func newTickets() *tickets { return &tickets{now: time.Now, open: map[string]ticket{}} }

// issue gives a new ticket.
func (t *tickets) issue(secret, sandbox, pty string) (name string, until time.Time, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	for k, v := range t.open {
		if !now.Before(v.until) {
			delete(t.open, k)
		}
	}
	if len(t.open) >= maxTickets {
		return "", time.Time{}, fault.New(fault.SlowDown, "Too many tickets wait to be used. Wait a few seconds.").With("retry_after", int(ticketLife/time.Second))
	}
	name, until = "tk"+strings.ToLower(rand.Text()), now.Add(ticketLife)
	t.open[name] = ticket{secret, sandbox, pty, until}
	return name, until, nil
}

// take uses a ticket up, also one for another terminal, and gives the key that it stands for.
func (t *tickets) take(name, sandbox, pty string) (secret string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v, known := t.open[name]
	delete(t.open, name)
	if !known || !t.now().Before(v.until) || v.sandbox != sandbox || v.pty != pty {
		return "", fault.New(fault.Unauthenticated, "The ticket is not valid here: it opens one terminal, once, within 30 s.")
	}
	return v.secret, nil
}

// secretFor gives the key that a request bears, or that its ticket stands for.
func (s *server) secretFor(c echo.Context) (string, error) {
	name, given := c.QueryParam("ticket"), c.QueryParams().Has("ticket")
	if !given || c.Path() != socketPath || c.Request().Method != http.MethodGet {
		return secretOf(c.Request())
	}
	if c.Request().Header.Get("X-API-Key") != "" || c.Request().Header.Get("Authorization") != "" {
		return "", fault.New(fault.BadRequest, "The request bears an API key and a ticket: send one of them.")
	}
	return s.tickets.take(name, c.Param("id"), c.Param("pty"))
}

// terminalTicket: POST …/ptys/{pty}/ticket. Whoever may look on may have one.
func (s *server) terminalTicket(c echo.Context) error {
	id, err := terminalID(c)
	if err != nil {
		return err
	}
	if _, err := s.svc.Terminal(c.Request().Context(), actor(c), c.Param("id"), id); err != nil {
		return err
	}
	secret, _ := c.Get(secretKey).(string)
	name, until, err := s.tickets.issue(secret, c.Param("id"), id)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, ticketBody{Ticket: name, ExpiresAt: stamp(until)})
}
