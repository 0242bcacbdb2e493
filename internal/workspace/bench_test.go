package workspace_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/workspace"
)

// BenchmarkKeyActor is what every call of the REST face pays first.
func BenchmarkKeyActor(b *testing.B) {
	h := buildHouse(b, nil)
	_, secret, _ := h.key(b, h.setup(b, true), workspace.KeyForm{Name: "k", ForMe: true, Permissions: auth.Permissions{auth.SandboxesRun}})
	for b.Loop() {
		_, err := h.KeyActor(context.Background(), secret, "192.0.2.1", "r")
		require.NoError(b, err)
	}
}
