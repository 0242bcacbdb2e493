package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/testenv"
	"sandgate/sandbox/sandboxtest"
)

func (r rest) createPersistent(label string) string {
	r.t.Helper()
	var sb sandboxJSON
	r.ok("POST", "/v1/sandboxes", map[string]any{"label": label, "persistent": true}, &sb)
	require.Equal(r.t, "running", sb.Status)
	return sb.ID
}

func (r rest) status(id string) string {
	r.t.Helper()
	var sb sandboxJSON
	r.ok("GET", "/v1/sandboxes/"+id, nil, &sb)
	return sb.Status
}

// inst is the installation's mark.
func (i *installation) inst() string {
	i.t.Helper()
	b, err := os.ReadFile(filepath.Join(i.data, "inst"))
	require.NoError(i.t, err)
	return string(b)
}

// hostFree requires that nothing of a sandbox takes anything of the host but disk.
func (i *installation) hostFree() {
	i.t.Helper()
	left, err := sandboxtest.Census(i.inst(), i.data)
	require.NoError(i.t, err)
	require.Empty(i.t, left)
}

// noSaves requires that nothing is kept of any sandbox.
func (i *installation) noSaves() {
	i.t.Helper()
	for _, pattern := range []string{
		filepath.Join(i.data, "checkpoints", "sg-*"), filepath.Join(testenv.CacheDir(), "images", "*", "*", "holds", "sg-"+i.inst()+"-*"),
	} {
		left, err := filepath.Glob(pattern)
		require.NoError(i.t, err)
		require.Empty(i.t, left)
	}
}

var tick = regexp.MustCompile(`tick ([0-9]+)\r\n`)

// ticks gives the numbers that a terminal printed; they must have no gap and no repeat.
func (v *viewer) ticks() int {
	v.t.Helper()
	last := 0
	for _, m := range tick.FindAllStringSubmatch(v.text(), -1) {
		n, err := strconv.Atoi(m[1])
		require.NoError(v.t, err)
		if last > 0 {
			require.Equal(v.t, last+1, n, "a gap in what the terminal printed")
		}
		last = n
	}
	return last
}

const ticking = "i=0; while sleep 0.1; do i=$((i+1)); echo tick $i; done\n"

// counting is a program whose state is in memory alone; it writes its pid, a word and a count down.
const counting = `import os, secrets, time
word, n = secrets.token_hex(8), 0
while True:
    n += 1
    with open("/work/count.new", "w") as f:
        f.write(f"{os.getpid()} {word} {n}")
    os.replace("/work/count.new", "/work/count")
    time.sleep(0.05)
`

// count reads what the program wrote down: who it is, and how far it is.
func (r rest) count(id string) (who string, n int) {
	r.t.Helper()
	out := r.exec(id, "cat /work/count").Stdout
	f := strings.Fields(out)
	require.Len(r.t, f, 3, "%q", out)
	n, err := strconv.Atoi(f[2])
	require.NoError(r.t, err)
	return f[0] + " " + f[1], n
}

func (r rest) startCounting(id string) {
	r.t.Helper()
	r.ok("POST", "/v1/sandboxes/"+id+"/files", map[string]any{"path": "/work/count.py", "content": counting}, nil)
	r.ok("POST", "/v1/sandboxes/"+id+"/commands", map[string]any{"command": "python3 /work/count.py", "background": true}, nil)
	require.Eventually(r.t, func() bool { return r.exec(id, "cat /work/count").ExitCode == 0 }, 20*time.Second, 50*time.Millisecond)
}

