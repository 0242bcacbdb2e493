package image

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sandgate/internal/fault"
	"sandgate/internal/testenv"
)

func store(t *testing.T) *Store {
	t.Helper()
	dir, err := os.MkdirTemp("", "sandgate-images-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	s, err := Open(dir)
	require.NoError(t, err)
	return s
}

// builder needs what a build needs.
func builder(t *testing.T) {
	t.Helper()
	testenv.Root(t)
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		t.Fatal("mmdebstrap is not installed: \"sandgate setup\" installs it")
	}
}

func TestBuildOfASmallImage(t *testing.T) {
	builder(t)
	s := store(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	_, err := s.Get("tiny")
	require.Equal(t, fault.Starting, fault.KindOf(err))
	require.Equal(t, Missing, s.State("tiny").Status)

	last := -1
	var during State
	img, err := s.Build(ctx, "tiny", Options{Progress: func(_ string, percent int) {
		require.GreaterOrEqual(t, percent, last, "progress never goes back")
		last = percent
		if percent < 100 {
			during = s.State("tiny")
		}
	}})
	require.NoError(t, err)
	require.Equal(t, 100, last)
	require.Equal(t, Building, during.Status)
	require.NotEmpty(t, during.Phase)

	got, err := s.Get("tiny")
	require.NoError(t, err)
	require.Equal(t, img, got)
	require.Equal(t, State{Name: "tiny", Status: Ready, Percent: 100}, s.State("tiny"))
	require.NotEmpty(t, img.Packages)
	for path, mode := range map[string]uint32{
		".": unix.S_IFDIR | 0o755, "work": unix.S_IFDIR | 0o755, ".sandgate/agent": unix.S_IFREG | 0o755,
		".sandgate-run": unix.S_IFDIR | 0o700, "tmp": unix.S_IFDIR | 0o1777, "usr/bin/busybox": unix.S_IFREG | 0o755,
	} {
		var st unix.Stat_t
		require.NoError(t, unix.Lstat(filepath.Join(img.Rootfs, path), &st), path)
		require.Equal(t, uint32(OwnerShift), st.Uid, path)
		require.Equal(t, uint32(OwnerShift), st.Gid, path)
		require.Equal(t, mode, st.Mode, path)
	}
	require.NoDirExists(t, filepath.Join(img.Rootfs, scratch))

	built, err := os.Stat(s.logFile("tiny"))
	require.NoError(t, err)
	again, err := s.Build(ctx, "tiny", Options{})
	require.NoError(t, err)
	require.Equal(t, img, again)
	log, err := os.Stat(s.logFile("tiny"))
	require.NoError(t, err)
	require.Equal(t, built.ModTime(), log.ModTime(), "an image that is up to date is not built again")

	require.NoError(t, s.Remove(ctx, "tiny"))
	require.NoError(t, s.Remove(ctx, "tiny"), "removing again")
	require.Equal(t, Missing, s.State("tiny").Status)
}

func TestAFailedBuildSaysWhyAndLeavesNothing(t *testing.T) {
	builder(t)
	s := store(t)
	_, err := s.Build(t.Context(), "tiny", Options{Mirror: "http://127.0.0.1:9/debian"})
	require.Error(t, err)
	require.Contains(t, fault.Public(err), "ends with:\n")
	st := s.State("tiny")
	require.Equal(t, Failed, st.Status)
	require.NotEmpty(t, st.Error)
	require.Contains(t, st.LogTail, "127.0.0.1")
	require.LessOrEqual(t, strings.Count(st.LogTail, "\n"), tailLines)
	require.NoDirExists(t, s.buildDir("tiny"))
	_, err = s.Get("tiny")
	require.Contains(t, fault.Public(err), "could not be built")
}

func TestACancelledBuildLeavesNothing(t *testing.T) {
	builder(t)
	s := store(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := s.Build(ctx, "tiny", Options{Progress: func(_ string, percent int) {
		if percent > 1 {
			cancel()
		}
	}})
	require.ErrorIs(t, err, context.Canceled)
	require.NoDirExists(t, s.buildDir("tiny"))
	require.Equal(t, Missing, s.State("tiny").Status)
}

func TestWhatAnInterruptedBuildLeftIsRemovedUnlessItsBuilderLives(t *testing.T) {
	s := store(t)
	require.NoError(t, os.MkdirAll(filepath.Join(s.buildDir("tiny"), "rootfs", "etc"), 0o755))
	lock, held, err := tryLock(s.lockFile("tiny"))
	require.NoError(t, err)
	require.False(t, held)
	_, err = Open(filepath.Dir(s.dir))
	require.NoError(t, err)
	require.DirExists(t, s.buildDir("tiny"))
	require.Equal(t, Building, s.State("tiny").Status)
	require.Equal(t, fault.Conflict, fault.KindOf(s.Remove(t.Context(), "tiny")))
	require.NoError(t, lock.Close())
	_, err = Open(filepath.Dir(s.dir))
	require.NoError(t, err)
	require.NoDirExists(t, s.buildDir("tiny"))
}

func TestPruneTakesWhatIsReplacedAndUnused(t *testing.T) {
	s := store(t)
	for _, digest := range []string{"00000000000000000000000000000001", "00000000000000000000000000000002", "00000000000000000000000000000003"} {
		require.NoError(t, os.MkdirAll(filepath.Join(s.nameDir("tiny"), digest, "rootfs"), 0o755))
	}
	require.NoError(t, os.Symlink("00000000000000000000000000000003", s.current("tiny")))
	used := filepath.Join(s.nameDir("tiny"), "00000000000000000000000000000001", "rootfs")
	require.NoError(t, s.Prune(t.Context(), func(rootfs string) (bool, error) { return rootfs == used, nil }))
	require.DirExists(t, filepath.Join(s.nameDir("tiny"), "00000000000000000000000000000001"))
	require.NoDirExists(t, filepath.Join(s.nameDir("tiny"), "00000000000000000000000000000002"))
	require.DirExists(t, filepath.Join(s.nameDir("tiny"), "00000000000000000000000000000003"))
}

func TestNamesAreChecked(t *testing.T) {
	s := store(t)
	for _, name := range []string{"", "..", "../etc", "Base", "a/b", "-x", strings.Repeat("a", 100)} {
		_, err := s.Get(name)
		require.Equal(t, fault.Invalid, fault.KindOf(err), name)
		require.Error(t, s.Remove(t.Context(), name), name)
		require.Equal(t, Missing, s.State(name).Status)
		_, err = s.Build(t.Context(), name, Options{})
		require.Equal(t, fault.NotFound, fault.KindOf(err), name)
	}
	_, err := s.Get("unknown")
	require.Equal(t, fault.NotFound, fault.KindOf(err))
	_, err = s.Build(t.Context(), "tiny", Options{Mirror: "http://x y"})
	require.Equal(t, fault.Invalid, fault.KindOf(err))
}

func TestRemoveTreeRefusesAMount(t *testing.T) {
	testenv.Root(t)
	dir := t.TempDir()
	inner := filepath.Join(dir, "a", "b")
	require.NoError(t, os.MkdirAll(inner, 0o755))
	require.NoError(t, unix.Mount("none", inner, "tmpfs", 0, "size=64k"))
	defer func() { _ = unix.Unmount(inner, 0) }()
	require.NoError(t, os.WriteFile(filepath.Join(inner, "kept"), nil, 0o600))
	require.Error(t, removeTree(dir))
	require.FileExists(t, filepath.Join(inner, "kept"))
}

func TestOwnersAreShiftedOnceAndModesKept(t *testing.T) {
	testenv.Root(t)
	dir := t.TempDir()
	a := filepath.Join(dir, "sudo")
	require.NoError(t, os.WriteFile(a, []byte("x"), 0o755))
	require.NoError(t, unix.Chown(a, 0, 42))
	require.NoError(t, unix.Chmod(a, 0o6755))
	require.NoError(t, os.Link(a, filepath.Join(dir, "same")))
	require.NoError(t, os.Symlink("/etc/shadow", filepath.Join(dir, "link")))
	host, err := os.Stat("/etc/shadow")
	require.NoError(t, err)
	for range 2 {
		_, err = shiftOwners(t.Context(), dir)
		require.NoError(t, err)
	}
	var st unix.Stat_t
	require.NoError(t, unix.Lstat(a, &st))
	require.Equal(t, []uint32{OwnerShift, OwnerShift + 42, unix.S_IFREG | 0o6755}, []uint32{st.Uid, st.Gid, st.Mode})
	require.NoError(t, unix.Lstat(filepath.Join(dir, "link"), &st))
	require.Equal(t, uint32(OwnerShift), st.Uid)
	after, err := os.Stat("/etc/shadow")
	require.NoError(t, err)
	require.Equal(t, host.Sys(), after.Sys(), "what a link leads to is not touched")
}

func TestSources(t *testing.T) {
	dir := t.TempDir()
	require.Nil(t, sources("trixie", "", dir), "nothing known: the builder's default")
	require.Equal(t, []string{"deb http://m.example/d trixie main"}, sources("trixie", "http://m.example/d", dir))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "sources.list.d"), 0o755))
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	write("sources.list", "# deb http://no.example/debian bookworm main\ndeb [arch=amd64 signed-by=/x] https://one.example/debian/ bookworm main\n")
	write("sources.list.d/debian.sources", "Types: deb deb-src\n# a comment\nURIs: http://two.example/debian\nSuites: bookworm bookworm-updates\n\nTypes: deb\nURIs: http://two.example/debian-security\nSuites: bookworm-security\n")
	write("sources.list.d/vendor.list", "deb https://vendor.example/apt stable main\n")
	write("sources.list.d/off.sources.disabled", "Types: deb\nURIs: http://off.example/debian\nSuites: bookworm\n")
	require.Equal(t, []string{
		"deb https://one.example/debian/ trixie main", "deb https://one.example/debian/ trixie-updates main",
		"deb http://two.example/debian-security trixie-security main",
	}, sources("trixie", "", dir))
	require.NoError(t, os.Remove(filepath.Join(dir, "sources.list")))
	require.Equal(t, "deb http://two.example/debian trixie main", sources("trixie", "", dir)[0])
}

