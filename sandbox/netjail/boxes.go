package netjail

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/netjail/policy"
	"sandgate/sandbox/netjail/prefix"
)

// elements of sets, by set.
type elements map[*nftables.Set][]nftables.SetElement

func (e elements) add(s *nftables.Set, x ...nftables.SetElement) { e[s] = append(e[s], x...) }

func four(a netip.Addr) []byte {
	b := a.As4()
	return b[:]
}

func portKey(p uint16) []byte { return append(binary.BigEndian.AppendUint16(nil, p), 0, 0) }

func linkKey(name string) []byte {
	out := make([]byte, 16)
	copy(out, name)
	return out
}

// span is the element of a set of intervals for a network at a port.
func span(p netip.Prefix, port uint16) nftables.SetElement {
	return nftables.SetElement{
		Key:    slices.Concat(four(p.Masked().Addr()), portKey(port)),
		KeyEnd: slices.Concat(four(last(p)), portKey(port)),
	}
}

func connMark(gen uint16) []byte { return binaryutil.NativeEndian.PutUint32(connTag | uint32(gen)) }

// pairing are the elements that tie a link to an address; without them whatever the link brings is forged.
func (s *schema) pairing(b *box) elements {
	return elements{
		s.pairs:  {{Key: slices.Concat(linkKey(b.link), four(b.addr))}},
		s.forged: {{Key: linkKey(b.link)}},
	}
}

// judgement are the elements that say what an address may reach.
func (s *schema) judgement(b *box) elements {
	if !b.known && b.kept != nil {
		return b.kept
	}
	out := elements{}
	mode := chainNone
	if b.known {
		switch b.policy.Mode {
		case sandbox.NetworkPublic:
			mode = chainPublic
		case sandbox.NetworkAllowList:
			mode = chainList
		}
	}
	if mode == chainNone {
		out.add(s.off, nftables.SetElement{Key: four(b.addr)})
	} else {
		out.add(s.live, nftables.SetElement{Key: slices.Concat(four(b.addr), connMark(b.gen))})
	}
	out.add(s.modes, nftables.SetElement{Key: four(b.addr), VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: mode}})
	out.add(s.gens, nftables.SetElement{Key: four(b.addr), Val: connMark(b.gen)})
	if mode == chainList {
		for _, e := range policy.Networks(b.policy) {
			n := e.Prefix.Masked()
			key := slices.Concat(four(b.addr), four(n.Addr()), bitsKey(n.Bits()), portKey(e.Port))
			if !slices.ContainsFunc(out[s.nets], func(x nftables.SetElement) bool { return bytes.Equal(x.Key, key) }) {
				out.add(s.nets, nftables.SetElement{Key: key})
			}
		}
	}
	return out
}

// answers are the elements of addresses that names were answered with.
func (s *schema) answers(b *box, now time.Time) elements {
	out := elements{}
	for to, until := range b.admitted {
		if left := until.Sub(now); left > 0 {
			out.add(s.names, nftables.SetElement{Key: slices.Concat(four(b.addr), four(to.Addr()), portKey(to.Port())), Timeout: left})
		}
	}
	return out
}

func (s *schema) counter(b *box) elements {
	return elements{s.refused: {{Key: four(b.addr)}}}
}

