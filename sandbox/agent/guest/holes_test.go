package guest

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatAFileSystemHolds(t *testing.T) {
	require.Equal(t, int64(imageSlack+4096*10), holds(10, 4096))
	require.Equal(t, int64(math.MaxInt64), holds(math.MaxUint64, 4096))
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	require.NoError(t, err)
	defer f.Close()
	require.Greater(t, plausible(f), int64(imageSlack))
}
