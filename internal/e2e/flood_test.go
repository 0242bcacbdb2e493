package e2e

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"sandgate/internal/testenv"
	"sandgate/sandbox/netjail"
)

// publicSite is a host of the world that answers; those of publicVoid answer nothing.
const (
	publicSite = "8.8.4.4"
	publicVoid = "1.1.1."
)

// storm is a siege by the network: a world beyond the host, whose site the neighbour goes on reading by its name.
type storm struct {
	*siege
	asked atomic.Int64 // questions that reached the host's name server
}

func newStorm(t *testing.T) *storm {
	t.Helper()
	w := newWorld(t)
	w.ip("-n", w.name, "addr", "add", publicSite+"/32", "dev", "lo")
	w.ip("-n", w.name, "route", "add", "default", "via", "9.8.7.2") // it knows the way back
	serveSite(t, "/run/netns/"+w.name)
	s := &storm{}
	answerNames(t, func(q *dns.Msg) *dns.Msg {
		s.asked.Add(1)
		m := new(dns.Msg)
		m.SetReply(q)
		if q.Question[0].Qtype == dns.TypeA {
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: net.ParseIP(publicSite)}}
		}
		return m
	})
	s.siege = besiege(t, 25, errand{"curl -sS --max-time 10 http://site.example.org/; echo $((6*7))", "hello\n42\n", "/sign-in"})
	return s
}

// serveSite answers TCP at port 80, and swallows datagrams at port 9.
func serveSite(t *testing.T, namespace string) {
	t.Helper()
	l, err := testenv.ListenWithin(namespace, publicSite+":80")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				_, _ = c.Read(make([]byte, 1000))
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhello\n")
			}()
		}
	}()
	require.NoError(t, testenv.Within(namespace, func() error {
		p, err := net.ListenPacket("udp4", publicSite+":9")
		if err == nil {
			t.Cleanup(func() { _ = p.Close() }) // nobody reads: its queue is full soon
		}
		return err
	}))
}

// link gives the counters of a link of the host.
func (s *storm) link(t *testing.T, name string) netlink.LinkStatistics {
	t.Helper()
	l, err := netlink.LinkByName(name)
	require.NoError(t, err)
	return *l.Attrs().Statistics
}

// linkOf is the host's end of a sandbox's pair.
func (s *storm) linkOf(id string) string { return "sg" + s.mark + id[2:11] }

// connections counts what the host tracks, by the sandbox that it comes from.
func connections(t *testing.T) map[netip.Addr]int {
	t.Helper()
	all, err := netlink.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
	require.NoError(t, err)
	out := map[netip.Addr]int{}
	for _, f := range all {
		if from, ok := netip.AddrFromSlice(f.Forward.SrcIP.To4()); ok && netjail.DefaultPool.Contains(from) {
			out[from]++
		}
	}
	return out
}

func addressOf(t *testing.T, s *siege, id string) netip.Addr {
	t.Helper()
	const own = `python3 -c 'import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(("8.8.4.4", 9)); print(s.getsockname()[0])'`
	return netip.MustParseAddr(strings.TrimSpace(rest{t: t, url: s.api.url, key: s.api.key}.exec(id, own).Stdout))
}

// tracked says how many connections of a sandbox the host tracks, and requires that they are few: those that it may have at
// once, and those that ended in the last five seconds, at the rate of new ones.
func tracked(t *testing.T, address netip.Addr) int {
	t.Helper()
	n, l := connections(t)[address], netjail.DefaultLimits
	require.LessOrEqual(t, n, l.Connections+2*l.NewPerSecond+6*l.NewPerSecond, "of one sandbox")
	return n
}

// denied gives the lines of the record about what a sandbox was denied, as the database has them.
func (s *storm) denied(t *testing.T, id string) []string {
	t.Helper()
	const read = `import sqlite3, sys
for row in sqlite3.connect("file:" + sys.argv[1] + "?mode=ro", uri=True).execute(
    "SELECT target, detail FROM audit_events WHERE action = 'network.denied' AND sandbox_id = ?", (sys.argv[2],)): print(*row)`
	out, err := exec.Command("python3", "-c", read, filepath.Join(s.data, "sandgate.db"), id).Output()
	require.NoError(t, err)
	return slices.Collect(strings.Lines(string(out)))
}

