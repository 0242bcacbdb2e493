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
	Address     string
	SandboxID   string
	Action      string // noun.verb
	Target      string
	Outcome     string  // one of the Outcome constants
	Duration    float64 // seconds, to the microsecond; of an outcome
	Digest      string
	ApprovalID  string
	RequestID   string
	Detail      string
	IntentSeq   int64 // for an outcome: the seq of its intent
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

// Filter chooses events; zero values do not filter. Newest first.
type Filter struct {
	WorkspaceID string // also gives sign-ins of its members, which belong to no workspace
	From, To    time.Time
	Actor       string
	Action      string // "command.run", or "command." for all of a noun
	SandboxID   string
	Q           string // text in actor, target or detail
	BeforeSeq   int64  // cursor
	Limit       int    // 1..500; 0 is 100
}

// Row is an event as it is stored, with its place in the chain.
type Row struct {
	Event
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
	// AuditRows gives rows after a seq, oldest first.
	AuditRows(ctx context.Context, after int64, limit int) ([]Row, error)
	// OpenIntents gives intents without an outcome that were written before a moment.
	OpenIntents(ctx context.Context, before time.Time) ([]Event, error)
}

// Options are what a Log needs.
type Options struct {
	Store    Store
	Key      []byte // of the HMAC, at least 32 bytes; it lives outside the database
	HeadFile string // path of the anchor, beside the database
	Log      *slog.Logger
	Now      func() time.Time // default time.Now
}

// Log writes and reads the record. Safe for concurrent use, by several processes on one data directory too.
type Log struct {
	o      Options
	anchor anchor
	mu     sync.Mutex // one append at a time; waiting here is cheaper than in SQLite
	end    Head       // where this process left the chain; another may have gone on. Guarded by mu
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
	return &Log{o: o, anchor: anchor{path: o.HeadFile, key: o.Key}}, nil
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
func (l *Log) Note(ctx context.Context, e Event) error {
	if e.Outcome == "" || e.Outcome == Started {
		return fmt.Errorf("record %s: an event without an outcome", e.Action)
	}
	_, err := l.append(ctx, e)
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
func (e *Entry) End(err error, detail string) {
	e.once.Do(func() {
		out := e.intent
		out.Seq, out.IntentSeq = 0, e.intent.Seq
		out.Duration = e.log.o.Now().Sub(e.start).Seconds()
		out.Outcome = OutcomeOf(err)
		if err != nil {
			detail = joinDetail(detail, fault.Public(err))
		}
		out.Detail = joinDetail(out.Detail, detail)
		ctx, cancel := context.WithTimeout(context.Background(), outcomeTimeout)
		defer cancel()
		if _, werr := e.log.append(ctx, out); werr != nil {
			e.log.o.Log.Error("record an outcome", "action", out.Action, "intent", out.IntentSeq, "cause", werr.Error())
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

// List gives a page of events.
func (l *Log) List(ctx context.Context, f Filter) ([]Event, error) {
	if f.Limit == 0 {
		f.Limit = 100
	}
	f.Limit = min(max(f.Limit, 1), 500)
	return l.o.Store.AuditEvents(ctx, f)
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
