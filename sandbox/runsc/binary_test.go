package runsc

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/internal/testenv"
	"sandgate/sandbox/image"
)

func program(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "runsc")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	return path
}

func TestCheckRefusesWhatCannotBeTrusted(t *testing.T) {
	require.NoError(t, Check(t.Context(), program(t, "echo runsc version "+Version)))
	require.NoError(t, Check(t.Context(), program(t, "echo runsc version release-"+MinDate+".0")))
	usual := versionLimit
	t.Cleanup(func() { versionLimit = usual })
	for script, say := range map[string]string{
		"echo runsc version release-20220101.0": "20220101",
		"echo runsc version VERSION_MISSING":    "VERSION_MISSING",
		"echo hello":                            "hello",
		"exit 3":                                "exit status 3",
		"yes":                                   "did not say",
		"exec sleep 60":                         "did not say",
	} {
		versionLimit = usual
		if say == "did not say" { // only what never answers has to run into the limit
			versionLimit = time.Second
		}
		begun := time.Now()
		err := Check(t.Context(), program(t, script))
		require.Error(t, err, script)
		require.Contains(t, fault.Public(err), say, script)
		require.Contains(t, fault.Public(err), "sandgate setup", script)
		require.Less(t, time.Since(begun), usual, script)
	}
	err := Check(t.Context(), filepath.Join(t.TempDir(), "nothing"))
	require.Contains(t, fault.Public(err), "There is no runsc")
}

func TestEnsureWithoutSourceLooksIntoTheCacheOnly(t *testing.T) {
	cache := t.TempDir()
	_, err := Ensure(t.Context(), cache, "", &bytes.Buffer{})
	require.Error(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(Path(cache)), 0o755))
	require.NoError(t, os.Symlink(program(t, "echo runsc version "+Version), Path(cache)))
	path, err := Ensure(t.Context(), cache, "", &bytes.Buffer{})
	require.NoError(t, err)
	require.Equal(t, Path(cache), path)
}

func TestABuildThatFailsLeavesNoProgram(t *testing.T) {
	cache := t.TempDir()
	_, err := Build(t.Context(), cache, t.TempDir(), &bytes.Buffer{})
	require.Error(t, err)
	require.Contains(t, fault.Public(err), "Building runsc failed")
	require.NoFileExists(t, Path(cache))
	require.NoFileExists(t, Path(cache)+".new")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Build(ctx, cache, t.TempDir(), &bytes.Buffer{})
	require.ErrorIs(t, err, context.Canceled)
}

func TestVersionIsThePinnedOne(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(testenv.Top(t), "tools", "runsc", "go.mod"))
	require.NoError(t, err)
	m := regexp.MustCompile(`gvisor\.dev/gvisor v0\.0\.0-(\d{8})\d{6}-`).FindSubmatch(b)
	require.NotNil(t, m)
	require.Equal(t, Version, fmt.Sprintf("release-%s.0", m[1]))
}

func TestDoctorNamesTheMendOfWhatFails(t *testing.T) {
	images, err := image.Open(t.TempDir())
	require.NoError(t, err)
	found := map[string]Finding{}
	for _, f := range Doctor(t.Context(), DoctorOptions{Binary: filepath.Join(t.TempDir(), "runsc"), Images: images, DataDir: t.TempDir(), Inst: "test"}) {
		found[f.Name] = f
		if !f.OK {
			require.NotEmpty(t, f.Mend, f.Name)
			require.NotEmpty(t, f.Detail, f.Name)
		}
	}
	require.False(t, found["runsc"].OK)
	require.Equal(t, "sandgate setup", found["runsc"].Mend)
	require.False(t, found["image base"].OK)
	require.Equal(t, "missing", found["image base"].Detail)
	require.True(t, found["linux kernel"].OK)
}