func TestNothingPrivateStaysInTheSourcesOfAnImage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sources.list")
	require.NoError(t, stripCredentials(path), "an image without apt")
	require.NoError(t, os.WriteFile(path, []byte("deb http://me:secret@m.example/debian trixie main\n"), 0o644))
	require.NoError(t, stripCredentials(path))
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "deb http://m.example/debian trixie main\n", string(b))
	require.Equal(t, "[global]\nindex-url = https://i.example/simple\n",
		string(dropLocalPaths([]byte("[global]\ncert = /etc/ca.pem\nindex-url = https://i.example/simple\nfind-links=/opt/w\n"))))
}

func TestReplaceFileDoesNotFollowALink(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "host")
	require.NoError(t, os.WriteFile(target, []byte("host"), 0o600))
	link := filepath.Join(dir, "etc")
	require.NoError(t, os.Symlink(target, link))
	require.NoError(t, replaceFile(link, []byte("image"), 0o644))
	b, err := os.ReadFile(target)
	require.NoError(t, err)
	require.Equal(t, "host", string(b))
	require.False(t, errors.Is(replaceFile(link, nil, 0o644), fs.ErrExist))
}

// Sandboxes get at images by others' right to pass: a cache that was made for its owner alone is opened that far, and no more.
func TestACacheMayBePassed(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o700))
	_, err := Open(dir)
	require.NoError(t, err)
	fi, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o711), fi.Mode().Perm())
}