// logged counts the bytes of the server's log, without the lines about requests, which are the test's own.
func (s *storm) logged(t *testing.T) (n int) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(s.data, "server.log"))
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		if !strings.Contains(line, "msg=request ") {
			n += len(line)
		}
	}
	return n
}

// floods are what a sandbox can do to the network; each goes on while it is killed. seconds: how long before that.
func (s *storm) floods(seconds int) []attack {
	goOn := func(program string) string { // in the background, until the sandbox is killed
		return fmt.Sprintf("cat >/tmp/flood.py <<'EOF'\n%s\nEOF\nfor k in 1 2 3; do setsid python3 /tmp/flood.py $k >/tmp/said$k 2>&1 </dev/null & done; sleep %d; cat /tmp/said*", program, seconds)
	}
	var began time.Time
	var wire, asked uint64
	var logged int
	list := []attack{
		{
			name: "tiny packets", command: goOn(tinyPackets), resources: map[string]any{"cpu": 2},
			after: func(t *testing.T, _ *siege, id string) {
				took := time.Since(began).Seconds()
				offered, passed := s.link(t, s.linkOf(id)).RxPackets, s.link(t, "uplink").TxPackets-wire
				n := tracked(t, addressOf(t, s.siege, id))
				t.Logf("in %.1f s it sent %d packets (%.0f/s), of which %d (%.0f/s) went out; %d connections are tracked", took, offered, float64(offered)/took, passed, float64(passed)/took, n)
				require.Greater(t, offered, uint64(5000), "it is a flood")
				require.GreaterOrEqual(t, float64(passed), min(float64(offered), float64(netjail.DefaultLimits.PacketsPerSecond)*took)/2, "what is one connection may go on")
				require.LessOrEqual(t, float64(passed), float64(netjail.DefaultLimits.PacketsPerSecond)*(took+1.5), "packets a second")
			},
		},
		{
			name: "half-open connections", command: goOn(halfOpen),
			after: func(t *testing.T, _ *siege, id string) {
				at, most := addressOf(t, s.siege, id), netjail.DefaultLimits.Connections
				require.Eventually(t, func() bool { return connections(t)[at] > most*9/10 }, answersWithin, 200*time.Millisecond, "it has all that it may have")
				t.Logf("of all sandboxes are tracked: %v", connections(t))
				require.LessOrEqual(t, connections(t)[at], most+8)
				require.Contains(t, strings.Join(s.denied(t, id), "\n"), "1.1.1.")
			},
		},
		{
			name: "flood of questions", command: goOn(questions),
			after: func(t *testing.T, _ *siege, id string) {
				took := time.Since(began).Seconds()
				reached, n := s.asked.Load()-int64(asked), tracked(t, addressOf(t, s.siege, id))
				sent := s.link(t, s.linkOf(id)).RxPackets
				t.Logf("in %.1f s it sent %d packets; %d questions reached the name server, of the neighbour's too; %d connections are tracked", took, sent, reached, n)
				require.Greater(t, sent, uint64(5000), "it is a flood")
				require.LessOrEqual(t, float64(reached), 100+2*50*(took+1), "50 a second of each, and their first 100")
				require.Contains(t, strings.Join(s.denied(t, id), "\n"), "too many queries")
			},
		},
		{
			name: "flood of what is denied", command: goOn(denials),
			after: func(t *testing.T, _ *siege, id string) {
				took := time.Since(began)
				rows, grown, sent := s.denied(t, id), s.logged(t)-logged, s.link(t, s.linkOf(id)).RxPackets
				t.Logf("in %s it sent %d packets: %d lines on the record, %d bytes in the server's log, %d connections are tracked", took.Round(time.Millisecond), sent, len(rows), grown, tracked(t, addressOf(t, s.siege, id)))
				require.Greater(t, sent, uint64(5000), "it is a flood")
				require.NotEmpty(t, rows)
				require.LessOrEqual(t, len(rows), 30*(1+int(took/time.Minute)), "lines on the record a minute")
				require.Less(t, grown, 64<<10)
				require.Zero(t, tracked(t, addressOf(t, s.siege, id)), "what is denied is not tracked")
			},
		},
	}
	for i := range list {
		list[i].timeout, list[i].survives = seconds+30, true
		list[i].begin = func(t *testing.T) {
			began, wire, asked, logged = time.Now(), s.link(t, "uplink").TxPackets, uint64(s.asked.Load()), s.logged(t)
		}
	}
	return list
}

