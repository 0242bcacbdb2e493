package resolver

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"sandgate/sandbox"
)

func TestAFloodIsRefusedAndCounted(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Rate, o.Burst = 0.001, 3 })
	w.up.set("www.example.", dns.TypeA, "www.example. 30 IN A 8.8.8.8")
	w.policy("127.0.0.6", sandbox.NetworkPublic)
	for range 3 {
		require.Equal(t, dns.RcodeSuccess, w.ask("127.0.0.2", "udp", question("www.example", dns.TypeA)).Rcode)
	}
	for range 3 {
		m := w.ask("127.0.0.2", "udp", question("www.example", dns.TypeA))
		require.Equal(t, dns.RcodeRefused, m.Rcode, "an answer, not a time-out")
		require.Equal(t, "www.example.", m.Question[0].Name)
	}
	require.Equal(t, dns.RcodeRefused, w.ask("127.0.0.2", "tcp", question("www.example", dns.TypeA)).Rcode)
	require.Equal(t, dns.RcodeSuccess, w.ask("127.0.0.6", "udp", question("www.example", dns.TypeA)).Rcode, "a neighbour has its own rate")
	require.Equal(t, WhyTooMany, w.why(otherNames))
	require.Equal(t, 4, w.up.count("www.example."))
}

func TestASlowNameHoldsUpNobody(t *testing.T) {
	w := newWorld(t, nil)
	release := make(chan struct{})
	defer close(release)
	w.up.set("fast.example.", dns.TypeA, "fast.example. 30 IN A 8.8.8.8")
	w.up.instead(func(_ dns.ResponseWriter, q *dns.Msg) bool {
		if q.Question[0].Name == "slow.example." {
			<-release
			return true
		}
		return false
	})
	w.policy("127.0.0.6", sandbox.NetworkPublic)
	conn, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP("127.0.0.2")}, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(w.addr)))
	require.NoError(t, err)
	defer conn.Close()
	slow, err := question("slow.example", dns.TypeA).Pack()
	require.NoError(t, err)
	for range 3 * maxInFlight {
		_, err = conn.Write(slow)
		require.NoError(t, err)
	}
	buf := make([]byte, 512)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
	n, err := conn.Read(buf)
	require.NoError(t, err)
	m := new(dns.Msg)
	require.NoError(t, m.Unpack(buf[:n]))
	require.Equal(t, dns.RcodeServerFailure, m.Rcode, "what is too much is answered at once")

	began := time.Now()
	require.Equal(t, []string{"A 8.8.8.8"}, records(w.ask("127.0.0.6", "udp", question("fast.example", dns.TypeA))))
	require.Less(t, time.Since(began), waitOne, "the neighbour did not wait for a slow name")
}

func TestServersAreTriedInTurn(t *testing.T) {
	bad := newNames(t)
	var how atomic.Value
	bad.instead(func(w dns.ResponseWriter, q *dns.Msg) bool {
		m := new(dns.Msg)
		m.SetReply(q)
		rr, _ := dns.NewRR("www.example. 30 IN A 6.6.6.6")
		m.Answer = append(m.Answer, rr)
		switch how.Load() {
		case "other question":
			m.Question[0].Name = "evil.example."
		case "other type":
			m.Question[0].Qtype = dns.TypeTXT
		case "no question":
			m.Question = nil
		case "a question":
			m.Response = false
		case "refused":
			m.Rcode = dns.RcodeRefused
		case "failed":
			m.Rcode = dns.RcodeServerFailure
		}
		_ = w.WriteMsg(m)
		return true
	})
	w := newWorld(t, nil)
	w.up.set("www.example.", dns.TypeA, "www.example. 30 IN A 8.8.8.8")
	for _, wrong := range []string{"other question", "other type", "no question", "a question", "refused", "failed"} {
		how.Store(wrong)
		u := newUpstreams([]netip.AddrPort{bad.addr, w.up.addr}, w.conf, w.r.log)
		q := question("www.example", dns.TypeA)
		m, err := u.exchange(context.Background(), q)
		require.NoError(t, err, wrong)
		require.Equal(t, []string{"A 8.8.8.8"}, records(m), wrong)
		_, _, first := u.now()
		require.Equal(t, 1, first, "the one that answers is asked first from now on")

		u = newUpstreams([]netip.AddrPort{bad.addr}, w.conf, w.r.log)
		_, err = u.exchange(context.Background(), q)
		require.Error(t, err, wrong)
	}
}

func TestTheHostsConfigurationIsReadAgain(t *testing.T) {
	w := newWorld(t, nil)
	u := newUpstreams(nil, w.conf, w.r.log)
	servers, search, _ := u.now()
	require.Equal(t, []string{"127.0.0.1:53"}, servers)
	require.Equal(t, []string{"corp.example", "lab"}, search)

	reread := func(text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(w.conf+".new", []byte(text), 0o600))
		require.NoError(t, os.Rename(w.conf+".new", w.conf))
		u.checked = time.Time{}
	}
	reread("nameserver 192.0.2.1\nnameserver fe80::1%eth0\nsearch Home.Example. .\n")
	servers, search, _ = u.now()
	require.Equal(t, []string{"192.0.2.1:53", "[fe80::1%eth0]:53"}, servers)
	require.Equal(t, []string{"home.example"}, search)

	reread("")
	servers, _, _ = u.now()
	require.Empty(t, servers)
	_, err := u.exchange(context.Background(), question("www.example", dns.TypeA))
	require.ErrorIs(t, err, errNoServer)

	reread("nameserver 192.0.2.9\n")
	_, _, _ = u.now()
	require.NoError(t, os.Remove(w.conf))
	u.checked = time.Time{}
	servers, _, _ = u.now()
	require.Equal(t, []string{"192.0.2.9:53"}, servers, "what it said before holds")
}