// What runs in a persistent sandbox goes on after a suspend, a crash of the server meanwhile, and a resume.
func TestASandboxSleepsAndWakesWithAllThatRunsInIt(t *testing.T) {
	host := newInstallation(t)
	s := host.serve()
	host.person("ann@example.org", "alpha")
	key := host.key("alpha", "sandboxes:run")
	api := s.rest(key)
	id := api.createPersistent("sleeper")
	one := "/v1/sandboxes/" + id
	require.Zero(t, api.exec(id, "head -c 100000000 /dev/urandom >big; sha256sum big >sum").ExitCode)
	api.startCounting(id)
	pty := api.openPTY(id)
	term := api.view(id, pty, "")
	term.typeText("MARK=kept; " + ticking)
	term.sees("tick 3\r\n")

	// Twice at once is once.
	both := make(chan int, 2)
	for range 2 {
		go func() {
			code, _ := api.do("POST", one+"/suspend", nil)
			both <- code
		}()
	}
	require.Equal(t, []int{200, 200}, []int{<-both, <-both})
	require.Equal(t, "suspended", api.status(id))
	host.hostFree()
	seen := term.ticks()
	// What only reads leaves it asleep, and so does a terminal that somebody has open.
	for _, path := range []string{one, "/v1/sandboxes", one + "/metrics", one + "/metrics/history"} {
		api.ok("GET", path, nil, nil)
	}
	require.Equal(t, "suspended", api.status(id))

	// A key that is pressed wakes it, and the terminal goes on without a gap.
	term.typeText("\x1a")
	term.until("more ticks", func() bool {
		return bytes.Contains(term.out, fmt.Appendf(nil, "tick %d\r\n", seen+3)) || bytes.Contains(term.out, []byte("Stopped"))
	})
	term.ticks()
	require.Equal(t, "running", api.status(id))
	term.typeText("fg\n")
	who, before := api.count(id)

	api.ok("POST", one+"/suspend", nil, nil)
	s.stop(syscall.SIGKILL)
	host.hostFree()
	s = host.serve()
	api = s.rest(key)
	require.Equal(t, "suspended", api.status(id))

	// The next call wakes it.
	again, after := api.count(id)
	require.Equal(t, who, again, "the same process with the same memory")
	require.GreaterOrEqual(t, after, before)
	require.Eventually(t, func() bool { _, n := api.count(id); return n > after }, 60*time.Second, 50*time.Millisecond)
	require.Equal(t, "big: OK\n", api.exec(id, "sha256sum -c sum").Stdout)
	late := api.view(id, pty, "")
	late.until("scrollback", func() bool { return bytes.Contains(late.snapshot, []byte("tick 2\r\n")) })
	late.forget()
	late.interrupt("root@")
	late.typeText("echo still-$MARK\n")
	late.sees("still-kept\r\n")

	// One that is asleep is killed like any other, and its disk is given back.
	api.ok("POST", one+"/suspend", nil, nil)
	api.ok("DELETE", one, nil, nil)
	code, _ := api.do("GET", one, nil)
	require.Equal(t, http.StatusNotFound, code)
	host.hostFree()
	host.noSaves()
}

// Who may read may not suspend, one that is not persistent cannot be, and a time-out does not run while it sleeps.
func TestSuspendRefusalsAndTimeouts(t *testing.T) {
	host := newInstallation(t)
	s := host.serve()
	host.person("ann@example.org", "alpha")
	api := s.rest(host.key("alpha", "sandboxes:run"))
	plain := api.create("plain")
	code, body := api.do("POST", "/v1/sandboxes/"+plain+"/suspend", nil)
	require.Equal(t, http.StatusConflict, code, "%s", body)
	code, _ = s.rest(host.key("alpha", "sandboxes:read")).do("POST", "/v1/sandboxes/"+plain+"/suspend", nil)
	require.Equal(t, http.StatusForbidden, code)

	id := api.createPersistent("timed")
	one := "/v1/sandboxes/" + id
	var cmd struct{ ID string }
	api.ok("POST", one+"/commands", map[string]any{"command": "echo begun; while [ ! -e /work/go ]; do sleep 0.1; done; echo done", "background": true, "timeout": 4}, &cmd)
	require.Eventually(t, func() bool {
		var logs struct{ Stdout string }
		api.ok("GET", one+"/commands/"+cmd.ID+"/logs", nil, &logs)
		return logs.Stdout == "begun\n"
	}, 60*time.Second, 20*time.Millisecond)
	api.ok("POST", one+"/suspend", nil, nil)
	asleep := time.Now()
	require.Eventually(t, func() bool { return time.Since(asleep) > 8*time.Second }, 20*time.Second, 100*time.Millisecond)
	require.Zero(t, api.exec(id, "touch /work/go").ExitCode)
	var logs struct{ Stdout string }
	require.Eventually(t, func() bool {
		api.ok("GET", one+"/commands/"+cmd.ID+"/logs", nil, &logs)
		return logs.Stdout == "begun\ndone\n"
	}, 60*time.Second, 50*time.Millisecond, "what it printed: %v", &logs)
}

