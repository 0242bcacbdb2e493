package workspace

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"unicode"

	"sandgate/auth"
	"sandgate/internal/fault"
	"sandgate/sandbox"
)

// claimCreate binds an idempotency key to a creation. found: the key was used before, and prior is what it made.
func (s *Service) claimCreate(ctx context.Context, a auth.Actor, o CreateOptions, id sandbox.ID) (prior Sandbox, found bool, err error) {
	if msg := idempotencyProblem(o.IdempotencyKey); msg != "" {
		return prior, false, fault.Field("Idempotency-Key", "%s", msg)
	}
	key := idempotencyKey(a, o)
	o.IdempotencyKey = ""
	canonical, err := json.Marshal(o)
	if err != nil {
		return prior, false, err
	}
	sum := sha256.Sum256(canonical)
	digest := hex.EncodeToString(sum[:])
	if len(o.Secrets) > 0 {
		digest = hex.EncodeToString(s.o.Seal.Digest(canonical)) // nobody may try guesses at secrets against the database
	}
	claimed, haveDigest, haveID, err := s.o.Store.ClaimIdempotencyKey(ctx, a.Workspace.ID, key, digest, id, s.o.Now())
	if err != nil || claimed {
		return prior, false, err
	}
	if haveDigest != digest {
		return prior, false, fault.New(fault.Conflict, "This Idempotency-Key was used for a different request.")
	}
	r, err := s.locateEver(ctx, a, string(haveID))
	switch missing := fault.Is(err, fault.NotFound); { // missing: its record is about to be written
	case err != nil && !missing:
		return prior, false, err
	case r.Status == sandbox.Gone:
		return prior, false, fault.New(fault.Conflict, "This Idempotency-Key made a sandbox that is gone.")
	case missing || r.Status == sandbox.Creating:
		return prior, false, fault.New(fault.Starting, "The sandbox of this Idempotency-Key is still being created.")
	}
	prior, err = s.shownWhole(ctx, a, r)
	return prior, true, err
}

// releaseCreate frees the key of a creation that failed, so that it can be tried again.
func (s *Service) releaseCreate(ctx context.Context, a auth.Actor, o CreateOptions) {
	if o.IdempotencyKey == "" {
		return
	}
	if err := s.o.Store.ReleaseIdempotencyKey(context.WithoutCancel(ctx), a.Workspace.ID, idempotencyKey(a, o)); err != nil {
		s.o.Log.Warn("release an idempotency key", "cause", err.Error())
	}
}

// idempotencyKey keeps the keys of different callers apart.
func idempotencyKey(a auth.Actor, o CreateOptions) string { return actorID(a) + "/" + o.IdempotencyKey }

func idempotencyProblem(key string) string {
	if len(key) > 255 {
		return "may have up to 255 characters"
	}
	for _, c := range key {
		if c > unicode.MaxASCII || !unicode.IsPrint(c) {
			return "may hold printable ASCII only"
		}
	}
	return ""
}
