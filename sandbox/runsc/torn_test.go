package runsc

import (
	"io/fs"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/sandbox"
)

// A sandbox whose state was torn by a power cut must not count as running for ever.
func TestTornStateIsNoState(t *testing.T) {
	r := &Runtime{o: Options{DataDir: t.TempDir(), Inst: "test"}, boot: "b"}
	id := sandbox.NewID()
	require.NoError(t, os.MkdirAll(r.dir(id), 0o700))
	for _, text := range []string{"", `{"id":"`, "\x00\x00"} {
		require.NoError(t, os.WriteFile(r.stateFile(id), []byte(text), 0o600))
		_, err := r.load(id)
		require.ErrorIs(t, err, fs.ErrNotExist, "%q", text)
		alive, err := r.Alive(t.Context(), id)
		require.NoError(t, err)
		require.False(t, alive)
		death, err := r.Wait(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, sandbox.ReasonCrash, death.Reason)
	}
}
