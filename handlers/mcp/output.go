package mcp

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// output keeps of a command's streams what a model is shown, however much the command prints.
type output struct{ stdout, stderr ends }

func newOutput(limit int) *output { return &output{ends{limit: limit}, ends{limit: limit}} }

// Stdout implements agent.Output.
func (o *output) Stdout(p []byte) error { o.stdout.write(p); return nil }

// Stderr implements agent.Output.
func (o *output) Stderr(p []byte) error { o.stderr.write(p); return nil }

// ends keeps the beginning and the end of a stream, half of limit each: an error is mostly told at the end, and what was
// going on at the beginning.
type ends struct {
	limit int
	head  []byte
	tail  []byte // the last bytes after head; trimmed when it is twice what is shown
	total int64
}

func (e *ends) write(p []byte) {
	e.total += int64(len(p))
	if room := e.limit - len(e.head); room > 0 {
		n := min(room, len(p))
		e.head, p = append(e.head, p[:n]...), p[n:]
	}
	keep := e.limit / 2
	if len(p) > keep {
		p = p[len(p)-keep:]
	}
	if e.tail = append(e.tail, p...); len(e.tail) > 2*keep {
		e.tail = append(e.tail[:0], e.tail[len(e.tail)-keep:]...)
	}
}

// cut reports whether bytes are left out.
func (e *ends) cut() bool { return e.total > int64(e.limit) }

// String gives the text: whole, or its two ends with a line between them that tells how much is missing. Bytes that are
// not UTF-8 become the replacement character.
func (e *ends) String() string {
	if !e.cut() {
		return valid(e.head)
	}
	// head holds limit bytes by now, and what follows is in tail: the last of both together is the end.
	keep := e.limit / 2
	end := e.tail
	if len(end) < keep {
		end = append(append([]byte{}, e.head[len(e.head)-(keep-len(end)):]...), end...)
	}
	end = end[len(end)-keep:]
	head := e.head[:e.limit-keep]
	if n := openTail(head); n < len(head) {
		head = head[:len(head)-n]
	}
	for i := 0; i < utf8.UTFMax-1 && len(end) > 0 && !utf8.RuneStart(end[0]); i++ {
		end = end[1:]
	}
	return fmt.Sprintf("%s\n[... %d bytes left out ...]\n%s", valid(head), e.total-int64(len(head)+len(end)), valid(end))
}

func valid(p []byte) string { return strings.ToValidUTF8(string(p), string(utf8.RuneError)) }

// openTail gives how many bytes at the end of p are the beginning of a character that p does not hold whole.
func openTail(p []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(p); n++ {
		if c := p[len(p)-n]; utf8.RuneStart(c) {
			if utf8.FullRune(p[len(p)-n:]) {
				return 0
			}
			return n
		}
	}
	return 0
}
