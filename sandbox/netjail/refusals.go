package netjail

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// The kernel answers one sandbox's refused datagrams with one message a second after the first six (net.ipv4.icmp_ratelimit,
// for each address that is answered), and a program that tries one destination after the other would wait for its own
// time-outs. Lifting that limit would lift it for the whole world that asks the host, so we answer ourselves what is reported
// to us, which is bounded for each sandbox. Where the kernel answers too there are two answers to one datagram, and they
// say the same.

// refusals is a socket that tells sandboxes of refused datagrams. A nil one tells nobody.
type refusals struct{ fd int }

// openRefusals opens the socket; what it sends bears the mark without which nothing finds a way into a sandbox.
func openRefusals(from netip.Addr) (*refusals, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_ICMP)
	if err != nil {
		return nil, fmt.Errorf("open a socket for refusals: %w", err)
	}
	const icmpFilter, nothing = 1, -1 // ICMP_FILTER: no message is delivered here
	for _, o := range [][3]int{
		{unix.SOL_SOCKET, unix.SO_MARK, markPassed},
		{unix.IPPROTO_IP, unix.IP_FREEBIND, 1},
		{unix.SOL_RAW, icmpFilter, nothing},
	} {
		if err := unix.SetsockoptInt(fd, o[0], o[1], o[2]); err != nil {
			_ = unix.Close(fd)
			return nil, fmt.Errorf("set up the socket for refusals: %w", err)
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: from.As4()}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("bind the socket for refusals: %w", err)
	}
	return &refusals{fd}, nil
}

func (r *refusals) close() {
	if r != nil {
		_ = unix.Close(r.fd)
	}
}

// tell answers the beginning of a refused datagram of the sandbox with that address, and does not wait.
func (r *refusals) tell(addr netip.Addr, datagram []byte) {
	if r == nil {
		return
	}
	if m := portUnreachable(addr, datagram); m != nil {
		_ = unix.Sendto(r.fd, m, unix.MSG_DONTWAIT, &unix.SockaddrInet4{Addr: addr.As4()}) // lost: as the kernel's own
	}
}

// portUnreachable makes the message for a datagram, nil where it is none, or did not come from addr.
func portUnreachable(addr netip.Addr, datagram []byte) []byte {
	if len(datagram) < 20 || datagram[0]>>4 != 4 || datagram[9] != unix.IPPROTO_UDP || netip.AddrFrom4([4]byte(datagram[12:16])) != addr {
		return nil
	}
	size := int(datagram[0]&0x0f)*4 + 8 // what the standard asks for: its header and 8 bytes
	if size < 28 || len(datagram) < size {
		return nil
	}
	m := append([]byte{3, 3, 0, 0, 0, 0, 0, 0}, datagram[:size]...)
	var sum uint32
	for i := 0; i+1 < len(m); i += 2 { // an even number of them
		sum += uint32(binary.BigEndian.Uint16(m[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(m[2:], ^uint16(sum))
	return m
}

// answered says whether a denial with that word is told to the process inside.
func answered(why string) bool { return !slices.Contains(quiet, why) }
