package workspace

import (
	"context"
	"sync"
	"time"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/fault"
	"sandgate/sandbox"
)

// Types of events that are no action of somebody; all others are the actions of the record, such as "command.run".
const (
	EventReady  = "ready"          // the stream tells all that happens from now on
	EventStatus = "sandbox.status" // with Status and Reason
	EventLost   = "lost"           // the reader was too slow: Lost events were dropped here
)

// Event is one thing that happened to a sandbox, told while it happens.
type Event struct {
	Type      string
	At        time.Time
	SandboxID string
	Actor     string
	Target    string // of an action: the command, the path, … with secrets masked
	Outcome   string // of an action: "started", then "ok", "failed" or "refused"
	Detail    string
	Status    string // of EventStatus; "gone" is the last word about a sandbox
	Reason    string
	Lost      int
}

// maxPending bounds what waits for one slow reader.
const maxPending = 256

// events fans out what happens. The zero value is ready.
type events struct {
	mu   sync.Mutex
	subs map[*listener]struct{}
}

type listener struct {
	workspace, sandbox string
	wake               chan struct{} // holds at most one token

	mu      sync.Mutex
	pending []Event
	lost    int
}

// send never blocks.
func (e *events) send(workspace string, ev Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for l := range e.subs {
		if l.workspace == workspace && (l.sandbox == "" || l.sandbox == ev.SandboxID) {
			l.put(ev)
		}
	}
}

func (l *listener) put(ev Event) {
	l.mu.Lock()
	if len(l.pending) < maxPending {
		l.pending = append(l.pending, ev)
	} else {
		l.lost++
	}
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *listener) take() []Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.pending
	if l.lost > 0 {
		out = append(out, Event{Type: EventLost, Lost: l.lost})
	}
	l.pending, l.lost = nil, 0
	return out
}

// happened tells listeners of an action on a sandbox.
func (s *Service) happened(a auth.Actor, what approval.Action, outcome, detail string) {
	if what.SandboxID == "" {
		return
	}
	s.events.send(a.Workspace.ID, Event{
		Type: what.Name, At: s.o.Now(), SandboxID: what.SandboxID, Actor: a.Name, Target: what.Target, Outcome: outcome, Detail: detail,
	})
}

// WatchEvents tells out what happens to a sandbox, or with id "" to every one of the workspace, until ctx ends (nil), the
// sandbox is gone (nil), out fails, or the actor loses read (a fault). The first event is EventReady. A slow out loses
// events, and is told how many.
func (s *Service) WatchEvents(ctx context.Context, a auth.Actor, id string, out func(Event) error) error {
	if err := s.may(ctx, a, approval.Action{Name: "event.read", SandboxID: id}, auth.SandboxesRead); err != nil {
		return err
	}
	l := &listener{workspace: a.Workspace.ID, sandbox: id, wake: make(chan struct{}, 1)}
	s.events.mu.Lock()
	if s.events.subs == nil {
		s.events.subs = map[*listener]struct{}{}
	}
	s.events.subs[l] = struct{}{}
	s.events.mu.Unlock()
	defer func() {
		s.events.mu.Lock()
		defer s.events.mu.Unlock()
		delete(s.events.subs, l)
	}()
	if id != "" { // after subscribing: an end in between is told, not missed
		if _, err := s.locate(ctx, a, id); err != nil {
			return err
		}
	}
	guarded, release := s.Guard(ctx, a, auth.SandboxesRead)
	defer release()
	if err := out(Event{Type: EventReady, At: s.o.Now()}); err != nil {
		return err
	}
	for {
		select {
		case <-guarded.Done():
			return endOf(ctx, guarded)
		case <-l.wake:
		}
		for _, ev := range l.take() {
			if ev.Type == EventLost {
				ev.At = s.o.Now()
			}
			if err := out(ev); err != nil {
				return err
			}
			if id != "" && ev.Type == EventStatus && ev.Status == string(sandbox.Gone) {
				return nil
			}
		}
	}
}

// endOf tells a caller who left (nil) from a right that went away.
func endOf(ctx, guarded context.Context) error {
	if ctx.Err() != nil {
		if cause := context.Cause(ctx); fault.KindOf(cause) != fault.Internal {
			return cause
		}
		return nil
	}
	return context.Cause(guarded)
}
