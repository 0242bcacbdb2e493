package workspace

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/idle"
	"sandgate/sandbox/term"
)

// partID is the shape of pty and cmd ids.
var partID = regexp.MustCompile(`^(pty|cmd)[a-z0-9]{20}$`)

// Terminal is one with who is at it.
type Terminal struct {
	agent.PTY
	Driver    string
	Viewers   []string
	Recording string // id of the recording that goes on; "": none
}

// OpenTerminal starts one. Needs run.
func (s *Service) OpenTerminal(ctx context.Context, a auth.Actor, id string, p agent.PTYSpec) (Terminal, error) {
	what := approval.Action{Kind: approval.Terminal, Name: "terminal.open", SandboxID: id}
	r, client, done, err := s.use(ctx, a, what, auth.SandboxesRun, idle.Call)
	if err != nil {
		return Terminal{}, err
	}
	defer done()
	bad := map[string]string{}
	if p.Cols < 2 || p.Cols > agent.MaxCols {
		bad["cols"] = "must be between 2 and 500"
	}
	if p.Rows < 1 || p.Rows > agent.MaxRows {
		bad["rows"] = "must be between 1 and 300"
	}
	placeCheck(&p.Cwd, &p.User, &p.Env, r, bad)
	if err := fieldsFault(bad); err != nil {
		return Terminal{}, err
	}
	p.ID = sandbox.RandomID("pty")
	what.Target = p.ID
	var opened agent.PTY
	q, err := s.askTerminal(ctx, r, &p)
	if err != nil {
		return Terminal{}, err
	}
	err = s.changeAsking(ctx, a, what, q, func(ctx context.Context) (string, error) {
		if err := s.addSecrets(ctx, r, p.Env); err != nil {
			return "", err
		}
		t, err := s.startTape(ctx, a, r, p.ID, agent.Size{Cols: p.Cols, Rows: p.Rows})
		if err != nil {
			return "", err
		}
		if opened, err = client.OpenPTY(ctx, p); err != nil {
			s.dropTape(t)
			return "", s.explain(ctx, r, err)
		}
		detail := "user " + p.User
		if t != nil {
			detail += ", recorded as " + t.row.ID
		}
		s.keepTape(t, -1)
		return detail, nil
	})
	if err == nil {
		s.feed.send(a.Workspace.ID, Change{Kind: "terminal", SandboxID: id})
	}
	return Terminal{PTY: opened, Recording: s.liveTape(r.ID, p.ID)}, err
}

// Terminals lists. Needs read.
func (s *Service) Terminals(ctx context.Context, a auth.Actor, id string) ([]Terminal, error) {
	r, client, err := s.reach(ctx, a, approval.Action{Name: "terminal.list", SandboxID: id}, auth.SandboxesRead)
	if err != nil {
		return nil, err
	}
	ptys, err := client.PTYs(ctx)
	if err != nil {
		return nil, s.explain(ctx, r, err)
	}
	out := make([]Terminal, len(ptys))
	for i, p := range ptys {
		out[i] = s.peopled(r.ID, p)
	}
	return out, nil
}

// Terminal gives one. Needs read.
func (s *Service) Terminal(ctx context.Context, a auth.Actor, id, pty string) (Terminal, error) {
	r, client, err := s.reachPart(ctx, a, "terminal.read", id, pty, auth.SandboxesRead)
	if err != nil {
		return Terminal{}, err
	}
	p, err := client.PTY(ctx, pty)
	if err != nil {
		return Terminal{}, s.explain(ctx, r, err)
	}
	return s.peopled(r.ID, p), nil
}

func (s *Service) peopled(id sandbox.ID, p agent.PTY) Terminal {
	driver, viewers := s.o.Terminals.Viewers(id, p.ID)
	return Terminal{PTY: p, Driver: driver, Viewers: viewers, Recording: s.liveTape(id, p.ID)}
}

// maxTerminalName is the longest name that people give a terminal, in characters.
const maxTerminalName = 64

