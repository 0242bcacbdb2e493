package term

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRingKeepsTheNewest(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for _, limit := range []int{1, 7, 1000, ringStart + 5} {
		r := newRing(limit)
		var all []byte
		for range 500 {
			p := make([]byte, rnd.IntN(limit/3+2))
			for i := range p {
				p[i] = byte(rnd.Uint32())
			}
			r.append(p)
			all = append(all, p...)
			require.EqualValues(t, len(all), r.next)
			require.EqualValues(t, max(0, len(all)-limit), r.oldest())
			got := make([]byte, limit)
			n := r.copyAt(got, r.oldest())
			require.Equal(t, string(all[r.oldest():]), string(got[:n]))
		}
	}
}

func TestPartialTail(t *testing.T) {
	for s, want := range map[string]int{
		"": 0, "a": 0, "é": 0, "\xc3": 1, "a\xe2\x80": 2, "\xf0\x9f\x98": 3, "😀": 0, "\xff": 0, "\x80": 0,
		"\x80\x80\x80\x80": 0, "\xe2\xff": 0, "\xe0\x80": 0, "\xed\xa0": 0, "\xf5\x80": 0, "\xc3\x28": 0,
	} {
		require.Equal(t, want, partialTail([]byte(s)), "%q", s)
	}
}