func readOne(t *testing.T, c net.Conn) {
	t.Helper()
	var size [2]byte
	_, err := io.ReadFull(c, size[:])
	require.NoError(t, err)
	_, err = io.ReadFull(c, make([]byte, binary.BigEndian.Uint16(size[:])))
	require.NoError(t, err)
}

func TestConnectionsAreFew(t *testing.T) {
	w := newWorld(t, nil)
	w.up.set("www.example.", dns.TypeA, "www.example. 30 IN A 8.8.8.8")
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.2")}, Timeout: 5 * time.Second}
	packet, err := question("www.example", dns.TypeA).Pack()
	require.NoError(t, err)
	framed := append(binary.BigEndian.AppendUint16(nil, uint16(len(packet))), packet...)

	var open []net.Conn
	for range maxConns {
		c, err := d.Dial("tcp", w.addr)
		require.NoError(t, err)
		defer c.Close()
		open = append(open, c)
		_, err = c.Write(framed)
		require.NoError(t, err)
		require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
		readOne(t, c)
	}
	more, err := d.Dial("tcp", w.addr)
	require.NoError(t, err)
	defer more.Close()
	require.NoError(t, more.SetDeadline(time.Now().Add(10*time.Second)))
	_, err = more.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "one too many is closed at once")

	// Many at once on one connection are answered in order, as many as one connection may have.
	go func() {
		for range 2 * maxPerConn {
			if _, err := open[0].Write(framed); err != nil {
				return
			}
		}
	}()
	require.NoError(t, open[0].SetDeadline(time.Now().Add(30*time.Second)))
	answers := 1
	var size [2]byte
	for {
		if _, err := io.ReadFull(open[0], size[:]); err != nil {
			break
		}
		if _, err := io.ReadFull(open[0], make([]byte, binary.BigEndian.Uint16(size[:]))); err != nil {
			break
		}
		answers++
	}
	require.LessOrEqual(t, answers, maxPerConn)
	require.Greater(t, answers, 1)

	_, err = open[1].Write([]byte{0xff, 0xff}) // a question of 65,535 bytes
	require.NoError(t, err)
	require.NoError(t, open[1].SetDeadline(time.Now().Add(10*time.Second)))
	_, err = open[1].Read(size[:])
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
}

func TestManyNamesAreToldInFew(t *testing.T) {
	var told []sandbox.Denial
	d := newDenials(func(_ sandbox.ID, one sandbox.Denial) { told = append(told, one) })
	for i := range 5000 {
		d.add(sandboxID(1), string(rune('a'+i%26))+string(rune('a'+i/26%26))+".example", WhyNotOnList)
	}
	d.flush()
	require.LessOrEqual(t, len(told), maxNames+1)
	var sum int64
	for _, one := range told {
		sum += one.Count
		require.Equal(t, "dns", one.Protocol)
		require.False(t, one.At.IsZero())
	}
	require.EqualValues(t, 5000, sum)
	told = nil
	d.flush()
	require.Empty(t, told)
}

func FuzzAnswer(f *testing.F) {
	for _, q := range []*dns.Msg{question("www.example", dns.TypeA), question("x.ok.example", dns.TypeHTTPS), question("printer.local", dns.TypeANY)} {
		q.SetEdns0(1232, true)
		p, _ := q.Pack()
		f.Add(p)
	}
	f.Add([]byte("\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01"))
	pol := sandbox.NetworkPolicy{Mode: sandbox.NetworkPublic}
	r, err := New(Options{
		Lookup:     func(netip.Addr) (sandbox.ID, sandbox.NetworkPolicy, bool) { return sandboxID(1), pol, true },
		Upstreams:  []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")},
		ResolvConf: "/dev/null",
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(r.Close)
	r.up.one = func(_ context.Context, _ string, q *dns.Msg, _ string) (*dns.Msg, error) {
		m := new(dns.Msg)
		m.SetReply(q)
		for _, s := range []string{" 30 IN A 10.0.0.1", " 30 IN A 8.8.8.8", ` 30 IN HTTPS 1 . ipv4hint="10.0.0.1"`, " 30 IN CNAME other.example."} {
			if rr, err := dns.NewRR(q.Question[0].Name + s); err == nil && rr != nil {
				m.Answer = append(m.Answer, rr)
			}
		}
		return m, nil
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		if !isQuestion(p) {
			return
		}
		for _, tcp := range []bool{true, false} {
			out := r.answer(context.Background(), netip.MustParseAddr("127.0.0.1"), p, tcp)
			if out == nil {
				t.Fatalf("no answer to %x", p)
			}
			if !tcp && len(out) > max(udpSize, len(p)) {
				t.Fatalf("%d bytes in one packet", len(out))
			}
			m := new(dns.Msg)
			if err := m.Unpack(out); err != nil || !m.Response {
				if len(out) > headerLen && len(out) == questionEnd(p) {
					continue // a bare answer repeats the question as it came
				}
				t.Fatalf("a bad answer to %x: %x: %v", p, out, err)
			}
			for _, rr := range m.Answer {
				if a, ok := rr.(*dns.A); ok && a.A.String() == "10.0.0.1" {
					t.Fatal("a private address got through")
				}
			}
		}
	})
}
