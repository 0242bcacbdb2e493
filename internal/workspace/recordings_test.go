package workspace_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/term"
	"sandgate/sandbox/term/recording"
)

var replayNeeds = []auth.Permission{auth.SandboxesRead, auth.AuditRead}

// recordingAccounts are the methods about recordings.
var recordingAccounts = map[string]account{
	"RecordingPolicy": {
		kind: read, needs: []auth.Permission{auth.SandboxesRead, auth.SandboxesManage, auth.MembersManage},
		call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
			_, err := w.RecordingPolicy(ctx, a)
			return err
		},
	},
	"SetRecordingPolicy": {kind: change, needs: memberNeeds, call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		_, err := w.SetRecordingPolicy(ctx, a, recording.DefaultPolicy())
		return err
	}},
	"Recordings": {kind: read, needs: replayNeeds, call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		_, err := w.Recordings(ctx, a, workspace.RecordingFilter{})
		return err
	}},
	"Recording": {kind: read, needs: replayNeeds, prepare: endedRecording, call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
		_, err := w.Recording(ctx, a, id)
		return err
	})},
	"PlayRecording": {kind: change, needs: replayNeeds, prepare: endedRecording, call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
		p, err := w.PlayRecording(ctx, a, id)
		if err == nil {
			err = p.Close()
		}
		return err
	})},
	"DeleteRecording": {
		kind: change, needs: []auth.Permission{auth.SandboxesManage}, prepare: endedRecording,
		call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
			return w.DeleteRecording(ctx, a, id)
		}),
	},
	"MarkTerminals": {kind: read, why: "called by whoever decides what happens in a terminal", call: func(_ context.Context, w *world, _ auth.Actor, _ any) error {
		w.MarkTerminals(sandbox.NewID(), "", "approved")
		return nil
	}},
	"ResumeRecordings": {kind: read, why: "the server itself", call: func(ctx context.Context, w *world, _ auth.Actor, _ any) error {
		return w.ResumeRecordings(ctx)
	}},
	"SweepRecordings": {kind: read, why: "the server itself", call: func(ctx context.Context, w *world, _ auth.Actor, _ any) error {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		w.SweepRecordings(ctx)
		return nil
	}},
}

// keep puts a recording that has ended on the shelf.
func (w *world) keep(t *testing.T, input bool, ended time.Time, text string) recording.Recording {
	t.Helper()
	ctx := context.Background()
	r := recording.Recording{
		ID: sandbox.RandomID("rec"), WorkspaceID: w.ann.Workspace.ID, SandboxID: string(sandbox.NewID()), PTY: sandbox.RandomID("pty"), Part: 1,
		By: "ann", Input: input, StartedAt: ended.Add(-time.Minute),
	}
	f, err := w.shelf.Create(r.ID, recording.Start{At: r.StartedAt, Cols: 80, Rows: 24})
	require.NoError(t, err)
	require.NoError(t, f.Output(ended, 0, []byte(text)))
	require.NoError(t, f.Exit(ended, 0))
	require.NoError(t, f.Close())
	require.NoError(t, w.store.InsertRecording(ctx, r))
	r.EndedAt, r.End, r.Bytes = ended, recording.EndExited, f.Size()
	require.NoError(t, w.store.FinishRecording(ctx, r.ID, ended, r.End, r.Bytes))
	return r
}

func endedRecording(t *testing.T, w *world) any {
	t.Helper()
	return w.keep(t, false, time.Now().Add(-time.Minute), "hello").ID
}

func (w *world) policy(t *testing.T, p recording.Policy) {
	t.Helper()
	_, err := w.SetRecordingPolicy(context.Background(), w.ann, p)
	require.NoError(t, err)
}

func policyOf(mode recording.Mode) recording.Policy {
	p := recording.DefaultPolicy()
	p.Mode = mode
	return p
}

// played gives what a recording shows, by codes.
func (w *world) played(t *testing.T, id string) map[string]string {
	t.Helper()
	p, err := w.PlayRecording(context.Background(), w.ann, id)
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	out := map[string]string{}
	lines := bufio.NewScanner(p)
	for lines.Scan() {
		var e [3]any
		if strings.HasPrefix(lines.Text(), "[") && json.Unmarshal(lines.Bytes(), &e) == nil {
			out[e[1].(string)] += e[2].(string)
		}
	}
	require.NoError(t, lines.Err())
	return out
}

