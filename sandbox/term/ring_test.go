package term

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRingKeepsTheNewest(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for _, limit := range []int{1, 7, 1000, 40_000} {
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

// Memory of rings that nobody has any more is given back.
func TestRingsAreGivenBack(t *testing.T) {
	mapped := func() int {
		b, err := os.ReadFile("/proc/self/maps")
		require.NoError(t, err)
		total := 0
		for line := range strings.Lines(string(b)) {
			var from, to int
			if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err == nil {
				total += to - from
			}
		}
		return total
	}
	const size, count = 16 << 20, 64
	before := mapped()
	for range count {
		newRing(size).append([]byte("x"))
	}
	require.Eventually(t, func() bool { runtime.GC(); return mapped()-before < size*count/2 }, time.Minute, time.Millisecond)
}

func TestPartialTail(t *testing.T) {
	for s, want := range map[string]int{
		"": 0, "a": 0, "é": 0, "\xc3": 1, "a\xe2\x80": 2, "\xf0\x9f\x98": 3, "😀": 0, "\xff": 0, "\x80": 0,
		"\x80\x80\x80\x80": 0, "\xe2\xff": 0, "\xe0\x80": 0, "\xed\xa0": 0, "\xf5\x80": 0, "\xc3\x28": 0,
	} {
		require.Equal(t, want, partialTail([]byte(s)), "%q", s)
	}
}
