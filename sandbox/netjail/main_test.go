package netjail

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"sandgate/internal/testenv"
	"sandgate/sandbox/netjail/prefix"
)

// All of these tests run in a network namespace of their own that plays the host: the machine's is not touched.
const (
	envHost = "SANDGATE_TEST_NETJAIL_HOST"
	envRole = "SANDGATE_TEST_NETJAIL_ROLE"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(envRole) == "owner":
		os.Exit(own())
	case os.Geteuid() != 0 || os.Getenv(envHost) != "":
		if os.Geteuid() == 0 {
			if err := ownMounts(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), envHost+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// ownMounts keeps the names of namespaces to ourselves too; they go with the process.
func ownMounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := os.MkdirAll(nsDir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", nsDir, "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount %s: %w", nsDir, err)
	}
	return nil
}

// world is what surrounds the host: the internet behind a router, and a network of private machines.
type world struct {
	inet, lan string // namespaces
}

// Addresses of the world. All of the "public" ones exist in a namespace of the test alone.
var (
	uplinkHost  = netip.MustParsePrefix("9.8.7.2/24")
	uplinkPeer  = netip.MustParseAddr("9.8.7.1") // the router
	uplinkOther = netip.MustParseAddr("9.8.7.9") // a machine in the provider's network
	publicHost  = netip.MustParseAddr("8.8.4.4") // somewhere on the internet
	publicOther = netip.MustParseAddr("1.2.3.4")
	lanHost     = netip.MustParsePrefix("192.168.77.1/24")
	lanPeer     = netip.MustParseAddr("192.168.77.2")
	hostExtra   = netip.MustParseAddr("44.1.2.3") // a public address of the host itself
)

var theWorld = sync.OnceValues(buildWorld)

// host gives the world, and cleans nothing up: it goes with the process.
func host(t testing.TB) world {
	t.Helper()
	testenv.Root(t)
	w, err := theWorld()
	require.NoError(t, err)
	return w
}

func buildWorld() (world, error) {
	w := world{inet: filepath.Join(nsDir, "inet"), lan: filepath.Join(nsDir, "lan")}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return w, err
	}
	if err := errors.Join(
		netlink.LinkSetUp(lo),
		netlink.AddrAdd(lo, &netlink.Addr{IPNet: single(hostExtra)}),
		buildNeighbour(w.inet, "up0", uplinkHost, netip.PrefixFrom(uplinkPeer, 24), uplinkOther, publicHost, publicOther),
		buildNeighbour(w.lan, "lan0", lanHost, netip.PrefixFrom(lanPeer, 24), privateHosts()...),
		routesTo(privateHosts()),
		netlink.RouteAdd(&netlink.Route{Gw: uplinkPeer.AsSlice()}),
		sysctl("ipv4", "conf/all/rp_filter", "2"), // as systemd sets it, which makes every link's own less strict
	); err != nil {
		return w, fmt.Errorf("build the world: %w", err)
	}
	return w, nil
}

// privateHosts are machines in every denied range that a machine can be in: first, middle and last address.
func privateHosts() []netip.Addr {
	var out []netip.Addr
	for _, e := range prefix.All() {
		if !e.Prefix.Addr().Is4() || slices.Contains(insideWords, e.Why) {
			continue
		}
		for _, a := range edges(e.Prefix) {
			if a != broadcast && !slices.Contains(out, a) {
				out = append(out, a)
			}
		}
	}
	return out
}

func routesTo(addrs []netip.Addr) error {
	var errs []error
	for _, a := range addrs {
		errs = append(errs, netlink.RouteAdd(&netlink.Route{Dst: single(a), Gw: lanPeer.AsSlice()}))
	}
	return errors.Join(errs...)
}

// buildNeighbour makes a namespace behind a link of the host, whose machine has all those addresses and answers on them.
func buildNeighbour(path, link string, here netip.Prefix, there netip.Prefix, more ...netip.Addr) error {
	if err := makeNamespace(path); err != nil {
		return err
	}
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = link
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(ns)}); err != nil {
		return err
	}
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	if err := errors.Join(
		netlink.AddrAdd(l, &netlink.Addr{IPNet: &net.IPNet{IP: here.Addr().AsSlice(), Mask: net.CIDRMask(here.Bits(), 32)}}),
		netlink.LinkSetUp(l),
	); err != nil {
		return err
	}
	err = within(path, func(ns netns.NsHandle) error {
		h, err := netlink.NewHandleAt(ns)
		if err != nil {
			return err
		}
		defer h.Close()
		lo, err := h.LinkByName("lo")
		if err != nil {
			return err
		}
		eth, err := h.LinkByName("eth0")
		if err != nil {
			return err
		}
		errs := []error{
			h.LinkSetUp(lo),
			h.AddrAdd(eth, &netlink.Addr{IPNet: &net.IPNet{IP: there.Addr().AsSlice(), Mask: net.CIDRMask(there.Bits(), 32)}}),
			h.LinkSetUp(eth),
		}
		for _, a := range more {
			errs = append(errs, h.AddrAdd(lo, &netlink.Addr{IPNet: single(a)}))
		}
		// It knows a way back to everything: what does not get there was stopped by the host.
		errs = append(errs, h.RouteAdd(&netlink.Route{Gw: here.Addr().AsSlice()}))
		return errors.Join(errs...)
	})
	if err != nil {
		return err
	}
	if err := sniff(path); err != nil {
		return err
	}
	return within(path, func(netns.NsHandle) error { return serveOn(append(more, there.Addr())...) })
}

