package guest

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A table that is kept in memory follows its file, also when it changes within the file system's grain.
func TestTableFollowsItsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "passwd")
	tab := table{path: path}
	first := func() (name string) {
		tab.each(1, func(f []string) bool { name = f[0]; return false })
		return name
	}
	require.Empty(t, first(), "no file")
	for _, name := range []string{"ann", "bob", "cy"} { // as fast as it goes, two of one size
		require.NoError(t, os.WriteFile(path, []byte(name+":x:1:1::/:\n"), 0o600))
		require.Equal(t, name, first())
	}
	require.Eventually(t, func() bool { return first() == "cy" && tab.rows != nil }, 60*time.Second, 10*time.Millisecond, "kept once it is old enough")
	require.NoError(t, os.WriteFile(path, []byte("dee:x:1:1::/:\n"), 0o600))
	require.Equal(t, "dee", first())
	require.NoError(t, os.Remove(path))
	require.Empty(t, first())
}
