package netjail

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sandgate/internal/testenv"
	"sandgate/sandbox"
)

// The bytes that one sandbox sends are limited, and what another sends is not counted to it.
func TestBytesAreLimited(t *testing.T) {
	const limit, burst = 2 << 20, 1 << 20
	j := open(t, Options{Inst: "thnh", Limits: Limits{BytesPerSecond: limit, PacketsPerSecond: -1}})
	id, p := attach(t, j, public)
	_, q := attach(t, j, public)
	mine := j.boxes[id].addr
	_, before := wentOut(t)
	start := time.Now()
	got := p.ask(ask{Kind: "flood", To: publicHost.String() + ":9", Wait: time.Second, Size: 1400})
	require.Equal(t, seenOpen, q.tcp(publicHost, 80).Seen, "a neighbour goes on")
	_, after := wentOut(t)
	// The kernel's bucket holds what one second brings, and the burst.
	passed, most := after-before, limit+burst+int(limit*time.Since(start).Seconds())+64<<10
	stats, err := j.Stats(t.Context(), id)
	require.NoError(t, err)
	t.Logf("%s of 1400 bytes from %s: %d bytes went out, at most %d may; %d packets refused", got.Text, mine, passed, most, stats.Denied)
	require.Greater(t, int(stats.OutBytes), most, "it is a flood")
	require.LessOrEqual(t, passed, most)
	require.Greater(t, passed, burst, "what may pass does")
	require.Positive(t, stats.Denied)
	eventually(t, "it is over when the flood is", func() bool { return p.tcp(publicHost, 80).Seen == seenOpen })
}

// wentOut counts the packets and bytes that left the host.
func wentOut(t *testing.T) (packets, bytes int) {
	t.Helper()
	l, err := netlink.LinkByName("up0")
	require.NoError(t, err)
	return int(l.Attrs().Statistics.TxPackets), int(l.Attrs().Statistics.TxBytes)
}

// A stream of datagrams that nobody answers is one connection: it is not held for many new ones.
func TestUnansweredDatagramsAreOneConnection(t *testing.T) {
	j := open(t, Options{Inst: "thnl", Limits: Limits{NewPerSecond: 10}})
	_, p := attach(t, j, public)
	before, _ := wentOut(t)
	got := p.ask(ask{Kind: "flood", To: "20.1.2.3:9", Wait: 300 * time.Millisecond})
	after, _ := wentOut(t)
	t.Logf("%s, %d went out", got.Text, after-before)
	require.Greater(t, after-before, 1000)
}

// What ended is forgotten soon: the limit of connections does not count it, and the host's table is everybody's.
func TestEndedConnectionsAreForgotten(t *testing.T) {
	j := open(t, Options{Inst: "thnm"})
	id, p := attach(t, j, public)
	mine := j.boxes[id].addr
	tracked := func() (n int) {
		all, err := netlink.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
		require.NoError(t, err)
		for _, f := range all {
			if from, ok := addrOf(f.Forward.SrcIP); ok && from == mine {
				n++
			}
		}
		return n
	}
	for range 50 {
		require.Equal(t, seenOpen, p.tcp(publicHost, 80).Seen)
	}
	require.Positive(t, tracked())
	eventually(t, "none is left", func() bool { return tracked() == 0 }) // by the host's own times it would take two minutes
}

// A flood of questions does not reach the socket that all sandboxes ask at.
func TestQuestionsAreLimited(t *testing.T) {
	j := open(t, Options{Inst: "thno"})
	_, p := attach(t, j, public)
	_, q := attach(t, j, public)
	lc := net.ListenConfig{Control: ListenControl}
	pc, err := lc.ListenPacket(t.Context(), "udp4", netip.AddrPortFrom(j.GatewayAddr(), 53).String())
	require.NoError(t, err)
	var heard atomic.Int64
	ended := make(chan struct{})
	t.Cleanup(func() { _ = pc.Close(); <-ended })
	go func() {
		defer close(ended)
		buf := make([]byte, 1500)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			heard.Add(1)
			_, _ = pc.WriteTo(buf[:n], from)
		}
	}()
	start := time.Now()
	got := p.ask(ask{Kind: "flood", To: netip.AddrPortFrom(j.GatewayAddr(), 53).String(), Wait: 500 * time.Millisecond})
	most := questionsPerSecond * (1 + time.Since(start).Seconds())
	t.Logf("%s; %d heard, at most %.0f may", got.Text, heard.Load(), most)
	require.LessOrEqual(t, float64(heard.Load()), most)
	require.GreaterOrEqual(t, heard.Load(), int64(questionsPerSecond/10))
	require.Equal(t, seenOpen, q.udp(j.GatewayAddr(), 53).Seen, "a neighbour is heard")
}

