package workspace_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

func TestANetworkIsCheckedKeptAndInForce(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	made, err := w.CreateSandbox(ctx, w.ann, workspace.CreateOptions{Cwd: w.tmp, User: w.user})
	require.NoError(t, err)
	require.Equal(t, sandbox.NetworkPolicy{Mode: sandbox.NetworkPublic, Allow: []string{}}, made.Network, "the default")

	made, err = w.CreateSandbox(ctx, w.ann, workspace.CreateOptions{Cwd: w.tmp, User: w.user, Network: sandbox.NetworkPolicy{
		Mode: sandbox.NetworkAllowList, Allow: []string{"Example.ORG:443", "8.8.8.0/24"},
	}})
	require.NoError(t, err)
	want := sandbox.NetworkPolicy{Mode: sandbox.NetworkAllowList, Allow: []string{"example.org:443", "8.8.8.0/24"}}
	require.Equal(t, want, made.Network)
	got, ok := w.network.Policy(made.ID)
	require.True(t, ok)
	require.Equal(t, want, got)
	created := w.events(t, audit.Filter{Action: "sandbox.create"})[0]
	require.Contains(t, created.Detail, "allow-list: example.org:443 8.8.8.0/24")

	for field, p := range map[string]sandbox.NetworkPolicy{
		"network.mode":  {Mode: "open"},
		"network.allow": {Mode: sandbox.NetworkAllowList, Allow: []string{"10.0.0.0/8"}},
	} {
		_, err = w.CreateSandbox(ctx, w.ann, workspace.CreateOptions{Cwd: w.tmp, User: w.user, Network: p})
		wantKind(t, err, fault.Invalid)
		require.Contains(t, err.Error(), field)
		_, err = w.UpdateSandbox(ctx, w.ann, string(made.ID), workspace.SandboxPatch{Network: &p})
		wantKind(t, err, fault.Invalid)
	}

	_, err = w.UpdateSandbox(ctx, w.ann, string(made.ID), workspace.SandboxPatch{Network: &sandbox.NetworkPolicy{Mode: sandbox.NetworkNone}})
	require.NoError(t, err)
	got, _ = w.network.Policy(made.ID)
	require.Equal(t, sandbox.NetworkNone, got.Mode)
	shown, err := w.Sandbox(ctx, w.ann, string(made.ID))
	require.NoError(t, err)
	require.Equal(t, sandbox.NetworkNone, shown.Network.Mode)
	require.Equal(t, "network none", w.events(t, audit.Filter{Action: "sandbox.update"})[0].Detail)
}

// Who may only run takes from the network of their own sandboxes, and never adds.
func TestOnlyManageWidensANetwork(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	runner := w.with(auth.Permissions{auth.SandboxesRun})
	public := sandbox.NetworkPolicy{Mode: sandbox.NetworkPublic}
	none := sandbox.NetworkPolicy{Mode: sandbox.NetworkNone}
	list := func(entries ...string) sandbox.NetworkPolicy {
		return sandbox.NetworkPolicy{Mode: sandbox.NetworkAllowList, Allow: entries}
	}
	for _, c := range []struct {
		from, to sandbox.NetworkPolicy
		may      bool
	}{
		{public, none, true},
		{public, list("a.example"), true},
		{public, public, true},
		{none, none, true},
		{none, public, false},
		{none, list("a.example"), false},
		{list("a.example", "b.example"), list("b.example"), true},
		{list("a.example"), none, true},
		{list("a.example"), list("a.example", "c.example"), false},
		{list("a.example:443"), list("a.example"), false},
		{list("a.example"), public, false},
	} {
		made, err := w.CreateSandbox(ctx, w.ann, workspace.CreateOptions{Cwd: w.tmp, User: w.user, Network: c.from})
		require.NoError(t, err)
		to := c.to
		_, err = w.UpdateSandbox(ctx, runner, string(made.ID), workspace.SandboxPatch{Network: &to})
		if c.may {
			require.NoError(t, err, "%v to %v", c.from, c.to)
			continue
		}
		wantKind(t, err, fault.Forbidden)
		require.Equal(t, audit.Refused, w.events(t, audit.Filter{SandboxID: string(made.ID)})[0].Outcome)
		got, _ := w.network.Policy(made.ID)
		require.Equal(t, c.from.Mode, got.Mode)
		to = c.to
		_, err = w.UpdateSandbox(ctx, w.with(auth.Permissions{auth.SandboxesManage}), string(made.ID), workspace.SandboxPatch{Network: &to})
		require.NoError(t, err)
	}
}

