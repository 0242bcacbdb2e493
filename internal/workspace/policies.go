package workspace

import (
	"context"
	"encoding/json"
	"errors"
	"regexp"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/sandbox"
)

var approvalID = regexp.MustCompile(`^ap[a-z0-9]{20}$`)

// policyDigest is the digest of the policies that hold now for who asked.
func (s *Service) policyDigest(ctx context.Context, workspaceID, keyID, sandboxID string) (string, error) {
	list, err := s.policies(ctx, workspaceID, keyID, sandboxID)
	if err != nil {
		return "", err
	}
	plain := make([]approval.Policy, len(list))
	for i, p := range list {
		plain[i] = p.Policy
	}
	return approval.DigestOf(plain)
}

// policyReader is what a gate of policies can tell beside its answer.
type policyReader interface {
	Of(ctx context.Context, workspaceID, keyID, sandboxID string) ([]approval.Named, error)
}

// policies gives those that hold for a key in a sandbox; none where the gate knows no policies.
func (s *Service) policies(ctx context.Context, workspaceID, keyID, sandboxID string) ([]approval.Named, error) {
	g, ok := s.o.Gate.(policyReader)
	if !ok {
		return nil, nil
	}
	return g.Of(ctx, workspaceID, keyID, sandboxID)
}

// Policy gives what the workspace asks approval for. Needs read, manage, approvals:decide or members:manage.
func (s *Service) Policy(ctx context.Context, a auth.Actor) (approval.Policy, error) {
	if err := s.may(ctx, a, approval.Action{Name: "policy.read", Target: a.Workspace.Name}, append(approvalReaders[:3:3], auth.MembersManage)...); err != nil {
		return approval.Policy{}, err
	}
	p, err := s.o.Store.PolicyOf(ctx, a.Workspace.ID)
	return p.Whole(), err
}

// SetPolicy replaces what the workspace asks approval for. Open requests of what has changed become void. Needs members:manage.
func (s *Service) SetPolicy(ctx context.Context, a auth.Actor, p approval.Policy) (approval.Policy, error) {
	what := approval.Action{Kind: approval.Other, Name: "policy.set", Target: a.Workspace.Name}
	if err := s.may(ctx, a, what, auth.MembersManage); err != nil {
		return approval.Policy{}, err
	}
	if a.Workspace.ID == "" {
		return approval.Policy{}, fault.New(fault.NotFound, "Workspace not found")
	}
	return s.setPolicy(ctx, a, what, a.Workspace.ID, p)
}

// KeyPolicy gives what is asked for of a key of the workspace. Needs keys:manage.
func (s *Service) KeyPolicy(ctx context.Context, a auth.Actor, id string) (approval.Policy, error) {
	if err := s.may(ctx, a, approval.Action{Name: "policy.read", Target: id}, auth.KeysManage); err != nil {
		return approval.Policy{}, err
	}
	if err := s.locateKey(ctx, a, id); err != nil {
		return approval.Policy{}, err
	}
	p, err := s.o.Store.PolicyOf(ctx, id)
	return p.Whole(), err
}

// SetKeyPolicy replaces what is asked for of a key: an agent's may ask where a colleague's does not. Needs keys:manage.
func (s *Service) SetKeyPolicy(ctx context.Context, a auth.Actor, id string, p approval.Policy) (approval.Policy, error) {
	what := approval.Action{Kind: approval.Other, Name: "policy.set", Target: id}
	if err := s.may(ctx, a, what, auth.KeysManage); err != nil {
		return approval.Policy{}, err
	}
	if err := s.locateKey(ctx, a, id); err != nil {
		return approval.Policy{}, err
	}
	return s.setPolicy(ctx, a, what, id, p)
}

// locateKey refuses the id of a key that is not the workspace's.
func (s *Service) locateKey(ctx context.Context, a auth.Actor, id string) error {
	k, err := s.keyByID(ctx, id)
	if fault.Is(err, fault.NotFound) || err == nil && k.WorkspaceID != a.Workspace.ID {
		return fault.New(fault.NotFound, "Key not found")
	}
	return err
}

func (s *Service) setPolicy(ctx context.Context, a auth.Actor, what approval.Action, subject string, p approval.Policy) (approval.Policy, error) {
	if err := p.Check(""); err != nil {
		return p, err
	}
	err := s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		return policyWords(p), s.o.Store.SetPolicy(ctx, a.Workspace.ID, subject, p, s.o.Now())
	})
	if err != nil {
		return p, err
	}
	s.policyChanged(ctx, a.Workspace.ID)
	return p.Whole(), nil
}

