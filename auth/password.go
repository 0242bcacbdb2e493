package auth

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	_ "embed" // the list of common passwords
	"encoding/base64"
	"fmt"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"golang.org/x/crypto/argon2"

	"sandgate/internal/fault"
)

// Limits of a password. The upper one bounds work, nothing is cut off silently.
const (
	PasswordMinRunes = 10
	PasswordMaxBytes = 256
)

//go:embed common_passwords.txt
var commonPasswords string

// CheckNewPassword refuses what is too short, too long, too common, or only repeats the e-mail address.
func CheckNewPassword(password, email string) error {
	lower := strings.ToLower(password)
	local, _, _ := strings.Cut(strings.ToLower(email), "@")
	switch {
	case len(password) > PasswordMaxBytes:
		return fault.Field("password", "may have at most %d bytes", PasswordMaxBytes)
	case !utf8.ValidString(password):
		return fault.Field("password", "is not valid text")
	case utf8.RuneCountInString(password) < PasswordMinRunes:
		return fault.Field("password", "needs at least %d characters", PasswordMinRunes)
	case strings.Count(password, password[:1]) == len(password), isCommon(lower):
		return fault.Field("password", "is one that many people use, so it is guessed first; choose another")
	case email != "" && (lower == strings.ToLower(email) || lower == local):
		return fault.Field("password", "must not be your e-mail address")
	}
	return nil
}

func isCommon(lower string) bool {
	for line := range strings.Lines(commonPasswords) {
		if strings.TrimSpace(line) == lower {
			return true
		}
	}
	return false
}

// HashParams are those of argon2id.
type HashParams struct {
	MemoryKiB uint32
	Time      uint32
	Threads   uint8
}

// DefaultHashParams cost some 20 ms and 19 MiB per hash.
var DefaultHashParams = HashParams{MemoryKiB: 19456, Time: 2, Threads: 1}

// Waiting for a hash beyond this many is refused: each holds a request, and the answer would come too late.
const maxWaitingHashes = 64

// Hasher hashes and checks passwords. Safe for concurrent use; at most two hashes are worked on at once, so that a flood
// of sign-ins can take neither the memory nor both processors.
type Hasher struct {
	params  HashParams
	slots   chan struct{}
	waiting atomic.Int64
	dummy   string
}

// NewHasher makes a Hasher; hashes made with other parameters still check, and are reported as stale.
func NewHasher(p HashParams) *Hasher {
	h := &Hasher{params: p, slots: make(chan struct{}, 2)}
	h.dummy = h.encode(make([]byte, saltLen), make([]byte, hashLen))
	return h
}

const (
	saltLen = 16
	hashLen = 32
)

// Hash gives the PHC string of a password. It waits for its turn; too many waiting is fault.SlowDown.
func (h *Hasher) Hash(ctx context.Context, password string) (string, error) {
	salt := make([]byte, saltLen)
	_, _ = rand.Read(salt)
	sum, err := h.work(ctx, password, salt, h.params, hashLen)
	if err != nil {
		return "", err
	}
	return h.encode(salt, sum), nil
}

// Check compares a password with a PHC string. With phc "" it takes the same time and says no, so that an unknown e-mail
// cannot be told from a wrong password. stale asks to hash the password anew.
func (h *Hasher) Check(ctx context.Context, password, phc string) (ok, stale bool, err error) {
	unknown := phc == ""
	if unknown {
		phc = h.dummy
	}
	if len(password) > PasswordMaxBytes {
		password, unknown = "", true
	}
	p, salt, want, err := decodePHC(phc)
	if err != nil {
		return false, false, err
	}
	sum, err := h.work(ctx, password, salt, p, uint32(len(want)))
	if err != nil {
		return false, false, err
	}
	ok = subtle.ConstantTimeCompare(sum, want) == 1 && !unknown
	return ok, p != h.params, nil
}

func (h *Hasher) work(ctx context.Context, password string, salt []byte, p HashParams, n uint32) ([]byte, error) {
	if h.waiting.Add(1) > maxWaitingHashes {
		h.waiting.Add(-1)
		return nil, fault.New(fault.SlowDown, "Too many people are signing in at this moment. Try again in a few seconds.").With("retry_after", 5)
	}
	defer h.waiting.Add(-1)
	select {
	case h.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for a password hash: %w", ctx.Err())
	}
	defer func() { <-h.slots }()
	return argon2.IDKey([]byte(password), salt, p.Time, p.MemoryKiB, p.Threads, n), nil
}

func (h *Hasher) encode(salt, sum []byte) string {
	b64 := base64.RawStdEncoding
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, h.params.MemoryKiB, h.params.Time, h.params.Threads,
		b64.EncodeToString(salt), b64.EncodeToString(sum))
}

// decodePHC reads a stored hash; its parameters are bounded so that a damaged row cannot exhaust the host.
func decodePHC(phc string) (p HashParams, salt, sum []byte, err error) {
	parts := strings.Split(phc, "$")
	if len(parts) != 6 || parts[0] != "" || parts[1] != "argon2id" {
		return p, nil, nil, fmt.Errorf("read password hash: not argon2id")
	}
	var version int
	if _, err := fmt.Sscanf(parts[2], "v=%d", &version); err != nil || version != argon2.Version {
		return p, nil, nil, fmt.Errorf("read password hash: version %.10q", parts[2])
	}
	if _, err := fmt.Sscanf(parts[3], "m=%d,t=%d,p=%d", &p.MemoryKiB, &p.Time, &p.Threads); err != nil {
		return p, nil, nil, fmt.Errorf("read password hash: %w", err)
	}
	if p.MemoryKiB > 1<<20 || p.Time < 1 || p.Time > 64 || p.Threads < 1 {
		return p, nil, nil, fmt.Errorf("read password hash: parameters out of bounds")
	}
	if salt, err = base64.RawStdEncoding.DecodeString(parts[4]); err != nil {
		return p, nil, nil, fmt.Errorf("read password salt: %w", err)
	}
	if sum, err = base64.RawStdEncoding.DecodeString(parts[5]); err != nil || len(sum) < 16 || len(sum) > 128 {
		return p, nil, nil, fmt.Errorf("read password hash: bad length or encoding")
	}
	return p, salt, sum, nil
}
