//go:build soak

package e2e

import (
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNothingIsLostOrLeftByCrashes for long. SANDGATE_CRASHES makes it longer or shorter: what a thousand find in an hour,
// ten hundreds with seeds of their own find in pieces.
func TestAThousandCrashes(t *testing.T) {
	rounds := 1000
	if s := os.Getenv("SANDGATE_CRASHES"); s != "" {
		var err error
		rounds, err = strconv.Atoi(s)
		require.NoError(t, err)
	}
	crashes(t, rounds)
}
