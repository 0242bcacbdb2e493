package screen

const maxParams = 32

// params are the numbers of a sequence; a missing one is 0. sub holds those behind colons, -1 for a missing one.
type params struct {
	n   []int
	sub [][]int
}

func (p *params) at(i int) int {
	if i < len(p.n) {
		return p.n[i]
	}
	return 0
}

// count is a number where 0 means 1.
func (p *params) count() int { return max(p.at(0), 1) }

// parseParams reads digits, semicolons and colons; anything else is no sequence that means anything.
func parseParams(raw []byte) (p params, ok bool) {
	const most = 0x7fffffff
	p.n, p.sub = append(p.n, 0), append(p.sub, nil)
	subbed, digits := false, false
	for _, c := range raw {
		last := len(p.n) - 1
		switch {
		case c == ';':
			if len(p.n) >= maxParams {
				return p, true
			}
			p.n, p.sub = append(p.n, 0), append(p.sub, nil)
			subbed, digits = false, false
		case c == ':':
			if len(p.sub[last]) < maxParams {
				p.sub[last] = append(p.sub[last], -1)
			}
			subbed, digits = true, false
		case c >= '0' && c <= '9':
			at := &p.n[last]
			if subbed {
				at = &p.sub[last][len(p.sub[last])-1]
			}
			if !digits && *at < 0 {
				*at = 0
			}
			digits = true
			*at = min(*at*10+int(c-'0'), most)
		default:
			return p, false
		}
	}
	return p, true
}

// csi takes what stands behind ESC [.
func (s *Screen) csi(raw []byte) {
	if len(raw) == 0 {
		return
	}
	final, body := raw[len(raw)-1], raw[:len(raw)-1]
	prefix := byte(0)
	if len(body) > 0 && body[0] >= '<' && body[0] <= '?' {
		prefix, body = body[0], body[1:]
	}
	cut := len(body)
	for cut > 0 && body[cut-1] >= 0x20 && body[cut-1] <= 0x2f {
		cut--
	}
	between := string(body[cut:])
	p, ok := parseParams(body[:cut])
	switch {
	case !ok: // not even one that is unknown: the browser goes on as if nothing had come
		s.join = s.before
	case prefix == '?' && between == "":
		s.privateCSI(final, &p)
	case prefix != 0:
	case between == "":
		s.plainCSI(final, &p)
	case between == " ":
		s.spaceCSI(final, &p)
	case between == "!" && final == 'p':
		s.softReset()
	case between == "\"" && final == 'q':
		switch p.at(0) {
		case 1:
			s.pen.flags |= protected
		case 0, 2:
			s.pen.flags &^= protected
		}
	case between == "'" && (final == '}' || final == '~'):
		s.columns(final == '}', s.on.x, p.count())
	}
}

func (s *Screen) privateCSI(final byte, p *params) {
	switch final {
	case 'h', 'l':
		for _, n := range p.n {
			s.setPrivate(n, final == 'h')
		}
	case 'J':
		s.eraseDisplay(p.at(0), true)
	case 'K':
		s.eraseLine(p.at(0), true)
	}
}

func (s *Screen) spaceCSI(final byte, p *params) {
	switch final {
	case '@':
		s.columns(false, 0, p.count())
	case 'A':
		s.columns(true, 0, p.count())
	case 'q':
		if n := p.at(0); n <= 6 {
			s.modes.shape = n
		}
	}
}

// columns inserts or removes columns at x in all rows that scroll.
func (s *Screen) columns(insert bool, x, n int) {
	b := s.on
	if b.y > b.bottom || b.y < b.top {
		return
	}
	for y := b.top; y <= b.bottom; y++ {
		if insert {
			b.line(y).insert(x, n, s.pen.erased())
		} else {
			b.line(y).remove(x, n, s.pen.erased())
		}
		b.line(y).wrapped = false
	}
}

