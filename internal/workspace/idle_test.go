package workspace_test

import (
	"context"
	"errors"
	"io"
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
	"sandgate/sandbox/idle"
)

// counts are the methods that are a use of the sandbox. All others of the tables are looks: reading records, lists,
// events and meters, following output, watching files or terminals.
var counts = map[string]bool{
	"RunCommand": true, "StartCommand": true, "CommandStdin": true, "KillCommand": true,
	"StatFile": true, "ListFiles": true, "ReadFile": true, "PreviewFile": true, "ArchiveFiles": true, "SearchFiles": true,
	"WriteFile": true, "MakeDirectory": true, "MoveFile": true, "DeleteFile": true, "CopyFile": true, "ChmodFile": true, "UnpackFiles": true,
	"OpenTerminal": true, "CloseTerminal": true, "RenameTerminal": true,
	"KeepAlive": true,
}

// Each method of the service either is a use of its sandbox or is none, and the table above says which.
func TestWhatCountsAsUse(t *testing.T) {
	w := newWorld(t)
	seen := 0
	for _, table := range []map[string]account{sandboxAccounts, fileAccounts, watchingAccounts, idleAccounts} {
		for name, c := range table {
			t.Run(name, func(t *testing.T) {
				arg := c.ready(t, w)
				box := w.sandbox(t)
				require.Eventually(t, func() bool {
					return len(w.manager.Uses(sandbox.ID(box)).Now) == 0 || name == "CommandStdin" || name == "KillCommand"
				},
					10*time.Second, 5*time.Millisecond, "what was prepared has ended")
				w.clock.pass(time.Minute)
				before := w.manager.Uses(sandbox.ID(box)).Last
				_ = c.call(context.Background(), w, w.ann, arg) // TestAccounting judges the rest
				require.Equal(t, counts[name], w.manager.Uses(sandbox.ID(box)).Last.After(before))
				seen++
			})
		}
	}
	require.Greater(t, seen, len(counts))
}

// clocked is a world whose sandboxes are swept by hand.
type clocked struct {
	*world
	jumps idle.Jumps
	from  time.Time
	set   time.Duration // by how much the wall clock was set
}

func newClocked(t *testing.T) *clocked {
	t.Helper()
	w := &clocked{world: newWorld(t)}
	w.forwardChanges()
	w.from = w.clock.Now()
	w.sweep()
	return w
}

func (w *clocked) sweep() {
	workspace.SweepOnce(w.Service, &w.jumps, func() (time.Time, time.Duration) { return w.clock.Now(), w.clock.Now().Sub(w.from) - w.set })
}

// sit lets time pass with a sweep each second.
func (w *clocked) sit(d time.Duration) {
	for range int(d.Seconds()) {
		w.clock.pass(time.Second)
		w.sweep()
	}
}

// make gives one that has 100 s.
func (w *clocked) make(t *testing.T, o workspace.CreateOptions) string {
	t.Helper()
	o.Cwd, o.User, o.IdleTimeout = w.tmp, w.user, 100*time.Second
	made, err := w.CreateSandbox(context.Background(), w.ann, o)
	require.NoError(t, err)
	return string(made.ID)
}

func (w *clocked) alive(t *testing.T, id string) bool {
	t.Helper()
	_, err := w.Sandbox(context.Background(), w.ann, id)
	require.True(t, err == nil || fault.Is(err, fault.NotFound), "%v", err)
	return err == nil
}

func TestUnusedIsEndedOnRecord(t *testing.T) {
	ctx := context.Background()
	w := newClocked(t)
	id := w.make(t, workspace.CreateOptions{})
	told := make(chan workspace.Event, 100)
	go func() {
		_ = w.WatchEvents(ctx, w.ann, id, func(e workspace.Event) error { told <- e; return nil })
	}()
	require.Equal(t, workspace.EventReady, (<-told).Type)

	sb, err := w.Sandbox(ctx, w.ann, id)
	require.NoError(t, err)
	require.Equal(t, workspace.ActionKill, sb.Idle.Action)
	require.Empty(t, sb.Idle.Because)
	require.WithinDuration(t, w.clock.Now().Add(100*time.Second), sb.Idle.At, time.Second)
	w.sit(49 * time.Second)
	require.Empty(t, told)
	w.sit(3 * time.Second)
	warned := <-told
	require.Equal(t, workspace.EventWarning, warned.Type)
	require.Equal(t, sandbox.ReasonIdle, warned.Reason)
	w.sit(46 * time.Second)
	require.True(t, w.alive(t, id))
	require.Empty(t, told, "one warning")
	w.sit(5 * time.Second)
	require.False(t, w.alive(t, id))
	r, err := w.manager.Record(ctx, sandbox.ID(id))
	require.NoError(t, err)
	require.Equal(t, sandbox.ReasonIdle, r.Reason)
	events, err := w.Activity(ctx, w.ann, audit.Filter{SandboxID: id, Action: "sandbox.expire", Limit: 10})
	require.NoError(t, err)
	require.Len(t, events, 1)
	require.Equal(t, "system", events[0].Actor)
	require.Contains(t, events[0].Detail, "idle_timeout of 1m40s")
	require.NoError(t, w.KillSandbox(ctx, w.ann, id), "killing it again is a success, as for every one that is gone")
}

