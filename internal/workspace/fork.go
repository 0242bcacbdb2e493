package workspace

import (
	"context"
	"errors"
	"maps"
	"strings"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/sandbox"
)

// ForkSandbox makes a sandbox of the actor's own that goes on where another of the workspace is: with its files, its
// memory, and all that runs in it. The other one goes on as well, and notices nothing. Its secrets are the other's, a
// platform key is a new one of the actor's rights. Needs run.
func (s *Service) ForkSandbox(ctx context.Context, a auth.Actor, of string) (Sandbox, error) {
	id := sandbox.NewID()
	what := approval.Action{Kind: approval.Other, Name: "sandbox.fork", SandboxID: of}
	if err := s.may(ctx, a, what, auth.SandboxesRun); err != nil {
		return Sandbox{}, err
	}
	parent, err := s.locate(ctx, a, of)
	if err != nil {
		return Sandbox{}, err
	}
	_, bounds, err := s.bounds(ctx, a.Workspace.ID)
	if err != nil {
		return Sandbox{}, err
	}
	bad := map[string]string{} // limits may be lower by now than when that one was made
	bounds.check(parent.Resources, sandbox.Resources{}, bad)
	if err := fieldsFault(bad); err != nil {
		return Sandbox{}, err
	}
	set, err := s.secrets(ctx, parent.ID)
	if err != nil {
		return Sandbox{}, err
	}
	o := CreateOptions{Env: parent.Env, Secrets: maps.Clone(set.values)}
	_, keyed := o.Secrets[platformKeyName]
	delete(o.Secrets, platformKeyName)
	what.Target = parent.Label
	var made sandbox.Record
	err = s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		words := "is " + string(id)
		if keyed {
			prefix, err := s.addPlatformKey(ctx, a, id, &o)
			if err != nil {
				return words, err
			}
			words += "; key " + prefix
		}
		if err := errors.Join(s.keepSecrets(ctx, id, o.Secrets), s.inheritPolicy(ctx, a.Workspace.ID, string(parent.ID), string(id))); err != nil {
			return words, err
		}
		var err error
		made, err = s.o.Sandboxes.Fork(ctx, parent.ID, sandbox.Record{
			ID: id, WorkspaceID: a.Workspace.ID, Label: forkLabel(parent.Label, id),
			OwnerKind: string(a.Kind), OwnerID: actorID(a), OwnerName: a.Name,
			Cwd: parent.Cwd, User: parent.User, Env: o.Env, Metadata: parent.Metadata, Persistent: parent.Persistent, Network: parent.Network, Life: parent.Life,
		}, s.quota(bounds))
		return words, err
	})
	if err != nil {
		s.forgetSecrets(id)
		s.forgetPolicy(string(id))
		s.endPlatformKey(id)
		return Sandbox{}, err
	}
	return s.shownWhole(ctx, a, made)
}

// forkLabel tells a fork from what it was made of, in the label and by that in its host name.
func forkLabel(of string, id sandbox.ID) string {
	r := []rune(of)
	if len(r) > maxLabel-20 {
		r = r[:maxLabel-20]
	}
	return strings.TrimSpace(string(r) + " fork " + string(id[len(id)-4:]))
}