func (s *Screen) plainCSI(final byte, p *params) {
	b, n := s.on, p.count()
	switch final {
	case 'A', 'F':
		if d := b.y - b.top; d >= 0 {
			n = min(d, n)
		}
		s.moveBy(0, -n)
		if final == 'F' {
			b.x = 0
		}
	case 'B', 'E':
		if d := b.bottom - b.y; d >= 0 {
			n = min(d, n)
		}
		s.moveBy(0, n)
		if final == 'E' {
			b.x = 0
		}
	case 'C', 'a':
		s.moveBy(n, 0)
	case 'D':
		s.moveBy(-n, 0)
	case 'G', '`':
		s.moveTo(n-1, b.y)
	case 'H', 'f':
		s.moveTo(max(p.at(1), 1)-1, n-1)
	case 'd':
		s.moveTo(b.x, n-1)
	case 'e':
		s.moveBy(0, n)
	case 'I', 'Z':
		for range min(n, s.cols) {
			switch {
			case b.x >= s.cols:
			case final == 'I':
				b.nextTab(s.cols)
			default:
				b.previousTab(s.cols)
			}
		}
	case 'J':
		s.eraseDisplay(p.at(0), false)
	case 'K':
		s.eraseLine(p.at(0), false)
	case 'L', 'M':
		s.linesAt(final == 'L', n)
	case '@':
		s.restrict(s.cols - 1)
		b.line(b.y).insert(b.x, n, s.pen.erased())
	case 'P':
		s.restrict(s.cols - 1)
		b.line(b.y).remove(b.x, n, s.pen.erased())
	case 'X':
		s.restrict(s.cols - 1)
		b.line(b.y).erase(b.x, b.x+min(n, s.cols), s.pen.erased(), false)
	case 'S':
		for range min(n, b.bottom-b.top+1) {
			b.up(b.top, b.bottom, s.pen.erased())
		}
	case 'T':
		for range min(n, b.bottom-b.top+1) {
			b.down(b.top, b.bottom, attr{})
		}
	case 'b':
		s.repeat(n)
	case 'g':
		switch p.at(0) {
		case 0:
			b.tabs[b.x] = false
		case 3:
			clear(b.tabs)
		}
	case 'h', 'l':
		for _, n := range p.n {
			switch n {
			case 4:
				s.modes.insert = final == 'h'
			case 20:
				s.modes.convertEOL = final == 'h'
			}
		}
	case 'm':
		s.pen.sgr(p)
	case 'r':
		bottom := p.at(1)
		if bottom == 0 || bottom > s.rows {
			bottom = s.rows
		}
		if bottom > n {
			b.top, b.bottom = n-1, bottom-1
			s.moveTo(0, 0)
		}
	case 's':
		s.saveCursor()
	case 'u':
		s.restoreCursor()
	}
}

func (s *Screen) eraseLine(how int, spare bool) {
	b, a := s.on, s.pen.erased()
	s.restrict(s.cols)
	l := b.line(b.y)
	switch how {
	case 0:
		l.erase(b.x, s.cols, a, spare)
		l.wrapped = l.wrapped && b.x != 0
	case 1:
		l.erase(0, b.x+1, a, spare)
	case 2:
		l.erase(0, s.cols, a, spare)
		l.wrapped = false
	}
}

func (s *Screen) eraseDisplay(how int, spare bool) {
	b, a := s.on, s.pen.erased()
	s.restrict(s.cols)
	whole := func(from, to int) {
		for y := from; y < to; y++ {
			if l := b.line(y); spare {
				l.erase(0, s.cols, a, true)
				l.wrapped = false
			} else {
				l.wipe(a)
			}
		}
	}
	switch l := b.line(b.y); how {
	case 0:
		l.erase(b.x, s.cols, a, spare)
		l.wrapped = l.wrapped && b.x != 0
		whole(b.y+1, s.rows)
	case 1:
		l.erase(0, b.x+1, a, spare)
		l.wrapped = false
		if b.x+1 >= s.cols && b.y+1 < s.rows {
			b.line(b.y + 1).wrapped = false
		}
		whole(0, b.y)
	case 2:
		whole(0, s.rows)
	case 3:
		if b == &s.normal {
			s.base = max(s.base-s.history.len(), 0)
			s.history.clear()
		}
	}
}

// linesAt inserts or removes rows where the cursor is.
func (s *Screen) linesAt(insert bool, n int) {
	b := s.on
	s.restrict(s.cols - 1)
	if b.y > b.bottom || b.y < b.top {
		return
	}
	for range min(n, b.bottom-b.y+1) { // of more, all but the last few are blank
		if insert {
			b.down(b.y, b.bottom, s.pen.erased())
		} else {
			b.up(b.y, b.bottom, s.pen.erased())
		}
	}
	b.x = 0
}

// repeat prints the last character again.
func (s *Screen) repeat(n int) {
	b := s.on
	at := b.x - int(s.before.width())
	if s.before == 0 || at < 0 || at >= s.cols {
		return
	}
	text := s.textOf(&b.line(b.y).cells[at])
	for range min(n, s.cols*s.rows) {
		s.text([]byte(text))
	}
	s.join = 0
}