// Whatever a sandbox does to the network: its neighbour runs commands and reaches the world by name, the server answers, what
// the host tracks and writes down stays bounded, and it is killed at once in the middle of it, with nothing left.
func TestFloodsEndInside(t *testing.T) {
	s := newStorm(t)
	for _, a := range s.floods(3) {
		t.Run(a.name, func(t *testing.T) { a.run(t, s.siege) })
	}
	require.Eventually(t, func() bool { return len(connections(t)) <= 1 }, answersWithin, 100*time.Millisecond, "nothing is tracked of who was killed")
}

// tinyPackets sends datagrams of one byte in batches, as fast as it can.
const tinyPackets = `import ctypes, socket
libc = ctypes.CDLL(None, use_errno=True)
P, U, Z = ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t
class iovec(ctypes.Structure): _fields_ = [("base", P), ("len", Z)]
class msg(ctypes.Structure): _fields_ = [("name", P), ("namelen", U), ("iov", ctypes.POINTER(iovec)), ("iovlen", Z), ("control", P), ("controllen", Z), ("flags", ctypes.c_int), ("sent", U)]
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(("8.8.4.4", 9))
one = ctypes.create_string_buffer(b"x", 1)
vec = iovec(ctypes.cast(one, P), 1)
all = (msg * 512)()
for m in all: m.iov, m.iovlen = ctypes.pointer(vec), 1
while True: libc.sendmmsg(s.fileno(), all, 512, 0)`

// halfOpen asks hosts that never answer for 10,000 connections, and goes on asking for those that it was refused.
const halfOpen = `import errno, resource, select, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))
held = {}
n = int(sys.argv[1]) * 1000000
while True:
    while len(held) < 3400:
        s = socket.socket(); s.setblocking(False)
        n += 1
        s.connect_ex(("1.1.1.%d" % (n % 250), 1 + n % 60000))
        held[s.fileno()] = s
    poll = select.poll()
    for fd in held: poll.register(fd, select.POLLOUT)
    for fd, _ in poll.poll(100): held.pop(fd).close()`

// questions asks for ever new names, by UDP and by TCP.
const questions = `import os, random, socket, struct, sys
gate = [l.split()[1] for l in open("/etc/resolv.conf") if l.startswith("nameserver")][0]
head = struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0)
tail = b"\x07example\x03org\x00\x00\x01\x00\x01"
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect((gate, 53)); s.setblocking(False)
held, n = [], 0
while True:
    n += 1
    q = head + b"\x0a" + (b"%s%09d" % (sys.argv[1].encode(), n)) + tail
    try: s.send(q)
    except OSError: pass
    if n % 50 == 0:
        t = socket.socket(); t.setblocking(False); t.connect_ex((gate, 53)); held.append(t)
        try: held[len(held) // 2].send(struct.pack(">H", len(q)) + q)
        except OSError: pass
        if len(held) > 500: held.pop(0).close()`

// denials tries the private network, the host and the neighbours, address by address, by TCP and UDP.
const denials = `import socket, sys
n = int(sys.argv[1]) * 1000000
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.setblocking(False)
while True:
    n += 1
    for to in ("10.%d.%d.%d", "192.168.%d.%d", "169.254.%d.%d", "10.213.%d.%d"):
        k = to.count("%")
        at = (to % tuple(n >> 8 * i & 255 for i in range(k)), 1 + n % 60000)
        try: u.sendto(b"x", at)
        except OSError: pass
        if n % 4 == 0:
            t = socket.socket(); t.setblocking(False); t.connect_ex(at); t.close()`
