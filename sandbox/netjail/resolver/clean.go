package resolver

import (
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

const (
	maxRecords = 256 // of one answer
	maxChain   = 16  // aliases from the name that was asked for to the one that has the data
)

// cleaning takes out of an answer what a sandbox may not know.
type cleaning struct {
	r      *Resolver
	listed bool // allow-list: only addresses that Admit was given may get through
}

// clean gives the records of got that answer ask, following aliases, with the addresses among them. When addresses were
// there and all are denied, or an alias leads into the host's own network, it gives why instead.
func (c cleaning) clean(ask dns.Question, got []dns.RR) (out []dns.RR, addrs []netip.Addr, why string) {
	got = got[:min(len(got), maxRecords)]
	owner := strings.ToLower(ask.Name)
	denied := ""
	for range maxChain {
		alias := ""
		for _, rr := range got {
			h := rr.Header()
			if h.Class != dns.ClassINET || !strings.EqualFold(h.Name, owner) {
				continue
			}
			switch {
			case h.Rrtype == ask.Qtype:
				kept, addr, w := c.record(rr)
				if w != "" {
					denied = w
				}
				if kept != nil {
					out = append(out, bounded(kept))
				}
				if addr.IsValid() {
					addrs = append(addrs, addr)
				}
			case h.Rrtype == dns.TypeCNAME && alias == "":
				target := rr.(*dns.CNAME).Target //nolint:forcetypeassert // by Rrtype
				alias = strings.ToLower(target)
				out = append(out, bounded(rr))
			case h.Rrtype == dns.TypeRRSIG && len(out) > 0:
				out = append(out, bounded(rr))
			}
		}
		if alias == "" || len(addrs) > 0 || denied != "" {
			break
		}
		if c.r.local(strings.TrimSuffix(alias, ".")) {
			return nil, nil, WhyLocalName
		}
		owner = alias
	}
	if denied != "" && len(addrs) == 0 {
		return nil, nil, denied
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return out, slices.Compact(addrs), ""
}

// record judges one record that holds data: what is kept of it, the address in it, or why it was taken out.
func (c cleaning) record(rr dns.RR) (dns.RR, netip.Addr, string) {
	switch rr := rr.(type) {
	case *dns.A:
		addr, ok := netip.AddrFromSlice(rr.A.To4())
		if !ok {
			return nil, netip.Addr{}, ""
		}
		if why, denied := c.r.o.Exceptions.Denied(addr); denied {
			return nil, netip.Addr{}, why
		}
		return rr, addr, ""
	case *dns.AAAA:
		return nil, netip.Addr{}, "" // IPv6 is off inside
	case *dns.SVCB:
		if !c.hints(rr) {
			return nil, netip.Addr{}, ""
		}
	case *dns.HTTPS:
		if !c.hints(&rr.SVCB) {
			return nil, netip.Addr{}, ""
		}
	}
	return rr, netip.Addr{}, ""
}

// hints takes addresses out of a service record; false when nothing useful is left, because the record says that its reader
// must understand what was taken out.
func (c cleaning) hints(s *dns.SVCB) bool {
	var mandatory []dns.SVCBKey
	taken := map[dns.SVCBKey]bool{}
	kept := s.Value[:0]
	for _, kv := range s.Value {
		switch v := kv.(type) {
		case *dns.SVCBMandatory:
			mandatory = v.Code
		case *dns.SVCBIPv6Hint:
			taken[kv.Key()] = true
			continue
		case *dns.SVCBIPv4Hint:
			v.Hint = slices.DeleteFunc(v.Hint, func(ip net.IP) bool {
				addr, ok := netip.AddrFromSlice(ip.To4())
				if !ok || c.listed {
					return true
				}
				_, denied := c.r.o.Exceptions.Denied(addr)
				return denied
			})
			if len(v.Hint) == 0 {
				taken[kv.Key()] = true
				continue
			}
		}
		kept = append(kept, kv)
	}
	s.Value = kept
	return !slices.ContainsFunc(mandatory, func(k dns.SVCBKey) bool { return taken[k] })
}
