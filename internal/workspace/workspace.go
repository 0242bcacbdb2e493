// Package workspace owns what people and keys can do in a workspace: each method checks the permission, passes the
// approval gate, writes intent and outcome to the record, and only then calls the sandbox or the store. It is the only
// caller of package sandbox, and must never render, parse requests, or let a change go around change().
package workspace

import (
	"context"
	"io"
	"log/slog"
	"time"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/audit"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/files"
	"sandgate/sandbox/term"
)

// Service is the one door to everything. Safe for concurrent use.
type Service struct {
	o Options
}

// Options are what a Service needs; all fields but Now and Log are required.
type Options struct {
	Store     Store
	Audit     *audit.Log
	Gate      approval.Gate
	Sandboxes *sandbox.Manager
	Terminals *term.Hub
	Images    Images
	Log       *slog.Logger
	Now       func() time.Time
}

// Images tells which root filesystems can be used.
type Images interface {
	// ImageState gives "ready", "building", "missing" or "failed" with a percentage and, when failed, the end of the log.
	ImageState(name string) (state string, percent int, detail string)
	// ImageNames lists all that are known, "base" first.
	ImageNames() []string
}

// ---- sandboxes (sandboxes.go) ----

// CreateOptions are the contract's create body, as far as their parts have landed. Zero values take the defaults.
type CreateOptions struct {
	Label          string
	Image          string
	Cwd            string
	User           string
	Env            map[string]string
	Metadata       map[string]string
	Resources      sandbox.Resources // zero fields: defaults
	IdempotencyKey string
}

// Sandbox is what is shown of one.
type Sandbox struct {
	sandbox.Record
	Mine bool // the actor created it
}

// CreateSandbox makes one and returns it running. Needs run.
func (s *Service) CreateSandbox(ctx context.Context, a auth.Actor, o CreateOptions) (Sandbox, error) {
	panic("me")
}

// Sandboxes lists those of the actor's workspace, newest first. Needs read or manage.
func (s *Service) Sandboxes(ctx context.Context, a auth.Actor) ([]Sandbox, error) { panic("me") }

// Sandbox gives one. Needs read or manage. Foreign, unknown, gone: fault.NotFound, the same body.
func (s *Service) Sandbox(ctx context.Context, a auth.Actor, id string) (Sandbox, error) { panic("me") }

// KillSandbox ends one's own (needs run) or anyone's (needs manage). One that this workspace ever had and is gone: nil.
func (s *Service) KillSandbox(ctx context.Context, a auth.Actor, id string) error { panic("me") }

// Usage reads what a running sandbox takes now. Needs read or manage.
func (s *Service) Usage(ctx context.Context, a auth.Actor, id string) (sandbox.Usage, error) {
	panic("me")
}

// Change tells that something in a workspace changed; receivers load what they show again.
type Change struct {
	Kind      string // "sandbox", "terminal", "people"
	SandboxID string
}

// Changes sends a Change for each change in the actor's workspace until ctx ends; bursts are merged, none is lost.
func (s *Service) Changes(ctx context.Context, a auth.Actor) <-chan Change { panic("me") }

// Guard returns a context that ends within 1 s of the actor losing p (permission taken, key revoked or expired, person
// disabled or signed out, removed from the workspace); its cause is a fault error then (Forbidden or Unauthenticated).
func (s *Service) Guard(ctx context.Context, a auth.Actor, p auth.Permission) (context.Context, context.CancelFunc) {
	panic("people helper")
}

// ---- commands (commands.go): all need run; reading them back needs read ----

// RunCommand runs one in the foreground and streams it to out. The id is chosen by the caller (sandbox.RandomID("cmd")).
func (s *Service) RunCommand(ctx context.Context, a auth.Actor, id string, c agent.CommandSpec, out agent.Output) (agent.Exit, error) {
	panic("me")
}

// StartCommand starts one in the background.
func (s *Service) StartCommand(ctx context.Context, a auth.Actor, id string, c agent.CommandSpec) (agent.Command, error) {
	panic("me")
}

// Commands lists; needs read.
func (s *Service) Commands(ctx context.Context, a auth.Actor, id string) ([]agent.Command, error) {
	panic("me")
}

// Command gives one; needs read.
func (s *Service) Command(ctx context.Context, a auth.Actor, id, cmd string) (agent.Command, error) {
	panic("me")
}

// CommandLogs gives kept output from byte offsets on; needs read.
func (s *Service) CommandLogs(ctx context.Context, a auth.Actor, id, cmd string, stdoutFrom, stderrFrom int64) (stdout, stderr []byte, c agent.Command, err error) {
	panic("me")
}

// FollowCommand streams a command to its end; needs read.
func (s *Service) FollowCommand(ctx context.Context, a auth.Actor, id, cmd string, stdoutFrom, stderrFrom int64, out agent.Output) (agent.Exit, error) {
	panic("me")
}

