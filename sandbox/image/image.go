// Package image owns root filesystems: it builds them from Debian packages, keeps them in a cache directory and says
// which are ready. It must never change an image that is in use: a build makes a new directory and switches a link.
package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandgate/internal/fault"
)

// OwnerShift is added to every owner of an image's files when it is made: id 0 inside a sandbox is this id on the host.
const OwnerShift = 200000

// Image is one built root filesystem. Rootfs never changes once it is there.
type Image struct {
	Name       string    `json:"name"`
	Digest     string    `json:"digest"`     // of definition and installed packages: 32 hex digits
	Definition string    `json:"definition"` // digest of the definition alone: tells an outdated image
	Suite      string    `json:"suite"`
	Packages   []string  `json:"packages"` // "name version", sorted
	SizeBytes  int64     `json:"size_bytes"`
	CreatedAt  time.Time `json:"created_at"`
	Rootfs     string    `json:"-"` // absolute path of the directory
}

// Status says what can be done with an image now.
type Status string

// The statuses. Ready wins: an image that is being rebuilt is still Ready, with Percent below 100.
const (
	Missing  Status = "missing"
	Building Status = "building"
	Ready    Status = "ready"
	Failed   Status = "failed"
)

// State is what people are shown of an image.
type State struct {
	Name    string `json:"name"`
	Status  Status `json:"status"`
	Percent int    `json:"percent"` // 0 to 100
	Phase   string `json:"phase"`   // what the builder does now
	Error   string `json:"error"`   // of the last build, when it failed
	LogTail string `json:"log_tail"`
	// Outdated means that the definition changed since the image was built; it works, a new build is due.
	Outdated bool `json:"outdated"`
}

// Store keeps images below one cache directory. Several processes may share it: builds of one name exclude each other
// by a file lock that dies with its holder. Safe for concurrent use.
type Store struct{ dir string }

