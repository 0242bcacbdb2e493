package policy

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/sandbox"
)

func TestParseEntry(t *testing.T) {
	long := strings.Repeat("a", 63)
	for in, want := range map[string]string{ // "!" and a part of the complaint where it is refused
		"example.org":                    "example.org",
		"example.org:443":                "example.org:443",
		" Example.ORG.:443 ":             "example.org:443",
		"*.Example.org":                  "*.example.org",
		"*.example.org:8443":             "*.example.org:8443",
		"my_bucket.example.org":          "my_bucket.example.org",
		"_sip._tcp.example.org":          "_sip._tcp.example.org",
		"bücher.example":                 "xn--bcher-kva.example",
		"BÜCHER.example:443":             "xn--bcher-kva.example:443",
		"*.bücher.example":               "*.xn--bcher-kva.example",
		"xn--bcher-kva.example":          "xn--bcher-kva.example",
		"例え。テスト":                         "xn--r8jz45g.xn--zckzah",
		"1.2.3.0/24":                     "1.2.3.0/24",
		"1.2.3.0/24:443":                 "1.2.3.0/24:443",
		"1.2.3.4":                        "1.2.3.4",
		"1.2.3.4/32":                     "1.2.3.4",
		"1.2.3.4:8080":                   "1.2.3.4:8080",
		"0.0.0.0/0":                      "0.0.0.0/0",
		"3com.example":                   "3com.example",
		"1.2.3.4.example":                "1.2.3.4.example",
		long + ".example.org":            long + ".example.org",
		long + "a.example.org":           "!63 bytes",
		"":                               "!empty",
		":443":                           "!empty",
		"*":                              "!star",
		"*.":                             "!empty",
		"*.org":                          "!one part",
		"*.*.org":                        "!star",
		"a.*.org":                        "!star",
		"*example.org":                   "!star",
		"https://example.org/":           "!URL",
		"example.org/path":               "!plain form",
		"example.org:0":                  "!1 to 65535",
		"example.org:65536":              "!1 to 65535",
		"example.org:":                   "!1 to 65535",
		"example.org:+80":                "!1 to 65535",
		"example.org:080":                "!1 to 65535",
		"example.org:80:90":              "!colon",
		"example.org:http":               "!1 to 65535",
		"user@example.org":               "!letters",
		"exa mple.org":                   "!letters",
		"exa\x00mple.org":                "!letters",
		"exa\nmple.org":                  "!letters",
		"ex\\.ample.org":                 "!letters",
		"ex%41mple.org":                  "!letters",
		"example..org":                   "!empty part",
		".example.org":                   "!empty part",
		"example.org..":                  "!empty part",
		"-a.example.org":                 "!hyphen",
		"a-.example.org":                 "!hyphen",
		"xn--a.example.org":              "!punycode",
		"\u202eexample.org":              "!punycode",
		"e\u0301xa_mple.org":             "!punycode",
		"\xff\xfe.org":                   "!punycode",
		"localhost":                      "!one part",
		"printer":                        "!one part",
		"printer.local":                  "!local network",
		"a.b.internal":                   "!local network",
		"x.localdomain":                  "!local network",
		"x.home.arpa":                    "!local network",
		"metadata.google.internal":       "!local network",
		"LOCAL.":                         "!one part",
		"2852039166":                     "!plain form", // 169.254.169.254 as one number
		"0251.0376.0251.0376":            "!plain form",
		"0xa9.0xfe.0xa9.0xfe":            "!plain form",
		"0xA9FEA9FE":                     "!plain form",
		"169.254.43518":                  "!plain form",
		"127.1":                          "!plain form",
		"1.2.3.4.":                       "!plain form",
		"example.0x7f":                   "!plain form",
		"example.1":                      "!plain form",
		"01.2.3.4":                       "!plain form",
		"1.2.3.256":                      "!plain form",
		"1.2.3.4/33":                     "!plain form",
		"1.2.3.4/024":                    "!plain form",
		"1.2.3.4/":                       "!plain form",
		"1.2.3.4/255.255.255.0":          "!plain form",
		"1.2.3.4/24":                     "!1.2.3.0/24",
		"１.２.３.４":                        "!number", // full-width digits
		"2001:db8::/32":                  "!IPv6",
		"[2001:db8::1]:443":              "!IPv6",
		"[2001:db8::/32]":                "!IPv6",
		"[::ffff:1.2.3.4]:80":            "!plain form",
		"::ffff:1.2.3.4":                 "!colon",
		"[1.2.3.4":                       "!bracket",
		"[1.2.3.4]80":                    "!colon",
		"[fe80::1%eth0]:80":              "!plain form",
		strings.Repeat("a", 400):         "!300 bytes",
		strings.Repeat("a.", 127) + "aa": "!253 bytes",
	} {
		e, err := ParseEntry(in)
		if complaint, refused := strings.CutPrefix(want, "!"); refused {
			require.Error(t, err, "%q gave %s", in, e)
			require.Contains(t, err.Error(), complaint, "%q", in)
			continue
		}
		require.NoError(t, err, "%q", in)
		require.Equal(t, want, e.String(), "%q", in)
		again, err := ParseEntry(e.String())
		require.NoError(t, err)
		require.Equal(t, e, again, "the canonical form is stable")
	}
}

