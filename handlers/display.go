package handlers

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

const maxShown = 4096 // bytes of a text of somebody else that a page shows

// display makes any text safe to read: what is not a letter one sees (controls, bidi marks, invisible ones, bad bytes)
// stands there as an escape.
func display(s string) string {
	shown, _ := displayBytes([]byte(s))
	return shown
}

// displayBytes is display for names of files, which are bytes; odd tells that something had to be escaped.
func displayBytes(p []byte) (shown string, odd bool) {
	cut := len(p) > maxShown
	if cut {
		p = p[:maxShown]
	}
	var b strings.Builder
	for len(p) > 0 {
		r, n := utf8.DecodeRune(p)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, p[0])
			odd = true
		case r == '\n':
			b.WriteString(`\n`)
			odd = true
		case r == '\t':
			b.WriteString(`\t`)
			odd = true
		case hidden(r):
			fmt.Fprintf(&b, `\u{%x}`, r)
			odd = true
		default:
			b.WriteRune(r)
		}
		p = p[n:]
	}
	if cut {
		b.WriteString("…")
	}
	return b.String(), odd
}

// hidden reports what can't be seen or what moves other letters about.
func hidden(r rune) bool {
	return unicode.Is(unicode.C, r) || unicode.In(r, unicode.Zl, unicode.Zp) || unicode.Is(unicode.Zs, r) && r != ' ' ||
		unicode.Is(unicode.Variation_Selector, r) || r == 0x115f || r == 0x1160 || r == 0x3164 || r == 0xffa0
}

// escapeHidden is display for longer texts: line ends and tabs stay what they are.
func escapeHidden(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return hidden(r) && r != '\n' && r != '\t' && r != '\r' }) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if hidden(r) && r != '\n' && r != '\t' && r != '\r' {
			fmt.Fprintf(&b, `\u{%x}`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}
