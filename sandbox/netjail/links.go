package netjail

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"sandgate/sandbox"
)

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func single(a netip.Addr) *net.IPNet { return ipNet(netip.PrefixFrom(a, a.BitLen())) }

func addrOf(ip net.IP) (netip.Addr, bool) {
	a, ok := netip.AddrFromSlice(ip)
	return a.Unmap(), ok
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	if a.Is4In6() && len(n.Mask) == net.IPv4len {
		a = a.Unmap()
	}
	return netip.PrefixFrom(a, bits).Masked(), ok && a.Is4()
}

// makePair makes both ends, the inner one in its namespace from the start, and leaves the host end down.
func (j *Jail) makePair(b *box) error {
	ns, err := netns.GetFromPath(j.n.namespace(b.id))
	if err != nil {
		return fmt.Errorf("open namespace of %s: %w", b.id, err)
	}
	defer func() { _ = ns.Close() }()
	for try := range linkTries {
		b.link = j.n.link(b.id, try)
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr = b.link, gatewayMAC
		err = j.host.LinkAdd(&netlink.Veth{
			LinkAttrs: attrs, PeerName: innerLink, PeerHardwareAddr: insideMAC, PeerNamespace: netlink.NsFd(ns),
		})
		if !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("make link pair %s: %w", b.link, err)
	}
	link, err := j.host.LinkByName(b.link)
	if err != nil {
		return fmt.Errorf("find link %s: %w", b.link, err)
	}
	b.index = link.Attrs().Index
	if err := j.host.LinkSetAlias(link, j.n.box(b.id)); err != nil { // the name holds a part of the id only
		return fmt.Errorf("mark link %s: %w", b.link, err)
	}
	return nil
}

// hostSettings are those of a host end, set while it is down.
var hostSettings = [][2]string{
	{"rp_filter", "1"},      // what comes in must be where answers go …
	{"src_valid_mark", "1"}, // … and for packets without our mark there is no such place
	{"accept_local", "0"},
	{"route_localnet", "0"},
	{"proxy_arp", "0"},
	{"arp_ignore", "8"},
	{"accept_redirects", "0"},
	{"send_redirects", "0"},
	{"secure_redirects", "0"},
	{"accept_source_route", "0"},
	{"bootp_relay", "0"},
	{"mc_forwarding", ""},
	{"forwarding", "1"},
}

// harden sets a host end up to hear IPv4 of its sandbox and nothing else.
func (j *Jail) harden(name string) error {
	if err := noIPv6(name); err != nil {
		return err
	}
	for _, kv := range hostSettings {
		if kv[1] == "" {
			continue
		}
		if err := sysctl("ipv4", "conf/"+name+"/"+kv[0], kv[1]); err != nil {
			return err
		}
	}
	link, err := j.host.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find link %s: %w", name, err)
	}
	if err := j.host.LinkSetARPOff(link); err != nil {
		return fmt.Errorf("turn ARP of %s off: %w", name, err)
	}
	return nil
}

// furnish sets the inside up. The host end is still down: nothing gets through.
func (j *Jail) furnish(b *box) error {
	return within(j.n.namespace(b.id), func(ns netns.NsHandle) error {
		h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open netlink inside %s: %w", b.id, err)
		}
		defer h.Close()
		if lo, err := h.LinkByName("lo"); err != nil {
			return fmt.Errorf("find the loopback inside %s: %w", b.id, err)
		} else if err := h.LinkSetUp(lo); err != nil {
			return fmt.Errorf("start the loopback inside %s: %w", b.id, err)
		}
		link, err := h.LinkByName(innerLink)
		if err != nil {
			return fmt.Errorf("find %s inside %s: %w", innerLink, b.id, err)
		}
		index, gw := link.Attrs().Index, j.o.gateway()
		steps := []struct {
			what string
			do   func() error
		}{
			{"address", func() error { return h.AddrAdd(link, &netlink.Addr{IPNet: single(b.addr)}) }},
			{"link", func() error { return h.LinkSetUp(link) }},
			{"neighbour", func() error { return h.NeighSet(neighbour(index, gw, gatewayMAC)) }},
			{"route to the gateway", func() error {
				return h.RouteReplace(&netlink.Route{LinkIndex: index, Dst: single(gw), Scope: netlink.SCOPE_LINK})
			}},
			{"default route", func() error {
				return h.RouteReplace(&netlink.Route{LinkIndex: index, Gw: gw.AsSlice()})
			}},
		}
		for _, s := range steps {
			if err := s.do(); err != nil {
				return fmt.Errorf("set the %s inside %s: %w", s.what, b.id, err)
			}
		}
		return nil
	})
}

