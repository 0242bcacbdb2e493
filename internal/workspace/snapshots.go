package workspace

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/sandbox"
)

const (
	maxSnapshotName = 100 // characters
	snapshotLook    = time.Hour
)

// SnapshotRules bound what workspaces keep; zero is no bound.
type SnapshotRules struct {
	Quota  sandbox.SnapshotQuota // of each workspace
	Unused time.Duration         // one from which nothing was started for so long is deleted
}

// DefaultSnapshotRules suit a small host.
func DefaultSnapshotRules() SnapshotRules {
	return SnapshotRules{Quota: sandbox.SnapshotQuota{Count: 20, Bytes: 20 << 30}, Unused: 30 * 24 * time.Hour}
}

// Snapshot is what is shown of one.
type Snapshot struct {
	sandbox.Snapshot
	Mine      bool      // the actor took it
	ExpiresAt time.Time // unless it is used; zero: never
}

func (s *Service) shownSnapshot(a auth.Actor, n sandbox.Snapshot) Snapshot {
	out := Snapshot{Snapshot: n, Mine: n.OwnerKind == string(a.Kind) && n.OwnerID == actorID(a)}
	if s.o.Snapshots.Unused > 0 {
		out.ExpiresAt = n.UsedAt.Add(s.o.Snapshots.Unused)
	}
	return out
}

// TakeSnapshot keeps the state of a sandbox of the workspace, which runs on. Its secrets are kept with it, sealed; a platform
// key is not. What runs inside may hold both in its memory, and that is in the snapshot. Needs run.
func (s *Service) TakeSnapshot(ctx context.Context, a auth.Actor, of, name string) (Snapshot, error) {
	id := sandbox.NewSnapshotID()
	what := approval.Action{Kind: approval.Other, Name: "snapshot.create", SandboxID: of}
	if err := s.may(ctx, a, what, auth.SandboxesRun); err != nil {
		return Snapshot{}, err
	}
	r, err := s.locate(ctx, a, of)
	if err != nil {
		return Snapshot{}, err
	}
	name = strings.TrimSpace(name)
	if name == "" {
		return Snapshot{}, fault.Field("name", "must not be empty")
	}
	if msg := textProblem(name, maxSnapshotName); msg != "" {
		return Snapshot{}, fault.Field("name", "%s", msg)
	}
	set, err := s.secrets(ctx, r.ID)
	if err != nil {
		return Snapshot{}, err
	}
	what.Target = name
	var taken sandbox.Snapshot
	err = s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		if err := errors.Join(s.keepSnapshotSecrets(ctx, id, set.values), s.inheritPolicy(ctx, a.Workspace.ID, of, string(id))); err != nil {
			return "", err
		}
		var err error
		taken, err = s.o.Sandboxes.TakeSnapshot(ctx, r.ID, sandbox.Snapshot{
			ID: id, WorkspaceID: a.Workspace.ID, Name: name, OwnerKind: string(a.Kind), OwnerID: actorID(a), OwnerName: a.Name,
		}, s.o.Snapshots.Quota)
		return "is " + string(id), err
	})
	if err != nil {
		s.forgetSecrets(sandbox.ID(id)) // they are kept by its id
		s.forgetPolicy(string(id))
		return Snapshot{}, err
	}
	s.feed.send(a.Workspace.ID, Change{Kind: "snapshot"})
	return s.shownSnapshot(a, taken), nil
}

// keepSnapshotSecrets seals for a snapshot what its sandbox was given, but for the platform key: that is for one sandbox only.
func (s *Service) keepSnapshotSecrets(ctx context.Context, id sandbox.SaveID, values map[string]string) error {
	values = maps.Clone(values)
	delete(values, platformKeyName)
	if len(values) == 0 {
		return nil
	}
	plain, err := json.Marshal(values)
	if err != nil {
		return err
	}
	return s.o.Store.PutSecrets(ctx, sandbox.ID(id), s.o.Seal.Seal(plain, string(id)))
}

func (s *Service) snapshotSecrets(ctx context.Context, id sandbox.SaveID) (values map[string]string, err error) {
	sealed, err := s.o.Store.Secrets(ctx, sandbox.ID(id))
	if fault.Is(err, fault.NotFound) {
		return nil, nil
	}
	if err == nil && s.o.Seal == nil {
		err = errors.New("secrets are sealed and there is no key")
	}
	if err != nil {
		return nil, err
	}
	plain, err := s.o.Seal.Open(sealed, string(id))
	if err != nil {
		return nil, fault.Wrap(err, fault.Conflict, "The snapshot's secrets cannot be read: sealing.key is not the one that they were sealed with.")
	}
	err = json.Unmarshal(plain, &values)
	return values, err
}

// Snapshots lists those of the actor's workspace, newest first. Needs read or manage.
func (s *Service) Snapshots(ctx context.Context, a auth.Actor) ([]Snapshot, error) {
	if err := s.may(ctx, a, approval.Action{Name: "snapshot.list"}, auth.SandboxesRead, auth.SandboxesManage); err != nil {
		return nil, err
	}
	list, err := s.o.Sandboxes.Snapshots(ctx, a.Workspace.ID)
	if err != nil {
		return nil, err
	}
	out := make([]Snapshot, len(list))
	for i, n := range list {
		out[i] = s.shownSnapshot(a, n)
	}
	return out, nil
}

// locateSnapshot gives one of the actor's workspace. Foreign and unknown ones are answered alike.
func (s *Service) locateSnapshot(ctx context.Context, a auth.Actor, id string) (sandbox.Snapshot, error) {
	n, err := s.o.Sandboxes.Snapshot(ctx, sandbox.SaveID(id))
	if fault.Is(err, fault.NotFound) || err == nil && n.WorkspaceID != a.Workspace.ID {
		return sandbox.Snapshot{}, fault.New(fault.NotFound, "Snapshot not found")
	}
	return n, err
}

