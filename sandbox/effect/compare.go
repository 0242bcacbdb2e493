package effect

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"

	udiff "github.com/aymanbagabas/go-udiff"
)

// What became of a path.
const (
	Added   = "added"
	Changed = "changed"
	Deleted = "deleted"
)

// Bounds of what is told.
const (
	maxChanges = 1000
	maxDiff    = 32 << 10 // bytes of the comparison of one file
	maxDiffs   = 1 << 20  // … of all
	maxImage   = 64 << 20 // bytes of a file of the image that are digested
	maxWalk    = 50_000   // entries below a directory that is gone
)

// Change is one path that is not what it was. Paths and links are bytes from inside a sandbox.
type Change struct {
	Path      string // absolute
	What      string // Added, Changed, Deleted
	Kind      string // what it is now; of a deleted one, what it was
	Was       string // what it was before, where that was something else
	Size      int64
	OldSize   int64
	Mode      uint32
	OldMode   uint32
	Owner     string // "uid:gid", where it changed
	OldOwner  string
	Link      string
	OldLink   string
	Digest    string // SHA-256 of the content, hex; "" for what has none
	OldDigest string
	Diff      string // unified, of texts that are not too long
	DiffCut   bool   // the end of Diff is left out
	Under     int    // of a directory that is gone: files that were in it
}

// Result is what two states of files differ in.
type Result struct {
	Changes                 []Change // in the order of their paths, the first 1000
	Added, Changed, Deleted int      // paths in all
}

// Base is the image below both states.
type Base struct {
	FS    fs.FS // nil: there is none
	Shift int   // what is added to owners in it
}

// Compare tells what after has that before had not. Times of files do not count.
func Compare(base Base, before, after *Tree) (Result, error) {
	c := comparison{base: base, before: before, after: after}
	names := map[string]bool{}
	for n := range before.entries {
		names[n] = true
	}
	for n, e := range after.entries {
		names[n] = true
		if e.opaque && !before.entries[n].opaque { // a directory in the place of another: what that one had may be gone
			if err := c.below(n, func(name string) { names[name] = true }); err != nil {
				return Result{}, err
			}
		}
	}
	gone := map[string]bool{} // directories that were told of: what was in them goes with them
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if within(gone, name) {
			continue
		}
		change, err := c.at(name)
		if err != nil {
			return Result{}, err
		}
		if change.What == "" {
			continue
		}
		if change.What == Deleted && change.Kind == Directory {
			gone[name] = true
		}
		c.tell(change)
	}
	return c.out, nil
}

func within(dirs map[string]bool, name string) bool {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if dirs[dir] {
			return true
		}
	}
	return false
}

type comparison struct {
	base          Base
	before, after *Tree
	out           Result
	diffs         int
}

func (c *comparison) tell(change Change) {
	switch change.What {
	case Added:
		c.out.Added++
	case Deleted:
		c.out.Deleted++
	default:
		c.out.Changed++
	}
	if len(c.out.Changes) < maxChanges {
		c.out.Changes = append(c.out.Changes, change)
	}
}

// at compares one path.
func (c *comparison) at(name string) (Change, error) {
	was, had, err := c.look(c.before, name)
	if err != nil {
		return Change{}, err
	}
	is, has, err := c.look(c.after, name)
	if err != nil {
		return Change{}, err
	}
	out := Change{Path: "/" + strings.TrimPrefix(name, ".")}
	switch {
	case !had && !has:
		return out, nil
	case !had:
		out.What = Added
	case !has:
		out.What, out.Kind, out.OldSize, out.OldMode, out.OldLink = Deleted, was.kind, was.size, was.mode, was.link
		if was.kind == File {
			out.OldDigest = was.sum
			c.compare(&out, was, entry{kept: true})
		}
		if was.kind == Directory {
			err := c.below(name, func(n string) {
				if e, ok, err := c.look(c.before, n); err == nil && ok && e.kind != Directory {
					out.Under++
				}
			})
			if err != nil {
				return out, err
			}
		}
		return out, nil
	case same(was, is):
		return out, nil
	default:
		out.What, out.OldSize, out.OldMode, out.OldLink, out.OldDigest = Changed, was.size, was.mode, was.link, was.sum
		if was.kind != is.kind {
			out.Was = was.kind
		}
		if was.uid != is.uid || was.gid != is.gid {
			out.Owner, out.OldOwner = owner(is), owner(was)
		}
	}
	out.Kind, out.Size, out.Mode, out.Link, out.Digest = is.kind, is.size, is.mode, is.link, is.sum
	if is.kind == File && (!had || was.kind == File && was.sum != is.sum) {
		if !had {
			was = entry{kept: true}
		}
		c.compare(&out, was, is)
	}
	return out, nil
}

