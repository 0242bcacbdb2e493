package workspace

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/idle"
)

// Idle says why a sandbox lives and what happens to it when.
type Idle struct {
	Since   time.Time // of the last use
	Because []string  // reasons of package idle that keep it alive now, sorted; none: its time runs
	Action  string    // what happens at At: "kill", or "suspend" for a persistent one; "none" for one that does not run
	At      time.Time // when it happens if nothing uses it until then; zero while something keeps it alive
}

// Words of Idle.Action.
const (
	ActionNone    = "none"
	ActionKill    = "kill"
	ActionSuspend = "suspend"
)

// EventWarning tells, a minute before, that a sandbox is about to end; Target is the moment, Reason "idle" or "expired".
const EventWarning = "sandbox.warning"

// EventCommandExit tells that a background command has ended; Target is its id.
const EventCommandExit = "command.exit"

// idleState is what the service keeps for the idle clock. The zero value is ready.
type idleState struct {
	mu       sync.Mutex
	watching map[string]struct{}       // "sandbox/command" of background commands whose end is awaited
	warned   map[sandbox.ID]time.Time  // deadlines that were told
	misses   map[sandbox.ID]int        // looks inside that failed, in a row
	cpu      map[sandbox.ID]cpuReading // the last reading taken for a judgement
	judging  map[sandbox.ID]struct{}
}

type cpuReading struct {
	seconds float64
	at      time.Time
}

// idleOf puts together what is known without asking inside.
func (s *Service) idleOf(r sandbox.Record) Idle {
	out := Idle{Since: r.LastActivity, Because: []string{}, Action: ActionNone}
	if r.Status != sandbox.Running || s.o.Sandboxes == nil {
		return out
	}
	out.Action, out.At = ActionKill, r.IdleAt
	if r.Persistent {
		out.Action = ActionSuspend
	}
	u := s.o.Sandboxes.Uses(r.ID)
	if u.Last.After(out.Since) {
		out.Since = u.Last
	}
	out.Because = append(out.Because, u.Now...)
	now := s.o.Now()
	if now.Sub(u.SeenAt) < lookGrain+r.Life.IdleTimeout {
		out.Because = append(out.Because, u.Seen...)
	}
	if !u.LastBusy.IsZero() && now.Sub(u.LastBusy) < min(2*MetricsGrain, r.Life.IdleTimeout) {
		out.Because = append(out.Because, idle.CPU)
	}
	if len(out.Because) > 0 {
		out.At = time.Time{}
	} else if used := u.Last.Add(r.Life.IdleTimeout); !u.Last.IsZero() && used.After(out.At) {
		out.At = used
	}
	if u.Kept.After(now) && u.Kept.After(out.Since.Add(r.Life.IdleTimeout)) {
		out.Because = append(out.Because, idle.Keepalive)
	}
	out.Because = idle.Sorted(out.Because)
	return out
}

// KeepAlive gives a sandbox at least d more, its idle_timeout with d 0. Needs run or manage.
func (s *Service) KeepAlive(ctx context.Context, a auth.Actor, id string, d time.Duration) (Sandbox, error) {
	what := approval.Action{Kind: approval.Other, Name: "sandbox.keepalive", SandboxID: id}
	if err := s.may(ctx, a, what, auth.SandboxesRun, auth.SandboxesManage); err != nil {
		return Sandbox{}, err
	}
	r, err := s.locate(ctx, a, id)
	if err != nil {
		return Sandbox{}, err
	}
	if d == 0 {
		d = r.Life.IdleTimeout
	}
	if d < idle.MinTimeout || d > idle.MaxTimeout {
		return Sandbox{}, fault.Field("timeout", "must be between 1 and %d seconds", int(idle.MaxTimeout.Seconds()))
	}
	if r.Status != sandbox.Running {
		return Sandbox{}, fault.New(fault.Conflict, "The sandbox is %s: there is nothing to keep alive.", r.Status)
	}
	what.Target = r.Label
	err = s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		return fmt.Sprintf("for %s", d), s.o.Sandboxes.KeepAlive(ctx, r.ID, d)
	})
	if err != nil {
		return Sandbox{}, err
	}
	s.feed.send(r.WorkspaceID, Change{Kind: "sandbox", SandboxID: id})
	if r, err = s.o.Sandboxes.Record(ctx, r.ID); err != nil {
		return Sandbox{}, err
	}
	return s.shownWhole(ctx, a, r)
}