func (w *world) recordings(t *testing.T) []workspace.Recording {
	t.Helper()
	list, err := w.Recordings(context.Background(), w.ann, workspace.RecordingFilter{})
	require.NoError(t, err)
	return list
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, 2*time.Minute, 5*time.Millisecond, what)
}

func (w *world) open(t *testing.T, box string) workspace.Terminal {
	t.Helper()
	// Without the profile of whoever runs this.
	p, err := w.OpenTerminal(context.Background(), w.ann, box, agent.PTYSpec{Cols: 80, Rows: 24, Env: map[string]string{"HOME": t.TempDir()}})
	require.NoError(t, err)
	return p
}

func TestATerminalIsRecordedWithoutItsSecrets(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.forwardChanges()
	made, err := w.CreateSandbox(ctx, w.ann, workspace.CreateOptions{Label: "box", Cwd: w.tmp, User: w.user, Secrets: map[string]string{"TOKEN": "hunter2-hunter2"}})
	require.NoError(t, err)
	box := string(made.ID)
	require.Empty(t, w.open(t, box).Recording, "off unless asked for")
	w.policy(t, policyOf(recording.On))
	eventually(t, "the one that is open is recorded from now on", func() bool { return len(w.recordings(t)) == 1 })
	p := w.open(t, box)
	require.NotEmpty(t, p.Recording)
	conn := newTyper("echo from-$((40+2)) $TOKEN\nexit 3\n")
	require.NoError(t, w.ViewTerminal(ctx, w.ann, box, p.ID, -1, conn))
	var r workspace.Recording
	eventually(t, "the end", func() bool {
		r, err = w.Recording(ctx, w.ann, p.Recording)
		return err == nil && !r.EndedAt.IsZero()
	})
	require.Equal(t, recording.EndExited, r.End)
	require.Equal(t, "ann@example.org", r.By)
	require.Equal(t, box, r.SandboxID)
	require.Equal(t, "box", r.Label)
	got := w.played(t, p.Recording)
	require.Contains(t, got["o"], "from-42 [secret TOKEN]")
	require.NotContains(t, got["o"], "hunter2-hunter2")
	require.Equal(t, "3", got["x"])
	require.Contains(t, got["m"], "driver: ann@example.org")
	require.Empty(t, got["i"], "input is not recorded unless asked for")

	opened := w.events(t, audit.Filter{SandboxID: box, Action: "terminal.open"})
	require.Contains(t, opened[0].Detail, "recorded as "+p.Recording)
	watched := w.events(t, audit.Filter{Action: "recording.play"})
	require.Equal(t, p.Recording, watched[0].Target)

	// It outlives the sandbox, and ends with it.
	q := w.open(t, box)
	require.NoError(t, w.KillSandbox(ctx, w.ann, box))
	eventually(t, "the end of the other", func() bool {
		r, err = w.Recording(ctx, w.ann, q.Recording)
		return err == nil && !r.EndedAt.IsZero()
	})
	require.Equal(t, recording.EndGone, r.End)
	require.Len(t, w.recordings(t), 3)
}

func TestInputIsRecordedWhenAskedForAndThenForFewerEyes(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	must := policyOf(recording.On)
	must.Input = true
	w.policy(t, must)
	box := w.newSandbox(t)
	p := w.open(t, box)
	require.NoError(t, w.ViewTerminal(ctx, w.ann, box, p.ID, -1, newTyper("exit\n")))
	eventually(t, "the end", func() bool { return !w.recordings(t)[0].EndedAt.IsZero() })
	require.Equal(t, "exit\n", w.played(t, p.Recording)["i"])
	_, err := w.PlayRecording(ctx, w.with(readNeeds), p.Recording)
	wantKind(t, err, fault.Forbidden)
	in, err := w.PlayRecording(ctx, w.with(auth.Permissions{auth.AuditRead}), p.Recording)
	require.NoError(t, err)
	require.NoError(t, in.Close())
}

