package guest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

// maxLinks is how many symlinks a path may lead through, as in the kernel.
const maxLinks = 40

// fileFault turns what the kernel says into what a person reads. Errors of other kinds pass.
func fileFault(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return err
	}
	var no syscall.Errno
	if !errors.As(err, &no) {
		return err
	}
	switch no {
	case syscall.ENOENT, syscall.ENOTDIR:
		return fault.Wrap(err, fault.NotFound, "There is nothing at this path.")
	case syscall.EISDIR:
		return fault.Wrap(err, fault.BadRequest, "This is a directory, not a file.")
	case syscall.EACCES, syscall.EPERM, syscall.EROFS:
		return fault.Wrap(err, fault.Forbidden, "The sandbox does not permit this.")
	case syscall.ENOSPC, syscall.EDQUOT:
		return fault.Wrap(err, fault.Conflict, "The sandbox's disk is full.").With("reason", "disk_full")
	case syscall.ENAMETOOLONG:
		return fault.Field("path", "has a part that is too long")
	case syscall.EEXIST:
		return fault.Wrap(err, fault.Conflict, "Something is there already.")
	case syscall.ENOTEMPTY:
		return fault.Wrap(err, fault.Conflict, "The directory is not empty.")
	case syscall.EBUSY:
		return fault.Wrap(err, fault.Conflict, "This is in use by the sandbox itself.")
	case syscall.ELOOP:
		return fault.Wrap(err, fault.BadRequest, "The path leads through too many links.")
	case syscall.EINVAL, syscall.ENXIO, syscall.ENODEV, syscall.EOPNOTSUPP, syscall.EIO:
		return fault.Wrap(err, fault.BadRequest, "This cannot be done with what is at this path.")
	case syscall.ETXTBSY:
		return fault.Wrap(err, fault.Conflict, "The file is a program that is running.")
	}
	return err
}

func typeOf(m fs.FileMode) string {
	switch m.Type() {
	case 0:
		return "file"
	case fs.ModeDir:
		return "directory"
	case fs.ModeSymlink:
		return "symlink"
	case fs.ModeNamedPipe:
		return "fifo"
	case fs.ModeSocket:
		return "socket"
	case fs.ModeDevice | fs.ModeCharDevice:
		return "char_device"
	}
	return "block_device"
}

// etag is strong: another content means another change time or another inode.
func etag(st *syscall.Stat_t) string {
	return fmt.Sprintf(`"%x-%x%09x-%x"`, st.Ino, st.Ctim.Sec, st.Ctim.Nsec, st.Size)
}

// info describes p, of which fi is the lstat.
func (s *Server) info(p string, fi fs.FileInfo) agent.FileInfo {
	d := agent.FileInfo{
		NameB64: []byte(path.Base(p)), PathB64: []byte(p), Type: typeOf(fi.Mode()),
		Size: fi.Size(), ModifiedAt: fi.ModTime().UTC(),
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		d.Mode, d.UID, d.GID = st.Mode&0o7777, int(st.Uid), int(st.Gid)
		d.Owner, d.Group = s.users.name(d.UID), s.groups.name(d.GID)
		d.ETag = etag(st)
	}
	if d.Type == "symlink" {
		if target, err := os.Readlink(p); err == nil {
			d.TargetB64 = []byte(target)
		}
		if to, err := os.Stat(p); err == nil {
			d.TargetType = typeOf(to.Mode())
		}
	}
	return d
}

func (s *Server) stat(p string) (agent.FileInfo, error) {
	fi, err := os.Lstat(p)
	if err != nil {
		return agent.FileInfo{}, fileFault(err)
	}
	return s.info(p, fi), nil
}

// openRegular opens a regular file for reading, through symlinks. What is not one is refused before it is opened,
// because opening a device can do things, and again after it, because it may have been swapped.
func openRegular(p string) (*os.File, fs.FileInfo, error) {
	fi, err := os.Stat(p)
	if err != nil {
		return nil, nil, fileFault(err)
	}
	if err := regular(fi); err != nil {
		return nil, nil, err
	}
	fd, err := syscall.Open(p, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fileFault(err)
	}
	// A regular file never blocks; without the flag the runtime does not try to poll it.
	_ = syscall.SetNonblock(fd, false)
	f := os.NewFile(uintptr(fd), p)
	if fi, err = f.Stat(); err == nil {
		err = regular(fi)
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, fileFault(err)
	}
	return f, fi, nil
}