func owner(e entry) string { return fmt.Sprintf("%d:%d", e.uid, e.gid) }

func same(a, b entry) bool {
	return a.kind == b.kind && a.mode == b.mode && a.uid == b.uid && a.gid == b.gid && a.link == b.link &&
		(a.kind != File || a.sum == b.sum && a.size == b.size)
}

// compare shows two texts by lines.
func (c *comparison) compare(out *Change, was, is entry) {
	if !was.kept || !is.kept || len(was.text)+len(is.text) == 0 || c.diffs >= maxDiffs {
		return
	}
	d := Unified(string(was.text), string(is.text))
	if len(d) > maxDiff {
		d, out.DiffCut = d[:strings.LastIndexByte(d[:maxDiff], '\n')+1], true
	}
	out.Diff = d
	c.diffs += len(d)
}

// Unified compares two texts by lines; "": they are the same.
func Unified(before, after string) string { return udiff.Unified("before", "after", before, after) }

// look gives what a path is in a tree over the image.
func (c *comparison) look(t *Tree, name string) (entry, bool, error) {
	if e, ok := t.entries[name]; ok {
		return e, !e.gone, nil
	}
	if c.base.FS == nil || t.hides(name) || !fs.ValidPath(name) {
		return entry{}, false, nil
	}
	return c.ofImage(name)
}

func (c *comparison) ofImage(name string) (entry, bool, error) {
	info, err := fs.Lstat(c.base.FS, name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return entry{}, false, nil
	}
	if err != nil {
		return entry{}, false, fmt.Errorf("look at the image: %w", err)
	}
	e := entry{mode: uint32(info.Mode().Perm())}
	for bit, flag := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if info.Mode()&bit != 0 {
			e.mode |= flag
		}
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		e.uid, e.gid = int(st.Uid)-c.base.Shift, int(st.Gid)-c.base.Shift
	}
	switch info.Mode().Type() {
	case 0:
		e.kind, e.size = File, info.Size()
		return e, true, c.read(name, &e)
	case fs.ModeDir:
		e.kind = Directory
	case fs.ModeSymlink:
		e.kind = Symlink
		if e.link, err = fs.ReadLink(c.base.FS, name); err != nil {
			return e, false, fmt.Errorf("look at the image: %w", err)
		}
	case fs.ModeNamedPipe:
		e.kind = Pipe
	default:
		e.kind = Device
	}
	return e, true, nil
}

func (c *comparison) read(name string, e *entry) error {
	f, err := c.base.FS.Open(name)
	if err != nil {
		return fmt.Errorf("read the image: %w", err)
	}
	defer func() { _ = f.Close() }()
	if e.size > maxImage {
		return ErrTooMuch
	}
	h := sha256.New()
	var keep strings.Builder
	into := io.Writer(h)
	if e.size <= maxText {
		into = io.MultiWriter(h, &keep)
	}
	if _, err := io.Copy(into, f); err != nil {
		return fmt.Errorf("read the image: %w", err)
	}
	e.sum = hex.EncodeToString(h.Sum(nil))
	if p := []byte(keep.String()); e.size <= maxText && IsText(p) {
		e.text, e.kept = p, true
	}
	return nil
}

// below calls f for what the state before had below a directory.
func (c *comparison) below(dir string, f func(name string)) error {
	seen := 0
	for n := range c.before.entries {
		if n != dir && in(dir, n) {
			f(n)
		}
	}
	if c.base.FS == nil || c.before.entries[dir].opaque || c.before.hides(dir) || !fs.ValidPath(dir) {
		return nil
	}
	err := fs.WalkDir(c.base.FS, dir, func(name string, _ fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR):
			return nil
		case err != nil:
			return fmt.Errorf("walk the image: %w", err)
		case name == dir:
			return nil
		}
		if seen++; seen > maxWalk {
			return ErrTooMuch
		}
		if _, ok := c.before.entries[name]; !ok {
			f(path.Clean(name))
		}
		return nil
	})
	return err
}