// A sandbox that is saved while it runs shows it nowhere: no gap in a terminal or a stream, no call that fails.
func TestNobodyNoticesASave(t *testing.T) {
	host := newInstallation(t)
	s := host.serve("--save-every", "400ms")
	host.person("ann@example.org", "alpha")
	api := s.rest(host.key("alpha", "sandboxes:run"))
	id := api.createPersistent("saved")
	one := "/v1/sandboxes/" + id
	api.startCounting(id)
	pty := api.openPTY(id)
	term := api.view(id, pty, "")
	term.typeText(ticking)
	term.sees("tick 1\r\n")

	req, err := http.NewRequest("POST", s.url+one+"/commands", strings.NewReader(`{"command":"i=0; while [ ! -e /work/stop ]; do echo n$i; i=$((i+1)); sleep 0.02; done; exit 7"}`))
	require.NoError(t, err)
	req.Header.Set("X-API-Key", api.key)
	req.Header.Set("Accept", "text/event-stream")
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	streamed := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(resp.Body)
		streamed <- string(b)
	}()
	manifest := filepath.Join(host.data, "checkpoints", "sg-"+host.inst()+"-"+id, "save", "manifest.json")
	for saves, last := 0, ""; saves < 4; {
		require.Zero(t, api.exec(id, "true").ExitCode)
		if b, err := os.ReadFile(manifest); err == nil && string(b) != last {
			saves, last = saves+1, string(b)
		}
		require.NotContains(t, term.text(), "\x07")
	}
	before := term.ticks()
	term.sees(fmt.Sprintf("tick %d\r\n", before+2))
	term.ticks()
	require.Nil(t, term.closed)
	require.Zero(t, api.exec(id, "touch /work/stop").ExitCode)
	events := <-streamed
	require.Contains(t, events, `"exit_code":7`)
	n := 0
	for _, m := range regexp.MustCompile(`n([0-9]+)\\n`).FindAllStringSubmatch(events, -1) {
		require.Equal(t, strconv.Itoa(n), m[1], "a gap in the stream")
		n++
	}
	require.Greater(t, n, 20)

	// The host loses power: what was saved is resumed, and people are told.
	who, saved := api.count(id)
	s.stop(syscall.SIGKILL)
	host.losePower(id)
	s = host.serve()
	api = s.rest(api.key)
	require.Equal(t, "suspended", api.status(id))
	again, n := api.count(id)
	require.Equal(t, who, again)
	require.Positive(t, n)
	_ = saved
	var sb sandboxJSON
	api.ok("GET", one, nil, &sb)
	require.Equal(t, "host_restarted", sb.Reason)
	api.ok("DELETE", one, nil, nil)
	host.noSaves()
}

