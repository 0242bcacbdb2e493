package guest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRingKeepsTheNewest(t *testing.T) {
	for _, limit := range []int{1, 7, 16 << 10, 100_000} {
		r := ring{limit: limit}
		var all []byte
		for n := 1; len(all) < 3*limit+100; n = n*3/2 + 1 {
			p := make([]byte, n%(2*limit+1))
			for i := range p {
				p[i] = byte(len(all) + i)
			}
			all = append(all, p...)
			r.add(p)
			require.Equal(t, int64(len(all)), r.next)
			require.Equal(t, int64(max(0, len(all)-limit)), r.oldest())
			got := make([]byte, limit+1)
			k := r.read(got, r.oldest())
			require.Equal(t, string(all[max(0, len(all)-limit):]), string(got[:k]))
		}
		require.LessOrEqual(t, len(r.buf), limit)
	}
}

func TestParseStat(t *testing.T) {
	p, ok := parseStat(7, []byte("7 (a) b) (c) S 1 2 3 4 5\n"))
	require.True(t, ok)
	require.Equal(t, process{pid: 7, ppid: 1, pgrp: 2, session: 3, state: 'S'}, p)
	for _, text := range []string{"", "7 (a", "7 (a) S 1", "7 (a) S x y z"} {
		_, ok := parseStat(7, []byte(text))
		require.False(t, ok, text)
	}
}

func TestSizesFollowTheirPlaceInTheOutput(t *testing.T) {
	a := []sizeAt{{at: 0}, {at: 3}, {at: 3}, {at: 5}}
	for i := range a {
		a[i].size.Cols = i
	}
	term := &terminal{ring: ring{limit: 100}, sizes: a, sizeSeq: 3, changed: make(chan struct{})}
	term.ring.add([]byte("abcdefg"))
	c := cursor{size: -1}
	var got []string
	buf := make([]byte, 10)
	for {
		_, _, p, wait := term.next(&c, buf)
		if wait != nil {
			break
		}
		got = append(got, string(p))
	}
	require.Equal(t, []string{`{"cols":0,"rows":0}`, "abc", `{"cols":2,"rows":0}`, "de", `{"cols":3,"rows":0}`, "fg"}, got)
}
