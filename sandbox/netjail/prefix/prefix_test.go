package prefix

import (
	"math/big"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func number(a netip.Addr) *big.Int { return new(big.Int).SetBytes(a.AsSlice()) }

func address(t *testing.T, n *big.Int, v6 bool) netip.Addr {
	t.Helper()
	size := 4
	if v6 {
		size = 16
	}
	a, ok := netip.AddrFromSlice(n.FillBytes(make([]byte, size)))
	require.True(t, ok)
	return a
}

// edges gives the first, middle and last address of p, and its neighbours where there are any.
func edges(t *testing.T, p netip.Prefix) (inside []netip.Addr, beside []netip.Addr) {
	t.Helper()
	v6 := p.Addr().Is6()
	first := number(p.Addr())
	span := new(big.Int).Lsh(big.NewInt(1), uint(p.Addr().BitLen()-p.Bits()))
	last := new(big.Int).Sub(new(big.Int).Add(first, span), big.NewInt(1))
	middle := new(big.Int).Rsh(new(big.Int).Add(first, last), 1)
	inside = []netip.Addr{address(t, first, v6), address(t, middle, v6), address(t, last, v6)}
	if a := p.Addr().Prev(); a.IsValid() {
		beside = append(beside, a)
	}
	if a := inside[2].Next(); a.IsValid() {
		beside = append(beside, a)
	}
	return inside, beside
}

// holds says whether some entry of the table holds a, by another way than Denied goes.
func holds(a netip.Addr) bool {
	for _, e := range All() {
		if e.Prefix.Addr().Compare(a) <= 0 && e.Prefix.Contains(a) {
			return true
		}
	}
	return false
}

var mapped = netip.MustParsePrefix("::ffff:0:0/96")

func TestEveryPrefixIsDeniedFromFirstToLast(t *testing.T) {
	for _, e := range All() {
		inside, beside := edges(t, e.Prefix)
		for _, a := range inside {
			if mapped.Contains(a) {
				continue // judged as IPv4: TestMappedIsJudgedAsIPv4
			}
			why, denied := Denied(a)
			require.True(t, denied, "%s in %s", a, e.Prefix)
			require.NotEmpty(t, why)
			require.True(t, a.Is6() || denied == holds(a))
		}
		for _, a := range beside {
			if mapped.Contains(a) {
				continue
			}
			_, denied := Denied(a)
			require.Equal(t, holds(a), denied, "%s beside %s", a, e.Prefix)
		}
	}
}

func TestWords(t *testing.T) {
	for addr, want := range map[string]string{
		"0.0.0.0": ThisNetwork, "0.255.255.255": ThisNetwork, "1.0.0.0": "",
		"9.255.255.255": "", "10.0.0.0": Private, "10.255.255.255": Private, "11.0.0.0": "",
		"100.63.255.255": "", "100.64.0.0": Shared, "100.127.255.255": Shared, "100.128.0.0": "", "100.100.100.200": Metadata,
		"126.255.255.255": "", "127.0.0.1": Loopback, "127.255.255.255": Loopback, "128.0.0.0": "",
		"168.63.129.15": "", "168.63.129.16": Metadata, "168.63.129.17": "",
		"169.253.255.255": "", "169.254.0.0": LinkLocal, "169.254.169.253": LinkLocal, "169.254.169.254": Metadata,
		"169.254.170.2": Metadata, "169.254.170.23": Metadata, "169.255.0.0": "",
		"172.15.255.255": "", "172.16.0.0": Private, "172.31.255.255": Private, "172.32.0.0": "",
		"191.255.255.255": "", "192.0.0.0": Reserved, "192.0.0.192": Metadata, "192.0.1.0": "",
		"192.0.2.1": Documentation, "192.0.3.0": "", "192.88.99.1": Transition, "192.88.98.255": "", "192.88.100.0": "",
		"192.167.255.255": "", "192.168.0.0": Private, "192.168.255.255": Private, "192.169.0.0": "",
		"198.17.255.255": "", "198.18.0.0": Benchmarking, "198.19.255.255": Benchmarking, "198.20.0.0": "",
		"198.51.99.255": "", "198.51.100.7": Documentation, "198.51.101.0": "",
		"203.0.112.255": "", "203.0.113.0": Documentation, "203.0.114.0": "",
		"223.255.255.255": "", "224.0.0.0": Multicast, "239.255.255.255": Multicast, "240.0.0.0": Reserved, "255.255.255.255": Broadcast,
		"8.8.8.8": "",

		"::": ThisNetwork, "::1": Loopback, "::2": ThisNetwork, "::10.0.0.1": Private, "::8.8.8.8": Transition, "::ffff:8.8.8.8": "", "::ffff:10.1.2.3": Private,
		"::ffff:169.254.169.254": Metadata,
		"64:ff9b::8.8.8.8":       Transition, "64:ff9b::10.0.0.1": Private, "64:ff9b:1:a00:0:100::": Private, "64:ff9b:1::7f00:1": ThisNetwork,
		"100::1": Reserved, "100:0:0:1::1": Reserved, "1fff:ffff::1": Reserved,
		"2000::1": "", "2001::1": Reserved, "2001:0:808:808::f7f7:f7f7": Transition, "2001:0:808:808::f5ff:fffe": Private, "2001:1ff:ffff::1": Reserved, "2001:200::1": "",
		"2001:2::1": Benchmarking, "2001:10::1": Reserved, "2001:20::1": Reserved, "2001:db7:ffff::1": "", "2001:db8::1": Documentation, "2001:db9::": "",
		"2001:4860:4860::8888": "", "2002:0a00:0001::1": Private, "2002:808:808::1": Transition, "2003::1": "",
		"3fff::1": Documentation, "3fff:fff:ffff::1": Documentation, "3fff:1000::1": "", "3ffe:ffff::1": "",
		"4000::1": Reserved, "5f00::1": Reserved, "8000::1": Reserved, "fc00::1": Private, "fdff::1": Private, "fd00:ec2::254": Metadata, "fd20:ce::254": Metadata,
		"fe00::1": Reserved, "fe80::1": LinkLocal, "fe80::1%eth0": LinkLocal, "febf::1": LinkLocal, "fec0::1": Private, "ff02::1": Multicast, "ff0e::1": Multicast,
	} {
		why, denied := Denied(netip.MustParseAddr(addr))
		require.Equal(t, want, why, addr)
		require.Equal(t, want != "", denied, addr)
	}
	why, denied := Denied(netip.Addr{})
	require.True(t, denied)
	require.Equal(t, Reserved, why)
}

func TestMappedIsJudgedAsIPv4(t *testing.T) {
	for _, e := range All() {
		if !e.Prefix.Addr().Is4() {
			continue
		}
		inside, beside := edges(t, e.Prefix)
		for _, a := range append(inside, beside...) {
			why4, denied4 := Denied(a)
			why6, denied6 := Denied(netip.AddrFrom16(a.As16()))
			require.Equal(t, why4, why6, a.String())
			require.Equal(t, denied4, denied6, a.String())
		}
	}
}

func TestOuterCoversAllAndDoesNotOverlap(t *testing.T) {
	outer := Outer()
	for i, a := range outer {
		for _, b := range outer[i+1:] {
			require.False(t, a.Prefix.Overlaps(b.Prefix), "%s and %s", a.Prefix, b.Prefix)
		}
	}
	for _, e := range All() {
		held := 0
		for _, o := range outer {
			if o.Prefix.Contains(e.Prefix.Addr()) && o.Prefix.Bits() <= e.Prefix.Bits() {
				held++
			}
		}
		require.Equal(t, 1, held, e.Prefix.String())
	}
}

func TestTheTableIsTheCallersToChange(t *testing.T) {
	All()[0].Why = "changed"
	Outer()[0].Why = "changed"
	require.NotEqual(t, "changed", All()[0].Why)
	require.NotEqual(t, "changed", Outer()[0].Why)
}
