package resolver

import (
	"context"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"

	"sandgate/sandbox"
	"sandgate/sandbox/netjail/policy"
	"sandgate/sandbox/netjail/prefix"
)

// asked lists the types that are answered. What is not here is asked by no program that a sandbox needs, or holds
// addresses in a form that nobody looks into here.
var asked = map[uint16]bool{
	dns.TypeA: true, dns.TypeAAAA: true, dns.TypeCNAME: true, dns.TypeNS: true, dns.TypeSOA: true, dns.TypePTR: true,
	dns.TypeMX: true, dns.TypeTXT: true, dns.TypeSRV: true, dns.TypeNAPTR: true, dns.TypeCAA: true, dns.TypeSVCB: true,
	dns.TypeHTTPS: true, dns.TypeDS: true, dns.TypeDNSKEY: true, dns.TypeTLSA: true, dns.TypeSSHFP: true, dns.TypeURI: true,
	dns.TypeSPF: true, dns.TypeDNAME: true,
}

// answer gives the packet for a question that came from addr, nil for silence. Policy is looked up again: it may have
// changed while the question waited for its turn.
func (r *Resolver) answer(ctx context.Context, addr netip.Addr, packet []byte, tcp bool) (out []byte) {
	defer func() {
		if p := recover(); p != nil { // the parser meets hostile bytes: it may not take the server with it
			r.log.Error("answering a name panicked", "panic", p)
			out = nil
		}
	}()
	id, pol, ok := r.o.Lookup(addr)
	if !ok {
		return nil
	}
	if code := malformed(packet); code != 0 {
		return bare(packet, code)
	}
	q := new(dns.Msg)
	if err := q.Unpack(packet); err != nil || len(q.Question) != 1 {
		return bare(packet, dns.RcodeFormatError)
	}
	opt := q.IsEdns0()
	if len(q.Extra) > 0 && opt == nil {
		return bare(packet, dns.RcodeRefused) // signed, or stranger things
	}
	m := r.reply(ctx, id, pol, q)
	size := dns.MinMsgSize
	if opt != nil {
		size = min(max(int(opt.UDPSize()), dns.MinMsgSize), udpSize)
		m.SetEdns0(udpSize, opt.Do())
	}
	if tcp {
		size = dns.MaxMsgSize
	}
	m.Compress = true
	m.Truncate(size)
	out, err := m.Pack()
	if err != nil {
		r.log.Debug("an answer could not be packed", "cause", err)
		return bare(packet, dns.RcodeServerFailure)
	}
	return out
}

// malformed looks at the header alone, before anything is unpacked: 0, or the code to answer.
func malformed(p []byte) int {
	count := func(i int) int { return int(p[i])<<8 | int(p[i+1]) }
	switch {
	case p[2]>>3&0x0f != dns.OpcodeQuery:
		return dns.RcodeNotImplemented
	case count(4) != 1, count(6) != 0, count(8) != 0, count(10) > 1, p[2]&0x02 != 0:
		return dns.RcodeFormatError
	}
	return 0
}

// reply judges a question and answers it.
func (r *Resolver) reply(ctx context.Context, id sandbox.ID, pol sandbox.NetworkPolicy, q *dns.Msg) *dns.Msg {
	m := new(dns.Msg)
	m.SetReply(q)
	m.RecursionAvailable = true
	ask := q.Question[0]
	name := strings.ToLower(strings.TrimSuffix(ask.Name, "."))
	deny := func(why string) *dns.Msg {
		r.denials.add(id, name, why)
		m.Rcode = dns.RcodeRefused
		m.Answer, m.Ns = nil, nil
		return m
	}
	if opt := q.IsEdns0(); opt != nil && opt.Version() != 0 {
		m.Rcode = dns.RcodeBadVers
		return m
	}
	if pol.Mode != sandbox.NetworkPublic && pol.Mode != sandbox.NetworkAllowList {
		return deny(WhyNoNetwork)
	}
	if ask.Qclass != dns.ClassINET || !asked[ask.Qtype] || !policy.Plain(name) {
		return deny(WhyUnsupported)
	}
	if addr, ok := r.platform[name]; ok {
		if ask.Qtype == dns.TypeA {
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: ask.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: addr.AsSlice()}}
		}
		return m
	}
	if r.local(name) {
		return deny(WhyLocalName)
	}
	var ports []uint16
	if pol.Mode == sandbox.NetworkAllowList {
		if ports = policy.Ports(pol.Allow, name); len(ports) == 0 {
			return deny(WhyNotOnList)
		}
	}
	if ask.Qtype == dns.TypeAAAA { // IPv6 is off inside: programs go on with IPv4 at once
		return m
	}
	up := new(dns.Msg)
	up.SetQuestion(ask.Name, ask.Qtype)
	up.CheckingDisabled = q.CheckingDisabled
	up.SetEdns0(udpSize, q.IsEdns0() != nil && q.IsEdns0().Do())
	got, err := r.up.exchange(ctx, up)
	if err != nil {
		m.Rcode = dns.RcodeServerFailure
		return m
	}
	c := cleaning{r: r, listed: pol.Mode == sandbox.NetworkAllowList}
	answer, addrs, why := c.clean(ask, got.Answer)
	if why != "" {
		return deny(why)
	}
	if len(ports) > 0 && len(addrs) > 0 {
		if err := r.admit(ctx, id, addrs, ports, answer); err != nil {
			r.log.Warn("addresses of an allowed name could not be opened", "sandbox", id, "cause", err)
			r.denials.add(id, name, WhyNotAdmitted)
			m.Rcode = dns.RcodeServerFailure
			return m
		}
	}
	m.Rcode = got.Rcode
	m.AuthenticatedData = got.AuthenticatedData && (q.AuthenticatedData || q.IsEdns0() != nil && q.IsEdns0().Do())
	m.Answer = answer
	if len(answer) == 0 {
		for _, rr := range got.Ns {
			if soa, ok := rr.(*dns.SOA); ok { // how long there is no such name
				m.Ns = []dns.RR{bounded(soa)}
				break
			}
		}
	}
	return m
}

