package screen

import "unicode/utf8"

// class is what one range of characters is for wrapping and joining: kind is its grapheme break property.
type class struct {
	from, to rune
	kind     uint8
	wide     bool
}

const (
	kindPrepend   = 1
	kindExtend    = 2
	kindRegional  = 3
	kindSpacing   = 4
	kindL         = 5
	kindV         = 6
	kindT         = 7
	kindLV        = 8
	kindLVT       = 9
	kindZWJ       = 10
	kindPicture   = 11
	variationWide = 0xfe0f // asks for a picture instead of a letter
)

// classOf gives a character's kind and width.
func classOf(r rune) (kind, width uint8) {
	switch {
	case r < classes[0].from:
		return 0, 1
	case r >= 0xac00 && r <= 0xd7a3:
		if (r-0xac00)%28 == 0 {
			return kindLV, 2
		}
		return kindLVT, 2
	}
	lo, hi := 0, len(classes)
	for lo < hi {
		if mid := (lo + hi) / 2; classes[mid].to < r {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == len(classes) || r < classes[lo].from {
		return 0, 1
	}
	width = 1
	if classes[lo].wide || r == variationWide {
		width = 2
	}
	return classes[lo].kind, width
}

// join is what the character printed last means for the next: 0 when nothing was, else 1, its width and its kind.
type join uint16

func makeJoin(kind, width uint8) join { return 1 | join(width)<<4 | join(kind)<<8 }

func (j join) width() uint8 { return uint8(j>>4) & 15 }
func (j join) kind() uint8  { return uint8(j >> 8) }

// joins reports whether a character of kind after belongs to the one of kind before.
func joins(before, after uint8) bool {
	switch {
	case before == kindL && (after == kindL || after == kindV || after == kindLV || after == kindLVT),
		(before == kindLV || before == kindV) && (after == kindV || after == kindT),
		before == kindLVT && after == kindT, before == kindT && after == kindT:
		return true
	}
	return after == kindExtend || after == kindZWJ || after == kindSpacing || before == kindPrepend ||
		before == kindZWJ && after == kindPicture || before == kindRegional && after == kindRegional
}

// ascii prints the plain beginning of p at once and says how much that was.
func (s *Screen) ascii(p []byte) int {
	b := s.on
	if p[0] < 0x20 || p[0] >= 0x7f || s.sets.now() != 0 || s.modes.insert || b.x >= s.cols {
		return 0
	}
	room, n := s.cols-b.x, 0
	l := b.line(b.y)
	l.halve(b.x, s.pen)
	cells := l.cells[b.x:]
	for n < len(p) && n < room && p[n] >= 0x20 && p[n] < 0x7f {
		cells[n] = cell{r: rune(p[n]), a: s.pen, width: 1}
		n++
	}
	if n > 0 {
		b.x += n
		l.touch(b.x)
		s.join = makeJoin(0, 1)
		l.mend(b.x, s.pen)
	}
	return n
}

// print puts one character where the cursor is.
func (s *Screen) print(r rune) {
	b := s.on
	if r < 127 {
		r = s.sets.mapped(r)
	}
	kind, width := classOf(r)
	joined, old := false, uint8(0)
	if s.join != 0 && joins(s.join.kind(), kind) {
		joined, old = true, s.join.width()
		if old > width {
			width = old
		} else if kind == kindRegional {
			width = 2
		}
		if kind == kindRegional {
			kind = 0 // a pair is whole
		}
	}
	s.join = makeJoin(kind, width)
	if b.x+int(width)-int(old) > s.cols {
		if !s.modes.wrap {
			b.x = s.cols - 1
			if width == 2 {
				return
			}
		} else {
			s.wrap(int(old))
		}
	}
	l := b.line(b.y)
	l.touch(min(b.x+2, s.cols))
	if joined && b.x > 0 {
		at := b.x - 1
		if l.cells[at].width == 0 {
			at--
		}
		if at >= 0 {
			s.append(&l.cells[at], r, width)
		}
		for range int(width) - int(old) {
			l.cells[b.x] = cell{a: s.pen}
			b.x++
		}
		return
	}
	if s.modes.insert {
		l.insert(b.x, int(width-old), s.pen)
	}
	l.cells[b.x] = cell{r: r, a: s.pen, width: width}
	b.x++
	if width == 2 {
		l.cells[b.x] = cell{a: s.pen}
		b.x++
	}
}

// wrap goes on in the next row; the last old cells, whose character has grown too wide for its row, come along.
func (s *Screen) wrap(old int) {
	b := s.on
	from := b.x - old
	b.line(b.y).touch(s.cols)
	kept := append([]cell(nil), b.line(b.y).cells[from:b.x]...)
	for i := from; i < s.cols; i++ {
		b.line(b.y).cells[i] = blank(s.pen)
	}
	b.x = old
	if b.y == b.bottom {
		s.scroll(true)
	} else {
		b.y = min(b.y+1, s.rows-1)
		b.line(b.y).wrapped = true
	}
	b.line(b.y).touch(old)
	copy(b.line(b.y).cells, kept)
}

// append adds a code point to a cell's character.
func (s *Screen) append(c *cell, r rune, width uint8) {
	c.width = width
	if c.empty() {
		c.r = r
		return
	}
	text := s.textOf(c)
	kind, _ := classOf(r)
	if len(text)+utf8.RuneLen(r) > maxClusterBytes || !joins(lastKind(text), kind) {
		return // the latter: it belonged to a wide character that found no place at the edge
	}
	n := s.clusters.add(text + string(r))
	if n == 0 && s.clusters.worthClearing() {
		s.forgetClusters()
		n = s.clusters.add(text + string(r))
	}
	if n > 0 { // else it stays as it was
		c.cluster = n
	}
}

// textOf gives what a cell shows.
func (s *Screen) textOf(c *cell) string {
	switch {
	case c.cluster > 0:
		return s.clusters.get(c.cluster)
	case c.empty():
		return ""
	}
	return string(c.r)
}

// forgetClusters keeps those in the table that the screens show.
func (s *Screen) forgetClusters() {
	old := s.clusters
	s.clusters = newTable(maxClusters)
	s.eachCell(func(c *cell) {
		if c.cluster > 0 {
			c.cluster = s.clusters.add(old.get(c.cluster))
		}
	})
	s.clusters.cleared()
}

// forgetLinks does the same for hyperlinks.
func (s *Screen) forgetLinks() {
	old := s.links
	s.links = newTable(maxLinks)
	keep := func(a *attr) {
		if a.link > 0 {
			a.link = s.links.add(old.get(a.link))
		}
	}
	keep(&s.pen)
	keep(&s.normal.saved.a)
	keep(&s.alt.saved.a)
	s.eachCell(func(c *cell) { keep(&c.a) })
	s.links.cleared()
}

func (s *Screen) eachCell(f func(*cell)) {
	for _, b := range []*buffer{&s.normal, &s.alt} {
		for y := range b.lines {
			for x := range b.lines[y].cells {
				f(&b.lines[y].cells[x])
			}
		}
	}
}

// scroll makes room below the scrolled rows; what leaves the normal screen at its top becomes history.
func (s *Screen) scroll(wrapped bool) {
	b := s.on
	if b.top == 0 && b == &s.normal {
		s.history.push(s, b.line(0))
		s.base = min(s.base+1, maxHistoryLines)
	}
	b.up(b.top, b.bottom, s.pen.erased())
	b.line(b.bottom).wrapped = wrapped
}
