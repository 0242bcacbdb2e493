package handlers

import (
	"fmt"
	"strings"
	"unicode"

	"sandgate/sandbox/files"
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
	if len(p) > maxShown {
		return files.Display(p[:maxShown]) + "…", true
	}
	shown = files.Display(p)
	return shown, shown != string(p)
}

// escapeHidden is display for longer texts: line ends and tabs stay what they are, and so does the rest that one sees.
func escapeHidden(s string) string {
	if !strings.ContainsFunc(s, hidden) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if hidden(r) {
			fmt.Fprintf(&b, `\u{%X}`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// hidden reports what can't be seen in a text of several lines, or moves other letters about.
func hidden(r rune) bool {
	if r == '\n' || r == '\t' || r == '\r' {
		return false
	}
	return unicode.Is(unicode.C, r) || unicode.In(r, unicode.Zl, unicode.Zp, unicode.Variation_Selector)
}
