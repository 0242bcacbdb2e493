package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sdkScript is the recipe of the SDK's own page for a script inside a sandbox, as it stands there.
const sdkScript = `
import os
from noxus_sdk.client import Client
c = Client.from_env()
print([kb.name for kb in c.knowledge_bases.list()])
`

// A script inside a sandbox calls the platform by its public name, and nothing else of the host.
func TestTheSDKInsideASandbox(t *testing.T) {
	for _, c := range []struct {
		name   string
		flags  []string
		inside string // "" for the name that an address has inside, at the listener's port
	}{
		{"an address as public URL", nil, ""},
		{"a name as public URL", []string{"--public-url", "https://gate.example.org"}, "http://gate.example.org"},
	} {
		t.Run(c.name, func(t *testing.T) {
			host := newInstallation(t)
			s := host.serve(c.flags...)
			host.person("ann@example.org", "alpha")
			api := s.rest(host.key("alpha", "sandboxes:run"))
			port := s.url[strings.LastIndex(s.url, ":")+1:]
			inside := c.inside
			if inside == "" {
				inside = "http://sandgate.internal:" + port
			}

			var sb sandboxJSON
			api.ok("POST", "/v1/sandboxes", map[string]any{"label": "sdk-run", "platform_key": true}, &sb)
			write := func(id, path, content string) {
				api.ok("POST", "/v1/sandboxes/"+id+"/files", map[string]any{"path": path, "content": content, "encoding": "utf-8"}, nil)
			}
			write(sb.ID, "/work/run.py", sdkScript)
			out := api.exec(sb.ID, "echo $NOXUS_BACKEND_URL; python /work/run.py")
			require.Equal(t, inside+"\n[]\n", out.Stdout, out.Stderr)
			require.Zero(t, out.ExitCode)

			// As the page has it: with a key that somebody gives to the command.
			other := api.create("recipe")
			write(other, "/work/run.py", sdkScript)
			out = api.exec(other, "export NOXUS_API_KEY="+api.key+" NOXUS_BACKEND_URL="+inside+"; python /work/run.py")
			require.Equal(t, "[]\n", out.Stdout, out.Stderr)

			// A sandbox may do with its key what its maker may; the key ends with the sandbox.
			secret := strings.TrimSpace(api.exec(sb.ID, "echo $NOXUS_API_KEY").Stdout)
			out = api.exec(sb.ID, `python -c '
from noxus_sdk.client import Client
with Client.from_env().sandboxes.create(label="deeper") as sb:
    print(sb.commands.run("echo deeper").stdout, end="")'`)
			require.Equal(t, "deeper\n", out.Stdout, out.Stderr)
			code, _ := s.rest(secret).do("GET", "/v1/admin/me", nil)
			require.Equal(t, http.StatusOK, code)
			code, _ = s.rest(secret).do("GET", "/v1/admin/system-keys", nil)
			require.Equal(t, http.StatusForbidden, code)

			// Nothing else of the host: not by address, not the same server by another way, no other port of the name.
			for _, to := range []string{"127.0.0.1", "10.213.0.1", "169.254.169.254", "192.168.0.1"} {
				out = api.exec(sb.ID, "curl -sS --max-time 5 http://"+to+":"+port+"/")
				require.Equal(t, 7, out.ExitCode, "%s: refused at once: %s", to, out.Stderr)
			}
			out = api.exec(sb.ID, "curl -sS --max-time 5 http://"+strings.TrimPrefix(strings.TrimSuffix(inside, ":"+port), "http://")+":22/")
			require.Equal(t, 7, out.ExitCode, out.Stderr)
			for _, name := range []string{"printer", "host.local", "metadata.google.internal"} {
				out = api.exec(sb.ID, "getent hosts "+name)
				require.NotZero(t, out.ExitCode, out.Stdout)
			}

			// It is told to who follows, in the words of the record.
			told := api.follow("GET", "/v1/sandboxes/"+sb.ID+"/events", nil)
			told.next(map[string]any{"type": "ready"})
			for command, target := range map[string]string{
				"curl -sS --max-time 5 http://192.168.7.7:81/": "tcp 192.168.7.7:81", "getent hosts nowhere.local": "dns nowhere.local",
			} {
				api.exec(sb.ID, command)
				told.next(map[string]any{"type": "network.denied", "target": target, "outcome": "refused"})
			}

			// Without a network there is no platform either.
			manage := s.rest(host.key("alpha", "sandboxes:manage"))
			manage.ok("PATCH", "/v1/sandboxes/"+sb.ID, map[string]any{"network": map[string]any{"mode": "none"}}, nil)
			out = api.exec(sb.ID, "curl -sS --max-time 10 "+inside+"/")
			require.NotZero(t, out.ExitCode)
			code, _ = api.do("PATCH", "/v1/sandboxes/"+sb.ID, map[string]any{"network": map[string]any{"mode": "public"}})
			require.Equal(t, http.StatusForbidden, code, "who may only run narrows, and does not widen")
			manage.ok("PATCH", "/v1/sandboxes/"+sb.ID, map[string]any{"network": map[string]any{"mode": "allow-list", "allow": []string{"example.org"}}}, nil)
			out = api.exec(sb.ID, "python /work/run.py")
			require.Equal(t, "[]\n", out.Stdout, out.Stderr)

			api.ok("DELETE", "/v1/sandboxes/"+sb.ID, nil, nil)
			code, _ = s.rest(secret).do("GET", "/v1/admin/me", nil)
			require.Equal(t, http.StatusUnauthorized, code)
		})
	}
}

