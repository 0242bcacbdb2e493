// Package auth owns who somebody is and what they may do: permissions, roles, passwords, API keys and their rules. It must
// never speak HTTP or SQL; internal/workspace applies it and internal/store keeps its data.
package auth

import (
	"slices"
	"time"
)

// Permission is a word of the contract. None implies another, but SandboxesRun includes SandboxesRead.
type Permission string

// The permissions.
const (
	SandboxesRead   Permission = "sandboxes:read"
	SandboxesRun    Permission = "sandboxes:run"
	SandboxesManage Permission = "sandboxes:manage"
	ApprovalsDecide Permission = "approvals:decide"
	AuditRead       Permission = "audit:read"
	MembersManage   Permission = "members:manage"
	KeysManage      Permission = "keys:manage"
)

// AllPermissions lists them in the order in which pages show them.
var AllPermissions = []Permission{SandboxesRead, SandboxesRun, SandboxesManage, ApprovalsDecide, AuditRead, MembersManage, KeysManage}

// Permissions is a set, sorted as AllPermissions.
type Permissions []Permission

// Has reports whether the set holds p; SandboxesRun includes SandboxesRead, nothing else includes anything.
func (ps Permissions) Has(p Permission) bool {
	return slices.Contains(ps, p) || p == SandboxesRead && slices.Contains(ps, SandboxesRun)
}

// Role is a named set of permissions. SandboxesRun is in none of them.
type Role string

// The roles.
const (
	Viewer   Role = "viewer"
	Analyst  Role = "analyst"
	Approver Role = "approver"
	Operator Role = "operator"
	Admin    Role = "admin"
)

// User is a person with an account.
type User struct {
	ID           string
	Email        string // lower case
	PasswordHash string // argon2id, PHC string
	Admin        bool   // may create workspaces; implies no permission in any of them
	Disabled     bool
	CreatedAt    time.Time
}

// Workspace is what sandboxes, members and keys belong to. Slug stands in URLs.
type Workspace struct {
	ID        string
	Slug      string
	Name      string
	CreatedAt time.Time
}

// Member is a person's place in one workspace.
type Member struct {
	WorkspaceID string
	UserID      string
	Email       string
	Role        Role
	Granted     Permissions // beside the role, by name, on record
	Disabled    bool
	JoinedAt    time.Time
}

// Key is an API key. The secret is never kept: Hash is the SHA-256 of it.
type Key struct {
	ID          string
	WorkspaceID string
	Name        string
	OwnerID     string // user id; "" is a service account with exactly Permissions
	OwnerEmail  string
	Permissions Permissions
	Prefix      string // "sg_" and 8 characters: recognisable, not secret
	Hash        []byte
	CreatedAt   time.Time
	ExpiresAt   time.Time // zero: never
	LastUsedAt  time.Time // minute grain
	RevokedAt   time.Time
	SandboxID   string // made for this sandbox, dead when that is gone
	ParentID    string // of the key that it was made by, dead when that is revoked
}

// ActorKind tells people from keys.
type ActorKind string

// The kinds of actor.
const (
	Person  ActorKind = "person"
	KeyUser ActorKind = "key"
	System  ActorKind = "system" // the server itself and commands on the host
)

// Actor is somebody acting in one workspace, with the rights they have at this moment.
type Actor struct {
	Kind        ActorKind
	UserID      string // of the person, or of the key's owner; "" for service accounts
	KeyID       string
	SessionID   string // of a person in a browser
	Name        string // e-mail, or the key's name
	Owner       string // e-mail of the person whose key it is; "" for people and service accounts
	Workspace   Workspace
	Permissions Permissions
	MakesPlaces bool   // a person whose account may create workspaces; for pages, the service looks again
	Address     string // client address
	RequestID   string
}

// May reports whether the actor has p.
func (a Actor) May(p Permission) bool { return a.Permissions.Has(p) }
