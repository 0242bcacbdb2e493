package workspace

import (
	"context"
	"sync"
	"time"

	"sandgate/auth"
	"sandgate/internal/fault"
)

const (
	guardEvery   = 300 * time.Millisecond
	guardTimeout = 2 * time.Second
	// guardBlind is how many looks in a row may fail before streams end: rights that cannot be read are not there.
	guardBlind = 8
)

// guard ends what is open when its right goes away. One goroutine looks for all; it lives while there is something to
// look after. The zero value is ready.
type guard struct {
	mu      sync.Mutex
	watches map[*watch]struct{}
	again   chan struct{} // holds at most one token: look now
}

type watch struct {
	actor auth.Actor
	need  auth.Permission
	end   context.CancelCauseFunc
	check func(context.Context) (until time.Time, err error) // beside the right; nil: nothing more

	// of the looking goroutine, once the watch is registered
	epoch int64
	until time.Time // when the right ends by itself, or zero
}

// Guard returns a context that ends within 1 s of the actor losing p (permission taken, key revoked or expired, person
// disabled or signed out, removed from the workspace); its cause is a fault error then (Forbidden or Unauthenticated).
// With p "" it asks only that the actor is still who they were. Call the returned function when done.
func (s *Service) Guard(ctx context.Context, a auth.Actor, p auth.Permission) (context.Context, context.CancelFunc) {
	return s.guardWith(ctx, a, p, nil)
}

// guardWith is Guard with something else beside the permission that has to hold.
func (s *Service) guardWith(ctx context.Context, a auth.Actor, p auth.Permission, check func(context.Context) (time.Time, error)) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	w := &watch{actor: a, need: p, end: end, check: check}
	// The epoch is read before the rights: a change in between is seen by the first look.
	epoch, err := s.o.Store.AuthzEpoch(ctx)
	if err == nil {
		w.epoch = epoch
		w.until, err = s.holds(ctx, w)
	}
	if err != nil {
		end(err)
		return ctx, func() {}
	}
	s.watch(w)
	stop := context.AfterFunc(ctx, func() { s.people.guard.forget(w) })
	return ctx, func() {
		end(context.Canceled)
		stop()
		s.people.guard.forget(w)
	}
}

// holds is still for what is watched.
func (s *Service) holds(ctx context.Context, w *watch) (until time.Time, err error) {
	if until, err = s.still(ctx, w.actor, w.need); err != nil || w.check == nil {
		return until, err
	}
	also, err := w.check(ctx)
	if until.IsZero() || !also.IsZero() && also.Before(until) {
		until = also
	}
	return until, err
}

// still gives the time until which the actor has the right if nothing changes (zero: no end), or why not any more.
func (s *Service) still(ctx context.Context, a auth.Actor, p auth.Permission) (until time.Time, err error) {
	var rights auth.Permissions
	switch a.Kind {
	case auth.System:
		return until, nil
	case auth.KeyUser:
		k, err := s.keyByID(ctx, a.KeyID)
		if fault.Is(err, fault.NotFound) || err == nil && !k.Live(s.o.Now()) {
			return until, fault.New(fault.Unauthenticated, "The API key is not valid any more.")
		}
		if err != nil {
			return until, err
		}
		rights, until = k.Rights(k.Owner), k.ExpiresAt
	default:
		if _, until, err = s.person(ctx, a); err != nil {
			return until, err
		}
		if a.Workspace.ID != "" {
			m, err := s.o.Store.Member(ctx, a.Workspace.ID, a.UserID)
			if err != nil && !fault.Is(err, fault.NotFound) {
				return until, err
			}
			rights = m.Rights() // none of no member
		}
	}
	if p != "" && !rights.Has(p) {
		return until, fault.New(fault.Forbidden, "This needs the permission %s, which you do not have any more.", p)
	}
	return until, nil
}

func (s *Service) watch(w *watch) {
	g := &s.people.guard
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.again == nil {
		g.again = make(chan struct{}, 1)
	}
	if g.watches == nil {
		g.watches = map[*watch]struct{}{}
		go s.lookAfter(g.again)
	}
	g.watches[w] = struct{}{}
}

func (g *guard) forget(w *watch) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.watches, w)
}

// look makes the goroutine look at once.
func (g *guard) look() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.again != nil {
		select {
		case g.again <- struct{}{}:
		default:
		}
	}
}

// open gives what is watched; with nothing left it says that the goroutine ends, and the next watch starts another.
func (g *guard) open() []*watch {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.watches) == 0 {
		g.watches = nil
		return nil
	}
	out := make([]*watch, 0, len(g.watches))
	for w := range g.watches {
		out = append(out, w)
	}
	return out
}

func (s *Service) lookAfter(again <-chan struct{}) {
	tick := time.NewTicker(guardEvery)
	defer tick.Stop()
	for failed := 0; ; {
		select {
		case <-tick.C:
		case <-again:
		}
		watches := s.people.guard.open()
		if watches == nil {
			return
		}
		if err := s.lookAt(watches); err == nil {
			failed = 0
		} else if failed++; failed == guardBlind {
			s.o.Log.Error("read rights for open streams", "cause", err.Error())
			for _, w := range watches {
				w.end(fault.Wrap(err, fault.Internal, "Your permissions could not be read."))
			}
			failed = 0
		}
	}
}

// lookAt ends those of the watches whose right is gone. It reads rights only where the epoch grew or a time came.
func (s *Service) lookAt(watches []*watch) error {
	ctx, cancel := context.WithTimeout(context.Background(), guardTimeout)
	defer cancel()
	epoch, err := s.o.Store.AuthzEpoch(ctx)
	if err != nil {
		return err
	}
	now := s.o.Now()
	for _, w := range watches {
		if w.epoch == epoch && (w.until.IsZero() || now.Before(w.until)) {
			continue
		}
		until, err := s.holds(ctx, w)
		switch fault.KindOf(err) {
		case "":
			w.epoch, w.until = epoch, until
		case fault.Internal:
			return err
		default:
			w.end(err)
			s.people.guard.forget(w)
		}
	}
	return nil
}
