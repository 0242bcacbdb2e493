package handlers

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/internal/wsconn"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/term"
	"sandgate/views"
	"sandgate/views/ui"
)

// ptyJSON is a terminal as our own script reads it.
type ptyJSON struct {
	ID      string   `json:"id"`
	Name    string   `json:"name"`
	Status  string   `json:"status"`
	Cols    int      `json:"cols"`
	Rows    int      `json:"rows"`
	Driver  string   `json:"driver"`
	Viewers []string `json:"viewers"`
	Others  string   `json:"others"`  // who is there besides the one who looks, short; "" for nobody
	People  string   `json:"people"`  // who is there, in words
	Cwd     string   `json:"cwd"`     // of its shell, to be shown; "" when not known
	CwdB64  string   `json:"cwd_b64"` // the same, to be used
}

func (v *visit) ptyShown(t workspace.Terminal) ptyJSON {
	out := ptyJSON{
		ID: t.ID, Name: display(t.Name), Status: t.Status, Cols: t.Cols, Rows: t.Rows, Driver: display(t.Driver), Viewers: []string{},
		CwdB64: base64.RawURLEncoding.EncodeToString(t.Cwd),
	}
	out.Cwd, _ = displayBytes(t.Cwd)
	for _, name := range t.Viewers {
		out.Viewers = append(out.Viewers, display(name))
	}
	out.Others, out.People = othersAt(t, v.actor.Name), peopleAt(out)
	return out
}

// othersAt names the first one besides me, and says how many more there are.
func othersAt(t workspace.Terminal, me string) string {
	var others []string
	for _, name := range append([]string{t.Driver}, t.Viewers...) {
		if name != "" && name != me && !slices.Contains(others, name) {
			others = append(others, name)
		}
	}
	switch len(others) {
	case 0:
		return ""
	case 1:
		return display(others[0])
	default:
		return display(others[0]) + " +" + itoa(len(others)-1)
	}
}

func (v *visit) terminals(id string) ([]ptyJSON, error) {
	list, err := v.s.o.Service.Terminals(v.ctx(), v.actor, id)
	if err != nil {
		return nil, err
	}
	out := []ptyJSON{}
	for i, t := range list {
		shown := v.ptyShown(t)
		if shown.Name == "" { // not opened on a page
			shown.Name = "Terminal " + itoa(i+1)
		}
		out = append(out, shown)
	}
	return out, nil
}

// freeName is the first "Terminal N" that none bears: names stay when others close.
func freeName(list []ptyJSON) string {
	taken := map[string]bool{}
	for _, t := range list {
		taken[t.Name] = true
	}
	n := 1
	for taken["Terminal "+itoa(n)] {
		n++
	}
	return "Terminal " + itoa(n)
}

func (v *visit) terminalTabs(id string) ([]views.TerminalTab, error) {
	list, err := v.terminals(id)
	if err != nil {
		return nil, err
	}
	var out []views.TerminalTab
	for _, t := range list {
		out = append(out, views.TerminalTab{ID: t.ID, Name: t.Name, Ended: t.Status == "exited", Others: t.Others, People: t.People})
	}
	return out, nil
}

// peopleAt says in words who is at a terminal.
func peopleAt(t ptyJSON) string {
	var parts []string
	if t.Driver != "" {
		parts = append(parts, t.Driver+" types")
	}
	if len(t.Viewers) > 0 {
		parts = append(parts, "watching: "+strings.Join(t.Viewers, ", "))
	}
	return strings.Join(parts, "; ")
}

func (s *Server) terminalList(v *visit) error {
	list, err := v.terminals(v.Param("id"))
	if err != nil {
		return err
	}
	return v.JSON(http.StatusOK, list)
}

// terminalOpen starts one in the size that the page has room for.
func (s *Server) terminalOpen(v *visit) error {
	var size agent.Size
	dec := json.NewDecoder(v.Request().Body)
	if err := dec.Decode(&size); err != nil && !errors.Is(err, io.EOF) {
		return fault.Wrap(err, fault.BadRequest, "The body is not JSON.")
	}
	spec := agent.PTYSpec{Cols: within(size.Cols, 80, agent.MaxCols), Rows: within(size.Rows, 24, agent.MaxRows)}
	if list, err := v.terminals(v.Param("id")); err == nil { // one that can't be listed yet has none
		spec.Name = freeName(list)
	}
	t, err := s.o.Service.OpenTerminal(v.ctx(), v.actor, v.Param("id"), spec)
	if err != nil {
		return err
	}
	return v.JSON(http.StatusOK, v.ptyShown(t))
}

