package guest

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"

	"golang.org/x/sys/unix"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

func (s *Server) mkdir(p string) (agent.FileInfo, error) {
	if p != "/" {
		if dir, err := resolve(p); err == nil && p != s.cfg.Workdir && s.protected(dir) {
			if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
				return agent.FileInfo{}, s.guard(p)
			}
		}
	}
	if err := makeDirs(p); err != nil {
		return agent.FileInfo{}, err
	}
	return s.stat(p)
}

func (s *Server) move(ctx context.Context, source, destination string, overwrite bool) (agent.FileInfo, error) {
	if err := s.guard(source); err != nil {
		return agent.FileInfo{}, err
	}
	if err := s.guard(destination); err != nil {
		return agent.FileInfo{}, err
	}
	if _, err := os.Lstat(source); err != nil {
		return agent.FileInfo{}, fileFault(err)
	}
	if source == destination {
		return s.stat(source)
	}
	if within(destination, source) {
		return agent.FileInfo{}, fault.New(fault.BadRequest, "A directory cannot be moved into itself.")
	}
	if _, err := os.Lstat(path.Dir(destination)); errors.Is(err, fs.ErrNotExist) {
		return agent.FileInfo{}, fault.New(fault.NotFound, "The destination's directory does not exist.")
	}
	s.renames.Lock()
	defer s.renames.Unlock()
	err := rename(source, destination, overwrite)
	if errors.Is(err, syscall.EXDEV) {
		err = moveAcross(ctx, source, destination)
	}
	if err != nil {
		return agent.FileInfo{}, fileFault(err)
	}
	return s.stat(destination)
}

func rename(source, destination string, overwrite bool) error {
	if overwrite {
		return syscall.Rename(source, destination)
	}
	err := unix.Renameat2(unix.AT_FDCWD, source, unix.AT_FDCWD, destination, unix.RENAME_NOREPLACE)
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOSYS) {
		// A file system without the flag: look first. Only the sandbox's own programs could come between.
		if _, err := os.Lstat(destination); err == nil {
			return syscall.EEXIST
		}
		return syscall.Rename(source, destination)
	}
	return err
}

// moveAcross moves between file systems: copy beside the destination, put in place, remove the source.
func moveAcross(ctx context.Context, source, destination string) error {
	tmp, err := os.MkdirTemp(path.Dir(destination), ".sandgate-move-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	staged := path.Join(tmp, "x")
	if err := copyTree(ctx, source, staged); err != nil {
		return err
	}
	if err := syscall.Rename(staged, destination); err != nil {
		return err
	}
	return os.RemoveAll(source)
}

// copyTree copies files, directories and links with owner, mode and time. Anything else cannot be copied.
func copyTree(ctx context.Context, from, to string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	fi, err := os.Lstat(from)
	if err != nil {
		return err
	}
	st, _ := fi.Sys().(*syscall.Stat_t)
	switch fi.Mode().Type() {
	case fs.ModeSymlink:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		if err := os.Symlink(target, to); err != nil {
			return err
		}
		return os.Lchown(to, int(st.Uid), int(st.Gid))
	case fs.ModeDir:
		if err := os.Mkdir(to, 0o700); err != nil {
			return err
		}
		entries, err := os.ReadDir(from)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := copyTree(ctx, path.Join(from, e.Name()), path.Join(to, e.Name())); err != nil {
				return err
			}
		}
	case 0:
		if err := copyFile(from, to); err != nil {
			return err
		}
	default:
		return fault.New(fault.BadRequest, "There is a %s in it, which cannot be copied.", typeOf(fi.Mode()))
	}
	if err := os.Lchown(to, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	if err := syscall.Chmod(to, st.Mode&0o7777); err != nil {
		return err
	}
	return os.Chtimes(to, fi.ModTime(), fi.ModTime())
}

func copyFile(from, to string) error {
	in, _, err := openRegular(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		_ = out.Close()
		return err
	}
	return out.Close()
}

func (s *Server) delete(p string, recursive bool) (agent.Deleted, error) {
	var out agent.Deleted
	if err := s.guard(p); err != nil {
		return out, err
	}
	fi, err := os.Lstat(p)
	if err != nil {
		return out, fileFault(err)
	}
	if fi.IsDir() && recursive {
		return out, fileFault(os.RemoveAll(p)) // by descriptors: links planted meanwhile are removed, not followed
	}
	var was *os.File
	if fi.Mode().IsRegular() {
		if was, out.Was = openReplaced(p, fi); was != nil {
			defer was.Close() // with it, what was deleted is really gone
		}
	}
	if err := os.Remove(p); err != nil {
		return agent.Deleted{}, fileFault(err)
	}
	if was != nil {
		out.Was = digestReplaced(was)
	}
	return out, nil
}
