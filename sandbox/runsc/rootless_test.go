package runsc

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/internal/testenv"
)

// What it says of running without root is what happens, whatever that is on this machine.
func TestRootlessSaysWhatWouldBeLost(t *testing.T) {
	binary := testenv.Runsc(t)
	nobody := &syscall.Credential{Uid: 65534, Gid: 65534}
	took, err := tryRootless(t.Context(), binary, nobody)
	t.Logf("gVisor without root: %v after %s", err, took)
	f := finding("without root", rootlessCheck(t.Context(), binary, nobody), "")
	require.True(t, f.OK, "it is no requirement")
	require.Contains(t, f.Detail, "no limits of memory")
	if err == nil {
		require.Contains(t, f.Detail, "runs here without root (tried")
	} else {
		require.Contains(t, f.Detail, "does not run here without root")
	}
	f = finding("without root", rootlessCheck(t.Context(), filepath.Join(t.TempDir(), "none"), nil), "")
	require.Contains(t, f.Detail, "not tried")

	// A runsc that says nothing, and one that fails.
	for text, want := range map[string]string{"#!/bin/sh\nexit 0\n": "it said nothing", "#!/bin/sh\necho no way >&2; exit 3\n": "no way"} {
		fake := filepath.Join(t.TempDir(), "runsc")
		require.NoError(t, os.WriteFile(fake, []byte(text), 0o755))
		_, err := tryRootless(t.Context(), fake, nil)
		require.ErrorContains(t, err, want)
	}
}