func neighbour(index int, a netip.Addr, mac net.HardwareAddr) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: index, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac}
}

// raise sets a host end up with its route and its neighbour; rules must be there. It may be repeated.
func (j *Jail) raise(b *box) error {
	link, err := j.host.LinkByIndex(b.index)
	if err != nil {
		return fmt.Errorf("find link %s: %w", b.link, err)
	}
	if err := j.host.LinkSetUp(link); err != nil {
		return fmt.Errorf("start link %s: %w", b.link, err)
	}
	if err := j.host.NeighSet(neighbour(b.index, b.addr, insideMAC)); err != nil {
		return fmt.Errorf("set the neighbour of %s: %w", b.link, err)
	}
	// The source is for the host's own words about a packet: they must not come from an address that says what it is.
	route := &netlink.Route{LinkIndex: b.index, Dst: single(b.addr), Src: j.o.gateway().AsSlice(), Scope: netlink.SCOPE_LINK, Table: j.n.routeTable()}
	if err := j.host.RouteReplace(route); err != nil {
		return fmt.Errorf("set the route to %s: %w", b.link, err)
	}
	b.up = true
	return nil
}

// lower sets host ends down, and goes on when one fails.
func (j *Jail) lower() error {
	links, err := j.ourLinks()
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range links {
		if err := j.host.LinkSetDown(l); err != nil {
			errs = append(errs, fmt.Errorf("stop link %s: %w", l.Attrs().Name, err))
		}
	}
	return errors.Join(errs...)
}

// ourLinks lists host ends by their names.
func (j *Jail) ourLinks() ([]netlink.Link, error) {
	all, err := retried(j.host.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var out []netlink.Link
	for _, l := range all {
		if strings.HasPrefix(l.Attrs().Name, j.n.linkMark()) {
			out = append(out, l)
		}
	}
	return out, nil
}

// linksOf finds the host ends of one sandbox by the names that they can have; listing all links takes long where there are
// many. One without an alias is of an attempt that ended right after it was made.
func (j *Jail) linksOf(id sandbox.ID) []netlink.Link {
	var out []netlink.Link
	for try := range linkTries {
		l, err := j.host.LinkByName(j.n.link(id, try))
		if err == nil && (l.Attrs().Alias == j.n.box(id) || l.Attrs().Alias == "" && l.Type() == "veth") {
			out = append(out, l)
		}
	}
	return out
}

// retried lists again while the host changes under the list.
func retried[T any](list func() ([]T, error)) ([]T, error) {
	var out []T
	var err error
	for range 10 {
		if out, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return out, err
}

// traces lists the ids that any link, namespace or address of ours belongs to.
func (j *Jail) traces() ([]sandbox.ID, error) {
	seen := map[sandbox.ID]bool{}
	entries, err := os.ReadDir(nsDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	for _, e := range entries {
		if id, ok := j.n.idOf(e.Name()); ok {
			seen[id] = true
		}
	}
	links, err := j.ourLinks()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if id, ok := j.n.idOf(l.Attrs().Alias); ok {
			seen[id] = true
		}
	}
	out := make([]sandbox.ID, 0, len(seen))
	for id := range seen {
		out = append(out, id)
	}
	return out, nil
}
