package runsc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandgate/internal/fault"
	"sandgate/sandbox"
)

// A save lies in DATA/checkpoints/sg-INST-ID: "save" is whole, "next" is being made and takes its place in one step.
// Only root may enter: it holds everything that was in the sandbox's memory.
func (r *Runtime) savesDir() string { return filepath.Join(r.o.DataDir, "checkpoints") }

func (r *Runtime) saveDir(id sandbox.SaveID) string {
	return filepath.Join(r.savesDir(), r.mark()+string(id))
}

func (r *Runtime) whole(id sandbox.SaveID) string { return filepath.Join(r.saveDir(id), "save") }

func (r *Runtime) next(id sandbox.SaveID) string        { return filepath.Join(r.saveDir(id), "next") }
func (r *Runtime) ownSave(id sandbox.ID) sandbox.SaveID { return sandbox.SaveID(id) }

func (r *Runtime) holdFile(m manifest, id sandbox.SaveID) string {
	return filepath.Join(filepath.Dir(m.Rootfs), holdsName, r.mark()+string(id))
}

// holdsName is the directory beside a root filesystem in which saves that stand on it are named, so that it stays.
const holdsName = "holds"

// What a save consists of.
const (
	stateName    = "state"         // directory: what runsc wrote
	manifestName = "manifest.json" // what we know of it; last to be written
	configName   = "config.json"   // of the sandbox that was saved
	filesName    = "files.tar"     // what it changed in its image, for when the state cannot be used
)

// manifest is what is needed to judge a save and to restore from it.
type manifest struct {
	Save    sandbox.SaveID   `json:"save"`
	Sandbox sandbox.ID       `json:"sandbox"` // of which the state is
	At      time.Time        `json:"at"`
	Image   string           `json:"image"`
	Rootfs  string           `json:"rootfs"` // its directory's name is the image's digest
	Runsc   string           `json:"runsc"`  // first line of its --version
	CPU     []string         `json:"cpu"`    // features that programs may have found and rely on
	Memory  int64            `json:"memory"` // bytes that it took when it was saved
	Disk    int64            `json:"disk"`   // bytes of its writable layer
	Files   map[string]int64 `json:"files"`  // size of each file below the save's directory
	Whole   bool             `json:"whole"`
}

// loadManifest gives fault.NotFound where there is no whole save.
func (r *Runtime) loadManifest(id sandbox.SaveID) (manifest, error) {
	if !id.Valid() {
		return manifest{}, noSave()
	}
	m, err := readManifest(r.whole(id))
	if err != nil || !m.Whole || m.Save != id {
		return manifest{}, noSave()
	}
	return m, nil
}

func noSave() error { return fault.New(fault.NotFound, "There is no save of this sandbox.") }

func readManifest(dir string) (m manifest, err error) {
	err = readJSON(filepath.Join(dir, manifestName), &m)
	return m, err
}

// Saved implements sandbox.Saver.
func (r *Runtime) Saved(ctx context.Context, id sandbox.SaveID) (sandbox.Save, error) {
	m, err := r.loadManifest(id)
	if err != nil {
		return sandbox.Save{}, err
	}
	return m.public(), ctx.Err()
}

func (m manifest) public() sandbox.Save {
	s := sandbox.Save{ID: m.Save, At: m.At, Image: m.Image, Whole: m.Whole}
	for _, n := range m.Files {
		s.Bytes += n
	}
	return s
}

// Saves implements sandbox.Saver.
func (r *Runtime) Saves(ctx context.Context) ([]sandbox.Save, error) {
	ids, err := r.saveIDs()
	if err != nil {
		return nil, err
	}
	var out []sandbox.Save
	for _, id := range ids {
		m, err := r.loadManifest(id)
		if err != nil {
			m = manifest{Save: id}
		}
		s := m.public()
		_, err = os.Stat(r.next(id))
		s.Unfinished = err == nil
		out = append(out, s)
	}
	return out, ctx.Err()
}

// saveIDs lists what has a directory, whole or not.
func (r *Runtime) saveIDs() ([]sandbox.SaveID, error) {
	entries, err := os.ReadDir(r.savesDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list saves: %w", err)
	}
	var out []sandbox.SaveID
	for _, e := range entries {
		if rest, ok := strings.CutPrefix(e.Name(), r.mark()); ok && sandbox.SaveID(rest).Valid() {
			out = append(out, sandbox.SaveID(rest))
		}
	}
	return out, nil
}

// DropSave implements sandbox.Saver.
func (r *Runtime) DropSave(ctx context.Context, id sandbox.SaveID) error {
	if !id.Valid() {
		return noSave()
	}
	var errs []error
	for _, dir := range []string{r.whole(id), r.next(id)} {
		if m, err := readManifest(dir); err == nil {
			errs = append(errs, removeFile(r.holdFile(m, id)))
		}
	}
	errs = append(errs, os.RemoveAll(r.saveDir(id)))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("drop save %s: %w", id, err)
	}
	return ctx.Err()
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// hold names the save beside the root filesystem that it stands on.
func (r *Runtime) hold(m manifest, id sandbox.SaveID) error {
	path := r.holdFile(m, id)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(r.saveDir(id)), 0o600)
}

// heldBySave reports whether a save stands on a root filesystem. A note whose save is gone, with its data directory say,
// holds nothing.
func heldBySave(rootfs string) bool {
	dir := filepath.Join(filepath.Dir(rootfs), holdsName)
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil || !filepath.IsAbs(string(b)) {
			continue
		}
		if _, err := os.Stat(string(b)); err == nil {
			return true
		}
	}
	return false
}

