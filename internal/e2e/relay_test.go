package e2e

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"sandgate/internal/testenv"
)

// The tests' own network has no way out. What must reach the places that packages come from goes through relays of the
// tests: they listen here, at the addresses that those places have, and dial from the network outside.

var hostInURL = regexp.MustCompile(`https?://([A-Za-z0-9.-]+)`)

// packagePlaces gives the host names that apt and pip inside the image ask.
func packagePlaces(t *testing.T) []string {
	t.Helper()
	root := testenv.Image(t)
	var names []string
	files, err := filepath.Glob(filepath.Join(root, "etc/apt/sources.list*"))
	require.NoError(t, err)
	more, err := filepath.Glob(filepath.Join(root, "etc/apt/sources.list.d/*"))
	require.NoError(t, err)
	for _, f := range append(files, more...) {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // a directory
		}
		for _, m := range hostInURL.FindAllSubmatch(text, -1) {
			names = append(names, string(m[1]))
		}
	}
	// pip knows its own places.
	out, err := exec.Command("chroot", root, "python3", "-c",
		"from pip._internal.models.index import PyPI as p; print(p.netloc, p.file_storage_domain)").Output()
	require.NoError(t, err)
	names = append(names, strings.Fields(string(out))...)
	slices.Sort(names)
	names = slices.Compact(names)
	require.Greater(t, len(names), 1)
	return names
}

// relay answers names and carries connections to ports 80 and 443 of those places until the test ends. It gives where.
func relay(t *testing.T, names []string) (at []netip.AddrPort) {
	t.Helper()
	servers := outsideServers(t)
	ask := func(q *dns.Msg) (*dns.Msg, error) { return askOutside(q, servers) }
	answerNames(t, func(q *dns.Msg) *dns.Msg {
		m, err := ask(q)
		if err != nil {
			m = new(dns.Msg)
			m.SetRcode(q, dns.RcodeServerFailure)
		}
		return m
	})
	known := map[netip.Addr]bool{}
	for _, name := range names {
		q := new(dns.Msg)
		q.SetQuestion(dns.Fqdn(name), dns.TypeA)
		m, err := ask(q)
		require.NoError(t, err, "no name server outside answers: packages cannot come")
		for _, rr := range m.Answer {
			if a, ok := rr.(*dns.A); ok {
				addr, ok := netip.AddrFromSlice(a.A.To4())
				require.True(t, ok)
				known[addr] = true
			}
		}
	}
	require.NotEmpty(t, known)
	world := newWorld(t)
	for addr := range known {
		world.ip("-n", world.name, "addr", "add", addr.String()+"/32", "dev", "lo")
		for _, port := range []uint16{80, 443} {
			one := netip.AddrPortFrom(addr, port)
			world.carry(one)
			at = append(at, one)
		}
	}
	return at
}

// answerNames is the name server that the tests' resolv.conf names.
func answerNames(t *testing.T, answer func(*dns.Msg) *dns.Msg) {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:53")
	require.NoError(t, err)
	server := &dns.Server{PacketConn: pc, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) { _ = w.WriteMsg(answer(q)) })}
	up := make(chan struct{})
	server.NotifyStartedFunc = func() { close(up) }
	go server.ActivateAndServe() //nolint:errcheck // ends with Shutdown
	<-up
	t.Cleanup(func() { _ = server.Shutdown() })
}

// world is a namespace that plays the world beyond the host: the host's default route leads there.
type world struct {
	t    *testing.T
	name string
}

func newWorld(t *testing.T) world {
	t.Helper()
	w := world{t, "world"}
	w.ip("netns", "add", w.name)
	t.Cleanup(func() {
		w.ip("link", "del", "uplink") // sockets of the test may hold the namespace for a moment yet
		w.ip("netns", "del", w.name)
	})
	for _, line := range []string{
		"link add uplink type veth peer name uplink netns " + w.name, "addr add 9.8.7.2/24 dev uplink", "link set uplink up", "route add default via 9.8.7.1",
		"-n world link set lo up", "-n world addr add 9.8.7.1/24 dev uplink", "-n world link set uplink up",
	} {
		w.ip(strings.Fields(line)...)
	}
	return w
}

func (w world) ip(args ...string) {
	w.t.Helper()
	out, err := exec.Command("ip", args...).CombinedOutput()
	require.NoError(w.t, err, "ip %v: %s", args, out)
}

// carry relays the connections to one address of the world to where that address really is.
func (w world) carry(at netip.AddrPort) {
	w.t.Helper()
	l, err := testenv.ListenWithin("/run/netns/"+w.name, at.String())
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = in.Close() }()
				var out net.Conn
				if err := testenv.Outside(func() (err error) {
					out, err = net.DialTimeout("tcp4", at.String(), 10*time.Second)
					return err
				}); err != nil {
					return
				}
				defer func() { _ = out.Close() }()
				go func() {
					_, _ = io.Copy(out, in)
					_ = out.(*net.TCPConn).CloseWrite()
				}()
				_, _ = io.Copy(in, out)
			}()
		}
	}()
}

func outsideServers(t *testing.T) (out []string) {
	t.Helper()
	text, err := testenv.OutsideResolvers()
	require.NoError(t, err)
	c, err := dns.ClientConfigFromReader(bytes.NewReader(text))
	require.NoError(t, err)
	for _, s := range c.Servers {
		out = append(out, net.JoinHostPort(s, c.Port))
	}
	require.NotEmpty(t, out)
	return out
}

func askOutside(q *dns.Msg, servers []string) (m *dns.Msg, err error) {
	for _, s := range servers {
		err = testenv.Outside(func() error {
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
			defer cancel()
			m, err = dns.ExchangeContext(ctx, q, s)
			return err
		})
		if err == nil {
			return m, nil
		}
	}
	return nil, err
}