// ---- what runs inside ----

const (
	// lookLimit is how long one look inside may take, and lookGrain how old one may be that a page is shown.
	lookLimit = 5 * time.Second
	lookGrain = 10 * time.Second
	// glanceLimit is how long somebody who only reads the record waits for a look.
	glanceLimit = 500 * time.Millisecond
)

// look asks the agent what runs, and waits for the ends of background commands that it did not know of: after a restart
// of the server they keep their sandbox alive as before.
func (s *Service) look(ctx context.Context, r sandbox.Record) ([]string, error) {
	client, err := s.o.Sandboxes.AwakeAgent(ctx, r.ID)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	d, err := client.Doings(ctx)
	if err != nil {
		return nil, err
	}
	for _, cmd := range d.Background {
		if done, err := s.o.Sandboxes.Use(ctx, r.ID, idle.Command); err == nil {
			s.await(r, client, cmd, done)
		}
	}
	var out []string
	if d.Foreground > 0 || len(d.Background) > 0 {
		out = append(out, idle.Command)
	}
	if d.Terminals > 0 {
		out = append(out, idle.Terminal)
	}
	s.o.Sandboxes.Seen(r.ID, out)
	return out, nil
}

// glance looks inside for somebody who reads the record, if the last look is old. What it finds is shown; that it looked
// is no use of the sandbox.
func (s *Service) glance(ctx context.Context, r sandbox.Record) {
	if r.Status != sandbox.Running || s.o.Now().Sub(s.o.Sandboxes.Uses(r.ID).SeenAt).Abs() < lookGrain {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, glanceLimit)
	defer cancel()
	if _, err := s.look(ctx, r); err != nil {
		s.o.Log.Debug("look into a sandbox", "sandbox", string(r.ID), "cause", err.Error())
	}
}

// await calls done when a background command has ended, and tells listeners of it. Awaited already: done is called now.
func (s *Service) await(r sandbox.Record, client *agent.Client, cmd string, done func()) {
	key := string(r.ID) + "/" + cmd
	s.idle.mu.Lock()
	_, known := s.idle.watching[key]
	if !known {
		if s.idle.watching == nil {
			s.idle.watching = map[string]struct{}{}
		}
		s.idle.watching[key] = struct{}{}
	}
	s.idle.mu.Unlock()
	if known {
		done()
		return
	}
	go func() { // ends with the command, with the sandbox, or with the server
		defer func() {
			done()
			s.idle.mu.Lock()
			delete(s.idle.watching, key)
			s.idle.mu.Unlock()
		}()
		ctx := s.o.Sandboxes.Life()
		for pause := time.Second; ; pause = min(2*pause, time.Minute) {
			exit, err := client.Await(ctx, cmd)
			if err == nil {
				s.noteEnd(r, client, cmd, exit)
				s.events.send(r.WorkspaceID, Event{
					Type: EventCommandExit, At: s.o.Now(), SandboxID: string(r.ID), Target: cmd, Outcome: outcomeOf(exit), Detail: exitWords(exit),
				})
				return
			}
			now, rerr := s.o.Sandboxes.Record(ctx, r.ID)
			if !errors.Is(err, agent.ErrBridge) || rerr != nil || now.Status != sandbox.Running {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
		}
	}()
}

func outcomeOf(x agent.Exit) string {
	if x.Code != 0 || x.TimedOut || x.Signal != "" {
		return audit.Failed
	}
	return audit.OK
}
