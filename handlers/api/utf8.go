package api

import "unicode/utf8"

// openTail gives how many bytes at the end of p begin a character that p does not finish: 0 to 3.
func openTail(p []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(p); n++ {
		b := p[len(p)-n]
		if b < utf8.RuneSelf {
			return 0
		}
		if utf8.RuneStart(b) {
			if !utf8.FullRune(p[len(p)-n:]) {
				return n
			}
			return 0
		}
	}
	return 0
}
