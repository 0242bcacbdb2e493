package term

// ring keeps the newest bytes of a stream under their absolute offsets. It grows by doubling up to its limit, so that a
// quiet terminal costs little. Not safe for concurrent use.
type ring struct {
	buf   []byte
	limit int
	next  int64 // offset of the byte that comes next
	n     int   // bytes kept: offsets [next-n, next)
}

const ringStart = 32 << 10

func newRing(limit int) *ring { return &ring{limit: limit} }

func (r *ring) oldest() int64 { return r.next - int64(r.n) }

// reset forgets everything; the next byte has this offset.
func (r *ring) reset(next int64) { r.n, r.next = 0, next }

func (r *ring) append(p []byte) {
	if len(p) == 0 {
		return
	}
	if len(p) > r.limit {
		r.next += int64(len(p) - r.limit)
		p = p[len(p)-r.limit:]
		r.n = 0
	}
	if want := min(r.n+len(p), r.limit); want > len(r.buf) {
		r.grow(want)
	}
	at := int(r.next % int64(len(r.buf)))
	c := copy(r.buf[at:], p)
	copy(r.buf, p[c:])
	r.next += int64(len(p))
	r.n = min(r.n+len(p), len(r.buf))
}

func (r *ring) grow(want int) {
	size := max(len(r.buf), min(ringStart, r.limit))
	for size < want {
		size *= 2
	}
	old := make([]byte, r.n)
	from := r.oldest()
	r.copyAt(old, from)
	r.buf = make([]byte, min(size, r.limit))
	at := int(from % int64(len(r.buf)))
	c := copy(r.buf[at:], old)
	copy(r.buf, old[c:])
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
	return n
}
