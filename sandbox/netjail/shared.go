package netjail

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sandgate/internal/fault"
)

// What sandboxes share, beside the table: two addresses on the loopback, three rules of routing, and the host's word that
// it forwards. The rules hold without any nftables: to the pool lead routes only for packets that bear our mark, and host
// ends check the source of what comes in by the same routes (rp_filter with src_valid_mark). So a packet that our table did
// not let pass goes nowhere and is answered by nobody, whether the table is there or not.

// sharedRules are in the order of their priorities.
func (j *Jail) sharedRules() []*netlink.Rule {
	make := func(i int) *netlink.Rule {
		r := netlink.NewRule()
		r.Priority, r.Family, r.Dst = j.n.priority()+i, netlink.FAMILY_V4, ipNet(j.o.Pool)
		return r
	}
	mask := uint32(markPassed)
	marked, first, rest := make(0), make(1), make(2)
	marked.Mark, marked.Mask, marked.Table = markPassed, &mask, j.n.routeTable()
	// The kernel's refusals look for a way back before they know their own source. Nothing is sent by this alone: once the
	// source is known the next rule is asked.
	first.Src, first.Table = single(netip.IPv4Unspecified()), j.n.routeTable()
	rest.Type = unix.RTN_BLACKHOLE
	return []*netlink.Rule{marked, first, rest}
}

// share makes what is shared, and mends it when it is there.
func (j *Jail) share() error {
	for _, kv := range [][2]string{
		{"ip_forward", "1"},
		{"fwmark_reflect", "1"},    // refusals bear the mark of what they refuse: without one there is no way back
		{"tcp_fwmark_accept", "1"}, // so does what a service of the host answers, where the operator made an exception for it
	} {
		if err := sysctl("ipv4", kv[0], kv[1]); err != nil {
			return err
		}
	}
	lo, err := j.host.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find the loopback: %w", err)
	}
	if err := j.host.LinkSetUp(lo); err != nil {
		return fmt.Errorf("start the loopback: %w", err)
	}
	for _, a := range []netip.Addr{j.o.gateway(), j.o.platform()} {
		if err := j.host.AddrReplace(lo, &netlink.Addr{IPNet: single(a), Label: j.n.label()}); err != nil {
			return fmt.Errorf("add address %s: %w", a, err)
		}
	}
	there, err := j.rulesThere()
	if err != nil {
		return err
	}
	want := j.sharedRules()
	// From the last to the first: closed before open.
	for i := len(want) - 1; i >= 0; i-- {
		if there[want[i].Priority] {
			continue
		}
		if err := j.host.RuleAdd(want[i]); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add rule of routing %d: %w", want[i].Priority, err)
		}
	}
	return nil
}

// rulesThere tells which of our priorities have a rule that leads to or from our pool.
func (j *Jail) rulesThere() (map[int]bool, error) {
	all, err := retried(func() ([]netlink.Rule, error) { return j.host.RuleList(netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("list rules of routing: %w", err)
	}
	out := map[int]bool{}
	for _, r := range all {
		if p, ok := prefixOf(r.Dst); ok && p == j.o.Pool {
			out[r.Priority] = true
		}
	}
	return out, nil
}

// unshare takes away what is shared; the host goes on forwarding, because others may count on it by now.
func (j *Jail) unshare() error {
	var errs []error
	there, err := j.rulesThere()
	errs = append(errs, err)
	for _, r := range j.sharedRules() {
		if there[r.Priority] {
			errs = append(errs, gone(j.host.RuleDel(r), "remove rule of routing"))
		}
	}
	lo, err := j.host.LinkByName("lo")
	if err != nil {
		return errors.Join(append(errs, fmt.Errorf("find the loopback: %w", err))...)
	}
	for _, a := range []netip.Addr{j.o.gateway(), j.o.platform()} {
		errs = append(errs, gone(j.host.AddrDel(lo, &netlink.Addr{IPNet: single(a)}), "remove address"))
	}
	return errors.Join(errs...)
}

// gone takes the absence of what was to be removed for success.
func gone(err error, what string) error {
	if err == nil || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	if _, ok := errors.AsType[netlink.LinkNotFoundError](err); ok {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// poolIsFree refuses a pool that overlaps what the host uses for something else.
func (j *Jail) poolIsFree() error {
	taken := func(p netip.Prefix, what string) error {
		return fault.New(fault.Conflict, "The pool of addresses %s overlaps %s, which this host uses (%s): choose another pool.", j.o.Pool, p, what)
	}
	links, err := retried(j.host.LinkList)
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	addrs, err := retried(func() ([]netlink.Addr, error) { return j.host.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		if p, ok := prefixOf(a.IPNet); ok && a.Label != j.n.label() && p.Overlaps(j.o.Pool) {
			return taken(p, "address of "+names[a.LinkIndex])
		}
	}
	routes, err := retried(func() ([]netlink.Route, error) {
		return j.host.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		p, ok := prefixOf(r.Dst)
		if !ok || p.Bits() == 0 || r.Table == j.n.routeTable() || r.Table == unix.RT_TABLE_LOCAL {
			continue // those in the table of local addresses were asked above
		}
		if p.Overlaps(j.o.Pool) {
			return taken(p, "route through "+names[r.LinkIndex])
		}
	}
	return nil
}

// networksOfHost lists the networks that the host is on: their machines trust each other, whatever their addresses.
func (j *Jail) networksOfHost() ([]netip.Prefix, error) {
	addrs, err := retried(func() ([]netlink.Addr, error) { return j.host.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	// Links of sandboxes are told apart by name. They have no addresses, so that few links are asked for: a list of all would
	// be long, and this is asked every few seconds.
	ours := map[int]bool{}
	var out []netip.Prefix
	for _, a := range addrs {
		mine, asked := ours[a.LinkIndex]
		if !asked {
			if l, err := j.host.LinkByIndex(a.LinkIndex); err == nil { // else it is gone by now: its networks are denied until the next look
				mine = strings.HasPrefix(l.Attrs().Name, j.n.linkMark())
			}
			ours[a.LinkIndex] = mine
		}
		if mine {
			continue
		}
		for _, n := range []netip.Prefix{first(prefixOf(a.IPNet)), first(prefixOf(a.Peer))} {
			if n.IsValid() && n.Bits() > 0 {
				out = append(out, n)
			}
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare) // to see whether they changed
	return out, nil
}

func first[T any](v T, ok bool) T {
	if !ok {
		var zero T
		return zero
	}
	return v
}
