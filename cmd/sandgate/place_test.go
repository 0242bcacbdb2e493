package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

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

// What a killed server was starting holds the lock for a moment longer than the server lived; another server is told.
func TestTheLockIsWaitedFor(t *testing.T) {
	d := &dataDir{path: t.TempDir()}
	f, err := os.OpenFile(filepath.Join(d.path, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	require.NoError(t, err)
	require.NoError(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
	child := exec.Command("sleep", "1")
	child.ExtraFiles = []*os.File{f}
	require.NoError(t, child.Start())
	require.NoError(t, f.Close())

	release, err := d.lock(t.Context(), time.Minute)
	require.NoError(t, err)
	require.NoError(t, child.Wait())
	_, err = d.lock(t.Context(), 0)
	require.ErrorIs(t, err, errBusy)
	release()
	release, err = d.lock(t.Context(), time.Minute)
	require.NoError(t, err)
	release()
}
