package workspace

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/audit"
	"sandgate/sandbox"
)

// Denied is what a sandbox tried to reach and may not. Its texts come from inside.
type Denied struct {
	Protocol    string
	Destination string
	Port        uint16
	Why         string
	First, Last time.Time
	Count       int64
}

// Where gives protocol, destination and port in one text.
func (d Denied) Where() string {
	to := d.Destination
	if d.Port != 0 && d.Protocol != "dns" {
		to = net.JoinHostPort(to, strconv.Itoa(int(d.Port)))
	}
	return d.Protocol + " " + to
}

const (
	deniedWindow = time.Minute
	// deniedKinds are told apart on the record in one window: each is written when it is new and once more with its count
	// when the window ends, and one line stands for all others. 14 of them are 29 lines a minute at most.
	deniedKinds = 14
	deniedShown = 50 // are kept in memory for the page
	maxDeniedTo = 260
)

type deniedKind struct {
	protocol, destination, why string
	port                       uint16
}

// denials puts together what sandboxes were denied. The zero value is ready.
type denials struct {
	mu sync.Mutex
	of map[sandbox.ID]*denialLog
}

type denialLog struct {
	workspace string
	shown     []Denied             // the latest last
	window    map[deniedKind]int64 // denied since the kind was written; nil: no window is open
	others    int64                // of kinds beyond deniedKinds
	timer     *time.Timer
}

// NetworkDenied is told by the sandbox's network of refused attempts. Few of them are written down one by one; a flood
// becomes one line a minute with its count.
func (s *Service) NetworkDenied(id sandbox.ID, d sandbox.Denial) {
	if s.trials.hear(id, d) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), forgetLimit)
	defer cancel()
	if d.Count < 1 {
		d.Count = 1
	}
	d.Destination = s.mask(ctx, string(id)).hide(cut(d.Destination, maxDeniedTo))
	k := deniedKind{d.Protocol, d.Destination, d.Why, d.Port}

	s.denials.mu.Lock()
	l, err := s.denialLog(ctx, id)
	if err != nil || l == nil {
		s.denials.mu.Unlock()
		return // gone, or of nobody
	}
	l.show(k, d)
	_, known := l.window[k]
	fresh := false
	switch {
	case known:
		l.window[k] += d.Count
	case len(l.window) < deniedKinds:
		l.window[k] = 0
		fresh = true
	default:
		l.others += d.Count
	}
	workspace := l.workspace
	s.denials.mu.Unlock()

	if fresh {
		s.noteDenied(ctx, workspace, id, k, d.Count)
		s.feed.send(workspace, Change{Kind: "network", SandboxID: string(id)}) // counts alone are read with the page's tick
	}
}

// denialLog gives the log of a living sandbox with an open window. The caller holds the lock.
func (s *Service) denialLog(ctx context.Context, id sandbox.ID) (*denialLog, error) {
	l := s.denials.of[id]
	if l == nil {
		r, err := s.o.Sandboxes.Record(ctx, id)
		if err != nil || r.Status == sandbox.Gone {
			return nil, err
		}
		l = &denialLog{workspace: r.WorkspaceID}
		if s.denials.of == nil {
			s.denials.of = map[sandbox.ID]*denialLog{}
		}
		s.denials.of[id] = l
	}
	if l.window == nil {
		l.window = map[deniedKind]int64{}
		l.timer = time.AfterFunc(deniedWindow, func() { s.closeDenied(id, false) })
	}
	return l, nil
}

// show keeps a kind for the page, the latest last.
func (l *denialLog) show(k deniedKind, d sandbox.Denial) {
	one := Denied{Protocol: k.protocol, Destination: k.destination, Port: k.port, Why: k.why, First: d.At}
	at := slices.IndexFunc(l.shown, func(o Denied) bool {
		return deniedKind{o.Protocol, o.Destination, o.Why, o.Port} == k
	})
	if at >= 0 {
		one = l.shown[at]
		l.shown = slices.Delete(l.shown, at, at+1)
	}
	one.Last, one.Count = d.At, one.Count+d.Count
	l.shown = append(l.shown, one)
	if len(l.shown) > deniedShown {
		l.shown = slices.Delete(l.shown, 0, 1)
	}
}

// closeDenied ends a window: what came after a kind was written is written with its count.
func (s *Service) closeDenied(id sandbox.ID, gone bool) {
	s.denials.mu.Lock()
	l := s.denials.of[id]
	if l == nil {
		s.denials.mu.Unlock()
		return
	}
	window, others := l.window, l.others
	l.window, l.others = nil, 0
	if l.timer != nil {
		l.timer.Stop()
	}
	if gone {
		delete(s.denials.of, id)
	}
	s.denials.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.Background(), forgetLimit)
	defer cancel()
	for k, n := range window {
		if n > 0 {
			s.noteDenied(ctx, l.workspace, id, k, n)
		}
	}
	if others > 0 {
		s.noteDenied(ctx, l.workspace, id, deniedKind{destination: "(other destinations)", why: "many"}, others)
	}
}

// noteDenied writes attempts of one kind down and tells who follows events.
func (s *Service) noteDenied(ctx context.Context, workspace string, id sandbox.ID, k deniedKind, n int64) {
	target := k.destination
	if k.protocol != "" {
		target = Denied{Protocol: k.protocol, Destination: k.destination, Port: k.port}.Where()
	}
	detail := k.why
	if n > 1 {
		detail = fmt.Sprintf("%s, %d times", k.why, n)
	}
	err := s.o.Audit.Note(ctx, audit.Event{
		WorkspaceID: workspace, ActorKind: auth.System, Actor: "system", SandboxID: string(id),
		Action: "network.denied", Target: target, Outcome: audit.Refused, Detail: detail,
	})
	if err != nil {
		s.o.Log.Error("record a denial", "sandbox", string(id), "cause", err.Error())
	}
	s.events.send(workspace, Event{
		Type: "network.denied", At: s.o.Now(), SandboxID: string(id), Actor: "system", Target: target, Outcome: audit.Refused, Detail: detail,
	})
}

// Denials lists what a sandbox was denied since the server started, the latest first. Needs read or manage.
func (s *Service) Denials(ctx context.Context, a auth.Actor, id string) ([]Denied, error) {
	if err := s.may(ctx, a, approval.Action{Name: "sandbox.read", SandboxID: id}, auth.SandboxesRead, auth.SandboxesManage); err != nil {
		return nil, err
	}
	if _, err := s.locate(ctx, a, id); err != nil {
		return nil, err
	}
	s.denials.mu.Lock()
	defer s.denials.mu.Unlock()
	l := s.denials.of[sandbox.ID(id)]
	if l == nil {
		return nil, nil
	}
	out := slices.Clone(l.shown)
	slices.Reverse(out)
	return out, nil
}