// policyWords say for the record what is set, whole.
func policyWords(p approval.Policy) string {
	text, err := json.Marshal(p.Whole())
	if err != nil { // words and lists of words
		return ""
	}
	return cut(string(text), 4000)
}

// policyChanged looks at open terminals again and voids the open requests that another policy asked for.
func (s *Service) policyChanged(ctx context.Context, workspaceID string) {
	s.people.guard.look()
	s.feed.send(workspaceID, Change{Kind: "approval"})
	open, err := s.o.Store.OpenApprovals(ctx)
	for _, rec := range open {
		if rec.WorkspaceID != workspaceID {
			continue
		}
		r, oerr := s.openRequest(rec)
		if oerr != nil {
			err = errors.Join(err, oerr)
			continue
		}
		now, perr := s.policyDigest(ctx, rec.WorkspaceID, rec.KeyID, rec.SandboxID)
		if perr == nil && now != r.Policy {
			a := system()
			a.Workspace.ID = workspaceID
			perr = s.endApproval(ctx, a, rec, approval.Void, "approval.void", "the policy has changed since")
		}
		err = errors.Join(err, perr)
	}
	if err != nil { // they are void in any case when they are to be used
		s.o.Log.Error("void requests of another policy", "cause", err.Error())
	}
}

// keepPolicy sets what a sandbox asks for, before it is made. Of what allows everything nothing is kept.
func (s *Service) keepPolicy(ctx context.Context, workspaceID, id string, p approval.Policy) error {
	if p.Empty() && len(p.Rules) == 0 {
		return nil
	}
	return s.o.Store.SetPolicy(ctx, workspaceID, id, p, s.o.Now())
}

// forgetPolicy drops it with its sandbox or snapshot.
func (s *Service) forgetPolicy(id string) {
	ctx, cancel := context.WithTimeout(context.Background(), forgetLimit)
	defer cancel()
	p, err := s.o.Store.PolicyOf(ctx, id)
	if err == nil && p.Empty() && len(p.Rules) == 0 {
		return // most have none, and to forget one makes everybody look at their rights again
	}
	if err := s.o.Store.DeletePolicy(ctx, id); err != nil {
		s.o.Log.Error("forget a policy", "of", id, "cause", err.Error())
	}
}

// checkTighter refuses a policy of a sandbox that is milder than what it has, on record.
func (s *Service) checkTighter(ctx context.Context, a auth.Actor, what approval.Action, id sandbox.ID, p approval.Policy) error {
	if err := p.Check("approval."); err != nil {
		return err
	}
	old, err := s.o.Store.PolicyOf(ctx, string(id))
	if err != nil {
		return err
	}
	if old.Stricter(p) {
		return nil
	}
	ferr := fault.New(fault.Forbidden, "What a sandbox asks approval for can only become stricter.")
	return errors.Join(s.o.Audit.Note(ctx, event(a, what, audit.Refused, policyWords(p))), ferr)
}

// inheritPolicy gives what is made of a sandbox the policy of it.
func (s *Service) inheritPolicy(ctx context.Context, workspaceID, from, to string) error {
	p, err := s.o.Store.PolicyOf(ctx, from)
	if err != nil {
		return err
	}
	return s.keepPolicy(ctx, workspaceID, to, p)
}

// tightened gives the policy of a sandbox that starts from a snapshot: the snapshot's, and what was asked for beside it
// where that is stricter. The snapshot's rules come first.
func (s *Service) tightened(ctx context.Context, snapshot string, asked approval.Policy) (approval.Policy, error) {
	have, err := s.o.Store.PolicyOf(ctx, snapshot)
	if err != nil || have.Empty() && len(have.Rules) == 0 {
		return asked, err
	}
	out := approval.Policy{
		Command: have.Command.Stricter(asked.Command), Write: have.Write.Stricter(asked.Write), Terminal: have.Terminal.Stricter(asked.Terminal),
		Network: have.Network.Stricter(asked.Network), Port: have.Port.Stricter(asked.Port),
	}
	out.Rules = append(append(out.Rules, have.Rules...), asked.Rules...)
	if !have.Stricter(out) {
		return out, fault.Field("approval", "may only be stricter than that of the snapshot")
	}
	return out, out.Check("approval.")
}