func TestParseException(t *testing.T) {
	for in, want := range map[string]string{
		"10.1.2.0/24:443":       "10.1.2.0/24:443",
		"10.1.2.3:443":          "10.1.2.3/32:443",
		" 10.1.2.3:443 ":        "10.1.2.3/32:443",
		"[fd00::/64]:443":       "[fd00::/64]:443",
		"[fd00::1]:443":         "[fd00::1/128]:443",
		"10.1.2.3":              "!port is missing",
		"[fd00::1]":             "!port is missing",
		"fd00::/64":             "!port is missing",
		"10.1.2.3:0":            "!1 to 65535",
		"10.1.2.3/24:443":       "!10.1.2.0/24",
		"example.org:443":       "!plain form",
		"0.0.0.0/0:443":         "!every address",
		"[::/0]:443":            "!every address",
		"[::ffff:10.0.0.1]:443": "!plain form",
		"0x0a.1.2.3:443":        "!plain form",
		"fd00::1:443:":          "!colon",
	} {
		e, err := ParseException(in)
		if complaint, refused := strings.CutPrefix(want, "!"); refused {
			require.Error(t, err, "%q gave %s", in, e)
			require.Contains(t, err.Error(), complaint, "%q", in)
			continue
		}
		require.NoError(t, err, "%q", in)
		require.Equal(t, want, e.String(), "%q", in)
		again, err := ParseException(e.String())
		require.NoError(t, err)
		require.Equal(t, e, again)
	}

	es, err := ParseExceptions([]string{"10.1.2.3:443, 10.1.2.4:80", "", "10.1.2.3:443,"})
	require.NoError(t, err)
	require.Len(t, es, 2)
	_, err = ParseExceptions([]string{"10.1.2.3:443,nonsense"})
	require.Error(t, err)
	var many []string
	for i := range MaxExceptions + 1 {
		many = append(many, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}).String()+":80")
	}
	_, err = ParseExceptions(many)
	require.ErrorContains(t, err, "more than")
}

func TestExceptionsAdmit(t *testing.T) {
	es, err := ParseExceptions([]string{"10.1.2.0/24:443", "[fd00::/64]:80"})
	require.NoError(t, err)
	for _, c := range []struct {
		addr  string
		port  uint16
		admit bool
	}{
		{"10.1.2.3", 443, true},
		{"10.1.2.3", 0, true},
		{"10.1.2.3", 80, false},
		{"10.1.3.0", 443, false},
		{"::ffff:10.1.2.3", 443, true},
		{"fd00::1", 80, true},
		{"fd00::1", 443, false},
		{"fd00:0:0:1::1", 80, false},
	} {
		require.Equal(t, c.admit, es.Admit(netip.MustParseAddr(c.addr), c.port), "%s %d", c.addr, c.port)
	}
	why, denied := es.Denied(netip.MustParseAddr("10.1.2.3"))
	require.False(t, denied)
	require.Empty(t, why)
	why, denied = es.Denied(netip.MustParseAddr("10.1.3.3"))
	require.True(t, denied)
	require.Equal(t, "private", why)
	why, denied = Exceptions(nil).Denied(netip.MustParseAddr("169.254.169.254"))
	require.True(t, denied)
	require.Equal(t, "metadata", why)
}

