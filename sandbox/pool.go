package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"sandgate/internal/fault"
)

// PoolOptions say how many sandboxes are kept ready before anybody asks for them.
type PoolOptions struct {
	Max   int                            // at most this many at once; 0: none
	Image string                         // what they are made of
	State func(image string) (id string) // which tree the image is now, "" while it cannot be used; one of another tree is never given
}

// How the pool follows what is asked of it.
const (
	poolWindow = time.Minute      // as many are kept as were taken within this, at least one
	poolRest   = 5 * time.Second  // after a failure, and between two looks at the members
	poolAge    = 30 * time.Minute // an idle member is made afresh: its clock and its image are never old
	poolReply  = 2 * time.Second  // a member that does not answer within this is not given away
)

// pool keeps sandboxes that run and belong to nobody. They are in no record: after a crash the next reconcile finds them
// unowned and removes them, and none can be given away twice.
type pool struct {
	o PoolOptions

	mu    sync.Mutex
	ready []*member // oldest first
	given map[ID]*member
	takes []time.Time
	wake  chan struct{} // one may be missing
}

// member is a sandbox of the pool, between its making and its first owner.
type member struct {
	b     *box
	spec  Spec
	tree  string
	made  time.Time
	leave context.CancelFunc // ends its watcher
	left  chan struct{}      // closed when the watcher has ended
	dead  bool               // valid once left
}

func newPool(o PoolOptions) *pool {
	return &pool{o: o, given: map[ID]*member{}, wake: make(chan struct{}, 1)}
}

// Choose gives the id for a new sandbox: that of a ready one where it fits, else a new one. What is not created in the end
// must be given back by Unchoose.
func (m *Manager) Choose(image string, res Resources) ID {
	p := m.pool
	now := m.o.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.o.Max == 0 || image != p.o.Image {
		return NewID()
	}
	p.takes = append(p.takes, now)
	defer p.nudge()
	tree := p.o.State(image)
	for i, one := range p.ready {
		// CPU, memory and processes can be changed while it runs, the size of the disk cannot.
		if one.spec.Resources.DiskMB == res.DiskMB && one.tree == tree {
			p.ready = slices.Delete(p.ready, i, i+1)
			p.given[one.b.id] = one
			return one.b.id
		}
	}
	return NewID()
}

// Unchoose gives an id back that was not used. Any other id: nothing happens.
func (m *Manager) Unchoose(id ID) {
	if one := m.pool.claim(id); one != nil {
		m.pool.back(one)
	}
}

// keep undoes a claim. Nobody else is given the id before Unchoose: what its chooser keeps under it has to go first.
func (p *pool) keep(one *member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.given[one.b.id] = one
}

func (p *pool) back(one *member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = append(p.ready, one)
}

// claim takes a chosen member out for good; nil when id is no member's.
func (p *pool) claim(id ID) *member {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.given[id]
	delete(p.given, id)
	return one
}

func (p *pool) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// want says how many members there should be. The caller holds the lock.
func (p *pool) want(now time.Time) int {
	p.takes = slices.DeleteFunc(p.takes, func(t time.Time) bool { return now.Sub(t) > poolWindow })
	if p.o.State(p.o.Image) == "" {
		return 0
	}
	return max(1, min(p.o.Max, len(p.takes)))
}

// give makes a chosen member the sandbox of a record. One that the quota refuses is ready for others after Unchoose.
func (m *Manager) give(ctx context.Context, one *member, r Record, q Quota) error {
	if err := m.o.Records.InsertSandboxWithin(ctx, r, q); err != nil {
		m.pool.keep(one)
		return fmt.Errorf("create %s: %w", r.ID, err)
	}
	one.leave()
	<-one.left
	one.b.pooled.Store(false)
	ctx, cancel := context.WithTimeout(ctx, createLimit)
	defer cancel()
	one.b.interruptBy(cancel)
	err := m.fit(ctx, one, r)
	if err == nil {
		var moved bool
		if moved, err = m.become(ctx, r.ID, Creating, Running, ""); err == nil && (!moved || ctx.Err() != nil) {
			err = killedMeanwhile()
		}
	}
	if err != nil {
		m.discard(one.b, err)
		return err
	}
	m.watch(one.b)
	return nil
}

// fit gives a member what its new owner asked for.
func (m *Manager) fit(ctx context.Context, one *member, r Record) error {
	if one.dead {
		return fmt.Errorf("sandbox %s died before it was used", r.ID)
	}
	if m.o.Network != nil {
		if err := m.o.Network.Change(ctx, r.ID, r.Network); err != nil {
			return err
		}
	}
	if r.Resources != one.spec.Resources {
		if err := m.o.Runtime.Update(ctx, r.ID, r.Resources); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, poolReply)
	defer cancel()
	return one.b.client.Name(ctx, hostname(r.Label, r.ID)) // and so it is known to answer
}

