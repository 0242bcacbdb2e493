package workspace

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

// CreateOptions are the contract's create body, as far as their parts have landed. Zero values take the defaults.
type CreateOptions struct {
	Label          string
	Persistent     bool
	Image          string
	Cwd            string
	User           string
	Env            map[string]string
	Secrets        map[string]string // given to processes like Env, and shown nowhere
	Metadata       map[string]string
	Resources      sandbox.Resources // zero fields: defaults
	IdleTimeout    time.Duration     // 0: the default
	MaxLifetime    time.Duration     // 0: the default
	IgnoreBusy     bool              // keep_while_busy is off
	Network        sandbox.NetworkPolicy
	Approval       approval.Policy // stricter than the snapshot's, where it starts from one
	SnapshotID     string          // to start from; "": the image. What is zero above is then the snapshot's
	PlatformKey    bool            // a key of the actor's rights for the sandbox's life, and where to use it, in the environment
	IdempotencyKey string
}

// Sandbox is what is shown of one.
type Sandbox struct {
	sandbox.Record
	Mine     bool            // the actor created it
	Approval approval.Policy // what it asks approval for, beside workspace and key
	Waiting  int             // requests that wait for a decision
	Idle     Idle
}

// CreateSandbox makes one and returns it running. Needs run.
func (s *Service) CreateSandbox(ctx context.Context, a auth.Actor, o CreateOptions) (Sandbox, error) {
	what := approval.Action{Kind: approval.Other, Name: "sandbox.create", Target: o.Label}
	if err := s.may(ctx, a, what, auth.SandboxesRun); err != nil {
		return Sandbox{}, err
	}
	_, bounds, err := s.bounds(ctx, a.Workspace.ID)
	if err != nil {
		return Sandbox{}, err
	}
	var have sandbox.Resources
	if o.SnapshotID != "" {
		if have, err = s.fromSnapshot(ctx, a, &o); err != nil {
			return Sandbox{}, err
		}
	}
	o.Resources = bounds.withDefaults(o.Resources)
	if err := o.check(bounds, have); err != nil {
		return Sandbox{}, err
	}
	if err := s.checkNetwork(&o.Network); err != nil {
		return Sandbox{}, err
	}
	if len(o.Secrets) > 0 && s.o.Seal == nil {
		return Sandbox{}, fault.Field("secrets", "cannot be kept by this installation")
	}
	if err := s.checkPlatformKey(o); err != nil {
		return Sandbox{}, err
	}
	if err := o.Approval.Check("approval."); err != nil {
		return Sandbox{}, err
	}
	id := sandbox.NewID()
	if o.SnapshotID == "" { // which holds the tree that it stands on
		if err := s.imageReady(o.Image); err != nil {
			return Sandbox{}, err
		}
		id = s.o.Sandboxes.Choose(o.Image, o.Resources)
		defer s.o.Sandboxes.Unchoose(id) // unless it was made
	}
	what.SandboxID = string(id)
	if o.IdempotencyKey != "" {
		if prior, found, err := s.claimCreate(ctx, a, o, id); err != nil || found {
			return prior, err
		}
	}
	what.Target = maskOf(o.Secrets).hide(what.Target)
	var made sandbox.Record
	err = s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		words := "image " + o.Image + "; " + networkWords(o.Network)
		if o.PlatformKey {
			prefix, err := s.addPlatformKey(ctx, a, id, &o)
			if err != nil {
				return words, err
			}
			words += "; key " + prefix
		}
		if err := errors.Join(s.keepSecrets(ctx, id, o.Secrets), s.keepPolicy(ctx, a.Workspace.ID, string(id), o.Approval)); err != nil {
			return "", err
		}
		var err error
		r := sandbox.Record{
			ID: id, WorkspaceID: a.Workspace.ID, Label: o.Label, Image: o.Image,
			OwnerKind: string(a.Kind), OwnerID: actorID(a), OwnerName: a.Name,
			Cwd: o.Cwd, User: o.User, Env: o.Env, Metadata: o.Metadata, Resources: o.Resources, Persistent: o.Persistent,
			Life:    sandbox.Life{IdleTimeout: o.IdleTimeout, MaxLifetime: o.MaxLifetime, KeepWhileBusy: !o.IgnoreBusy},
			Network: o.Network,
		}
		if o.SnapshotID != "" {
			made, err = s.o.Sandboxes.StartFrom(ctx, sandbox.SaveID(o.SnapshotID), r, s.quota(bounds))
			return words + "; from " + o.SnapshotID, err
		}
		made, err = s.o.Sandboxes.CreateWithin(ctx, r, s.quota(bounds))
		return words, err
	})
	if err != nil {
		s.forgetSecrets(id)
		s.forgetPolicy(string(id))
		s.endPlatformKey(id)
		s.releaseCreate(ctx, a, o)
		return Sandbox{}, err
	}
	return s.shownWhole(ctx, a, made)
}

