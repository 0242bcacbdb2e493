//go:build soak

package e2e

import "testing"

// The long form: each flood for a minute, twice over.
func TestFloodsForLong(t *testing.T) {
	s := newStorm(t)
	for range 2 {
		for _, a := range s.floods(60) {
			t.Run(a.name, func(t *testing.T) { a.run(t, s.siege) })
		}
	}
}
