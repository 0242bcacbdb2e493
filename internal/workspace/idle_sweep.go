package workspace

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/idle"
)

const (
	sweepEvery = time.Second
	// judgesAtOnce bounds how many sandboxes are looked into, or ended, at a time.
	judgesAtOnce = 8
	// missLimit is how many looks in a row may fail before a sandbox that does not answer counts as idle.
	missLimit = 3
)

// SweepIdle is the one loop by which sandboxes end by the clock. It runs until ctx ends, and waits for what it has begun.
// Deadlines are rows; what a restart, a suspended host or a clock that was set took away from people is given back first.
func (s *Service) SweepIdle(ctx context.Context, clock idle.Clock) {
	var running sync.WaitGroup
	defer running.Wait()
	slots := make(chan struct{}, judgesAtOnce)
	var jumps idle.Jumps
	if err := s.o.Deadlines.GraceDeadlines(ctx, s.o.Now(), idle.Grace(idle.MaxTimeout)); err != nil && ctx.Err() == nil {
		s.o.Log.Error("grant grace to sandboxes", "cause", err.Error())
	}
	running.Go(func() { s.lookAll(ctx) })
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		s.sweep(ctx, &jumps, clock, slots, &running)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// lookAll learns what the sandboxes that were taken up are doing, one after the other.
func (s *Service) lookAll(ctx context.Context) {
	for _, id := range s.o.Sandboxes.Running() {
		r, err := s.o.Sandboxes.Record(ctx, id)
		if ctx.Err() != nil {
			return
		}
		if err == nil && r.Status == sandbox.Running {
			_, err = s.look(ctx, r)
		}
		if err != nil && ctx.Err() == nil {
			s.o.Log.Warn("look into a sandbox that was taken up", "sandbox", string(id), "cause", err.Error())
		}
	}
}

// sweep judges every sandbox whose time is near. Each judgement runs on its own: one that hangs holds up no other.
func (s *Service) sweep(ctx context.Context, jumps *idle.Jumps, clock idle.Clock, slots chan struct{}, running *sync.WaitGroup) {
	if by := jumps.See(clock()); by != 0 {
		s.o.Log.Warn("the clock was set or the host was suspended: deadlines are moved", "by", by.String())
		if err := s.o.Deadlines.ShiftDeadlines(ctx, by); err != nil {
			s.o.Log.Error("move deadlines", "cause", err.Error())
			jumps.Undo(by)
			return // nobody is ended by a clock that is not believed yet
		}
		if err := s.o.Store.ShiftApprovals(ctx, by); err != nil {
			s.o.Log.Error("move the ends of approvals", "cause", err.Error())
		}
		s.o.Sandboxes.ShiftUses(by)
	}
	now := s.o.Now()
	due, err := s.o.Deadlines.DueSandboxes(ctx, now.Add(idle.Warning(idle.MaxTimeout)))
	if err != nil {
		if ctx.Err() == nil {
			s.o.Log.Error("list sandboxes that are due", "cause", err.Error())
		}
		return
	}
	for _, r := range due {
		if !s.idle.claim(r.ID) {
			continue
		}
		running.Go(func() {
			defer s.idle.release(r.ID)
			select {
			case slots <- struct{}{}:
				defer func() { <-slots }()
				s.judge(ctx, r)
			case <-ctx.Done():
			}
		})
	}
}

func (i *idleState) claim(id sandbox.ID) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if _, busy := i.judging[id]; busy {
		return false
	}
	if i.judging == nil {
		i.judging = map[sandbox.ID]struct{}{}
	}
	i.judging[id] = struct{}{}
	return true
}

func (i *idleState) release(id sandbox.ID) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.judging, id)
}

// forget drops what is kept of a sandbox that is gone.
func (i *idleState) forget(id sandbox.ID) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.warned, id)
	delete(i.misses, id)
	delete(i.cpu, id)
}

