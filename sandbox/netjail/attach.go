package netjail

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"time"

	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/netjail/policy"
)

// Attach implements sandbox.Network.
func (j *Jail) Attach(ctx context.Context, id sandbox.ID, p sandbox.NetworkPolicy, journal sandbox.Journal) (sandbox.Attachment, error) {
	a, err := j.Begin(ctx, id, p, journal)
	if err == nil {
		err = a.Wait()
	}
	if err != nil {
		return sandbox.Attachment{}, err
	}
	a.Ready = nil
	return a, nil
}

// Begin implements sandbox.Network. What follows the namespace takes as long as making it, mostly waiting for locks of the
// kernel, and a sandbox needs none of it before it starts.
func (j *Jail) Begin(ctx context.Context, id sandbox.ID, p sandbox.NetworkPolicy, journal sandbox.Journal) (sandbox.Attachment, error) {
	if err := check(id); err != nil {
		return sandbox.Attachment{}, err
	}
	p, err := policy.Check(p, j.o.JailAllow)
	if err != nil {
		return sandbox.Attachment{}, fmt.Errorf("attach %s: %w", id, err)
	}
	b, err := j.reserve(id, p)
	if err != nil {
		return sandbox.Attachment{}, err
	}
	steps := j.steps(b)
	err = j.climb(ctx, id, steps[:2], journal)
	if err != nil {
		err = errors.Join(err, j.takeOff(id))
		j.settle(id)
		return sandbox.Attachment{}, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err = j.climb(ctx, id, steps[2:], journal); err != nil {
			err = errors.Join(err, j.takeOff(id))
		}
		j.settle(id)
	}()
	return sandbox.Attachment{
		Namespace: j.n.namespace(id), Resolver: j.o.gateway(),
		Ready: func() error { <-done; return err },
	}, nil
}

// attachStep is one change to the host; takeOff undoes all of them.
type attachStep struct {
	name string
	do   func() error
}

// steps lists what makes the network of a box; after the second one there is a namespace.
func (j *Jail) steps(b *box) []attachStep {
	return []attachStep{
		{"network.rules", func() error { return j.locked(func() error { return j.admitBox(b) }) }},
		{"network.namespace", func() error { return makeNamespace(j.n.namespace(b.id)) }},
		{"network.link", func() error { return j.makePair(b) }},
		{"network.pairing", func() error {
			if err := j.harden(b.link); err != nil {
				return err
			}
			return j.locked(func() error { return j.pairBox(b) })
		}},
		{"network.inside", func() error { return j.furnish(b) }},
		{"network.up", func() error { return j.locked(func() error { return j.raise(b) }) }},
	}
}

// climb does steps in their order, up to one that fails.
func (j *Jail) climb(ctx context.Context, id sandbox.ID, steps []attachStep, journal sandbox.Journal) error {
	for _, s := range steps {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("attach %s: %w", id, err)
		}
		if err := journal(s.name); err != nil {
			return fmt.Errorf("attach %s: %s: %w", id, s.name, err)
		}
		if err := s.do(); err != nil {
			return fmt.Errorf("attach %s: %s: %w", id, s.name, err)
		}
	}
	return nil
}

func (j *Jail) locked(f func() error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return f()
}

// reserve takes the id and an address of the pool.
func (j *Jail) reserve(id sandbox.ID, p sandbox.NetworkPolicy) (*box, error) {
	_, err := os.Lstat(j.n.namespace(id))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("attach %s: %w", id, err)
	}
	there := err == nil
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil, errors.New("the jail is closed")
	}
	if j.boxes[id] != nil || j.half[id] || there || len(j.linksOf(id)) > 0 {
		return nil, fault.New(fault.Conflict, "This sandbox has a network already.")
	}
	if err := j.prepare(); err != nil {
		return nil, err
	}
	addr, err := j.allocate()
	if err != nil {
		return nil, err
	}
	b := &box{id: id, addr: addr, policy: p, known: true, gen: uint16(rand.UintN(1 << 16)), admitted: map[netip.AddrPort]time.Time{}}
	j.boxes[id], j.half[id], j.byAddr[addr] = b, true, id
	return b, nil
}

func (j *Jail) settle(id sandbox.ID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.half, id)
}

// rest is how long an address lies fallow, so that no connection to the last owner meets the next one.
const rest = 5 * time.Minute

