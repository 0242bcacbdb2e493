package screen

// token is what a scanner finds in terminal output.
type token uint8

const (
	tokText   token = iota // printable characters, and bytes that are no character at all
	tokC0                  // one control byte, also DEL
	tokEsc                 // ESC and its intermediates and final byte
	tokCSI                 // ESC [ … final
	tokOSC                 // ESC ] … without its terminator
	tokString              // DCS, SOS, PM or APC; the bytes are not kept
)

// maxSeq bounds the bytes kept of one sequence; a longer one is reported without its bytes. OSC 8 carries addresses, so
// it is not small.
const maxSeq = 4096

// single holds every byte, so that a token of one needs no memory of its own.
var single = func() (all [256][1]byte) {
	for i := range all {
		all[i][0] = byte(i)
	}
	return all
}()

func one(b byte) []byte { return single[b][:] }

type scanState uint8

const (
	inGround scanState = iota
	inEsc
	inCSI
	inOSC
	inString
)

// scanner splits terminal output into text and control sequences across chunk borders, as the browser's parser does: on
// characters, so that the 8-bit controls U+0080–U+009F count and lone bytes do not. It exists because a snapshot
// must hold exactly what the browser would have understood. The zero value is ready.
type scanner struct {
	st   scanState
	seq  []byte
	over bool // the sequence outgrew maxSeq
	c2   bool // 0xC2 was the last byte: the next may complete an 8-bit control

	pos   int64 // bytes scanned before this chunk
	start int64 // where the newest sequence began, counted like pos
}

// emitFunc receives one token. raw is valid during the call and nil where the bytes were not kept; end is how much of
// the chunk was used up to the token's end.
type emitFunc func(t token, raw []byte, end int)

// open reports whether a sequence has begun and not ended.
func (s *scanner) open() bool { return s.st != inGround }

func (s *scanner) scan(p []byte, emit emitFunc) {
	defer func() { s.pos += int64(len(p)) }()
	for i := 0; i < len(p); {
		b := p[i]
		switch {
		case s.c2:
			s.c2 = false
			if b >= 0x80 && b <= 0x9f {
				i++
				s.eightBit(b, emit, i)
				continue
			}
			s.high(one(0xc2), emit, i)
		case s.st == inGround && b >= 0x20 && b != 0x7f:
			// The common case: a run of text in one piece.
			j := i
			for j < len(p) && p[j] >= 0x20 && p[j] != 0x7f && p[j] != 0xc2 {
				j++
			}
			if j < len(p) && p[j] == 0xc2 && j+1 < len(p) && (p[j+1] < 0x80 || p[j+1] > 0x9f) {
				j++ // the first byte of an ordinary character such as é
			}
			if j > i {
				emit(tokText, p[i:j], j)
				i = j
				continue
			}
		}
		if b == 0xc2 {
			s.c2 = true
			i++
			continue
		}
		i++
		s.step(b, emit, i)
	}
}

// step takes one byte that is no part of an 8-bit control.
func (s *scanner) step(b byte, emit emitFunc, end int) {
	switch {
	case b == 0x1b:
		s.finishString(emit, end-1)
		s.start = s.pos + int64(end) - 1
		s.begin(inEsc, 0x1b)
		return
	case b == 0x18 || b == 0x1a: // CAN and SUB abandon whatever is open
		s.st = inGround
		emit(tokC0, one(b), end)
		return
	case b >= 0x80:
		s.high(one(b), emit, end)
		return
	case s.st == inOSC:
		if b == 0x07 {
			s.finishString(emit, end)
		} else if b >= 0x20 {
			s.keep(b)
		}
		return
	case s.st == inString:
		return
	case b < 0x20 || b == 0x7f: // controls act at once, even inside a sequence
		emit(tokC0, one(b), end)
		return
	}
	switch s.st {
	case inGround:
		emit(tokText, one(b), end)
	case inEsc:
		s.escape(b, emit, end)
	case inCSI:
		s.keep(b)
		if b >= 0x40 {
			s.dispatch(tokCSI, emit, end)
		}
	}
}

func (s *scanner) escape(b byte, emit emitFunc, end int) {
	if len(s.seq) == 1 { // right behind ESC
		switch b {
		case '[':
			s.begin(inCSI, 0x1b, '[')
			return
		case ']':
			s.begin(inOSC, 0x1b, ']')
			return
		case 'P', 'X', '^', '_':
			s.begin(inString)
			return
		}
	}
	s.keep(b)
	if b >= 0x30 {
		s.dispatch(tokEsc, emit, end)
	}
}

// eightBit takes one of U+0080–U+009F, which act in every state, and reports it in its 7-bit spelling.
func (s *scanner) eightBit(b byte, emit emitFunc, end int) {
	s.finishString(emit, max(0, end-2))
	s.start = s.pos + int64(end) - 2
	switch b {
	case 0x9b:
		s.begin(inCSI, 0x1b, '[')
	case 0x9d:
		s.begin(inOSC, 0x1b, ']')
	case 0x90, 0x98, 0x9e, 0x9f:
		s.begin(inString)
	case 0x84, 0x85, 0x88: // the others of this kind mean nothing to the browser
		s.begin(inEsc, 0x1b, b-0x40)
		s.dispatch(tokEsc, emit, end)
	default:
		s.st = inGround
		emit(tokC0, one(0), end)
	}
}

// high takes bytes of characters beyond ASCII: text, or part of an OSC; elsewhere they spoil the sequence.
func (s *scanner) high(p []byte, emit emitFunc, end int) {
	switch s.st {
	case inGround:
		emit(tokText, p, end)
	case inOSC:
		s.keep(p...)
	case inString:
	default:
		if p[0] >= 0xc2 && p[0] < 0xf5 { // what begins no character is not even there for the browser
			s.st = inGround
		}
	}
}

func (s *scanner) begin(st scanState, p ...byte) {
	s.st, s.over = st, false
	s.seq = append(s.seq[:0], p...)
}

func (s *scanner) keep(p ...byte) {
	if len(s.seq)+len(p) > maxSeq {
		s.over = true
		return
	}
	s.seq = append(s.seq, p...)
}

func (s *scanner) dispatch(t token, emit emitFunc, end int) {
	s.st = inGround
	if s.over {
		emit(t, nil, end)
		return
	}
	emit(t, s.seq, end)
}

// finishString ends an open string; other open sequences are abandoned.
func (s *scanner) finishString(emit emitFunc, end int) {
	switch s.st {
	case inOSC:
		s.dispatch(tokOSC, emit, end)
	case inString:
		s.st = inGround
		emit(tokString, nil, end)
	}
	s.st = inGround
}
