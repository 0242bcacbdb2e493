//go:build soak

package e2e

import "testing"

// TestNothingIsLostOrLeftByCrashes for long.
func TestAThousandCrashes(t *testing.T) { crashes(t, 1000) }
