package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/testenv"
)

// drawing is a program whose state is in its memory: a word that it drew when it began, a number, and what it draws anew.
const drawing = `python3 -c "
import os, secrets, time
word, n = secrets.token_hex(8), 0
while True:
    n += 1
    open('/work/.drawn', 'w').write('%s %d %s' % (word, n, secrets.token_hex(8)))
    os.rename('/work/.drawn', '/work/drawn')
    time.sleep(0.05)
"`

type snapshotJSON struct {
	ID        string
	Name      string
	SandboxID string `json:"sandbox_id"`
	Bytes     int64
	ExpiresAt string `json:"expires_at"`
}

// snapshot takes one of a sandbox.
func (r rest) snapshot(id string) string {
	r.t.Helper()
	var snap snapshotJSON
	r.ok("POST", "/v1/sandboxes/"+id+"/snapshots", map[string]any{"name": "kept"}, &snap)
	return snap.ID
}

// drawn waits for the counting program's next word, number and draw.
func (r rest) drawn(id string) (word string, n int, draw string) {
	r.t.Helper()
	require.Zero(r.t, r.exec(id, "rm -f /work/drawn").ExitCode) // what was drawn before a save may still lie there
	require.Eventually(r.t, func() bool {
		f := strings.Fields(r.exec(id, "cat /work/drawn").Stdout)
		if len(f) != 3 {
			return false
		}
		var err error
		word, draw = f[0], f[2]
		n, err = strconv.Atoi(f[1])
		return err == nil
	}, 20*time.Second, 20*time.Millisecond)
	return word, n, draw
}

// notReached tries what no sandbox may reach, from inside: both ends of every kind of private network, the metadata service,
// the host in its several places and what lies near it, by TCP and UDP, and IPv6. It prints what was not refused as it should.
const notReached = `
import errno, socket, time
to = """10.0.0.1 10.255.255.254 100.64.0.1 100.127.255.254 169.254.169.254 172.16.0.1 172.31.255.254 192.168.0.1 192.168.255.254
192.0.0.1 192.0.2.1 198.18.0.1 198.51.100.1 203.0.113.1 240.0.0.1 10.213.0.1 10.214.0.1 9.8.7.2""".split()
def refused(kind, at):
    s = socket.socket(socket.AF_INET, kind)
    s.settimeout(0.2)
    end = time.time() + 15
    try:
        if kind == socket.SOCK_STREAM:
            s.settimeout(15)
        s.connect((at, 80))
        while kind == socket.SOCK_DGRAM and time.time() < end:
            s.send(b"x")  # the kernel answers some of many
            try:
                return s.recv(10)
            except TimeoutError:
                pass
        return "reached" if kind == socket.SOCK_STREAM else "no answer"
    except OSError as e:
        return None if e.errno == errno.ECONNREFUSED else e
for at in to:
    for kind in socket.SOCK_STREAM, socket.SOCK_DGRAM:
        if why := refused(kind, at):
            print(at, kind.name, why)
try:
    socket.create_connection(("2606:4700:4700::1111", 80), 3)
    print("IPv6")
except OSError:
    pass
`

// jailed requires that a sandbox reaches the world, and nothing private.
func (r rest) jailed(when, id string) {
	r.t.Helper()
	out := r.exec(id, "curl -sS --max-time 10 http://1.2.3.4/")
	require.Equal(r.t, "the world", out.Stdout, "%s: %s", when, out.Stderr)
	out = r.exec(id, "python3 - <<'END'\n"+notReached+"END")
	require.Zero(r.t, out.ExitCode, "%s: %s", when, out.Stderr)
	require.Empty(r.t, out.Stdout, "%s: what must be refused at once", when)
}

// theWorld answers at 1.2.3.4, beyond the tests' host.
func theWorld(t *testing.T) {
	t.Helper()
	w := newWorld(t)
	w.ip("-n", w.name, "addr", "add", "1.2.3.4/32", "dev", "lo")
	l, err := testenv.ListenWithin("/run/netns/"+w.name, "1.2.3.4:80")
	require.NoError(t, err)
	srv := &httptest.Server{Listener: l, Config: &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "the world")
	})}}
	srv.Start()
	t.Cleanup(srv.Close)
}

