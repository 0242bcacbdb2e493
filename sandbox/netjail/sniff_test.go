package netjail

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// sniffer counts the IPv4 packets that come into a namespace through its link, by source.
type sniffer struct {
	mu  sync.Mutex
	all int
	six int // IPv6 with UDP in it
	by  map[netip.Addr]int
	dst map[netip.Addr]int
}

var sniffers = map[string]*sniffer{}

func sniff(path string) error {
	s := &sniffer{by: map[netip.Addr]int{}, dst: map[netip.Addr]int{}}
	sniffers[path] = s
	return within(path, func(netns.NsHandle) error {
		const all = 0x0300 // in the order of the network
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, all)
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
				l, ok := from.(*unix.SockaddrLinklayer)
				if !ok || l.Pkttype == unix.PACKET_OUTGOING || l.Ifindex == 1 || n < 20 {
					continue
				}
				s.mu.Lock()
				switch {
				case l.Protocol == 0x0008:
					s.all++
					s.by[netip.AddrFrom4([4]byte(buf[12:16]))]++
					s.dst[netip.AddrFrom4([4]byte(buf[16:20]))]++
				case l.Protocol == 0xdd86 && buf[6] == unix.IPPROTO_UDP:
					s.six++
				}
				s.mu.Unlock()
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

func (s *sniffer) totalSix() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.six
}

func (s *sniffer) from(a netip.Addr) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.by[a]
}

func (s *sniffer) to(a netip.Addr) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dst[a]
}

// quiet waits until what is under way has come.
func (s *sniffer) quiet(t testing.TB) {
	t.Helper()
	same, lastSeen := 0, -1
	require.Eventually(t, func() bool {
		if n := s.total(); n != lastSeen {
			same, lastSeen = 0, n
		} else {
			same++
		}
		return same >= 5
	}, 20*time.Second, 20*time.Millisecond, "the wire is quiet")
}
