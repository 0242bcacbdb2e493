package workspace

import (
	"context"
	"time"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/sandbox"
	"sandgate/sandbox/term/recording"
)

// Store is what the service needs of the database; internal/store implements it. Missing things are fault.NotFound.
type Store interface {
	Users
	FirstRun
	Places
	Members
	Invitations
	Keys
	Sessions
	Idempotency
	Descriptions
	Sealed
	Bounds
	Tapes
	approval.Store
	approval.Policies
}

// Users keeps accounts.
type Users interface {
	UserByID(ctx context.Context, id string) (auth.User, error)
	UserByEmail(ctx context.Context, email string) (auth.User, error)
	Users(ctx context.Context) ([]auth.User, error)
	InsertUser(ctx context.Context, u auth.User) error
	SetPassword(ctx context.Context, userID, hash string, endSessions bool) error
	SetDisabled(ctx context.Context, userID string, disabled bool) error
}

// FirstRun makes the first administrator, once.
type FirstRun interface {
	CountUsers(ctx context.Context) (int, error)
	SetSetupToken(ctx context.Context, hash []byte, expires time.Time) error
	SetupTokenLive(ctx context.Context, hash []byte, now time.Time) (bool, error)
	CreateFirst(ctx context.Context, tokenHash []byte, now time.Time, u auth.User, w auth.Workspace, m auth.Member) (auth.Workspace, error)
}

// Places keeps workspaces.
type Places interface {
	InsertWorkspace(ctx context.Context, w auth.Workspace, m auth.Member) (auth.Workspace, error)
	WorkspaceBySlug(ctx context.Context, slug string) (auth.Workspace, error)
	Workspaces(ctx context.Context) ([]auth.Workspace, error)
	WorkspacesOf(ctx context.Context, userID string) ([]auth.Workspace, error)
}

// Members keeps who belongs to which workspace. It refuses to take the last administrator away (fault.Conflict).
type Members interface {
	MemberBySlug(ctx context.Context, userID, slug string) (auth.Member, auth.Workspace, error)
	Member(ctx context.Context, workspaceID, userID string) (auth.Member, error)
	Members(ctx context.Context, workspaceID string) ([]auth.Member, error)
	PutMember(ctx context.Context, m auth.Member) error
	SetRole(ctx context.Context, workspaceID, userID string, role auth.Role) error
	Grant(ctx context.Context, workspaceID, userID string, p auth.Permission, on bool) error
	DeleteMember(ctx context.Context, workspaceID, userID string, now time.Time) error
}

// Invitations keeps open invitations.
type Invitations interface {
	PutInvitation(ctx context.Context, i auth.Invitation) error
	Invitations(ctx context.Context, workspaceID string, now time.Time) ([]auth.Invitation, error)
	InvitationByHash(ctx context.Context, hash []byte, now time.Time) (auth.Invitation, auth.Workspace, error)
	DeleteInvitation(ctx context.Context, workspaceID, id string) error
	AcceptInvitation(ctx context.Context, id string, now time.Time, newUser *auth.User, m auth.Member) error
}

// Keys keeps API keys.
type Keys interface {
	InsertKey(ctx context.Context, k auth.Key) error
	KeyByPrefix(ctx context.Context, prefix string) (auth.KeyHolder, error)
	KeyByID(ctx context.Context, id string) (auth.KeyHolder, error)
	Keys(ctx context.Context, workspaceID, ownerID string) ([]auth.Key, error)
	CountKeys(ctx context.Context, workspaceID string) (int, error)
	// RevokeKey also ends the keys that this one made.
	RevokeKey(ctx context.Context, workspaceID, id string, at time.Time) error
	// RevokeSandboxKeys ends those that were made for a sandbox, and gives them.
	RevokeSandboxKeys(ctx context.Context, id sandbox.ID, at time.Time) ([]auth.Key, error)
	TouchKey(ctx context.Context, id string, at time.Time) error
}

// Sessions tells whether somebody is still signed in. AuthzEpoch grows, whichever process makes the change, with
// everything that can take a right from somebody.
type Sessions interface {
	SessionByID(ctx context.Context, id string) (auth.Session, error)
	TouchSession(ctx context.Context, id string, at time.Time) error
	DeleteSession(ctx context.Context, id string) error
	SessionsOf(ctx context.Context, userID string) ([]auth.Session, error)
	DeleteSessionsOf(ctx context.Context, userID, keep string) error
	AuthzEpoch(ctx context.Context) (int64, error)
}

// Idempotency makes a repeated create answer with the first one's sandbox. claimed false: the key was bound before, to
// the digest and the sandbox returned. Keys are forgotten after 24 h.
type Idempotency interface {
	ClaimIdempotencyKey(ctx context.Context, workspaceID, key, digest string, id sandbox.ID, at time.Time) (
		claimed bool, haveDigest string, haveID sandbox.ID, err error)
	ReleaseIdempotencyKey(ctx context.Context, workspaceID, key string) error
}

// Descriptions changes what people wrote about a sandbox; nil leaves what is there.
type Descriptions interface {
	DescribeSandbox(ctx context.Context, id sandbox.ID, label *string, metadata map[string]string) error
}

// Sealed keeps the secrets of sandboxes, as they were sealed. It never sees one in clear.
type Sealed interface {
	PutSecrets(ctx context.Context, id sandbox.ID, sealed []byte) error
	Secrets(ctx context.Context, id sandbox.ID) ([]byte, error)
	DeleteSecrets(ctx context.Context, id sandbox.ID) error
}

// Bounds keeps what workspaces have set for their sandboxes; zero fields are not set.
type Bounds interface {
	WorkspaceLimits(ctx context.Context, workspaceID string) (most sandbox.Resources, sandboxes int, err error)
	SetWorkspaceLimits(ctx context.Context, workspaceID string, most sandbox.Resources, sandboxes int) error
	// CountSandboxes counts as a quota does: those that hold something of the host.
	CountSandboxes(ctx context.Context, workspaceID string) (int, error)
}

// Tapes keeps what there is of recordings beside their files, and each workspace's policy.
type Tapes interface {
	RecordingPolicy(ctx context.Context, workspaceID string) (recording.Policy, error)
	SetRecordingPolicy(ctx context.Context, workspaceID string, p recording.Policy) error
	InsertRecording(ctx context.Context, r recording.Recording) error
	FinishRecording(ctx context.Context, id string, at time.Time, how string, bytes int64) error
	MeasureRecording(ctx context.Context, id string, bytes int64) error
	RecordingByID(ctx context.Context, id string) (recording.Recording, error)
	Recordings(ctx context.Context, f recording.Filter) ([]recording.Recording, error)
	OpenRecordings(ctx context.Context) ([]recording.Recording, error)
	RecordingIDs(ctx context.Context) ([]string, error)
	RecordingTotals(ctx context.Context) (map[string]int64, error)
	OldestRecordings(ctx context.Context, workspaceID string, limit int) ([]recording.Recording, error)
	DeleteRecording(ctx context.Context, id string) error
}