func TestWithoutAJailThereIsOnlyNone(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s, err := workspace.New(workspace.Options{
		Store: w.store, Audit: w.log, Gate: w.gate, Now: w.clock.Now, Sandboxes: w.manager, Images: readyImages{},
	})
	require.NoError(t, err)
	made, err := s.CreateSandbox(ctx, w.ann, workspace.CreateOptions{Cwd: w.tmp, User: w.user})
	require.NoError(t, err)
	require.Equal(t, sandbox.NetworkNone, made.Network.Mode)
	_, err = s.CreateSandbox(ctx, w.ann, workspace.CreateOptions{Cwd: w.tmp, User: w.user, Network: sandbox.NetworkPolicy{Mode: sandbox.NetworkPublic}})
	wantKind(t, err, fault.Invalid)
}

func TestDenialsAreFewLinesAndAllCounted(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	made, err := w.CreateSandbox(ctx, w.ann, workspace.CreateOptions{Cwd: w.tmp, User: w.user, Secrets: map[string]string{"TOKEN": "hunter2hunter2"}})
	require.NoError(t, err)
	at := w.clock.Now()
	w.NetworkDenied(made.ID, sandbox.Denial{At: at, Protocol: "dns", Destination: "hunter2hunter2.evil.example", Port: 53, Why: "not on the list", Count: 1})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 500 {
				w.NetworkDenied(made.ID, sandbox.Denial{
					At: at.Add(time.Duration(j) * time.Second), Protocol: "tcp", Destination: fmt.Sprintf("10.0.%d.%d", i, j%100), Port: 443, Why: "private", Count: 2,
				})
			}
		})
	}
	wg.Wait()
	denied := func() []audit.Event {
		return w.events(t, audit.Filter{SandboxID: string(made.ID), Action: "network.denied", Limit: 500})
	}
	require.Len(t, denied(), 14)
	workspace.CloseDenied(w.Service, made.ID)
	lines := denied()
	require.LessOrEqual(t, len(lines), 30)
	var all int64
	for _, e := range lines {
		require.Equal(t, audit.Refused, e.Outcome)
		require.Equal(t, auth.System, e.ActorKind)
		require.NotContains(t, e.Target+e.Detail, "hunter2")
		n, times := int64(1), 0
		if _, err := fmt.Sscanf(e.Detail[len(e.Detail)-min(len(e.Detail), 60):], "private, %d times", &times); err == nil {
			n = int64(times)
		} else if _, err := fmt.Sscanf(e.Detail, "many, %d times", &times); err == nil {
			n = int64(times)
		}
		all += n
	}
	require.EqualValues(t, 8001, all, "nothing is lost in the counting")
	require.Equal(t, "dns [secret TOKEN].evil.example", lines[len(lines)-1].Target)

	shown, err := w.Denials(ctx, w.ann, string(made.ID))
	require.NoError(t, err)
	require.Len(t, shown, 50)
	for _, d := range shown {
		require.NotContains(t, d.Destination, "hunter2")
		require.Equal(t, "tcp "+d.Destination+":443", d.Where())
	}

	// A new window writes again; a sandbox that is gone leaves nothing.
	w.NetworkDenied(made.ID, sandbox.Denial{At: at, Protocol: "tcp", Destination: "10.0.0.1", Port: 443, Why: "private"})
	require.Len(t, denied(), len(lines)+1)
	w.forwardChanges()
	require.NoError(t, w.KillSandbox(ctx, w.ann, string(made.ID)))
	w.NetworkDenied(made.ID, sandbox.Denial{At: at, Protocol: "tcp", Destination: "10.0.0.2", Port: 443, Why: "private"})
	require.Len(t, denied(), len(lines)+1)
	_, err = w.Denials(ctx, w.ann, string(made.ID))
	wantKind(t, err, fault.NotFound)
}

