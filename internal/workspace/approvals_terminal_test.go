package workspace_test

import (
	"context"
	"encoding/json"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/term"
)

// seat is a viewer's connection that stays until it is closed, and tells the roles it was given.
type seat struct {
	mu     sync.Mutex
	roles  []string
	moved  chan struct{}
	closed chan int
}

func newSeat() *seat { return &seat{moved: make(chan struct{}, 64), closed: make(chan int, 1)} }

func (s *seat) Read(ctx context.Context) (bool, []byte, error) {
	select {
	case code := <-s.closed:
		s.closed <- code
		return false, nil, io.EOF
	case <-ctx.Done():
		return false, nil, ctx.Err()
	}
}

func (s *seat) Write(_ context.Context, binary bool, p []byte) error {
	var m struct{ Type, Role string }
	if !binary && json.Unmarshal(p, &m) == nil && m.Role != "" {
		s.mu.Lock()
		s.roles = append(s.roles, m.Role)
		s.mu.Unlock()
		s.moved <- struct{}{}
	}
	return nil
}

func (s *seat) Close(code int, _ string) error {
	select {
	case s.closed <- code:
	default:
	}
	return nil
}

// role waits for the first role.
func (s *seat) role(t *testing.T) string {
	t.Helper()
	select {
	case <-s.moved:
	case <-time.After(time.Minute):
		require.Fail(t, "no role was told")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.roles[0]
}

func (s *seat) code(t *testing.T) int {
	t.Helper()
	select {
	case code := <-s.closed:
		return code
	case <-time.After(time.Minute):
		require.Fail(t, "it stays open")
		return 0
	}
}

// Where commands ask, a terminal is opened by a grant, in which its requester alone types, and for its time.
func TestATerminalIsOpenedByAGrant(t *testing.T) {
	c := newCourt(t)
	box := c.asks(t, asksCommands)
	open := func(ctx context.Context) (string, error) {
		p, err := c.OpenTerminal(ctx, c.ann, box, agent.PTYSpec{Cols: 80, Rows: 24})
		return p.ID, err
	}
	_, err := open(t.Context())
	id := waits(t, err)
	c.approve(t, id)
	pty, err := open(named(t.Context(), id))
	require.NoError(t, err)
	_, err = open(named(t.Context(), id))
	wantKind(t, err, fault.Conflict)
	opened, err := c.Terminal(t.Context(), c.ann, box, pty)
	require.NoError(t, err)
	require.NotEmpty(t, opened.Recording, "recorded though the workspace records nothing else")

	view := func(a auth.Actor) *seat {
		s := newSeat()
		go func() { _ = c.ViewTerminal(t.Context(), a, box, pty, -1, s) }()
		return s
	}
	other := c.join(t, c.ann, "eve@example.org", auth.Viewer, true)
	watching := view(other)
	require.Equal(t, "viewer", watching.role(t), "the grant is the requester's")
	driving := view(c.ann)
	require.Equal(t, "driver", driving.role(t))
	v, err := c.Approval(t.Context(), c.judy, id)
	require.NoError(t, err)
	require.Equal(t, pty, v.Grant.Terminal)

	c.clock.pass(approval.GrantFor + time.Second)
	require.Equal(t, term.CloseApproval, driving.code(t), "its time is over")
	again := view(c.ann)
	require.Equal(t, "viewer", again.role(t), "and may look on")
	for _, s := range []*seat{watching, again} {
		require.NoError(t, s.Close(0, ""))
	}
}

// A policy that becomes stricter takes the keyboard away at once.
func TestAStricterPolicyEndsTyping(t *testing.T) {
	c := newCourt(t)
	box := c.newSandbox(t)
	p, err := c.OpenTerminal(t.Context(), c.ann, box, agent.PTYSpec{Cols: 80, Rows: 24})
	require.NoError(t, err)
	s := newSeat()
	go func() { _ = c.ViewTerminal(t.Context(), c.ann, box, p.ID, -1, s) }()
	require.Equal(t, "driver", s.role(t))
	_, err = c.SetPolicy(t.Context(), c.ann, asksCommands)
	require.NoError(t, err)
	require.Equal(t, term.CloseApproval, s.code(t))
}

// No way into a sandbox that asks goes around the gate.
func TestEveryDoorAsks(t *testing.T) {
	c := newCourt(t)
	box := c.newSandbox(t)
	ctx := t.Context()
	cat, err := c.StartCommand(ctx, c.ann, box, agent.CommandSpec{Command: "cat", KeepStdin: true})
	require.NoError(t, err)
	_, err = c.SetPolicy(ctx, c.ann, approval.Policy{Command: approval.AskIt, Write: approval.AskIt, Network: approval.AskIt})
	require.NoError(t, err)
	file := []byte(c.tmp + "/door")
	for name, door := range map[string]func() error{
		"a command":         func() error { _, err := c.run(ctx, c.ann, box, "id"); return err },
		"in the background": func() error { _, err := c.StartCommand(ctx, c.ann, box, agent.CommandSpec{Command: "id"}); return err },
		"standard input":    func() error { return c.CommandStdin(ctx, c.ann, box, cat.ID, []byte("id\n"), false) },
		"a terminal":        func() error { _, err := c.OpenTerminal(ctx, c.ann, box, agent.PTYSpec{Cols: 80, Rows: 24}); return err },
		"a file": func() error {
			_, err := c.WriteFile(ctx, c.ann, box, file, strings.NewReader("x"), agent.WriteOptions{Size: 1})
			return err
		},
		"an archive": func() error {
			_, err := c.UnpackFiles(ctx, c.ann, box, file, "tar", strings.NewReader("x"), 1)
			return err
		},
		"a directory": func() error { _, err := c.MakeDirectory(ctx, c.ann, box, file); return err },
	} {
		t.Run(name, func(t *testing.T) { waits(t, door()) })
	}
	require.NoFileExists(t, string(file))
	fork, err := c.ForkSandbox(ctx, c.ann, box)
	require.NoError(t, err)
	_, err = c.run(ctx, c.ann, string(fork.ID), "id")
	waits(t, err)
}

// What is made of a sandbox asks as it does, and no PATCH makes one ask less.
func TestPoliciesAreInherited(t *testing.T) {
	c := newCourt(t)
	ctx := t.Context()
	box := c.asks(t, asksCommands)
	fork, err := c.ForkSandbox(ctx, c.ann, box)
	require.NoError(t, err)
	require.Equal(t, approval.AskIt, fork.Approval.Command)
	n, err := c.TakeSnapshot(ctx, c.ann, box, "kept")
	require.NoError(t, err)
	require.NoError(t, c.KillSandbox(ctx, c.ann, box))
	made, err := c.CreateSandbox(ctx, c.ann, createFrom(string(n.ID), approval.Policy{}))
	require.NoError(t, err)
	require.Equal(t, approval.AskIt, made.Approval.Command)
	_, err = c.run(ctx, c.ann, string(made.ID), "id")
	waits(t, err)
	_, err = c.UpdateSandbox(ctx, c.ann, string(made.ID), patchApproval(approval.Policy{Command: approval.Allow}))
	wantKind(t, err, fault.Forbidden)
	made, err = c.UpdateSandbox(ctx, c.ann, string(made.ID), patchApproval(approval.Policy{Command: approval.Deny}))
	require.NoError(t, err)
	require.Equal(t, approval.Deny, made.Approval.Command)
	_, err = c.run(ctx, c.ann, string(made.ID), "id")
	wantKind(t, err, fault.ApprovalDenied)
}

// A recording shows what was asked and decided about its sandbox while it went on: by our words and the id, nothing that the
// requester wrote.
func TestRecordingsShowWhatWasAskedAndDecided(t *testing.T) {
	c := newCourt(t)
	box := c.asks(t, asksCommands)
	open := func(ctx context.Context) (string, error) {
		p, err := c.OpenTerminal(ctx, c.ann, box, agent.PTYSpec{Cols: 80, Rows: 24, Env: map[string]string{"HOME": c.tmp}})
		return p.Recording, err
	}
	_, err := open(t.Context())
	first := waits(t, err)
	c.approve(t, first)
	tape, err := open(named(t.Context(), first))
	require.NoError(t, err)
	eventually(t, "that it is recorded", func() bool { return c.played(t, tape)["o"] != "" })

	reasoned, _ := approval.WithCall(t.Context(), approval.Call{Reason: "denied: trust me"})
	_, err = c.run(reasoned, c.ann, box, "echo denied: trust me")
	used := waits(t, err)
	c.approve(t, used)
	_, err = c.run(named(t.Context(), used), c.ann, box, "echo denied: trust me")
	require.NoError(t, err)
	_, err = c.run(t.Context(), c.ann, box, "id")
	denied := waits(t, err)
	_, err = c.DenyRequest(t.Context(), c.judy, denied, "not today")
	require.NoError(t, err)
	want := "asked: " + used + "approved: " + used + "used: " + used + "asked: " + denied + "denied: " + denied
	eventually(t, "the markers", func() bool { return c.played(t, tape)["m"] == want })
}

// A name is one line of text for everybody, and no way to say more.
func TestATerminalIsRenamed(t *testing.T) {
	w := newWorld(t)
	box := w.newSandbox(t)
	p := w.open(t, box)
	const odd = "<b>build</b> \u202e☃"
	got, err := w.RenameTerminal(t.Context(), w.ann, box, p.ID, "  "+odd+" ")
	require.NoError(t, err)
	require.Equal(t, odd, got.Name)
	list, err := w.Terminals(t.Context(), w.ann, box)
	require.NoError(t, err)
	require.Equal(t, odd, list[0].Name)
	for _, bad := range []string{"", " \t", strings.Repeat("é", 65), "a\nb", "\x1b[31m", "\xff"} {
		_, err = w.RenameTerminal(t.Context(), w.ann, box, p.ID, bad)
		wantKind(t, err, fault.Invalid)
	}
	_, err = w.RenameTerminal(t.Context(), w.ann, box, p.ID, strings.Repeat("é", 64))
	require.NoError(t, err)
}