// imageReady refuses while the image cannot be used, in words that say what to wait for.
func (s *Service) imageReady(name string) error {
	state, percent, detail := s.o.Images.ImageState(name)
	switch state {
	case "ready":
		return nil
	case "building":
		return fault.New(fault.Starting, "The image %s is still being built (%d %%); try again in a moment.", name, percent).With("percent", percent)
	case "failed":
		return fault.Wrap(errors.New(detail), fault.HostFull, "The image %s could not be built; the operator finds the reason by `sandgate image ls`.", name)
	default:
		return fault.Field("image", "there is no image of this name")
	}
}

// Sandboxes lists those of the actor's workspace, newest first. Needs read or manage.
func (s *Service) Sandboxes(ctx context.Context, a auth.Actor) ([]Sandbox, error) {
	if err := s.may(ctx, a, approval.Action{Name: "sandbox.list"}, auth.SandboxesRead, auth.SandboxesManage); err != nil {
		return nil, err
	}
	records, err := s.o.Sandboxes.Records(ctx, sandbox.Filter{WorkspaceID: a.Workspace.ID})
	if err != nil {
		return nil, err
	}
	policies, err := s.o.Store.PoliciesOf(ctx, a.Workspace.ID)
	if err != nil {
		return nil, err
	}
	waiting, err := s.o.Store.CountPending(ctx, a.Workspace.ID)
	if err != nil {
		return nil, err
	}
	out := make([]Sandbox, len(records))
	for i, r := range records {
		out[i] = s.shown(a, r)
		out[i].Approval, out[i].Waiting = policies[string(r.ID)].Whole(), waiting[string(r.ID)]
	}
	return out, nil
}

// Sandbox gives one. Needs read or manage. Foreign, unknown, gone: fault.NotFound, the same body.
func (s *Service) Sandbox(ctx context.Context, a auth.Actor, id string) (Sandbox, error) {
	if err := s.may(ctx, a, approval.Action{Name: "sandbox.read", SandboxID: id}, auth.SandboxesRead, auth.SandboxesManage); err != nil {
		return Sandbox{}, err
	}
	r, err := s.locate(ctx, a, id)
	if err != nil {
		return Sandbox{}, err
	}
	s.glance(ctx, r)
	return s.shownWhole(ctx, a, r)
}

// KillSandbox ends one's own (needs run) or anyone's (needs manage). One that this workspace ever had and is gone: nil.
func (s *Service) KillSandbox(ctx context.Context, a auth.Actor, id string) error {
	what := approval.Action{Kind: approval.Other, Name: "sandbox.kill", SandboxID: id}
	if err := s.may(ctx, a, what, auth.SandboxesManage, auth.SandboxesRun); err != nil {
		return err
	}
	r, err := s.locateEver(ctx, a, id)
	if err != nil {
		return err
	}
	if r.Status == sandbox.Gone {
		return nil
	}
	what.Target = r.Label
	if err := s.mayAsOwner(ctx, a, what, r, "kill"); err != nil {
		return err
	}
	return s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		return "", s.o.Sandboxes.Kill(ctx, r.ID, sandbox.ReasonKilled)
	})
}

// Usage reads what a running sandbox takes now. Needs read or manage.
func (s *Service) Usage(ctx context.Context, a auth.Actor, id string) (sandbox.Usage, error) {
	if err := s.may(ctx, a, approval.Action{Name: "sandbox.usage", SandboxID: id}, auth.SandboxesRead, auth.SandboxesManage); err != nil {
		return sandbox.Usage{}, err
	}
	r, err := s.locate(ctx, a, id)
	if err != nil {
		return sandbox.Usage{}, err
	}
	return s.o.Sandboxes.Usage(ctx, r.ID)
}

// SandboxChanged is told by the Manager of each change: open pages learn of it, terminals of a dead sandbox end, and a
// death that nobody asked for goes on record.
func (s *Service) SandboxChanged(r sandbox.Record) {
	switch r.Status {
	case sandbox.Failed:
		r.Label = s.mask(context.Background(), string(r.ID)).hide(r.Label)
		s.o.Terminals.Drop(r.ID, fault.Public(sandbox.Died(r.Reason)))
		e := audit.Event{
			WorkspaceID: r.WorkspaceID, ActorKind: auth.System, Actor: "system", SandboxID: string(r.ID),
			Action: "sandbox.died", Target: r.Label, Outcome: "failed", Detail: r.Reason,
		}
		if err := s.o.Audit.Note(context.Background(), e); err != nil {
			s.o.Log.Error("record a death", "sandbox", string(r.ID), "cause", err.Error())
		}
	case sandbox.Running:
		s.o.Terminals.Awake(r.ID)
	case sandbox.Stopping, sandbox.Gone:
		why := "The sandbox was killed."
		if r.Reason == sandbox.ReasonIdle || r.Reason == sandbox.ReasonExpired {
			why = fault.Public(sandbox.Died(r.Reason))
		}
		s.o.Terminals.Drop(r.ID, why)
	}
	s.voidOf(r)
	s.feed.send(r.WorkspaceID, Change{Kind: "sandbox", SandboxID: string(r.ID)})
	s.events.send(r.WorkspaceID, Event{
		Type: EventStatus, At: s.o.Now(), SandboxID: string(r.ID), Status: string(r.Status), Reason: r.Reason,
	})
	if r.Status == sandbox.Gone {
		s.forgetSecrets(r.ID)
		s.endPlatformKey(r.ID)
		s.meters.forget(r.ID)
		s.idle.forget(r.ID)
		s.closeDenied(r.ID, true)
		s.forgetPolicy(string(r.ID))
	}
}

