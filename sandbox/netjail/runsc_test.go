package netjail

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/testenv"
	"sandgate/sandbox"
)

// guest is a real sandbox in an attached namespace, with the flags of sandbox/runsc but the network.
type guest struct {
	t     testing.TB
	runsc string
	flags []string
	id    string
}

func boot(t testing.TB, namespace string, id sandbox.ID) guest {
	t.Helper()
	root, bundle := t.TempDir(), t.TempDir()
	g := guest{t: t, runsc: testenv.Runsc(t), id: string(id), flags: []string{
		"--root=" + root, "--platform=systrap", "--network=sandbox", "--directfs=false", "--overlay2=root:memory,size=64m",
		"--host-uds=none", "--ignore-cgroups",
	}}
	mapping := []map[string]int{{"containerID": 0, "hostID": 200000, "size": 65536}}
	spec := map[string]any{
		"ociVersion": "1.1.0",
		"root":       map[string]any{"path": testenv.Image(t), "readonly": false},
		"hostname":   "guest",
		"process": map[string]any{
			"args": []string{"sleep", "1000"}, "cwd": "/", "user": map[string]int{"uid": 0, "gid": 0},
			"env":             []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			"noNewPrivileges": true,
		},
		"mounts": []map[string]any{{"destination": "/proc", "type": "proc", "source": "proc"}},
		"linux": map[string]any{
			"namespaces": []map[string]any{
				{"type": "user"},
				{"type": "pid"},
				{"type": "mount"},
				{"type": "ipc"},
				{"type": "uts"},
				{"type": "network", "path": namespace},
			},
			"uidMappings": mapping, "gidMappings": mapping,
		},
	}
	b, err := json.Marshal(spec)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(bundle, "config.json"), b, 0o600))
	// Cleaned up without the test's context, which has ended then.
	t.Cleanup(func() {
		out, err := exec.Command(g.runsc, append(g.flags, "delete", "--force", g.id)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		unmountBelow(t, root)
	})
	g.call("create", "--bundle="+bundle, g.id)
	g.call("start", g.id)
	return g
}

// unmountBelow takes off what runsc pins in its directory.
func unmountBelow(t testing.TB, dir string) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], dir+"/") {
			require.NoError(t, removeNamespace(f[1]))
		}
	}
}

// call runs runsc with its output in a file: the sandbox keeps what it is given.
func (g guest) call(args ...string) {
	g.t.Helper()
	f, err := os.Create(filepath.Join(g.t.TempDir(), "out"))
	require.NoError(g.t, err)
	defer func() { _ = f.Close() }()
	ctx, cancel := context.WithTimeout(g.t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, g.runsc, append(g.flags, args...)...)
	cmd.Stdout, cmd.Stderr = f, f
	err = cmd.Run()
	said, _ := os.ReadFile(f.Name())
	require.NoError(g.t, err, "%s: %s", args, said)
}

// sh runs a line of shell inside and gives what it prints.
func (g guest) sh(line string) string {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), 30*time.Second)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, g.runsc, append(g.flags, "exec", g.id, "bash", "-c", line)...)
	cmd.Stdout, cmd.Stderr = &out, &out
	_ = cmd.Run() // the line says how it went
	return strings.TrimSpace(out.String())
}

// What the documented form of the namespace is good for: the real thing starts in it, and is held as plain processes are.
func TestRealSandbox(t *testing.T) {
	j := open(t, Options{Inst: "thn2", PlatformPort: 8080})
	serveUs(t, j)
	id := sandbox.NewID()
	start := time.Now()
	a, err := j.Attach(t.Context(), id, public, free)
	require.NoError(t, err)
	t.Logf("attach took %v", time.Since(start))
	g := boot(t, a.Namespace, id)

	tcp := func(to string) string {
		return g.sh("exec 3<>/dev/tcp/" + to + " && head -n1 <&3")
	}
	require.Contains(t, tcp(publicHost.String()+"/80"), uplinkHost.Addr().String())
	require.Contains(t, tcp(lanPeer.String()+"/80"), "refused")
	require.Contains(t, tcp(hostExtra.String()+"/80"), "refused")
	require.Contains(t, tcp(j.PlatformAddr().String()+"/8080"), "platform")
	require.Contains(t, tcp(j.PlatformAddr().String()+"/80"), "refused")
	require.Contains(t, tcp(j.GatewayAddr().String()+"/53"), "names")
	const udp = `import socket,sys
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.settimeout(3); s.connect((sys.argv[1],int(sys.argv[2]))); s.send(b"x")
try: print("got", s.recv(100))
except Exception as e: print(type(e).__name__)`
	ask := func(to string, port string) string {
		return g.sh("python3 -c '" + udp + "' " + to + " " + port)
	}
	require.Contains(t, ask(publicHost.String(), "53"), "got")
	require.Contains(t, ask(lanPeer.String(), "53"), "ConnectionRefusedError")
	require.Contains(t, ask(j.GatewayAddr().String(), "53"), "names")
	require.NotContains(t, g.sh("cat /proc/net/if_inet6 2>/dev/null; python3 -c 'import socket; socket.create_connection((\"::1\",1))'"), "fe80")
}

// serveUs stands for our own listeners.
func serveUs(t testing.TB, j *Jail) {
	t.Helper()
	lc := net.ListenConfig{Control: ListenControl}
	for at, says := range map[netip.AddrPort]string{
		netip.AddrPortFrom(j.PlatformAddr(), 8080): "platform",
		netip.AddrPortFrom(j.GatewayAddr(), 53):    "names",
	} {
		l, err := lc.Listen(t.Context(), "tcp4", at.String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte(says + "\n"))
				_ = c.Close()
			}
		}()
	}
	p, err := lc.ListenPacket(t.Context(), "udp4", netip.AddrPortFrom(j.GatewayAddr(), 53).String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	go func() {
		buf := make([]byte, 1500)
		for {
			_, from, err := p.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = p.WriteTo([]byte("names"), from)
		}
	}()
}
