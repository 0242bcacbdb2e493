package netjail

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/sandbox"
)

// BenchmarkAttach is one network made and taken away, alone and among many.
func BenchmarkAttach(b *testing.B) {
	j := open(b, Options{Inst: "thnx"})
	keep(b, j, 1)
	for b.Loop() {
		id := sandbox.NewID()
		_, err := j.Attach(b.Context(), id, public, free)
		require.NoError(b, err)
		b.StopTimer()
		require.NoError(b, j.Detach(b.Context(), id))
		b.StartTimer()
	}
}

// BenchmarkChange is a change of one of many sandboxes' policy. The others have allow-lists of four networks each.
func BenchmarkChange(b *testing.B) {
	for _, n := range []int{1, 500} {
		b.Run(fmt.Sprintf("among-%d", n), func(b *testing.B) {
			j := open(b, Options{Inst: "thny"})
			ids := keep(b, j, n)
			policies := []sandbox.NetworkPolicy{public, {Mode: sandbox.NetworkAllowList, Allow: []string{"1.1.1.0/24:443", "8.8.8.8"}}}
			i := 0
			for b.Loop() {
				require.NoError(b, j.Change(b.Context(), ids[0], policies[i%2]))
				i++
			}
		})
	}
}

// BenchmarkAdmit is what an answer about a name waits for.
func BenchmarkAdmit(b *testing.B) {
	j := open(b, Options{Inst: "thnz"})
	ids := keep(b, j, 100)
	i := 0
	for b.Loop() {
		a := netip.AddrFrom4([4]byte{20, 0, byte(i >> 8 & 3), byte(i)})
		require.NoError(b, j.Admit(b.Context(), ids[0], []netip.Addr{a}, 443, maxAdmit))
		i++
	}
}

func keep(b *testing.B, j *Jail, n int) []sandbox.ID {
	b.Helper()
	var out []sandbox.ID
	for i := range n {
		p := sandbox.NetworkPolicy{Mode: sandbox.NetworkAllowList}
		for k := range 4 {
			p.Allow = append(p.Allow, fmt.Sprintf("20.%d.%d.0/24:443", k, i%256))
		}
		id := sandbox.NewID()
		_, err := j.Attach(b.Context(), id, p, free)
		require.NoError(b, err)
		out = append(out, id)
	}
	return out
}