// local says whether name belongs to the host's own network.
func (r *Resolver) local(name string) bool {
	if policy.Local(name) {
		return true
	}
	if why := reverseDenied(name); why != "" && !r.reverseOpen(name) {
		return true
	}
	_, search, _ := r.up.now()
	return slices.ContainsFunc(search, func(s string) bool { return policy.Within(name, s) })
}

// admit opens addrs at each port for as long as the answer lives, and a little.
func (r *Resolver) admit(ctx context.Context, id sandbox.ID, addrs []netip.Addr, ports []uint16, answer []dns.RR) error {
	if r.o.Admit == nil {
		return nil
	}
	ttl := time.Duration(0)
	for _, rr := range answer {
		ttl = max(ttl, time.Duration(rr.Header().Ttl)*time.Second)
	}
	ttl = max(ttl, minAdmit) + graceAdmit
	for _, port := range ports {
		if err := r.o.Admit(ctx, id, addrs, port, ttl); err != nil {
			return err
		}
	}
	return nil
}

func bounded(rr dns.RR) dns.RR {
	rr.Header().Ttl = min(rr.Header().Ttl, uint32(maxTTL/time.Second))
	return rr
}

// reversePrefix reads the network that a name under in-addr.arpa or ip6.arpa stands for.
func reversePrefix(name string) (netip.Prefix, bool) {
	if rest, ok := strings.CutSuffix(name, ".in-addr.arpa"); ok {
		var b [4]byte
		labels := strings.Split(rest, ".")
		if len(labels) > 4 {
			labels = labels[len(labels)-4:]
		}
		for i := range labels {
			n, err := strconv.ParseUint(labels[len(labels)-1-i], 10, 8)
			if err != nil {
				return netip.PrefixFrom(netip.AddrFrom4(b), 8*i), i > 0
			}
			b[i] = byte(n)
		}
		return netip.PrefixFrom(netip.AddrFrom4(b), 8*len(labels)), true
	}
	if rest, ok := strings.CutSuffix(name, ".ip6.arpa"); ok {
		var b [16]byte
		labels := strings.Split(rest, ".")
		if len(labels) > 32 {
			labels = labels[len(labels)-32:]
		}
		for i := range labels {
			n, err := strconv.ParseUint(labels[len(labels)-1-i], 16, 4)
			if err != nil {
				return netip.PrefixFrom(netip.AddrFrom16(b), 4*i), i > 0
			}
			b[i/2] |= byte(n) << (4 - 4*(i%2))
		}
		return netip.PrefixFrom(netip.AddrFrom16(b), 4*len(labels)), true
	}
	return netip.Prefix{}, false
}

// reverseDenied says why the network of a reverse name is not the public's, "" when it is, or when it is no such name.
func reverseDenied(name string) string {
	p, ok := reversePrefix(name)
	if !ok {
		return ""
	}
	for _, e := range prefix.All() {
		if e.Prefix.Bits() <= p.Bits() && e.Prefix.Contains(p.Addr()) {
			return e.Why
		}
	}
	return ""
}

func (r *Resolver) reverseOpen(name string) bool {
	p, ok := reversePrefix(name)
	return ok && p.IsSingleIP() && r.o.Exceptions.Admit(p.Addr(), 0)
}
