package agent

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// What the agent says of things is believed only as far as it is possible: these checks make an error of the rest.

const maxOffset = 1 << 60

func (e Exit) check() error {
	if e.Code < 0 || e.Code > 255 || len(e.Signal) > 16 || !(e.Duration >= 0 && e.Duration < 1e10) || !plain(e.Signal) {
		return fmt.Errorf("agent: an impossible end of a command")
	}
	return nil
}

// plain reports whether s is printable ASCII.
func plain(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r > 0x7e })
}

func validID(id string) bool {
	if len(id) < 1 || len(id) > 64 {
		return false
	}
	return !strings.ContainsFunc(id, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
	})
}

func (d Command) check() error {
	if !validID(d.ID) || len(d.Tag) > 4<<10 || (d.Status != "running" && d.Status != "exited") {
		return fmt.Errorf("agent: an impossible command")
	}
	if (d.Status == "exited") != (d.Exit != nil) {
		return fmt.Errorf("agent: a command with and without an end")
	}
	if d.Exit != nil {
		return d.Exit.check()
	}
	return nil
}

func (p PTY) check() error {
	if !validID(p.ID) || (p.Status != "running" && p.Status != "exited") || !(Size{p.Cols, p.Rows}).possible() ||
		p.Oldest < 0 || p.Next < p.Oldest || p.Next > maxOffset || len(p.Name) > MaxPTYName || !possiblePath(p.Cwd, true) {
		return fmt.Errorf("agent: an impossible terminal")
	}
	if p.Exit != nil {
		return p.Exit.check()
	}
	return nil
}

func (s Size) possible() bool {
	return s.Cols >= 1 && s.Cols <= MaxCols && s.Rows >= 1 && s.Rows <= MaxRows
}

func possibleType(t string, empty bool) bool {
	switch t {
	case "file", "directory", "symlink", "fifo", "socket", "char_device", "block_device":
		return true
	}
	return empty && t == ""
}

func possibleReplaced(s string) bool {
	switch s {
	case "", ReplacedNone, ReplacedLarge, ReplacedClosed:
		return true
	}
	return len(s) == 64 && !strings.ContainsFunc(s, func(r rune) bool { return (r < '0' || r > '9') && (r < 'a' || r > 'f') })
}

func (f *FileInfo) check() error {
	name := f.NameB64
	switch {
	case len(name) == 0 || len(name) > 255 || bytes.IndexByte(name, 0) >= 0,
		bytes.IndexByte(name, '/') >= 0 && string(name) != "/",
		len(f.PathB64) >= 2*MaxPath || len(f.PathB64) == 0 || f.PathB64[0] != '/' || bytes.IndexByte(f.PathB64, 0) >= 0,
		!possibleType(f.Type, false) || !possibleType(f.TargetType, true),
		f.Size < 0 || f.Mode > 0o7777 || len(f.TargetB64) > 2*MaxPath,
		len(f.Owner) > 256 || len(f.Group) > 256 || len(f.ETag) > 128 || !plain(f.ETag), !possibleReplaced(f.Replaced):
		return fmt.Errorf("agent: an impossible file")
	}
	if !utf8.ValidString(f.Owner) || !utf8.ValidString(f.Group) {
		return fmt.Errorf("agent: an impossible owner")
	}
	return nil
}

func (l *Listing) check(limit int) error {
	if len(l.Entries) > limit || l.Total < 0 || len(l.Cursor) > 16<<10 || !plain(l.Cursor) {
		return fmt.Errorf("agent: an impossible listing")
	}
	for i := range l.Entries {
		if err := l.Entries[i].check(); err != nil {
			return err
		}
	}
	return nil
}
