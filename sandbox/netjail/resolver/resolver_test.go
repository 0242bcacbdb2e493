package resolver

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"sandgate/sandbox"
)

func TestPublicNames(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Exceptions = exceptions(t, "10.7.7.7:443") })
	w.up.set("www.example.", dns.TypeA, "www.example. 86400 IN A 8.8.8.8", "www.example. 30 IN A 8.8.4.4", "other.example. 30 IN A 9.9.9.9")
	w.up.set("alias.example.", dns.TypeA, "alias.example. 30 IN CNAME www.example.", "www.example. 30 IN A 8.8.8.8")
	w.up.set("mixed.example.", dns.TypeA, "mixed.example. 30 IN A 10.0.0.1", "mixed.example. 30 IN A 8.8.8.8")
	w.up.set("opened.example.", dns.TypeA, "opened.example. 30 IN A 10.7.7.7")
	w.up.set("txt.example.", dns.TypeTXT, `txt.example. 30 IN TXT "hello"`)
	w.up.set("empty.example.", dns.TypeA)
	for _, network := range []string{"udp", "tcp"} {
		for _, c := range []struct {
			name  string
			qtype uint16
			rcode int
			want  []string
		}{
			{"www.example", dns.TypeA, dns.RcodeSuccess, []string{"A 8.8.8.8", "A 8.8.4.4"}},
			{"WwW.eXample", dns.TypeA, dns.RcodeSuccess, []string{"A 8.8.8.8", "A 8.8.4.4"}},
			{"alias.example", dns.TypeA, dns.RcodeSuccess, []string{"CNAME www.example.", "A 8.8.8.8"}},
			{"mixed.example", dns.TypeA, dns.RcodeSuccess, []string{"A 8.8.8.8"}},
			{"opened.example", dns.TypeA, dns.RcodeSuccess, []string{"A 10.7.7.7"}},
			{"txt.example", dns.TypeTXT, dns.RcodeSuccess, []string{`TXT "hello"`}},
			{"empty.example", dns.TypeA, dns.RcodeSuccess, []string{}},
			{"missing.example", dns.TypeA, dns.RcodeNameError, []string{}},
			{"www.example", dns.TypeAAAA, dns.RcodeSuccess, []string{}},
			{"sandgate.example", dns.TypeA, dns.RcodeSuccess, []string{"A 10.9.9.9"}},
			{"SANDGATE.example", dns.TypeAAAA, dns.RcodeSuccess, []string{}},
		} {
			m := w.ask("127.0.0.2", network, question(c.name, c.qtype))
			require.Equal(t, dns.RcodeToString[c.rcode], dns.RcodeToString[m.Rcode], "%s %s", c.name, network)
			require.Equal(t, c.want, records(m), c.name)
			require.Equal(t, dns.Fqdn(c.name), m.Question[0].Name, "as it was asked")
			require.True(t, m.RecursionAvailable)
			for _, rr := range append(m.Answer, m.Ns...) {
				require.LessOrEqual(t, rr.Header().Ttl, uint32(3600))
			}
		}
	}
	require.Zero(t, w.up.count("sandgate.example."), "our own name is nobody else's business")
	require.Empty(t, w.admitted, "public sandboxes need no admission")
}