// serveOn answers on the ports that tests ask at, at each address by itself: UDP answers come from where they were asked.
func serveOn(addrs ...netip.Addr) error {
	var all []string
	for _, a := range addrs {
		for _, port := range []uint16{53, 80, 443, 8080} {
			all = append(all, netip.AddrPortFrom(a, port).String())
		}
	}
	return serve(all...)
}

// serve answers on TCP and UDP at those addresses of the calling thread's namespace, for ever: it says who asked.
func serve(addrs ...string) error {
	for _, a := range addrs {
		l, err := net.Listen("tcp4", a)
		if err != nil {
			return err
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer func() { _ = c.Close() }()
					_, _ = fmt.Fprintf(c, "%s\n", c.RemoteAddr())
					_, _ = c.Read(make([]byte, 1)) // until the other side ends
				}()
			}
		}()
		p, err := net.ListenPacket("udp4", a)
		if err != nil {
			return err
		}
		go func() {
			buf := make([]byte, 1500)
			for {
				n, from, err := p.ReadFrom(buf)
				if err != nil {
					return
				}
				_, _ = p.WriteTo(append([]byte(from.String()+" "), buf[:n]...), from)
			}
		}()
	}
	return nil
}

// open makes a jail that is closed and wiped off when the test ends.
func open(t testing.TB, o Options) *Jail {
	t.Helper()
	host(t)
	j, err := New(o)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, j.Close())
		wipe(t, o)
	})
	return j
}

// wipe detaches everything of an installation and requires that nothing is left.
func wipe(t testing.TB, o Options) {
	t.Helper()
	o.OnDenied = nil
	j, err := New(o)
	require.NoError(t, err)
	ids, err := j.Found(t.Context())
	if err != nil { // the test's context has ended
		ids, err = j.traces()
	}
	require.NoError(t, err)
	for _, id := range ids {
		require.NoError(t, j.takeOff(id))
	}
	j.mu.Lock()
	if j.ready && len(j.boxes) == 0 {
		require.NoError(t, j.dismantle())
	}
	j.mu.Unlock()
	require.NoError(t, j.Close())
	require.Empty(t, leftovers(t, j), "nothing of the installation is left")
}

// leftovers lists everything on the host that bears an installation's mark.
func leftovers(t testing.TB, j *Jail) []string {
	t.Helper()
	var out []string
	entries, err := os.ReadDir(nsDir)
	require.NoError(t, err)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), j.n.mark()) {
			out = append(out, "namespace "+e.Name())
		}
	}
	links, err := netlink.LinkList()
	require.NoError(t, err)
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, j.n.linkMark()) {
			out = append(out, "link "+l.Attrs().Name)
		}
	}
	rules, err := netlink.RuleList(netlink.FAMILY_V4)
	require.NoError(t, err)
	for _, r := range rules {
		if p, ok := prefixOf(r.Dst); ok && p == j.o.Pool {
			out = append(out, "rule "+r.String())
		}
	}
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	require.NoError(t, err)
	for _, a := range addrs {
		if p, ok := prefixOf(a.IPNet); ok && j.o.Pool.Overlaps(p) {
			out = append(out, "address "+a.String())
		}
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{}, netlink.RT_FILTER_TABLE)
	require.NoError(t, err)
	for _, r := range routes {
		if p, ok := prefixOf(r.Dst); ok && p.Bits() > 0 && j.o.Pool.Overlaps(p) {
			out = append(out, "route "+r.String())
		}
	}
	there, err := (&tables{table: newSchema(j.o, 0).table}).there()
	require.NoError(t, err)
	if there {
		out = append(out, "table")
	}
	return out
}

// eventually polls until the condition holds.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	require.Eventually(t, f, 20*time.Second, 10*time.Millisecond, what)
}
