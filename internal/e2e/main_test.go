package e2e

import (
	"os"
	"testing"

	"sandgate/internal/testenv"
)

// Servers under test make links, rules and routes: never on the machine that runs the tests.
func TestMain(m *testing.M) { os.Exit(testenv.OwnNetwork(m.Run)) }
