package guest

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

// maxZipDirectory bounds what is read of a zip before its entries are counted: opening one keeps all of them in memory.
const maxZipDirectory = 16 << 20

// ending counts the zero bytes that were read last: a tar ends with two blocks of them.
type ending struct {
	r     io.Reader
	zeros int
}

func (e *ending) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	if kept := len(bytes.TrimRight(p[:n], "\x00")); kept > 0 {
		e.zeros = n - kept
	} else {
		e.zeros = min(e.zeros+n, 1<<20)
	}
	return n, err
}

func (u *unpacking) tar(r io.Reader) error {
	end := &ending{r: r}
	in := tar.NewReader(end)
	for first := true; ; first = false {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			switch {
			case first:
				return fault.New(fault.BadRequest, "The archive is empty.")
			case end.zeros < 1024: // package tar takes one that was cut between two entries for whole
				return io.ErrUnexpectedEOF
			}
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		name, err := u.name(h.Name)
		if err != nil {
			return err
		}
		mode := uint32(h.Mode)
		switch h.Typeflag {
		case tar.TypeDir:
			if name != "" {
				err = u.mkdir(name, mode, h.ModTime)
			}
		case tar.TypeReg, tar.TypeGNUSparse:
			err = u.file(name, mode, h.ModTime, in)
		case tar.TypeSymlink:
			err = u.symlink(name, h.Linkname)
		case tar.TypeLink:
			err = u.hardlink(name, h.Linkname)
		default:
			err = refused("holds a device, a pipe or another special file")
		}
		if err != nil {
			return err
		}
	}
}

// spool keeps a zip on disk: its table of contents is at its end. The file has no name.
func (u *unpacking) spool(r io.Reader) (*os.File, error) {
	f, err := spillFile(u.s.cfg.Spill)
	if err != nil {
		return nil, err
	}
	if _, err := io.CopyBuffer(struct{ io.Writer }{f}, r, u.buf); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// opening lets only so much of a zip be read while its table of contents is.
type opening struct {
	f    *os.File
	left atomic.Int64
}

func (o *opening) ReadAt(p []byte, off int64) (int, error) {
	if o.left.Add(-int64(len(p))) < 0 {
		return 0, refused("has more than %d entries", agent.UnpackEntries)
	}
	return o.f.ReadAt(p, off)
}

func (u *unpacking) zip(f *os.File, size int64) error {
	o := &opening{f: f}
	o.left.Store(maxZipDirectory)
	in, err := zip.NewReader(o, size)
	if err != nil && !errors.Is(err, zip.ErrInsecurePath) { // names are judged below
		return err
	}
	if len(in.File) == 0 {
		return fault.New(fault.BadRequest, "The archive is empty.")
	}
	o.left.Store(1 << 62)
	for _, e := range in.File {
		if err := u.zipEntry(e); err != nil {
			return err
		}
	}
	return nil
}

func (u *unpacking) zipEntry(e *zip.File) error {
	name, err := u.name(e.Name)
	if err != nil {
		return err
	}
	mode := e.Mode()
	perm := uint32(mode.Perm())
	if strings.HasSuffix(e.Name, "/") || mode.IsDir() {
		if name == "" {
			return nil
		}
		if perm == 0 {
			perm = 0o755
		}
		return u.mkdir(name, perm, e.Modified)
	}
	switch mode.Type() {
	case 0, fs.ModeSymlink:
	default:
		return refused("holds a device, a pipe or another special file")
	}
	r, err := e.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	if mode.Type() == fs.ModeSymlink {
		target, err := io.ReadAll(io.LimitReader(r, agent.MaxPath))
		if err != nil {
			return err
		}
		return u.symlink(name, string(target))
	}
	if perm == 0 {
		perm = 0o644
	}
	return u.file(name, perm, e.Modified, r)
}
