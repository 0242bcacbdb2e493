package screen

import "slices"

// history holds the lines that have left the screen, each as output that paints it with a fresh pen and leaves one behind.
type history struct {
	text  []byte
	lines []past
	from  int // lines[from:] are kept
}

type past struct {
	end     int  // in text; it begins where the one before ends
	wrapped bool // goes on from the one before
	fill    fill
	first   cell
}

func (h *history) len() int { return len(h.lines) - h.from }

func (h *history) clear() { h.text, h.lines, h.from = h.text[:0], h.lines[:0], 0 }

func (h *history) start(i int) int {
	if i == 0 {
		return 0
	}
	return h.lines[i-1].end
}

// at gives the i-th line from the end, 1 being the newest.
func (h *history) at(i int) (past, []byte) {
	n := len(h.lines) - i
	return h.lines[n], h.text[h.start(n):h.lines[n].end]
}

func (h *history) push(s *Screen, l *line) {
	h.text = s.appendLine(h.text, l, false)
	h.lines = append(h.lines, past{end: len(h.text), wrapped: l.wrapped, fill: l.fill(), first: l.cells[0]})
	for h.len() > 0 && (h.len() > maxHistoryLines || len(h.text)-h.start(h.from) > maxHistoryBytes) {
		h.from++
	}
	if cut := h.start(h.from); cut > maxHistoryBytes || h.from > maxHistoryLines {
		h.text = slices.Delete(h.text, 0, cut)
		h.lines = slices.Delete(h.lines, 0, h.from)
		h.from = 0
		for i := range h.lines {
			h.lines[i].end -= cut
		}
	}
}

// pop takes the newest line back as a row of so many columns.
func (h *history) pop(s *Screen) (line, bool) {
	if h.len() == 0 {
		return line{}, false
	}
	p, text := h.at(1)
	one := New(s.cols, 1)
	one.clusters, one.links = s.clusters, s.links
	one.clusters.limit, one.links.limit = 1<<16-1, 1<<16-1 // nothing is forgotten here, so numbers stay what they are
	one.modes.wrap = false
	one.Write(text)
	s.clusters, s.links = one.clusters, one.links
	s.clusters.limit, s.links.limit = maxClusters, maxLinks
	l := one.normal.lines[0]
	l.wrapped = p.wrapped
	h.lines = h.lines[:len(h.lines)-1]
	h.text = h.text[:h.start(len(h.lines))]
	return l, true
}

// fill says what wraps behind a row: nothing, a wide character alone, or every character.
type fill uint8

const (
	fillNot fill = iota
	fillWide
	fillAll
)

func (l *line) fill() fill {
	taken := func(x int) bool { return x >= 0 && (!l.cells[x].empty() || l.cells[x].width == 0) }
	switch last := len(l.cells) - 1; {
	case taken(last):
		return fillAll
	case taken(last - 1):
		return fillWide
	}
	return fillNot
}

// continues reports whether what begins with first, printed right behind a row without a new line between, comes in the row below.
// A row that comes so has the pen's background all along: with one, it is painted as a row of its own.
func continues(above fill, wrapped bool, first *cell) bool {
	return wrapped && !first.empty() && first.a.bg == 0 && (above == fillAll || above == fillWide && first.width == 2)
}
