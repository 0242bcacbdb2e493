package netjail

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netns"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"sandgate/sandbox"
)

// What a probe saw.
const (
	seenOpen    = "open"    // an answer
	seenRefused = "refused" // reset, or port unreachable
	seenUnreach = "unreachable"
	seenSilence = "silence"
)

// ask is one question to a probe in a sandbox, tell its answer.
type ask struct {
	Kind  string // tcp, udp, icmp, raw, bytes, flood, hold, held
	To    string // address:port, or address
	From  string // raw: the forged source
	Wait  time.Duration
	Size  int    // flood: of a datagram
	Bytes []byte // bytes: a whole packet of IPv4
}

type tell struct {
	Seen string
	Text string // what was answered
	Took time.Duration
}

type prober struct {
	held []net.Conn
	wire int // a socket for raw; closing one takes long
}

func (p *prober) do(a ask) tell {
	if a.Wait == 0 {
		a.Wait = 2 * time.Second
	}
	start := time.Now()
	text, err := p.try(a)
	out := tell{Seen: seenOpen, Text: text, Took: time.Since(start)}
	switch {
	case err == nil:
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF):
		out.Seen = seenRefused
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.EPERM):
		out.Seen = seenUnreach
	default:
		out.Seen = seenSilence
	}
	if err != nil {
		out.Text = err.Error()
	}
	return out
}

func (p *prober) try(a ask) (string, error) {
	switch a.Kind {
	case "tcp", "udp":
		c, err := net.DialTimeout(a.Kind, a.To, a.Wait)
		if err != nil {
			return "", err
		}
		defer func() { _ = c.Close() }()
		return exchange(c, a.Wait)
	case "hold": // keeps the connection
		c, err := net.DialTimeout("tcp", a.To, a.Wait)
		if err != nil {
			return "", err
		}
		p.held = append(p.held, c)
		_ = c.SetReadDeadline(time.Now().Add(a.Wait))
		buf := make([]byte, 100)
		n, err := c.Read(buf)
		return string(buf[:n]), err
	case "held": // says whether it lives: the server ends it when it hears something
		held := p.held[len(p.held)-1]
		_ = held.SetDeadline(time.Now().Add(a.Wait))
		if _, err := held.Write([]byte("x")); err != nil {
			return "", err
		}
		_, err := held.Read(make([]byte, 1))
		if errors.Is(err, io.EOF) {
			return "ended by the server", nil
		}
		return "", err
	case "flood":
		return flood(a)
	case "icmp":
		return ping(a)
	case "raw":
		return "", p.raw(a)
	case "bytes":
		return "", p.send(unix.ETH_P_IP, a.Bytes)
	}
	return "", fmt.Errorf("no such question: %s", a.Kind)
}

// flood asks by UDP as fast as it can for as long as it was told, and says how many answers came.
func flood(a ask) (string, error) {
	to, err := net.ResolveUDPAddr("udp4", a.To)
	if err != nil {
		return "", err
	}
	c, err := net.ListenUDP("udp4", nil) // not connected: refusals do not stop it
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	what := make([]byte, max(1, a.Size))
	deadline := time.Now().Add(a.Wait)
	_ = c.SetReadDeadline(deadline.Add(200 * time.Millisecond))
	sent := make(chan int, 1)
	go func() {
		n := 0
		for time.Now().Before(deadline) {
			if _, err := c.WriteToUDP(what, to); err == nil {
				n++
			}
		}
		sent <- n
	}()
	answers, buf := 0, make([]byte, 200)
	for {
		if _, _, err := c.ReadFromUDP(buf); err != nil {
			break
		}
		answers++
	}
	return fmt.Sprintf("%d answers to %d", answers, <-sent), nil
}

func exchange(c net.Conn, wait time.Duration) (string, error) {
	_ = c.SetDeadline(time.Now().Add(wait))
	if _, err := c.Write([]byte("x")); err != nil {
		return "", err
	}
	buf := make([]byte, 200)
	n, err := c.Read(buf)
	return strings.TrimSpace(string(buf[:n])), err
}

