package netjail

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// leaving picks the connections of one address that are not to stay.
type leaving struct {
	from netip.Addr
	keep func(to netip.Addr, port uint16, proto uint8) bool
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (l leaving) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	src, ok := addrOf(f.Forward.SrcIP)
	if !ok || src != l.from {
		return false
	}
	dst, ok := addrOf(f.Forward.DstIP)
	return !ok || !l.keep(dst, f.Forward.DstPort, f.Forward.Protocol)
}

// endFlows makes the host forget connections of an address: their answers find no way back. It says how many there were.
// It reads all connections of the host, which takes milliseconds: not while anybody waits for Jail.mu.
func endFlows(from netip.Addr, keep func(to netip.Addr, port uint16, proto uint8) bool) (uint, error) {
	n, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.FAMILY_V4, leaving{from, keep})
	if err != nil {
		return n, fmt.Errorf("end connections of %s: %w", from, err)
	}
	return n, nil
}
