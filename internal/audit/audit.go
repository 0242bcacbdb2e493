// Package audit owns the record of what happened: events in a hash chain, intent before and outcome after each change.
// It must never be skipped: an event that cannot be written stops the change that it would have recorded.
package audit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"sandgate/auth"
	"sandgate/internal/fault"
)

// Event is one line of the record. Every text may come from inside a sandbox: it is bounded here and escaped where shown.
type Event struct {
	Seq         int64
	At          time.Time // microseconds, UTC
	WorkspaceID string    // "" for what belongs to none, such as signing in
	ActorKind   auth.ActorKind
	ActorID     string // user id or key id
	Actor       string // e-mail, key name, "system"
	Owner       string // e-mail of the person whose key it is
	Address     string
	SandboxID   string
	Action      string // noun.verb
	Target      string
	Outcome     string  // one of the Outcome constants
	Duration    float64 // seconds, to the microsecond; of an outcome
	Digest      string  // of what was asked for: the command with all that decides what it does
	Facts               // of an outcome
	ApprovalID  string
	RequestID   string
	Detail      string
	IntentSeq   int64 // for an outcome: the seq of its intent

	// Of an event that was read by List or Event: the row of its outcome, which is Seq itself for what has no intent of its own,
	// and when it was written. Zero while there is none.
	EndSeq int64
	Ended  time.Time
}

// Facts are what an outcome can say beyond words. Digests are SHA-256 in hexadecimal.
type Facts struct {
	OldDigest    string // of a file before a write or its deletion; "" when there was none, or a word that says why there is no digest
	NewDigest    string // of the file as it was written
	OutputDigest string // of the copy of a command's output; made by End
}

// Outcomes.
const (
	Started = "started" // an intent
	OK      = "ok"
	Refused = "refused"
	Failed  = "failed"
	Unknown = "unknown" // the process ended between intent and outcome
)

// ActionCut is the event written when the record was found shorter than it had been: evidence that stays.
const ActionCut = "record.cut"

// Filter chooses events; zero values do not filter. An event is an intent with its outcome, or what was noted by itself.
type Filter struct {
	WorkspaceID string // also gives sign-ins of its members, which belong to no workspace
	From, To    time.Time
	Actor       string // or the owner of a key
	Action      string // "command.run", or "command." for all of a noun
	Outcome     string // Started is what has no outcome yet
	SandboxID   string
	Q           string // words, or beginnings of words, in any text of the event; all of them
	BeforeSeq   int64  // cursor to older ones
	AfterSeq    int64  // cursor to newer ones
	Oldest      bool   // oldest first instead of newest first
	Limit       int    // 1..1000; 0 is 100
}

// Row is an event as it is stored, with its place in the chain.
type Row struct {
	Event
	Format   int // of what is hashed; 2 since there are Facts and an Owner
	PrevHash []byte
	Hash     []byte
}

// Head is the end of the chain; zero when nothing was recorded yet.
type Head struct {
	Seq  int64
	Hash []byte
}

// Store keeps rows durably; internal/store implements it.
type Store interface {
	// AppendAudit calls plan with the end of the chain, under the database's write lock, and inserts what plan returns.
	AppendAudit(ctx context.Context, plan func(Head) ([]Row, error)) error
	// ExtendAudit inserts one row right after head, atomically; false: the chain ends elsewhere, and nothing was written.
	ExtendAudit(ctx context.Context, head Head, row Row) (bool, error)
	AuditEvents(ctx context.Context, f Filter) ([]Event, error)
	// AuditEvent gives one by the number of either of its rows; fault.NotFound.
	AuditEvent(ctx context.Context, seq int64) (Event, error)
	AuditHead(ctx context.Context) (Head, error)
	// AuditRows gives rows after a seq, oldest first.
	AuditRows(ctx context.Context, after int64, limit int) ([]Row, error)
	// OpenIntents gives intents without an outcome that were written before a moment.
	OpenIntents(ctx context.Context, before time.Time) ([]Event, error)
	// IndexAudit makes up to limit more rows searchable; more is false when all are.
	IndexAudit(ctx context.Context, limit int) (more bool, err error)
	Copies
}

// Options are what a Log needs.
type Options struct {
	Store    Store
	Key      []byte // of the HMAC, at least 32 bytes; it lives outside the database
	HeadFile string // path of the anchor, beside the database
	Keep     Keeping
	Log      *slog.Logger
	Now      func() time.Time // default time.Now
}

// Log writes and reads the record. Safe for concurrent use, by several processes on one data directory too.
type Log struct {
	o      Options
	anchor anchor
	mu     sync.Mutex // one append at a time; waiting here is cheaper than in SQLite
	end    Head       // where this process left the chain; another may have gone on. Guarded by mu

	copies  pending
	checked checks
}

