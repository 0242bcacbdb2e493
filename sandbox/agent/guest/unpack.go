package guest

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

func (s *Server) fileUnpack(w http.ResponseWriter, r *http.Request) error {
	p, err := pathOf(r, "path")
	if err != nil {
		return err
	}
	format := r.URL.Query().Get("format")
	if !agent.ArchiveFormat(format) {
		return fault.Field("format", agent.ArchiveFormats)
	}
	u, err := s.stage(r.Context(), p)
	if err != nil {
		return err
	}
	defer u.discard()
	from := &counted{r: r.Body}
	u.packed = &from.n
	finish := u.merge
	if format != "zip" {
		var in io.Reader = from
		if format == "tar.gz" {
			in, err = gzip.NewReader(from)
		}
		if err == nil {
			err = u.tar(in)
		}
		if err == nil {
			_, err = io.Copy(io.Discard, io.LimitReader(in, 1<<20)) // padding, and the checksum behind it
		}
		if err == nil {
			_, err = io.Copy(io.Discard, r.Body)
		}
	} else {
		var spool *os.File
		if spool, err = u.spool(from); err == nil {
			defer spool.Close()
			finish = func() error {
				if err := u.zip(spool, from.n.Load()); err != nil {
					return err
				}
				return u.merge()
			}
		}
	}
	if err != nil {
		// An answer that comes while the body still does may be lost with the connection; so the body is heard out.
		_, _ = io.Copy(io.Discard, r.Body)
		return unpackFault(err)
	}
	return s.long(w, r, func(context.Context) (any, error) {
		err := finish()
		return u.made, unpackFault(err)
	})
}

// unpackFault says what is wrong with an archive that cannot be read.
func unpackFault(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return fault.Wrap(err, fault.BadRequest, "The archive breaks off. Nothing was unpacked.")
	case errors.Is(err, tar.ErrHeader), errors.Is(err, gzip.ErrHeader), errors.Is(err, gzip.ErrChecksum), errors.Is(err, zip.ErrFormat), errors.Is(err, zip.ErrAlgorithm), errors.Is(err, zip.ErrChecksum):
		return fault.Wrap(err, fault.BadRequest, "This is not an archive of the format named, or it is damaged. Nothing was unpacked.")
	}
	var no syscall.Errno
	if _, ok := errors.AsType[*fault.Error](err); !ok && !errors.As(err, &no) && !errors.Is(err, context.Canceled) {
		return fault.Wrap(err, fault.BadRequest, "The archive cannot be read. Nothing was unpacked.")
	}
	return fileFault(err)
}

// refused is an archive that asks for what is not done.
func refused(format string, args ...any) error { return fault.Field("archive", format, args...) }

