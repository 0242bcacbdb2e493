// Package policy owns the reading and judging of what a sandbox may reach: allow-list entries, the operator's exceptions,
// and which names are nobody's but the local network's. It must never resolve a name or touch the host.
package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/idna"

	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/netjail/prefix"
)

// Bounds of one policy.
const (
	MaxEntries  = 64
	maxEntryLen = 300 // a name of 253 bytes, "*.", and ":65535", with room for what is not ASCII
	maxNameLen  = 253 // without the dot at the end
)

// Entry is one thing that an allow-list names: either a name or a network.
type Entry struct {
	Name   string       // lower case ASCII, no dot at the end; "" for a network
	Under  bool         // "*.Name": every name under Name, not Name itself
	Prefix netip.Prefix // masked IPv4; invalid for a name
	Port   uint16       // 0: any
}

// String gives the canonical form.
func (e Entry) String() string {
	var b strings.Builder
	switch {
	case e.Name != "" && e.Under:
		b.WriteString("*." + e.Name)
	case e.Name != "":
		b.WriteString(e.Name)
	case e.Prefix.IsSingleIP():
		b.WriteString(e.Prefix.Addr().String())
	default:
		b.WriteString(e.Prefix.String())
	}
	if e.Port != 0 {
		b.WriteString(":" + strconv.Itoa(int(e.Port)))
	}
	return b.String()
}

// ParseEntry reads one entry: "example.org", "*.example.org:443", "1.2.3.0/24", "1.2.3.4:8080". Names that are not ASCII
// become punycode. The error is a clause for people.
func ParseEntry(s string) (Entry, error) {
	s = strings.TrimSpace(s)
	switch {
	case s == "":
		return Entry{}, fmt.Errorf("it is empty")
	case len(s) > maxEntryLen:
		return Entry{}, fmt.Errorf("it is longer than %d bytes", maxEntryLen)
	case strings.Contains(s, "://"):
		return Entry{}, fmt.Errorf("it is a URL; give the name alone, as in example.org:443")
	}
	host, port, err := splitPort(s)
	if err != nil {
		return Entry{}, err
	}
	if strings.ContainsAny(host, "/:") || looksNumeric(host) {
		p, err := parseNetwork(host)
		switch {
		case err != nil:
			return Entry{}, err
		case p.Addr().Is6():
			return Entry{}, fmt.Errorf("IPv6 is off inside sandboxes; give an IPv4 network or a name")
		}
		return Entry{Prefix: p, Port: port}, nil
	}
	name, under := strings.CutPrefix(host, "*.")
	name, err = canonicalName(name)
	if err != nil {
		return Entry{}, err
	}
	return Entry{Name: name, Under: under, Port: port}, nil
}

// looksNumeric tells what programs take for an IPv4 address in one of its odd forms (decimal, octal, hexadecimal, short):
// a last label that is a number.
func looksNumeric(host string) bool {
	host = strings.TrimSuffix(host, ".")
	last := strings.ToLower(host[strings.LastIndexByte(host, '.')+1:])
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return last != "" && strings.Trim(last, "0123456789") == ""
}

// canonicalName gives the form that names are compared in, or says what is wrong with one.
func canonicalName(s string) (string, error) {
	s = strings.TrimSuffix(s, ".")
	if s == "" {
		return "", fmt.Errorf("the name is empty")
	}
	if strings.Contains(s, "*") {
		return "", fmt.Errorf("a star stands only at the front, as in *.example.org")
	}
	for i := range len(s) {
		if s[i] >= 0x80 {
			ascii, err := idna.Lookup.ToASCII(s)
			if err != nil {
				return "", fmt.Errorf("the name cannot be written in punycode; give it as xn--…")
			}
			s = strings.TrimSuffix(ascii, ".") // there are other dots than the ASCII one
			break
		}
	}
	s = strings.ToLower(s)
	if len(s) > maxNameLen {
		return "", fmt.Errorf("the name is longer than %d bytes", maxNameLen)
	}
	for label := range strings.SplitSeq(s, ".") {
		if err := checkLabel(label); err != nil {
			return "", err
		}
	}
	if looksNumeric(s) {
		return "", fmt.Errorf("the name ends in a number, which programs take for an address")
	}
	if !strings.Contains(s, ".") {
		return "", fmt.Errorf("the name has one part only; such names are the local network's")
	}
	if Local(s) {
		return "", fmt.Errorf("the name belongs to a local network and is never answered inside")
	}
	return s, nil
}

func checkLabel(label string) error {
	switch {
	case label == "":
		return fmt.Errorf("the name has an empty part between two dots")
	case len(label) > 63:
		return fmt.Errorf("a part of the name is longer than 63 bytes")
	case label[0] == '-' || label[len(label)-1] == '-':
		return fmt.Errorf("a part of the name begins or ends with a hyphen")
	case !plainLabel(label):
		return fmt.Errorf("a name has letters, digits, hyphens and underscores only")
	}
	if strings.HasPrefix(label, "xn--") {
		if _, err := idna.Lookup.ToUnicode(label); err != nil {
			return fmt.Errorf("a part of the name is not valid punycode")
		}
	}
	return nil
}