// datagram is a packet of IPv4 as a sandbox could put it on the wire.
type datagram struct {
	to       netip.Addr
	options  []byte
	offset   uint16 // in units of 8 bytes, and 0x2000: more follow
	protocol byte
	payload  []byte
}

func (d datagram) bytes(from netip.Addr, id uint16) []byte {
	head := 20 + len(d.options)
	b := make([]byte, 20, head+len(d.payload))
	b[0], b[8], b[9] = 0x40|byte(head/4), 64, d.protocol
	binary.BigEndian.PutUint16(b[2:], uint16(head+len(d.payload)))
	binary.BigEndian.PutUint16(b[4:], id)
	binary.BigEndian.PutUint16(b[6:], d.offset)
	copy(b[12:], from.AsSlice())
	copy(b[16:], d.to.AsSlice())
	b = append(b, d.options...)
	binary.BigEndian.PutUint16(b[10:], checksum(b))
	return append(b, d.payload...)
}

// hops are a route of the sender's choice: option 131 may leave it in between, 137 may not.
func hops(kind byte, to ...netip.Addr) []byte {
	o := []byte{kind, byte(3 + 4*len(to)), 4}
	for _, a := range to {
		o = append(o, a.AsSlice()...)
	}
	for len(o)%4 != 0 {
		o = append(o, 0)
	}
	return o
}

// Fragments in every order and size, and routes that the sender chose, reach nothing that a plain packet does not.
func TestOddPackets(t *testing.T) {
	j := open(t, Options{Inst: "thni", PlatformPort: 8080})
	id, p := attach(t, j, public)
	other, _ := attach(t, j, public)
	mine, neighbour := j.boxes[id].addr, j.boxes[other].addr
	lan, inet := sniffers[host(t).lan], sniffers[host(t).inet]
	udp := func(port uint16, more int) []byte { // no checksum, which is allowed
		b := binary.BigEndian.AppendUint16([]byte{0x30, 0x39}, port)
		b = binary.BigEndian.AppendUint16(b, uint16(8+more))
		return append(append(b, 0, 0), make([]byte, more)...)
	}
	syn := []byte{0x30, 0x39, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0}
	const more = 0x2000
	whole := udp(53, 24)
	pieces := func(to netip.Addr) [][]datagram {
		a := datagram{to: to, offset: more, protocol: unix.IPPROTO_UDP, payload: whole[:8]}
		b := datagram{to: to, offset: more | 1, protocol: unix.IPPROTO_UDP, payload: whole[8:16]}
		c := datagram{to: to, offset: 2, protocol: unix.IPPROTO_UDP, payload: whole[16:]}
		tiny := []datagram{
			{to: to, offset: more, protocol: unix.IPPROTO_TCP, payload: syn[:8]},
			{to: to, offset: 1, protocol: unix.IPPROTO_TCP, payload: syn[8:]},
		}
		hidden := []datagram{ // the second lies over the first, with another port
			{to: to, offset: more, protocol: unix.IPPROTO_TCP, payload: slices.Concat(syn[:16], make([]byte, 8))},
			{to: to, offset: 0, protocol: unix.IPPROTO_TCP, payload: syn},
		}
		return [][]datagram{{a, b, c}, {c, b, a}, {b, c}, {c}, {a, b}, tiny, hidden}
	}
	denied := []netip.Addr{lanPeer, uplinkOther, hostExtra, neighbour, netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("169.254.169.254")}
	routed := func(kind byte, first, last netip.Addr) []datagram {
		return []datagram{
			{to: first, options: hops(kind, last), protocol: unix.IPPROTO_UDP, payload: udp(53, 4)},
			{to: first, options: hops(kind, last), protocol: unix.IPPROTO_TCP, payload: syn},
		}
	}
	n, serial := 0, uint16(1)
	send := func(list []datagram) {
		serial++
		for _, d := range list {
			require.Empty(t, p.ask(ask{Kind: "bytes", Bytes: d.bytes(mine, serial)}).Text)
			n++
		}
	}
	lan.quiet(t)
	beforeLan, beforeInet := lan.total(), map[netip.Addr]int{}
	for _, a := range denied {
		beforeInet[a] = inet.to(a)
	}
	public1 := inet.to(publicHost)
	for _, to := range denied {
		for _, list := range pieces(to) {
			send(list)
		}
		for _, kind := range []byte{131, 137} {
			send(routed(kind, publicHost, to))
			send(routed(kind, to, publicHost))
			send(routed(kind, j.GatewayAddr(), to))
			send(routed(kind, j.PlatformAddr(), to))
		}
		for _, o := range [][]byte{{7, 7, 4, 0, 0, 0, 0, 0}, {68, 8, 5, 0, 0, 0, 0, 0}, {148, 4, 0, 0}, {1, 1, 1, 0}, {131, 255, 4, 0}, {131, 0, 0, 0}} {
			send([]datagram{{to: to, options: o, protocol: unix.IPPROTO_UDP, payload: udp(53, 4)}})
		}
	}
	for _, list := range pieces(publicHost)[:2] {
		send(list)
	}
	eventually(t, "what is whole and allowed arrives, in pieces too", func() bool { return inet.to(publicHost) >= public1+2 })
	lan.quiet(t)
	require.Equal(t, beforeLan, lan.total(), "not a packet reached the private network")
	for _, a := range denied {
		require.Equal(t, beforeInet[a], inet.to(a), "nothing to %s went out by the default route", a)
	}
	require.Equal(t, seenOpen, p.tcp(publicHost, 80).Seen)
	t.Logf("%d odd packets to %d denied addresses: none arrived", n, len(denied))
}