// KeepPool keeps sandboxes ready until ctx ends.
func (m *Manager) KeepPool(ctx context.Context) {
	if m.pool.o.Max == 0 {
		return
	}
	for {
		for m.tend(ctx) {
		}
		select {
		case <-ctx.Done():
			return
		case <-m.pool.wake:
		case <-time.After(poolRest):
		}
	}
}

// tend makes or takes away one member; false when there is nothing to do, or it failed.
func (m *Manager) tend(ctx context.Context) bool {
	p, now := m.pool, m.o.Now()
	tree := p.o.State(p.o.Image)
	p.mu.Lock()
	have, want := len(p.ready), p.want(now)
	i := slices.IndexFunc(p.ready, func(one *member) bool {
		return one.tree != tree || now.Sub(one.made) > poolAge || one.ended()
	})
	if i < 0 && have > want && now.Sub(p.ready[0].made) > poolWindow {
		i = 0
	}
	var old *member
	if i >= 0 {
		old = p.ready[i]
		p.ready = slices.Delete(p.ready, i, i+1)
	}
	p.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return false
	case old != nil:
		m.dismiss(old, errors.New("too old, or too many"))
		return true
	case have >= want:
		return false
	}
	b, err := m.fill(ctx, tree, now)
	if err != nil {
		if ctx.Err() == nil {
			m.o.Log.Warn("keep a sandbox ready", "cause", err.Error())
		}
		return false
	}
	warm, cancel := context.WithTimeout(ctx, poolReply)
	defer cancel()
	if err := b.client.Warm(warm); err != nil { // it is as good, but slower; or it has its owner already
		m.o.Log.Debug("warm a ready sandbox", "sandbox", string(b.id), "cause", err.Error())
	}
	return true
}

// fill makes one member. It reaches nothing until somebody owns it.
func (m *Manager) fill(ctx context.Context, tree string, now time.Time) (*box, error) {
	release, err := m.reserveRoom(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, createLimit)
	defer cancel()
	b := m.newBox(NewID())
	b.pooled.Store(true)
	b.interruptBy(cancel)
	if err := m.admit(b); err != nil {
		return nil, err
	}
	defer close(b.made)
	spec := Spec{ID: b.id, Image: m.pool.o.Image, Resources: DefaultResources}
	// No record, so no journal: what is left after a crash is unowned, and found by its name.
	silent := func(string) error { return ctx.Err() }
	spec.Network, err = m.attach(ctx, Record{ID: b.id, Network: NetworkPolicy{Mode: NetworkNone}}, silent)
	if err == nil {
		err = cmp.Or(m.o.Runtime.Create(ctx, spec, silent), spec.Network.Wait())
	}
	if err == nil {
		_, err = b.client.Hello(ctx)
	}
	if err != nil {
		_ = b.client.Close()
		err = errors.Join(err, m.clear(context.WithoutCancel(ctx), b))
		m.forget(b)
		return nil, err
	}
	m.join(b, spec, tree, now)
	return b, nil
}

// join enters a member that is made, and watches over it.
func (m *Manager) join(b *box, spec Spec, tree string, now time.Time) {
	ctx, cancel := context.WithCancel(m.life)
	one := &member{b: b, spec: spec, tree: tree, made: now, leave: cancel, left: make(chan struct{})}
	b.interruptBy(cancel)
	m.wg.Go(func() {
		_, err := m.o.Runtime.Wait(ctx, b.id)
		one.dead = err == nil || ctx.Err() == nil
		close(one.left)
		m.pool.nudge()
	})
	m.pool.mu.Lock()
	m.pool.ready = append(m.pool.ready, one)
	m.pool.mu.Unlock()
}

func (one *member) ended() bool {
	select {
	case <-one.left:
		return true
	default:
		return false
	}
}

// dismiss takes a member off the host.
func (m *Manager) dismiss(one *member, cause error) {
	m.o.Log.Info("a ready sandbox is removed", "sandbox", string(one.b.id), "cause", cause.Error())
	one.leave()
	<-one.left
	ctx, cancel := context.WithTimeout(context.Background(), removeLimit)
	defer cancel()
	_ = one.b.client.Close()
	_ = m.clear(ctx, one.b) // logged; the next reconcile finds it unowned
	m.forget(one.b)
}

// drain takes every member off the host: nobody could use them any more.
func (m *Manager) drain() {
	m.pool.mu.Lock()
	all := m.pool.ready
	m.pool.ready = nil
	m.pool.mu.Unlock()
	for _, one := range all {
		m.dismiss(one, fault.New(fault.Starting, "The server is stopping."))
	}
}
