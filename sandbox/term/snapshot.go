package term

import "bytes"

// Bounds of a snapshot. It fits with room to spare into a viewer's credit, so that live output can follow before the
// first acknowledgement.
const (
	maxSnapshot = 192 << 10 // bytes of output replayed
	markEvery   = 4 << 10   // bytes between places where a replay may start, when there is a line's end
	markAtLeast = 16 << 10  // … and when there is none: full-screen programs write few lines
)

// mark is a place where a replay may start: outside any sequence and character.
type mark struct {
	off   int64
	modes modes
}

// tracker follows all output of a terminal, so that a replay can start at a safe place, in the modes of that place.
type tracker struct {
	scan  scanner
	modes modes
	off   int64 // offset of the next byte
	marks []mark
}

func newTracker() *tracker {
	t := &tracker{}
	t.restart(0)
	return t
}

// restart begins anew at an offset where nothing is known about what came before.
func (t *tracker) restart(off int64) {
	t.scan = scanner{pos: off}
	t.modes, t.off, t.marks = defaultModes(), off, t.marks[:0]
	if off == 0 { // a terminal's very first byte is a safe place
		t.marks = append(t.marks, mark{0, t.modes})
	}
}

// write follows more output.
func (t *tracker) write(p []byte) {
	base := t.off
	t.scan.scan(p, func(tok token, raw []byte, end int) {
		if raw != nil {
			t.modes.apply(tok, raw)
		}
		if t.scan.open() {
			return
		}
		at := base + int64(end)
		since := at
		if n := len(t.marks); n > 0 {
			since -= t.marks[n-1].off
		}
		if tok == tokC0 && raw[0] == '\n' && since >= markEvery {
			t.addMark(at)
		} else if since >= markAtLeast {
			if tok == tokText { // which may end inside a character
				at -= int64(partialTail(p[:end]))
			}
			t.addMark(at)
		}
	})
	t.off = base + int64(len(p))
}

func (t *tracker) addMark(at int64) {
	if len(t.marks) >= 4*maxSnapshot/markEvery {
		old := 0
		for old < len(t.marks) && t.marks[old].off < at-maxSnapshot {
			old++
		}
		t.marks = t.marks[:copy(t.marks, t.marks[old:])]
	}
	t.marks = append(t.marks, mark{at, t.modes})
}

// snapshot makes plain output that paints what the ring still shows, and the offset where live output continues.
func (t *tracker) snapshot(r *ring) (payload []byte, next int64) {
	next = r.next
	var tail []byte
	switch {
	case !t.scan.open():
	case t.scan.start >= r.oldest() && t.off-t.scan.start <= maxSeq:
		next = t.scan.start // an open sequence is sent again as a whole, as live output
	case t.scan.st == inOSC:
		tail = []byte("\x1b]9999;") // the rest of an endless string must not show as text
	case t.scan.st == inString:
		tail = []byte("\x1b_")
	}
	from, m := next, t.modes
	for i := range t.marks {
		if t.marks[i].off >= max(r.oldest(), next-maxSnapshot) && t.marks[i].off <= next {
			from, m = t.marks[i].off, t.marks[i].modes
			break
		}
	}
	window := make([]byte, next-from)
	r.copyAt(window, from)
	if !t.scan.open() {
		cut := partialTail(window)
		window, next = window[:len(window)-cut], next-int64(cut)
	}
	out := make([]byte, 0, len(window)+256)
	out = append(out, "\x18\x1bc"...) // leave whatever is open, then a full reset
	out = m.restore(out)
	out = strip(out, window)
	return append(out, tail...), next
}

// strip appends p without all that makes a terminal answer, beep, print, change its title or touch the clipboard.
func strip(out, p []byte) []byte {
	var s scanner
	s.scan(p, func(t token, raw []byte, _ int) {
		switch t {
		case tokText:
			if raw[0] >= 0x80 && raw[0] <= 0x9f {
				out = trimC2(out) // what stood between is gone: together they would be an 8-bit control
			}
			out = append(out, raw...)
		case tokC0:
			if raw[0] != 0x05 && raw[0] != 0x07 { // ENQ answers, BEL beeps
				out = append(out, raw...)
			}
		case tokEsc:
			if raw != nil && !dropEsc(raw) {
				out = append(out, raw...)
			}
		case tokCSI:
			if raw != nil && !dropCSI(raw) {
				out = append(out, raw...)
			}
		case tokOSC:
			if raw != nil && keepOSC(raw) {
				out = append(append(out, raw...), "\x1b\\"...)
			}
		case tokString:
			// DCS, APC, PM and SOS hold queries (DECRQSS, XTGETTCAP, kitty graphics) and nothing that a screen needs.
		}
	})
	return trimC2(out) // a byte of nothing, which must not join with what follows
}

func trimC2(p []byte) []byte {
	for len(p) > 0 && p[len(p)-1] == 0xc2 {
		p = p[:len(p)-1]
	}
	return p
}

// dropEsc: DECID asks who the terminal is; a string terminator has lost its string.
func dropEsc(raw []byte) bool { return len(raw) == 2 && (raw[1] == 'Z' || raw[1] == '\\') }

func dropCSI(raw []byte) bool {
	body, final := raw[2:len(raw)-1], raw[len(raw)-1]
	private := len(body) > 0 && body[0] >= '<' && body[0] <= '?'
	inter := bytes.IndexFunc(body, func(r rune) bool { return r >= 0x20 && r <= 0x2f }) >= 0
	switch final {
	case 'c', 'n', 't', 'i', 'x': // device attributes, status, window reports, printing, DECREQTPARM
		return true
	case 'q': // XTVERSION; with a space it is the cursor's shape, which stays
		return private
	case 'm': // CSI ? m asks for key settings
		return private && body[0] == '?'
	case 'u': // kitty keyboard query; with $ or & further reports; plain it restores the cursor
		return private || inter
	case 'p', 'w', 'y', 'v', 'R', '|', 'S':
		// DECRQM, DECRQPSR, DECRQCRA and the like. DECSTR is CSI ! p; scrolling up is a plain CSI S.
		if final == 'p' && string(body) == "!" {
			return false
		}
		return inter || private
	}
	return false
}

// keepOSC: hyperlinks, and colours that are set rather than asked for. Everything else (titles, clipboard, notifications,
// directories) is left out.
func keepOSC(raw []byte) bool {
	num, rest, _ := bytes.Cut(raw[2:], []byte{';'})
	switch string(num) {
	case "8":
		return true
	case "4", "5", "10", "11", "12", "17", "19", "104", "105", "110", "111", "112", "117", "119":
		return !bytes.ContainsRune(rest, '?')
	}
	return false
}
