package guest

import (
	"archive/tar"
	"archive/zip"
	"compress/flate"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"
)

// skippedName is the archive's last entry when something could not be packed.
const skippedName = ".sandgate-skipped.txt"

// maxSkipped bounds the text of that entry.
const maxSkipped = 1 << 20

// packer is one archive format.
type packer interface {
	dir(name string, fi fs.FileInfo) error
	link(name, target string, fi fs.FileInfo) error
	// file packs exactly size bytes of r.
	file(name string, fi fs.FileInfo, size int64, r io.Reader) error
	close() error
}

// archive packs the tree at root into w.
func (s *Server) archive(ctx context.Context, w io.Writer, root, format string) error {
	finish := func() error { return nil }
	if format == "tar.gz" {
		gz, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
		if err != nil {
			return err
		}
		w, finish = gz, gz.Close
	}
	var p packer = &tarPacker{tar.NewWriter(w), s}
	if format == "zip" {
		zw := zip.NewWriter(w)
		zw.RegisterCompressor(zip.Deflate, func(out io.Writer) (io.WriteCloser, error) {
			return flate.NewWriter(out, flate.BestSpeed)
		})
		p = &zipPacker{zw}
	}
	base := path.Base(root)
	if root == "/" {
		base = "sandbox"
	}
	pk := &packing{ctx: ctx, s: s, p: p, buf: make([]byte, 256<<10)}
	if err := pk.walk(root, base); err != nil {
		return err
	}
	if pk.skipped.Len() > 0 {
		text := pk.skipped.String()
		if err := p.file(skippedName, nil, int64(len(text)), strings.NewReader(text)); err != nil {
			return err
		}
	}
	if err := p.close(); err != nil {
		return err
	}
	return finish()
}

type packing struct {
	ctx     context.Context
	s       *Server
	p       packer
	buf     []byte
	total   int64 // bytes of files packed so far
	skipped strings.Builder
}

func (k *packing) skip(name, why string) {
	if k.skipped.Len() < maxSkipped {
		fmt.Fprintf(&k.skipped, "%s: %s\n", name, why)
	}
}

// walk packs one entry and what is below it. Only a failure of the archive itself is an error.
func (k *packing) walk(p, name string) error {
	if err := k.ctx.Err(); err != nil {
		return err
	}
	fi, err := os.Lstat(p)
	if err != nil {
		k.skip(name, "vanished")
		return nil
	}
	switch fi.Mode().Type() {
	case fs.ModeSymlink:
		target, err := os.Readlink(p)
		if err != nil {
			k.skip(name, "vanished")
			return nil
		}
		return k.p.link(name, target, fi)
	case fs.ModeDir:
		return k.walkDir(p, name, fi)
	case 0:
		return k.file(p, name)
	}
	k.skip(name, typeOf(fi.Mode()))
	return nil
}

func (k *packing) walkDir(p, name string, fi fs.FileInfo) error {
	if p == "/proc" || p == "/sys" || p == "/dev" || strings.HasPrefix(p, "/.sandgate") {
		k.skip(name, "belongs to the sandbox itself")
		return nil
	}
	if err := k.p.dir(name, fi); err != nil {
		return err
	}
	d, err := os.Open(p)
	if err != nil {
		k.skip(name, "cannot be read")
		return nil
	}
	defer d.Close()
	for {
		// In portions and unsorted: a directory of a million names must not sit in memory.
		entries, err := d.ReadDir(1024)
		for _, e := range entries {
			if err := k.walk(path.Join(p, e.Name()), name+"/"+e.Name()); err != nil {
				return err
			}
		}
		if err != nil || len(entries) == 0 {
			return nil
		}
	}
}

