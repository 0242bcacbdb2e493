package netjail

import (
	"net/netip"
	"sync"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// sniffer counts the IPv4 packets that come into a namespace through its link, by source.
type sniffer struct {
	mu  sync.Mutex
	all int
	by  map[netip.Addr]int
}

var sniffers = map[string]*sniffer{}

func sniff(path string) error {
	s := &sniffer{by: map[netip.Addr]int{}}
	sniffers[path] = s
	return within(path, func(netns.NsHandle) error {
		const ipv4 = 0x0008 // in the order of the network
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, ipv4)
		if err != nil {
			return err
		}
		go func() {
			buf := make([]byte, 128)
			for {
				n, from, err := unix.Recvfrom(fd, buf, 0)
				if err != nil {
					return
				}
				if l, ok := from.(*unix.SockaddrLinklayer); ok && l.Pkttype != unix.PACKET_OUTGOING && l.Ifindex != 1 && n >= 20 {
					s.mu.Lock()
					s.all++
					s.by[netip.AddrFrom4([4]byte(buf[12:16]))]++
					s.mu.Unlock()
				}
			}
		}()
		return nil
	})
}

func (s *sniffer) total() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all
}

func (s *sniffer) from(a netip.Addr) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.by[a]
}
