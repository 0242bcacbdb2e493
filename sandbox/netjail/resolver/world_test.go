package resolver

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"sandgate/sandbox"
	"sandgate/sandbox/netjail/policy"
)

// names is a name server on loopback that knows a few records and counts what it was asked.
type names struct {
	addr netip.AddrPort

	mu    sync.Mutex
	rr    map[string][]string                         // "name. TYPE" to records
	with  func(w dns.ResponseWriter, q *dns.Msg) bool // answers instead, when it says so
	asked map[string]int
}

// bothKinds listens by UDP and TCP on one port. Which one is free for the former may be taken for the latter.
func bothKinds(t *testing.T, addr string) (net.PacketConn, net.Listener) {
	t.Helper()
	for {
		pc, err := net.ListenPacket("udp", addr)
		require.NoError(t, err)
		ln, err := net.Listen("tcp", pc.LocalAddr().String())
		if err == nil {
			return pc, ln
		}
		require.ErrorIs(t, err, syscall.EADDRINUSE)
		require.NoError(t, pc.Close())
	}
}

func newNames(t *testing.T) *names {
	t.Helper()
	n := &names{rr: map[string][]string{}, asked: map[string]int{}}
	pc, ln := bothKinds(t, "127.0.0.1:0")
	n.addr = netip.MustParseAddrPort(pc.LocalAddr().String())
	for _, s := range []*dns.Server{{PacketConn: pc, Handler: n}, {Listener: ln, Handler: n}} {
		up := make(chan struct{})
		s.NotifyStartedFunc = func() { close(up) }
		go s.ActivateAndServe() //nolint:errcheck // ends with Shutdown
		<-up
		t.Cleanup(func() { _ = s.Shutdown() })
	}
	return n
}

// set gives the records of a name and type: "A 1.2.3.4" for the name itself, or whole records with an owner.
func (n *names) set(name string, qtype uint16, records ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rr[name+" "+dns.TypeToString[qtype]] = records
}

func (n *names) instead(with func(dns.ResponseWriter, *dns.Msg) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.with = with
}

func (n *names) count(name string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked[name]
}

func (n *names) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	name := strings.ToLower(q.Question[0].Name)
	n.mu.Lock()
	n.asked[name]++
	records, known := n.rr[name+" "+dns.TypeToString[q.Question[0].Qtype]]
	with := n.with
	n.mu.Unlock()
	if with != nil && with(w, q) {
		return
	}
	m := new(dns.Msg)
	m.SetReply(q)
	if !known {
		m.Rcode = dns.RcodeNameError
		soa, _ := dns.NewRR("example. 86400 IN SOA ns.example. host.example. 1 2 3 4 86400")
		m.Ns = append(m.Ns, soa)
	}
	for _, s := range records {
		rr, err := dns.NewRR(s)
		if err != nil || rr == nil {
			panic(fmt.Sprint(s, err))
		}
		m.Answer = append(m.Answer, rr)
	}
	if _, udp := w.RemoteAddr().(*net.UDPAddr); udp {
		size := dns.MinMsgSize
		if opt := q.IsEdns0(); opt != nil {
			size = int(opt.UDPSize())
		}
		m.Truncate(size)
	}
	_ = w.WriteMsg(m)
}

type admission struct {
	id    sandbox.ID
	addrs []netip.Addr
	port  uint16
	ttl   time.Duration
}

// world is a Resolver between sandboxes, at 127.0.0.2 and so on, and a name server.
type world struct {
	t    *testing.T
	up   *names
	r    *Resolver
	addr string
	conf string

	mu       sync.Mutex
	policies map[string]sandbox.NetworkPolicy // by address
	admitted []admission
	denied   []sandbox.Denial
	refuse   error // what Admit says
}

func sandboxID(last byte) sandbox.ID {
	return sandbox.ID("sb" + strings.Repeat("a", 19) + string('a'+rune(last)))
}

