package api

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

// maxCommand is what Linux takes as one argument; longer scripts belong into a file.
const maxCommand = 128<<10 - 1

type commandBody struct {
	ID         string   `json:"id"`
	Status     string   `json:"status"`
	Command    string   `json:"command"`
	Background bool     `json:"background"`
	Tag        *string  `json:"tag"`
	StartedAt  string   `json:"started_at"`
	EndedAt    *string  `json:"ended_at"`
	ExitCode   *int     `json:"exit_code"`
	Signal     *string  `json:"signal"`
	TimedOut   bool     `json:"timed_out"`
	Truncated  bool     `json:"truncated"`
	Duration   *float64 `json:"duration"`
}

func toCommand(c agent.Command) commandBody {
	b := commandBody{
		ID: c.ID, Status: c.Status, Command: c.Command, Background: c.Background, Tag: orNull(c.Tag), StartedAt: stamp(c.StartedAt),
	}
	if c.EndedAt != nil {
		at := stamp(*c.EndedAt)
		b.EndedAt = &at
	}
	if x := c.Exit; x != nil {
		b.ExitCode, b.Signal, b.Duration = &x.Code, orNull(x.Signal), &x.Duration
		b.TimedOut, b.Truncated = x.TimedOut, x.Truncated
	}
	return b
}

// postCommand: POST /v1/sandboxes/{id}/commands, in its three forms.
func (s *server) postCommand(c echo.Context) error {
	spec, err := s.readCommand(c)
	if err != nil {
		return err
	}
	switch {
	case spec.Background:
		cmd, err := s.svc.StartCommand(c.Request().Context(), actor(c), c.Param("id"), spec)
		if err != nil {
			return err
		}
		return writeJSON(c, http.StatusAccepted, toCommand(cmd))
	case wantsEvents(c.Request()):
		return s.streamCommand(c, spec)
	}
	return s.runCommand(c, spec)
}

func (s *server) readCommand(c echo.Context) (agent.CommandSpec, error) {
	o, leave, err := s.readLarge(c)
	if err != nil {
		return agent.CommandSpec{}, err
	}
	defer leave()
	spec := agent.CommandSpec{
		ID:         sandbox.RandomID("cmd"),
		Command:    o.word("command", maxCommand),
		Cwd:        string(o.path("cwd", false)),
		User:       o.word("user", maxUser),
		Env:        o.environment("env"),
		Background: o.flag("background", false),
		Tag:        o.line("tag", 64),
	}
	if o.bad["command"] == "" && strings.TrimSpace(spec.Command) == "" {
		o.fail("command", "must not be empty")
	}
	spec.TimeoutMS = 1000 * o.whole("timeout", 1, int64(agent.MaxTimeout.Seconds()), 0)
	if spec.TimeoutMS == 0 && !spec.Background {
		spec.TimeoutMS = agent.DefaultTimeout.Milliseconds()
	}
	// A background command whose stdin is not given can be written to later; one whose stdin is given sees its end.
	spec.KeepStdin = spec.Background && !o.has("stdin")
	if o.has("stdin") {
		spec.Stdin = []byte(o.text("stdin", agent.MaxStdin))
	}
	if err := o.check(); err != nil {
		return agent.CommandSpec{}, err
	}
	return spec, nil
}

func wantsEvents(r *http.Request) bool {
	for _, v := range r.Header.Values("Accept") {
		if strings.Contains(strings.ToLower(v), "text/event-stream") {
			return true
		}
	}
	return false
}

var commandPattern = regexp.MustCompile(`^cmd[a-z0-9]{20}$`)

// commandID gives the id of the path; what cannot be one is as unknown as one that is not there.
func commandID(c echo.Context) (string, error) {
	id := c.Param("cmd")
	if !commandPattern.MatchString(id) {
		return "", fault.New(fault.NotFound, "Command not found")
	}
	return id, nil
}

// listCommands: GET …/commands. A bare array: all that run, and those that ended last.
func (s *server) listCommands(c echo.Context) error {
	list, err := s.svc.Commands(c.Request().Context(), actor(c), c.Param("id"))
	if err != nil {
		return err
	}
	out := make([]commandBody, 0, len(list))
	for _, cmd := range list {
		out = append(out, toCommand(cmd))
	}
	return writeJSON(c, http.StatusOK, out)
}

// getCommand: GET …/commands/{cmd}.
func (s *server) getCommand(c echo.Context) error {
	id, err := commandID(c)
	if err != nil {
		return err
	}
	cmd, err := s.svc.Command(c.Request().Context(), actor(c), c.Param("id"), id)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, toCommand(cmd))
}

