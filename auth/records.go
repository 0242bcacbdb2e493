package auth

import "time"

// Invitation lets one person join one workspace with a link. The token is never kept: Hash is the SHA-256 of it.
type Invitation struct {
	ID          string
	WorkspaceID string
	Email       string // lower case
	Role        Role
	Run         bool // SandboxesRun is granted on joining
	Hash        []byte
	InvitedBy   string // name of who invited
	CreatedAt   time.Time
	ExpiresAt   time.Time
}

// Session is a browser in which somebody is signed in. The cookie's value is never kept: ID is the SHA-256 of it, in hex.
type Session struct {
	ID         string
	UserID     string // "" before sign-in, for messages on the sign-in page
	Data       []byte
	Address    string
	UserAgent  string
	CreatedAt  time.Time
	LastSeenAt time.Time
	IdleFor    time.Duration // it ends when unused for so long
	EndsAt     time.Time     // it ends then in any case
}

// LiveUntil gives the moment from which the session no longer counts, when it is not used before.
func (s Session) LiveUntil() time.Time {
	idle := s.LastSeenAt.Add(s.IdleFor)
	if idle.Before(s.EndsAt) {
		return idle
	}
	return s.EndsAt
}

// KeyHolder is a key together with what its rights hang on.
type KeyHolder struct {
	Key
	Workspace Workspace
	Owner     Member // zero for a service account, and where the owner is no member any more
}

// Live reports whether the key counts at a moment: neither revoked nor expired, its owner still there and not disabled.
func (k KeyHolder) Live(now time.Time) bool {
	if !k.RevokedAt.IsZero() || !k.ExpiresAt.IsZero() && !now.Before(k.ExpiresAt) {
		return false
	}
	return k.OwnerID == "" || k.Owner.UserID == k.OwnerID && !k.Owner.Disabled
}