func TestRefusedNames(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Exceptions = exceptions(t, "10.7.7.7:443") })
	w.up.set("lan.example.", dns.TypeA, "lan.example. 30 IN A 192.168.1.1", "lan.example. 30 IN A 10.0.0.1")
	w.up.set("meta.example.", dns.TypeA, "meta.example. 30 IN CNAME x.example.", "x.example. 30 IN A 169.254.169.254")
	w.up.set("leak.example.", dns.TypeTXT, "leak.example. 30 IN CNAME secret.corp.example.", `secret.corp.example. 30 IN TXT "inside"`)
	w.up.set("inner.example.", dns.TypeA, "inner.example. 30 IN CNAME db.internal.", "db.internal. 30 IN A 8.8.8.8")
	for _, name := range []string{"secret.corp.example.", "corp.example.", "host.lab.", "printer."} {
		w.up.set(name, dns.TypeA, name+" 30 IN A 8.8.8.8")
	}
	w.up.set("7.7.7.10.in-addr.arpa.", dns.TypePTR, "7.7.7.10.in-addr.arpa. 30 IN PTR opened.example.")
	w.up.set("8.8.8.8.in-addr.arpa.", dns.TypePTR, "8.8.8.8.in-addr.arpa. 30 IN PTR dns.example.")
	for _, c := range []struct {
		name  string
		qtype uint16
		why   string // "" for answered
		asked bool   // whether the name server may see the question
	}{
		{"lan.example", dns.TypeA, "private", true},
		{"meta.example", dns.TypeA, "metadata", true},
		{"leak.example", dns.TypeTXT, WhyLocalName, true},
		{"inner.example", dns.TypeA, WhyLocalName, true},
		{"secret.corp.example", dns.TypeA, WhyLocalName, false},
		{"Secret.CORP.example", dns.TypeA, WhyLocalName, false},
		{"corp.example", dns.TypeA, WhyLocalName, false},
		{"host.lab", dns.TypeA, WhyLocalName, false},
		{"printer", dns.TypeA, WhyLocalName, false},
		{"printer", dns.TypeAAAA, WhyLocalName, false},
		{"printer.local", dns.TypeA, WhyLocalName, false},
		{"_http._tcp.local", dns.TypePTR, WhyLocalName, false},
		{"metadata.google.internal", dns.TypeA, WhyLocalName, false},
		{"x.localdomain", dns.TypeA, WhyLocalName, false},
		{"localhost", dns.TypeA, WhyLocalName, false},
		{"1.0.0.10.in-addr.arpa", dns.TypePTR, WhyLocalName, false},
		{"10.in-addr.arpa", dns.TypeSOA, WhyLocalName, false},
		{"254.169.254.169.in-addr.arpa", dns.TypePTR, WhyLocalName, false},
		{"1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.ip6.arpa", dns.TypePTR, WhyLocalName, false},
		{"b._dns-sd._udp.0.1.168.192.in-addr.arpa", dns.TypePTR, WhyLocalName, false},
		{"7.7.7.10.in-addr.arpa", dns.TypePTR, "", true},
		{"8.8.8.8.in-addr.arpa", dns.TypePTR, "", true},
		{"www.example", dns.TypeANY, WhyUnsupported, false},
		{"www.example", dns.TypeAXFR, WhyUnsupported, false},
		{"www.example", dns.TypeNULL, WhyUnsupported, false},
		{"www.example", 65280, WhyUnsupported, false},
		{`evil\.corp.example`, dns.TypeA, WhyUnsupported, false},
		{`a\000b.example`, dns.TypeA, WhyUnsupported, false},
		{".", dns.TypeNS, WhyUnsupported, false},
	} {
		before := w.up.count(strings.ToLower(dns.Fqdn(c.name)))
		m := w.ask("127.0.0.2", "udp", question(c.name, c.qtype))
		if c.why == "" {
			require.Equal(t, "NOERROR", dns.RcodeToString[m.Rcode], c.name)
			require.NotEmpty(t, m.Answer, c.name)
			continue
		}
		require.Equal(t, "REFUSED", dns.RcodeToString[m.Rcode], c.name)
		require.Empty(t, m.Answer)
		require.Empty(t, m.Ns)
		require.Equal(t, c.why, w.why(strings.ToLower(strings.TrimSuffix(c.name, "."))), c.name)
		require.Equal(t, c.asked, w.up.count(strings.ToLower(dns.Fqdn(c.name))) > before, c.name)
	}

	q := question("www.example", dns.TypeA)
	q.Question[0].Qclass = dns.ClassCHAOS
	require.Equal(t, dns.RcodeRefused, w.ask("127.0.0.2", "udp", q).Rcode)
	q = question("www.example", dns.TypeA)
	q.Opcode = dns.OpcodeUpdate
	require.Equal(t, dns.RcodeNotImplemented, w.ask("127.0.0.2", "udp", q).Rcode)
	q = question("www.example", dns.TypeA)
	q.Question = append(q.Question, q.Question[0])
	require.Equal(t, dns.RcodeFormatError, w.ask("127.0.0.2", "udp", q).Rcode)
	q = question("www.example", dns.TypeA)
	q.SetEdns0(1232, false)
	q.IsEdns0().SetVersion(7)
	require.Equal(t, dns.RcodeBadVers, w.ask("127.0.0.2", "udp", q).Rcode)
	require.Zero(t, w.up.count("www.example."))
}