// logsEnd is what is told beside the output: the bytes too, where they are not UTF-8.
type logsEnd struct {
	commandBody
	Cursor string `json:"cursor"` // what to ask with next
}

// commandLogs: GET …/commands/{cmd}/logs?cursor=. What is there since the cursor, without waiting for more.
func (s *server) commandLogs(c echo.Context) error {
	id, err := commandID(c)
	if err != nil {
		return err
	}
	at, err := readCursor(c)
	if err != nil {
		return err
	}
	out := s.collector()
	defer out.close()
	cmd, err := s.collectLogs(c, id, at, out)
	if err != nil {
		return err
	}
	texts := out.texts()
	for _, t := range out.texts() {
		if !t.from.text() {
			texts = append(texts, longText{name: t.name + "_b64", from: t.from, base64: true})
		}
	}
	c.Response().Header().Set(echo.HeaderContentType, "application/json")
	c.Response().WriteHeader(http.StatusOK)
	next := cursor{at.stdout + out.stdout.size, at.stderr + out.stderr.size}
	return writeLong(c.Response(), texts, logsEnd{commandBody: toCommand(cmd), Cursor: next.String()})
}

// collectLogs puts what is kept into out. It is all in memory once, so not many may do this at the same time.
func (s *server) collectLogs(c echo.Context, id string, at cursor, out *collector) (agent.Command, error) {
	ctx := c.Request().Context()
	leave, err := s.enterHeavy(ctx)
	if err != nil {
		return agent.Command{}, err
	}
	defer leave()
	stdout, stderr, cmd, err := s.svc.CommandLogs(ctx, actor(c), c.Param("id"), id, at.stdout, at.stderr)
	if err != nil {
		return cmd, err
	}
	if cmd.Exit == nil { // half a character is left for the next call, which will have all of it
		stdout, stderr = stdout[:len(stdout)-openTail(stdout)], stderr[:len(stderr)-openTail(stderr)]
	}
	return cmd, errors.Join(out.Stdout(stdout), out.Stderr(stderr))
}

// enterHeavy waits for a place among the calls that hold megabytes.
func (s *server) enterHeavy(ctx context.Context) (leave func(), err error) {
	select {
	case s.heavy <- struct{}{}:
		return func() { <-s.heavy }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// cursor is a place in both streams, in bytes from their start.
type cursor struct{ stdout, stderr int64 }

// String gives the form that readCursor reads.
func (c cursor) String() string {
	return strconv.FormatInt(c.stdout, 10) + "." + strconv.FormatInt(c.stderr, 10)
}

func readCursor(c echo.Context) (cursor, error) {
	q := c.QueryParam("cursor")
	if q == "" {
		return cursor{}, nil
	}
	first, second, _ := strings.Cut(q, ".")
	out, err1 := strconv.ParseInt(first, 10, 64)
	errs, err2 := strconv.ParseInt(second, 10, 64)
	if err1 != nil || err2 != nil || out < 0 || errs < 0 {
		return cursor{}, fault.Field("cursor", "must be one that an earlier answer gave")
	}
	return cursor{out, errs}, nil
}

// commandStdin: POST …/commands/{cmd}/stdin {"data","encoding","eof"}.
func (s *server) commandStdin(c echo.Context) error {
	id, err := commandID(c)
	if err != nil {
		return err
	}
	o, leave, err := s.readLarge(c)
	if err != nil {
		return err
	}
	data := o.content("data", "encoding", agent.MaxStdin)
	eof := o.flag("eof", false)
	leave()
	if err := o.check(); err != nil {
		return err
	}
	if err := s.svc.CommandStdin(c.Request().Context(), actor(c), c.Param("id"), id, data, eof); err != nil {
		return err
	}
	return done(c)
}

// signals are those a caller may send.
var signals = []string{"KILL", "TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "STOP", "CONT", "TSTP", "WINCH"}

// killCommand: POST …/commands/{cmd}/kill {"signal"}; KILL when none is named.
func (s *server) killCommand(c echo.Context) error {
	id, err := commandID(c)
	if err != nil {
		return err
	}
	o, err := readObject(c, smallBody)
	if err != nil {
		return err
	}
	signal := "KILL"
	if o.has("signal") {
		signal = strings.TrimPrefix(strings.ToUpper(o.word("signal", 16)), "SIG")
	}
	known := false
	for _, w := range signals {
		known = known || w == signal
	}
	if !known {
		o.fail("signal", "must be one of "+strings.Join(signals, ", "))
	}
	if err := o.check(); err != nil {
		return err
	}
	if err := s.svc.KillCommand(c.Request().Context(), actor(c), c.Param("id"), id, signal); err != nil {
		return err
	}
	return done(c)
}
