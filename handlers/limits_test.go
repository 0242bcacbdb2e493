package handlers_test

import (
	"context"
	"fmt"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
)

func (f *fake) UpdateSandbox(_ context.Context, _ auth.Actor, id string, p workspace.SandboxPatch) (workspace.Sandbox, error) {
	if p.Network != nil {
		return workspace.Sandbox{}, f.changeNetwork(id, *p.Network)
	}
	if p.Resources.MemoryMB == 77 {
		return workspace.Sandbox{}, fault.New(fault.Conflict, "The sandbox uses 412 MiB of memory now.")
	}
	return workspace.Sandbox{}, f.note(fmt.Sprintf("limits %s %+v", id, *p.Resources))
}

func (f *fake) WorkspaceLimits(context.Context, auth.Actor) (workspace.WorkspaceLimits, error) {
	return workspace.WorkspaceLimits{
		Own: workspace.Limits{Sandboxes: 12}, Ceiling: workspace.Limits{Most: sandbox.Resources{MemoryMB: 8192}, Sandboxes: 100}, InUse: 3,
	}, nil
}

func (f *fake) SetWorkspaceLimits(ctx context.Context, a auth.Actor, own workspace.Limits) (workspace.WorkspaceLimits, error) {
	if own.Sandboxes > 100 {
		return workspace.WorkspaceLimits{}, fault.Field("sandboxes", "may be 100 at most on this installation")
	}
	if err := f.note(fmt.Sprintf("workspace limits %+v", own)); err != nil {
		return workspace.WorkspaceLimits{}, err
	}
	return f.WorkspaceLimits(ctx, a)
}

func TestLimitsOfASandboxOnItsPage(t *testing.T) {
	f := furnished()
	f.rights["owner"] = auth.Permissions{auth.SandboxesRead, auth.SandboxesRun}
	h := server(t, f)
	at := page + "/" + sbRunning
	require.Contains(t, ask(h, "GET", at, nil).Body.String(), `href="/w/research/sandboxes/`+sbRunning+`/limits"`)
	require.NotContains(t, ask(h, "GET", at, nil, "who", "owner").Body.String(), sbRunning+`/limits"`)
	require.Equal(t, 403, ask(h, "POST", at+"/limits", url.Values{"cpu": {"1"}}, "who", "owner").Code)

	w := ask(h, "GET", at+"/limits", nil)
	require.Equal(t, 200, w.Code)
	require.Contains(t, w.Body.String(), `name="memory_mb" value="1024"`)
	w = ask(h, "POST", at+"/limits", url.Values{"cpu": {"0,5"}, "memory_mb": {"2048"}, "pids": {"512"}})
	require.Equal(t, 303, w.Code)
	require.Contains(t, f.called(), "limits "+sbRunning+" {CPU:0.5 MemoryMB:2048 DiskMB:0 PIDs:512}")

	w = ask(h, "POST", at+"/limits", url.Values{"cpu": {"1"}, "memory_mb": {"77"}, "pids": {"512"}})
	require.Equal(t, 422, w.Code)
	require.Contains(t, w.Body.String(), "412 MiB")
	require.Contains(t, w.Body.String(), `value="77"`, "what was typed stays")
	w = ask(h, "POST", at+"/limits", url.Values{"cpu": {"NaN"}, "memory_mb": {"much"}, "pids": {"-1"}})
	require.Equal(t, 422, w.Code)
	require.Contains(t, w.Body.String(), "must be a whole number")
}

func TestLimitsOfTheWorkspaceOnAPage(t *testing.T) {
	f := furnished()
	f.rights["looker"] = auth.Permissions{auth.SandboxesRead}
	h := server(t, f)
	require.Contains(t, ask(h, "GET", "/w/research/people", nil).Body.String(), `href="/w/research/limits"`)
	require.NotContains(t, ask(h, "GET", "/w/research/people", nil, "who", "looker").Body.String(), `/limits"`)
	require.Equal(t, 403, ask(h, "GET", "/w/research/limits", nil, "who", "looker").Code)
	body := ask(h, "GET", "/w/research/limits", nil).Body.String()
	require.Contains(t, body, `name="sandboxes" value="12"`)
	require.Contains(t, body, "At most 8192 on this installation.")
	require.Equal(t, 303, ask(h, "POST", "/w/research/limits", url.Values{"cpu": {""}, "memory_mb": {"4096"}, "sandboxes": {"7"}}).Code)
	require.Contains(t, f.called(), "workspace limits {Most:{CPU:0 MemoryMB:4096 DiskMB:0 PIDs:0} Sandboxes:7}")
	w := ask(h, "POST", "/w/research/limits", url.Values{"sandboxes": {"101"}})
	require.Equal(t, 422, w.Code)
	require.Contains(t, w.Body.String(), "may be 100 at most")
}