// ---- what the other files of the sandbox half share ----

// locate gives a living sandbox of the actor's workspace.
func (s *Service) locate(ctx context.Context, a auth.Actor, id string) (sandbox.Record, error) {
	r, err := s.locateEver(ctx, a, id)
	if err == nil && r.Status == sandbox.Gone {
		return sandbox.Record{}, errNotFound()
	}
	return r, err
}

// locateEver gives one that may be gone.
func (s *Service) locateEver(ctx context.Context, a auth.Actor, id string) (sandbox.Record, error) {
	if !sandbox.ID(id).Valid() {
		return sandbox.Record{}, errNotFound()
	}
	r, err := s.o.Sandboxes.Record(ctx, sandbox.ID(id))
	if fault.Is(err, fault.NotFound) || err == nil && r.WorkspaceID != a.Workspace.ID {
		return sandbox.Record{}, errNotFound()
	}
	return r, err
}

// reach is what every call into a sandbox starts with: permission, the record, the agent. It is a look, not a use: see use.
func (s *Service) reach(ctx context.Context, a auth.Actor, what approval.Action, need auth.Permission) (sandbox.Record, *agent.Client, error) {
	if err := s.may(ctx, a, what, need); err != nil {
		return sandbox.Record{}, nil, err
	}
	r, err := s.locate(ctx, a, what.SandboxID)
	if err != nil {
		return sandbox.Record{}, nil, err
	}
	client, err := s.o.Sandboxes.AgentOf(r)
	if errors.Is(err, sandbox.ErrAsleep) {
		if !a.May(auth.SandboxesRun) { // what is inside would run again
			return sandbox.Record{}, nil, errAsleep()
		}
		client, err = s.o.Sandboxes.Agent(ctx, r.ID)
	}
	if err != nil {
		return sandbox.Record{}, nil, err
	}
	return r, client, nil
}

// use is reach for a call that counts as use of the sandbox, for one of package idle's reasons, until done is called: as
// long it is not ended for being idle, and one that is being ended is not found. Every call chooses between the two, and
// TestWhatCountsAsUse holds the choice.
func (s *Service) use(ctx context.Context, a auth.Actor, what approval.Action, need auth.Permission, why string) (
	r sandbox.Record, client *agent.Client, done func(), err error,
) {
	for {
		if r, client, err = s.reach(ctx, a, what, need); err != nil {
			return r, nil, nil, err
		}
		done, err = s.o.Sandboxes.Use(ctx, r.ID, why)
		if err == nil {
			return r, client, done, nil
		}
		if !errors.Is(err, sandbox.ErrAsleep) || ctx.Err() != nil {
			return r, nil, nil, err
		}
	}
}

func (s *Service) shown(a auth.Actor, r sandbox.Record) Sandbox {
	return Sandbox{Record: r, Mine: owns(a, r), Idle: s.idleOf(r)}
}

// shownWhole is shown with what the sandbox asks approval for and what waits.
func (s *Service) shownWhole(ctx context.Context, a auth.Actor, r sandbox.Record) (Sandbox, error) {
	v := s.shown(a, r)
	p, err := s.o.Store.PolicyOf(ctx, string(r.ID))
	if err != nil {
		return v, err
	}
	v.Approval = p.Whole()
	waiting, err := s.o.Store.CountPending(ctx, r.WorkspaceID)
	v.Waiting = waiting[string(r.ID)]
	return v, err
}

func owns(a auth.Actor, r sandbox.Record) bool {
	return r.OwnerKind == string(a.Kind) && r.OwnerID == actorID(a)
}

func actorID(a auth.Actor) string {
	if a.Kind == auth.KeyUser {
		return a.KeyID
	}
	return a.UserID
}

// explain names the sandbox's death where a broken bridge was all that the call saw.
func (s *Service) explain(ctx context.Context, r sandbox.Record, err error) error {
	if err == nil {
		return nil
	}
	if fault.Is(err, fault.Internal) {
		err = s.o.Sandboxes.Explain(ctx, r.ID, err)
	}
	if fault.Is(err, fault.Internal) {
		return fmt.Errorf("sandbox %s: %w", r.ID, err)
	}
	return err
}
