// Package workspace owns what people and keys can do in a workspace: each method checks the permission, passes the
// approval gate, writes intent and outcome to the record, and only then calls the sandbox or the store. It is the only
// caller of package sandbox, and must never render, parse requests, or let a change go around change().
package workspace

import (
	"context"
	"log/slog"
	"time"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/audit"
	"sandgate/sandbox"
	"sandgate/sandbox/term"
)

// Service is the one door to everything. Safe for concurrent use.
type Service struct {
	o    Options
	feed feed
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

// Guard returns a context that ends within 1 s of the actor losing p (permission taken, key revoked or expired, person
// disabled or signed out, removed from the workspace); its cause is a fault error then (Forbidden or Unauthenticated).
func (s *Service) Guard(ctx context.Context, a auth.Actor, p auth.Permission) (context.Context, context.CancelFunc) {
	panic("people helper")
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