func newWorld(t *testing.T, change func(*Options)) *world {
	t.Helper()
	w := &world{t: t, up: newNames(t), policies: map[string]sandbox.NetworkPolicy{}, conf: filepath.Join(t.TempDir(), "resolv.conf")}
	require.NoError(t, os.WriteFile(w.conf, []byte("search corp.example lab\nnameserver 127.0.0.1\n"), 0o600))
	o := Options{
		Upstreams:  []netip.AddrPort{w.up.addr},
		ResolvConf: w.conf,
		Rate:       1000, Burst: 1000,
		Log: slog.New(slog.DiscardHandler),
		Platform: map[string]netip.Addr{
			"Sandgate.Example.": netip.MustParseAddr("10.9.9.9"),
		},
		Lookup: func(a netip.Addr) (sandbox.ID, sandbox.NetworkPolicy, bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			p, ok := w.policies[a.String()]
			return sandboxID(a.As4()[3]), p, ok
		},
		Admit: func(_ context.Context, id sandbox.ID, addrs []netip.Addr, port uint16, ttl time.Duration) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.admitted = append(w.admitted, admission{id, addrs, port, ttl})
			return w.refuse
		},
		OnDenied: func(_ sandbox.ID, d sandbox.Denial) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.denied = append(w.denied, d)
		},
	}
	if change != nil {
		change(&o)
	}
	r, err := New(o)
	require.NoError(t, err)
	w.r = r
	pc, ln := bothKinds(t, "127.0.0.1:0")
	w.addr = pc.LocalAddr().String()
	served := make(chan error, 1)
	go func() { served <- r.Serve(context.Background(), pc, ln) }()
	t.Cleanup(func() {
		r.Close()
		require.NoError(t, <-served)
	})
	w.policy("127.0.0.2", sandbox.NetworkPublic)
	w.policy("127.0.0.3", sandbox.NetworkAllowList, "ok.example:443", "*.ok.example", "two.example:80", "two.example:8080", "8.8.8.0/24")
	w.policy("127.0.0.4", sandbox.NetworkNone)
	return w
}

func (w *world) policy(addr string, mode sandbox.NetworkMode, allow ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.policies[addr] = sandbox.NetworkPolicy{Mode: mode, Allow: allow}
}

// ask asks from an address over udp or tcp; nil when there is no answer.
func (w *world) ask(from, network string, q *dns.Msg) *dns.Msg {
	w.t.Helper()
	d := net.Dialer{Timeout: 5 * time.Second}
	if network == "udp" {
		d.LocalAddr = &net.UDPAddr{IP: net.ParseIP(from)}
	} else {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	c := dns.Client{Net: network, Dialer: &d, Timeout: 5 * time.Second}
	m, _, err := c.Exchange(q, w.addr)
	require.NoError(w.t, err)
	return m
}

func question(name string, qtype uint16) *dns.Msg {
	q := new(dns.Msg)
	q.SetQuestion(dns.Fqdn(name), qtype)
	return q
}

// records gives the answer of m, one line each, as "TYPE data".
func records(m *dns.Msg) []string {
	out := []string{}
	for _, rr := range m.Answer {
		out = append(out, dns.TypeToString[rr.Header().Rrtype]+" "+strings.TrimPrefix(rr.String(), rr.Header().String()))
	}
	return out
}

// why waits until a refusal of name is told, and gives its word.
func (w *world) why(name string) string {
	w.t.Helper()
	word := ""
	require.Eventually(w.t, func() bool {
		w.r.denials.flush()
		w.mu.Lock()
		defer w.mu.Unlock()
		for i, d := range w.denied {
			if d.Destination == name {
				word = d.Why
				w.denied = append(w.denied[:i], w.denied[i+1:]...)
				return true
			}
		}
		return false
	}, 60*time.Second, time.Millisecond, name)
	return word
}

func exceptions(t *testing.T, s ...string) policy.Exceptions {
	t.Helper()
	es, err := policy.ParseExceptions(s)
	require.NoError(t, err)
	return es
}
