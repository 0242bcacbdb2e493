package audit

// HashOf computes the hash of a row.
func HashOf(l *Log, r Row) []byte { return l.hash(r) }

// Anchor writes the anchor as if the chain ended there.
func Anchor(l *Log, h Head) error { return l.anchor.advance(h) }
