// Package audit owns the record of what happened: events in a hash chain, intent before and outcome after each change.
// It must never be skipped: an event that cannot be written stops the change that it would have recorded.
package audit

import (
	"context"
	"time"

	"sandgate/auth"
)

// Event is one line of the record. Every text may come from inside a sandbox: it is bounded here and escaped where shown.
type Event struct {
	Seq         int64
	At          time.Time
	WorkspaceID string
	ActorKind   auth.ActorKind
	ActorID     string // user id or key id
	Actor       string // e-mail, key name, "system"
	Address     string
	SandboxID   string
	Action      string // noun.verb
	Target      string
	Outcome     string  // "started", "ok", "refused", "failed"
	Duration    float64 // seconds; of an outcome
	Digest      string
	ApprovalID  string
	RequestID   string
	Detail      string
	IntentSeq   int64 // for an outcome: the seq of its intent
}

// Filter chooses events; zero values do not filter. Newest first.
type Filter struct {
	WorkspaceID string
	From, To    time.Time
	Actor       string
	Action      string // "command.run", or "command." for all of a noun
	SandboxID   string
	Q           string // text in actor, target or detail
	BeforeSeq   int64  // cursor
	Limit       int    // 1..500
}

// Log writes and reads the record. Safe for concurrent use, by several processes on one data directory too.
type Log struct{}

// Begin writes the intent of a change ("started") and returns what End needs. When it fails the change must not happen.
func (l *Log) Begin(ctx context.Context, e Event) (*Entry, error) { panic("people helper") }

// Note writes one event that has no duration (a refusal, a sign-in).
func (l *Log) Note(ctx context.Context, e Event) error { panic("people helper") }

// Entry is an open intent.
type Entry struct{}

// End writes the outcome: "ok" for a nil err, "refused" for fault kinds forbidden and approval_*, else "failed".
// It uses a context of its own, so that a caller who hung up does not leave the intent without its outcome.
func (e *Entry) End(err error, detail string) { panic("people helper") }

// List gives a page of events.
func (l *Log) List(ctx context.Context, f Filter) ([]Event, error) { panic("people helper") }

// Verify walks the chain and reports the first seq that does not hold, or 0.
func (l *Log) Verify(ctx context.Context) (checked, badSeq int64, err error) { panic("people helper") }
