package audit

import (
	"context"
	"crypto/hmac"
	"fmt"
	"sync"
	"time"
)

// Verdict is what looking at the whole record found.
type Verdict struct {
	At       time.Time
	Checked  int64  // rows that hold
	Bad      int64  // the first number that does not hold, or 0
	Copies   int64  // of outputs, that are what they were when they were recorded
	BadCopy  int64  // the first row whose copy is not, or 0
	Head     Head   // the last row that holds
	Contrary string // why, in words; "" when everything holds
}

// Holds reports whether nothing was found.
func (v Verdict) Holds() bool { return v.Bad == 0 && v.BadCopy == 0 }

// checks remembers the last verdict.
type checks struct {
	mu   sync.Mutex
	last Verdict
}

// LastVerdict gives what the last Verify of this process found; ok is false before the first.
func (l *Log) LastVerdict() (v Verdict, ok bool) {
	l.checked.mu.Lock()
	defer l.checked.mu.Unlock()
	return l.checked.last, !l.checked.last.At.IsZero()
}

const (
	verifyRows   = 1000
	verifyCopies = 64 // 4 MiB at the most
)

// Verify walks the chain and the copies beside it. A cut that was noticed while recording stays a fault for good; a record
// shorter than its anchor reports the first missing number. Heads are rows that the chain must hold besides, as they were
// published: seq and hash.
func (l *Log) Verify(ctx context.Context, heads ...Head) (Verdict, error) {
	v, err := l.verifyChain(ctx, heads)
	if err == nil {
		err = l.verifyCopies(ctx, &v)
	}
	if err != nil {
		return v, err
	}
	v.At = l.o.Now()
	l.checked.mu.Lock()
	defer l.checked.mu.Unlock()
	l.checked.last = v
	return v, nil
}

func (l *Log) verifyChain(ctx context.Context, heads []Head) (Verdict, error) {
	v := Verdict{Head: Head{Hash: genesis}}
	// The anchor is read first: events that are added meanwhile are beyond it.
	known, state, err := l.anchor.read()
	if err != nil {
		return v, err
	}
	begun := true
	if state == anchorMissing { // of a record in which nothing is yet, or was not a moment ago
		head, err := l.o.Store.AuditHead(ctx)
		if err != nil {
			return v, err
		}
		begun = head.Seq > 0
		if known, state, err = l.anchor.read(); err != nil {
			return v, err
		}
	}
	if state == anchorGood {
		heads = append([]Head{known}, heads...)
	}
	for {
		rows, err := l.o.Store.AuditRows(ctx, v.Head.Seq, verifyRows)
		if err != nil {
			return v, err
		}
		for _, r := range rows {
			if why := l.contrary(v.Head, r, heads); why != "" {
				// A gap is reported by the first number that is missing.
				v.Bad, v.Contrary = v.Head.Seq+1, why
				return v, nil
			}
			v.Head = Head{Seq: r.Seq, Hash: r.Hash}
			v.Checked++
		}
		if len(rows) == 0 {
			break
		}
	}
	switch {
	case state == anchorForged:
		v.Contrary = "audit.head was changed by something else."
	case state != anchorGood && begun:
		v.Contrary = "audit.head is missing: the end of the record may have been cut off."
	}
	for _, h := range heads {
		if v.Contrary == "" && v.Head.Seq < h.Seq {
			v.Contrary = fmt.Sprintf("Events %d to %d are missing.", v.Head.Seq+1, h.Seq)
		}
	}
	if v.Contrary != "" {
		v.Bad = v.Head.Seq + 1
	}
	return v, nil
}

// contrary says what is wrong with r as the row after head, or "".
func (l *Log) contrary(head Head, r Row, heads []Head) string {
	switch {
	case r.Seq != head.Seq+1:
		return fmt.Sprintf("Events %d to %d are missing.", head.Seq+1, r.Seq-1)
	case !hmac.Equal(r.PrevHash, head.Hash):
		return fmt.Sprintf("Event %d does not follow the one before it.", r.Seq)
	case !hmac.Equal(r.Hash, l.hash(r)):
		return fmt.Sprintf("Event %d is not what was recorded.", r.Seq)
	case r.Action == ActionCut:
		return r.Detail
	}
	for _, h := range heads {
		if h.Seq == r.Seq && !hmac.Equal(h.Hash, r.Hash) {
			return fmt.Sprintf("Event %d is not the one whose hash was kept.", r.Seq)
		}
	}
	return ""
}

// verifyCopies compares each copy with its digest in the chain.
func (l *Log) verifyCopies(ctx context.Context, v *Verdict) error {
	for after := int64(0); ; {
		copies, err := l.o.Store.AuditOutputs(ctx, after, verifyCopies)
		if err != nil || len(copies) == 0 {
			return err
		}
		for _, c := range copies {
			after = c.Seq
			if c.Output.Digest() == c.Recorded {
				v.Copies++
			} else if v.BadCopy == 0 {
				v.BadCopy = c.Seq
				if v.Contrary == "" {
					v.Contrary = fmt.Sprintf("The copy of the output of event %d is not what was printed.", c.Seq)
				}
			}
		}
	}
}
