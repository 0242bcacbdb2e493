package workspace_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/audit"
	"sandgate/internal/workspace"
)

// BenchmarkRecord is what the record adds to a call that changes something: its intent and its outcome. The row audit_cost
// of the benchmark table is this.
func BenchmarkRecord(b *testing.B) {
	h := buildHouse(b, nil)
	e := audit.Event{
		WorkspaceID: "w1", ActorKind: auth.KeyUser, ActorID: "k1", Actor: "nightly", Address: "192.0.2.1", SandboxID: "sbaaaaaaaaaaaaaaaaaaaa",
		Action: "command.run", Target: "true", Digest: strings.Repeat("0", 64), RequestID: strings.Repeat("r", 26),
	}
	for b.Loop() {
		entry, err := h.log.Begin(context.Background(), e)
		require.NoError(b, err)
		entry.End(nil, "exit 0")
	}
}

// BenchmarkKeyActor is what every call of the REST face pays first.
func BenchmarkKeyActor(b *testing.B) {
	h := buildHouse(b, nil)
	_, secret, _ := h.key(b, h.setup(b, true), workspace.KeyForm{Name: "k", ForMe: true, Permissions: auth.Permissions{auth.SandboxesRun}})
	for b.Loop() {
		_, err := h.KeyActor(context.Background(), secret, "192.0.2.1", "r")
		require.NoError(b, err)
	}
}
