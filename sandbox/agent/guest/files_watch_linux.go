package guest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

const watchMask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK

// watching is one inotify instance and the directories it looks at.
type watching struct {
	fd        int // of an os.File that polls: its Fd method would make it block
	recursive bool
	root      string
	dirs      map[int32]string
	ids       map[string]int32
	full      bool // told that there are too many directories
	tell      func(agent.FileChange) error
	last      agent.FileChange // told last in this batch: a program that writes piece by piece is told once
}

// watchFiles tells changes below root until ctx ends or root is gone. ping is called in silence.
func (s *Server) watchFiles(ctx context.Context, root string, recursive bool, tell func(agent.FileChange) error, ping func() error) error {
	fi, err := os.Stat(root)
	if err != nil {
		return fileFault(err)
	}
	if !fi.IsDir() {
		return fault.New(fault.BadRequest, "This is not a directory.")
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fault.Wrap(err, fault.Conflict, "The sandbox has no room for another watch.")
	}
	f := os.NewFile(uintptr(fd), "inotify")
	defer f.Close()
	w := &watching{fd: fd, recursive: recursive, root: root, dirs: map[int32]string{}, ids: map[string]int32{}, tell: tell}
	if err := w.add(ctx, root, false); err != nil {
		return err
	}
	if len(w.dirs) == 0 {
		return fault.New(fault.NotFound, "There is nothing at this path.")
	}
	if err := tell(agent.FileChange{Type: "ready", PathB64: []byte(root)}); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, 64<<10)
	for {
		if ctx.Err() == nil {
			_ = f.SetReadDeadline(now().Add(pingEvery))
		}
		n, err := f.Read(buf)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, os.ErrDeadlineExceeded):
			if err := ping(); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		gone, err := w.batch(ctx, buf[:n])
		if err != nil || gone {
			return err
		}
	}
}

// add looks at dir and, where asked, at all below it. With found, what is in it already is told as new: it came between
// the directory and our look at it.
func (w *watching) add(ctx context.Context, dir string, found bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(w.dirs) >= agent.MaxWatches {
		return w.tooMany(dir)
	}
	mask := uint32(watchMask)
	if dir != w.root {
		mask |= unix.IN_DONT_FOLLOW
	}
	wd, err := unix.InotifyAddWatch(w.fd, dir, mask)
	if errors.Is(err, unix.ENOSPC) {
		return w.tooMany(dir)
	}
	if err != nil {
		return nil //nolint:nilerr // it vanished, or may not be looked at
	}
	w.dirs[int32(wd)], w.ids[dir] = dir, int32(wd)
	if !w.recursive && !found {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return nil //nolint:nilerr // it vanished
	}
	defer d.Close()
	for {
		entries, err := d.ReadDir(1024)
		for _, e := range entries {
			p := path.Join(dir, e.Name())
			if found {
				if err := w.tell(agent.FileChange{Type: "create", PathB64: []byte(p), Directory: e.IsDir()}); err != nil {
					return err
				}
			}
			if e.Type() == fs.ModeDir && w.recursive && p != "/proc" && p != "/sys" && p != "/dev" && !strings.HasPrefix(p, "/.sandgate") {
				if err := w.add(ctx, p, found); err != nil {
					return err
				}
			}
		}
		if err != nil || len(entries) == 0 {
			return nil
		}
	}
}

func (w *watching) tooMany(dir string) error {
	if w.full {
		return nil
	}
	w.full = true
	return w.tell(agent.FileChange{Type: "limit", PathB64: []byte(dir), Directory: true})
}

// event is one of the kernel's.
type event struct {
	wd           int32
	mask, cookie uint32
	name         string
}

func parseEvents(p []byte) (out []event) {
	for len(p) >= unix.SizeofInotifyEvent {
		e := event{
			wd:   int32(binary.NativeEndian.Uint32(p)),
			mask: binary.NativeEndian.Uint32(p[4:]), cookie: binary.NativeEndian.Uint32(p[8:]),
		}
		n := min(int(binary.NativeEndian.Uint32(p[12:])), len(p)-unix.SizeofInotifyEvent)
		name := p[unix.SizeofInotifyEvent : unix.SizeofInotifyEvent+n]
		if i := bytes.IndexByte(name, 0); i >= 0 {
			name = name[:i]
		}
		e.name = string(name)
		out = append(out, e)
		p = p[unix.SizeofInotifyEvent+n:]
	}
	return out
}

// batch tells what came in one read. gone: there is nothing to watch any more.
func (w *watching) batch(ctx context.Context, p []byte) (gone bool, err error) {
	w.last = agent.FileChange{}
	events := parseEvents(p)
	for i := 0; i < len(events); i++ {
		e := events[i]
		if e.mask&unix.IN_Q_OVERFLOW != 0 {
			if err := w.tell(agent.FileChange{Type: "overflow"}); err != nil {
				return false, err
			}
			continue
		}
		dir, known := w.dirs[e.wd]
		if !known {
			continue
		}
		isDir := e.mask&unix.IN_ISDIR != 0
		at := path.Join(dir, e.name)
		change := agent.FileChange{PathB64: []byte(at), Directory: isDir}
		switch {
		case e.mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0:
			if dir == w.root {
				return true, w.tell(agent.FileChange{Type: "gone", PathB64: []byte(dir), Directory: true})
			}
			continue
		case e.mask&unix.IN_IGNORED != 0:
			delete(w.dirs, e.wd)
			if w.ids[dir] == e.wd {
				delete(w.ids, dir)
			}
			continue
		case e.mask&unix.IN_MOVED_FROM != 0:
			change.Type = "remove"
			if i+1 < len(events) && events[i+1].mask&unix.IN_MOVED_TO != 0 && events[i+1].cookie == e.cookie {
				if to, ok := w.dirs[events[i+1].wd]; ok {
					i++
					change.Type, change.ToB64 = "rename", []byte(path.Join(to, events[i].name))
				}
			}
			if isDir {
				w.moved(at, string(change.ToB64))
			}
		case e.mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
			change.Type = "create"
		case e.mask&unix.IN_DELETE != 0:
			change.Type = "remove"
		case e.mask&unix.IN_MODIFY != 0:
			change.Type = "write"
		case e.mask&unix.IN_ATTRIB != 0:
			if e.name == "" && dir != w.root {
				continue // told by the directory above
			}
			change.Type = "chmod"
		default:
			continue
		}
		if change.Type == w.last.Type && change.Type == "write" && bytes.Equal(change.PathB64, w.last.PathB64) {
			continue
		}
		w.last = change
		if err := w.tell(change); err != nil {
			return false, err
		}
		if isDir && change.Type == "create" && w.recursive {
			if err := w.add(ctx, at, true); err != nil {
				return false, err
			}
		}
	}
	return false, nil
}

// moved gives the directories below from their new names, or lets go of them when they left.
func (w *watching) moved(from, to string) {
	for dir, wd := range w.ids {
		if !within(dir, from) {
			continue
		}
		delete(w.ids, dir)
		if to == "" {
			_, _ = unix.InotifyRmWatch(w.fd, uint32(wd))
			delete(w.dirs, wd)
			continue
		}
		dir = to + strings.TrimPrefix(dir, from)
		w.dirs[wd], w.ids[dir] = dir, wd
	}
}
