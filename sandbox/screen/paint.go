package screen

import (
	"maps"
	"slices"
	"strconv"
)

// Snapshot gives plain output of at most limit bytes that brings any terminal of the same size to this screen: history as far as
// it fits, both buffers, modes, cursor, pen. It holds nothing that makes a terminal answer or beep. At another size it paints what
// fits. limit must be 64 KiB at least.
func (s *Screen) Snapshot(limit int) []byte {
	rest := s.paint(nil, limit-2048, false)
	if len(rest) > limit-2048 {
		rest = s.paint(nil, limit-2048, true)
	}
	out := s.head(make([]byte, 0, min(limit, len(rest)+len(s.history.text)+4096)))
	out = s.appendHistory(out, limit-len(rest)-8)
	return append(out, rest...)
}

// head leaves whatever is open, resets everything, also what a reset keeps, and sets what is of no buffer.
func (s *Screen) head(out []byte) []byte {
	out = append(out, "\x18\x1bc\x1b[?25h\x1b[?12l\x1b[20l\x1b[3J"...)
	for _, k := range slices.Sorted(maps.Keys(s.colours)) {
		if len(out) > 1800 {
			break
		}
		out = append(append(append(append(append(out, "\x1b]"...), k...), ';'), s.colours[k]...), "\x1b\\"...)
	}
	if s.title != "" && len(out) < 1600 {
		out = append(append(append(out, "\x1b]2;"...), s.title...), "\x1b\\"...)
	}
	return out
}

// appendHistory paints the newest lines that fit; the first row of the screen comes right behind.
func (s *Screen) appendHistory(out []byte, limit int) []byte {
	h := &s.history
	n, size := 0, len(out)
	for n < h.len() {
		_, text := h.at(n + 1)
		if size += len(text) + 2; size > limit {
			break
		}
		n++
	}
	for ; n > 0; n-- {
		p, text := h.at(n)
		out = append(out, text...)
		goesOn := false
		if n > 1 {
			next, _ := h.at(n - 1)
			goesOn = continues(p.fill, next.wrapped, &next.first)
		} else {
			goesOn = continues(p.fill, s.normal.lines[0].wrapped, &s.normal.lines[0].cells[0])
		}
		if !goesOn {
			out = append(out, "\r\n"...)
		}
	}
	return out
}

// paint gives everything behind the history. plain leaves colours and the like out, and then rows beyond the limit too.
func (s *Screen) paint(out []byte, limit int, plain bool) []byte {
	rows := func(b *buffer, start func(y int)) {
		for y := range b.lines {
			if y > 0 && !continues(b.lines[y-1].fill(), b.lines[y].wrapped, &b.lines[y].cells[0]) {
				start(y)
			}
			if !plain || len(out) < limit-1024-len(b.lines[y].cells)*8 {
				out = s.appendLine(out, &b.lines[y], plain)
			}
		}
	}
	rows(&s.normal, func(int) { out = append(out, "\r\n"...) })
	out = s.bufferState(out, &s.normal, s.base)
	if s.on == &s.alt {
		out = append(out, "\x1b[?1047h\x1b[H"...)
		rows(&s.alt, func(y int) { out = s.moveSequence(out, 0, y) })
		out = s.bufferState(out, &s.alt, 0)
	} else if s.alt.saved != (saved{}) {
		// It is kept while the other screen is not shown.
		out = append(out, "\x1b[?1047h"...)
		out = s.savedSequence(out, s.alt.saved, 0)
		out = append(out, "\x1b[?1047l"...)
	}
	out = s.modeSequences(out)
	return s.cursorAndPen(out, plain)
}

// appendLine paints a row with a fresh pen and leaves one behind.
func (s *Screen) appendLine(out []byte, l *line, plain bool) []byte {
	var pen, raw attr
	before := uint8(0) // kind of the character in front
	used := l.used()
	for x := 0; x < used; x++ {
		c := &l.cells[x]
		if c.width == 0 && c.empty() && x > 0 && l.cells[x-1].width == 2 {
			continue // the second half of what is painted already
		}
		if c.a != raw && !plain {
			raw = c.a
			out = s.appendPen(out, &pen, raw)
			before = 0
		}
		if c.empty() {
			n := 1
			for x+n < used && l.cells[x+n].empty() && (plain || l.cells[x+n].a == raw) {
				n++
			}
			out = appendGap(out, pen, n, x+n < len(l.cells))
			x += n - 1
			before = 0
			continue
		}
		if c.r < classes[0].from && before != kindPrepend {
			out = append(out, byte(c.r)) // of two bytes from 0x80 on
			if c.r >= 0x80 {
				out = append(out[:len(out)-1], string(c.r)...)
			}
			before = 0
			if c.cluster == 0 {
				continue
			}
			out = out[:len(out)-len(string(c.r))]
		}
		kind, _ := classOf(c.r)
		if joins(before, kind) {
			out = pen.appendSGR(out) // a sequence between keeps them apart
		}
		text := s.textOf(c)
		out = append(out, text...)
		before = lastKind(text)
	}
	if pen != (attr{}) {
		out = s.appendPen(out, &pen, attr{})
	}
	return out
}

// lastKind is what a cluster means for the character behind it.
func lastKind(text string) uint8 {
	before, kind := uint8(0), uint8(0)
	for _, r := range text {
		before = kind
		kind, _ = classOf(r)
		if kind == kindRegional && before == kindRegional {
			kind = 0
		}
	}
	return kind
}

// appendGap paints n places where nothing is, and goes behind them where there is a behind.
func appendGap(out []byte, a attr, n int, on bool) []byte {
	if a != a.erased() { // seen although it is nothing: blanks look the same
		for range n {
			out = append(out, ' ')
		}
		return out
	}
	if a.bg != 0 {
		out = append(strconv.AppendInt(append(out, "\x1b["...), int64(n), 10), 'X')
	}
	if on {
		out = append(strconv.AppendInt(append(out, "\x1b["...), int64(n), 10), 'C')
	}
	return out
}

