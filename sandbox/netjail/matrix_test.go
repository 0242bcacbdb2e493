package netjail

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netns"

	"sandgate/internal/testenv"
	"sandgate/sandbox"
	"sandgate/sandbox/netjail/prefix"
)

// row is one address of the matrix.
type row struct {
	addr netip.Addr
	what string
	port uint16
	want map[string]string // by protocol; absent: anything but an answer, because the sandbox's own kernel may say no first
}

func denied(a netip.Addr, what string, port uint16) row {
	return row{addr: a, what: what, port: port, want: map[string]string{"tcp": seenRefused, "udp": seenRefused, "icmp": seenUnreach}}
}

// middle gives an address in the middle of a prefix.
func middle(p netip.Prefix) netip.Addr {
	if p.IsSingleIP() {
		return p.Addr()
	}
	if p.Addr().Is4() {
		b := p.Addr().As4()
		n := binary.BigEndian.Uint32(b[:]) | 1<<(31-p.Bits())
		return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, n)))
	}
	b := p.Addr().As16()
	b[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	return netip.AddrFrom16(b)
}

// end gives the last address of a prefix.
func end(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func edges(p netip.Prefix) []netip.Addr {
	return slices.Compact([]netip.Addr{p.Addr(), middle(p), end(p)})
}

// insideWords are about what the kernel inside answers itself, or does not send by TCP: such packets are put on the wire by
// hand as well.
var insideWords = []string{prefix.ThisNetwork, prefix.Loopback, prefix.Multicast, prefix.Broadcast}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// matrix lists every denied range, everything of the host, a neighbour, and what must work.
func matrix(j *Jail, neighbour netip.Addr) []row {
	var out []row
	for _, e := range prefix.All() {
		if !e.Prefix.Addr().Is4() {
			continue
		}
		for _, a := range edges(e.Prefix) {
			r := denied(a, e.Why, 80)
			if slices.Contains(insideWords, e.Why) || a == broadcast {
				r.want = nil
			}
			out = append(out, r)
		}
	}
	for _, port := range []uint16{22, 80, 9999} {
		out = append(out,
			denied(uplinkHost.Addr(), whyHost, port), denied(lanHost.Addr(), whyHost, port), denied(hostExtra, whyHost, port),
			denied(j.GatewayAddr(), "host, gateway", port), denied(j.PlatformAddr(), "host, platform", port))
	}
	out = append(out, denied(neighbour, whyNeighbour, 80), denied(end(j.o.Pool), whyNeighbour, 80), denied(lanPeer, "lan", 80),
		denied(uplinkOther, whyHostNet, 80), denied(uplinkPeer, "next hop", 80))
	open := func(a netip.Addr, what string, port uint16, protos ...string) row {
		r := row{addr: a, what: what, port: port, want: map[string]string{}}
		for _, p := range protos {
			r.want[p] = seenOpen
		}
		return r
	}
	return append(out,
		open(publicHost, "public", 53, "tcp", "udp", "icmp"), open(publicOther, "public", 443, "tcp", "udp", "icmp"),
		open(j.GatewayAddr(), "names", 53, "tcp", "udp"), open(j.PlatformAddr(), "platform", 8080, "tcp"))
}

var protos = []string{"tcp", "udp", "icmp"}

// everyRefusal makes the host answer every refused datagram: otherwise one sandbox gets one answer a second after the first
// few, and all together a thousand.
func everyRefusal(t *testing.T) {
	t.Helper()
	for name, values := range map[string][2]string{
		"icmp_ratelimit": {"0", "1000"}, "icmp_msgs_per_sec": {"1000000", "1000"}, "icmp_msgs_burst": {"100000", "50"},
	} {
		require.NoError(t, sysctl("ipv4", name, values[0]))
		t.Cleanup(func() { require.NoError(t, sysctl("ipv4", name, values[1])) })
	}
}

func TestMatrix(t *testing.T) {
	host(t)
	everyRefusal(t)
	o := Options{Inst: "thn9", PlatformPort: 8080, Limits: Limits{NewPerSecond: -1, Connections: -1}}
	j := open(t, o)
	serveUs(t, j)
	for _, a := range []netip.Addr{uplinkHost.Addr(), lanHost.Addr(), hostExtra} {
		for _, port := range []uint16{22, 80, 9999} {
			require.NoError(t, serve(netip.AddrPortFrom(a, port).String()))
		}
	}
	other, _ := attach(t, j, public)
	neighbour := j.boxes[other].addr
	require.NoError(t, within(j.n.namespace(other), func(netns.NsHandle) error { return serve(netip.AddrPortFrom(neighbour, 80).String()) }))

	for _, a := range append(privateHosts(), lanPeer) {
		got, err := (&prober{}).try(ask{Kind: "tcp", To: netip.AddrPortFrom(a, 80).String(), Wait: time.Second})
		require.NoError(t, err, "the host itself reaches %s: %s", a, got)
	}
	id, p := attach(t, j, public)
	seen := map[string]map[string]int{} // row and protocol → what was seen, how often
	took := map[string][]time.Duration{}
	rows := matrix(j, neighbour)
	lan, inet := sniffers[host(t).lan], sniffers[host(t).inet]
	run := func(condition string) {
		start, before, six := time.Now(), lan.total(), lan.totalSix()+inet.totalSix()
		heard := inet.from(netip.MustParseAddr("8.8.8.8"))
		var g judge
		require.NoError(t, j.locked(func() error { g = j.judgeOf(j.boxes[id]); return nil }))
		for _, r := range rows {
			for proto, number := range map[string]uint8{"tcp": 6, "udp": 17} {
				if w := r.want[proto]; g.known && (w == seenOpen || w == seenRefused) && r.what != "names" && (r.what != "platform" || proto == "tcp") {
					require.Equal(t, w == seenOpen, g.allows(r.addr, r.port, number), "Go agrees with the rules about %s", r.addr)
				}
			}
		}
		gone := map[netip.Addr]int{}
		for _, r := range rows {
			gone[r.addr] = inet.to(r.addr)
		}
		mine := j.boxes[id].addr
		for _, r := range rows {
			for _, proto := range protos {
				to := r.addr.String()
				if proto != "icmp" {
					to = netip.AddrPortFrom(r.addr, r.port).String()
				}
				wait := 2 * time.Second
				want := r.want[proto]
				if want == "" {
					wait = 20 * time.Millisecond
				}
				got := p.ask(ask{Kind: proto, To: to, Wait: wait})
				key := fmt.Sprintf("%-18s %-16s %5d %-4s", r.addr, r.what, r.port, proto)
				if seen[key] == nil {
					seen[key] = map[string]int{}
				}
				seen[key][got.Seen]++
				if want != "" && got.Seen != want || want == "" && got.Seen == seenOpen && proto+r.what != "icmp"+prefix.Loopback {
					if !r.answersItself(proto) {
						t.Errorf("%s: %s: expected %q, saw %s (%s)", condition, key, want, got.Seen, got.Text)
					}
				}
				if want == seenRefused && got.Seen == seenRefused {
					took[proto] = append(took[proto], got.Took)
				}
			}
			if r.want["tcp"] != seenOpen && r.want["udp"] != seenOpen {
				require.Empty(t, p.ask(ask{Kind: "raw", To: netip.AddrPortFrom(r.addr, 53).String(), From: mine.String()}).Text)
			}
		}
		for _, from := range []string{"8.8.8.8", neighbour.String(), hostExtra.String(), "127.0.0.1"} {
			for _, to := range []netip.Addr{publicHost, lanPeer, neighbour, hostExtra} {
				require.Empty(t, p.ask(ask{Kind: "raw", To: netip.AddrPortFrom(to, 53).String(), From: from}).Text)
			}
		}
		for _, e := range prefix.All() {
			for _, a := range edges(e.Prefix) {
				if a.Is6() {
					require.NotEqual(t, seenOpen, p.ask(ask{Kind: "tcp", To: netip.AddrPortFrom(a, 80).String(), Wait: 20 * time.Millisecond}).Seen, a)
					require.Empty(t, p.ask(ask{Kind: "raw", To: netip.AddrPortFrom(a, 53).String(), From: "fe80::1"}).Text)
				}
			}
		}
		require.Equal(t, before, lan.total(), "%s: not a packet reached the private network", condition)
		for _, r := range rows {
			if r.want["tcp"] != seenOpen && r.want["udp"] != seenOpen && r.addr != uplinkPeer {
				require.Equal(t, gone[r.addr], inet.to(r.addr), "%s: nothing to %s goes out by the default route", condition, r.addr)
			}
		}
		require.Equal(t, heard, inet.from(netip.MustParseAddr("8.8.8.8")), "%s: no forged source got out", condition)
		require.Equal(t, six, lan.totalSix()+inet.totalSix(), "%s: no IPv6", condition)
		t.Logf("%s: %v", condition, time.Since(start).Round(time.Millisecond))
	}
	lan.quiet(t) // the host's own questions above
	run("from the first moment")
	require.NoError(t, j.Close())
	run("after a crash, nobody there")
	j = open(t, o)
	run("after a crash, found again")
	require.NoError(t, j.Adopt(t.Context(), id, public))
	require.NoError(t, j.Adopt(t.Context(), other, public))
	run("adopted")
	require.NoError(t, j.locked(j.rewrite))
	run("rules written again")
	nft(t, "flush", "ruleset")
	run("flushed by somebody else")
	require.NoError(t, j.locked(j.mend))
	run("closed and mended")

	reused := j.boxes[id].addr
	require.NoError(t, j.Detach(t.Context(), id))
	delete(j.released, reused)
	j.next = reused
	id, p = attach(t, j, public)
	require.Equal(t, reused, j.boxes[id].addr)
	run("an address used again")

	var table strings.Builder
	for _, r := range rows {
		for _, proto := range protos {
			key := fmt.Sprintf("%-18s %-16s %5d %-4s", r.addr, r.what, r.port, proto)
			want := r.want[proto]
			if want == "" {
				want = "no answer"
			}
			fmt.Fprintf(&table, "%s expected %-12s seen", key, want)
			for _, s := range slices.Sorted(maps.Keys(seen[key])) {
				fmt.Fprintf(&table, " %s ×%d", s, seen[key][s])
			}
			table.WriteByte('\n')
		}
	}
	t.Log("\n" + table.String())
	for _, proto := range []string{"tcp", "udp"} {
		slices.Sort(took[proto])
		n := len(took[proto])
		t.Logf("%s refusals: %d, median %v, 99th %v, slowest %v", proto, n, took[proto][n/2], took[proto][n*99/100], took[proto][n-1])
		require.Less(t, took[proto][n/2], 100*time.Millisecond, "a refusal is told at once")
	}
}

// answersItself says where the sandbox's own kernel answers: its loopback is its own.
func (r row) answersItself(proto string) bool {
	return proto == "icmp" && (r.what == prefix.Loopback || r.what == prefix.ThisNetwork)
}

// The same from inside a real sandbox, for TCP and UDP, before and after a crash.
func TestMatrixInARealSandbox(t *testing.T) {
	host(t)
	testenv.Image(t)
	everyRefusal(t)
	o := Options{Inst: "thna", PlatformPort: 8080, Limits: Limits{NewPerSecond: -1, Connections: -1}}
	j := open(t, o)
	serveUs(t, j)
	other, _ := attach(t, j, public)
	id := sandbox.NewID()
	a, err := j.Attach(t.Context(), id, public, free)
	require.NoError(t, err)
	g := boot(t, a.Namespace, id)
	const script = `import socket,sys
for line in sys.argv[1].split():
    proto, addr, port = line.split(",")
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM if proto == "tcp" else socket.SOCK_DGRAM)
    s.settimeout(0.1 if addr.split(".")[0] in ("0","127","255") or int(addr.split(".")[0]) in range(224,240) else 3)
    try:
        s.connect((addr, int(port))); s.send(b"x"); s.recv(10); r = "open"
    except (ConnectionRefusedError, ConnectionResetError): r = "refused"
    except socket.timeout: r = "silence"
    except OSError: r = "unreachable"
    print(line, r)
    s.close()`
	var asks []string
	want := map[string]string{}
	for _, r := range matrix(j, j.boxes[other].addr) {
		for _, proto := range []string{"tcp", "udp"} {
			ask := fmt.Sprintf("%s,%s,%d", proto, r.addr, r.port)
			asks = append(asks, ask)
			want[ask] = r.want[proto]
		}
	}
	run := func(condition string) {
		out := g.sh("python3 -c '" + script + "' '" + strings.Join(asks, " ") + "'")
		lines := strings.Split(out, "\n")
		require.Len(t, lines, len(asks), "%s", out)
		for _, line := range lines {
			ask, seen, _ := strings.Cut(line, " ")
			if w := want[ask]; w != "" && seen != w || w == "" && seen == seenOpen {
				t.Errorf("%s: %s: expected %q, saw %s", condition, ask, want[ask], seen)
			}
		}
		t.Logf("%s: %d asked, as expected", condition, len(asks))
	}
	run("attached")
	require.NoError(t, j.Close())
	run("after a crash")
	j = open(t, o)
	require.NoError(t, j.Adopt(t.Context(), id, public))
	run("adopted")
}
