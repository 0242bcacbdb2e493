package netjail

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	mdl "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/netjail/policy"
)

// Adopt implements sandbox.Network.
func (j *Jail) Adopt(ctx context.Context, id sandbox.ID, p sandbox.NetworkPolicy) error {
	if err := check(id); err != nil {
		return err
	}
	p, err := policy.Check(p, j.o.JailAllow)
	if err != nil {
		return fmt.Errorf("adopt the network of %s: %w", id, err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	var g judge
	err = j.locked(func() error {
		g, err = j.adopt(id, p)
		return err
	})
	if err != nil {
		return fmt.Errorf("adopt the network of %s: %w", id, err)
	}
	_, err = endFlows(g.addr, g.allows)
	return err
}

func (j *Jail) adopt(id sandbox.ID, p sandbox.NetworkPolicy) (judge, error) {
	b := j.boxes[id]
	if b == nil || j.half[id] || !isNamespace(j.n.namespace(id)) {
		return judge{}, notAttached()
	}
	link, err := j.host.LinkByIndex(b.index)
	if err != nil || link.Attrs().Alias != j.n.box(id) {
		return judge{}, fault.Wrap(err, fault.NotFound, "The network of this sandbox is broken.")
	}
	if err := j.harden(b.link); err != nil {
		return judge{}, err
	}
	before := *b
	old := j.s.judgement(b)
	b.policy, b.known, b.kept = p, true, nil
	stale := elements{}
	if p.Mode != sandbox.NetworkAllowList {
		stale = j.s.answers(b, j.o.Now())
		b.admitted = map[netip.AddrPort]time.Time{}
	}
	err = j.change("adoption of "+string(id), func() error {
		if err := j.put(old, stale, j.s.pairing(b), j.s.counter(b)); err != nil {
			return err
		}
		if err := j.take(old, stale); err != nil {
			return err
		}
		return j.put(j.s.judgement(b))
	})
	if err != nil {
		*b = before
		return judge{}, err
	}
	return j.judgeOf(b), j.raise(b)
}

// rediscover reads from the host what an earlier process left: links, their addresses, and what the table says of them.
// Until Adopt says what is right, what was in force stays in force; what was not, does not begin.
func (j *Jail) rediscover() error {
	links, err := j.ourLinks()
	if err != nil {
		return err
	}
	addrs, err := j.addressesOfLinks()
	if err != nil {
		return err
	}
	for _, l := range links {
		a := l.Attrs()
		id, ok := j.n.idOf(a.Alias)
		addr, has := addrs[a.Name]
		if !ok || !has || j.byAddr[addr] != "" || j.boxes[id] != nil || !isNamespace(j.n.namespace(id)) {
			continue // Found tells of it, and Detach removes it
		}
		b := &box{id: id, link: a.Name, index: a.Index, addr: addr, up: a.Flags&net.FlagUp != 0, admitted: map[netip.AddrPort]time.Time{}}
		j.boxes[id], j.byAddr[addr], j.byLink[a.Index] = b, id, id
	}
	return j.readBack()
}

// addressesOfLinks finds which address belongs to which host end: by the table, and where that is gone by the routes.
func (j *Jail) addressesOfLinks() (map[string]netip.Addr, error) {
	out := map[string]netip.Addr{}
	routes, err := retried(func() ([]netlink.Route, error) {
		return j.host.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: j.n.routeTable()}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		link, err := j.host.LinkByIndex(r.LinkIndex)
		p, ok := prefixOf(r.Dst)
		if err == nil && ok && p.IsSingleIP() && j.o.Pool.Contains(p.Addr()) {
			out[link.Attrs().Name] = p.Addr()
		}
	}
	pairs, err := j.t.elements(j.s.pairs)
	if err != nil {
		return nil, err
	}
	for _, e := range pairs {
		if len(e.Key) == 20 {
			name := strings.TrimRight(string(e.Key[:16]), "\x00")
			if a := netip.AddrFrom4([4]byte(e.Key[16:20])); j.o.Pool.Contains(a) && out[name] == (netip.Addr{}) {
				out[name] = a
			}
		}
	}
	return out, nil
}

// readBack takes over what the table holds of the sandboxes that are there.
func (j *Jail) readBack() error {
	owner := func(key []byte) *box {
		if len(key) < 4 {
			return nil
		}
		return j.boxes[j.byAddr[netip.AddrFrom4([4]byte(key[:4]))]]
	}
	now := j.o.Now()
	for _, s := range []*nftables.Set{j.s.modes, j.s.gens, j.s.live, j.s.off, j.s.nets, j.s.names} {
		all, err := j.t.elements(s)
		if err != nil {
			return err
		}
		for _, e := range all {
			b := owner(e.Key)
			if b == nil {
				continue
			}
			keep := nftables.SetElement{Key: e.Key, KeyEnd: e.KeyEnd}
			switch s {
			case j.s.modes:
				chain := chainOf(e.Val)
				if !slices.Contains([]string{chainNone, chainPublic, chainList}, chain) {
					continue
				}
				keep.VerdictData = &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}
			case j.s.gens:
				if len(e.Val) != 4 {
					continue
				}
				keep.Val = e.Val
				b.gen = uint16(binaryutil.NativeEndian.Uint32(e.Val))
			case j.s.names:
				if len(e.Key) == 12 && e.Expires > 0 {
					to := netip.AddrPortFrom(netip.AddrFrom4([4]byte(e.Key[4:8])), binary.BigEndian.Uint16(e.Key[8:10]))
					if !deniedTo(j.o, j.hostNets, to.Addr(), to.Port()) {
						b.admitted[to] = now.Add(e.Expires)
					}
				}
				continue
			}
			if b.kept == nil {
				b.kept = elements{}
			}
			b.kept.add(s, keep)
		}
	}
	return nil
}

// chainOf gives the chain that a verdict leads to, "" for none.
func chainOf(verdict []byte) string {
	ad, err := mdl.NewAttributeDecoder(verdict)
	if err != nil {
		return ""
	}
	for ad.Next() {
		if ad.Type() == unix.NFTA_VERDICT_CHAIN {
			return ad.String()
		}
	}
	return ""
}