// DeleteSnapshot takes one's own (needs run) or anyone's (needs manage) off the disk. What was started from it lives on.
func (s *Service) DeleteSnapshot(ctx context.Context, a auth.Actor, id string) error {
	what := approval.Action{Kind: approval.Other, Name: "snapshot.delete"}
	if err := s.may(ctx, a, what, auth.SandboxesManage, auth.SandboxesRun); err != nil {
		return err
	}
	n, err := s.locateSnapshot(ctx, a, id)
	if err != nil {
		return err
	}
	what.Target = s.snapshotName(ctx, n)
	if !a.May(auth.SandboxesManage) && !s.shownSnapshot(a, n).Mine {
		err := fault.New(fault.Forbidden, "Only %s or somebody with sandboxes:manage can delete this snapshot.", n.OwnerName)
		return errors.Join(s.o.Audit.Note(ctx, event(a, what, "refused", "not the owner")), err)
	}
	err = s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		return string(n.ID), s.o.Sandboxes.DropSnapshot(ctx, n.ID)
	})
	if err == nil {
		s.forgetPolicy(string(n.ID))
		s.feed.send(a.Workspace.ID, Change{Kind: "snapshot"})
	}
	return err
}

// snapshotName is the name as the record may show it.
func (s *Service) snapshotName(ctx context.Context, n sandbox.Snapshot) string {
	values, err := s.snapshotSecrets(ctx, n.ID)
	if err != nil {
		return unreadable.hide(n.Name)
	}
	return maskOf(values).hide(n.Name)
}

// SweepSnapshots deletes those that nobody used for long, until ctx ends.
func (s *Service) SweepSnapshots(ctx context.Context) {
	if s.o.Snapshots.Unused <= 0 {
		return
	}
	tick := time.NewTicker(snapshotLook)
	defer tick.Stop()
	for ctx.Err() == nil {
		s.expireSnapshots(ctx)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

func (s *Service) expireSnapshots(ctx context.Context) {
	list, err := s.o.Sandboxes.Snapshots(ctx, "")
	if err != nil {
		if ctx.Err() == nil {
			s.o.Log.Error("look for unused snapshots", "cause", err.Error())
		}
		return
	}
	for _, n := range list {
		if s.o.Now().Sub(n.UsedAt) < s.o.Snapshots.Unused || ctx.Err() != nil {
			continue
		}
		e := audit.Event{
			WorkspaceID: n.WorkspaceID, ActorKind: auth.System, Actor: "system", Action: "snapshot.delete", Target: s.snapshotName(ctx, n),
			Outcome: audit.OK, Detail: string(n.ID) + ", not used since " + n.UsedAt.UTC().Format(time.DateOnly),
		}
		if err = s.o.Sandboxes.DropSnapshot(ctx, n.ID); err == nil {
			s.forgetPolicy(string(n.ID))
			err = s.o.Audit.Note(ctx, e)
		}
		if err != nil && !fault.Is(err, fault.NotFound) {
			s.o.Log.Error("delete an unused snapshot", "snapshot", string(n.ID), "cause", err.Error())
		}
		s.feed.send(n.WorkspaceID, Change{Kind: "snapshot"})
	}
}

// fromSnapshot fills in what a snapshot gives to a sandbox that starts from it: what was not asked for otherwise. The image
// and the size of the disk are the snapshot's; have is what holds whatever bounds the workspace by now.
func (s *Service) fromSnapshot(ctx context.Context, a auth.Actor, o *CreateOptions) (have sandbox.Resources, err error) {
	n, err := s.locateSnapshot(ctx, a, o.SnapshotID)
	if fault.Is(err, fault.NotFound) {
		return have, fault.Field("snapshot_id", "there is no snapshot of this id")
	}
	if err != nil {
		return have, err
	}
	bad := map[string]string{}
	if o.Image != "" && o.Image != n.Image {
		bad["image"] = "must be that of the snapshot, which is " + n.Image
	}
	if o.Resources.DiskMB != 0 && o.Resources.DiskMB != n.Resources.DiskMB {
		bad["resources.disk_mb"] = "is that of the snapshot and cannot be changed"
	}
	values, err := s.snapshotSecrets(ctx, n.ID)
	if err != nil {
		return have, err
	}
	if o.Approval, err = s.tightened(ctx, string(n.ID), o.Approval); err != nil {
		return have, err
	}
	o.Image = n.Image
	fill(&o.Resources, n.Resources)
	if o.Cwd == "" {
		o.Cwd = n.Cwd
	}
	if o.User == "" {
		o.User = n.User
	}
	if o.Network.Mode == "" && len(o.Network.Allow) == 0 {
		o.Network.Mode, o.Network.Allow = n.Network.Mode, slices.Clone(n.Network.Allow)
	}
	// A name is either public or a secret, and what is asked for now has the say.
	env, secrets := maps.Clone(n.Env), map[string]string{}
	if env == nil {
		env = map[string]string{}
	}
	if _, keyed := env[platformURLName]; keyed && env[platformURLName] == s.o.PlatformURL {
		delete(env, platformURLName)
	}
	maps.Copy(secrets, values)
	maps.DeleteFunc(env, func(k, _ string) bool { _, other := o.Secrets[k]; return other })
	maps.DeleteFunc(secrets, func(k, _ string) bool { _, other := o.Env[k]; return other })
	maps.Copy(env, o.Env)
	maps.Copy(secrets, o.Secrets)
	o.Env, o.Secrets = env, secrets
	return sandbox.Resources{DiskMB: n.Resources.DiskMB}, fieldsFault(bad)
}
