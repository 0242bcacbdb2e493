package screen

// modes is what a program has switched on or off.
type modes struct {
	cursorKeys, origin, wrap, reverseWrap bool
	keypad, focus, paste, sync            bool
	insert                                bool
	hidden, convertEOL, blink             bool // not changed by ESC c
	mouse                                 int  // 0, 9, 1000, 1002 or 1003: one at a time
	encoding                              int  // 0, 1006 or 1016: one at a time
	shape                                 int  // of the cursor, as in DECSCUSR
}

func defaultModes() modes { return modes{wrap: true} }

// charsets are the four sets of characters and the one in use. A set is its final byte; 0 is plain.
type charsets struct {
	sets  [4]byte
	level int
	cur   byte
}

func (c *charsets) now() byte { return c.cur }

func (c *charsets) use(level int) { c.level, c.cur = level, c.sets[level] }

func (c *charsets) set(level int, set byte) {
	if set == 'B' {
		set = 0
	}
	c.sets[level] = set
	if c.level == level {
		c.cur = set
	}
}

// graphics are the pictures that lie over ` to ~ in the set 0.
var graphics = []rune("◆▒␉␌␍␊°±␤␋┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·")

// mapped gives what a character of ASCII means in the set in use. National sets other than the British one are taken for plain.
func (c *charsets) mapped(r rune) rune {
	switch {
	case c.cur == '0' && r >= '`' && r <= '~':
		return graphics[r-'`']
	case c.cur == 'A' && r == '#':
		return '£'
	}
	return r
}

func (s *Screen) setPrivate(n int, on bool) {
	m := &s.modes
	one := func(field *int) {
		if *field = 0; on {
			*field = n
		}
	}
	switch n {
	case 1:
		m.cursorKeys = on
	case 2:
		if on {
			for i := range s.sets.sets {
				s.sets.set(i, 0)
			}
		}
	case 6:
		m.origin = on
		s.moveTo(0, 0)
	case 7:
		m.wrap = on
	case 9, 1000, 1002, 1003:
		one(&m.mouse)
	case 12:
		m.blink = on
	case 25:
		m.hidden = !on
	case 45:
		m.reverseWrap = on
	case 47, 1047, 1048, 1049:
		s.switchBuffer(n, on)
	case 66:
		m.keypad = on
	case 1004:
		m.focus = on
	case 1006, 1016:
		one(&m.encoding)
	case 2004:
		m.paste = on
	case 2026:
		m.sync = on
	}
}

func (s *Screen) switchBuffer(n int, on bool) {
	switch {
	case on:
		if n >= 1048 {
			s.saveCursor()
		}
		if n != 1048 && s.on == &s.normal {
			s.alt.fill(s.cols, s.rows, s.pen.erased())
			s.alt.x, s.alt.y = s.normal.x, s.normal.y
			s.on = &s.alt
		}
	default:
		if n != 1048 && s.on == &s.alt {
			s.normal.x, s.normal.y = s.alt.x, s.alt.y
			kept := s.alt.saved
			s.alt = s.newBuffer()
			s.alt.saved = kept
			s.on = &s.normal
		}
		if n >= 1048 {
			s.restoreCursor()
		}
	}
}

// lineBase is how many lines lie above the screen that is shown.
func (s *Screen) lineBase() int {
	if s.on == &s.normal {
		return s.base
	}
	return 0
}

func (s *Screen) saveCursor() {
	s.on.saved = saved{x: s.on.x, y: s.lineBase() + s.on.y, a: s.pen, set: s.sets.cur}
}

func (s *Screen) restoreCursor() {
	b := s.on
	b.x, b.y = b.saved.x, max(b.saved.y-s.lineBase(), 0)
	// The line below, its colour and the link stay as they are, as in the browser.
	a := b.saved.a
	s.pen.fg, s.pen.bg, s.pen.flags = a.fg, a.bg, a.flags
	s.sets.cur = b.saved.set
	s.restrict(s.cols - 1)
}

func (s *Screen) softReset() {
	s.modes.hidden = false
	s.on.top, s.on.bottom = 0, s.rows-1
	s.pen = attr{}
	d := defaultModes()
	d.mouse, d.encoding, d.convertEOL, d.blink = s.modes.mouse, s.modes.encoding, s.modes.convertEOL, s.modes.blink
	s.modes = d
	s.sets = charsets{}
	s.on.saved = saved{y: s.lineBase()}
}
