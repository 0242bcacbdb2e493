// Package screen owns what a terminal shows: it follows a program's output as the browser's terminal does, and gives back
// plain output that paints the same on an empty one. It must never answer, do I/O, or grow with what a program prints.
package screen

import "unicode/utf8"

//go:generate node testdata/widths.mjs widths_table.go

// Bounds that hold whatever a program prints.
const (
	maxHistoryBytes = 160 << 10 // lines that have left the screen, as output
	maxHistoryLines = 5000      // as many as the page keeps
	maxClusters     = 4096      // different characters of several code points on the screen
	maxClusterBytes = 64        // of one of them; what more is added to it is left out
	maxLinks        = 256       // different hyperlinks on the screen
	maxTitle        = 256
	maxColours      = 280     // changes of the palette
	clearEvery      = 1 << 12 // strings that found no place, before a full table is looked through again
)

// Screen is one terminal's. Not safe for concurrent use.
type Screen struct {
	scan     scanner
	cols     int
	rows     int
	normal   buffer
	alt      buffer
	on       *buffer // the one that is shown
	pen      attr
	modes    modes
	sets     charsets
	history  history
	part     []byte // first bytes of a character whose rest has not come
	join     join   // of what was printed last; none after anything else
	before   join   // join before the sequence that is being carried out
	clusters table
	links    table
	title    string
	colours  map[string]string // palette changes by what they change
	base     int               // lines that have left the normal screen at its top, as far as the browser's terminal counts them
	skip     int               // bytes that may still be left out, looking for a safe place to begin
}

// New makes an empty screen.
func New(cols, rows int) *Screen {
	s := &Screen{cols: max(cols, 2), rows: max(rows, 1), clusters: newTable(maxClusters), links: newTable(maxLinks)}
	s.reset()
	return s
}

// Join begins in the middle of a stream: the rest of a sequence or of a line that began before is left out.
func (s *Screen) Join() { s.skip = 4096 }

// reset is what ESC c does; history goes too.
func (s *Screen) reset() {
	s.normal, s.alt = s.newBuffer(), s.newBuffer()
	s.normal.fill(s.cols, s.rows, attr{})
	s.on = &s.normal
	hidden, eol, blink := s.modes.hidden, s.modes.convertEOL, s.modes.blink
	s.modes = defaultModes()
	s.modes.hidden, s.modes.convertEOL, s.modes.blink = hidden, eol, blink // the browser's terminal keeps these
	s.pen, s.sets, s.join = attr{}, charsets{}, 0
	s.history.clear()
	s.base = 0
}

// Write follows more output.
func (s *Screen) Write(p []byte) {
	if s.skip > 0 {
		p = s.begin(p)
	}
	s.scan.scan(p, s.token)
}

// begin looks for a place where no line or sequence of before goes on.
func (s *Screen) begin(p []byte) []byte {
	for i, b := range p {
		if s.skip--; s.skip == 0 || b == '\n' || b == 0x1b || b == '\r' {
			s.skip = 0
			if b == '\n' || b == '\r' {
				i++
			}
			s.scan.pos += int64(i)
			return p[i:]
		}
	}
	s.scan.pos += int64(len(p))
	return nil
}

// Pending is how many of the newest bytes began a character or a string that has not ended. A snapshot does not hold them:
// output goes on in front of them. Other sequences it ends with, and strings that are longer than maxSeq it swallows.
func (s *Screen) Pending() int {
	if s.scan.open() {
		if n := s.scan.pos - s.scan.start; n <= maxSeq && (s.scan.st == inOSC || s.scan.st == inString) {
			return int(n)
		}
		return 0
	}
	n := len(s.part)
	if s.scan.c2 {
		n++
	}
	return n
}

// Piece is how many bytes cost a moment at most, whatever they are: a few clear a screen that is large.
func (s *Screen) Piece() int { return max(256, (32<<20)/(s.cols*s.rows)) }

// Size gives columns and rows.
func (s *Screen) Size() (cols, rows int) { return s.cols, s.rows }

func (s *Screen) token(t token, raw []byte, _ int) {
	if t == tokText {
		s.text(raw)
		return
	}
	s.part = s.part[:0]
	switch t {
	case tokC0:
		if raw[0] == 0x7f {
			return
		}
		s.join = 0
		s.control(raw[0])
	case tokEsc:
		s.join = 0
		if raw != nil {
			s.escape(raw[1:])
		}
	case tokCSI:
		s.before, s.join = s.join, 0
		if raw != nil {
			s.csi(raw[2:])
		}
	case tokOSC:
		s.join = 0
		if raw != nil {
			s.osc(raw[2:])
		}
	case tokString:
		s.join = 0
	}
}

// text takes bytes of characters; what is no character is left out, as the browser does.
func (s *Screen) text(p []byte) {
	if len(s.part) > 0 {
		n := len(s.part)
		p = append(s.part[:n:n], p...)
		s.part = s.part[:0]
	}
	started := false
	for len(p) > 0 {
		if s.join.kind() != kindPrepend {
			if n := s.ascii(p); n > 0 {
				p = p[n:]
				continue
			}
		}
		r, size := rune(p[0]), 1
		if r >= utf8.RuneSelf {
			if !utf8.FullRune(p) {
				s.part = append(s.part[:0], p...)
				break
			}
			r, size = utf8.DecodeRune(p)
		}
		p = p[size:]
		if r == utf8.RuneError && size == 1 || r == 0xfeff {
			continue
		}
		if !started {
			s.on.line(s.on.y).halve(s.on.x, s.pen)
			started = true
		}
		s.print(r)
	}
	if started {
		s.on.line(s.on.y).mend(s.on.x, s.pen)
	}
}

// table numbers strings from 1 on; it takes no more than its limit.
type table struct {
	limit int
	rest  int // how often it may still be found full before it is cleared out again
	text  []string
	known map[string]uint16
}

func newTable(limit int) table { return table{limit: limit} }

// worthClearing reports whether to look which strings are still shown. That takes long, so it is not done each time when all are.
func (t *table) worthClearing() bool {
	t.rest--
	return t.rest < 0
}

// cleared notes how many strings were still shown.
func (t *table) cleared() {
	if t.rest = 0; len(t.text) > t.limit/2 {
		t.rest = clearEvery
	}
}

// add gives the number of a string, or 0 when the table is full.
func (t *table) add(s string) uint16 {
	if n := t.known[s]; n > 0 {
		return n
	}
	if len(t.text) >= t.limit {
		return 0
	}
	if t.known == nil {
		t.known = map[string]uint16{}
	}
	t.text = append(t.text, s)
	t.known[s] = uint16(len(t.text))
	return uint16(len(t.text))
}

func (t *table) get(n uint16) string { return t.text[n-1] }