// counted counts what is read.
type counted struct {
	r io.Reader
	n atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// unpacking is one archive on its way into a directory. It goes to a staging directory that only we enter; nothing in it
// is ever reached through a link.
type unpacking struct {
	s       *Server
	ctx     context.Context
	target  string // where it goes
	exists  bool   // target is a directory already
	staging string
	uid     int
	gid     int
	packed  *atomic.Int64 // bytes read of the archive
	made    agent.Unpacked
	entries int
	kinds   map[string]byte // of what was made: 'd', 'f', 'l'
	times   []dated         // of directories, set when nothing changes in them any more
	buf     []byte
}

type dated struct {
	path string
	mode uint32
	at   time.Time
}

// stage prepares the unpacking of an archive into the directory target.
func (s *Server) stage(ctx context.Context, target string) (*unpacking, error) {
	if err := s.guard(target); err != nil && target != s.cfg.Workdir {
		return nil, err
	}
	if real, err := resolve(target); err == nil {
		if s.protected(real) && real != s.cfg.Workdir {
			return nil, s.guard(real)
		}
		target = real
	}
	u := &unpacking{s: s, ctx: ctx, target: target, kinds: map[string]byte{}, buf: make([]byte, 256<<10)}
	beside := target
	fi, err := os.Stat(target)
	switch {
	case err == nil && fi.IsDir():
		u.exists = true
	case err == nil:
		return nil, fault.New(fault.Conflict, "A file is in the place of the directory.")
	default:
		beside = path.Dir(target)
		if err := makeDirs(beside); err != nil {
			return nil, err
		}
		if fi, err = os.Stat(beside); err != nil {
			return nil, fileFault(err)
		}
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		u.uid, u.gid = int(st.Uid), int(st.Gid)
	}
	if u.staging, err = os.MkdirTemp(beside, ".sandgate-unpack-"); err != nil { // 0700
		return nil, fileFault(err)
	}
	return u, nil
}

func (u *unpacking) discard() { _ = os.RemoveAll(u.staging) }

// name judges an entry's name and gives its place below the staging directory; "" is the archive's own root.
func (u *unpacking) name(raw string) (string, error) {
	if u.entries++; u.entries > agent.UnpackEntries {
		return "", refused("has more than %d entries", agent.UnpackEntries)
	}
	if err := u.ctx.Err(); err != nil {
		return "", err
	}
	switch {
	case strings.HasPrefix(raw, "/"):
		return "", refused("holds an absolute name")
	case strings.ContainsRune(raw, 0):
		return "", refused("holds a name with a NUL byte")
	case len(raw) >= agent.MaxPath:
		return "", refused("holds a name that is too long")
	}
	for part := range strings.SplitSeq(raw, "/") {
		if part == ".." {
			return "", refused("holds a name with \"..\" in it")
		}
	}
	clean := path.Clean(raw)
	if clean == "." {
		return "", nil
	}
	return clean, u.parents(path.Dir(clean))
}

// parents makes what is missing above an entry; a file or link is no directory.
func (u *unpacking) parents(dir string) error {
	if dir == "." || u.kinds[dir] == 'd' {
		return nil
	}
	if u.kinds[dir] != 0 {
		return refused("uses a file or a link as a directory")
	}
	if err := u.parents(path.Dir(dir)); err != nil {
		return err
	}
	if u.entries++; u.entries > agent.UnpackEntries {
		return refused("has more than %d entries", agent.UnpackEntries)
	}
	return u.mkdir(dir, 0o755, time.Time{})
}

func (u *unpacking) at(name string) string { return path.Join(u.staging, name) }

func (u *unpacking) mkdir(name string, mode uint32, at time.Time) error {
	switch u.kinds[name] {
	case 'd':
	case 0:
		if err := os.Mkdir(u.at(name), 0o700); err != nil {
			return err
		}
		if err := u.own(u.at(name)); err != nil {
			return err
		}
		u.kinds[name] = 'd'
		u.made.Directories++
	default:
		return refused("names something twice")
	}
	u.times = append(u.times, dated{name, mode & 0o777, at})
	return nil
}

// own gives what was made to the owner of the directory that it goes to.
func (u *unpacking) own(p string) error {
	if os.Getuid() != 0 {
		return nil
	}
	return os.Lchown(p, u.uid, u.gid)
}

// file writes one. Its size is believed from nobody: what comes is counted.
func (u *unpacking) file(name string, mode uint32, at time.Time, r io.Reader) error {
	if u.kinds[name] != 0 || name == "" {
		return refused("names something twice")
	}
	f, err := os.OpenFile(u.at(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	u.kinds[name] = 'f'
	_, err = io.CopyBuffer(struct{ io.Writer }{f}, &bounded{u, r}, u.buf)
	if err == nil {
		err = f.Chmod(fs.FileMode(mode & 0o777))
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = u.own(u.at(name))
	}
	if err != nil {
		return err
	}
	u.made.Files++
	if !at.IsZero() {
		_ = os.Chtimes(u.at(name), at, at) // a time that the file system does not know is no reason to fail
	}
	return nil
}

// bounded counts what is unpacked and ends it where a bomb begins.
type bounded struct {
	u *unpacking
	r io.Reader
}

func (b *bounded) Read(p []byte) (int, error) {
	if err := b.u.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := b.r.Read(p)
	b.u.made.Bytes += int64(n)
	switch out := b.u.made.Bytes; {
	case out > agent.UnpackBytes:
		return 0, refused("unpacks to more than %d GiB", agent.UnpackBytes>>30)
	case out > agent.UnpackFree && out/agent.UnpackRatio > b.u.packed.Load():
		return 0, refused("unpacks to more than %d times its size", agent.UnpackRatio)
	}
	return n, err
}

// symlink makes one whose target stays within the archive: relative, upwards only at its beginning, never above the root.
// What is above it are real directories, so no link before it can lead it out.
func (u *unpacking) symlink(name, target string) error {
	if u.kinds[name] != 0 || name == "" {
		return refused("names something twice")
	}
	if target == "" || len(target) >= agent.MaxPath || strings.HasPrefix(target, "/") || strings.ContainsRune(target, 0) {
		return refused("holds a link that leads out of it")
	}
	down := false
	for part := range strings.SplitSeq(target, "/") {
		if part == ".." && down {
			return refused("holds a link that leads out of it")
		}
		down = down || part != ".." && part != "." && part != ""
	}
	if to := path.Join(path.Dir(name), target); to == ".." || strings.HasPrefix(to, "../") {
		return refused("holds a link that leads out of it")
	}
	if err := os.Symlink(target, u.at(name)); err != nil {
		return err
	}
	u.kinds[name] = 'l'
	u.made.Links++
	return u.own(u.at(name))
}

// hardlink makes another name of a file that the archive held before.
func (u *unpacking) hardlink(name, target string) error {
	clean := path.Clean(target)
	if u.kinds[name] != 0 || name == "" || u.kinds[clean] != 'f' {
		return refused("holds a hard link to what is not in it")
	}
	if err := os.Link(u.at(clean), u.at(name)); err != nil {
		return err
	}
	u.kinds[name] = 'f'
	u.made.Links++
	return nil
}

// merge moves what was unpacked to its place. In a directory that is there, all conflicts are looked for before the first
// thing is moved.
func (u *unpacking) merge() error {
	for i := len(u.times) - 1; i >= 0; i-- {
		d := u.times[i]
		if err := syscall.Chmod(u.at(d.path), d.mode|0o700); err != nil {
			return err
		}
		if !d.at.IsZero() {
			_ = os.Chtimes(u.at(d.path), d.at, d.at)
		}
	}
	u.s.renames.Lock()
	defer u.s.renames.Unlock()
	if !u.exists {
		if err := syscall.Chmod(u.staging, 0o755); err != nil {
			return err
		}
		if err := u.own(u.staging); err != nil {
			return err
		}
		return rename(u.staging, u.target, false)
	}
	if err := u.into("", true); err != nil {
		return err
	}
	return u.into("", false)
}

// into moves what is in a staged directory into the one of the same name; with dry it only looks whether that can be done.
func (u *unpacking) into(dir string, dry bool) error {
	entries, err := os.ReadDir(u.at(dir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := path.Join(dir, e.Name())
		to := path.Join(u.target, name)
		old, err := os.Lstat(to)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if !dry {
				if err := syscall.Rename(u.at(name), to); err != nil {
					return err
				}
			}
			continue
		case err != nil:
			return err
		case e.IsDir() != old.IsDir():
			return fault.New(fault.Conflict, "A file or link is in the place of a directory of the archive, or the other way round. Nothing was unpacked.")
		case !e.IsDir() && !old.Mode().IsRegular() && old.Mode().Type() != fs.ModeSymlink:
			return fault.New(fault.Conflict, "A special file is in the place of a file of the archive. Nothing was unpacked.")
		}
		if e.IsDir() {
			if err := u.into(name, dry); err != nil {
				return err
			}
			continue
		}
		if !dry {
			if err := syscall.Rename(u.at(name), to); err != nil {
				return err
			}
		}
	}
	return nil
}