func ping(a ask) (string, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)
	if err != nil {
		return "", err
	}
	defer func() { _ = unix.Close(fd) }()
	to := netip.MustParseAddr(a.To)
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1); err != nil {
		return "", err
	}
	m := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: os.Getpid() & 0xffff, Seq: 1, Data: []byte("sandgate")}}
	b, err := m.Marshal(nil)
	if err != nil {
		return "", err
	}
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrInet4{Addr: to.As4()}); err != nil {
		return "", err
	}
	deadline := time.Now().Add(a.Wait)
	buf := make([]byte, 500)
	for time.Now().Before(deadline) {
		tv := unix.NsecToTimeval(int64(max(time.Until(deadline), time.Millisecond)))
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			return "", err
		}
		n, from, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return "", err
		}
		f, ok := from.(*unix.SockaddrInet4)
		if ok && n > 20 && buf[20] == 0 && netip.AddrFrom4(f.Addr) == to {
			return "echo", nil
		}
	}
	return "", syscall.EAGAIN
}

// raw puts a UDP packet with a source of its own choice on the wire, past the sandbox's own routes, and does not wait.
func (p *prober) raw(a ask) error {
	to, err := netip.ParseAddrPort(a.To)
	if err != nil {
		return err
	}
	from := netip.MustParseAddr(a.From)
	proto, head := uint16(unix.ETH_P_IP), []byte(nil)
	payload := binary.BigEndian.AppendUint16([]byte{0x30, 0x39}, to.Port())
	payload = append(payload, 0, 12, 0, 0, 'f', 'a', 'k', 'e')
	if to.Addr().Is4() {
		h := ipv4.Header{Version: 4, Len: 20, TotalLen: 20 + len(payload), TTL: 64, Protocol: unix.IPPROTO_UDP, Src: from.AsSlice(), Dst: to.Addr().AsSlice()}
		if head, err = h.Marshal(); err != nil {
			return err
		}
		binary.BigEndian.PutUint16(head[10:], checksum(head))
	} else {
		proto = unix.ETH_P_IPV6
		head = append([]byte{0x60, 0, 0, 0, 0, byte(len(payload)), unix.IPPROTO_UDP, 64}, from.AsSlice()...)
		head = append(head, to.Addr().AsSlice()...)
	}
	return p.send(proto, append(head, payload...))
}

// send puts a packet on the wire.
func (p *prober) send(proto uint16, packet []byte) error {
	link, err := net.InterfaceByName(innerLink)
	if err != nil {
		return err
	}
	if p.wire == 0 {
		if p.wire, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, 0); err != nil {
			return err
		}
	}
	sa := &unix.SockaddrLinklayer{Protocol: proto<<8 | proto>>8, Ifindex: link.Index, Halen: 6}
	copy(sa.Addr[:], gatewayMAC)
	return unix.Sendto(p.wire, packet, 0, sa)
}

func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// probe asks from a sandbox's namespace, on a thread that is in it.
type probe struct {
	t       testing.TB
	mu      sync.Mutex
	asks    chan ask
	answers chan tell
}

func probeIn(t testing.TB, namespace string) *probe {
	t.Helper()
	p := &probe{t: t, asks: make(chan ask), answers: make(chan tell)}
	ended := make(chan error, 1)
	go func() {
		ended <- within(namespace, func(netns.NsHandle) error {
			who := &prober{}
			for a := range p.asks {
				p.answers <- who.do(a)
			}
			return nil
		})
		close(p.answers)
	}()
	t.Cleanup(func() {
		close(p.asks)
		require.NoError(t, <-ended)
	})
	return p
}

func (p *probe) ask(a ask) tell {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asks <- a
	out, ok := <-p.answers
	require.True(p.t, ok, "the probe answers")
	return out
}

func (p *probe) tcp(to netip.Addr, port uint16) tell {
	p.t.Helper()
	return p.ask(ask{Kind: "tcp", To: netip.AddrPortFrom(to, port).String()})
}

func (p *probe) udp(to netip.Addr, port uint16) tell {
	p.t.Helper()
	return p.ask(ask{Kind: "udp", To: netip.AddrPortFrom(to, port).String()})
}

func free(string) error { return nil }

// attach makes the network of a new sandbox.
func attach(t testing.TB, j *Jail, p sandbox.NetworkPolicy) (sandbox.ID, *probe) {
	t.Helper()
	id := sandbox.NewID()
	a, err := j.Attach(t.Context(), id, p, free)
	require.NoError(t, err)
	return id, probeIn(t, a.Namespace)
}
