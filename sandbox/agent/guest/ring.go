package guest

// ring keeps the last bytes of a stream under their absolute offsets. It grows up to its limit as output comes, so that
// a quiet terminal costs little. Not safe for concurrent use.
type ring struct {
	limit int
	buf   []byte
	next  int64 // offset after the newest byte
	kept  int   // bytes kept, at most len(buf)
}

func (r *ring) oldest() int64 { return r.next - int64(r.kept) }

// add appends p; what no longer fits is forgotten, oldest first.
func (r *ring) add(p []byte) {
	r.grow(len(p))
	if skip := len(p) - len(r.buf); skip > 0 {
		r.next += int64(skip)
		r.kept = 0
		p = p[skip:]
	}
	r.kept = min(r.kept+len(p), len(r.buf))
	for len(p) > 0 {
		n := copy(r.buf[r.next%int64(len(r.buf)):], p)
		r.next += int64(n)
		p = p[n:]
	}
}

// grow makes room for n more bytes by doubling up to the limit.
func (r *ring) grow(n int) {
	size := len(r.buf)
	if size == r.limit || r.kept+n <= size {
		return
	}
	size = max(size, min(16<<10, r.limit))
	for size < r.kept+n && size < r.limit {
		size = min(size*2, r.limit)
	}
	old := make([]byte, r.kept)
	r.read(old, r.oldest())
	buf := make([]byte, size)
	for at, p := r.next-int64(len(old)), old; len(p) > 0; {
		c := copy(buf[at%int64(size):], p)
		at, p = at+int64(c), p[c:]
	}
	r.buf = buf
}

// read copies bytes from offset at on, which must not be older than oldest; it gives how many.
func (r *ring) read(p []byte, at int64) int {
	total := 0
	for len(p) > 0 && at < r.next {
		from := at % int64(len(r.buf))
		end := min(int64(len(r.buf)), from+r.next-at)
		n := copy(p, r.buf[from:end])
		at, total, p = at+int64(n), total+n, p[n:]
	}
	return total
}
