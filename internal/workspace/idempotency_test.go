package workspace_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
)

func TestRepeatedCreate(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	o := workspace.CreateOptions{Label: "once", Cwd: w.tmp, User: w.user, IdempotencyKey: "k"}
	var early error
	w.gate.during = func() { _, early = w.CreateSandbox(ctx, w.ann, o) }
	made, err := w.CreateSandbox(ctx, w.ann, o)
	require.NoError(t, err)
	require.True(t, fault.Is(early, fault.Starting), "claimed, but no record is written yet: %v", early)

	again, err := w.CreateSandbox(ctx, w.ann, o)
	require.NoError(t, err)
	require.Equal(t, made.ID, again.ID)
	other := o
	other.Label = "another"
	_, err = w.CreateSandbox(ctx, w.ann, other)
	require.True(t, fault.Is(err, fault.Conflict), err)
	require.NoError(t, w.manager.Kill(ctx, made.ID, sandbox.ReasonKilled))
	_, err = w.CreateSandbox(ctx, w.ann, o)
	require.True(t, fault.Is(err, fault.Conflict), err)
}