// CommandStdin writes to one.
func (s *Service) CommandStdin(ctx context.Context, a auth.Actor, id, cmd string, data []byte, eof bool) error {
	panic("me")
}

// KillCommand signals one.
func (s *Service) KillCommand(ctx context.Context, a auth.Actor, id, cmd, signal string) error {
	panic("me")
}

// ---- files (files.go): reading needs read, changing needs run. Paths are bytes, absolute. ----

// StatFile describes a path.
func (s *Service) StatFile(ctx context.Context, a auth.Actor, id string, path []byte) (agent.FileInfo, error) {
	panic("me")
}

// ListFiles gives a page of a directory.
func (s *Service) ListFiles(ctx context.Context, a auth.Actor, id string, path []byte, cursor string, limit, depth int) (agent.Listing, error) {
	panic("me")
}

// ReadFile opens a regular file from offset, at most length bytes (-1: all).
func (s *Service) ReadFile(ctx context.Context, a auth.Actor, id string, path []byte, offset, length int64) (agent.FileInfo, io.ReadCloser, error) {
	panic("me")
}

// PreviewFile gives what a page can show of a file.
func (s *Service) PreviewFile(ctx context.Context, a auth.Actor, id string, path []byte) (files.Preview, error) {
	panic("me")
}

// ArchiveFiles streams a directory as "tar" or "zip".
func (s *Service) ArchiveFiles(ctx context.Context, a auth.Actor, id string, path []byte, format string) (io.ReadCloser, error) {
	panic("me")
}

// WriteFile replaces a file.
func (s *Service) WriteFile(ctx context.Context, a auth.Actor, id string, path []byte, body io.Reader, o agent.WriteOptions) (agent.FileInfo, error) {
	panic("me")
}

// MakeDirectory makes one with its parents.
func (s *Service) MakeDirectory(ctx context.Context, a auth.Actor, id string, path []byte) (agent.FileInfo, error) {
	panic("me")
}

// MoveFile renames; a destination that exists is a conflict.
func (s *Service) MoveFile(ctx context.Context, a auth.Actor, id string, source, destination []byte) (agent.FileInfo, error) {
	panic("me")
}

// DeleteFile removes.
func (s *Service) DeleteFile(ctx context.Context, a auth.Actor, id string, path []byte, recursive bool) error {
	panic("me")
}

// ---- terminals (terminals.go): viewing needs read, opening, typing and closing need run ----

// OpenTerminal starts one.
func (s *Service) OpenTerminal(ctx context.Context, a auth.Actor, id string, p agent.PTYSpec) (Terminal, error) {
	panic("me")
}

// Terminal is one with who is at it.
type Terminal struct {
	agent.PTY
	Driver  string
	Viewers []string
}

// Terminals lists.
func (s *Service) Terminals(ctx context.Context, a auth.Actor, id string) ([]Terminal, error) {
	panic("me")
}

// Terminal gives one.
func (s *Service) Terminal(ctx context.Context, a auth.Actor, id, pty string) (Terminal, error) {
	panic("me")
}

// CloseTerminal hangs one up.
func (s *Service) CloseTerminal(ctx context.Context, a auth.Actor, id, pty string) error { panic("me") }

// ViewTerminal carries a viewer over conn until it ends; it closes conn with the contract's codes. Permission lost while
// it is open: closed within 2 s. since -1 asks for a snapshot. A refusal closes conn with its code too (4003, 4004, …).
func (s *Service) ViewTerminal(ctx context.Context, a auth.Actor, id, pty string, since int64, conn term.Conn) error {
	panic("me")
}

// ---- people (people.go, signin.go, keys.go, members.go) ----

// SetupNeeded reports whether no user exists yet.
func (s *Service) SetupNeeded(ctx context.Context) (bool, error) { panic("people helper") }

// NewSetupToken makes the token of the link for the first administrator; the one before dies. Single use, 24 h.
func (s *Service) NewSetupToken(ctx context.Context) (string, error) { panic("people helper") }

// SetupForm is what the first administrator fills in.
type SetupForm struct {
	Token, Email, Password, WorkspaceName string
	RunCode                               bool // "let me run code here": grants sandboxes:run, on record
}

// Setup makes the first administrator and workspace. A used, wrong or old token: fault.Forbidden.
func (s *Service) Setup(ctx context.Context, f SetupForm, address, requestID string) (auth.User, auth.Workspace, error) {
	panic("people helper")
}

// SignIn checks e-mail and password: the same time and the same error for unknown e-mail and wrong password
// (fault.Unauthenticated); throttled per account and address (fault.SlowDown with Extra "retry_after").
func (s *Service) SignIn(ctx context.Context, email, password, address, requestID string) (auth.User, error) {
	panic("people helper")
}

