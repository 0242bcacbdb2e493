package workspace

import (
	"context"
	"maps"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/sandbox"
)

// What programs inside find their key and the server by: the names that the official client reads.
const (
	platformKeyName = "NOXUS_API_KEY"
	platformURLName = "NOXUS_BACKEND_URL"
)

// platformNever lists what no key inside a sandbox may do, whoever made it: what runs there decides nothing about people,
// keys, or its own requests.
var platformNever = []auth.Permission{auth.KeysManage, auth.MembersManage, auth.ApprovalsDecide}

func (s *Service) checkPlatformKey(o CreateOptions) error {
	if !o.PlatformKey {
		return nil
	}
	switch {
	case s.o.PlatformURL == "" || s.o.Seal == nil:
		return fault.Field("platform_key", "sandboxes of this installation cannot reach it")
	case o.Network.Mode == sandbox.NetworkNone:
		return fault.Field("platform_key", "needs a network: with none the sandbox could not use it")
	}
	for _, name := range []string{platformKeyName, platformURLName} {
		if _, twice := o.Env[name]; twice {
			return fault.Field("platform_key", "sets %s, which env has too", name)
		}
		if _, twice := o.Secrets[name]; twice {
			return fault.Field("platform_key", "sets %s, which secrets have too", name)
		}
	}
	return nil
}

// addPlatformKey makes a key for a sandbox that is about to be made, and puts it into its environment. It may what the
// actor may at the time of use, less platformNever: it belongs to the actor's person, and is revoked with the actor's key.
func (s *Service) addPlatformKey(ctx context.Context, a auth.Actor, id sandbox.ID, o *CreateOptions) (prefix string, err error) {
	k, secret, err := s.newKey(ctx, a.Workspace.ID, a.UserID, KeyForm{
		Name: "sandbox " + string(id), Permissions: a.Permissions.Without(platformNever...), ExpiresDays: -1,
	})
	if err != nil {
		return "", err
	}
	k.SandboxID = string(id)
	if a.Kind == auth.KeyUser {
		parent, err := s.o.Store.KeyByID(ctx, a.KeyID)
		if err != nil {
			return "", err
		}
		k.ParentID, k.ExpiresAt = parent.ID, parent.ExpiresAt
	}
	if err := s.o.Store.InsertKey(ctx, k); err != nil {
		return "", err
	}
	what := approval.Action{Name: "key.create", SandboxID: string(id), Target: k.Name}
	if err := s.o.Audit.Note(ctx, event(a, what, audit.OK, "for the sandbox's life "+k.Prefix+": "+k.Permissions.String())); err != nil {
		return "", err
	}
	secrets, env := maps.Clone(o.Secrets), maps.Clone(o.Env)
	if secrets == nil {
		secrets = map[string]string{}
	}
	if env == nil {
		env = map[string]string{}
	}
	secrets[platformKeyName], env[platformURLName] = secret, s.o.PlatformURL
	o.Secrets, o.Env = secrets, env
	s.peopleChanged(a.Workspace.ID)
	return k.Prefix, nil
}

// endPlatformKey revokes what was made for a sandbox that is gone. It could not be used any more in any case.
func (s *Service) endPlatformKey(id sandbox.ID) {
	ctx, cancel := context.WithTimeout(context.Background(), forgetLimit)
	defer cancel()
	keys, err := s.o.Store.RevokeSandboxKeys(ctx, id, s.o.Now())
	if err != nil {
		s.o.Log.Error("revoke the key of a sandbox", "sandbox", string(id), "cause", err.Error())
		return
	}
	for _, k := range keys {
		err := s.o.Audit.Note(ctx, audit.Event{
			WorkspaceID: k.WorkspaceID, ActorKind: auth.System, Actor: "system", SandboxID: string(id),
			Action: "key.revoke", Target: k.Name, Outcome: audit.OK, Detail: k.Prefix + ", its sandbox is gone",
		})
		if err != nil {
			s.o.Log.Error("record the end of a sandbox's key", "sandbox", string(id), "cause", err.Error())
		}
		s.peopleChanged(k.WorkspaceID)
	}
}
