package workspace

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/sandbox"
	"sandgate/sandbox/idle"
)

// SandboxPatch is what can be changed of a sandbox; nil leaves what is there. Metadata is replaced whole.
type SandboxPatch struct {
	Label     *string
	Metadata  map[string]string
	Resources *sandbox.Resources     // zero fields stay; needs manage
	Network   *sandbox.NetworkPolicy // more than there is needs manage
	Approval  *approval.Policy       // stricter than what is there

	IdleTimeout   *time.Duration
	MaxLifetime   *time.Duration
	KeepWhileBusy *bool
}

// life gives what becomes of a Life; changed false: nothing.
func (p SandboxPatch) life(l sandbox.Life) (_ sandbox.Life, changed bool) {
	if p.IdleTimeout != nil {
		l.IdleTimeout, changed = *p.IdleTimeout, true
	}
	if p.MaxLifetime != nil {
		l.MaxLifetime, changed = *p.MaxLifetime, true
	}
	if p.KeepWhileBusy != nil {
		l.KeepWhileBusy, changed = *p.KeepWhileBusy, true
	}
	return l, changed
}

// UpdateSandbox changes one's own (needs run) or anyone's (needs manage).
func (s *Service) UpdateSandbox(ctx context.Context, a auth.Actor, id string, p SandboxPatch) (Sandbox, error) {
	what := approval.Action{Kind: approval.Other, Name: "sandbox.update", SandboxID: id}
	if err := s.may(ctx, a, what, auth.SandboxesManage, auth.SandboxesRun); err != nil {
		return Sandbox{}, err
	}
	r, err := s.locate(ctx, a, id)
	if err != nil {
		return Sandbox{}, err
	}
	what.Target = r.Label
	if err := s.mayAsOwner(ctx, a, what, r, "change"); err != nil {
		return Sandbox{}, err
	}
	if p.Resources != nil && !a.May(auth.SandboxesManage) {
		what.Target = s.mask(ctx, id).hide(what.Target)
		return Sandbox{}, errors.Join(s.o.Audit.Note(ctx, event(a, what, "refused", "needs "+string(auth.SandboxesManage))), errNeedsManage())
	}
	if err := p.check(); err != nil {
		return Sandbox{}, err
	}
	if p.Network != nil {
		if err := s.checkNetwork(p.Network); err != nil {
			return Sandbox{}, err
		}
		if err := s.mayNetwork(ctx, a, what, *p.Network, r.Network); err != nil {
			return Sandbox{}, err
		}
	}
	if p.Approval != nil {
		if err := s.checkTighter(ctx, a, what, r.ID, *p.Approval); err != nil {
			return Sandbox{}, err
		}
	}
	var q *asking
	if p.Network != nil {
		what.Kind, q = approval.Network, askNetwork(r, &p)
	}
	limits := r.Resources
	if p.Resources != nil {
		if limits, err = s.newResources(ctx, r, *p.Resources); err != nil {
			return Sandbox{}, err
		}
	}
	err = s.changeAsking(ctx, a, what, q, func(ctx context.Context) (string, error) {
		detail := p.words(resourcesChange(r.Resources, limits))
		if p.Approval != nil {
			if err := s.o.Store.SetPolicy(ctx, r.WorkspaceID, id, *p.Approval, s.o.Now()); err != nil {
				return detail, err
			}
		}
		if p.Resources != nil {
			if _, err := s.o.Sandboxes.SetResources(ctx, r.ID, limits); err != nil {
				return detail, err
			}
		}
		if p.Network != nil {
			if err := s.o.Sandboxes.ChangeNetwork(ctx, r.ID, *p.Network); err != nil {
				return detail, err
			}
		}
		if life, changed := p.life(r.Life); changed {
			if err := s.o.Sandboxes.SetLife(ctx, r, life); err != nil {
				return detail, err
			}
		}
		if p.Label == nil && p.Metadata == nil {
			return detail, nil
		}
		return detail, s.o.Store.DescribeSandbox(ctx, r.ID, p.Label, p.Metadata)
	})
	if err != nil {
		return Sandbox{}, err
	}
	if p.Approval != nil {
		s.policyChanged(ctx, r.WorkspaceID)
	}
	s.feed.send(r.WorkspaceID, Change{Kind: "sandbox", SandboxID: id})
	if r, err = s.o.Sandboxes.Record(ctx, sandbox.ID(id)); err != nil {
		return Sandbox{}, err
	}
	return s.shownWhole(ctx, a, r)
}

func (p SandboxPatch) check() error {
	bad := map[string]string{}
	if p.Label != nil {
		if msg := textProblem(*p.Label, maxLabel); msg != "" {
			bad["label"] = msg
		}
	}
	if msg := metadataProblem(p.Metadata); msg != "" {
		bad["metadata"] = msg
	}
	timeout, lifetime := idle.DefaultTimeout, idle.DefaultLifetime
	if p.IdleTimeout != nil {
		timeout = *p.IdleTimeout
	}
	if p.MaxLifetime != nil {
		lifetime = *p.MaxLifetime
	}
	checkLife(timeout, lifetime, bad)
	return fieldsFault(bad)
}

// words say for the record what changed.
func (p SandboxPatch) words(limits string) string {
	var out []string
	if p.Label != nil {
		out = append(out, "label "+*p.Label)
	}
	if p.Metadata != nil {
		out = append(out, "metadata")
	}
	if p.IdleTimeout != nil {
		out = append(out, "idle_timeout "+p.IdleTimeout.String())
	}
	if p.MaxLifetime != nil {
		out = append(out, "max_lifetime "+p.MaxLifetime.String())
	}
	if p.KeepWhileBusy != nil {
		out = append(out, fmt.Sprintf("keep_while_busy %t", *p.KeepWhileBusy))
	}
	if p.Network != nil {
		out = append(out, networkWords(*p.Network))
	}
	if p.Approval != nil {
		out = append(out, "approval "+policyWords(*p.Approval))
	}
	if limits != "" {
		out = append(out, limits)
	}
	return strings.Join(out, "; ")
}
