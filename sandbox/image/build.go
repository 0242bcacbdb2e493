package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandgate/internal/fault"
)

// Progress is told what a build does now, in percent of the whole. It is called from one goroutine at a time.
type Progress func(phase string, percent int)

// Options of a build.
type Options struct {
	Mirror   string    // of Debian packages; "" means the host's apt configuration, else the builder's default
	Force    bool      // build even if the current image is up to date
	Progress Progress  // may be nil
	Log      io.Writer // receives the builder's output besides build.log; may be nil
}

// MinFreeBytes is what a build wants free in the cache.
const MinFreeBytes = 2 << 30

// tailLines of the log go into the error of a failed build.
const tailLines = 15

// Build makes an image if it is missing or outdated and gives it. When another process builds it already, Build waits
// and reports that one's progress. It needs root. An interrupted or failed build leaves only its log.
func (s *Store) Build(ctx context.Context, name string, o Options) (Image, error) {
	def, ok := definitions[name]
	if !ok {
		return Image{}, fault.New(fault.NotFound, "There is no image named %s. Images: %s.", name, strings.Join(Names(), ", "))
	}
	if o.Progress == nil {
		o.Progress = func(string, int) {}
	}
	if strings.ContainsAny(o.Mirror, " \t\r\n") {
		return Image{}, fault.Field("mirror", "a URL without spaces is needed")
	}
	if err := mkdirOpen(s.nameDir(name)); err != nil {
		return Image{}, fmt.Errorf("build image %s: %w", name, err)
	}
	lock, err := s.waitLock(ctx, name, o.Progress)
	if err != nil {
		return Image{}, err
	}
	defer func() { _ = lock.Close() }()
	if img, err := s.Get(name); err == nil && !o.Force && img.Definition == def.digest() {
		o.Progress("done", 100)
		return img, nil
	}
	img, err := s.build(ctx, def, o)
	if rmErr := removeTree(s.buildDir(name)); rmErr != nil {
		err = errors.Join(err, rmErr)
	}
	_ = os.Remove(filepath.Join(s.nameDir(name), "progress.json"))
	failed := filepath.Join(s.nameDir(name), "failed.json")
	if err == nil {
		_ = os.Remove(failed)
		o.Progress("done", 100)
		return img, nil
	}
	if ctx.Err() != nil {
		return Image{}, fmt.Errorf("build image %s: %w", name, ctx.Err())
	}
	tail := tailOf(s.logFile(name), tailLines)
	_ = writeJSON(failed, failureFile{Error: err.Error(), LogTail: tail})
	return Image{}, fault.Wrap(err, fault.Internal, "Building the image %s failed: %v. The log is %s and ends with:\n%s", name, err, s.logFile(name), tail)
}

// waitLock takes the build lock, waiting for another builder to end and passing its progress on.
func (s *Store) waitLock(ctx context.Context, name string, progress Progress) (*os.File, error) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		lock, held, err := tryLock(s.lockFile(name))
		if err != nil {
			return nil, fmt.Errorf("build image %s: %w", name, err)
		}
		if !held {
			return lock, nil
		}
		if st := s.State(name); st.Phase != "" {
			progress(st.Phase, st.Percent)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
	}
}

