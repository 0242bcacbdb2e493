package handlers

import (
	"context"
	"io"
	"net/http"
	"time"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/audit"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/files"
	"sandgate/sandbox/term"
)

// Rights tells who a signed-in person is in a workspace and ends what they may no longer have open.
type Rights interface {
	PersonActor(ctx context.Context, userID, sessionID, slug, address, requestID string) (auth.Actor, error)
	WorkspacesOf(ctx context.Context, userID string) ([]auth.Workspace, error)
	// Require refuses an actor who has none of the permissions, and puts that on record.
	Require(ctx context.Context, a auth.Actor, action, sandboxID string, anyOf ...auth.Permission) error
	Guard(ctx context.Context, a auth.Actor, p auth.Permission) (context.Context, context.CancelFunc)
	Changes(ctx context.Context, a auth.Actor) <-chan workspace.Change
}

// Door is how people get in and out.
type Door interface {
	SetupNeeded(ctx context.Context) (bool, error)
	Setup(ctx context.Context, f workspace.SetupForm, address, requestID string) (auth.User, auth.Workspace, error)
	SignIn(ctx context.Context, email, password, address, requestID string) (auth.User, error)
	SignedOut(ctx context.Context, a auth.Actor) error
	InvitationByToken(ctx context.Context, token string) (workspace.Invitation, error)
	AcceptInvitation(ctx context.Context, token, password, address, requestID string) (auth.User, auth.Workspace, error)
	OwnSessions(ctx context.Context, a auth.Actor) ([]auth.Session, error)
	EndSession(ctx context.Context, a auth.Actor, id string) error
	EndOtherSessions(ctx context.Context, a auth.Actor) error
	ChangePassword(ctx context.Context, a auth.Actor, current, password string) error
	CreateWorkspace(ctx context.Context, a auth.Actor, name string) (auth.Workspace, error)
}

// Sandboxes makes, lists and ends sandboxes.
type Sandboxes interface {
	CreateSandbox(ctx context.Context, a auth.Actor, o workspace.CreateOptions) (workspace.Sandbox, error)
	Sandboxes(ctx context.Context, a auth.Actor) ([]workspace.Sandbox, error)
	Sandbox(ctx context.Context, a auth.Actor, id string) (workspace.Sandbox, error)
	KeepAlive(ctx context.Context, a auth.Actor, id string, d time.Duration) (workspace.Sandbox, error)
	KillSandbox(ctx context.Context, a auth.Actor, id string) error
	SuspendSandbox(ctx context.Context, a auth.Actor, id string) (workspace.Sandbox, error)
	ForkSandbox(ctx context.Context, a auth.Actor, id string) (workspace.Sandbox, error)
	TakeSnapshot(ctx context.Context, a auth.Actor, id, name string) (workspace.Snapshot, error)
	Snapshots(ctx context.Context, a auth.Actor) ([]workspace.Snapshot, error)
	DeleteSnapshot(ctx context.Context, a auth.Actor, id string) error
	ResumeSandbox(ctx context.Context, a auth.Actor, id string) (workspace.Sandbox, error)
	UpdateSandbox(ctx context.Context, a auth.Actor, id string, p workspace.SandboxPatch) (workspace.Sandbox, error)
	WorkspaceLimits(ctx context.Context, a auth.Actor) (workspace.WorkspaceLimits, error)
	SetWorkspaceLimits(ctx context.Context, a auth.Actor, own workspace.Limits) (workspace.WorkspaceLimits, error)
	Usage(ctx context.Context, a auth.Actor, id string) (sandbox.Usage, error)
	Denials(ctx context.Context, a auth.Actor, id string) ([]workspace.Denied, error)
}

// Files reads and changes files inside. Paths are bytes.
type Files interface {
	StatFile(ctx context.Context, a auth.Actor, id string, path []byte) (agent.FileInfo, error)
	ListFiles(ctx context.Context, a auth.Actor, id string, path []byte, cursor string, limit, depth int) (agent.Listing, error)
	ReadFile(ctx context.Context, a auth.Actor, id string, path []byte, offset, length int64) (agent.FileInfo, io.ReadCloser, error)
	PreviewFile(ctx context.Context, a auth.Actor, id string, path []byte) (files.Preview, error)
	ArchiveFiles(ctx context.Context, a auth.Actor, id string, path []byte, format string) (io.ReadCloser, error)
	WriteFile(ctx context.Context, a auth.Actor, id string, path []byte, body io.Reader, o agent.WriteOptions) (agent.FileInfo, error)
	MakeDirectory(ctx context.Context, a auth.Actor, id string, path []byte) (agent.FileInfo, error)
	MoveFile(ctx context.Context, a auth.Actor, id string, source, destination []byte) (agent.FileInfo, error)
	DeleteFile(ctx context.Context, a auth.Actor, id string, path []byte, recursive bool) error
}