// RenameTerminal gives a terminal another name, for everybody who looks at it: one line of 1 to 64 characters, which is text of
// whoever gave it. Needs run.
func (s *Service) RenameTerminal(ctx context.Context, a auth.Actor, id, pty, name string) (Terminal, error) {
	r, client, done, err := s.usePart(ctx, a, "terminal.rename", id, pty)
	if err != nil {
		return Terminal{}, err
	}
	defer done()
	if name = strings.TrimSpace(name); name == "" {
		return Terminal{}, fault.Field("name", "must not be empty")
	}
	if msg := textProblem(name, maxTerminalName); msg != "" {
		return Terminal{}, fault.Field("name", "%s", msg)
	}
	var renamed agent.PTY
	what := approval.Action{Kind: approval.Other, Name: "terminal.rename", SandboxID: id, Target: pty}
	err = s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		var err error
		renamed, err = client.RenamePTY(ctx, pty, name)
		return "to " + s.mask(ctx, id).hide(name), s.explain(ctx, r, err)
	})
	if err != nil {
		return Terminal{}, err
	}
	s.feed.send(a.Workspace.ID, Change{Kind: "terminal", SandboxID: id})
	return s.peopled(r.ID, renamed), nil
}

// CloseTerminal hangs one up. Needs run.
func (s *Service) CloseTerminal(ctx context.Context, a auth.Actor, id, pty string) error {
	r, client, done, err := s.usePart(ctx, a, "terminal.close", id, pty)
	if err != nil {
		return err
	}
	defer done()
	what := approval.Action{Kind: approval.Other, Name: "terminal.close", SandboxID: id, Target: pty}
	err = s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		return "", s.explain(ctx, r, client.ClosePTY(ctx, pty))
	})
	if err == nil {
		s.feed.send(a.Workspace.ID, Change{Kind: "terminal", SandboxID: id})
	}
	return err
}

// ViewTerminal carries a viewer over conn until it ends; it closes conn with the contract's codes. Permission lost while
// it is open: closed within 2 s. since -1 asks for a snapshot. A refusal closes conn with its code too. Who may type
// passes the gate as an attachment; who watches is on record too. Where typing has to be approved, who has no grant may look
// on, and is closed with CloseApproval when a grant ends.
func (s *Service) ViewTerminal(ctx context.Context, a auth.Actor, id, pty string, since int64, conn term.Conn) error {
	r, client, err := s.reachPart(ctx, a, "terminal.view", id, pty, auth.SandboxesRead)
	var p agent.PTY
	if err == nil {
		p, err = client.PTY(ctx, pty)
		err = s.explain(ctx, r, err)
	}
	if err == nil && p.Status == "running" {
		var t *tape
		t, err = s.startTape(ctx, a, r, pty, agent.Size{Cols: p.Cols, Rows: p.Rows})
		s.keepTape(t, -1)
	}
	if err != nil {
		return errors.Join(err, refuseConn(conn, err))
	}
	need, granted := auth.SandboxesRead, false
	var check func(context.Context) (time.Time, error)
	if a.May(auth.SandboxesRun) {
		until, err := s.mayType(ctx, a, r, pty)
		if err != nil && !fault.Is(err, fault.ApprovalNeeded) && !fault.Is(err, fault.ApprovalDenied) {
			return errors.Join(err, refuseConn(conn, err))
		}
		if !fault.Is(err, fault.ApprovalNeeded) {
			need, granted = auth.SandboxesRun, !until.IsZero() // losing it closes the terminal; it may be opened again for viewing
			if err == nil {                                    // else the gate refuses, below, and that must not end the record of it
				check = func(ctx context.Context) (time.Time, error) { return s.mayType(ctx, a, r, pty) }
			}
		}
	}
	ctx, cancel := s.guardTerminal(ctx, a, need, check)
	defer cancel()
	serve := func(ctx context.Context) (string, error) {
		v := term.Viewer{Name: a.Name, Who: whoIs(a), MayType: need == auth.SandboxesRun, Since: since}
		err := s.o.Terminals.Serve(ctx, r.ID, pty, v, conn, func() { s.typed(ctx, a, r.ID) })
		if end, ok := errors.AsType[*term.CloseError](err); ok {
			return fmt.Sprintf("closed with %d: %s", end.Code, end.Reason), nil // how a view ends, not a failure of it
		}
		return "", err
	}
	what := approval.Action{Kind: approval.Terminal, Name: "terminal.attach", SandboxID: id, Target: pty}
	if need == auth.SandboxesRead {
		what.Kind, what.Name = approval.Other, "terminal.view"
	}
	reached := false
	err = s.changeAsking(ctx, a, what, &asking{record: r, let: granted}, func(ctx context.Context) (string, error) {
		reached = true
		return serve(ctx)
	})
	if err != nil && !reached {
		return errors.Join(err, refuseConn(conn, err))
	}
	return err
}

