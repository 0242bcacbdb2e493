package term

import "unicode/utf8"

// partialTail is the number of bytes at the end of p (0 to 3) that begin a character whose rest has not come yet. Bytes
// that can begin no character are not partial: they pass at once.
func partialTail(p []byte) int {
	for n := 1; n <= min(utf8.UTFMax-1, len(p)); n++ {
		b := p[len(p)-n]
		if utf8.RuneStart(b) {
			if b >= utf8.RuneSelf && !utf8.FullRune(p[len(p)-n:]) {
				return n
			}
			return 0
		}
	}
	return 0
}
