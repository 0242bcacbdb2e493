package screen

// colour is a kind in the upper byte and a number below: none, one of 16, one of 256, or red, green and blue.
type colour uint32

const (
	colour16  colour = 1 << 24
	colour256 colour = 2 << 24
	colourRGB colour = 3 << 24
)

// What an attr's flags say.
const (
	bold uint16 = 1 << iota
	dim
	italic
	underline
	blink
	inverse
	invisible
	strike
	overline
	protected
	extended // the line's style below counts
)

// attr is how a cell looks.
type attr struct {
	fg, bg, under colour
	flags         uint16
	link          uint16 // number in Screen.links
	style         uint8  // of the line below: 0 none, 1 to 5 as in SGR 4:n
}

// erased is how a cell looks that something was erased from under this pen.
func (a attr) erased() attr { return attr{bg: a.bg} }

// cell is one place. r 0 is nothing; width 2 is followed by a cell of width 0. cluster is the number, in Screen.clusters, of the whole
// text where that is more than r.
type cell struct {
	r       rune
	a       attr
	cluster uint16
	width   uint8
}

func blank(a attr) cell { return cell{a: a, width: 1} }

func (c *cell) empty() bool { return c.r == 0 }

// line is one row.
type line struct {
	cells   []cell
	wrapped bool // goes on from the row above
	touched int  // cells from here on are as in an empty row: most rows are short
}

func newLine(cols int, a attr) line {
	l := line{cells: make([]cell, cols), touched: cols}
	l.wipe(a)
	return l
}

func (l *line) wipe(a attr) {
	c, to := blank(a), len(l.cells)
	if a == (attr{}) {
		to = min(l.touched, to)
		l.touched = 0
	} else {
		l.touched = to
	}
	for i := range l.cells[:to] {
		l.cells[i] = c
	}
	l.wrapped = false
}

// touch notes that cells in front of x are about to change.
func (l *line) touch(x int) { l.touched = max(l.touched, x) }

// halve clears the first half of a wide character whose second half is at x.
func (l *line) halve(x int, a attr) {
	if x > 0 && x <= len(l.cells) && l.cells[x-1].width == 2 {
		l.touch(x)
		l.cells[x-1] = blank(a)
	}
}

// mend clears the second half at x of a wide character whose first half is gone.
func (l *line) mend(x int, a attr) {
	if x < len(l.cells) && l.cells[x].width == 0 && l.cells[x].empty() {
		l.touch(x + 1)
		l.cells[x] = blank(a)
	}
}

// insert moves what is at x and behind it n places to the right.
func (l *line) insert(x, n int, a attr) {
	x %= len(l.cells)
	l.touch(len(l.cells))
	l.halve(x, a)
	n = min(n, len(l.cells)-x)
	copy(l.cells[x+n:], l.cells[x:])
	for i := x; i < x+n; i++ {
		l.cells[i] = blank(a)
	}
	if last := &l.cells[len(l.cells)-1]; last.width == 2 {
		*last = blank(a)
	}
}

// remove takes n places at x away; what is behind them moves up.
func (l *line) remove(x, n int, a attr) {
	x %= len(l.cells)
	l.touch(len(l.cells))
	n = min(n, len(l.cells)-x)
	copy(l.cells[x:], l.cells[x+n:])
	for i := len(l.cells) - n; i < len(l.cells); i++ {
		l.cells[i] = blank(a)
	}
	l.halve(x, a)
	l.mend(x, a)
}

// erase clears [from, to); spare leaves what is protected.
func (l *line) erase(from, to int, a attr, spare bool) {
	to = min(to, len(l.cells))
	if a != (attr{}) {
		l.touch(min(to+1, len(l.cells)))
	}
	if from > 0 && from <= len(l.cells) && l.cells[from-1].width == 2 && !(spare && l.cells[from-1].a.flags&protected != 0) {
		l.cells[from-1] = blank(a)
	}
	if to > 0 && to < len(l.cells) && l.cells[to-1].width == 2 && !(spare && l.cells[to].a.flags&protected != 0) {
		l.cells[to] = blank(a)
	}
	for i := from; i < to; i++ {
		if !spare || l.cells[i].a.flags&protected == 0 {
			l.cells[i] = blank(a)
		}
	}
}

// used is how many cells, from the left, hold anything that is seen.
func (l *line) used() int {
	for i := min(l.touched, len(l.cells)); i > 0; i-- {
		if c := &l.cells[i-1]; !c.empty() || c.a != (attr{}) || c.width != 1 {
			return i
		}
	}
	return 0
}

// resize cuts or fills up.
func (l *line) resize(cols int) {
	if cols <= len(l.cells) {
		l.cells = append([]cell(nil), l.cells[:cols]...)
		if last := &l.cells[cols-1]; last.width == 2 {
			*last = blank(attr{})
		}
		l.touched = cols
		return
	}
	l.cells = append(make([]cell, 0, cols), l.cells...)
	for len(l.cells) < cols {
		l.cells = append(l.cells, blank(attr{}))
	}
	l.touched = cols
}

// saved is what ESC 7 keeps. Its row counts from the first line ever, so that it moves with the text.
type saved struct {
	x   int
	y   int
	a   attr
	set byte
}

// buffer is one of the two screens of a terminal.
type buffer struct {
	lines       []line
	x, y        int // x is cols when the next character wraps
	top, bottom int // the rows that scroll
	tabs        []bool
	saved       saved
}

func (s *Screen) newBuffer() buffer {
	b := buffer{bottom: s.rows - 1}
	b.setTabs(0, s.cols)
	return b
}

func (b *buffer) fill(cols, rows int, a attr) {
	for len(b.lines) < rows {
		b.lines = append(b.lines, newLine(cols, a))
	}
}

func (b *buffer) line(y int) *line { return &b.lines[y] }

func (b *buffer) setTabs(from, cols int) {
	for len(b.tabs) < cols+1 {
		b.tabs = append(b.tabs, false)
	}
	for i := from; i < cols; i += 8 {
		b.tabs[i] = true
	}
}

func (b *buffer) nextTab(cols int) {
	for b.x++; b.x < cols && !b.tabs[b.x]; b.x++ {
	}
	b.x = min(b.x, cols-1)
}

func (b *buffer) previousTab(cols int) {
	for b.x--; b.x > 0 && !b.tabs[b.x]; b.x-- {
	}
	b.x = min(max(b.x, 0), cols-1)
}

// up moves the rows [top, bottom] up by one; the row at the bottom is new.
func (b *buffer) up(top, bottom int, a attr) {
	first := b.lines[top]
	copy(b.lines[top:bottom], b.lines[top+1:bottom+1])
	first.wipe(a)
	b.lines[bottom] = first
}

// down moves them down by one; the row at the top is new.
func (b *buffer) down(top, bottom int, a attr) {
	last := b.lines[bottom]
	copy(b.lines[top+1:bottom+1], b.lines[top:bottom])
	last.wipe(a)
	b.lines[top] = last
}