// losePower ends a sandbox as a restart of the host does: its processes are gone, and its state is of another boot.
func (i *installation) losePower(id string) {
	i.t.Helper()
	path := filepath.Join(i.data, "sandboxes", "sg-"+i.inst()+"-"+id, "state.json")
	b, err := os.ReadFile(path)
	require.NoError(i.t, err)
	var st map[string]any
	require.NoError(i.t, json.Unmarshal(b, &st))
	for _, name := range []string{"sentry", "gofer"} {
		pid := int(st[name].(map[string]any)["pid"].(float64))
		require.NoError(i.t, syscall.Kill(pid, syscall.SIGKILL))
		require.Eventually(i.t, func() bool {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			return err != nil || bytes.Contains(b, []byte(") Z "))
		}, 60*time.Second, 10*time.Millisecond)
	}
	st["boot"] = "00000000-0000-4000-8000-000000000000"
	b, err = json.Marshal(st)
	require.NoError(i.t, err)
	require.NoError(i.t, os.WriteFile(path, b, 0o600))
}

// Forks go on where the original is, which notices nothing, and are told apart by everything that should differ.
func TestForksGoOnByThemselves(t *testing.T) {
	host := newInstallation(t)
	s := host.serve()
	host.person("ann@example.org", "alpha")
	api := s.rest(host.key("alpha", "sandboxes:run"))
	var made sandboxJSON
	api.ok("POST", "/v1/sandboxes", map[string]any{"label": "origin", "secrets": map[string]string{"TOKEN": "a-secret"}}, &made)
	origin := made.ID
	api.ok("POST", "/v1/sandboxes/"+origin+"/commands", map[string]any{
		"command": `python3 -c "
import secrets, time
word = secrets.token_hex(8)
while True:
    open('/work/drawn', 'w').write(word + ' ' + secrets.token_hex(8))
    time.sleep(0.05)
"`, "background": true,
	}, nil)
	require.Eventually(t, func() bool { return len(strings.Fields(api.exec(origin, "cat /work/drawn").Stdout)) == 2 }, 20*time.Second, 50*time.Millisecond)
	pty := api.openPTY(origin)
	term := api.view(origin, pty, "")
	term.typeText("MARK=kept; " + ticking)
	term.sees("tick 2\r\n")

	all := []string{origin}
	for range 2 {
		var fork sandboxJSON
		api.ok("POST", "/v1/sandboxes/"+origin+"/fork", nil, &fork)
		require.Equal(t, "running", fork.Status)
		all = append(all, fork.ID)
	}
	n := term.ticks()
	term.sees(fmt.Sprintf("tick %d\r\n", n+3))
	term.ticks()

	words, drawn, names, random := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, id := range all {
		// What was drawn at the time of the fork may still lie there: each draws again.
		require.Zero(t, api.exec(id, "rm /work/drawn").ExitCode)
		var f []string
		require.Eventually(t, func() bool {
			f = strings.Fields(api.exec(id, "cat /work/drawn").Stdout)
			return len(f) == 2
		}, 20*time.Second, 20*time.Millisecond)
		words[f[0]], drawn[f[1]] = true, true
		names[api.exec(id, "hostname").Stdout] = true
		random[api.exec(id, "head -c 16 /dev/urandom | base64; cat /proc/sys/kernel/random/uuid 2>/dev/null").Stdout] = true
		require.Equal(t, "a-secret\n", api.exec(id, "echo $TOKEN").Stdout)
		own := api.view(id, pty, "")
		own.until("scrollback", func() bool { return bytes.Contains(own.snapshot, []byte("tick 2\r\n")) })
		if id == origin {
			own = term // who came first drives
		}
		own.forget()
		own.interrupt("root@")
		own.typeText("echo in-$MARK\n")
		own.sees("in-kept\r\n")
	}
	require.Len(t, words, 1, "the same process, with the same memory")
	require.Len(t, drawn, 3, "different random numbers")
	require.Len(t, names, 3, "host names of their own")
	require.Len(t, random, 3)
	for _, id := range all[1:] {
		require.Zero(t, api.exec(id, "echo other >/work/only-here").ExitCode)
	}
	require.NotZero(t, api.exec(origin, "cat /work/only-here").ExitCode)
	host.noSaves()
	for _, id := range all {
		api.ok("DELETE", "/v1/sandboxes/"+id, nil, nil)
	}
	host.hostFree()
}