func TestWhatMustBeRecordedAndCannotBeDoesNotOpen(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	box := w.newSandbox(t)
	before := w.open(t, box)
	require.NoError(t, os.RemoveAll(w.shelfDir)) // before the policy, which records what is open
	w.policy(t, policyOf(recording.On))
	p := w.open(t, box)
	require.Empty(t, p.Recording, "with on it opens all the same")

	w.policy(t, policyOf(recording.Always))
	_, err := w.OpenTerminal(ctx, w.ann, box, agent.PTYSpec{Cols: 80, Rows: 24})
	wantKind(t, err, fault.HostFull)
	list, err := w.Terminals(ctx, w.ann, box)
	require.NoError(t, err)
	require.Len(t, list, 2, "nothing was opened")
	conn := newGlance()
	require.Error(t, w.ViewTerminal(ctx, w.ann, box, before.ID, -1, conn))
	require.Equal(t, 1013, conn.code, "its page comes back")

	require.NoError(t, os.Mkdir(w.shelfDir, 0o700))
	require.NoError(t, w.ViewTerminal(ctx, w.ann, box, before.ID, -1, newGlance()))
	list, err = w.Terminals(ctx, w.ann, box)
	require.NoError(t, err)
	require.NotEmpty(t, list[0].Recording+list[1].Recording, "one that is not recorded yet is from now on")
	w.policy(t, policyOf(recording.Off))
	eventually(t, "it is turned off", func() bool {
		for _, r := range w.recordings(t) {
			if r.End != recording.EndOff {
				return false
			}
		}
		return true
	})
}

func TestARecordingGoesOnInPartsWhereItMust(t *testing.T) {
	w := newWorld(t)
	must := policyOf(recording.Always)
	must.MaxMB, must.TotalMB = 1, 2
	w.policy(t, must)
	box := w.newSandbox(t)
	p := w.open(t, box)
	script := "i=0; while [ $i -lt 60 ]; do head -c 100000 /dev/zero | tr '\\0' x; i=$((i+1)); done; echo; exit\n"
	require.NoError(t, w.ViewTerminal(context.Background(), w.ann, box, p.ID, -1, newTyper(script)))
	eventually(t, "its end", func() bool { return w.recordings(t)[0].End == recording.EndExited })
	list := w.recordings(t)
	require.GreaterOrEqual(t, list[0].Part, 5)
	require.Equal(t, recording.EndLimit, list[1].End)
	require.Equal(t, list[0].Part, list[1].Part+1)
	require.Less(t, len(list), 5, "the oldest went first")
	gone := w.events(t, audit.Filter{Action: "recording.expire"})
	require.NotEmpty(t, gone)
	require.Equal(t, p.Recording, gone[len(gone)-1].Target)
	require.Contains(t, gone[0].Detail, "more than 2 MiB")

	must.Mode = recording.On
	w.policy(t, must)
	p = w.open(t, box)
	require.NoError(t, w.ViewTerminal(context.Background(), w.ann, box, p.ID, -1, newTyper(script)))
	eventually(t, "its end", func() bool { return w.recordings(t)[0].End == recording.EndLimit })
	require.Equal(t, p.Recording, w.recordings(t)[0].ID)
}

func TestOldRecordingsGo(t *testing.T) {
	w := newWorld(t)
	now := w.clock.Now()
	w.keep(t, false, now.Add(-91*24*time.Hour), "old")
	young := w.keep(t, false, now.Add(-89*24*time.Hour), "young")
	workspace.ExpireRecordings(w.Service)
	list := w.recordings(t)
	require.Len(t, list, 1)
	require.Equal(t, young.ID, list[0].ID)
	require.Len(t, w.events(t, audit.Filter{Action: "recording.expire"}), 1)
}

// typer is a viewer's connection that types something and stays until the terminal ends.
type typer struct {
	in   chan []byte // JSON, or input after a zero byte
	done chan struct{}
	once sync.Once
}

func newTyper(text string) *typer {
	p := &typer{in: make(chan []byte, 1000), done: make(chan struct{})}
	p.in <- append([]byte{0}, text...)
	return p
}

