package netjail

import (
	"hash/fnv"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"strings"

	"sandgate/sandbox"
)

// nsDir is where iproute2 keeps named network namespaces, so that an operator's "ip netns" shows ours.
const nsDir = "/run/netns"

// innerLink is the name of the link inside.
const innerLink = "eth0"

// Both ends of a pair have the same addresses in every sandbox: nobody else is on that wire, and a copy of a sandbox that
// wakes up in another namespace finds the neighbour that it knew.
var (
	gatewayMAC = net.HardwareAddr{0x02, 0x53, 0x47, 0, 0, 0x01}
	insideMAC  = net.HardwareAddr{0x02, 0x53, 0x47, 0, 0, 0x02}
)

var instPattern = regexp.MustCompile(`^[a-z0-9]{4}$`)

// names are those of one installation on its host: finding and removing goes by them alone.
type names struct{ inst string }

func (n names) mark() string                   { return "sg-" + n.inst + "-" }
func (n names) box(id sandbox.ID) string       { return n.mark() + string(id) }
func (n names) namespace(id sandbox.ID) string { return filepath.Join(nsDir, n.box(id)) }
func (n names) linkMark() string               { return "sg" + n.inst }
func (n names) table() string                  { return "sandgate_" + n.inst }
func (n names) label() string                  { return "lo:sg" + n.inst }

// link gives the name of a host end: the mark and 9 characters of the id, which has over 100 random bits. The try says
// which 9, for when the first are taken.
func (n names) link(id sandbox.ID, try int) string {
	body := strings.TrimPrefix(string(id), "sb")
	return n.linkMark() + body[try:try+9]
}

// linkTries is how many names a host end can have.
const linkTries = 12

// idOf takes a name apart again; false for what is not of this installation.
func (n names) idOf(name string) (sandbox.ID, bool) {
	rest, ok := strings.CutPrefix(name, n.mark())
	id := sandbox.ID(rest)
	return id, ok && id.Valid()
}

// number gives a small number that belongs to the installation, for things that have no names.
func (n names) number(below uint32) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(n.inst)) // never fails
	return h.Sum32() % below
}

func (n names) priority() int   { return 200 + 3*int(n.number(1000)) }
func (n names) routeTable() int { return 1_000_000 + int(n.number(1_000_000)) }

// The addresses at the start of the pool that no sandbox gets.
func gatewayOf(pool netip.Prefix) netip.Addr  { return pool.Masked().Addr().Next() }
func platformOf(pool netip.Prefix) netip.Addr { return gatewayOf(pool).Next() }

// reserved is how many addresses at the start of the pool are kept back.
const reserved = 8