// judge does with one sandbox what its time asks for. r is as the sweep read it; the end itself compares again.
func (s *Service) judge(ctx context.Context, r sandbox.Record) {
	if r.Status == sandbox.Suspended { // it is not used, but its life may be over
		if !r.ExpiresAt.IsZero() && !r.ExpiresAt.After(s.o.Now()) {
			s.expireAsleep(ctx, r)
		}
		return
	}
	u := s.o.Sandboxes.Uses(r.ID)
	state := idle.State{Timeout: r.Life.IdleTimeout, LastUse: u.Last, Deadline: r.IdleAt, Expires: r.ExpiresAt, Busy: u.Now}
	v := idle.Decide(s.o.Now(), state)
	if (v.Act == idle.End || v.Act == idle.Warn && !v.Life) && !s.idle.told(r.ID, v) {
		inside, sure := s.inside(ctx, r)
		if !sure {
			return // the next sweep looks again
		}
		state.Busy = append(state.Busy, inside...)
		v = idle.Decide(s.o.Now(), state)
	}
	var err error
	switch v.Act {
	case idle.Renew:
		err = s.o.Deadlines.ExtendIdle(ctx, r.ID, v.Deadline)
	case idle.Warn:
		s.warn(r, v)
	case idle.End:
		err = s.onIdle(ctx, r)
	case idle.Expire:
		err = s.end(ctx, r, s.o.Sandboxes.ExpireLife, fmt.Sprintf("it lived for its max_lifetime of %s", r.Life.MaxLifetime))
	case idle.Nothing:
	}
	if err != nil && ctx.Err() == nil && !fault.Is(err, fault.NotFound) {
		s.o.Log.Error("end a sandbox by the clock", "sandbox", string(r.ID), "cause", err.Error())
	}
}

// told reports whether people know of what a warning is about.
func (i *idleState) told(id sandbox.ID, v idle.Verdict) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return v.Act == idle.Warn && i.warned[id].Equal(v.Deadline)
}

// warn tells listeners and open pages, once about each deadline.
func (s *Service) warn(r sandbox.Record, v idle.Verdict) {
	if s.idle.told(r.ID, v) {
		return
	}
	s.idle.mu.Lock()
	if s.idle.warned == nil {
		s.idle.warned = map[sandbox.ID]time.Time{}
	}
	s.idle.warned[r.ID] = v.Deadline
	s.idle.mu.Unlock()
	reason := sandbox.ReasonIdle
	if v.Life {
		reason = sandbox.ReasonExpired
	}
	s.events.send(r.WorkspaceID, Event{
		Type: EventWarning, At: s.o.Now(), SandboxID: string(r.ID), Target: v.Deadline.UTC().Format(time.RFC3339), Reason: reason,
		Detail: fmt.Sprintf("ends in %s", v.Deadline.Sub(s.o.Now()).Round(time.Second)),
	})
	s.feed.send(r.WorkspaceID, Change{Kind: "sandbox", SandboxID: string(r.ID)})
}

// inside gives the reasons that only the sandbox itself knows. sure false: it cannot be told yet.
func (s *Service) inside(ctx context.Context, r sandbox.Record) (reasons []string, sure bool) {
	reasons, err := s.look(ctx, r)
	s.idle.mu.Lock()
	if s.idle.misses == nil {
		s.idle.misses = map[sandbox.ID]int{}
	}
	if err != nil {
		s.idle.misses[r.ID]++
	} else {
		delete(s.idle.misses, r.ID)
	}
	misses := s.idle.misses[r.ID]
	s.idle.mu.Unlock()
	if err != nil && misses < missLimit {
		return nil, false
	}
	if !r.Life.KeepWhileBusy {
		return reasons, true
	}
	computing, sure := s.computing(ctx, r.ID)
	if computing {
		s.o.Sandboxes.Busy(ctx, r.ID)
		reasons = append(reasons, idle.CPU)
	}
	return reasons, sure || len(reasons) > 0
}