// spellings are the ways in which programs write an IPv4 address.
func spellings(a netip.Addr) []string {
	b := a.As4()
	n := binary.BigEndian.Uint32(b[:])
	return []string{
		a.String(), fmt.Sprint(n), fmt.Sprintf("0x%x", n), fmt.Sprintf("0%o", n),
		fmt.Sprintf("0%o.0%o.0%o.0%o", b[0], b[1], b[2], b[3]), fmt.Sprintf("0x%x.0x%x.0x%x.0x%x", b[0], b[1], b[2], b[3]),
		fmt.Sprintf("%d.%d", b[0], n&0xffffff), fmt.Sprintf("%d.%d.%d", b[0], b[1], n&0xffff), fmt.Sprintf("0x%x.0%o.%d", b[0], b[1], n&0xffff),
		fmt.Sprintf("[::ffff:%s]", a), fmt.Sprintf("[::ffff:%x:%x]", n>>16, n&0xffff), fmt.Sprintf("[0:0:0:0:0:ffff:%s]", a),
		fmt.Sprintf("[64:ff9b::%x:%x]", n>>16, n&0xffff), fmt.Sprintf("[2002:%x:%x::1]", n>>16, n&0xffff),
	}
}

// In a real sandbox, however an address is written, and in however many pieces it is asked: curl, and python's own sockets.
func TestSpellingsInARealSandbox(t *testing.T) {
	host(t)
	testenv.Image(t)
	j := open(t, Options{Inst: "thnj", PlatformPort: 8080, OnDenied: (&collector{}).add, Limits: Limits{NewPerSecond: -1, Connections: -1}})
	serveUs(t, j)
	id := sandbox.NewID()
	a, err := j.Attach(t.Context(), id, public, free)
	require.NoError(t, err)
	g := boot(t, a.Namespace, id)
	const script = `import socket,sys
for line in sys.argv[1].split():
    name = line.strip("[]")
    s = socket.socket(socket.AF_INET6 if ":" in name else socket.AF_INET)
    s.settimeout(5)
    try: s.connect((name, 80)); s.send(b"x"); s.recv(10); r = "open"
    except ConnectionRefusedError: r = "refused"
    except socket.timeout: r = "silence"
    except OSError as e: r = "unreachable"
    print("python", line, r)`
	const web = `a=(); for u in $1; do a+=(-o /dev/null http://$u/); done; curl -s -g --http0.9 --max-time 5 -w "%{url} %{exitcode}\n" "${a[@]}" |
while read -r u code; do u=${u#http://}; case $code in 0|52|56) r=open;; 7) r=refused;; 28) r=silence;; *) r=unreachable;; esac; echo "curl ${u%/} $r"; done`
	lan := sniffers[host(t).lan]
	lan.quiet(t)
	before := lan.total()
	for _, to := range []netip.Addr{lanPeer, hostExtra, netip.MustParseAddr("169.254.169.254"), publicHost} {
		list := strings.Join(spellings(to), " ")
		out := g.sh("python3 -c '" + script + "' '" + list + "'; bash -c '" + strings.ReplaceAll(web, "'", `'\''`) + "' - '" + list + "'")
		lines, seen := strings.Split(out, "\n"), map[string]int{}
		require.Len(t, lines, 2*len(spellings(to)), "%s", out)
		for _, line := range lines {
			f := strings.Fields(line)
			require.Len(t, f, 3, out)
			seen[f[2]]++
			switch plain := !strings.Contains(line, "["); {
			case to != publicHost && plain && !strings.Contains(line, "0"+fmt.Sprintf("%o", binary.BigEndian.Uint32(to.AsSlice()))):
				assert.Equal(t, seenRefused, f[2], line)
			case to != publicHost:
				assert.Contains(t, []string{seenRefused, seenUnreach}, f[2], line)
			case plain:
				assert.Equal(t, seenOpen, f[2], line)
			}
		}
		t.Logf("%s, in %d spellings: %v", to, len(lines), seen)
	}
	// Datagrams that leave the sandbox in pieces.
	const big = `import socket,sys
for to in sys.argv[1:]:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(3); s.connect((to, 53))
    try: s.send(b"x" * 6000); print(to, "open", len(s.recv(9000)))
    except ConnectionRefusedError: print(to, "refused")
    except OSError as e: print(to, type(e).__name__)
try: s.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, bytes([131, 7, 4, 192, 168, 77, 2, 0])); s.send(b"x"); print("sent with a route")
except OSError: print("no options")`
	out := g.sh(fmt.Sprintf("python3 -c '%s' %s %s %s", big, lanPeer, hostExtra, publicHost))
	t.Log(out)
	require.Contains(t, out, lanPeer.String()+" refused")
	require.Contains(t, out, hostExtra.String()+" refused")
	require.Contains(t, out, publicHost.String()+" open")
	require.Equal(t, before, lan.total(), "not a packet reached the private network")
}