func TestAllowList(t *testing.T) {
	w := newWorld(t, nil)
	w.up.set("ok.example.", dns.TypeA, "ok.example. 5 IN A 8.8.8.8", "ok.example. 5 IN A 8.8.4.4", "ok.example. 5 IN A 10.1.1.1")
	w.up.set("a.b.ok.example.", dns.TypeA, "a.b.ok.example. 900 IN CNAME cdn.example.", "cdn.example. 600 IN A 9.9.9.9")
	w.up.set("two.example.", dns.TypeA, "two.example. 999999 IN A 7.7.7.7")
	w.up.set("a.b.ok.example.", dns.TypeHTTPS, `a.b.ok.example. 30 IN HTTPS 1 . alpn="h2" ipv4hint="9.9.9.9" ipv6hint="2001:db8::1"`)
	w.up.set("cdn.example.", dns.TypeA, "cdn.example. 600 IN A 9.9.9.9")

	m := w.ask("127.0.0.3", "udp", question("OK.example", dns.TypeA))
	require.Equal(t, []string{"A 8.8.8.8", "A 8.8.4.4"}, records(m))
	m = w.ask("127.0.0.3", "udp", question("a.b.ok.example", dns.TypeA))
	require.Equal(t, []string{"CNAME cdn.example.", "A 9.9.9.9"}, records(m))
	m = w.ask("127.0.0.3", "tcp", question("two.example", dns.TypeA))
	require.Equal(t, []string{"A 7.7.7.7"}, records(m))
	m = w.ask("127.0.0.3", "udp", question("sandgate.example", dns.TypeA))
	require.Equal(t, []string{"A 10.9.9.9"}, records(m))
	m = w.ask("127.0.0.3", "udp", question("a.b.ok.example", dns.TypeHTTPS))
	require.Equal(t, []string{`HTTPS 1 . alpn="h2"`}, records(m), "hints were not admitted")
	m = w.ask("127.0.0.3", "udp", question("ok.example", dns.TypeAAAA))
	require.Equal(t, dns.RcodeSuccess, m.Rcode)
	require.Empty(t, m.Answer)

	id := sandboxID(3)
	a := netip.MustParseAddr
	require.Equal(t, []admission{
		{id, []netip.Addr{a("8.8.4.4"), a("8.8.8.8")}, 443, 90 * time.Second},
		{id, []netip.Addr{a("9.9.9.9")}, 0, 930 * time.Second},
		{id, []netip.Addr{a("7.7.7.7")}, 80, time.Hour + 30*time.Second},
		{id, []netip.Addr{a("7.7.7.7")}, 8080, time.Hour + 30*time.Second},
	}, w.admitted)

	for _, name := range []string{"cdn.example", "example", "notok.example", "ok.example.evil.example", "8.8.8.8.in-addr.arpa", `x\.ok.example`} {
		m = w.ask("127.0.0.3", "udp", question(name, dns.TypeA))
		require.Equal(t, "REFUSED", dns.RcodeToString[m.Rcode], name)
		require.Contains(t, []string{WhyNotOnList, WhyLocalName, WhyUnsupported}, w.why(name))
		require.Zero(t, w.up.count(dns.Fqdn(name)))
	}

	w.policy("127.0.0.3", sandbox.NetworkAllowList, "cdn.example")
	require.Equal(t, []string{"A 9.9.9.9"}, records(w.ask("127.0.0.3", "udp", question("cdn.example", dns.TypeA))), "the list may change")
	require.Equal(t, dns.RcodeRefused, w.ask("127.0.0.3", "udp", question("two.example", dns.TypeA)).Rcode)

	w.mu.Lock()
	w.refuse = errors.New("the filter is full")
	w.mu.Unlock()
	m = w.ask("127.0.0.3", "udp", question("cdn.example", dns.TypeA))
	require.Equal(t, dns.RcodeServerFailure, m.Rcode, "no address that cannot be reached")
	require.Empty(t, m.Answer)
	require.Equal(t, WhyNotAdmitted, w.why("cdn.example"))
}