// sealSave makes a save whole: its files are on the disk and counted before the manifest says so.
func sealSave(dir string, m manifest) error {
	m.Files = map[string]int64{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || d.Name() == manifestName {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		m.Files[rel], err = syncFile(path, !m.Save.Passing())
		return err
	})
	if err != nil {
		return err
	}
	if m.Files[filepath.Join(stateName, "checkpoint.img")] == 0 {
		return errors.New("runsc wrote no state")
	}
	m.Whole = true
	if err := writeJSON(filepath.Join(dir, manifestName), m, 0o600); err != nil {
		return err
	}
	for _, path := range []string{filepath.Join(dir, manifestName), filepath.Join(dir, stateName), dir} {
		if _, err := syncFile(path, !m.Save.Passing()); err != nil {
			return err
		}
	}
	return nil
}

// syncFile gives the size of a file or directory, if asked once it is on the disk.
func syncFile(path string, wait bool) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	fi, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if !wait {
		return fi.Size(), nil
	}
	return fi.Size(), f.Sync()
}

// keep puts next in the place of the save in one step, and drops what was there.
func (r *Runtime) keep(id sandbox.SaveID) error {
	next, whole := r.next(id), r.whole(id)
	err := unix.Renameat2(unix.AT_FDCWD, next, unix.AT_FDCWD, whole, unix.RENAME_EXCHANGE)
	switch {
	case errors.Is(err, unix.ENOENT):
		err = os.Rename(next, whole)
	case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS): // a file system that cannot exchange
		if err = os.RemoveAll(whole); err == nil {
			err = os.Rename(next, whole)
		}
	case err == nil:
		err = os.RemoveAll(next)
	}
	if err != nil {
		return err
	}
	_, err = syncFile(r.saveDir(id), !id.Passing())
	return err
}

// intact compares the files of a save with what its manifest says; a cut one must not be started.
func (r *Runtime) intact(m manifest, names ...string) error {
	for name, size := range m.Files {
		if len(names) > 0 && !slices.Contains(names, name) {
			continue
		}
		fi, err := os.Lstat(filepath.Join(r.whole(m.Save), name))
		if err != nil || !fi.Mode().IsRegular() || fi.Size() != size {
			return fmt.Errorf("%s is damaged or missing", name)
		}
	}
	return nil
}

// room refuses a save for which there is none, or that is above what all saves together may take.
func (r *Runtime) room(id sandbox.SaveID, need int64) error {
	if r.o.MaxSaves > 0 {
		saves, err := r.Saves(context.Background())
		if err != nil {
			return err
		}
		sum := need
		for _, s := range saves {
			if s.ID != id {
				sum += s.Bytes
			}
		}
		if sum > r.o.MaxSaves {
			return fault.New(fault.HostFull, "Suspended sandboxes and snapshots may take %d MiB of the host's disk, and this one does not fit any more.", r.o.MaxSaves>>20)
		}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(r.savesDir(), &st); err != nil {
		return fmt.Errorf("room for a save: %w", err)
	}
	free, size := int64(st.Bavail)*st.Bsize, int64(st.Blocks)*st.Bsize
	if free-need < max(size/20, 256<<20) {
		return fault.New(fault.HostFull, "The host's disk has no room for the state of this sandbox.")
	}
	return nil
}

var featurePattern = regexp.MustCompile(`^(sse|ssse|avx|amx|aes|bmi|fma|sha|xsave|vaes|gfni|adx|movbe|popcnt|rdrand|rdseed|fsgsbase|erms|f16c|vpclmul|pclmul|asimd|sve|atomics|crc32)`)

// cpuFeatures are the processor's, as far as programs choose their code by them.
var cpuFeatures = sync.OnceValue(func() []string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		name, value, ok := strings.Cut(sc.Text(), ":")
		if n := strings.TrimSpace(name); ok && (n == "flags" || n == "Features") {
			all := slices.DeleteFunc(strings.Fields(value), func(s string) bool { return !featurePattern.MatchString(s) })
			slices.Sort(all)
			return slices.Compact(all)
		}
	}
	return nil
})

// version is the first line of runsc --version; a save of another is not restored. It is asked once: a program that is
// replaced under a running server is not looked for.
func (r *Runtime) version(ctx context.Context) (string, error) {
	r.versions.Lock()
	defer r.versions.Unlock()
	if r.said == "" {
		said, err := saidVersion(ctx, r.o.Binary)
		if err != nil {
			return "", fmt.Errorf("version of runsc: %w", err)
		}
		r.said = said
	}
	return r.said, nil
}

// restorable says why a save cannot be made to run again here; nil: it can be tried.
func (r *Runtime) restorable(ctx context.Context, m manifest) error {
	version, err := r.version(ctx)
	if err != nil {
		return err
	}
	if version != m.Runsc {
		return fmt.Errorf("%w: it was made by %q, this is %q", sandbox.ErrUnrestorable, m.Runsc, version)
	}
	have := r.features()
	for _, f := range m.CPU {
		if !slices.Contains(have, f) {
			return fmt.Errorf("%w: the processor lacks %s", sandbox.ErrUnrestorable, f)
		}
	}
	if err := r.intact(m); err != nil {
		return fmt.Errorf("%w: %w", sandbox.ErrUnrestorable, err)
	}
	return nil
}

// savedConfig reads the configuration of the sandbox that was saved.
func savedConfig(dir string, into any) error {
	return readJSON(filepath.Join(dir, configName), into)
}
