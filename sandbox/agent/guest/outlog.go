package guest

import (
	"io"
	"os"
)

// spillAt is how much of a stream stays in memory; the rest goes to an unlinked file, which counts as disk.
const spillAt = 64 << 10

// outlog keeps one stream of one command from its first byte. Guarded by the command's mu.
type outlog struct {
	dir       string
	max       int64
	mem       []byte
	file      *os.File
	size      int64 // bytes kept
	truncated bool  // more came than is kept
	eof       bool  // no more will come
	released  bool  // forgotten: size remains, the bytes do not
}

// add keeps p as far as there is room and reports how much it took.
func (o *outlog) add(p []byte) {
	if o.eof || o.released {
		return
	}
	if room := o.max - o.size; int64(len(p)) > room {
		o.truncated = true
		p = p[:room]
	}
	if len(p) == 0 {
		return
	}
	if o.file == nil && len(o.mem)+len(p) > spillAt {
		if f, err := spillFile(o.dir); err == nil {
			if _, err := f.Write(o.mem); err == nil {
				o.file, o.mem = f, nil
			} else {
				_ = f.Close()
			}
		}
	}
	if o.file != nil {
		n, err := o.file.WriteAt(p, o.size)
		o.size += int64(n)
		if err != nil { // the disk is full: what is kept ends here
			o.truncated = true
			o.max = o.size
		}
		return
	}
	o.mem = append(o.mem, p...)
	o.size += int64(len(p))
}

// readAt copies kept bytes from off on into p.
func (o *outlog) readAt(p []byte, off int64) (int, error) {
	if off >= o.size {
		return 0, nil
	}
	if o.released {
		return 0, os.ErrNotExist
	}
	if o.file == nil {
		return copy(p, o.mem[off:]), nil
	}
	n, err := o.file.ReadAt(p[:min(int64(len(p)), o.size-off)], off)
	if err == io.EOF && n > 0 {
		err = nil
	}
	return n, err
}

func (o *outlog) release() {
	o.released = o.size > 0
	o.mem = nil
	if o.file != nil {
		_ = o.file.Close()
		o.file = nil
	}
}

// spillFile makes a file without a name, so that it goes when we do.
func spillFile(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, ".sandgate-output-")
	if err != nil {
		return nil, err
	}
	_ = os.Remove(f.Name())
	return f, nil
}
