package audit

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"sandgate/auth"
)

// Bounds of a stored text in bytes: long ones for what comes from people and sandboxes, short ones for names and ids.
const (
	maxLong  = 4 << 10
	maxShort = 512
)

// genesis stands before the first event.
var genesis = make([]byte, sha256.Size)

// append puts e at the end of the chain in one transaction. A record that is shorter than its anchor says gets an event
// about the cut first, so that what follows cannot hide it.
func (l *Log) append(ctx context.Context, e Event) (written Event, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.At = l.o.Now()
	if written, ok, err := l.extend(ctx, e); ok || err != nil {
		return written, err
	}
	var end Head
	err = l.o.Store.AppendAudit(ctx, func(head Head) ([]Row, error) {
		if head.Seq == 0 {
			head.Hash = genesis
		}
		var rows []Row
		add := func(e Event) {
			row := l.seal(head, e)
			rows = append(rows, row)
			head = Head{Seq: row.Seq, Hash: row.Hash}
		}
		known, state, err := l.anchor.read()
		if err != nil {
			return nil, err
		}
		if state == anchorMissing && head.Seq == 0 {
			// From now on a missing anchor means that somebody took it.
			if err := l.anchor.advance(head); err != nil {
				return nil, err
			}
		}
		if what := cut(head, known, state); what != "" {
			add(Event{At: e.At, ActorKind: auth.System, Actor: "system", Action: ActionCut, Outcome: Failed, Detail: what})
		}
		add(e)
		end, written = head, rows[len(rows)-1].Event
		return rows, nil
	})
	if err != nil {
		return Event{}, fmt.Errorf("record %s: %w", e.Action, err)
	}
	if err := l.anchor.advance(end); err != nil {
		return Event{}, fmt.Errorf("record %s: %w", e.Action, err)
	}
	l.end = end
	return written, nil
}

// extend is append where nothing is unusual: the chain and its anchor are as this process left them. false: it is not so.
func (l *Log) extend(ctx context.Context, e Event) (written Event, ok bool, err error) {
	if l.end.Seq == 0 {
		return Event{}, false, nil
	}
	known, state, err := l.anchor.read()
	if err != nil {
		return Event{}, false, fmt.Errorf("record %s: %w", e.Action, err)
	}
	if state != anchorGood || known.Seq != l.end.Seq || !hmac.Equal(known.Hash, l.end.Hash) {
		return Event{}, false, nil
	}
	row := l.seal(l.end, e)
	if ok, err = l.o.Store.ExtendAudit(ctx, l.end, row); err != nil || !ok {
		return Event{}, false, err
	}
	l.end = Head{Seq: row.Seq, Hash: row.Hash}
	if err := l.anchor.advance(l.end); err != nil {
		return Event{}, false, fmt.Errorf("record %s: %w", e.Action, err)
	}
	return row.Event, true, nil
}

// cut tells in words how the end of the chain contradicts the anchor, or "".
func cut(head, known Head, state anchorState) string {
	switch {
	case state == anchorMissing && head.Seq == 0:
		return "" // a new data directory
	case state == anchorMissing:
		return "The record's anchor file was missing; events after this number may have been removed before now."
	case state == anchorForged:
		return "The record's anchor file was changed by something else."
	case head.Seq < known.Seq:
		return fmt.Sprintf("Events %d to %d are missing.", head.Seq+1, known.Seq)
	case head.Seq == known.Seq && !hmac.Equal(head.Hash, known.Hash):
		return fmt.Sprintf("Event %d is not the one that was recorded.", known.Seq)
	}
	return ""
}

// seal bounds the event, gives it its number, and computes its hash over the values as they will be stored.
func (l *Log) seal(head Head, e Event) Row {
	e = bounded(e)
	e.Seq = head.Seq + 1
	row := Row{Event: e, Format: lastFormat, PrevHash: head.Hash}
	row.Hash = l.hash(row)
	return row
}

// bounded cuts texts, escapes what is not UTF-8, and rounds times to what the database keeps.
func bounded(e Event) Event {
	e.At = e.At.UTC().Truncate(time.Microsecond)
	e.Duration = math.Round(max(e.Duration, 0)*1e6) / 1e6
	for _, s := range []*string{
		&e.WorkspaceID, &e.ActorID, &e.Actor, &e.Owner, &e.Address, &e.SandboxID, &e.Action, &e.Outcome, &e.Digest, &e.ApprovalID, &e.RequestID,
		&e.OldDigest, &e.NewDigest, &e.OutputDigest,
	} {
		*s = clip(*s, maxShort)
	}
	e.ActorKind = auth.ActorKind(clip(string(e.ActorKind), maxShort))
	e.Target, e.Detail = clip(e.Target, maxLong), clip(e.Detail, maxLong)
	return e
}

const clipped = "…"

// clip gives valid UTF-8 of at most limit bytes, with bytes that are none written as \xNN.
func clip(s string, limit int) string {
	if len(s) <= limit && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		piece := s[:n]
		if r == utf8.RuneError && n == 1 {
			piece = fmt.Sprintf(`\x%02x`, s[0])
		}
		if b.Len()+len(piece) > limit-len(clipped) && (len(s) > n || b.Len()+len(piece) > limit) {
			b.WriteString(clipped)
			break
		}
		b.WriteString(piece)
		s = s[n:]
	}
	return b.String()
}

// lastFormat is what new rows are hashed by. Those of format 1 have neither owner nor facts.
const lastFormat = 2

// hash is an HMAC over the hash before and every stored value, each with its length in front; nil for a format that there
// is none of.
func (l *Log) hash(r Row) []byte {
	if r.Format != lastFormat && (r.Format != 1 || r.Owner != "" || r.Facts != (Facts{})) {
		return nil
	}
	mac := hmac.New(sha256.New, l.o.Key)
	buf := make([]byte, 0, 512)
	text := func(s string) {
		buf = binary.BigEndian.AppendUint32(buf, uint32(len(s)))
		buf = append(buf, s...)
	}
	number := func(n int64) { buf = binary.BigEndian.AppendUint64(buf, uint64(n)) }
	text("sandgate audit " + strconv.Itoa(r.Format))
	text(string(r.PrevHash))
	number(r.Seq)
	number(r.At.UnixMicro())
	for _, s := range []string{
		r.WorkspaceID, string(r.ActorKind), r.ActorID, r.Actor, r.Address, r.SandboxID, r.Action, r.Target, r.Outcome,
	} {
		text(s)
	}
	number(DurationMicros(r.Duration))
	for _, s := range []string{r.Digest, r.ApprovalID, r.RequestID, r.Detail} {
		text(s)
	}
	number(r.IntentSeq)
	if r.Format > 1 {
		for _, s := range []string{r.Owner, r.OldDigest, r.NewDigest, r.OutputDigest} {
			text(s)
		}
	}
	mac.Write(buf)
	return mac.Sum(nil)
}

// DurationMicros is how a duration in seconds is stored and hashed.
func DurationMicros(seconds float64) int64 { return int64(math.Round(seconds * 1e6)) }