func (p *typer) Read(ctx context.Context) (bool, []byte, error) {
	select {
	case b := <-p.in:
		return b[0] == 0, b, nil
	case <-p.done:
		return false, nil, io.EOF
	case <-ctx.Done():
		return false, nil, ctx.Err()
	}
}

func (p *typer) Write(_ context.Context, isBinary bool, b []byte) error {
	if isBinary {
		at := int64(binary.BigEndian.Uint64(b[1:]))
		if b[0] == 1 {
			at += int64(len(b) - 9)
		}
		select {
		case p.in <- fmt.Appendf(nil, `{"type":"ack","offset":%d}`, at):
		case <-p.done:
		}
	}
	return nil
}

func (p *typer) Close(int, string) error {
	p.once.Do(func() { close(p.done) })
	return nil
}

// A server that was killed leaves rows that go on; the next one takes them up, or says how they ended.
func TestTheNextServerTakesRecordingsUp(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.policy(t, policyOf(recording.On))
	box := w.newSandbox(t)
	p := w.open(t, box)
	gone := w.keep(t, false, w.clock.Now(), "of a sandbox that nobody knows")
	gone.ID, gone.EndedAt, gone.End = sandbox.RandomID("rec"), time.Time{}, ""
	require.NoError(t, w.store.InsertRecording(ctx, gone))
	stray, err := w.shelf.Create(sandbox.RandomID("rec"), recording.Start{At: time.Now(), Cols: 80, Rows: 24})
	require.NoError(t, err)
	require.NoError(t, stray.Close())

	w.hub.Shutdown() // the recording is left open, as by a server that stops
	o := w.options
	o.Terminals = term.NewHub(workspace.AttachVia(w.manager))
	next, err := workspace.New(o)
	require.NoError(t, err)
	require.NoError(t, next.ResumeRecordings(ctx))
	t.Cleanup(o.Terminals.Shutdown)
	ids, err := w.shelf.IDs()
	require.NoError(t, err)
	require.Len(t, ids, 2, "a file without a row is removed")
	r, err := next.Recording(ctx, w.ann, gone.ID)
	require.NoError(t, err)
	require.Equal(t, recording.EndGone, r.End)

	require.NoError(t, next.ViewTerminal(ctx, w.ann, box, p.ID, -1, newTyper("echo still-$((40+2)); exit\n")))
	eventually(t, "the end", func() bool {
		r, err = next.Recording(ctx, w.ann, p.Recording)
		return err == nil && r.End == recording.EndExited
	})
	require.Contains(t, w.played(t, p.Recording)["o"], "still-42")
}

func TestARecordingThatGoesOnIsNotDeleted(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.policy(t, policyOf(recording.On))
	p := w.open(t, w.newSandbox(t))
	wantKind(t, w.DeleteRecording(ctx, w.ann, p.Recording), fault.Conflict)
	require.NotEmpty(t, w.played(t, p.Recording)["m"]+w.recordings(t)[0].ID, "but it can be watched")
	w.policy(t, policyOf(recording.Off))
	eventually(t, "its end", func() bool { return !w.recordings(t)[0].EndedAt.IsZero() })
	require.NoError(t, w.DeleteRecording(ctx, w.ann, p.Recording))
	wantKind(t, w.DeleteRecording(ctx, w.ann, p.Recording), fault.NotFound)
	require.Empty(t, w.recordings(t))
	ids, err := w.shelf.IDs()
	require.NoError(t, err)
	require.Empty(t, ids)
}

func TestRecordingsOfOthersAreNotFound(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	r := w.keep(t, false, w.clock.Now(), "x")
	other, err := w.AdminCreateWorkspace(ctx, "Other")
	require.NoError(t, err)
	stranger := w.ann
	stranger.Workspace = other
	list, err := w.Recordings(ctx, stranger, workspace.RecordingFilter{WorkspaceID: w.ann.Workspace.ID})
	require.NoError(t, err)
	require.Empty(t, list)
	_, err = w.PlayRecording(ctx, stranger, r.ID)
	wantKind(t, err, fault.NotFound)
	wantKind(t, w.DeleteRecording(ctx, stranger, r.ID), fault.NotFound)
}
