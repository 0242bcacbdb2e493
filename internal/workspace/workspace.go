// Package workspace owns what people and keys can do in a workspace: each method checks the permission, passes the
// approval gate, writes intent and outcome to the record, and only then calls the sandbox or the store. It is the only
// caller of package sandbox, and must never render, parse requests, or let a change go around change().
package workspace

import (
	"log/slog"
	"time"

	"sandgate/internal/approval"
	"sandgate/internal/audit"
	"sandgate/internal/seal"
	"sandgate/internal/webhook"
	"sandgate/sandbox"
	"sandgate/sandbox/term"
	"sandgate/sandbox/term/recording"
)

// Service is the one door to everything. Safe for concurrent use.
type Service struct {
	o       Options
	feed    feed
	events  events
	people  people
	meters  meters
	denials denials
	trials  trials
	tries   tries
	vault   vault
	idle    idleState
	tapes   tapes
	desk    desk
}

// Options are what a Service needs. Store, Audit and Gate are required; a service without Sandboxes, Terminals and Images
// knows people alone.
type Options struct {
	Store     Store
	Audit     *audit.Log
	Gate      approval.Gate
	Sandboxes *sandbox.Manager
	Deadlines sandbox.Deadlines // of SweepIdle
	Terminals *term.Hub
	Images    Images
	// Recordings is where terminals are recorded to; nil: they cannot be.
	Recordings *recording.Shelf
	Seal       *seal.Box // nil: secrets are refused
	// CheckNetwork gives the canonical form of a network policy with its defaults, or an Invalid fault that names the field.
	// nil: sandboxes have no network, and other modes than none are refused.
	CheckNetwork func(sandbox.NetworkPolicy) (sandbox.NetworkPolicy, error)
	// PlatformURL is where sandboxes reach this server from inside; "": they do not, and keys for them are refused.
	PlatformURL string
	// Ceilings bound every workspace, MaxSandboxes the whole installation; zero is no bound.
	Ceilings     Limits
	MaxSandboxes int
	Snapshots    SnapshotRules
	Hook         *webhook.Hook // tells the operator's address; nil: nobody is told
	Log          *slog.Logger
	Now          func() time.Time
}

// Images tells which root filesystems can be used.
type Images interface {
	// ImageState gives "ready", "building", "missing" or "failed" with a percentage and, when failed, the end of the log.
	ImageState(name string) (state string, percent int, detail string)
	// ImageNames lists all that are known, "base" first.
	ImageNames() []string
}
