package workspace

import (
	"context"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/fault"
)

// Require refuses an actor who has none of the permissions, and puts the refusal on record under the action's name. It is
// for faces that turn a caller away before they read what is asked; it changes nothing, and every call checks again.
func (s *Service) Require(ctx context.Context, a auth.Actor, action, sandboxID string, anyOf ...auth.Permission) error {
	return s.may(ctx, a, approval.Action{Name: action, SandboxID: sandboxID}, anyOf...)
}

// Refuse puts on record that a face turned down what nobody may do, and gives the refusal back.
func (s *Service) Refuse(ctx context.Context, a auth.Actor, action string, err *fault.Error) error {
	return s.refuse(ctx, a, approval.Action{Kind: approval.Other, Name: action}, err)
}