// What a program in a real sandbox sees that tries refused places one after the other, or all at once, with the kernel's own
// limits of such answers in force.
func TestRefusalsAreToldAtOnceInARealSandbox(t *testing.T) {
	host(t)
	testenv.Image(t)
	j := open(t, Options{Inst: "thnk", OnDenied: (&collector{}).add})
	id := sandbox.NewID()
	a, err := j.Attach(t.Context(), id, public, free)
	require.NoError(t, err)
	g := boot(t, a.Namespace, id)
	const script = `import select,socket,sys,time
def done(kind, took, n): print(kind, n, "of 20 refused, median %.1f ms, slowest %.1f ms" % (sorted(took)[len(took)//2] * 1e3, max(took) * 1e3))
to = sys.argv[1]
for kind, sort in (("tcp", socket.SOCK_STREAM), ("udp", socket.SOCK_DGRAM)):
    took, n = [], 0
    for port in range(1000, 1020):
        s = socket.socket(socket.AF_INET, sort); s.settimeout(0.5); start = time.time()
        try: s.connect((to, port)); s.send(b"x"); s.recv(10)
        except ConnectionRefusedError: n += 1
        except OSError: pass
        took.append(time.time() - start); s.close()
    done(kind, took, n)
time.sleep(1.5)
took, n, poll, all = [], 0, select.poll(), {}
for port in range(2000, 2020):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.setblocking(False); s.connect((to, port))
    all[s.fileno()] = s; poll.register(s, select.POLLIN)
start = time.time()
for s in all.values(): s.send(b"x")
while all and time.time() < start + 1:
    for fd, _ in poll.poll(100):
        try: all[fd].recv(10)
        except ConnectionRefusedError: n += 1
        except OSError: pass
        took.append(time.time() - start); poll.unregister(fd); all.pop(fd).close()
took += [1.0] * len(all)
done("udp-at-once", took, n)`
	out := g.sh("python3 -c '" + script + "' " + lanPeer.String())
	t.Log("\n" + out)
	lines := strings.Split(out, "\n")
	require.Len(t, lines, 3, out)
	for _, line := range lines {
		var kind string
		var n int
		var median, slowest float64
		_, err := fmt.Sscanf(line, "%s %d of 20 refused, median %f ms, slowest %f ms", &kind, &n, &median, &slowest)
		require.NoError(t, err, line)
		require.Less(t, median, 100.0, line)
		require.GreaterOrEqual(t, n, 15, line)
	}
	require.Empty(t, portUnreachable(lanPeer, nil))
}