// SignedOut notes it, and ends streams of that session within 2 s.
func (s *Service) SignedOut(ctx context.Context, a auth.Actor) error { panic("people helper") }

// PersonActor gives the actor of a signed-in person in the workspace with this slug. Unknown slug or no member: fault.NotFound.
// slug "" gives an actor without a workspace, for the account and workspace pages.
func (s *Service) PersonActor(ctx context.Context, userID, sessionID, slug, address, requestID string) (auth.Actor, error) {
	panic("people helper")
}

// KeyActor gives the actor of an API key: its list cut by its owner's rights at this moment. Wrong, expired, revoked, owner
// disabled or gone: fault.Unauthenticated.
func (s *Service) KeyActor(ctx context.Context, secret, address, requestID string) (auth.Actor, error) {
	panic("people helper")
}

// WorkspacesOf lists the workspaces a person is a member of, by name.
func (s *Service) WorkspacesOf(ctx context.Context, userID string) ([]auth.Workspace, error) {
	panic("people helper")
}

// CreateWorkspace makes one with the actor as its admin. Needs auth.User.Admin.
func (s *Service) CreateWorkspace(ctx context.Context, a auth.Actor, name string) (auth.Workspace, error) {
	panic("people helper")
}

// Members lists members; needs members:manage, or read for names and roles alone.
func (s *Service) Members(ctx context.Context, a auth.Actor) ([]auth.Member, error) {
	panic("people helper")
}

// Invite makes a link token for an e-mail (single use, 7 days); run grants sandboxes:run on joining, on record. Needs members:manage.
func (s *Service) Invite(ctx context.Context, a auth.Actor, email string, role auth.Role, run bool) (token string, err error) {
	panic("people helper")
}

// Invitation is one that is still open.
type Invitation struct {
	ID         string
	Email      string
	Role       auth.Role
	Run        bool
	ExpiresAt  time.Time
	Workspace  auth.Workspace
	HasAccount bool // the e-mail has an account: the page asks for its password instead of a new one
}

// Invitations lists open ones; needs members:manage.
func (s *Service) Invitations(ctx context.Context, a auth.Actor) ([]Invitation, error) {
	panic("people helper")
}

// WithdrawInvitation ends one; needs members:manage.
func (s *Service) WithdrawInvitation(ctx context.Context, a auth.Actor, id string) error {
	panic("people helper")
}

// InvitationByToken shows one to the person invited. Wrong, used, old: fault.NotFound.
func (s *Service) InvitationByToken(ctx context.Context, token string) (Invitation, error) {
	panic("people helper")
}

// AcceptInvitation joins: makes the account with the password, or checks the password of an account that exists.
func (s *Service) AcceptInvitation(ctx context.Context, token, password, address, requestID string) (auth.User, auth.Workspace, error) {
	panic("people helper")
}

// SetRole, SetRun and RemoveMember change a member; all need members:manage, all end what the member may no longer have open.
// The last admin of a workspace cannot be removed or lose the role (fault.Conflict).
func (s *Service) SetRole(ctx context.Context, a auth.Actor, userID string, role auth.Role) error {
	panic("people helper")
}

// SetRun grants or takes sandboxes:run.
func (s *Service) SetRun(ctx context.Context, a auth.Actor, userID string, run bool) error {
	panic("people helper")
}

// RemoveMember ends a membership.
func (s *Service) RemoveMember(ctx context.Context, a auth.Actor, userID string) error {
	panic("people helper")
}

// KeyForm describes a new key. ForMe: owned by the actor, cut by the actor's rights; else a service account.
type KeyForm struct {
	Name        string
	ForMe       bool
	Permissions auth.Permissions
	ExpiresDays int // 0: 90; -1: never
}

// CreateKey makes a key and returns its secret, once. One's own key needs nothing but the permissions it lists; a service
// account needs keys:manage, and may list only what… the contract says (nobody mints rights by a key without keys:manage).
func (s *Service) CreateKey(ctx context.Context, a auth.Actor, f KeyForm) (key auth.Key, secret string, err error) {
	panic("people helper")
}

// Keys lists: all with keys:manage, else one's own.
func (s *Service) Keys(ctx context.Context, a auth.Actor) ([]auth.Key, error) { panic("people helper") }

// RevokeKey ends a key at once: one's own, or any with keys:manage.
func (s *Service) RevokeKey(ctx context.Context, a auth.Actor, id string) error {
	panic("people helper")
}

// Activity gives a page of the record: with audit:read of the workspace; without it needs read and a SandboxID in the filter.
func (s *Service) Activity(ctx context.Context, a auth.Actor, f audit.Filter) ([]audit.Event, error) {
	panic("people helper")
}
