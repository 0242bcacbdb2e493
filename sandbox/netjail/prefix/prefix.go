// Package prefix owns the one table of addresses that are not the public internet: no sandbox reaches them, and no answer
// about names may hold them. The packet filter is made from it and Go code asks it, so that the two cannot differ. It must
// never know a sandbox, a policy or an operator's exception.
package prefix

import (
	"cmp"
	"net/netip"
	"slices"
)

// The words that say why an address is denied. They are shown to people and stand in records: they stay as they are.
const (
	ThisNetwork   = "this network"  // 0.0.0.0/8 and ::, which mean the sender itself
	Loopback      = "loopback"      // the machine itself
	Private       = "private"       // RFC 1918, unique local and site-local: somebody's own network
	Shared        = "shared"        // RFC 6598: between a provider and its customers
	LinkLocal     = "link-local"    // RFC 3927, fe80::/10
	Metadata      = "metadata"      // where clouds hand out credentials, or speak to their machines
	Multicast     = "multicast"     // groups
	Broadcast     = "broadcast"     // everybody on the link
	Documentation = "documentation" // examples; machines use such addresses for themselves
	Benchmarking  = "benchmarking"  // RFC 2544, RFC 5180
	Transition    = "transition"    // IPv4 in IPv6 clothes: mapped, compatible, 6to4, Teredo, NAT64
	Reserved      = "reserved"      // set aside, not routed, or not handed out yet
)

// Entry is one denied prefix.
type Entry struct {
	Prefix netip.Prefix // masked
	Why    string       // one of the words above
}

// table is sorted by neither size nor number: All sorts. A prefix may lie in another one; the longer one gives the word.
// Sources: the special-purpose registries of IANA for IPv4 and IPv6, and what clouds document about their own addresses.
var table = entries([][2]string{
	{"0.0.0.0/8", ThisNetwork},
	{"10.0.0.0/8", Private},
	{"100.64.0.0/10", Shared},
	{"100.100.100.200/32", Metadata},
	{"127.0.0.0/8", Loopback},
	{"168.63.129.16/32", Metadata}, // a public address by number, and the host's agent on one cloud
	{"169.254.0.0/16", LinkLocal},
	{"169.254.169.254/32", Metadata},
	{"169.254.170.2/32", Metadata},
	{"169.254.170.23/32", Metadata},
	{"172.16.0.0/12", Private},
	{"192.0.0.0/24", Reserved},
	{"192.0.0.192/32", Metadata},
	{"192.0.2.0/24", Documentation},
	{"192.88.99.0/24", Transition},
	{"192.168.0.0/16", Private},
	{"198.18.0.0/15", Benchmarking},
	{"198.51.100.0/24", Documentation},
	{"203.0.113.0/24", Documentation},
	{"224.0.0.0/4", Multicast},
	{"240.0.0.0/4", Reserved},
	{"255.255.255.255/32", Broadcast},

	// Of IPv6 only 2000::/3 is handed out as public unicast. The rest is denied as a whole, with better words inside.
	{"::/3", Reserved},
	{"::/96", Transition},
	{"::/128", ThisNetwork},
	{"::1/128", Loopback},
	{"::ffff:0:0/96", Transition},
	{"64:ff9b::/96", Transition},
	{"64:ff9b:1::/48", Transition},
	{"100::/64", Reserved},
	{"100:0:0:1::/64", Reserved},
	{"2001::/23", Reserved},
	{"2001::/32", Transition},
	{"2001:2::/48", Benchmarking},
	{"2001:10::/28", Reserved},
	{"2001:20::/28", Reserved},
	{"2001:db8::/32", Documentation},
	{"2002::/16", Transition},
	{"3fff::/20", Documentation},
	{"4000::/2", Reserved},
	{"5f00::/16", Reserved},
	{"8000::/1", Reserved},
	{"fc00::/7", Private},
	{"fd00:ec2::254/128", Metadata},
	{"fd20:ce::254/128", Metadata},
	{"fe80::/10", LinkLocal},
	{"fec0::/10", Private},
	{"ff00::/8", Multicast},
})

func entries(rows [][2]string) []Entry {
	out := make([]Entry, 0, len(rows))
	for _, r := range rows {
		out = append(out, Entry{Prefix: netip.MustParsePrefix(r[0]).Masked(), Why: r[1]})
	}
	slices.SortFunc(out, func(a, b Entry) int {
		return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()))
	})
	return out
}

// All lists every denied prefix, IPv4 before IPv6, ascending, an outer one before those inside it. The slice is the caller's.
func All() []Entry { return slices.Clone(table) }

// Outer lists what All lists without the prefixes that lie in another one: no two overlap, as sets of intervals demand.
// The slice is the caller's.
func Outer() []Entry {
	var out []Entry
	for _, e := range table {
		// Sorted as the table is, whatever holds e comes before it, and the last outer one is the only one that can.
		if n := len(out); n > 0 && out[n-1].Prefix.Overlaps(e.Prefix) {
			continue
		}
		out = append(out, e)
	}
	return out
}

// Denied says whether addr is not on the public internet, and by which word. A zone is left out of account. An IPv4 address
// mapped into IPv6 is judged as the IPv4 address that it is; other IPv6 addresses that hold an IPv4 one are denied in any
// case, with the word of the inner address where that one is denied too. What is no address is denied as Reserved.
func Denied(addr netip.Addr) (why string, denied bool) {
	if !addr.IsValid() {
		return Reserved, true
	}
	addr = addr.WithZone("").Unmap()
	why, denied = lookup(addr)
	if why != Transition || !addr.Is6() {
		return why, denied
	}
	for _, inner := range embedded(addr) {
		if w, d := lookup(inner); d {
			return w, true
		}
	}
	return why, denied
}

// lookup gives the word of the longest prefix that holds addr.
func lookup(addr netip.Addr) (string, bool) {
	best := -1
	why := ""
	for _, e := range table {
		if e.Prefix.Bits() > best && e.Prefix.Contains(addr) {
			best, why = e.Prefix.Bits(), e.Why
		}
	}
	return why, best >= 0
}

var (
	sixToFour = netip.MustParsePrefix("2002::/16")
	teredo    = netip.MustParsePrefix("2001::/32")
	nat64     = netip.MustParsePrefix("64:ff9b::/96")
	nat64own  = netip.MustParsePrefix("64:ff9b:1::/48")
	compat    = netip.MustParsePrefix("::/96")
)

// embedded lists the IPv4 addresses that a transition address carries.
func embedded(addr netip.Addr) []netip.Addr {
	b := addr.As16()
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte(b[i : i+4])) }
	switch {
	case sixToFour.Contains(addr):
		return []netip.Addr{at(2)}
	case teredo.Contains(addr): // the server in clear, the client inverted
		return []netip.Addr{netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]}), at(4)}
	case nat64.Contains(addr), compat.Contains(addr):
		return []netip.Addr{at(12)}
	case nat64own.Contains(addr): // a /48 splits the address around byte 8 (RFC 6052); operators use a /96 of it as well
		return []netip.Addr{netip.AddrFrom4([4]byte{b[6], b[7], b[9], b[10]}), at(12)}
	}
	return nil
}