func regular(fi fs.FileInfo) error {
	switch {
	case fi.IsDir():
		return fault.New(fault.BadRequest, "This is a directory, not a file.")
	case !fi.Mode().IsRegular():
		return fault.New(fault.BadRequest, "This is a %s, not a regular file.", strings.ReplaceAll(typeOf(fi.Mode()), "_", " "))
	}
	return nil
}

// synthetic reports whether f is of a file system whose files have no true size: procfs and its like.
func synthetic(f *os.File) bool {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err == nil {
		switch st.Type {
		case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC,
			unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC:
			return true
		}
	}
	real, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	return err == nil && (within(real, "/proc") || within(real, "/sys"))
}

func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// place of the agent and of the kernel: no tidying up there.
func (s *Server) protected(p string) bool {
	for _, dir := range []string{"/proc", "/sys", "/dev"} {
		if within(p, dir) {
			return true
		}
	}
	return p == "/" || p == s.cfg.Workdir || strings.HasPrefix(p, "/.sandgate")
}

// guard refuses what must stay. It looks at where the parent really is, so that a link is no way around.
func (s *Server) guard(p string) error {
	real := p
	if dir, err := resolve(path.Dir(p)); err == nil {
		real = path.Join(dir, path.Base(p))
	}
	if s.protected(p) || s.protected(real) {
		return fault.New(fault.BadRequest, "This place belongs to the sandbox itself and stays.")
	}
	return nil
}

// resolve follows symlinks by hand, the last one too, to a path that need not exist in its last part.
func resolve(p string) (string, error) {
	dir, base := path.Split(path.Clean(p))
	for range maxLinks {
		if base == "" { // the root
			return "/", nil
		}
		realDir, err := evalDir(dir)
		if err != nil {
			return "", err
		}
		p = path.Join(realDir, base)
		target, err := os.Readlink(p)
		if err != nil {
			return p, nil
		}
		if !strings.HasPrefix(target, "/") {
			target = path.Join(realDir, target)
		}
		dir, base = path.Split(path.Clean(target))
	}
	return "", syscall.ELOOP
}

// realPlace is resolve for a path whose last parts need not exist: of those above, the links are followed.
func realPlace(p string, follow bool) (string, error) {
	if !follow && p != "/" {
		dir, err := realPlace(path.Dir(p), true)
		return path.Join(dir, path.Base(p)), err
	}
	rest := ""
	real, err := resolve(p)
	for errors.Is(err, syscall.ENOENT) && p != "/" {
		rest, p = path.Join(path.Base(p), rest), path.Dir(p)
		real, err = resolve(p)
	}
	return path.Join(real, rest), err
}

// evalDir asks the kernel where a directory is: one open instead of a walk of our own.
func evalDir(dir string) (string, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
}

// inherit gives what was made in dir to the owner of dir: uploads into a user's home are the user's.
func inherit(p, dir string) {
	if fi, err := os.Stat(dir); err == nil {
		if st, ok := fi.Sys().(*syscall.Stat_t); ok && (st.Uid != 0 || st.Gid != 0) {
			_ = os.Lchown(p, int(st.Uid), int(st.Gid))
		}
	}
}

// makeDirs makes p and its parents; what is new belongs to the owner of the directory it is in.
func makeDirs(p string) error {
	fi, err := os.Stat(p)
	switch {
	case err == nil && fi.IsDir():
		return nil
	case err == nil:
		return fault.New(fault.Conflict, "A file is in the place of the directory.")
	case errors.Is(err, syscall.ENOTDIR):
		return fault.Wrap(err, fault.Conflict, "A file is in the place of a directory above.")
	case !errors.Is(err, syscall.ENOENT):
		return fileFault(err)
	}
	parent := path.Dir(p)
	if err := makeDirs(parent); err != nil {
		return err
	}
	if err := os.Mkdir(p, 0o755); err != nil {
		if errors.Is(err, syscall.EEXIST) {
			if fi, err := os.Stat(p); err == nil && fi.IsDir() {
				return nil // somebody else was as quick
			}
		}
		return fileFault(err)
	}
	inherit(p, parent)
	return nil
}