func TestNoNetworkNoAnswers(t *testing.T) {
	w := newWorld(t, nil)
	w.up.set("www.example.", dns.TypeA, "www.example. 30 IN A 8.8.8.8")
	for _, name := range []string{"www.example", "sandgate.example", "printer.local"} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeTXT} {
			m := w.ask("127.0.0.4", "udp", question(name, qtype))
			require.Equal(t, "REFUSED", dns.RcodeToString[m.Rcode], name)
			require.Equal(t, WhyNoNetwork, w.why(name))
		}
	}
	require.Zero(t, w.up.count("www.example."))
	w.policy("127.0.0.5", "unheard-of")
	require.Equal(t, dns.RcodeRefused, w.ask("127.0.0.5", "udp", question("www.example", dns.TypeA)).Rcode)
}

func TestServiceRecordsLoseHiddenAddresses(t *testing.T) {
	w := newWorld(t, nil)
	w.up.set("a.example.", dns.TypeHTTPS, `a.example. 30 IN HTTPS 1 . alpn="h2" ipv4hint="10.0.0.1,8.8.8.8" ipv6hint="fd00::1"`)
	w.up.set("b.example.", dns.TypeHTTPS, `b.example. 30 IN HTTPS 1 . ipv4hint="10.0.0.1"`)
	w.up.set("c.example.", dns.TypeSVCB, `c.example. 30 IN SVCB 1 . mandatory="ipv4hint" ipv4hint="10.0.0.1"`)
	require.Equal(t, []string{`HTTPS 1 . alpn="h2" ipv4hint="8.8.8.8"`}, records(w.ask("127.0.0.2", "udp", question("a.example", dns.TypeHTTPS))))
	require.Equal(t, []string{`HTTPS 1 .`}, records(w.ask("127.0.0.2", "udp", question("b.example", dns.TypeHTTPS))))
	require.Equal(t, []string{}, records(w.ask("127.0.0.2", "udp", question("c.example", dns.TypeSVCB))))
}

func TestLongAnswersGoOverTCP(t *testing.T) {
	w := newWorld(t, nil)
	var long []string
	for range 40 {
		long = append(long, `long.example. 30 IN TXT "`+strings.Repeat("x", 200)+`"`)
	}
	w.up.set("long.example.", dns.TypeTXT, long...)
	q := question("long.example", dns.TypeTXT)
	q.SetEdns0(4096, false)
	m := w.ask("127.0.0.2", "udp", q)
	require.True(t, m.Truncated)
	require.LessOrEqual(t, m.Len(), udpSize)
	m = w.ask("127.0.0.2", "udp", question("long.example", dns.TypeTXT))
	require.LessOrEqual(t, m.Len(), 512)
	m = w.ask("127.0.0.2", "tcp", question("long.example", dns.TypeTXT))
	require.False(t, m.Truncated)
	require.Len(t, m.Answer, 40)
}

func TestStrangersGetSilence(t *testing.T) {
	w := newWorld(t, nil)
	w.up.set("www.example.", dns.TypeA, "www.example. 30 IN A 8.8.8.8")
	conn, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP("127.0.0.77")}, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(w.addr)))
	require.NoError(t, err)
	defer conn.Close()
	known, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP("127.0.0.2")}, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(w.addr)))
	require.NoError(t, err)
	defer known.Close()
	packet, err := question("www.example", dns.TypeA).Pack()
	require.NoError(t, err)
	answer := append([]byte(nil), packet...)
	answer[2] |= 0x80
	for _, p := range [][]byte{packet, packet[:5], {}} {
		_, _ = conn.Write(p)
	}
	for _, p := range [][]byte{answer, packet[:5], {}, make([]byte, maxQuery+1)} { // none of these is a question
		_, _ = known.Write(p)
	}
	_, err = known.Write(packet) // the loop reads in order: what comes back after this is all that comes
	require.NoError(t, err)
	buf := make([]byte, 4096)
	require.NoError(t, known.SetReadDeadline(time.Now().Add(10*time.Second)))
	n, err := known.Read(buf)
	require.NoError(t, err)
	m := new(dns.Msg)
	require.NoError(t, m.Unpack(buf[:n]))
	require.Equal(t, []string{"A 8.8.8.8"}, records(m))
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Millisecond)))
	_, err = conn.Read(buf)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)

	tcp := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.77")}, Timeout: 5 * time.Second}
	c, err := tcp.Dial("tcp", w.addr)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err = c.Read(buf)
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "closed at once")
}
