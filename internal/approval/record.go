package approval

import (
	"context"
	"time"
)

// Status is where a request is.
type Status string

// The statuses, the contract's. Used and those after it are final.
const (
	Pending   Status = "pending"
	Approved  Status = "approved"
	Used      Status = "used" // claimed, once, before it was executed; Outcome tells what became of it
	Denied    Status = "denied"
	Expired   Status = "expired" // nobody decided, or used the yes, in time
	Cancelled Status = "cancelled"
	Void      Status = "void" // something that it was bound to has changed
)

// Statuses lists them.
var Statuses = []Status{Pending, Approved, Denied, Expired, Cancelled, Used, Void}

// Times of a request.
const (
	DecideWithin = 30 * time.Minute
	UseWithin    = 15 * time.Minute
	MaxWait      = 100 * time.Second
	GrantFor     = 15 * time.Minute // that the approval of a terminal lets type in it
)

// Record is a request as it is kept: sealed, with what became of it.
type Record struct {
	ID          string
	WorkspaceID string
	SandboxID   string
	Kind        Kind
	Status      Status
	Digest      string // of the canonical bytes
	Asked       string // keyed digest of what the caller gave: finds the same call again
	Sealed      []byte // the canonical bytes, sealed for ID
	UserID      string // of the requester
	KeyID       string
	Bytes       int64 // of the contents
	CreatedAt   time.Time
	ExpiresAt   time.Time // to be decided before
	Decision    Decision
	UseBy       time.Time // to be used before
	UsedAt      time.Time
	Outcome     string // of a used one: "unknown" until it is known, then "ok" or "failed"
	Why         string // of one that is expired, cancelled or void
	Grant       Grant
}

// Decision is what a person said.
type Decision struct {
	By     string // name
	UserID string
	KeyID  string // of the key it was said through; "": in a browser
	At     time.Time
	Reason string
}

// Grant is what the approval of a terminal gives: to type in it for a while.
type Grant struct {
	Terminal string
	Until    time.Time
}

// Filter chooses records; zero values do not filter. Newest first, but pending ones alone oldest first.
type Filter struct {
	WorkspaceID string
	SandboxID   string
	Status      Status
	Asked       string // with status pending or approved
	Before      string // id: a page's cursor
	Limit       int
}

// Bounds of what may wait.
const (
	MaxPendingSandbox   = 50
	MaxPendingWorkspace = 500
	MaxPendingBytes     = 256 << 20 // of contents, in one workspace
)

// Content is a sealed blob.
type Content struct {
	Name   string
	Sealed []byte
}

// Store keeps requests. Every change of status is one statement that says from where; false: it was not there any more.
type Store interface {
	// InsertApproval adds one with its contents, unless too many wait: fault.QuotaExceeded.
	InsertApproval(ctx context.Context, r Record, contents []Content) error
	// Approval gives one, whose ever it is: fault.NotFound.
	Approval(ctx context.Context, id string) (Record, error)
	ApprovalContent(ctx context.Context, id, name string) ([]byte, error)
	// PutApprovalEffect keeps beside a request, sealed, what its command did in a copy, in place of an earlier one.
	PutApprovalEffect(ctx context.Context, id string, sealed []byte) error
	Approvals(ctx context.Context, f Filter) ([]Record, error)
	// DecideApproval says yes or no to a pending one, if its digest is that and it has not expired.
	DecideApproval(ctx context.Context, id, digest string, to Status, d Decision, useBy time.Time) (bool, error)
	// ClaimApproval makes an approved one used, if its digest is that and it has not expired.
	ClaimApproval(ctx context.Context, id, digest string, at time.Time) (bool, error)
	// FinishApproval notes what became of a used one.
	FinishApproval(ctx context.Context, id, outcome string, g Grant) error
	// EndApproval makes a pending or approved one something final.
	EndApproval(ctx context.Context, id string, to Status, why string) (bool, error)
	// ExpireApprovals does it to all whose time is over, and gives them.
	ExpireApprovals(ctx context.Context, now time.Time) ([]Record, error)
	// GrantOf gives until when somebody may type in a terminal; zero: not.
	GrantOf(ctx context.Context, sandboxID, terminal, userID, keyID string, now time.Time) (time.Time, error)
	// CountPending counts those that wait, by sandbox.
	CountPending(ctx context.Context, workspaceID string) (map[string]int, error)
	// OpenApprovals gives all that are pending or approved, of all workspaces, oldest first.
	OpenApprovals(ctx context.Context) ([]Record, error)
	// ShiftApprovals moves what has an end with a clock that jumped.
	ShiftApprovals(ctx context.Context, by time.Duration) error
	// PruneApprovals forgets contents of final ones, large ones first.
	PruneApprovals(ctx context.Context, now time.Time) error
}

// Policies keeps policies, by the id of the workspace, key, sandbox or snapshot that they are for.
type Policies interface {
	// PolicyOf gives one; the zero value where there is none.
	PolicyOf(ctx context.Context, subject string) (Policy, error)
	SetPolicy(ctx context.Context, workspaceID, subject string, p Policy, at time.Time) error
	DeletePolicy(ctx context.Context, subject string) error
	// PoliciesOf gives all of a workspace.
	PoliciesOf(ctx context.Context, workspaceID string) (map[string]Policy, error)
	// AuthzEpoch grows with every change of one, whichever process makes it.
	AuthzEpoch(ctx context.Context) (int64, error)
}