func plainLabel(label string) bool {
	for i := range len(label) {
		switch c := label[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
		default:
			return false
		}
	}
	return true
}

// Plain says whether name, in the presentation form of DNS without the dot at the end, is made of plain labels. Only such
// names may be compared by their text: in others a dot need not part two labels.
func Plain(name string) bool {
	if name == "" || len(name) > maxNameLen {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || !plainLabel(label) {
			return false
		}
	}
	return true
}

// localZones are never in the public name system: special use (RFC 6761, 6762, 7686, 8375, 9476), reserved for internal
// use, or used by so many routers and offices that they never will be (RFC 6762, appendix G).
var localZones = []string{
	"alt", "corp", "home", "home.arpa", "internal", "intranet", "invalid", "lan", "local", "localdomain", "localhost", "onion", "private",
}

// Local says whether a canonical name is one of the local network's: a single label, or in a zone that the public name
// system does not have.
func Local(name string) bool {
	if !strings.Contains(name, ".") {
		return true
	}
	return slices.ContainsFunc(localZones, func(z string) bool { return Within(name, z) })
}

// Within says whether name is zone or a name under it, both canonical and Plain.
func Within(name, zone string) bool {
	rest, ok := strings.CutSuffix(name, zone)
	return ok && (rest == "" || strings.HasSuffix(rest, "."))
}

// Check gives the canonical form of p: a mode, public when it was left out, and each entry once in the order given. The
// error is of kind Invalid and names the field. An entry that the filter would deny in any case is refused, so that nobody
// waits for it to work; an exception of the operator lets it stand.
func Check(p sandbox.NetworkPolicy, ex Exceptions) (sandbox.NetworkPolicy, error) {
	switch p.Mode {
	case "":
		p.Mode = sandbox.NetworkPublic
	case sandbox.NetworkNone, sandbox.NetworkPublic, sandbox.NetworkAllowList:
	default:
		return sandbox.NetworkPolicy{}, fault.Field("network.mode", "one of none, public and allow-list")
	}
	if len(p.Allow) > MaxEntries {
		return sandbox.NetworkPolicy{}, fault.Field("network.allow", "at most %d entries", MaxEntries)
	}
	allow := make([]string, 0, len(p.Allow))
	for i, s := range p.Allow {
		e, err := ParseEntry(s)
		if err == nil {
			err = possible(e, ex)
		}
		if err != nil {
			return sandbox.NetworkPolicy{}, fault.Field("network.allow", "entry %d, %s: %s", i+1, quoted(s), err)
		}
		if c := e.String(); !slices.Contains(allow, c) {
			allow = append(allow, c)
		}
	}
	return sandbox.NetworkPolicy{Mode: p.Mode, Allow: allow}, nil
}

func possible(e Entry, ex Exceptions) error {
	if !e.Prefix.IsValid() || !whollyDenied(e.Prefix) || ex.reaches(e.Prefix, e.Port) {
		return nil
	}
	why, _ := prefix.Denied(e.Prefix.Addr())
	return fmt.Errorf("no sandbox reaches this network (%s)", why)
}

// whollyDenied says whether every address of p is denied, be it by several prefixes together.
func whollyDenied(p netip.Prefix) bool {
	overlap := false
	for _, o := range prefix.Outer() {
		if o.Prefix.Overlaps(p) {
			overlap = true
			if o.Prefix.Bits() <= p.Bits() {
				return true
			}
		}
	}
	if !overlap {
		return false
	}
	// A denied prefix lies inside p, so p has a bit to spare.
	low := netip.PrefixFrom(p.Addr(), p.Bits()+1)
	return whollyDenied(low) && whollyDenied(netip.PrefixFrom(upper(low), low.Bits()))
}

// upper gives the first address of the sibling above p.
func upper(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	bit := p.Bits() - 1
	b[bit/8] |= 0x80 >> (bit % 8)
	a, _ := netip.AddrFromSlice(b)
	return a
}

// Networks lists the entries of p that are networks; what does not parse is left out.
func Networks(p sandbox.NetworkPolicy) []Entry {
	var out []Entry
	for _, s := range p.Allow {
		if e, err := ParseEntry(s); err == nil && e.Name == "" {
			out = append(out, e)
		}
	}
	return out
}

// Ports says at which ports the entries of a canonical allow-list open a canonical, Plain name; 0 stands for any, and then
// alone. None: the name is not on the list.
func Ports(allow []string, name string) []uint16 {
	var out []uint16
	for _, s := range allow {
		if len(s) == 0 || s[0] >= '0' && s[0] <= '9' && strings.Trim(s, "0123456789./:") == "" {
			continue
		}
		host, port, err := splitPort(s)
		if err != nil {
			continue
		}
		zone, under := strings.CutPrefix(host, "*.")
		if under == (name == zone) || !Within(name, zone) {
			continue
		}
		if port == 0 {
			return []uint16{0}
		}
		if !slices.Contains(out, port) {
			out = append(out, port)
		}
	}
	return out
}