// whoIs tells one person or key from another; their windows are known by it as theirs.
func whoIs(a auth.Actor) string {
	if a.KeyID != "" {
		return "key " + a.KeyID
	}
	if a.UserID != "" {
		return "person " + a.UserID
	}
	return ""
}

// typed keeps the sandbox, and the sign-in of the person who types, from being idle.
func (s *Service) typed(ctx context.Context, a auth.Actor, id sandbox.ID) {
	s.o.Sandboxes.Touch(ctx, id)
	if a.SessionID == "" {
		return
	}
	if err := s.o.Store.TouchSession(ctx, a.SessionID, s.o.Now()); err != nil && ctx.Err() == nil {
		s.o.Log.Warn("touch a session", "cause", err.Error())
	}
}

// guardTerminal is Guard with the terminal's close codes as causes.
func (s *Service) guardTerminal(ctx context.Context, a auth.Actor, need auth.Permission, check func(context.Context) (time.Time, error)) (
	context.Context, context.CancelFunc,
) {
	guarded, cancelGuard := s.guardWith(ctx, a, need, check)
	out, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(guarded, func() {
		cause := context.Cause(guarded)
		if fault.Is(cause, fault.Internal) {
			cancel(cause)
			return
		}
		cancel(closeOf(cause))
	})
	return out, func() { stop(); cancel(nil); cancelGuard() }
}

// closeOf maps a refusal to the close code that tells the page what to do.
func closeOf(err error) *term.CloseError {
	codes := map[fault.Kind]int{
		fault.Forbidden: term.CloseForbidden, fault.ApprovalDenied: term.CloseForbidden, fault.ApprovalNeeded: term.CloseApproval,
		fault.Unauthenticated: term.CloseExpired, fault.NotFound: term.CloseGone, fault.SandboxDied: term.CloseGone,
	}
	code, ok := codes[fault.KindOf(err)]
	if !ok {
		code = term.CloseTooSlow // not final: the page comes back
	}
	return &term.CloseError{Code: code, Reason: fault.Public(err)}
}

func refuseConn(conn term.Conn, err error) error {
	c := closeOf(err)
	return conn.Close(c.Code, c.Reason)
}

// AttachVia reaches terminals through the manager's agents; it is what the hub attaches by.
func AttachVia(m *sandbox.Manager) term.AttachFunc {
	return func(ctx context.Context, id sandbox.ID, pty string, since int64) (agent.Attachment, error) {
		client, err := m.AwakeAgent(ctx, id)
		if err != nil {
			return nil, err
		}
		if since >= 0 {
			return client.Attach(ctx, pty, since)
		}
		// Asked before attaching: what was printed until now is history, which viewers get as a snapshot.
		t, err := client.PTY(ctx, pty)
		if err != nil {
			return nil, err
		}
		att, err := client.Attach(ctx, pty, since)
		if err != nil {
			return nil, err
		}
		return term.Replayed(att, t.Next), nil
	}
}
