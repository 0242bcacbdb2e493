package workspace_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/fault"
	"sandgate/sandbox"
)

// What slept runs again when it is woken, and nothing runs for somebody who may only look.
func TestWhoMayOnlyLookWakesNothing(t *testing.T) {
	w := newWorld(t)
	id := w.newPersistent(t)
	_, err := w.SuspendSandbox(context.Background(), w.ann, id)
	require.NoError(t, err)
	reader := w.ann
	reader.Permissions = auth.Permissions{auth.SandboxesRead}
	_, err = w.Commands(context.Background(), reader, id)
	require.True(t, fault.Is(err, fault.Conflict), err)
	r, err := w.manager.Record(context.Background(), sandbox.ID(id))
	require.NoError(t, err)
	require.Equal(t, sandbox.Suspended, r.Status)
	_, err = w.Commands(context.Background(), w.ann, id)
	require.NoError(t, err)
	r, err = w.manager.Record(context.Background(), sandbox.ID(id))
	require.NoError(t, err)
	require.Equal(t, sandbox.Running, r.Status)
}
