package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/sandbox/netjail/prefix"
)

// asking tries each "protocol,address,port" of its argument and prints what it saw.
const asking = `
import socket, sys
for line in sys.argv[1].split():
    proto, at, port, wait = line.split(",")
    s = socket.socket(socket.AF_INET6 if ":" in at else socket.AF_INET, socket.SOCK_STREAM if proto == "tcp" else socket.SOCK_DGRAM)
    s.settimeout(float(wait))
    tries = 1 if float(wait) < 1 else 5
    for n in range(tries):
        try:
            s.connect((at, int(port)))
            if proto == "udp":
                s.send(b"x")
                s.recv(10)
            seen = "open"
        except (ConnectionRefusedError, ConnectionResetError):
            seen = "refused"
        except socket.timeout:
            seen = "silence"
            continue
        except OSError:
            seen = "unreachable"
        break
    s.close()
    print(proto, at, port, seen)
`

// edges gives the first, a middle and the last address of a prefix.
func edges(p netip.Prefix) []netip.Addr {
	last, mid := p.Addr().AsSlice(), p.Addr().AsSlice()
	for i := p.Bits(); i < len(last)*8; i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	if p.Bits() < len(mid)*8 {
		mid[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	}
	out := []netip.Addr{p.Addr()}
	for _, b := range [][]byte{mid, last} {
		a, _ := netip.AddrFromSlice(b)
		out = append(out, a)
	}
	return slices.Compact(out)
}

// addressOf is a sandbox's address as it sees it itself.
func (r rest) addressOf(id string) netip.Addr {
	r.t.Helper()
	out := r.exec(id, `python3 -c 'import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(("1.2.3.4", 9)); print(s.getsockname()[0])'`)
	a, err := netip.ParseAddr(strings.TrimSpace(out.Stdout))
	require.NoError(r.t, err, "%s", out.Stderr)
	return a
}

// whole asks for both ends and the middle of every prefix that is not public, for the host at all of its addresses, and for
// neighbours that listen: everything is refused at once but what the kernel inside answers itself, and the world is there.
func (r rest) whole(when, id string, neighbours ...netip.Addr) {
	r.t.Helper()
	const denied, never = "refused", "not open"
	want, asks := map[string]string{}, []string{}
	ask := func(a netip.Addr, port int, expected string) {
		for _, proto := range []string{"tcp", "udp"} {
			wait := "4"
			if expected == never {
				wait = "0.05"
			}
			key := fmt.Sprintf("%s %s %d", proto, a, port)
			if _, asked := want[key]; asked {
				continue
			}
			want[key] = expected
			asks = append(asks, strings.ReplaceAll(key, " ", ",")+","+wait)
		}
	}
	for _, a := range append(neighbours, netip.MustParseAddr("9.8.7.2"), netip.MustParseAddr("10.213.0.1")) {
		for _, port := range []int{22, 80, 9999} {
			ask(a, port, denied)
		}
	}
	ask(netip.MustParseAddr("9.8.7.1"), 80, denied)
	inside := []string{prefix.ThisNetwork, prefix.Loopback, prefix.Multicast, prefix.Broadcast}
	own := r.addressOf(id)
	for _, e := range prefix.All() {
		for _, a := range edges(e.Prefix) {
			switch {
			case a == own:
			case a.Is6() || slices.Contains(inside, e.Why) || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
				ask(a, 81, never) // on 80 the sandbox itself listens
			default:
				ask(a, 80, denied)
			}
		}
	}
	start := time.Now()
	var bad []string
	seen := 0
	for part := range slices.Chunk(asks, 60) {
		out := r.exec(id, "python3 - '"+strings.Join(part, " ")+"' <<'END'\n"+asking+"END")
		require.Zero(r.t, out.ExitCode, "%s: %s", when, out.Stderr)
		for line := range strings.Lines(out.Stdout) {
			at := strings.LastIndexByte(strings.TrimSpace(line), ' ')
			key, saw := line[:at], strings.TrimSpace(line[at:])
			if w := want[key]; w == denied && saw != denied || w == never && saw == "open" || w == "" {
				bad = append(bad, fmt.Sprintf("%s: expected %q, saw %s", key, w, saw))
			}
			seen++
		}
	}
	require.Empty(r.t, bad, when)
	require.Equal(r.t, len(asks), seen, when)
	world := r.exec(id, "curl -sS --max-time 10 http://1.2.3.4/")
	require.Equal(r.t, "the world", world.Stdout, "%s: %s", when, world.Stderr)
	r.t.Logf("%s: %d asked in %v, as expected", when, seen, time.Since(start).Round(time.Millisecond))
}

// The whole matrix of the jail holds for a sandbox that was woken, and for a fork, as it does for one that was just made.
func TestTheWholeJailAfterResumeAndFork(t *testing.T) {
	theWorld(t)
	// The kernel answers one sandbox one refused datagram a second, and this asks for hundreds. In the tests' own namespace.
	require.NoError(t, os.WriteFile("/proc/sys/net/ipv4/icmp_ratelimit", []byte("0"), 0o644))
	t.Cleanup(func() { require.NoError(t, os.WriteFile("/proc/sys/net/ipv4/icmp_ratelimit", []byte("1000"), 0o644)) })
	for _, port := range []string{"80", "81", "9999"} {
		l, err := net.Listen("tcp4", "0.0.0.0:"+port)
		require.NoError(t, err)
		serveAs(t, l, "the host")
	}
	host := newInstallation(t)
	s := host.serve()
	host.person("ann@example.org", "alpha")
	api := s.rest(host.key("alpha", "sandboxes:run"))
	const listening = "exec python3 -m http.server 80 >/dev/null 2>&1"
	answers := func(id string) {
		t.Helper()
		require.Eventually(t, func() bool { return api.exec(id, "curl -sf http://127.0.0.1/ >/dev/null").ExitCode == 0 }, time.Minute, 50*time.Millisecond)
	}
	origin, other := api.createPersistent("origin"), api.create("other")
	for _, id := range []string{origin, other} {
		api.ok("POST", "/v1/sandboxes/"+id+"/commands", map[string]any{"command": listening, "background": true}, nil)
		answers(id)
	}
	beside := api.addressOf(other)
	api.whole("as it was made", origin, beside)
	api.ok("POST", "/v1/sandboxes/"+origin+"/suspend", nil, nil)
	answers(origin)
	api.whole("after a resume", origin, beside)
	api.whole("beside one that was resumed", other, api.addressOf(origin))
	var fork sandboxJSON
	api.ok("POST", "/v1/sandboxes/"+origin+"/fork", nil, &fork)
	answers(fork.ID)
	require.NotEqual(t, api.addressOf(origin), api.addressOf(fork.ID))
	api.whole("a fork", fork.ID, beside, api.addressOf(origin))
	api.whole("after it was forked", origin, beside, api.addressOf(fork.ID))
}
