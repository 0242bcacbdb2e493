package policy

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"sandgate/sandbox/netjail/prefix"
)

// MaxExceptions is how many exceptions an operator may make.
const MaxExceptions = 256

// Exception is one network and port that the operator opened although it is not public.
type Exception struct {
	Prefix netip.Prefix // masked
	Port   uint16       // never 0
}

// String gives the form that ParseException reads: "10.1.2.0/24:443", "[fd00::/64]:443".
func (e Exception) String() string {
	if e.Prefix.Addr().Is6() {
		return fmt.Sprintf("[%s]:%d", e.Prefix, e.Port)
	}
	return fmt.Sprintf("%s:%d", e.Prefix, e.Port)
}

// ParseException reads "CIDR:PORT" or "ADDRESS:PORT"; IPv6 stands in brackets. The port is a must: an operator opens a
// service, not a machine.
func ParseException(s string) (Exception, error) {
	host, port, err := splitPort(strings.TrimSpace(s))
	switch {
	case err != nil:
		return Exception{}, fmt.Errorf("exception %s: %w", quoted(s), err)
	case port == 0:
		return Exception{}, fmt.Errorf("exception %s: a port is missing, as in 10.1.2.3:443", quoted(s))
	}
	p, err := parseNetwork(host)
	if err != nil {
		return Exception{}, fmt.Errorf("exception %s: %w", quoted(s), err)
	}
	if p.Bits() == 0 {
		return Exception{}, fmt.Errorf("exception %s: it would open every address", quoted(s))
	}
	return Exception{Prefix: p, Port: port}, nil
}

// Exceptions are all that the operator opened. The nil value has none.
type Exceptions []Exception

// ParseExceptions reads a list; an item may itself hold several, parted by commas. Empty items are left out, doubles too.
func ParseExceptions(list []string) (Exceptions, error) {
	var out Exceptions
	seen := map[Exception]bool{}
	for _, item := range list {
		for one := range strings.SplitSeq(item, ",") {
			if strings.TrimSpace(one) == "" {
				continue
			}
			e, err := ParseException(one)
			if err != nil {
				return nil, err
			}
			if seen[e] {
				continue
			}
			seen[e] = true
			if out = append(out, e); len(out) > MaxExceptions {
				return nil, fmt.Errorf("more than %d exceptions", MaxExceptions)
			}
		}
	}
	return out, nil
}

// Admit says whether addr is open at port; port 0 asks whether it is at any. A mapped address counts as the IPv4 one.
func (es Exceptions) Admit(addr netip.Addr, port uint16) bool {
	addr = addr.WithZone("").Unmap()
	for _, e := range es {
		if (port == 0 || port == e.Port) && e.Prefix.Contains(addr) {
			return true
		}
	}
	return false
}

// Denied says whether addr is not public and not opened at any port, and by which word of package prefix.
func (es Exceptions) Denied(addr netip.Addr) (why string, denied bool) {
	why, denied = prefix.Denied(addr)
	if denied && es.Admit(addr, 0) {
		return "", false
	}
	return why, denied
}

// reaches says whether an exception opens any part of p at port (0: at any).
func (es Exceptions) reaches(p netip.Prefix, port uint16) bool {
	for _, e := range es {
		if (port == 0 || port == e.Port) && e.Prefix.Overlaps(p) {
			return true
		}
	}
	return false
}

// splitPort parts "HOST:PORT", "[HOST]:PORT" and "HOST" (port 0). An IPv6 address without brackets has no port.
func splitPort(s string) (host string, port uint16, err error) {
	if rest, ok := strings.CutPrefix(s, "["); ok {
		inner, after, closed := strings.Cut(rest, "]")
		switch {
		case !closed:
			return "", 0, fmt.Errorf("the bracket is not closed")
		case after == "":
			return inner, 0, nil
		case after[0] != ':':
			return "", 0, fmt.Errorf("after the bracket comes a colon and the port")
		}
		port, err = parsePort(after[1:])
		return inner, port, err
	}
	switch strings.Count(s, ":") {
	case 0:
		return s, 0, nil
	case 1:
		host, digits, _ := strings.Cut(s, ":")
		port, err = parsePort(digits)
		return host, port, err
	}
	if _, err := parseNetwork(s); err == nil {
		return s, 0, nil
	}
	return "", 0, fmt.Errorf("more than one colon; an IPv6 network with a port stands in brackets: [2001:db8::/32]:443")
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || s[0] < '1' || s[0] > '9' { // no sign, no leading zero
		return 0, fmt.Errorf("the port is a number from 1 to 65535")
	}
	return uint16(n), nil
}

// parseNetwork reads an address or a CIDR in the one plain form of each: netip takes no octal, hexadecimal or short ones.
func parseNetwork(s string) (netip.Prefix, error) {
	if !strings.Contains(s, "/") {
		a, err := netip.ParseAddr(s)
		if err != nil || a.Zone() != "" || a.Is4In6() {
			return netip.Prefix{}, fmt.Errorf("not an address in plain form, as in 192.0.2.7")
		}
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("not a network in plain form, as in 192.0.2.0/24")
	}
	if p != p.Masked() {
		return netip.Prefix{}, fmt.Errorf("the address has bits behind its mask; the network is %s", p.Masked())
	}
	return p, nil
}

// quoted shows input in a message: cut, and with everything odd escaped.
func quoted(s string) string {
	const most = 80
	if len(s) > most {
		return strconv.QuoteToASCII(s[:most]) + "…"
	}
	return strconv.QuoteToASCII(s)
}