// computing compares two readings of the processor that are at least a second apart: the last kept one, or the one that
// an earlier judgement took. sure false: there is only one.
func (s *Service) computing(ctx context.Context, id sandbox.ID) (busy, sure bool) {
	u, err := s.o.Sandboxes.Usage(ctx, id)
	if err != nil {
		return false, true // it is ending
	}
	now := Sample{At: s.o.Now(), Usage: u}
	s.meters.mu.Lock()
	var last Sample
	if ring := s.meters.rings[id]; ring != nil {
		last = ring.samples[(ring.next+len(ring.samples)-1)%len(ring.samples)]
	}
	s.meters.mu.Unlock()
	s.idle.mu.Lock()
	defer s.idle.mu.Unlock()
	if own, ok := s.idle.cpu[id]; ok && own.at.After(last.At) && now.At.Sub(own.at) >= time.Second {
		last = Sample{At: own.at, Usage: sandbox.Usage{CPUSeconds: own.seconds}}
	}
	if s.idle.cpu == nil {
		s.idle.cpu = map[sandbox.ID]cpuReading{}
	}
	if last.At.IsZero() || now.At.Sub(last.At) < time.Second {
		if _, ok := s.idle.cpu[id]; !ok {
			s.idle.cpu[id] = cpuReading{u.CPUSeconds, now.At}
		}
		return false, false
	}
	s.idle.cpu[id] = cpuReading{u.CPUSeconds, now.At}
	return coresBetween(last, now) >= idle.BusyCores, true
}

// suspendAgain is how long a sandbox that could not be suspended runs on before that is tried again.
const suspendAgain = time.Minute

// onIdle ends what nobody used in time, or suspends it where it is persistent.
func (s *Service) onIdle(ctx context.Context, r sandbox.Record) error {
	why := fmt.Sprintf("nothing used it for its idle_timeout of %s", r.Life.IdleTimeout)
	if r.Persistent {
		a := clockOf(r)
		what := approval.Action{Kind: approval.Other, Name: "sandbox.suspend", SandboxID: string(r.ID), Target: r.Label}
		err := s.change(ctx, a, what, func(ctx context.Context) (string, error) {
			moved, err := s.o.Sandboxes.SuspendIdle(ctx, r)
			if err == nil && !moved {
				return "it was used at the last moment, and runs on", nil
			}
			return why, err
		})
		if err != nil {
			err = errors.Join(err, s.o.Sandboxes.KeepAlive(ctx, r.ID, suspendAgain))
		}
		return err
	}
	return s.end(ctx, r, s.o.Sandboxes.ExpireIdle, why)
}

// clockOf is who ends or suspends a sandbox by the clock.
func clockOf(r sandbox.Record) auth.Actor {
	a := system()
	a.Workspace.ID = r.WorkspaceID
	return a
}

// expireAsleep ends a suspended sandbox whose life is over.
func (s *Service) expireAsleep(ctx context.Context, r sandbox.Record) {
	a := clockOf(r)
	what := approval.Action{Kind: approval.Other, Name: "sandbox.expire", SandboxID: string(r.ID), Target: r.Label}
	err := s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		return fmt.Sprintf("it lived for its max_lifetime of %s", r.Life.MaxLifetime), s.o.Sandboxes.Kill(ctx, r.ID, sandbox.ReasonExpired)
	})
	if err != nil && ctx.Err() == nil {
		s.o.Log.Error("end a suspended sandbox by the clock", "sandbox", string(r.ID), "cause", err.Error())
	}
}

// end moves the record first, by compare-and-set against every use, and kills what is then decided, on record with why.
// From there on nothing calls it back: what fails is tried again.
func (s *Service) end(ctx context.Context, r sandbox.Record, expire func(context.Context, sandbox.Record) (bool, error), why string) error {
	moved, err := expire(ctx, r)
	if err != nil || !moved {
		return err
	}
	a := clockOf(r)
	what := approval.Action{Kind: approval.Other, Name: "sandbox.expire", SandboxID: string(r.ID), Target: r.Label}
	for {
		err := s.change(ctx, a, what, func(ctx context.Context) (string, error) {
			return why, s.o.Sandboxes.Kill(ctx, r.ID, sandbox.ReasonExpired)
		})
		if err == nil || fault.Is(err, fault.NotFound) {
			return nil
		}
		s.o.Log.Error("end a sandbox by the clock", "sandbox", string(r.ID), "cause", err.Error())
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err()) // the next start finds it stopping
		case <-time.After(endAgain):
		}
	}
}

const endAgain = 10 * time.Second
