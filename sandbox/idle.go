package sandbox

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"sandgate/internal/fault"
)

// Why a sandbox ended by the clock; values of Record.Reason.
const (
	ReasonIdle    = "idle"
	ReasonExpired = "expired"
)

// Life is how a sandbox lives by the clock.
type Life struct {
	IdleTimeout   time.Duration // how long it may be unused
	MaxLifetime   time.Duration // how long it may live; 0: no end
	KeepWhileBusy bool          // use of the processor inside counts as use
}

// Deadlines keeps them durably, beside the records. Implemented by internal/store.
type Deadlines interface {
	// DueSandboxes lists running ones whose idle deadline is not after a moment, and those, suspended too, whose end of life is not.
	DueSandboxes(ctx context.Context, by time.Time) ([]Record, error)
	// SetLife replaces a record's Life and its deadlines. Gone: fault.NotFound.
	SetLife(ctx context.Context, id ID, l Life, idleAt, expiresAt time.Time) error
	// ExtendIdle moves a record's idle deadline forward, never back.
	ExtendIdle(ctx context.Context, id ID, idleAt time.Time) error
	// ExpireSandbox moves a running record to Stopping in one statement, if both deadlines are still those; false if not.
	ExpireSandbox(ctx context.Context, id ID, idleAt, expiresAt time.Time, reason string) (bool, error)
	// ShiftDeadlines moves the deadlines of all that are not gone, forward or back.
	ShiftDeadlines(ctx context.Context, by time.Duration) error
	// GraceDeadlines gives every running one at least grace, less where its own time is shorter, from now on.
	GraceDeadlines(ctx context.Context, now time.Time, grace time.Duration) error
}

// clockwork is the process-local side of a sandbox's idle clock. Whoever counts a use and whoever ends the sandbox for
// want of uses hold mu, so that exactly one of them is first.
type clockwork struct {
	mu       sync.Mutex
	uses     map[string]int // by reason
	lastUse  time.Time
	lastBusy time.Time // when something inside was last seen to compute
	kept     time.Time // until when somebody asked for it
	seen     []string  // what a look inside found, at seenAt
	seenAt   time.Time
	ended    bool
}

// Uses is what is known of the use of a sandbox in this process.
type Uses struct {
	Now      []string // reasons of uses that are under way
	Last     time.Time
	LastBusy time.Time
	Kept     time.Time // until when somebody asked to keep it alive, as far as this process knows
	Seen     []string  // what the last look inside found
	SeenAt   time.Time
}

// Use counts a use of a running sandbox until the function returned is called; why is one of the idle package's reasons.
// A sandbox that is being ended: fault.NotFound; one that fell asleep at this moment: ErrAsleep. One that is in use is
// neither ended nor suspended for being idle.
func (m *Manager) Use(ctx context.Context, id ID, why string) (done func(), err error) {
	b := m.boxOf(id)
	if b == nil {
		return func() {}, nil // the caller has just seen it run; what it does next finds out
	}
	c := &b.clock
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return nil, fault.New(fault.NotFound, "Sandbox not found")
	}
	if p := b.under(); p != nil && p.stops { // falling asleep: not for this call to run into
		c.mu.Unlock()
		return nil, errors.Join(ErrAsleep, finished(ctx, p.done))
	}
	if c.uses == nil {
		c.uses = map[string]int{}
	}
	c.uses[why]++
	c.lastUse = m.wall()
	c.mu.Unlock()
	m.noteUse(ctx, b)
	return sync.OnceFunc(func() {
		c.mu.Lock()
		if c.uses[why]--; c.uses[why] == 0 {
			delete(c.uses, why)
		}
		c.lastUse = m.wall()
		c.mu.Unlock()
		m.noteUse(context.WithoutCancel(ctx), b)
	}), nil
}

// Touch counts a use that takes no time, such as a key that somebody pressed.
func (m *Manager) Touch(ctx context.Context, id ID) {
	if b := m.boxOf(id); b != nil {
		b.clock.mu.Lock()
		b.clock.lastUse = m.wall()
		b.clock.mu.Unlock()
		m.noteUse(ctx, b)
	}
}

// Busy notes that something inside computes, which counts as use.
func (m *Manager) Busy(ctx context.Context, id ID) {
	if b := m.boxOf(id); b != nil {
		b.clock.mu.Lock()
		now := m.wall()
		b.clock.lastUse, b.clock.lastBusy = now, now
		b.clock.mu.Unlock()
		m.noteUse(ctx, b)
	}
}

// Seen notes what a look inside found.
func (m *Manager) Seen(id ID, reasons []string) {
	if b := m.boxOf(id); b != nil {
		b.clock.mu.Lock()
		defer b.clock.mu.Unlock()
		b.clock.seen, b.clock.seenAt = reasons, m.wall()
		if len(reasons) > 0 {
			b.clock.lastUse = b.clock.seenAt
		}
	}
}

// wall is the time as rows keep it: to the microsecond, and without the reading of another clock beside it, so that what
// is compared with a row is compared alike.
func (m *Manager) wall() time.Time { return m.o.Now().Round(0).Truncate(time.Microsecond) }

// noteUse writes a use down, at most once a second.
func (m *Manager) noteUse(ctx context.Context, b *box) {
	now := m.wall()
	b.mu.Lock()
	due := now.Sub(b.touched).Abs() >= touchGrain
	if due {
		b.touched = now
	}
	b.mu.Unlock()
	if due {
		if err := m.o.Records.TouchSandbox(ctx, b.id, now); err != nil && ctx.Err() == nil {
			m.o.Log.Warn("touch sandbox", "sandbox", string(b.id), "cause", err.Error())
		}
	}
}

