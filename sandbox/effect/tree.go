// Package effect owns the comparison of two states of a sandbox's files: what was added, changed and deleted. It must never
// touch a sandbox or the host: it reads archives and an image that are given to it, and takes nothing in them for granted.
package effect

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"unicode/utf8"
)

// Kinds of entries.
const (
	File      = "file"
	Directory = "directory"
	Symlink   = "symlink"
	Pipe      = "pipe"
	Device    = "device"
)

// Bounds of what is read. A file of which more than maxText bytes would have to be kept is compared by its digest alone.
const (
	maxText    = 128 << 10 // bytes of one file that are kept for a comparison by lines
	maxKept    = 16 << 20  // … of all files of a tree
	maxEntries = 200_000   // of a tree
	maxPath    = 4 << 10   // bytes
)

// ErrTooMuch means that a tree is larger than what is compared.
var ErrTooMuch = errors.New("the files are too many or too large to compare")

// entry is one thing in a tree.
type entry struct {
	kind     string
	mode     uint32 // permissions and the three bits above them
	uid, gid int
	size     int64
	link     string
	sum      string // SHA-256 of the content, hex
	text     []byte // content, where it is text and was kept
	kept     bool
	gone     bool // a whiteout: what an image has here is hidden
	opaque   bool // a directory that hides all that an image has in it
}

// Tree is a state of files: what lies over an image, or beside it.
type Tree struct {
	entries map[string]entry // by path without a leading slash; "." is the root
	kept    int
}

// NewTree makes an empty one.
func NewTree() *Tree { return &Tree{entries: map[string]entry{}} }

// opaqueMark is how a layer says that a directory hides the one below it.
const opaqueMark = "SCHILY.xattr.trusted.overlay.opaque"

// Add reads an archive of a directory, or of all with ".", at most limit bytes of content; its names begin with the last
// part of dir. What lies elsewhere is passed over: an archive of /tmp tells nothing about /etc. More than is compared:
// ErrTooMuch.
func (t *Tree) Add(r io.Reader, dir string, limit int64) error {
	dir = clean(".", dir)
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read an archive of files: %w", err)
		}
		name := clean(path.Dir(dir), h.Name)
		if !in(dir, name) {
			continue
		}
		if len(name) > maxPath || len(t.entries) >= maxEntries {
			return ErrTooMuch
		}
		if limit -= max(h.Size, 0); limit < 0 {
			return ErrTooMuch
		}
		e := entry{
			mode: uint32(h.Mode) & 0o7777, uid: h.Uid, gid: h.Gid, size: h.Size, link: h.Linkname,
			opaque: h.PAXRecords[opaqueMark] != "",
		}
		switch h.Typeflag {
		case tar.TypeReg:
			e.kind, e.link = File, ""
			if err := t.content(archive, &e); err != nil {
				return fmt.Errorf("read an archive of files: %w", err)
			}
		case tar.TypeLink: // also how the second and later whiteouts come
			e = t.entries[clean(path.Dir(dir), h.Linkname)]
		case tar.TypeDir:
			e.kind, e.size = Directory, 0
		case tar.TypeSymlink:
			e.kind, e.size = Symlink, 0
		case tar.TypeFifo:
			e.kind = Pipe
		case tar.TypeChar, tar.TypeBlock:
			e.kind = Device
			e.gone = h.Typeflag == tar.TypeChar && h.Devmajor == 0 && h.Devminor == 0
			e.link = fmt.Sprintf("%d:%d", h.Devmajor, h.Devminor)
		default:
			continue
		}
		t.entries[name] = e
	}
}

func in(dir, name string) bool { return dir == "." || name == dir || strings.HasPrefix(name, dir+"/") }

// clean brings a name of an archive to the form of keys; it never leads out of the tree.
func clean(below, name string) string {
	name = strings.TrimPrefix(path.Join("/", below, path.Join("/", name)), "/")
	if name == "" {
		return "."
	}
	return name
}

// content digests a file, and keeps it where that is of use.
func (t *Tree) content(r io.Reader, e *entry) error {
	h := sha256.New()
	if e.size > maxText || t.kept+int(e.size) > maxKept {
		if _, err := io.Copy(h, r); err != nil {
			return err
		}
		e.sum = hex.EncodeToString(h.Sum(nil))
		return nil
	}
	p, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	_, _ = h.Write(p)
	e.sum = hex.EncodeToString(h.Sum(nil))
	if IsText(p) {
		e.text, e.kept = p, true
		t.kept += len(p)
	}
	return nil
}

// IsText reports whether bytes can be compared and shown by lines.
func IsText(p []byte) bool { return utf8.Valid(p) && bytes.IndexByte(p, 0) < 0 }

// hides reports whether a tree hides what an image has at a path, by something above it.
func (t *Tree) hides(name string) bool {
	for dir := path.Dir(name); ; dir = path.Dir(dir) {
		if e, ok := t.entries[dir]; ok && (e.gone || e.opaque || e.kind != Directory) {
			return true
		}
		if dir == "." {
			return false
		}
	}
}
