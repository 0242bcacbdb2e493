package sandboxtest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/sandbox"
)

func updates(t *testing.T, c *contract) {
	id := c.create(t)
	for _, res := range []sandbox.Resources{
		{CPU: 0.5, MemoryMB: 512, PIDs: 512},
		{CPU: 2, MemoryMB: 128, PIDs: 200},
		{CPU: 2, MemoryMB: 128, PIDs: 200}, // the same again
		{CPU: 1, MemoryMB: 4096, PIDs: 4096},
	} {
		require.NoError(t, c.Runtime.Update(c.ctx, id, res), "%+v", res)
	}
	// Less than what runs can live in is refused, and nothing of it takes effect.
	err := c.Runtime.Update(c.ctx, id, sandbox.Resources{CPU: 0.1, MemoryMB: 16 - 8, PIDs: 16})
	require.Error(t, err)
	alive, err := c.Runtime.Alive(c.ctx, id)
	require.NoError(t, err)
	require.True(t, alive)
	bridge, err := c.Runtime.Dial(c.ctx, id, true)
	require.NoError(t, err)
	c.hello(t, bridge)
	require.NoError(t, bridge.Close())

	require.Equal(t, fault.NotFound, fault.KindOf(c.Runtime.Update(c.ctx, sandbox.NewID(), sandbox.DefaultResources)))
	require.Error(t, c.Runtime.Update(c.ctx, "sb*", sandbox.DefaultResources))
}