// New makes a Log. Call CloseOpen once at a server's start.
func New(o Options) (*Log, error) {
	switch {
	case o.Store == nil:
		return nil, errors.New("audit: no store")
	case len(o.Key) < 32:
		return nil, errors.New("audit: the key is shorter than 32 bytes")
	case o.HeadFile == "":
		return nil, errors.New("audit: no head file")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Keep = o.Keep.withDefaults()
	l := &Log{o: o, anchor: anchor{path: o.HeadFile, key: o.Key}}
	l.copies.wake = make(chan struct{}, 1)
	return l, nil
}

// Begin writes the intent of a change ("started") and returns what End needs. When it fails the change must not happen.
func (l *Log) Begin(ctx context.Context, e Event) (*Entry, error) {
	start := l.o.Now()
	e.Outcome, e.Duration, e.IntentSeq = Started, 0, 0
	written, err := l.append(ctx, e)
	if err != nil {
		return nil, err
	}
	return &Entry{log: l, intent: written, start: start}, nil
}

// Note writes one event that has no duration (a refusal, a sign-in).
func (l *Log) Note(ctx context.Context, e Event) error { return l.NoteWith(ctx, e, nil) }

// NoteWith is Note with a copy of what was printed, which is kept as EndWith keeps it.
func (l *Log) NoteWith(ctx context.Context, e Event, printed *Output) error {
	if e.Outcome == "" || e.Outcome == Started {
		return fmt.Errorf("record %s: an event without an outcome", e.Action)
	}
	if printed != nil {
		e.OutputDigest = printed.Digest()
	}
	written, err := l.append(ctx, e)
	if err == nil && printed != nil {
		l.keep(written.Seq, written.At, *printed)
	}
	return err
}

// Entry is an open intent.
type Entry struct {
	log    *Log
	intent Event
	start  time.Time
	once   sync.Once
}

// outcomeTimeout bounds how long End waits for the database.
const outcomeTimeout = 10 * time.Second

// End writes the outcome: "ok" for a nil err, "refused" for fault kinds forbidden and approval_*, else "failed".
// It uses a context of its own, so that a caller who hung up does not leave the intent without its outcome. Only the first
// call counts. An outcome that cannot be written is logged, and the next start closes the intent as "unknown".
func (e *Entry) End(err error, detail string) { e.EndWith(err, detail, Facts{}, nil) }

// EndWith is End with facts, and with a copy of what a command printed, which is kept beside the chain in the background:
// nobody waits for it.
func (e *Entry) EndWith(err error, detail string, facts Facts, printed *Output) {
	e.once.Do(func() {
		out := e.intent
		out.Seq, out.IntentSeq = 0, e.intent.Seq
		out.Duration = e.log.o.Now().Sub(e.start).Seconds()
		out.Outcome = OutcomeOf(err)
		if err != nil {
			detail = joinDetail(detail, fault.Public(err))
		}
		out.Detail = joinDetail(out.Detail, detail)
		out.Facts = facts
		if printed != nil {
			out.OutputDigest = printed.Digest()
		}
		ctx, cancel := context.WithTimeout(context.Background(), outcomeTimeout)
		defer cancel()
		written, werr := e.log.append(ctx, out)
		if werr != nil {
			e.log.o.Log.Error("record an outcome", "action", out.Action, "intent", out.IntentSeq, "cause", werr.Error())
			return
		}
		if printed != nil {
			e.log.keep(written.Seq, written.At, *printed)
		}
	})
}

// OutcomeOf is the outcome that an error means.
func OutcomeOf(err error) string {
	switch fault.KindOf(err) {
	case "":
		return OK
	case fault.Forbidden, fault.ApprovalDenied, fault.ApprovalNeeded:
		return Refused
	default:
		return Failed
	}
}

func joinDetail(a, b string) string {
	switch {
	case a == "" || a == b:
		return b
	case b == "":
		return a
	default:
		return a + "; " + b
	}
}

// MaxPage bounds what List gives at once.
const MaxPage = 1000

// List gives a page of events, in the order of their beginnings.
func (l *Log) List(ctx context.Context, f Filter) ([]Event, error) {
	if f.Limit == 0 {
		f.Limit = 100
	}
	f.Limit = min(max(f.Limit, 1), MaxPage)
	if f.Q != "" {
		if err := l.catchUp(ctx, catchUpBatches); err != nil {
			return nil, err
		}
	}
	return l.o.Store.AuditEvents(ctx, f)
}

// Event gives one by the number of its intent or of its outcome; fault.NotFound.
func (l *Log) Event(ctx context.Context, seq int64) (Event, error) {
	return l.o.Store.AuditEvent(ctx, seq)
}

// Head gives the end of the chain.
func (l *Log) Head(ctx context.Context) (Head, error) { return l.o.Store.AuditHead(ctx) }

// Rows gives the chain as it is stored, after a seq, oldest first.
func (l *Log) Rows(ctx context.Context, after int64, limit int) ([]Row, error) {
	return l.o.Store.AuditRows(ctx, after, limit)
}

// CloseOpen writes the outcome "unknown" for intents that an ended process has left without one. Call it at a server's
// start, before anything else is recorded.
func (l *Log) CloseOpen(ctx context.Context) (closed int, err error) {
	open, err := l.o.Store.OpenIntents(ctx, l.o.Now())
	if err != nil {
		return 0, err
	}
	for _, e := range open {
		e.IntentSeq, e.Seq, e.Outcome, e.Detail = e.Seq, 0, Unknown, "Sandgate ended before it could record the outcome."
		if _, err := l.append(ctx, e); err != nil {
			return closed, err
		}
		closed++
	}
	return closed, nil
}
