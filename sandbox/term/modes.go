package term

import (
	"bytes"
	"strconv"
)

// modes is what outlives the text in a terminal: everything that a reader who joins late must be told. It is a value:
// copies are cheap and independent. The zero value is not ready; use defaultModes.
type modes struct {
	private   [len(kept)]bool
	alternate bool
	mouse     int // 0, 9, 1000, 1002 or 1003: one at a time
	encoding  int // 0, 1005, 1006, 1015 or 1016: one at a time
	keypad    bool
	insert    bool
	newline   bool
	cursor    string // the parameter of DECSCUSR
	region    string // the parameters of DECSTBM
	charsets  [2]byte
	shifted   bool   // SO: the second character set is in use
	style     string // SGR sequences since the last reset of the style
}

// kept are the private modes with a plain on and off, and what each is at the start.
var kept = [...]struct {
	n  int
	on bool
}{{1, false}, {5, false}, {6, false}, {7, true}, {12, false}, {25, true}, {45, false}, {1004, false}, {2004, false}}

// maxStyle bounds the remembered SGR sequences; a program that never resets its style does not need its whole history.
const maxStyle = 256

func defaultModes() modes {
	m := modes{charsets: [2]byte{'B', 'B'}}
	for i, k := range kept {
		m.private[i] = k.on
	}
	return m
}

// apply notes what one token changes.
func (m *modes) apply(t token, raw []byte) {
	switch t {
	case tokC0:
		switch raw[0] {
		case 0x0e:
			m.shifted = true
		case 0x0f:
			m.shifted = false
		}
	case tokEsc:
		m.escape(raw)
	case tokCSI:
		m.csi(raw)
	}
}

func (m *modes) escape(raw []byte) {
	switch {
	case len(raw) == 2 && raw[1] == 'c':
		*m = defaultModes()
	case len(raw) == 2 && raw[1] == '=':
		m.keypad = true
	case len(raw) == 2 && raw[1] == '>':
		m.keypad = false
	case len(raw) == 3 && raw[1] == '(':
		m.charsets[0] = raw[2]
	case len(raw) == 3 && raw[1] == ')':
		m.charsets[1] = raw[2]
	}
}

func (m *modes) csi(raw []byte) {
	if len(raw) < 3 {
		return
	}
	body, final := raw[2:len(raw)-1], raw[len(raw)-1]
	plain := len(bytes.Trim(body, "0123456789;:")) == 0
	switch {
	case final == 'm' && plain:
		m.sgr(raw, body)
	case final == 'r' && plain:
		m.region = string(body)
	case (final == 'h' || final == 'l') && len(body) > 0 && body[0] == '?':
		eachParam(body[1:], func(n int) { m.setPrivate(n, final == 'h') })
	case (final == 'h' || final == 'l') && plain:
		eachParam(body, func(n int) {
			switch n {
			case 4:
				m.insert = final == 'h'
			case 20:
				m.newline = final == 'h'
			}
		})
	case final == 'p' && string(body) == "!":
		m.softReset()
	case final == 'q' && len(body) > 0 && body[len(body)-1] == ' ':
		m.cursor = string(body[:len(body)-1])
	}
}

func (m *modes) softReset() {
	d := defaultModes()
	d.alternate, d.mouse, d.encoding, d.cursor = m.alternate, m.mouse, m.encoding, m.cursor
	*m = d
}

func (m *modes) sgr(raw, body []byte) {
	if len(body) == 0 || string(body) == "0" {
		m.style = ""
		return
	}
	if bytes.HasPrefix(body, []byte("0;")) {
		m.style = ""
	}
	if len(raw) > maxStyle {
		return
	}
	m.style += string(raw)
	for len(m.style) > maxStyle { // forget the oldest sequence
		m.style = m.style[1+bytes.IndexByte([]byte(m.style), 'm'):]
	}
}

func (m *modes) setPrivate(n int, on bool) {
	pick := func(field *int) {
		if on {
			*field = n
		} else {
			*field = 0
		}
	}
	switch n {
	case 47, 1047, 1049:
		m.alternate = on
	case 9, 1000, 1002, 1003:
		pick(&m.mouse)
	case 1005, 1006, 1015, 1016:
		pick(&m.encoding)
	case 66:
		m.keypad = on
	}
	for i, k := range kept {
		if k.n == n {
			m.private[i] = on
		}
	}
}

// restore appends the output that brings a freshly reset terminal into these modes.
func (m *modes) restore(out []byte) []byte {
	set := func(n int, on bool) {
		out = append(out, "\x1b[?"...)
		out = strconv.AppendInt(out, int64(n), 10)
		if on {
			out = append(out, 'h')
		} else {
			out = append(out, 'l')
		}
	}
	if m.alternate {
		set(1049, true)
	}
	if m.region != "" {
		out = append(append(append(out, "\x1b["...), m.region...), 'r')
	}
	for i, k := range kept {
		if m.private[i] != k.on {
			set(k.n, m.private[i])
		}
	}
	if m.mouse != 0 {
		set(m.mouse, true)
	}
	if m.encoding != 0 {
		set(m.encoding, true)
	}
	if m.keypad {
		out = append(out, "\x1b="...)
	}
	if m.insert {
		out = append(out, "\x1b[4h"...)
	}
	if m.newline {
		out = append(out, "\x1b[20h"...)
	}
	if m.cursor != "" {
		out = append(append(append(out, "\x1b["...), m.cursor...), " q"...)
	}
	for i, introducer := range []byte{'(', ')'} {
		if m.charsets[i] != 'B' {
			out = append(out, 0x1b, introducer, m.charsets[i])
		}
	}
	if m.shifted {
		out = append(out, 0x0e)
	}
	return append(out, m.style...)
}

// eachParam calls f for each number of "1;2;3"; what is no small number is left out.
func eachParam(p []byte, f func(int)) {
	for part := range bytes.SplitSeq(p, []byte{';'}) {
		if n, err := strconv.Atoi(string(part)); err == nil {
			f(n)
		}
	}
}