func TestWhatKeepsAlive(t *testing.T) {
	ctx := context.Background()
	w := newClocked(t)
	for name, c := range map[string]struct {
		why   string
		begin func(t *testing.T, id string) (end func())
	}{
		"a foreground command": {idle.Command, func(t *testing.T, id string) func() {
			ctx, cancel := context.WithCancel(ctx)
			done := make(chan error, 1)
			go func() {
				_, err := w.RunCommand(ctx, w.ann, id, agent.CommandSpec{Command: "sleep 1000"}, nothing{})
				done <- err
			}()
			return func() { cancel(); <-done }
		}},
		"a background command": {idle.Command, func(t *testing.T, id string) func() {
			c, err := w.StartCommand(ctx, w.ann, id, agent.CommandSpec{Command: "sleep 1000"})
			require.NoError(t, err)
			return func() { require.NoError(t, w.KillCommand(ctx, w.ann, id, c.ID, "KILL")) }
		}},
		"a download": {idle.Transfer, func(t *testing.T, id string) func() {
			body, err := w.ArchiveFiles(ctx, w.ann, id, []byte(w.tmp), "tar")
			require.NoError(t, err)
			return func() { _ = body.Close() }
		}},
		"an upload": {idle.Transfer, func(t *testing.T, id string) func() {
			r, pipe := io.Pipe()
			done := make(chan struct{})
			go func() {
				_, _ = w.WriteFile(ctx, w.ann, id, []byte(w.tmp+"/slow"), r, agent.WriteOptions{Size: -1})
				close(done)
			}()
			return func() { _ = pipe.Close(); <-done }
		}},
		"a program in a terminal": {idle.Terminal, func(t *testing.T, id string) func() {
			// A home of its own: what somebody's start files do on this machine is not the question.
			p, err := w.OpenTerminal(ctx, w.ann, id, agent.PTYSpec{Cols: 80, Rows: 24, Env: map[string]string{"HOME": t.TempDir()}})
			require.NoError(t, err)
			client, err := w.manager.Agent(ctx, sandbox.ID(id))
			require.NoError(t, err)
			att, err := client.Attach(ctx, p.ID, 0)
			require.NoError(t, err)
			prompt := func() bool { // the shell has printed one and waits
				d, derr := client.Doings(ctx)
				one, perr := client.PTY(ctx, p.ID)
				return derr == nil && perr == nil && d.Terminals == 0 && one.Next > 0
			}
			require.Eventually(t, prompt, 60*time.Second, 20*time.Millisecond)
			require.NoError(t, att.Input([]byte("sleep 1000\n")))
			require.Eventually(t, func() bool { d, err := client.Doings(ctx); return err == nil && d.Terminals == 1 }, 60*time.Second, 20*time.Millisecond)
			return func() {
				require.NoError(t, att.Signal("INT"))
				require.Eventually(t, func() bool { d, err := client.Doings(ctx); return err == nil && d.Terminals == 0 }, 60*time.Second, 20*time.Millisecond)
				_ = att.Close() // the terminal stays open, and that alone keeps nothing alive
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			id := w.make(t, workspace.CreateOptions{})
			end := c.begin(t, id)
			require.Eventually(t, func() bool {
				if c.why == idle.Terminal {
					w.clock.pass(11 * time.Second) // a look is 10 s old at most
				}
				sb, err := w.Sandbox(ctx, w.ann, id)
				return err == nil && len(sb.Idle.Because) > 0 && sb.Idle.Because[0] == c.why && sb.Idle.At.IsZero()
			}, 60*time.Second, 20*time.Millisecond)
			w.sit(350 * time.Second)
			require.True(t, w.alive(t, id), "ended in use")
			end()
			require.Eventually(t, func() bool { return len(w.manager.Uses(sandbox.ID(id)).Now) == 0 }, 60*time.Second, 5*time.Millisecond)
			w.sit(90 * time.Second)
			if c.why != idle.Terminal { // when that began to be idle is known to a sweep
				require.True(t, w.alive(t, id), "its time begins with the end of the use")
			}
			w.sit(120 * time.Second)
			require.False(t, w.alive(t, id), "unused and alive")
		})
	}
}

func TestKeepAliveAndPatch(t *testing.T) {
	ctx := context.Background()
	w := newClocked(t)
	id := w.make(t, workspace.CreateOptions{})
	sb, err := w.KeepAlive(ctx, w.ann, id, 300*time.Second)
	require.NoError(t, err)
	require.Equal(t, []string{idle.Keepalive}, sb.Idle.Because)
	w.sit(290 * time.Second)
	require.True(t, w.alive(t, id))
	shorter := 10 * time.Second
	_, err = w.UpdateSandbox(ctx, w.ann, id, workspace.SandboxPatch{IdleTimeout: &shorter})
	require.NoError(t, err)
	w.sit(8 * time.Second)
	require.True(t, w.alive(t, id), "its time begins anew")
	w.sit(4 * time.Second)
	require.False(t, w.alive(t, id))
	_, err = w.KeepAlive(ctx, w.ann, id, time.Second)
	require.True(t, fault.Is(err, fault.NotFound))
	for _, d := range []time.Duration{-1, time.Millisecond, idle.MaxTimeout + 1} {
		_, err = w.KeepAlive(ctx, w.ann, w.make(t, workspace.CreateOptions{}), d)
		require.True(t, fault.Is(err, fault.Invalid), "%s", d)
	}
}

func TestLifeIsOverInUse(t *testing.T) {
	ctx := context.Background()
	w := newClocked(t)
	id := w.make(t, workspace.CreateOptions{MaxLifetime: 200 * time.Second})
	_, err := w.StartCommand(ctx, w.ann, id, agent.CommandSpec{Command: "sleep 1000"})
	require.NoError(t, err)
	w.sit(198 * time.Second)
	require.True(t, w.alive(t, id))
	w.sit(4 * time.Second)
	require.False(t, w.alive(t, id))
	r, err := w.manager.Record(ctx, sandbox.ID(id))
	require.NoError(t, err)
	require.Equal(t, sandbox.ReasonExpired, r.Reason)
}

// The clock is set an hour forward, or the host slept for one: nobody's time is over by that.
func TestClockJumps(t *testing.T) {
	w := newClocked(t)
	id := w.make(t, workspace.CreateOptions{MaxLifetime: 1000 * time.Second})
	w.sit(20 * time.Second)
	w.clock.pass(time.Hour)
	w.set += time.Hour
	w.sit(70 * time.Second)
	require.True(t, w.alive(t, id))
	w.sit(15 * time.Second)
	require.False(t, w.alive(t, id))
}

// A use and the end of the time meet: either the call runs and the sandbox lives, or the call is told that there is none.
func TestLastMomentHasOneOutcome(t *testing.T) {
	ctx := context.Background()
	w := newClocked(t)
	outcomes := map[string]int{}
	for i := range 60 {
		id := w.make(t, workspace.CreateOptions{})
		w.clock.pass(100 * time.Second)
		var callErr error
		var wg sync.WaitGroup
		wg.Go(func() {
			switch i % 3 {
			case 0:
				_, callErr = w.RunCommand(ctx, w.ann, id, agent.CommandSpec{Command: "true"}, nothing{})
			case 1:
				_, callErr = w.KeepAlive(ctx, w.ann, id, time.Minute)
			default:
				long := time.Hour
				_, callErr = w.UpdateSandbox(ctx, w.ann, id, workspace.SandboxPatch{IdleTimeout: &long})
			}
		})
		wg.Go(w.sweep)
		wg.Wait()
		alive := w.alive(t, id)
		switch {
		case callErr == nil:
			require.True(t, alive, "round %d: the call was answered and its sandbox was ended", i)
			outcomes["call"]++
			require.NoError(t, w.KillSandbox(ctx, w.ann, id))
		default:
			require.False(t, alive, "round %d: refused by one that lives: %v", i, callErr)
			require.True(t, fault.Is(callErr, fault.NotFound) || fault.Is(callErr, fault.Conflict), "%v", callErr)
			outcomes["end"]++
		}
	}
	require.Equal(t, 60, outcomes["call"]+outcomes["end"])
	t.Log(outcomes)
}

// Background commands that run when the server comes back keep their sandbox alive as before.
func TestTakenUpInUse(t *testing.T) {
	ctx := context.Background()
	w := newClocked(t)
	id := w.make(t, workspace.CreateOptions{})
	client, err := w.manager.Agent(ctx, sandbox.ID(id))
	require.NoError(t, err)
	// Begun past the service, as by a server that is no more.
	_, err = client.Start(ctx, agent.CommandSpec{ID: sandbox.RandomID("cmd"), Command: "sleep 1000", Cwd: w.tmp})
	require.NoError(t, err)
	running, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { w.SweepIdle(running, idle.SystemClock()) })
	require.Eventually(t, func() bool { return len(w.manager.Uses(sandbox.ID(id)).Now) == 1 }, 60*time.Second, 10*time.Millisecond)
	cancel()
	wg.Wait()
	w.sit(300 * time.Second)
	require.True(t, w.alive(t, id))
}

func TestCommandExitIsAnEvent(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w := newClocked(t)
	id := w.make(t, workspace.CreateOptions{})
	told := make(chan workspace.Event, 100)
	go func() {
		_ = w.WatchEvents(ctx, auth.Actor{Kind: auth.System, Workspace: w.ann.Workspace, Permissions: auth.AllPermissions}, "", func(e workspace.Event) error { told <- e; return nil })
	}()
	<-told
	c, err := w.StartCommand(ctx, w.ann, id, agent.CommandSpec{Command: "exit 3"})
	require.NoError(t, err)
	for {
		select {
		case e := <-told:
			if e.Type != workspace.EventCommandExit {
				continue
			}
			require.Equal(t, c.ID, e.Target)
			require.Equal(t, "exit 3", e.Detail)
			require.Equal(t, audit.Failed, e.Outcome)
			return
		case <-time.After(10 * time.Second):
			t.Fatal(errors.New("no end was told"))
		}
	}
}