var (
	namePattern   = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,31}$`)
	digestPattern = regexp.MustCompile(`^[0-9a-f]{32}$`)
)

// Open uses (and makes) CACHEDIR/images. What interrupted builds left behind is removed, unless their builder lives.
func Open(cacheDir string) (*Store, error) {
	abs, err := filepath.Abs(cacheDir)
	if err != nil {
		return nil, fmt.Errorf("image cache %s: %w", cacheDir, err)
	}
	s := &Store{dir: filepath.Join(abs, "images")}
	// Sandboxes' file servers run as an unprivileged user and must get through to the images. What is above the cache is
	// not ours to open.
	if err := mkdirOpen(s.dir); err != nil {
		return nil, fmt.Errorf("image cache: %w", err)
	}
	if fi, err := os.Stat(abs); err == nil && fi.Mode().Perm()&0o001 == 0 {
		_ = os.Chmod(abs, fi.Mode().Perm()|0o011) // somebody else's: whoever passes there says so
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("image cache: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() || !namePattern.MatchString(e.Name()) {
			continue
		}
		if lock, held, err := tryLock(s.lockFile(e.Name())); err == nil && !held {
			err = removeTree(s.buildDir(e.Name()))
			_ = lock.Close()
			if err != nil {
				return nil, fmt.Errorf("interrupted build of image %s: %w", e.Name(), err)
			}
		}
	}
	return s, nil
}

// mkdirOpen makes a directory that others may pass through, whatever the umask is.
func mkdirOpen(dir string) error {
	return errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o755))
}

// Dir is the directory that holds the images.
func (s *Store) Dir() string { return s.dir }

func (s *Store) nameDir(name string) string  { return filepath.Join(s.dir, name) }
func (s *Store) lockFile(name string) string { return filepath.Join(s.dir, name, ".lock") }
func (s *Store) buildDir(name string) string { return filepath.Join(s.dir, name, ".build") }
func (s *Store) logFile(name string) string  { return filepath.Join(s.dir, name, "build.log") }
func (s *Store) current(name string) string  { return filepath.Join(s.dir, name, "current") }

// Get gives the current image of a name. Not there: fault.NotFound for a name nobody defined, fault.Starting while it
// is still built or was never built.
func (s *Store) Get(name string) (Image, error) {
	if !namePattern.MatchString(name) {
		return Image{}, fault.Field("image", "there is no image of this name")
	}
	digest, err := os.Readlink(s.current(name))
	if errors.Is(err, fs.ErrNotExist) {
		if _, known := definitions[name]; !known {
			return Image{}, fault.New(fault.NotFound, "There is no image named %s.", name)
		}
		return Image{}, s.notReady(name)
	}
	if err != nil {
		return Image{}, fmt.Errorf("image %s: %w", name, err)
	}
	return s.load(name, filepath.Base(digest))
}

func (s *Store) notReady(name string) error {
	st := s.State(name)
	switch st.Status {
	case Building:
		return fault.New(fault.Starting, "The image %s is still being built (%d %%: %s).", name, st.Percent, st.Phase)
	case Failed:
		return fault.New(fault.Starting, "The image %s could not be built. \"sandgate image build %s\" tries again and says why.", name, name)
	}
	return fault.New(fault.Starting, "The image %s is not built yet. \"sandgate setup\" builds it.", name)
}

func (s *Store) load(name, digest string) (Image, error) {
	dir := filepath.Join(s.nameDir(name), digest)
	var img Image
	if err := readJSON(filepath.Join(dir, "manifest.json"), &img); err != nil {
		return Image{}, fmt.Errorf("image %s: %w", name, err)
	}
	img.Rootfs = filepath.Join(dir, "rootfs")
	if fi, err := os.Stat(img.Rootfs); err != nil || !fi.IsDir() {
		return Image{}, fmt.Errorf("image %s: its directory is damaged: remove it and build it again", name)
	}
	return img, nil
}

// Names lists the images that can be built.
func Names() []string {
	var out []string
	for n, d := range definitions {
		if !d.testOnly {
			out = append(out, n)
		}
	}
	sort.Strings(out)
	return out
}

// State says how an image stands; it reads a few small files and never waits for a build.
func (s *Store) State(name string) State {
	st := State{Name: name, Status: Missing}
	if !namePattern.MatchString(name) {
		return st
	}
	if digest, err := os.Readlink(s.current(name)); err == nil {
		if img, err := s.load(name, filepath.Base(digest)); err == nil {
			st.Status, st.Percent = Ready, 100
			if d, ok := definitions[name]; ok {
				st.Outdated = d.digest() != img.Definition
			}
		}
	}
	if s.locked(name) {
		var p progressFile
		_ = readJSON(filepath.Join(s.nameDir(name), "progress.json"), &p)
		st.Percent, st.Phase = p.Percent, p.Phase
		if st.Status != Ready {
			st.Status = Building
		}
		return st
	}
	var f failureFile
	if readJSON(filepath.Join(s.nameDir(name), "failed.json"), &f) == nil {
		st.Error, st.LogTail = f.Error, f.LogTail
		if st.Status != Ready {
			st.Status = Failed
		}
	}
	return st
}

// Remove takes an image and everything of its builds away. The caller makes sure that no sandbox uses it; a build that
// is under way is a fault.Conflict.
func (s *Store) Remove(ctx context.Context, name string) error {
	if !namePattern.MatchString(name) {
		return fault.Field("image", "there is no image of this name")
	}
	if _, err := os.Lstat(s.nameDir(name)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	lock, held, err := tryLock(s.lockFile(name))
	if err != nil {
		return fmt.Errorf("remove image %s: %w", name, err)
	}
	if held {
		return fault.New(fault.Conflict, "The image %s is being built.", name)
	}
	defer func() { _ = lock.Close() }()
	if err := ctx.Err(); err != nil {
		return err
	}
	// The link goes first, so that an interrupted removal leaves no image that looks whole.
	if err := os.Remove(s.current(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove image %s: %w", name, err)
	}
	return removeTree(s.nameDir(name))
}

// Prune removes trees that a newer build has replaced, unless inUse says that a sandbox stands on them.
func (s *Store) Prune(ctx context.Context, inUse func(rootfs string) (bool, error)) error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("prune images: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		if e.IsDir() && namePattern.MatchString(e.Name()) {
			errs = append(errs, s.pruneOne(e.Name(), inUse))
		}
	}
	return errors.Join(errs...)
}

func (s *Store) pruneOne(name string, inUse func(rootfs string) (bool, error)) error {
	lock, held, err := tryLock(s.lockFile(name))
	if err != nil || held { // a build is under way: next time
		return err
	}
	defer func() { _ = lock.Close() }()
	current, err := os.Readlink(s.current(name))
	if err != nil { // without a current one it cannot be told which is old
		return nil
	}
	trees, err := os.ReadDir(s.nameDir(name))
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range trees {
		if !d.IsDir() || !digestPattern.MatchString(d.Name()) || d.Name() == filepath.Base(current) {
			continue
		}
		dir := filepath.Join(s.nameDir(name), d.Name())
		used, err := inUse(filepath.Join(dir, "rootfs"))
		if err == nil && !used {
			// The manifest goes first: what is left of an interrupted removal is no image.
			_ = os.Remove(filepath.Join(dir, "manifest.json"))
			err = removeTree(dir)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

type progressFile struct {
	Phase   string `json:"phase"`
	Percent int    `json:"percent"`
}

type failureFile struct {
	Error   string `json:"error"`
	LogTail string `json:"log_tail"`
}

// locked reports whether a builder of this name lives.
func (s *Store) locked(name string) bool {
	f, err := os.Open(s.lockFile(name))
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	// A shared lock is enough to see an exclusive one, and does not get in a builder's way for longer than this call.
	return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == unix.EWOULDBLOCK
}

// tryLock takes the lock of one image's builds; held means that somebody else has it. Closing the file frees it.
func tryLock(path string) (f *os.File, held bool, err error) {
	f, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, false, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, true, nil
		}
		return nil, false, err
	}
	return f, false, nil
}

func readJSON(path string, into any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("read %s: %w", filepath.Base(path), err)
	}
	return nil
}

// writeJSON replaces a file atomically.
func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// removeTree removes a directory of ours. It refuses a tree that something is still mounted in: RemoveAll would go
// through a bind mount and delete what is behind it.
func removeTree(dir string) error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if len(fields) > 4 && (fields[4] == dir || strings.HasPrefix(fields[4], dir+"/")) {
			return fmt.Errorf("remove %s: %s is still mounted", dir, fields[4])
		}
	}
	return os.RemoveAll(dir)
}
