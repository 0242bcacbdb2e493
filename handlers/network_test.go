package handlers_test

import (
	"context"
	"fmt"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/handlers"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
)

func (f *fake) Denials(_ context.Context, _ auth.Actor, id string) ([]workspace.Denied, error) {
	if id != sbRunning {
		return nil, nil
	}
	out := []workspace.Denied{
		{Protocol: "dns", Destination: "<script>alert(1)</script>\u202e.evil.example", Port: 53, Why: "not on the list", Last: now, Count: 1},
		{Protocol: "tcp", Destination: "169.254.169.254", Port: 80, Why: "metadata", Last: now, Count: 12},
		{Protocol: "udp", Destination: "10.0.0.1", Port: 53, Why: "something new", Last: now, Count: 1},
	}
	for i := range 20 {
		out = append(out, workspace.Denied{Protocol: "tcp", Destination: fmt.Sprintf("10.0.1.%d", i), Port: 443, Why: "private", Last: now, Count: 1})
	}
	return out, nil
}

func (f *fake) changeNetwork(id string, p sandbox.NetworkPolicy) error {
	if len(p.Allow) > 0 && p.Allow[0] == "10.0.0.1" {
		return fault.Field("network.allow", "entry 1, \"10.0.0.1\": no sandbox reaches this network (private)")
	}
	return f.note(fmt.Sprintf("network %s %s %q", id, p.Mode, p.Allow))
}

func TestTheNetworkOnASandboxesPage(t *testing.T) {
	f := furnished()
	f.sandboxes[0].Network = sandbox.NetworkPolicy{Mode: sandbox.NetworkAllowList, Allow: []string{"example.org:443", "8.8.8.0/24"}}
	h := server(t, f)
	at := page + "/" + sbRunning
	body := ask(h, "GET", at, nil).Body.String()
	for _, want := range []string{
		"Only what is on the list", "example.org:443", "8.8.8.0/24", `href="/w/research/sandboxes/` + sbRunning + `/network"`,
		"tcp 169.254.169.254:80", "a cloud&#39;s metadata service", "12 times", "something new", "and 15 other kinds",
		"&lt;script&gt;", `\u{202E}`,
	} {
		require.Contains(t, body, want)
	}
	require.NotContains(t, body, "<script>alert")

	f.sandboxes[0].Network = sandbox.NetworkPolicy{}
	require.Contains(t, ask(h, "GET", at+"/network", nil).Body.String(), `<option value="none" selected>`, "what was made before there were networks has none")
	f.sandboxes[0].Network = sandbox.NetworkPolicy{Mode: sandbox.NetworkAllowList, Allow: []string{"example.org:443", "8.8.8.0/24"}}

	// Who may only look has no form; who runs has one for their own.
	f.rights["looker"] = auth.Permissions{auth.SandboxesRead}
	require.NotContains(t, ask(h, "GET", at, nil, "who", "looker").Body.String(), sbRunning+`/network"`)
	require.Equal(t, 403, ask(h, "POST", at+"/network", url.Values{"mode": {"none"}}, "who", "looker").Code)
	f.rights["owner"] = auth.Permissions{auth.SandboxesRun}
	w := ask(h, "GET", at+"/network", nil, "who", "owner")
	require.Equal(t, 200, w.Code)
	require.Contains(t, w.Body.String(), "To add needs sandboxes:manage")

	w = ask(h, "GET", at+"/network", nil)
	require.Contains(t, w.Body.String(), `<option value="allow-list" selected>`)
	require.Contains(t, w.Body.String(), "example.org:443\n8.8.8.0/24")
	w = ask(h, "POST", at+"/network", url.Values{"mode": {"allow-list"}, "allow": {"a.example:443\r\n*.b.example, 1.2.3.4"}})
	require.Equal(t, 303, w.Code)
	require.Contains(t, f.called(), `network `+sbRunning+` allow-list ["a.example:443" "*.b.example" "1.2.3.4"]`)
	require.Contains(t, ask(h, "GET", w.Header().Get("Location"), nil).Body.String(), "The network is changed")
	w = ask(h, "POST", at+"/network", url.Values{"mode": {"allow-list"}, "allow": {"10.0.0.1"}})
	require.Equal(t, 422, w.Code)
	require.Contains(t, w.Body.String(), "no sandbox reaches this network (private)")
	require.Contains(t, w.Body.String(), `<option value="allow-list" selected>`, "what was chosen stays")
}

func TestTheNetworkOfANewSandbox(t *testing.T) {
	f := furnished()
	h := server(t, f)
	body := ask(h, "GET", page+"/new", nil).Body.String()
	require.Contains(t, body, `<option value="public">Public internet</option>`)
	require.Contains(t, body, `name="platform_key"`)
	w := ask(h, "POST", page+"/new", url.Values{"mode": {"allow-list"}, "allow": {"a.example"}, "platform_key": {"1"}})
	require.Equal(t, 303, w.Code)
	require.Equal(t, sandbox.NetworkPolicy{Mode: sandbox.NetworkAllowList, Allow: []string{"a.example"}}, f.created.Network)
	require.True(t, f.created.PlatformKey)

	h = server(t, f, func(o *handlers.Options) { o.NoNetwork = true })
	body = ask(h, "GET", page+"/new", nil).Body.String()
	require.Contains(t, body, `<option value="none">None</option>`)
	require.NotContains(t, body, "Public internet")
}
