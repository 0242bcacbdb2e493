//go:build soak

package e2e

import "testing"

// The long form of TestOpeningAndClosingTerminalsLeavesNothing.
func TestTwoThousandTerminalsLeaveNothing(t *testing.T) { openAndClose(t, 2000) }
