package workspace

import (
	"context"

	"sandgate/auth"
	"sandgate/internal/approval"
)

// Require refuses an actor who has none of the permissions, and puts the refusal on record under the action's name. It is
// for faces that turn a caller away before they read what is asked; it changes nothing, and every call checks again.
func (s *Service) Require(ctx context.Context, a auth.Actor, action, sandboxID string, anyOf ...auth.Permission) error {
	return s.may(ctx, a, approval.Action{Name: action, SandboxID: sandboxID}, anyOf...)
}
