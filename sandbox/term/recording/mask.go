package recording

import (
	"errors"
	"unicode/utf8"
)

// Secret is a text that must not be in a recording, and what stands in its place.
type Secret struct{ Text, Shown string }

const (
	// maxSecrets bounds all texts together, in bytes: the search keeps about 40 bytes for each.
	maxSecrets = 1 << 20
	// minPart is the least beginning of a secret that is hidden where the output ends inside it.
	minPart = 4
	// maxHeld bounds what waits because it may be hidden as a whole.
	maxHeld = 64 << 10
	// pieceSize is how much is looked through at a time.
	pieceSize = 4 << 10
)

var errSecrets = errors.New("the secrets of this sandbox are too large to be looked for in a recording")

// search finds secrets in a stream, byte by byte (Aho and Corasick's automaton). Immutable once made.
type search struct {
	root   [256]uint32
	child  map[uint64]uint32 // node<<8 | byte
	fail   []uint32
	depth  []uint32
	length []uint32 // of the longest secret that ends in this node; 0: none
	shown  []string // what stands for it
}

// newSearch makes a search; nil when there is nothing to look for.
func newSearch(secrets []Secret) (*search, error) {
	total := 0
	for _, s := range secrets {
		total += len(s.Text)
	}
	if total == 0 {
		return nil, nil
	}
	if total > maxSecrets {
		return nil, errSecrets
	}
	a := &search{child: map[uint64]uint32{}, fail: []uint32{0}, depth: []uint32{0}, length: []uint32{0}, shown: []string{""}}
	type edge struct {
		from, to uint32
		b        byte
	}
	var edges []edge // in the order of their making: a parent's before its children's
	for _, s := range secrets {
		node := uint32(0)
		for i := range len(s.Text) {
			key := uint64(node)<<8 | uint64(s.Text[i])
			next, ok := a.child[key]
			if !ok {
				next = uint32(len(a.fail))
				a.child[key] = next
				a.fail, a.depth = append(a.fail, 0), append(a.depth, uint32(i+1))
				a.length, a.shown = append(a.length, 0), append(a.shown, "")
				edges = append(edges, edge{node, next, s.Text[i]})
				if node == 0 {
					a.root[s.Text[i]] = next
				}
			}
			node = next
		}
		if node != 0 && a.length[node] == 0 {
			a.length[node], a.shown[node] = uint32(len(s.Text)), s.Shown
		}
	}
	// Shallow nodes first: a node falls back to one that is shallower.
	byDepth := map[uint32][]edge{}
	deepest := uint32(0)
	for _, e := range edges {
		d := a.depth[e.to]
		byDepth[d] = append(byDepth[d], e)
		deepest = max(deepest, d)
	}
	for d := uint32(1); d <= deepest; d++ {
		for _, e := range byDepth[d] {
			if e.from != 0 {
				a.fail[e.to] = a.step(a.fail[e.from], e.b)
			}
			if f := a.fail[e.to]; a.length[e.to] == 0 {
				a.length[e.to], a.shown[e.to] = a.length[f], a.shown[f]
			}
		}
	}
	return a, nil
}

func (a *search) step(node uint32, b byte) uint32 {
	for node != 0 {
		if next, ok := a.child[uint64(node)<<8|uint64(b)]; ok {
			return next
		}
		node = a.fail[node]
	}
	return a.root[b]
}

// filter takes raw bytes in pieces, wherever they are cut, and gives text out in which secrets are hidden and that ends between
// characters. What may yet turn out to be a secret, or the rest of a character, is held back.
type filter struct {
	search *search
	node   uint32
	held   []byte
	hidden []string // for each held byte what stands for it; "": it is no secret's
	within string   // bytes of a run too long to be held are hidden under this, which was given out already
	raw    int64    // offset of held[0]
}

// give is called with text and the raw offset at which it ends.
type give func(text []byte, end int64) error