// Packages install inside, through what the operator opened and nothing else; what is made of them comes out whole.
func TestPackagesInstallInside(t *testing.T) {
	host := newInstallation(t)
	places := packagePlaces(t)
	relayed := relay(t, places)
	var allow []string
	for _, at := range relayed {
		allow = append(allow, at.String())
	}
	s := host.serve("--jail-allow", strings.Join(allow, ","))
	host.person("ann@example.org", "alpha")
	api := s.rest(host.key("alpha", "sandboxes:run"))

	var sb sandboxJSON
	api.ok("POST", "/v1/sandboxes", map[string]any{"label": "packages", "env": map[string]string{"PIP_CERT": "/work/ca.crt", "PIP_NO_CACHE_DIR": "1"}}, &sb)
	// The machine may reach the index through somebody who has certificates of its own.
	if ca, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt"); err == nil {
		code, b := api.do("PUT", "/v1/sandboxes/"+sb.ID+"/files/raw?path=/work/ca.crt", ca)
		require.Equal(t, http.StatusOK, code, "%s", b)
	}
	run := func(command string) executionJSON {
		t.Helper()
		var e executionJSON
		api.ok("POST", "/v1/sandboxes/"+sb.ID+"/commands", map[string]any{"command": command, "timeout": 300}, &e)
		require.Zero(t, e.ExitCode, "%s: %s%s", command, e.Stdout, e.Stderr)
		return e
	}
	run("apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends hello && hello")
	run("pip install -q openpyxl")
	sum := strings.Fields(run(`cd /work && python -c '
import openpyxl
book = openpyxl.Workbook()
for row in range(1, 2001):
    book.active.append([row, row * row, "line %d" % row])
book.save("table.xlsx")' && sha256sum table.xlsx`).Stdout)[0]
	code, got := api.do("GET", "/v1/sandboxes/"+sb.ID+"/files/raw?path=/work/table.xlsx", nil)
	require.Equal(t, http.StatusOK, code)
	require.Greater(t, len(got), 10_000)
	ours := sha256.Sum256(got)
	require.Equal(t, sum, hex.EncodeToString(ours[:]))

	// The exception is for its port.
	out := api.exec(sb.ID, "curl -sS --max-time 5 http://"+relayed[0].Addr().String()+":8081/")
	require.Equal(t, 7, out.ExitCode, out.Stderr)
}