func within(n, normal, most int) int {
	if n < 2 {
		return normal
	}
	return min(n, most)
}

// terminalRenameForm asks for another name.
func (s *Server) terminalRenameForm(v *visit) error {
	list, err := v.terminals(v.Param("id"))
	if err != nil {
		return err
	}
	i := slices.IndexFunc(list, func(t ptyJSON) bool { return t.ID == v.Param("pty") })
	if i < 0 {
		return fault.New(fault.NotFound, "Terminal not found")
	}
	return v.renderForm(http.StatusOK, v.terminalNameForm(list[i].Name, ""))
}

func (v *visit) terminalNameForm(name, wrong string) views.Confirm {
	at := v.base() + "/sandboxes/" + v.Param("id")
	return views.Confirm{
		Shell: v.shell("Rename a terminal", "sandboxes"), Heading: "Rename this terminal", Button: "Rename",
		Action: at + "/ptys/" + url.PathEscape(v.Param("pty")) + "/rename", Cancel: at,
		Fields: []ui.Field{{Name: "name", Label: "New name", Value: name, Wrong: wrong, Hint: "At most 64 characters. Everybody at this terminal sees it."}},
	}
}

func (s *Server) terminalRename(v *visit) error {
	name := v.FormValue("name")
	_, err := s.o.Service.RenameTerminal(v.ctx(), v.actor, v.Param("id"), v.Param("pty"), name)
	if sentence, fields, ok := wrongIn(err); ok {
		return v.renderForm(http.StatusUnprocessableEntity, v.terminalNameForm(display(name), orElse(fields["name"], sentence)))
	}
	if err != nil {
		return err
	}
	if v.partial() { // the list of terminals that the page follows says it
		v.Response().Header().Set("HX-Trigger", "terminal-renamed")
		v.Response().Header().Set("HX-Reswap", "none")
		return v.String(http.StatusOK, "")
	}
	return v.goTo(v.base() + "/sandboxes/" + v.Param("id"))
}

func (s *Server) terminalClose(v *visit) error {
	err := s.o.Service.CloseTerminal(v.ctx(), v.actor, v.Param("id"), v.Param("pty"))
	if err != nil && !fault.Is(err, fault.NotFound) {
		return err
	}
	return v.goTo(v.base() + "/sandboxes/" + v.Param("id"))
}

// terminalSocket carries a terminal. A wrong Origin or Host is refused before the upgrade; every other refusal is a close
// code after it, because a browser learns nothing from a refused upgrade.
func (s *Server) terminalSocket(v *visit) error {
	conn, answered, err := wsconn.Accept(v.Response(), v.Request(), wsconn.Options{Names: s.o.Names, Subprotocol: term.Subprotocol, Cookie: true})
	if err != nil {
		if answered {
			s.log.Info("websocket not opened", "request_id", v.requestID(), "cause", err)
			return nil
		}
		return err
	}
	if !v.signedIn {
		return conn.Close(term.CloseExpired, "You are not signed in.")
	}
	if v.actor, err = v.personActor(v.Param("slug")); err != nil {
		return conn.Close(closeCode(err), fault.Public(err))
	}
	if !sandbox.ID(v.Param("id")).Valid() {
		return conn.Close(term.CloseGone, "Sandbox not found")
	}
	since := int64(-1)
	if n, err := strconv.ParseInt(v.QueryParam("since"), 10, 64); err == nil && n >= 0 {
		since = n
	}
	err = s.o.Service.ViewTerminal(v.ctx(), v.actor, v.Param("id"), v.Param("pty"), since, conn)
	if err != nil {
		s.log.Info("terminal ended", "request_id", v.requestID(), "cause", err)
	}
	_ = conn.Close(term.CloseStopping, "") // does nothing when the service has closed it, as it should have
	return nil
}

func closeCode(err error) int {
	switch fault.KindOf(err) {
	case fault.Unauthenticated:
		return term.CloseExpired
	case fault.Forbidden:
		return term.CloseForbidden
	default:
		return term.CloseGone
	}
}