// Any number starts from a snapshot, each going on where it was: the same processes with the same memory, told apart by
// everything that should differ, and every one of them in its jail. The original notices nothing.
func TestSnapshotsGoOnByThemselves(t *testing.T) {
	theWorld(t)
	host := newInstallation(t)
	s := host.serve()
	host.person("ann@example.org", "alpha")
	host.person("bob@example.org", "beta")
	api := s.rest(host.key("alpha", "sandboxes:run"))
	stranger := s.rest(host.key("beta", "sandboxes:run"))
	var made sandboxJSON
	api.ok("POST", "/v1/sandboxes", map[string]any{
		"label": "origin", "persistent": true, "secrets": map[string]string{"TOKEN": "a-secret"}, "env": map[string]string{"PLACE": "here"},
	}, &made)
	origin := made.ID
	api.ok("POST", "/v1/sandboxes/"+origin+"/commands", map[string]any{"command": drawing, "background": true}, nil)
	word, before, _ := api.drawn(origin)
	pty := api.openPTY(origin)
	term := api.view(origin, pty, "")
	term.typeText("MARK=kept; " + ticking)
	term.sees("tick 2\r\n")
	api.jailed("before", origin)

	var snap snapshotJSON
	api.ok("POST", "/v1/sandboxes/"+origin+"/snapshots", map[string]any{"name": "with a mark"}, &snap)
	require.Equal(t, "with a mark", snap.Name)
	require.Equal(t, origin, snap.SandboxID)
	require.Positive(t, snap.Bytes)
	require.NotEmpty(t, snap.ExpiresAt)
	require.Equal(t, "running", api.status(origin))
	n := term.ticks()
	term.sees(fmt.Sprintf("tick %d\r\n", n+3))
	term.ticks()
	api.jailed("the original, after its snapshot", origin)
	holds, err := filepath.Glob(filepath.Join(testenv.CacheDir(), "images", "*", "*", "holds", "sg-"+host.inst()+"-"+snap.ID))
	require.NoError(t, err)
	require.NotEmpty(t, holds, "the image that it stands on stays")

	// Nobody else's.
	var list []snapshotJSON
	stranger.ok("GET", "/v1/snapshots", nil, &list)
	require.Empty(t, list)
	code, _ := stranger.do("DELETE", "/v1/snapshots/"+snap.ID, nil)
	require.Equal(t, http.StatusNotFound, code)
	code, _ = stranger.do("POST", "/v1/sandboxes", map[string]any{"snapshot_id": snap.ID})
	require.Equal(t, http.StatusUnprocessableEntity, code)
	code, _ = api.do("POST", "/v1/sandboxes", map[string]any{"snapshot_id": snap.ID, "image": "another"})
	require.Equal(t, http.StatusUnprocessableEntity, code)

	all := []string{origin}
	start := func(label string) string {
		var sb struct{ ID, Status, Parent string }
		api.ok("POST", "/v1/sandboxes", map[string]any{"label": label, "snapshot_id": snap.ID, "persistent": true}, &sb)
		require.Equal(t, "running", sb.Status)
		require.Equal(t, snap.ID, sb.Parent)
		all = append(all, sb.ID)
		return sb.ID
	}
	start("first")
	s.stop(syscall.SIGKILL)
	s = host.serve()
	api.url = s.url
	start("second")
	var fork struct{ ID, Parent string }
	api.ok("POST", "/v1/sandboxes/"+origin+"/fork", nil, &fork)
	require.Equal(t, origin, fork.Parent)
	all = append(all, fork.ID)

	draws, names, random := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, id := range all {
		w, count, draw := api.drawn(id)
		require.Equal(t, word, w, "the same process, with the same memory")
		require.Greater(t, count, before)
		draws[draw] = true
		name := strings.TrimSpace(api.exec(id, "hostname").Stdout)
		names[name] = true
		require.Equal(t, name+"\n", api.exec(id, "awk '$1 == \"127.0.1.1\" { print $2 }' /etc/hosts").Stdout, "it finds itself by its own name")
		random[api.exec(id, "head -c 16 /dev/urandom | base64").Stdout] = true
		require.Equal(t, "a-secret here\n", api.exec(id, "echo $TOKEN $PLACE").Stdout)
		api.jailed("at "+name, id)
		own := api.view(id, pty, "")
		own.until("scrollback", func() bool { return bytes.Contains(own.snapshot, []byte("tick 2\r\n")) })
		own.forget()
		own.interrupt("root@")
		own.typeText("echo in-$MARK\n")
		own.sees("in-kept\r\n")
	}
	require.Len(t, draws, len(all), "different random numbers")
	require.Len(t, names, len(all), "host names of their own")
	require.Len(t, random, len(all))

	// And through a suspend.
	api.ok("POST", "/v1/sandboxes/"+all[1]+"/suspend", nil, nil)
	w, _, _ := api.drawn(all[1])
	require.Equal(t, word, w)
	api.jailed("after a resume", all[1])

	// The snapshot outlives the sandbox; what was started from it outlives the snapshot.
	api.ok("DELETE", "/v1/sandboxes/"+origin, nil, nil)
	last := start("last")
	api.jailed("the last", last)
	api.ok("DELETE", "/v1/snapshots/"+snap.ID, nil, nil)
	code, _ = api.do("DELETE", "/v1/snapshots/"+snap.ID, nil)
	require.Equal(t, http.StatusNotFound, code)
	w, _, _ = api.drawn(last)
	require.Equal(t, word, w)
	for _, id := range all {
		api.ok("DELETE", "/v1/sandboxes/"+id, nil, nil)
	}
	host.noSaves()
	host.hostFree()
}