// appendPen changes from one pen to another, its link included.
func (s *Screen) appendPen(out []byte, pen *attr, a attr) []byte {
	a = a.seen()
	if pen.link != a.link {
		out = append(out, "\x1b]8;"...)
		if a.link > 0 {
			out = append(out, s.links.get(a.link)...)
		} else {
			out = append(out, ';')
		}
		out = append(out, "\x1b\\"...)
	}
	was := *pen
	*pen = a
	was.link, a.link = 0, 0
	if a == was {
		return out
	}
	return a.appendSGR(out)
}

func (s *Screen) moveSequence(out []byte, x, y int) []byte {
	out = strconv.AppendInt(append(out, "\x1b["...), int64(y+1), 10)
	return append(strconv.AppendInt(append(out, ';'), int64(x+1), 10), 'H')
}

// bufferState sets tabs, saved cursor and scrolled rows of the buffer that is shown. base is how many lines lie above it.
func (s *Screen) bufferState(out []byte, b *buffer, base int) []byte {
	usual := s.newBuffer()
	if !slices.Equal(b.tabs[:s.cols], usual.tabs[:s.cols]) {
		out = append(out, "\x1b[3g"...)
		for x := range s.cols {
			if b.tabs[x] {
				out = append(s.moveSequence(out, x, 0), "\x1bH"...)
			}
		}
	}
	if b.saved != (saved{}) {
		out = s.savedSequence(out, b.saved, base)
	}
	if b.top != 0 || b.bottom != s.rows-1 {
		out = strconv.AppendInt(append(out, "\x1b["...), int64(b.top+1), 10)
		out = append(strconv.AppendInt(append(out, ';'), int64(b.bottom+1), 10), 'r')
	}
	return out
}

func (s *Screen) savedSequence(out []byte, v saved, base int) []byte {
	out = s.moveSequence(out, min(v.x, s.cols-1), min(max(v.y-base, 0), s.rows-1))
	var pen attr
	out = s.appendPen(out, &pen, v.a)
	if v.set != 0 {
		out = append(out, 0x1b, '(', v.set)
	}
	out = append(out, "\x1b7"...)
	if v.set != 0 {
		out = append(out, "\x1b(B"...)
	}
	return s.appendPen(out, &pen, attr{})
}

func (s *Screen) modeSequences(out []byte) []byte {
	m := &s.modes
	for _, p := range []struct {
		on   bool
		text string
	}{
		{m.cursorKeys, "\x1b[?1h"},
		{m.origin, "\x1b[?6h"},
		{!m.wrap, "\x1b[?7l"},
		{m.blink, "\x1b[?12h"},
		{m.hidden, "\x1b[?25l"},
		{m.reverseWrap, "\x1b[?45h"},
		{m.focus, "\x1b[?1004h"},
		{m.paste, "\x1b[?2004h"},
		{m.keypad, "\x1b="},
		{m.convertEOL, "\x1b[20h"},
	} {
		if p.on {
			out = append(out, p.text...)
		}
	}
	for _, n := range []int{m.mouse, m.encoding} {
		if n != 0 {
			out = append(strconv.AppendInt(append(out, "\x1b[?"...), int64(n), 10), 'h')
		}
	}
	if m.shape != 0 {
		out = append(strconv.AppendInt(append(out, "\x1b["...), int64(m.shape), 10), " q"...)
	}
	return out
}

// cursorAndPen comes last. Where the cursor stands right behind what was printed last, that is printed again: only so does it wait
// at the right edge, and take what joins it.
func (s *Screen) cursorAndPen(out []byte, plain bool) []byte {
	b := s.on
	for i, set := range s.sets.sets {
		if set != 0 {
			out = append(out, 0x1b, "()*+"[i], set)
		}
	}
	out = append(out, []string{"", "\x0e", "\x1bn", "\x1bo"}[s.sets.level]...)
	if s.sets.cur != s.sets.sets[s.sets.level] {
		out = append(out, "\x1b8\x1b[m"...) // only a cursor that was restored has another set in use; taken for the one that is saved
	}
	y := b.y
	if s.modes.origin {
		y -= b.top
	}
	var pen attr
	x := b.x
	if s.join != 0 || x >= s.cols {
		at := x - 1
		if at > 0 && b.line(b.y).cells[at].width == 0 {
			at--
		}
		if c := b.line(b.y).cells; at >= 0 && (x >= s.cols || !c[at].empty()) {
			c := &c[at]
			a := c.a
			if plain {
				a = attr{}
			}
			out = s.moveSequence(out, at, y)
			out = s.appendPen(out, &pen, a)
			if out = append(out, s.textOf(c)...); c.empty() {
				out = append(out, ' ') // erased since
			}
			x = -1
		}
	}
	if x >= 0 {
		out = s.moveSequence(out, min(x, s.cols-1), y)
	}
	out = s.appendPen(out, &pen, s.pen)
	if s.modes.insert {
		out = append(out, "\x1b[4h"...)
	}
	return s.openSequence(out)
}

// openSequence begins what the program has begun and not ended.
func (s *Screen) openSequence(out []byte) []byte {
	switch { // the rest of an endless string must not show as text
	case s.Pending() > 0 || !s.scan.open():
	case s.scan.st == inOSC:
		out = append(out, "\x1b]9999;"...)
	case s.scan.st == inString:
		out = append(out, "\x1b_"...)
	case s.scan.over: // nothing that means anything comes of it
		out = append(out, "\x1b[?9999"...)
	default:
		out = append(out, s.scan.seq...)
	}
	return out
}
