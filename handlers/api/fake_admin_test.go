package api

import (
	"context"
	"time"

	"sandgate/auth"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
)

func (f *fake) CreateWorkspace(context.Context, auth.Actor, string) (auth.Workspace, error) {
	return auth.Workspace{}, fault.New(fault.Forbidden, "Only an administrator of this installation can create workspaces.")
}

func (f *fake) CreateKey(_ context.Context, _ auth.Actor, k workspace.KeyForm) (auth.Key, string, error) {
	return auth.Key{ID: "ke1", Name: k.Name, Permissions: k.Permissions, Prefix: "sg_abcdefgh", CreatedAt: time.Unix(100, 0)}, fullKey, f.saw("CreateKey", "")
}

func (f *fake) Keys(context.Context, auth.Actor) ([]auth.Key, error) {
	return []auth.Key{{ID: "ke1", Name: "one", Permissions: auth.Permissions{auth.SandboxesRun}, Prefix: "sg_abcdefgh", CreatedAt: time.Unix(100, 0)}}, f.saw("Keys", "")
}

func (f *fake) RevokeKey(context.Context, auth.Actor, string) error { return f.saw("RevokeKey", "") }

func (f *fake) Members(context.Context, auth.Actor) ([]auth.Member, error) {
	return []auth.Member{{UserID: "us1", Email: "ann@example.org", Role: auth.Admin, Granted: auth.Permissions{auth.SandboxesRun}}}, f.saw("Members", "")
}