// put and take gather changes for the next commit.
func (j *Jail) put(all ...elements) error {
	for _, e := range all {
		for _, s := range j.s.sets() { // always in the same order
			if err := j.t.addElements(s, e[s]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (j *Jail) take(all ...elements) error {
	for _, e := range all {
		for _, s := range j.s.sets() {
			if err := j.t.removeElements(s, e[s]); err != nil {
				return err
			}
		}
	}
	return nil
}

// change commits what f gathers; where the table is not what we think it is, it is written anew from memory.
func (j *Jail) change(what string, f func() error) error {
	if err := f(); err != nil {
		return err
	}
	err := j.t.commit(what)
	if err == nil {
		return j.remember()
	}
	j.o.Log.Warn("the packet filter did not take a change: it is written anew", "change", what, "cause", err)
	return j.rewrite()
}

// admitBox writes the rules of a sandbox that has no link yet.
func (j *Jail) admitBox(b *box) error {
	return j.change("rules of "+string(b.id), func() error { return j.put(j.s.judgement(b), j.s.counter(b)) })
}

// pairBox ties the link to the address, now that it has a name.
func (j *Jail) pairBox(b *box) error {
	j.byLink[b.index] = b.id
	return j.change("pairing of "+string(b.id), func() error { return j.put(j.s.pairing(b)) })
}

// dropBox removes all elements of a sandbox; what is not there is no error.
func (j *Jail) dropBox(b *box) error {
	if !j.ready {
		return nil
	}
	all := []elements{j.s.judgement(b), j.s.answers(b, j.o.Now()), j.s.counter(b)}
	if b.link != "" {
		all = append(all, j.s.pairing(b))
	}
	// Adding first makes removing sure: elements time out, and attempts end half way.
	return j.change("removal of "+string(b.id), func() error {
		if err := j.put(all...); err != nil {
			return err
		}
		return j.take(all...)
	})
}

// setPolicy puts a policy in force, in one transaction. It says whether connections may be there that it does not allow.
func (j *Jail) setPolicy(b *box, p sandbox.NetworkPolicy) (narrower bool, err error) {
	before := *b
	old, oldAnswers := j.s.judgement(b), j.s.answers(b, j.o.Now())
	wider := b.known && (p.Mode == sandbox.NetworkPublic || b.policy.Mode == sandbox.NetworkNone ||
		b.policy.Mode == p.Mode && containsAll(p.Allow, b.policy.Allow))
	b.policy, b.known = p, true
	if !wider {
		b.gen++ // established connections are judged again
		b.admitted = map[netip.AddrPort]time.Time{}
	}
	err = j.change("policy of "+string(b.id), func() error {
		if !wider {
			if err := j.put(oldAnswers); err != nil {
				return err
			}
			if err := j.take(oldAnswers); err != nil {
				return err
			}
		}
		if err := j.take(old); err != nil {
			return err
		}
		return j.put(j.s.judgement(b))
	})
	if err != nil {
		*b = before
		return false, fmt.Errorf("change the network of %s: %w", b.id, err)
	}
	return !wider, nil
}

func containsAll(all, some []string) bool {
	for _, s := range some {
		if !slices.Contains(all, s) {
			return false
		}
	}
	return true
}

// judge says in Go what the rules say in the kernel about one sandbox, as things were when it was made.
type judge struct {
	box
	o        Options
	hostNets []netip.Prefix
}

func (j *Jail) judgeOf(b *box) judge {
	out := judge{box: *b, o: j.o, hostNets: j.hostNets} // nets are replaced, never changed
	out.admitted = maps.Clone(b.admitted)
	return out
}

// allows says whether a connection may be there.
func (g judge) allows(to netip.Addr, port uint16, proto uint8) bool {
	mode := sandbox.NetworkNone
	if g.known {
		mode = g.policy.Mode
	}
	switch {
	case to == g.o.gateway():
		return port == 53
	case mode == sandbox.NetworkNone:
		return false
	case to == g.o.platform():
		return port == g.o.PlatformPort && port != 0
	case deniedTo(g.o, g.hostNets, to, port):
		return false
	case mode == sandbox.NetworkPublic:
		return proto == unix.IPPROTO_TCP || proto == unix.IPPROTO_UDP || proto == unix.IPPROTO_ICMP
	}
	now := g.o.Now()
	for _, p := range []uint16{port, 0} {
		if until, ok := g.admitted[netip.AddrPortFrom(to, p)]; ok && now.Before(until) {
			return true
		}
	}
	return slices.ContainsFunc(policy.Networks(g.policy), func(e policy.Entry) bool {
		return e.Prefix.Contains(to) && (e.Port == 0 || e.Port == port)
	})
}

// deniedTo says whether an address is one that no policy opens.
func deniedTo(o Options, hostNets []netip.Prefix, a netip.Addr, port uint16) bool {
	if !a.Is4() || o.Pool.Contains(a) {
		return true
	}
	_, denied := prefix.Denied(a)
	denied = denied || slices.ContainsFunc(hostNets, func(p netip.Prefix) bool { return p.Contains(a) })
	return denied && !o.JailAllow.Admit(a, port)
}

// admitAnswer puts addresses on the list of a sandbox.
func (j *Jail) admitAnswer(b *box, addrs []netip.Addr, port uint16, ttl time.Duration) error {
	now := j.o.Now()
	maps.DeleteFunc(b.admitted, func(_ netip.AddrPort, until time.Time) bool { return !now.Before(until) })
	fresh := elements{}
	for _, a := range addrs {
		a = a.Unmap()
		if deniedTo(j.o, j.hostNets, a, port) {
			continue
		}
		to := netip.AddrPortFrom(a, port)
		if until, ok := b.admitted[to]; ok && until.After(now.Add(ttl)) {
			continue // an earlier answer lives longer
		}
		if len(b.admitted) >= maxAdmittedBy {
			return fault.New(fault.SlowDown, "This sandbox reached its limit of %d addresses from names at a time.", maxAdmittedBy)
		}
		b.admitted[to] = now.Add(ttl)
		fresh.add(j.s.names, nftables.SetElement{Key: slices.Concat(four(b.addr), four(a), portKey(port)), Timeout: ttl})
	}
	if len(fresh) == 0 {
		return nil
	}
	return j.change("answers for "+string(b.id), func() error {
		// One that is there keeps its time on older kernels: it is taken out first, and must be there for that.
		if err := j.put(fresh); err != nil {
			return err
		}
		if err := j.take(fresh); err != nil {
			return err
		}
		return j.put(fresh)
	})
}
