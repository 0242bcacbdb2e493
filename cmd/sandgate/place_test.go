package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The data directory is closed to others, also when it was made open, and so is what is in it.
func TestTheDataDirectoryIsPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.Mkdir(dir, 0o755))
	p := place{Data: dir}
	d, err := p.openOrMake()
	require.NoError(t, err)
	fi, err := os.Stat(d.path)
	require.NoError(t, err)
	require.EqualValues(t, 0o700, fi.Mode().Perm())
	entries, err := os.ReadDir(d.path)
	require.NoError(t, err)
	require.NotEmpty(t, entries)
	for _, e := range entries {
		fi, err := e.Info()
		require.NoError(t, err)
		require.Zero(t, fi.Mode().Perm()&0o077, e.Name())
	}
}