// write takes more bytes.
func (f *filter) write(p []byte, out give) error {
	if f.search == nil {
		if len(f.held) > 0 {
			p = append(f.held, p...)
		}
		n := len(p) - partialTail(p)
		err := f.out(p[:n], out)
		f.held = append([]byte(nil), p[n:]...)
		return err
	}
	for len(p) > pieceSize {
		if err := f.write(p[:pieceSize], out); err != nil {
			return err
		}
		p = p[pieceSize:]
	}
	for _, b := range p {
		f.node = f.search.step(f.node, b)
		f.held, f.hidden = append(f.held, b), append(f.hidden, "")
		if n := int(f.search.length[f.node]); n > 0 {
			// The beginning of a match may have gone out with a run that was too long to be held.
			for i := max(0, len(f.hidden)-n); i < len(f.hidden); i++ {
				if f.hidden[i] == "" {
					f.hidden[i] = f.search.shown[f.node]
				}
			}
		}
	}
	// Whatever is found from here on begins at safe or later.
	return f.release(len(f.held)-min(int(f.search.depth[f.node]), len(f.held)), out)
}

// release gives out what stands before safe, as far as runs of hidden bytes are whole.
func (f *filter) release(safe int, out give) error {
	from := 0
	for from < safe {
		to := from + 1
		if f.hidden[from] == "" {
			for to < safe && f.hidden[to] == "" {
				to++
			}
			if to == safe && (safe == len(f.held) || f.hidden[safe] == "") {
				to -= partialTail(f.held[from:to])
			}
			f.within = ""
			if to == from {
				break
			}
			if err := f.outFrom(from, to, nil, out); err != nil {
				return err
			}
			from = to
			if to < safe && f.hidden[to] == "" { // the beginning of a character
				break
			}
			continue
		}
		for to < len(f.held) && f.hidden[to] != "" {
			to++
		}
		if to > safe && len(f.held) <= maxHeld {
			break // it may go on
		}
		to = min(to, safe)
		var err error
		if f.within == "" {
			err = f.outFrom(from, to, []byte(f.hidden[from]), out)
		}
		if f.within = f.hidden[from]; to < safe {
			f.within = ""
		}
		if err != nil {
			return err
		}
		from = to
	}
	f.drop(from)
	return nil
}

// outFrom gives held[from:to] out, or what stands for it.
func (f *filter) outFrom(from, to int, instead []byte, out give) error {
	text := f.held[from:to]
	if instead != nil {
		text = instead
	}
	if len(text) == 0 {
		return nil
	}
	return out(text, f.raw+int64(to))
}

func (f *filter) out(p []byte, out give) error {
	if len(p) == 0 {
		return nil
	}
	f.raw += int64(len(p))
	return out(p, f.raw)
}

func (f *filter) drop(n int) {
	f.raw += int64(n)
	f.held = f.held[:copy(f.held, f.held[n:])]
	f.hidden = f.hidden[:copy(f.hidden, f.hidden[n:])]
}

// end gives out what is held because nothing follows; the beginning of a secret that is long enough to tell is hidden.
func (f *filter) end(out give) error {
	if f.search == nil {
		p := f.held
		f.held = nil
		return f.out(p, out)
	}
	if n := min(int(f.search.depth[f.node]), len(f.held)); n >= minPart {
		for i := len(f.held) - n; i < len(f.held); i++ {
			if f.hidden[i] == "" {
				f.hidden[i] = "[secret]"
			}
		}
	}
	f.node = 0
	// Without what may follow, the beginning of a character is no longer one.
	for from := 0; from < len(f.held); {
		to := from + 1
		for to < len(f.held) && (f.hidden[to] == "") == (f.hidden[from] == "") {
			to++
		}
		var instead []byte
		if f.hidden[from] != "" {
			instead = []byte(f.hidden[from])
		}
		if instead == nil || f.within == "" {
			if err := f.outFrom(from, to, instead, out); err != nil {
				return err
			}
		}
		f.within = ""
		from = to
	}
	f.drop(len(f.held))
	return nil
}

// restart forgets what is held: the next byte has this offset, and nothing is known of what came before.
func (f *filter) restart(off int64) {
	f.node, f.within, f.raw = 0, "", off
	f.held, f.hidden = f.held[:0], f.hidden[:0]
}

// partialTail is the number of bytes at the end of p that begin a character whose rest has not come yet.
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