// One that waited in a pool got its name from inside, which gVisor keeps in copies: they get their own all the same, and
// nobody in them may change it.
func TestCopiesOfPooledSandboxesHaveTheirOwnNames(t *testing.T) {
	host := newInstallation(t)
	s := host.serve("--pool", "1")
	host.person("ann@example.org", "alpha")
	api := s.rest(host.key("alpha", "sandboxes:run"))
	var waits []string
	require.Eventually(t, func() bool {
		found, err := filepath.Glob(filepath.Join(host.data, "sandboxes", "sg-*", "state.json"))
		require.NoError(t, err)
		waits = found
		return len(found) == 1 && strings.Contains(string(readAll(t, found[0])), `"started":true`)
	}, time.Minute, 50*time.Millisecond)
	var origin string
	require.Eventually(t, func() bool { // it is given away a moment after it has started
		origin = api.createPersistent("origin")
		if strings.Contains(waits[0], origin) {
			return true
		}
		api.ok("DELETE", "/v1/sandboxes/"+origin, nil, nil)
		return false
	}, time.Minute, 50*time.Millisecond)
	name := func(id string) string { return strings.TrimSpace(api.exec(id, "hostname").Stdout) }
	require.Equal(t, "origin", name(origin))
	snap := api.snapshot(origin)
	var fork, started, again struct{ ID string }
	api.ok("POST", "/v1/sandboxes/"+origin+"/fork", nil, &fork)
	api.ok("POST", "/v1/sandboxes", map[string]any{"label": "started", "snapshot_id": snap}, &started)
	api.ok("POST", "/v1/sandboxes/"+fork.ID+"/fork", nil, &again)
	names := map[string]bool{}
	for _, id := range []string{origin, fork.ID, started.ID, again.ID} {
		names[name(id)] = true
		require.Equal(t, name(id), strings.TrimSpace(api.exec(id, "awk '$1 == \"127.0.1.1\" { print $2 }' /etc/hosts").Stdout))
		require.NotZero(t, api.exec(id, "hostname mine").ExitCode, "nobody inside names it")
	}
	require.Len(t, names, 4, names)
	require.Equal(t, "started", name(started.ID))
	require.Contains(t, name(fork.ID), "origin-fork")
	api.ok("POST", "/v1/sandboxes/"+fork.ID+"/suspend", nil, nil)
	require.Contains(t, name(fork.ID), "origin-fork")
	api.ok("DELETE", "/v1/snapshots/"+snap, nil, nil)
}

func readAll(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b
}