func TestDenialsAreToldAsEvents(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w := newWorld(t)
	id := w.newSandbox(t)
	var got workspace.Event
	err := w.WatchEvents(ctx, w.ann, id, func(e workspace.Event) error {
		switch e.Type {
		case workspace.EventReady:
			w.NetworkDenied(sandbox.ID(id), sandbox.Denial{Protocol: "udp", Destination: "192.168.0.1", Port: 53, Why: "private", Count: 3})
		case "network.denied":
			got = e
			cancel()
		}
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, "udp 192.168.0.1:53", got.Target)
	require.Equal(t, "private, 3 times", got.Detail)
}

type printed []byte

func (p *printed) Stdout(b []byte) error { *p = append(*p, b...); return nil }
func (p *printed) Stderr([]byte) error   { return nil }

// A key inside a sandbox is its maker's, cut, and ends with the sandbox and with the key that it was made by.
func TestAPlatformKeyLivesAndDiesWithItsSandbox(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.forwardChanges()
	caller, _, parent := w.key(t, w.ann, workspace.KeyForm{
		Name: "agent", ForMe: true, ExpiresDays: 7,
		Permissions: auth.Permissions{auth.SandboxesRun, auth.SandboxesManage, auth.KeysManage, auth.ApprovalsDecide},
	})
	open := func(a auth.Actor, o workspace.CreateOptions) (workspace.Sandbox, string) {
		t.Helper()
		o.Cwd, o.User, o.PlatformKey = w.tmp, w.user, true
		made, err := w.CreateSandbox(ctx, a, o)
		require.NoError(t, err)
		require.NotContains(t, made.Env, "NOXUS_API_KEY")
		require.Equal(t, "http://sandgate.internal", made.Env["NOXUS_BACKEND_URL"])
		var out printed
		_, err = w.RunCommand(ctx, a, string(made.ID), agent.CommandSpec{Command: `printf %s "$NOXUS_API_KEY"`}, &out)
		require.NoError(t, err)
		return made, string(out)
	}
	made, secret := open(caller, workspace.CreateOptions{IdempotencyKey: "once"})
	require.Regexp(t, "^sg_", secret)
	again, err := w.CreateSandbox(ctx, caller, workspace.CreateOptions{IdempotencyKey: "once", Cwd: w.tmp, User: w.user, PlatformKey: true})
	require.NoError(t, err)
	require.Equal(t, made.ID, again.ID)

	inside, err := w.KeyActor(ctx, secret, "10.0.0.1", "r")
	require.NoError(t, err)
	require.Equal(t, w.ann.UserID, inside.UserID)
	require.True(t, inside.May(auth.SandboxesRun))
	require.True(t, inside.May(auth.SandboxesManage))
	require.False(t, inside.May(auth.KeysManage))
	require.False(t, inside.May(auth.ApprovalsDecide))
	keys, err := w.Keys(ctx, w.ann)
	require.NoError(t, err)
	at := slices.IndexFunc(keys, func(k auth.Key) bool { return k.Name == "sandbox "+string(made.ID) })
	require.GreaterOrEqual(t, at, 0, "people see it among their keys, and what for")
	require.WithinDuration(t, parent.ExpiresAt, keys[at].ExpiresAt, 0, "not longer than its maker")
	for _, e := range w.events(t, audit.Filter{}) {
		require.NotContains(t, e.Target+e.Detail, secret)
	}
	created := w.events(t, audit.Filter{Action: "key.create", SandboxID: string(made.ID)})
	require.Len(t, created, 1)
	require.Equal(t, "agent", created[0].Actor)

	_, deeper := open(inside, workspace.CreateOptions{})
	_, err = w.KeyActor(ctx, deeper, "", "")
	require.NoError(t, err)

	require.NoError(t, w.KillSandbox(ctx, caller, string(made.ID)))
	for _, s := range []string{secret, deeper} {
		_, err = w.KeyActor(ctx, s, "", "")
		wantKind(t, err, fault.Unauthenticated)
	}
	require.Len(t, w.events(t, audit.Filter{Action: "key.revoke", SandboxID: string(made.ID)}), 1)
	keys, err = w.Keys(ctx, w.ann)
	require.NoError(t, err)
	require.False(t, slices.ContainsFunc(keys, func(k auth.Key) bool { return k.SandboxID == string(made.ID) }), "nobody wants to read of those that are gone")

	_, secret = open(caller, workspace.CreateOptions{})
	require.NoError(t, w.RevokeKey(ctx, w.ann, parent.ID))
	_, err = w.KeyActor(ctx, secret, "", "")
	wantKind(t, err, fault.Unauthenticated)

	// A person's: cut by what the person may at the time of use. A sandbox that ended unnoticed takes its key along.
	made, secret = open(w.ann, workspace.CreateOptions{})
	require.NoError(t, w.SetRun(ctx, w.ann, w.ann.UserID, false))
	inside, err = w.KeyActor(ctx, secret, "", "")
	require.NoError(t, err)
	require.False(t, inside.May(auth.SandboxesRun))
	w.forward.Store(false)
	require.NoError(t, w.KillSandbox(ctx, w.ann, string(made.ID)))
	_, err = w.KeyActor(ctx, secret, "", "")
	wantKind(t, err, fault.Unauthenticated)

	for _, o := range []workspace.CreateOptions{
		{Network: sandbox.NetworkPolicy{Mode: sandbox.NetworkNone}},
		{Env: map[string]string{"NOXUS_API_KEY": "mine"}},
		{Secrets: map[string]string{"NOXUS_BACKEND_URL": "http://mine"}},
	} {
		o.Cwd, o.User, o.PlatformKey = w.tmp, w.user, true
		_, err = w.CreateSandbox(ctx, w.ann, o)
		wantKind(t, err, fault.Invalid)
		require.Contains(t, err.Error(), "platform_key")
	}
}
