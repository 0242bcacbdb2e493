package term

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// ring keeps the newest bytes of a stream under their absolute offsets. Not safe for concurrent use.
//
// Its memory is mapped and not of the heap: what was never written to costs nothing, so a quiet terminal costs little without
// anything that grows; and the garbage collector, which lets the heap become twice what is in use, has nothing to do with 4 MiB of
// each terminal.
type ring struct {
	buf  []byte // as large as the ring may be
	next int64  // offset of the byte that comes next
	n    int    // bytes kept: offsets [next-n, next)
}

func newRing(limit int) *ring {
	buf, err := unix.Mmap(-1, 0, limit, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil { // the process has no room for another mapping
		return &ring{buf: make([]byte, limit)}
	}
	r := &ring{buf: buf}
	runtime.AddCleanup(r, func(buf []byte) { _ = unix.Munmap(buf) }, buf) // nothing else refers to it: what leaves is copied
	return r
}

func (r *ring) oldest() int64 { return r.next - int64(r.n) }

// reset forgets everything; the next byte has this offset.
func (r *ring) reset(next int64) { r.n, r.next = 0, next }

func (r *ring) append(p []byte) {
	if len(p) == 0 {
		return
	}
	if over := len(p) - len(r.buf); over > 0 {
		r.next += int64(over)
		p = p[over:]
		r.n = 0
	}
	at := int(r.next % int64(len(r.buf)))
	c := copy(r.buf[at:], p)
	copy(r.buf, p[c:])
	r.next += int64(len(p))
	r.n = min(r.n+len(p), len(r.buf))
	runtime.KeepAlive(r)
}

// copyAt fills dst from an offset on and says how much there was; the offset must lie in [oldest, next].
func (r *ring) copyAt(dst []byte, off int64) int {
	n := int(min(int64(len(dst)), r.next-off))
	if n <= 0 {
		return 0
	}
	at := int(off % int64(len(r.buf)))
	c := copy(dst[:n], r.buf[at:])
	copy(dst[c:n], r.buf)
	runtime.KeepAlive(r) // its memory goes with it
	return n
}
