package screen

import (
	"bytes"
	"strings"
)

func (s *Screen) control(c byte) {
	b := s.on
	switch c {
	case '\b':
		s.backspace()
	case '\t':
		if b.x < s.cols {
			b.nextTab(s.cols)
		}
	case '\n', '\v', '\f':
		s.lineFeed()
	case '\r':
		b.x = 0
	case 0x0e:
		s.sets.use(1)
	case 0x0f:
		s.sets.use(0)
	}
}

func (s *Screen) lineFeed() {
	b := s.on
	if s.modes.convertEOL {
		b.x = 0
	}
	switch {
	case b.y == b.bottom:
		s.scroll(false)
	case b.y+1 >= s.rows:
		b.y = s.rows - 1
	default:
		b.y++
		b.line(b.y).wrapped = false
	}
	if b.x >= s.cols {
		b.x--
	}
}

func (s *Screen) backspace() {
	b := s.on
	if !s.modes.reverseWrap {
		s.restrict(s.cols - 1)
		b.x = max(b.x-1, 0)
		return
	}
	s.restrict(s.cols)
	switch {
	case b.x > 0:
		b.x--
	case b.y > b.top && b.y <= b.bottom && b.line(b.y).wrapped:
		b.line(b.y).wrapped = false
		b.y--
		b.x = s.cols - 1
		if c := b.line(b.y).cells[b.x]; c.width != 0 && c.empty() {
			b.x--
		}
	}
	s.restrict(s.cols - 1)
}

func (s *Screen) restrict(most int) {
	b := s.on
	b.x = min(max(b.x, 0), most)
	if s.modes.origin {
		b.y = min(max(b.y, b.top), b.bottom)
	} else {
		b.y = min(max(b.y, 0), s.rows-1)
	}
}

// moveTo counts rows from the top of the scrolled ones while the origin is there.
func (s *Screen) moveTo(x, y int) {
	if s.modes.origin {
		y += s.on.top
	}
	s.on.x, s.on.y = x, y
	s.restrict(s.cols - 1)
}

func (s *Screen) moveBy(dx, dy int) {
	s.restrict(s.cols - 1)
	s.moveTo(s.on.x+dx, s.on.y+dy)
}

func (s *Screen) index() {
	b := s.on
	s.restrict(s.cols - 1)
	if b.y == b.bottom {
		s.scroll(false)
	} else {
		b.y = min(b.y+1, s.rows-1)
	}
	s.restrict(s.cols - 1)
}

func (s *Screen) reverseIndex() {
	b := s.on
	s.restrict(s.cols - 1)
	if b.y == b.top {
		b.down(b.top, b.bottom, s.pen.erased())
		return
	}
	b.y--
	s.restrict(s.cols - 1)
}

// escape takes what stands behind ESC.
func (s *Screen) escape(p []byte) {
	if len(p) == 2 {
		switch level := strings.IndexByte("()*+", p[0]); {
		case level >= 0:
			s.sets.set(level, p[1])
		case p[0] == '-' || p[0] == '.':
			s.sets.set(map[byte]int{'-': 1, '.': 2}[p[0]], p[1])
		case p[0] == '%' && (p[1] == '@' || p[1] == 'G'):
			s.sets.use(0)
			s.sets.set(0, 0)
		case p[0] == '#' && p[1] == '8':
			s.align()
		}
		return
	}
	if len(p) != 1 {
		return
	}
	switch p[0] {
	case '7':
		s.saveCursor()
	case '8':
		s.restoreCursor()
	case 'D':
		s.index()
	case 'E':
		s.on.x = 0
		s.index()
	case 'H':
		s.on.tabs[s.on.x] = true
	case 'M':
		s.reverseIndex()
	case '=':
		s.modes.keypad = true
	case '>':
		s.modes.keypad = false
	case 'c':
		s.reset()
	case 'n', '}':
		s.sets.use(2)
	case 'o', '|':
		s.sets.use(3)
	case '~':
		s.sets.use(1)
	}
}

// align fills the screen with E, as one does to look at a tube.
func (s *Screen) align() {
	s.moveTo(0, 0)
	a := s.pen
	a.under, a.link, a.style = 0, 0, 0
	for y := s.on.y; y < s.rows; y++ {
		l := s.on.line(y)
		l.touch(s.cols)
		for x := range l.cells {
			l.cells[x] = cell{r: 'E', a: a, width: 1}
		}
		l.wrapped = false
	}
	s.moveTo(0, 0)
}

// osc takes what stands behind ESC ]: a title, a hyperlink or a change of the palette.
func (s *Screen) osc(p []byte) {
	number, rest, _ := bytes.Cut(p, []byte{';'})
	switch n := string(number); n {
	case "0", "2":
		if len(rest) <= maxTitle {
			s.title = strings.ToValidUTF8(string(rest), "")
		}
	case "8":
		params, address, ok := strings.Cut(string(rest), ";")
		switch {
		case !ok:
		case address != "":
			s.pen.link = s.linkTo(strings.ToValidUTF8(params+";"+address, ""))
			s.pen.mark()
		case strings.TrimSpace(params) == "":
			s.pen.link = 0
			s.pen.mark()
		}
	case "4", "10", "11", "12":
		s.palette(n, string(rest))
	case "104":
		if len(rest) == 0 {
			for k := range s.colours {
				if strings.HasPrefix(k, "4;") {
					delete(s.colours, k)
				}
			}
		}
		for i := range strings.SplitSeq(string(rest), ";") {
			delete(s.colours, "4;"+i)
		}
	case "110", "111", "112":
		delete(s.colours, n[1:])
	}
}

func (s *Screen) linkTo(address string) uint16 {
	n := s.links.add(address)
	if n == 0 && s.links.worthClearing() {
		s.forgetLinks()
		n = s.links.add(address)
	}
	return n
}

// palette notes a colour that was set; questions for one are no changes.
func (s *Screen) palette(n, rest string) {
	set := func(k, v string) {
		if v == "" || len(v) > 32 || strings.Contains(v, "?") || len(k) > 8 {
			return
		}
		if _, known := s.colours[k]; !known && len(s.colours) >= maxColours {
			return
		}
		if s.colours == nil {
			s.colours = map[string]string{}
		}
		s.colours[k] = strings.ToValidUTF8(v, "")
	}
	parts := strings.Split(rest, ";")
	if n != "4" { // further parts are the next numbers
		for i, v := range parts {
			if next := strings.Index("101112", n) + 2*i; next < 6 {
				set("101112"[next:next+2], v)
			}
		}
		return
	}
	for i := 0; i+1 < len(parts); i += 2 {
		set("4;"+parts[i], parts[i+1])
	}
}