// precondition checks an existing file (nil: none) against If-Match and If-None-Match.
func precondition(fi fs.FileInfo, o agent.WriteOptions) error {
	tag := ""
	if fi != nil {
		if st, ok := fi.Sys().(*syscall.Stat_t); ok {
			tag = etag(st)
		}
	}
	switch {
	case o.IfNoneMatch == "*" && fi != nil:
		return fault.New(fault.Precondition, "There is a file already.")
	case o.IfNoneMatch != "" && o.IfNoneMatch != "*" && o.IfNoneMatch == tag:
		return fault.New(fault.Precondition, "The file is the one that was to be left alone.")
	case o.IfMatch == "*" && fi == nil, o.IfMatch != "" && o.IfMatch != "*" && o.IfMatch != tag:
		return fault.New(fault.Precondition, "The file has changed since it was read.")
	}
	return nil
}

// write replaces the file at p by body, in one step for whoever looks.
func (s *Server) write(p string, body io.Reader, o agent.WriteOptions) (agent.FileInfo, error) {
	if err := s.guard(p); err != nil {
		return agent.FileInfo{}, err
	}
	if !o.NoParents {
		if err := makeDirs(path.Dir(p)); err != nil {
			return agent.FileInfo{}, err
		}
	}
	real, err := resolve(p)
	if err != nil {
		return agent.FileInfo{}, fileFault(err)
	}
	if s.protected(real) {
		return agent.FileInfo{}, fault.New(fault.BadRequest, "This place belongs to the sandbox itself and stays.")
	}
	look := func() (fs.FileInfo, error) {
		fi, err := os.Lstat(real)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, precondition(nil, o)
		}
		if err != nil {
			return nil, fileFault(err)
		}
		if err := regular(fi); err != nil {
			return nil, err
		}
		return fi, precondition(fi, o)
	}
	if _, err := look(); err != nil {
		return agent.FileInfo{}, err
	}

	dir := path.Dir(real)
	tmp, err := os.CreateTemp(dir, ".sandgate-upload-")
	if err != nil {
		return agent.FileInfo{}, fileFault(err)
	}
	keep := false
	defer func() {
		_ = tmp.Close()
		if !keep {
			_ = os.Remove(tmp.Name())
		}
	}()
	if o.Size >= 0 {
		body = io.LimitReader(body, o.Size+1)
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{tmp}, body, make([]byte, 256<<10))
	if err != nil {
		return agent.FileInfo{}, fileFault(err)
	}
	if o.Size >= 0 && n != o.Size {
		return agent.FileInfo{}, fault.New(fault.BadRequest, "The upload ended at another length than announced; the old file is untouched.")
	}
	s.renames.Lock() // between the last look and the rename no other write of ours may come
	defer s.renames.Unlock()
	old, err := look()
	if err != nil {
		return agent.FileInfo{}, err
	}
	if err := dress(tmp, old, dir, o.Mode); err != nil {
		return agent.FileInfo{}, fileFault(err)
	}
	if err := tmp.Close(); err != nil {
		return agent.FileInfo{}, fileFault(err)
	}
	was, replaced := openReplaced(real, old) // after the rename it has no name any more
	if was != nil {
		defer was.Close()
	}
	if err := os.Rename(tmp.Name(), real); err != nil {
		return agent.FileInfo{}, fileFault(err)
	}
	keep = true
	info, err := s.stat(real)
	if was != nil {
		replaced = digestReplaced(was)
	}
	info.Replaced = replaced
	return info, err
}

// openReplaced opens a file that is about to be replaced, or says why its digest cannot be told.
func openReplaced(p string, fi fs.FileInfo) (*os.File, string) {
	switch {
	case fi == nil:
		return nil, agent.ReplacedNone
	case fi.Size() > agent.MaxReplaced:
		return nil, agent.ReplacedLarge
	}
	f, err := os.OpenFile(p, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, agent.ReplacedClosed
	}
	return f, ""
}

// digestReplaced reads at most a byte more than is digested: the file may grow under our hands.
func digestReplaced(f *os.File) string {
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(f, agent.MaxReplaced+1))
	switch {
	case err != nil:
		return agent.ReplacedClosed
	case n > agent.MaxReplaced:
		return agent.ReplacedLarge
	}
	return hex.EncodeToString(h.Sum(nil))
}

// dress gives the new file the old one's owner and mode, or a new file's.
func dress(tmp *os.File, old fs.FileInfo, dir string, mode uint32) error {
	if mode == 0 {
		mode = 0o644
	}
	if old == nil {
		inherit(tmp.Name(), dir)
	} else if st, ok := old.Sys().(*syscall.Stat_t); ok {
		mode = st.Mode & 0o7777
		if err := tmp.Chown(int(st.Uid), int(st.Gid)); err != nil && os.Getuid() == 0 {
			return err
		}
	}
	return syscall.Fchmod(int(tmp.Fd()), mode&0o7777)
}