// Uses tells what is known of a sandbox's use. Zero for one that this process does not supervise.
func (m *Manager) Uses(id ID) Uses {
	b := m.boxOf(id)
	if b == nil {
		return Uses{}
	}
	c := &b.clock
	c.mu.Lock()
	defer c.mu.Unlock()
	u := Uses{Last: c.lastUse, LastBusy: c.lastBusy, Kept: c.kept, Seen: c.seen, SeenAt: c.seenAt}
	for why := range c.uses {
		u.Now = append(u.Now, why)
	}
	slices.Sort(u.Now)
	return u
}

// ShiftUses moves what this process knows of uses with a clock that jumped.
func (m *Manager) ShiftUses(by time.Duration) {
	m.mu.Lock()
	boxes := make([]*box, 0, len(m.boxes))
	for _, b := range m.boxes {
		boxes = append(boxes, b)
	}
	m.mu.Unlock()
	for _, b := range boxes {
		b.clock.mu.Lock()
		for _, t := range []*time.Time{&b.clock.lastUse, &b.clock.lastBusy, &b.clock.kept, &b.clock.seenAt} {
			if !t.IsZero() {
				*t = t.Add(by)
			}
		}
		b.clock.mu.Unlock()
	}
}

// holding runs do while no use can begin and the sandbox cannot be ended by the clock. Ending or ended: fault.NotFound.
func (m *Manager) holding(id ID, do func(c *clockwork) error) error {
	b := m.boxOf(id)
	if b == nil {
		return do(&clockwork{}) // not here: the row decides alone
	}
	b.clock.mu.Lock()
	defer b.clock.mu.Unlock()
	if b.clock.ended {
		return fault.New(fault.NotFound, "Sandbox not found")
	}
	return do(&b.clock)
}

// SetLife changes how a sandbox lives by the clock; its idle time begins anew.
func (m *Manager) SetLife(ctx context.Context, r Record, l Life) error {
	return m.holding(r.ID, func(c *clockwork) error {
		c.lastUse = m.wall()
		var expires time.Time
		if l.MaxLifetime > 0 {
			expires = r.CreatedAt.Add(l.MaxLifetime)
		}
		return m.o.Deadlines.SetLife(ctx, r.ID, l, c.lastUse.Add(l.IdleTimeout), expires)
	})
}

// KeepAlive gives a sandbox at least so long from now on.
func (m *Manager) KeepAlive(ctx context.Context, id ID, d time.Duration) error {
	return m.holding(id, func(c *clockwork) error {
		c.lastUse = m.wall()
		c.kept = c.lastUse.Add(d)
		return m.o.Deadlines.ExtendIdle(ctx, id, c.kept)
	})
}

// ExpireIdle ends a sandbox for not being used: false when it was used, or its deadline was moved, since r was read.
// ExpireLife does it because its life is over. Kill does the rest.
func (m *Manager) ExpireIdle(ctx context.Context, r Record) (bool, error) {
	return m.expire(ctx, r, ReasonIdle, func(c *clockwork) bool {
		return len(c.uses) == 0 && !c.lastUse.Add(r.Life.IdleTimeout).After(m.wall())
	})
}

// SuspendIdle suspends a persistent sandbox for not being used; false as for ExpireIdle.
func (m *Manager) SuspendIdle(ctx context.Context, r Record) (bool, error) {
	b := m.boxOf(r.ID)
	if b == nil {
		return false, nil
	}
	p, err := m.beginIdle(ctx, b, r)
	if err != nil || p == nil {
		return false, err
	}
	if err := finished(ctx, p.done); err != nil {
		return false, err
	}
	return p.err == nil && p.stops, p.err
}

// beginIdle begins the suspend while no use can begin; nil when there was one.
func (m *Manager) beginIdle(ctx context.Context, b *box, r Record) (*passage, error) {
	c := &b.clock
	c.mu.Lock()
	defer c.mu.Unlock()
	now, err := m.o.Records.SandboxByID(ctx, r.ID)
	if err != nil {
		return nil, err
	}
	if c.ended || len(c.uses) > 0 || now.Status != Running || now.IdleAt.After(m.wall()) || c.lastUse.Add(r.Life.IdleTimeout).After(m.wall()) {
		return nil, nil
	}
	return m.begin(b, true, func(ctx context.Context) error { return m.suspend(ctx, b) })
}

// ExpireLife is documented with ExpireIdle.
func (m *Manager) ExpireLife(ctx context.Context, r Record) (bool, error) {
	return m.expire(ctx, r, ReasonExpired, func(*clockwork) bool { return true })
}

func (m *Manager) expire(ctx context.Context, r Record, reason string, may func(*clockwork) bool) (moved bool, err error) {
	err = m.holding(r.ID, func(c *clockwork) error {
		if !may(c) {
			return nil
		}
		moved, err = m.o.Deadlines.ExpireSandbox(ctx, r.ID, r.IdleAt, r.ExpiresAt, reason)
		c.ended = moved
		return err
	})
	if fault.Is(err, fault.NotFound) {
		return false, nil // somebody else ended it
	}
	if moved {
		m.o.Log.Info("sandbox changed", "sandbox", string(r.ID), "from", string(r.Status), "to", string(Stopping), "reason", reason)
		m.tell(ctx, r.ID)
	}
	return moved, err
}
