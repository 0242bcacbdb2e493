package screen

// Resize changes the size as the browser's terminal does: rows that find no place become history, or come back from there, and
// long lines of the normal screen are laid out again, but for the one that the cursor is in.
func (s *Screen) Resize(cols, rows int) {
	cols, rows = max(cols, 2), max(rows, 1)
	if cols == s.cols && rows == s.rows {
		return
	}
	s.join = 0
	old := s.cols
	s.cols = cols
	for _, b := range []*buffer{&s.normal, &s.alt} {
		if len(b.lines) > 0 {
			if cols > old {
				for y := range b.lines {
					b.lines[y].resize(cols)
				}
			}
			s.resizeRows(b, rows)
			b.x, b.y = min(b.x, cols-1), min(b.y, rows-1)
			b.saved.x = min(b.saved.x, cols-1)
		}
		b.top, b.bottom = 0, rows-1
	}
	s.rows = rows
	if cols != old {
		s.reflow(old)
	}
	for _, b := range []*buffer{&s.normal, &s.alt} {
		for y := range b.lines {
			if len(b.lines[y].cells) != cols {
				b.lines[y].resize(cols)
			}
		}
		from := cols
		for from > 0 && (from >= len(b.tabs) || !b.tabs[from]) {
			from--
		}
		b.setTabs(from, cols)
	}
}

func (s *Screen) resizeRows(b *buffer, rows int) {
	for len(b.lines) < rows {
		if b == &s.normal && s.history.len() > 0 && len(b.lines) <= b.y+1 {
			l, _ := s.history.pop(s)
			b.lines = append([]line{l}, b.lines...)
			s.base = max(s.base-1, 0)
			b.y++
			continue
		}
		b.lines = append(b.lines, newLine(s.cols, attr{}))
	}
	for len(b.lines) > rows {
		if len(b.lines) > b.y+1 {
			b.lines = b.lines[:len(b.lines)-1]
			continue
		}
		s.dropTop(b)
		b.y--
	}
}

// dropTop moves the first row into history.
func (s *Screen) dropTop(b *buffer) {
	if b == &s.normal {
		s.history.push(s, &b.lines[0])
		s.base = min(s.base+1, maxHistoryLines)
	}
	b.lines = b.lines[1:]
}

// reflow lays the lines of the normal screen out for its new width. old is what they were laid out for.
func (s *Screen) reflow(old int) {
	b := &s.normal
	for len(b.lines) > 0 && b.lines[0].wrapped && s.history.len() > 0 { // a line that begins above
		l, _ := s.history.pop(s)
		b.lines = append([]line{l}, b.lines...)
		s.base = max(s.base-1, 0)
		b.y++
	}
	var laid []line
	cursor := b.y
	for y := 0; y < len(b.lines); {
		end := y + 1
		for end < len(b.lines) && b.lines[end].wrapped {
			end++
		}
		if y <= b.y && b.y < end {
			cursor = len(laid) + b.y - y
			laid = append(laid, b.lines[y:end]...)
		} else {
			laid = append(laid, relaid(b.lines[y:end], old, s.cols)...)
		}
		y = end
	}
	b.lines, b.y = laid, cursor
	for len(b.lines) > s.rows {
		if last := len(b.lines) - 1; last > b.y && b.lines[last].used() == 0 {
			b.lines = b.lines[:last]
			continue
		}
		if b.y == 0 {
			b.lines = b.lines[:s.rows]
			break
		}
		s.dropTop(b)
		b.y--
	}
	s.resizeRows(b, s.rows)
}

// relaid lays one line out for another width.
func relaid(rows []line, old, cols int) []line {
	if len(rows) == 1 && rows[0].used() <= cols {
		return rows
	}
	var cells []cell
	for i := range rows {
		n := min(old, len(rows[i].cells))
		if i == len(rows)-1 {
			n = rows[i].used()
		} else if n > 0 && rows[i].cells[n-1].empty() && rows[i].cells[n-1].width == 1 && rows[i+1].cells[0].width == 2 {
			n-- // the place that a wide character did not fit into
		}
		cells = append(cells, rows[i].cells[:n]...)
	}
	var out []line
	for first := true; first || len(cells) > 0; first = false {
		n := min(cols, len(cells))
		if n == cols && cells[n-1].width == 2 {
			n--
		}
		l := newLine(cols, attr{})
		l.touch(n)
		copy(l.cells, cells[:n])
		l.wrapped = !first || rows[0].wrapped
		out, cells = append(out, l), cells[n:]
	}
	return out
}