// Terminals opens terminals and carries their viewers.
type Terminals interface {
	OpenTerminal(ctx context.Context, a auth.Actor, id string, p agent.PTYSpec) (workspace.Terminal, error)
	Terminals(ctx context.Context, a auth.Actor, id string) ([]workspace.Terminal, error)
	RenameTerminal(ctx context.Context, a auth.Actor, id, pty, name string) (workspace.Terminal, error)
	CloseTerminal(ctx context.Context, a auth.Actor, id, pty string) error
	ViewTerminal(ctx context.Context, a auth.Actor, id, pty string, since int64, conn term.Conn) error
}

// People changes members and invitations.
type People interface {
	Members(ctx context.Context, a auth.Actor) ([]auth.Member, error)
	Invite(ctx context.Context, a auth.Actor, email string, role auth.Role, run bool) (token string, err error)
	Invitations(ctx context.Context, a auth.Actor) ([]workspace.Invitation, error)
	WithdrawInvitation(ctx context.Context, a auth.Actor, id string) error
	SetRole(ctx context.Context, a auth.Actor, userID string, role auth.Role) error
	SetRun(ctx context.Context, a auth.Actor, userID string, run bool) error
	RemoveMember(ctx context.Context, a auth.Actor, userID string) error
}

// Keys makes and ends API keys.
type Keys interface {
	CreateKey(ctx context.Context, a auth.Actor, f workspace.KeyForm) (key auth.Key, secret string, err error)
	Keys(ctx context.Context, a auth.Actor) ([]auth.Key, error)
	RevokeKey(ctx context.Context, a auth.Actor, id string) error
}

// Approvals reads and decides requests for approval.
type Approvals interface {
	Approvals(ctx context.Context, a auth.Actor, f workspace.ApprovalFilter) (list []workspace.Approval, more bool, err error)
	Approval(ctx context.Context, a auth.Actor, id string) (workspace.Approval, error)
	ApprovalContent(ctx context.Context, a auth.Actor, id, name string) ([]byte, error)
	ApprovalHistory(ctx context.Context, a auth.Actor, v workspace.Approval) (workspace.ApprovalPast, error)
	SameRequests(ctx context.Context, a auth.Actor, v workspace.Approval) ([]workspace.Approval, error)
	PendingApprovals(ctx context.Context, a auth.Actor) (map[string]int, error)
	ApproveRequest(ctx context.Context, a auth.Actor, id, digest string) (workspace.Approval, error)
	DenyRequest(ctx context.Context, a auth.Actor, id, reason string) (workspace.Approval, error)
	DenyAndStop(ctx context.Context, a auth.Actor, id, reason string) (workspace.Approval, error)
	TryRequest(ctx context.Context, a auth.Actor, id string) (workspace.Approval, error)
	CancelRequest(ctx context.Context, a auth.Actor, id string) (workspace.Approval, error)
	Policy(ctx context.Context, a auth.Actor) (approval.Policy, error)
	SetPolicy(ctx context.Context, a auth.Actor, p approval.Policy) (approval.Policy, error)
	KeyPolicy(ctx context.Context, a auth.Actor, key string) (approval.Policy, error)
	SetKeyPolicy(ctx context.Context, a auth.Actor, key string, p approval.Policy) (approval.Policy, error)
}

// Record reads what happened.
type Record interface {
	Activity(ctx context.Context, a auth.Actor, f audit.Filter) ([]audit.Event, error)
	// ActivityEvent gives one event with the copy of what its command printed; nil where there is none.
	ActivityEvent(ctx context.Context, a auth.Actor, seq int64) (audit.Event, *audit.Output, error)
	ExportActivity(ctx context.Context, a auth.Actor, f audit.Filter, format string, w io.Writer) error
	SandboxStory(ctx context.Context, a auth.Actor, id string) (sandbox.Record, error)
	RecordState(ctx context.Context, a auth.Actor) (workspace.RecordState, error)
	// RecordEnd grows with everything that is recorded.
	RecordEnd(ctx context.Context, a auth.Actor) (int64, error)
}

// Service is what the pages ask for; workspace.Service is one.
type Service interface {
	Rights
	Door
	Sandboxes
	Files
	Terminals
	Recordings
	People
	Keys
	Approvals
	Record
}

// Recordings reads recordings of terminals, and sets what is recorded.
type Recordings interface {
	RecordingPolicy(ctx context.Context, a auth.Actor) (workspace.RecordingPolicy, error)
	SetRecordingPolicy(ctx context.Context, a auth.Actor, p workspace.RecordingPolicy) (workspace.RecordingPolicy, error)
	Recordings(ctx context.Context, a auth.Actor, f workspace.RecordingFilter) ([]workspace.Recording, error)
	Recording(ctx context.Context, a auth.Actor, id string) (workspace.Recording, error)
	PlayRecording(ctx context.Context, a auth.Actor, id string) (workspace.Playback, error)
	DeleteRecording(ctx context.Context, a auth.Actor, id string) error
}

// Images tells which root filesystems can be used; the image store is one.
type Images interface {
	ImageState(name string) (state string, percent int, detail string)
	ImageNames() []string
}

// Sessions keeps browsers signed in; session.Store is one.
type Sessions interface {
	UserID(r *http.Request) (userID, sessionID string, ok bool)
	SignIn(w http.ResponseWriter, r *http.Request, userID string) error
	SignOut(w http.ResponseWriter, r *http.Request) error
}
