package workspace_test

import (
	"bytes"
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
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

// Whoever waits for the end of a background command goes with the server.
func TestNobodyWaitsForCommandsOfAServerThatHasEnded(t *testing.T) {
	w := newWorld(t)
	id := w.newSandbox(t)
	_, err := w.StartCommand(context.Background(), w.ann, id, agent.CommandSpec{Command: "sleep 600"})
	require.NoError(t, err)
	waiting := func() bool {
		buf := make([]byte, 4<<20)
		return bytes.Contains(buf[:runtime.Stack(buf, true)], []byte("(*Service).await"))
	}
	require.Eventually(t, waiting, 60*time.Second, 5*time.Millisecond)
	w.manager.Close()
	require.Eventually(t, func() bool { return !waiting() }, 60*time.Second, 5*time.Millisecond)
}