func (s *Store) build(ctx context.Context, def Definition, o Options) (_ Image, err error) {
	if err := preflight(s.dir); err != nil {
		return Image{}, err
	}
	build := s.buildDir(def.Name)
	if err := removeTree(build); err != nil {
		return Image{}, err
	}
	if err := mkdirOpen(build); err != nil {
		return Image{}, err
	}
	logFile, err := os.Create(s.logFile(def.Name))
	if err != nil {
		return Image{}, err
	}
	defer func() { _ = logFile.Close() }()
	var out io.Writer = logFile
	if o.Log != nil {
		out = io.MultiWriter(logFile, o.Log)
	}
	m := newMeter(func(phase string, percent int) {
		_ = writeJSON(filepath.Join(s.nameDir(def.Name), "progress.json"), progressFile{phase, percent})
		o.Progress(phase, percent)
	})
	defer m.stop()

	rootfs := filepath.Join(build, "rootfs")
	m.phase("fetching package lists")
	if err := debootstrap(ctx, def, o.Mirror, rootfs, io.MultiWriter(out, m)); err != nil {
		return Image{}, err
	}
	if len(def.Python) > 0 {
		m.phase("installing Python packages")
		if err := installPython(ctx, rootfs, def.Python, out); err != nil {
			return Image{}, err
		}
	}
	m.phase("finishing")
	if err := finish(ctx, rootfs, def, out); err != nil {
		return Image{}, err
	}
	packages, err := installed(rootfs)
	if err != nil {
		return Image{}, err
	}
	if len(packages) == 0 { // only unpacked: there is no record of versions
		packages = slices.Clone(def.Packages)
	}
	packages = append(packages, def.Python...)
	m.phase("shifting owners")
	size, err := shiftOwners(ctx, rootfs)
	if err != nil {
		return Image{}, err
	}
	img := Image{
		Name: def.Name, Definition: def.digest(), Suite: def.Suite, Packages: packages, SizeBytes: size,
		Digest: hexSum([]byte(def.digest() + "\n" + strings.Join(packages, "\n"))), CreatedAt: time.Now().UTC().Truncate(time.Second),
	}
	if err := writeJSON(filepath.Join(build, "manifest.json"), img); err != nil {
		return Image{}, err
	}
	if err := ctx.Err(); err != nil {
		return Image{}, err
	}
	return s.publish(build, img)
}

// publish makes the finished build durable and then visible, in this order: a crash in between leaves a .build that
// the next start removes, never an image that is half there.
func (s *Store) publish(build string, img Image) (Image, error) {
	if err := syncFS(build); err != nil {
		return Image{}, err
	}
	dir := filepath.Join(s.nameDir(img.Name), img.Digest)
	img.Rootfs = filepath.Join(dir, "rootfs")
	// The same packages again: the tree that is there may be in use, so it stays.
	if _, err := os.Stat(filepath.Join(dir, "manifest.json")); errors.Is(err, fs.ErrNotExist) {
		if err := os.Rename(build, dir); err != nil {
			return Image{}, err
		}
	} else if err != nil {
		return Image{}, err
	}
	link := s.current(img.Name)
	_ = os.Remove(link + ".new")
	if err := os.Symlink(img.Digest, link+".new"); err != nil {
		return Image{}, err
	}
	if err := os.Rename(link+".new", link); err != nil {
		return Image{}, err
	}
	return img, syncFS(s.nameDir(img.Name))
}

func syncFS(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	return nil
}

func preflight(dir string) error {
	if os.Geteuid() != 0 {
		return fault.New(fault.Internal, "Building an image needs root.")
	}
	for _, tool := range []string{"mmdebstrap", "unshare"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fault.New(fault.Internal, "Building an image needs %s: install the Debian packages %s.", tool, strings.Join(RequiredPackages(), " "))
		}
	}
	if free := FreeBytes(dir); free >= 0 && free < MinFreeBytes {
		return fault.New(fault.HostFull, "Building an image needs %d MiB free in %s; there are %d.", MinFreeBytes>>20, dir, free>>20)
	}
	return nil
}

// FreeBytes is what an unprivileged writer could still put into dir; -1 when it cannot be told.
func FreeBytes(dir string) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return -1
	}
	return int64(st.Bavail) * st.Bsize
}

// tailOf gives the last lines of a file, reading no more than its last 16 KiB.
func tailOf(path string, lines int) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	const window = 16 << 10
	if fi, err := f.Stat(); err == nil && fi.Size() > window {
		_, _ = f.Seek(-window, io.SeekEnd)
	}
	b, _ := io.ReadAll(io.LimitReader(f, window))
	all := strings.Split(strings.TrimRight(strings.ToValidUTF8(string(b), "?"), "\n"), "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return strings.Join(all, "\n")
}
