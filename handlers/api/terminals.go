package api

import (
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/internal/wsconn"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/term"
)

type terminalBody struct {
	ID        string   `json:"id"`
	Name      string   `json:"name"` // that people gave it; "" for none
	Status    string   `json:"status"`
	Cols      int      `json:"cols"`
	Rows      int      `json:"rows"`
	Driver    *string  `json:"driver"`
	Viewers   []string `json:"viewers"`
	Oldest    int64    `json:"oldest"` // offsets of the first byte kept and of the one that comes next
	Next      int64    `json:"next"`
	CreatedAt string   `json:"created_at"`
	ExitCode  *int     `json:"exit_code"`
	Signal    *string  `json:"signal"`
}

func toTerminal(t workspace.Terminal) terminalBody {
	b := terminalBody{
		ID: t.ID, Name: t.Name, Status: t.Status, Cols: t.Cols, Rows: t.Rows, Driver: orNull(t.Driver), Viewers: t.Viewers,
		Oldest: t.Oldest, Next: t.Next, CreatedAt: stamp(t.CreatedAt),
	}
	if b.Viewers == nil {
		b.Viewers = []string{}
	}
	if t.Exit != nil {
		b.ExitCode, b.Signal = &t.Exit.Code, orNull(t.Exit.Signal)
	}
	return b
}

var terminalPattern = regexp.MustCompile(`^pty[a-z0-9]{20}$`)

func terminalID(c echo.Context) (string, error) {
	id := c.Param("pty")
	if !terminalPattern.MatchString(id) {
		return "", fault.New(fault.NotFound, "Terminal not found")
	}
	return id, nil
}

// openTerminal: POST …/ptys {"cols","rows","cwd","env","user"}.
func (s *server) openTerminal(c echo.Context) error {
	o, err := readObject(c, smallBody)
	if err != nil {
		return err
	}
	spec := agent.PTYSpec{
		Cols: int(o.whole("cols", 2, agent.MaxCols, 80)),
		Rows: int(o.whole("rows", 1, agent.MaxRows, 24)),
		Cwd:  string(o.path("cwd", false)),
		User: o.word("user", maxUser),
		Env:  o.environment("env"),
	}
	if err := o.check(); err != nil {
		return err
	}
	t, err := s.svc.OpenTerminal(c.Request().Context(), actor(c), c.Param("id"), spec)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, toTerminal(t))
}

// listTerminals: GET …/ptys. A bare array.
func (s *server) listTerminals(c echo.Context) error {
	list, err := s.svc.Terminals(c.Request().Context(), actor(c), c.Param("id"))
	if err != nil {
		return err
	}
	out := make([]terminalBody, 0, len(list))
	for _, t := range list {
		out = append(out, toTerminal(t))
	}
	return writeJSON(c, http.StatusOK, out)
}

// getTerminal: GET …/ptys/{pty}.
func (s *server) getTerminal(c echo.Context) error {
	id, err := terminalID(c)
	if err != nil {
		return err
	}
	t, err := s.svc.Terminal(c.Request().Context(), actor(c), c.Param("id"), id)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, toTerminal(t))
}

// renameTerminal: PATCH …/ptys/{pty} {"name"}.
func (s *server) renameTerminal(c echo.Context) error {
	id, err := terminalID(c)
	if err != nil {
		return err
	}
	o, err := readObject(c, smallBody)
	if err != nil {
		return err
	}
	name := o.line("name", 64)
	if strings.TrimSpace(name) == "" {
		o.fail("name", "must not be empty")
	}
	if err := o.check(); err != nil {
		return err
	}
	t, err := s.svc.RenameTerminal(c.Request().Context(), actor(c), c.Param("id"), id, name)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, toTerminal(t))
}

// closeTerminal: DELETE …/ptys/{pty}.
func (s *server) closeTerminal(c echo.Context) error {
	id, err := terminalID(c)
	if err != nil {
		return err
	}
	if err := s.svc.CloseTerminal(c.Request().Context(), actor(c), c.Param("id"), id); err != nil {
		return err
	}
	return done(c)
}

// refuseCaller answers who has no valid key: as JSON, but to a websocket by a close code, for a page cannot see a status.
func (s *server) refuseCaller(c echo.Context, refusal error) error {
	if c.Path() != socketPath || !c.IsWebSocket() {
		return refusal
	}
	conn, answered, err := s.upgrade(c)
	if err != nil {
		if answered {
			return nil
		}
		return err
	}
	s.note(c, http.StatusSwitchingProtocols, refusal)
	code := term.CloseForbidden
	switch fault.KindOf(refusal) {
	case fault.Unauthenticated:
		code = term.CloseExpired
	case fault.SlowDown, fault.QuotaExceeded:
		code = term.CloseTooSlow
	}
	return conn.Close(code, fault.Public(refusal))
}

func (s *server) upgrade(c echo.Context) (*wsconn.Conn, bool, error) {
	return wsconn.Accept(c.Response(), c.Request(), wsconn.Options{Names: s.names, Subprotocol: term.Subprotocol})
}

// viewTerminal: WS …/ptys/{pty}/ws?since=OFFSET. Without since the viewer gets a snapshot. A wrong host or origin is a 403;
// every other refusal upgrades and then closes with its code, for a browser cannot see a status.
func (s *server) viewTerminal(c echo.Context) error {
	conn, answered, err := s.upgrade(c)
	if err != nil {
		if answered {
			return nil
		}
		return err
	}
	since := int64(-1)
	if v := c.QueryParam("since"); v != "" {
		if since, err = strconv.ParseInt(v, 10, 64); err != nil || since < -1 {
			return conn.Close(term.CloseGone, "since must be an offset")
		}
	}
	pty, err := terminalID(c)
	if err != nil || !sandbox.ID(c.Param("id")).Valid() {
		return conn.Close(term.CloseGone, "Terminal not found")
	}
	if err := s.svc.ViewTerminal(c.Request().Context(), actor(c), c.Param("id"), pty, since, conn); err != nil {
		s.note(c, http.StatusSwitchingProtocols, err)
	}
	return nil
}