func (k *packing) file(p, name string) error {
	f, fi, err := openRegular(p)
	if err != nil {
		k.skip(name, "cannot be read")
		return nil
	}
	defer f.Close()
	if synthetic(f) {
		k.skip(name, "has no true size")
		return nil
	}
	most := plausible(f)
	if fi.Size() > most {
		k.skip(name, "says that it is larger than its disk: most of it is a hole")
		return nil
	}
	// Many files with holes are not packed either, when together they say more than there can be.
	if k.total > most-fi.Size() {
		k.skip(name, "the archive would be larger than the disk")
		return nil
	}
	k.total += fi.Size()
	in := &exact{r: f, left: fi.Size()}
	if err := k.p.file(name, fi, fi.Size(), in); err != nil {
		return err
	}
	if in.short {
		k.skip(name, "became shorter or unreadable while it was packed; the rest is filled with zero bytes")
	}
	return nil
}

// exact gives exactly the size that the archive was promised, whatever happens to the file meanwhile.
type exact struct {
	r     io.Reader
	left  int64
	short bool
}

func (e *exact) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), e.left)]
	n := 0
	if !e.short {
		var err error
		n, err = e.r.Read(p)
		if err != nil && n == 0 {
			e.short = true
		}
	}
	if e.short {
		clear(p)
		n = len(p)
	}
	e.left -= int64(n)
	return n, nil
}

type tarPacker struct {
	w *tar.Writer
	s *Server
}

// header uses the GNU format: its names are bytes.
func (t *tarPacker) header(name string, kind byte, fi fs.FileInfo) *tar.Header {
	h := &tar.Header{Name: name, Typeflag: kind, Format: tar.FormatGNU, Mode: 0o644, ModTime: time.Now()}
	if fi != nil {
		h.ModTime = fi.ModTime()
		if st, ok := fi.Sys().(*syscall.Stat_t); ok {
			h.Mode, h.Uid, h.Gid = int64(st.Mode&0o7777), int(st.Uid), int(st.Gid)
			h.Uname, h.Gname = ascii(t.s.users.name(h.Uid)), ascii(t.s.groups.name(h.Gid))
		}
	}
	h.ModTime = h.ModTime.Truncate(time.Second)
	return h
}

func ascii(s string) string {
	if len(s) > 31 || strings.ContainsFunc(s, func(r rune) bool { return r < 0x21 || r > 0x7e }) {
		return ""
	}
	return s
}

func (t *tarPacker) dir(name string, fi fs.FileInfo) error {
	return t.w.WriteHeader(t.header(name+"/", tar.TypeDir, fi))
}

func (t *tarPacker) link(name, target string, fi fs.FileInfo) error {
	h := t.header(name, tar.TypeSymlink, fi)
	h.Linkname = target
	return t.w.WriteHeader(h)
}

func (t *tarPacker) file(name string, fi fs.FileInfo, size int64, r io.Reader) error {
	h := t.header(name, tar.TypeReg, fi)
	h.Size = size
	if err := t.w.WriteHeader(h); err != nil {
		return err
	}
	_, err := io.CopyBuffer(struct{ io.Writer }{t.w}, r, make([]byte, 256<<10))
	return err
}

func (t *tarPacker) close() error { return t.w.Close() }

type zipPacker struct{ w *zip.Writer }

// header makes names inert: on another system a backslash would be a separator.
func (z *zipPacker) header(name string, fi fs.FileInfo) *zip.FileHeader {
	h := &zip.FileHeader{Name: strings.ReplaceAll(name, `\`, "_"), Method: zip.Deflate, Modified: time.Now()}
	h.NonUTF8 = !utf8.ValidString(h.Name)
	if fi != nil {
		h.Modified = fi.ModTime()
		h.SetMode(fi.Mode())
	}
	return h
}

func (z *zipPacker) dir(name string, fi fs.FileInfo) error {
	h := z.header(name+"/", fi)
	h.Method = zip.Store
	_, err := z.w.CreateHeader(h)
	return err
}

func (z *zipPacker) link(name, target string, fi fs.FileInfo) error {
	h := z.header(name, fi)
	h.Method = zip.Store
	w, err := z.w.CreateHeader(h)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, target)
	return err
}

func (z *zipPacker) file(name string, fi fs.FileInfo, _ int64, r io.Reader) error {
	w, err := z.w.CreateHeader(z.header(name, fi))
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{w}, r, make([]byte, 256<<10))
	return err
}

func (z *zipPacker) close() error { return z.w.Close() }