func TestCheck(t *testing.T) {
	got, err := Check(sandbox.NetworkPolicy{}, nil)
	require.NoError(t, err)
	require.Equal(t, sandbox.NetworkPolicy{Mode: sandbox.NetworkPublic, Allow: []string{}}, got)

	got, err = Check(sandbox.NetworkPolicy{Mode: sandbox.NetworkAllowList, Allow: []string{"B.example", "a.example:443", "b.example.", "8.8.8.0/24"}}, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"b.example", "a.example:443", "8.8.8.0/24"}, got.Allow)

	field := func(err error) string {
		t.Helper()
		require.True(t, fault.Is(err, fault.Invalid), "%v", err)
		e, ok := errors.AsType[*fault.Error](err)
		require.True(t, ok)
		for name := range e.Fields {
			return name
		}
		return ""
	}
	_, err = Check(sandbox.NetworkPolicy{Mode: "open"}, nil)
	require.Equal(t, "network.mode", field(err))
	_, err = Check(sandbox.NetworkPolicy{Allow: []string{"ok.example", "no\nway"}}, nil)
	require.Equal(t, "network.allow", field(err))
	require.Contains(t, err.Error(), "entry 2")
	require.NotContains(t, err.Error(), "\n")
	_, err = Check(sandbox.NetworkPolicy{Allow: make([]string, MaxEntries+1)}, nil)
	require.Contains(t, err.Error(), "at most 64")

	es, err := ParseExceptions([]string{"10.1.2.3:443"})
	require.NoError(t, err)
	for entry, allowed := range map[string]bool{
		"10.1.2.3:443": true, "10.1.2.3": true, "10.0.0.0/8": true, "10.1.2.3:80": false, "10.1.2.4:443": false, "10.1.2.4": false,
		"192.168.0.0/16": false, "169.254.169.254:80": false, "127.0.0.1": false, "224.0.0.0/3": false, "240.0.0.0/5": false,
		"192.0.0.0/8": true, "0.0.0.0/0": true, "8.8.8.8": true, "8.0.0.0/6": true, "198.18.0.0/15": false, "198.16.0.0/14": true,
	} {
		_, err := Check(sandbox.NetworkPolicy{Mode: sandbox.NetworkAllowList, Allow: []string{entry}}, es)
		require.Equal(t, allowed, err == nil, "%s: %v", entry, err)
		if err != nil {
			require.Contains(t, err.Error(), "no sandbox reaches this network")
		}
	}
}

func TestPorts(t *testing.T) {
	allow := []string{"example.org:443", "example.org:80", "*.example.org", "api.test.example:8443", "1.2.3.4:80", "8.8.8.0/24", "*.deep.one.example:1"}
	for name, want := range map[string][]uint16{
		"example.org":        {443, 80},
		"www.example.org":    {0},
		"a.b.example.org":    {0},
		"badexample.org":     nil,
		"example.org.evil":   nil,
		"api.test.example":   {8443},
		"x.api.test.example": nil,
		"test.example":       nil,
		"deep.one.example":   nil,
		"x.deep.one.example": {1},
		"1.2.3.4":            nil,
		"":                   nil,
	} {
		require.Equal(t, want, Ports(allow, name), name)
	}
	require.Equal(t, []Entry{
		{Prefix: netip.MustParsePrefix("1.2.3.4/32"), Port: 80}, {Prefix: netip.MustParsePrefix("8.8.8.0/24")},
	}, Networks(sandbox.NetworkPolicy{Allow: allow}))
}

func TestLocalAndPlain(t *testing.T) {
	for name, want := range map[string]bool{
		"host": true, "a.local": true, "local": true, "a.home.arpa": true, "arpa": true, "1.0.0.10.in-addr.arpa": false,
		"example.org": false, "notlocal.example": false, "xlocal": true, "a.xlocal": false, "internal.example": false,
	} {
		require.Equal(t, want, Local(name), name)
	}
	for name, want := range map[string]bool{
		"example.org": true, "_a.b-c.org": true, `evil\.example.org`: false, `a\000.org`: false, "a b.org": false, "": false,
		"a..b": false, "*.example.org": false, strings.Repeat("a", 64) + ".org": false, strings.Repeat("a.", 127): false,
	} {
		require.Equal(t, want, Plain(name), name)
	}
}

func FuzzParseEntry(f *testing.F) {
	for _, s := range []string{"example.org:443", "*.bücher.example", "[::1]:80", "0x7f.1", "1.2.3.0/24", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e, err := ParseEntry(s)
		if err != nil {
			return
		}
		again, err := ParseEntry(e.String())
		if err != nil || again != e {
			t.Fatalf("%q became %q, which reads as %v, %v", s, e, again, err)
		}
		if e.Name != "" && (!Plain(e.Name) || Local(e.Name)) {
			t.Fatalf("%q became the name %q", s, e.Name)
		}
		_ = Ports([]string{s, e.String()}, "www.example.org")
	})
}