// somewhere gives an address of the pool to start at: another one after each start, so that memory is not needed for rest.
func (j *Jail) somewhere() netip.Addr {
	size := uint32(1) << (32 - j.o.Pool.Bits())
	a := j.o.Pool.Addr()
	b := a.As4()
	n := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	n += reserved + rand.Uint32N(size-reserved-1)
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// allocate gives the next address that nobody has or had lately.
func (j *Jail) allocate() (netip.Addr, error) {
	now := j.o.Now()
	maps.DeleteFunc(j.released, func(_ netip.Addr, at time.Time) bool { return now.Sub(at) > rest })
	firstOne := j.o.Pool.Addr()
	for range reserved {
		firstOne = firstOne.Next()
	}
	size := 1 << (32 - j.o.Pool.Bits())
	for range size {
		a := j.next
		if j.next = a.Next(); a == last(j.o.Pool) || !j.o.Pool.Contains(a) {
			j.next = firstOne
			continue // the last one is the broadcast address to some
		}
		if _, taken := j.byAddr[a]; taken || a.Less(firstOne) {
			continue
		}
		if _, lately := j.released[a]; !lately {
			return a, nil
		}
	}
	return netip.Addr{}, fault.New(fault.HostFull, "All addresses for sandboxes are in use or were until lately. Try again later, or give Sandgate a larger pool.")
}

// Detach implements sandbox.Network.
func (j *Jail) Detach(ctx context.Context, id sandbox.ID) error {
	if err := check(id); err != nil {
		return err
	}
	if err := j.locked(func() error {
		if j.half[id] {
			return fault.New(fault.Conflict, "The network of this sandbox is being changed right now.")
		}
		j.half[id] = true
		return nil
	}); err != nil {
		return err
	}
	defer j.settle(id)
	return errors.Join(j.takeOff(id), ctx.Err())
}

// takeOff removes everything of one sandbox, found by names and not by memory: the links and the rules, so that nothing
// moves any more, then connections and the namespace, and what sandboxes share with the last of them.
func (j *Jail) takeOff(id sandbox.ID) error {
	var errs []error
	var b *box
	errs = append(errs, j.locked(func() error {
		b = j.boxes[id]
		return j.unplug(id, b)
	}))
	if b != nil {
		_, err := endFlows(b.addr, func(netip.Addr, uint16, uint8) bool { return false })
		errs = append(errs, err)
	}
	errs = append(errs, removeNamespace(j.n.namespace(id)))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("detach %s: %w", id, err)
	}
	return j.locked(func() error {
		if b != nil {
			j.released[b.addr] = j.o.Now()
			delete(j.byAddr, b.addr)
			delete(j.byLink, b.index)
			delete(j.boxes, id)
		}
		if len(j.boxes) > 0 {
			return nil
		}
		if j.ready {
			return j.dismantle()
		}
		return j.takeUp() // the last trace of what an earlier process left
	})
}

// unplug removes links and rules.
func (j *Jail) unplug(id sandbox.ID, b *box) error {
	var errs []error
	for _, l := range j.linksOf(id) {
		errs = append(errs, gone(j.host.LinkDel(l), "remove link "+l.Attrs().Name))
	}
	if b != nil {
		errs = append(errs, j.dropBox(b))
	}
	return errors.Join(errs...)
}

// Change implements sandbox.Network.
func (j *Jail) Change(ctx context.Context, id sandbox.ID, p sandbox.NetworkPolicy) error {
	if err := check(id); err != nil {
		return err
	}
	p, err := policy.Check(p, j.o.JailAllow)
	if err != nil {
		return fmt.Errorf("change the network of %s: %w", id, err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	var g judge
	var narrower bool
	err = j.locked(func() error {
		b := j.boxes[id]
		if b == nil || j.half[id] {
			return notAttached()
		}
		var err error
		narrower, err = j.setPolicy(b, p)
		g = j.judgeOf(b)
		return err
	})
	if err != nil || !narrower {
		return err
	}
	// Packets are judged by the new rules by now; this makes answers to old ones find no way back.
	_, err = endFlows(g.addr, g.allows)
	return err
}

// Admit lets a sandbox with an allow-list reach addresses that an allowed name was answered with, at a port (0: any), for
// ttl. Addresses that are denied are left out. The rules are in force when it returns: answer afterwards.
func (j *Jail) Admit(ctx context.Context, id sandbox.ID, addrs []netip.Addr, port uint16, ttl time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	b := j.boxes[id]
	if b == nil || !b.known || b.index == 0 {
		return notAttached()
	}
	if b.policy.Mode != sandbox.NetworkAllowList {
		return nil
	}
	return j.admitAnswer(b, addrs, port, min(max(ttl, minAdmit), maxAdmit))
}

// An answer that lives for no time at all lives long enough to connect to; one that lives for days is asked again.
const (
	minAdmit = 15 * time.Second
	maxAdmit = time.Hour
)
