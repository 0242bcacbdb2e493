package workspace

import (
	"context"
	"errors"
	"slices"
	"strings"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/fault"
	"sandgate/sandbox"
)

// checkNetwork fills the default in and refuses what no sandbox of this installation can have.
func (s *Service) checkNetwork(p *sandbox.NetworkPolicy) error {
	if s.o.CheckNetwork == nil { // sandboxes have no network here: nothing else may be promised
		if p.Mode != "" && p.Mode != sandbox.NetworkNone {
			return fault.Field("network.mode", "must be none: sandboxes of this installation have no network")
		}
		*p = sandbox.NetworkPolicy{Mode: sandbox.NetworkNone, Allow: []string{}}
		return nil
	}
	checked, err := s.o.CheckNetwork(*p)
	if err != nil {
		return err
	}
	*p = checked
	return nil
}

// narrower says whether everything that p reaches is reached by old, too. Both are checked.
func narrower(p, old sandbox.NetworkPolicy) bool {
	switch p.Mode {
	case sandbox.NetworkNone:
		return true
	case sandbox.NetworkPublic:
		return old.Mode == sandbox.NetworkPublic
	}
	if old.Mode == sandbox.NetworkPublic {
		return true
	}
	if old.Mode != sandbox.NetworkAllowList {
		return false
	}
	for _, entry := range p.Allow {
		if !slices.Contains(old.Allow, entry) {
			return false
		}
	}
	return true
}

// mayNetwork refuses a new network that somebody may not give: what a sandbox reaches is for sandboxes:manage; who may
// only run may take from their own, never add.
func (s *Service) mayNetwork(ctx context.Context, a auth.Actor, what approval.Action, p, old sandbox.NetworkPolicy) error {
	if a.May(auth.SandboxesManage) || narrower(p, old) {
		return nil
	}
	err := fault.New(fault.Forbidden, "To let a running sandbox reach more needs the permission %s; without it a network can only be narrowed.", auth.SandboxesManage)
	what.Target = s.mask(ctx, what.SandboxID).hide(what.Target)
	return errors.Join(s.o.Audit.Note(ctx, event(a, what, "refused", networkWords(p))), err)
}

// networkWords say for the record what a sandbox may reach.
func networkWords(p sandbox.NetworkPolicy) string {
	out := "network " + string(p.Mode)
	if p.Mode == sandbox.NetworkAllowList {
		out += ": " + strings.Join(p.Allow, " ")
	}
	return out
}
