package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/sandbox/sandboxtest"
)

// siege is a server with a sandbox that is attacked from inside, one after the other, and a neighbour that goes about its work.
type siege struct {
	*server
	api       rest
	neighbour string
	quiet     time.Duration // the neighbour's p95 with nobody else about
	mark      string        // the installation's
	errand    errand        // what the neighbour goes about
}

// errand is a command of the neighbour with what it prints, and what else somebody reads of the server each time.
type errand struct{ command, prints, page string }

func newSiege(t *testing.T) *siege {
	t.Helper()
	return besiege(t, 60, errand{"echo $((6*7))", "42\n", "/sign-in"})
}

// besiege watches the neighbour so many times while it is quiet.
func besiege(t *testing.T, visits int, does errand) *siege {
	t.Helper()
	host := newInstallation(t)
	s := &siege{server: host.serve(), errand: does}
	host.person("ann@example.org", "alpha")
	s.api = s.rest(host.key("alpha", "sandboxes:run"))
	inst, err := os.ReadFile(filepath.Join(host.data, "inst"))
	require.NoError(t, err)
	s.mark = string(inst)
	s.neighbour = s.api.create("neighbour")
	var took []time.Duration
	for range visits {
		took = append(took, s.visit())
	}
	require.NotContains(t, took[1:], time.Duration(0), "the neighbour goes about its errand")
	s.quiet = p95(took[5:])
	t.Logf("the neighbour's command, and the list: p95 %s when it is quiet", s.quiet.Round(time.Millisecond))
	return s
}

// visit runs a command in the neighbour and reads the list; it gives the time of the command. 0: one of them failed.
func (s *siege) visit() time.Duration {
	begin := time.Now()
	asked, _ := json.Marshal(map[string]any{"command": s.errand.command}) // a map of texts
	code, body, err := s.call("POST", "/v1/sandboxes/"+s.neighbour+"/commands", bytes.NewReader(asked))
	took := time.Since(begin)
	var e executionJSON
	if err != nil || code != 200 || json.Unmarshal(body, &e) != nil || e.Stdout != s.errand.prints {
		s.t.Logf("the neighbour: %d %v %.300s", code, err, body)
		return 0
	}
	for _, path := range []string{"/v1/sandboxes", s.errand.page} {
		if code, _, err := s.call("GET", path, nil); err != nil || code != 200 {
			s.t.Logf("%s: %d %v", path, code, err)
			return 0
		}
	}
	return took
}

// answersWithin is how long the neighbour may wait for an answer while others are attacked: far more than was ever seen.
const answersWithin = 15 * time.Second

// call may be used by any goroutine.
func (s *siege) call(method, path string, body io.Reader) (int, []byte, error) {
	return s.callWithin(answersWithin, method, path, body)
}

func (s *siege) callWithin(limit time.Duration, method, path string, body io.Reader) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, body)
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("X-API-Key", s.api.key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, b, err
}

func p95(took []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(took))
	return sorted[len(sorted)*95/100]
}

// watchNeighbour visits until the returned function is called, which gives the times.
func (s *siege) watchNeighbour() (stop func() []time.Duration) {
	over := make(chan struct{})
	var took []time.Duration
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(30 * time.Millisecond)
		defer tick.Stop()
		for {
			took = append(took, s.visit())
			select {
			case <-over:
				return
			case <-tick.C:
			}
		}
	})
	stop = sync.OnceValue(func() []time.Duration { close(over); wg.Wait(); return took })
	return stop
}

// attack is one way to exhaust something from inside. Afterwards the sandbox answers (survives) or has failed (reason); with
// both, it is the kernel's choice.
type attack struct {
	name      string
	resources map[string]any     // beside 256 MiB of memory, 64 of disk and 256 tasks
	begin     func(t *testing.T) // just before the command
	command   string
	timeout   int
	outside   func(*siege, string)                          // instead of, or after, the command: over the API
	survives  bool                                          // it answers again
	reason    string                                        // why it failed
	check     func(t *testing.T, e executionJSON, code int) // of the command's answer
	after     func(t *testing.T, s *siege, id string)       // once it answers again
}

func (a attack) run(t *testing.T, s *siege) {
	resources := map[string]any{"cpu": 1, "memory_mb": 256, "disk_mb": 64, "pids": 256}
	for k, v := range a.resources {
		resources[k] = v
	}
	api := rest{t: t, url: s.api.url, key: s.api.key}
	var sb sandboxJSON
	api.ok("POST", "/v1/sandboxes", map[string]any{"label": a.name, "resources": resources}, &sb)
	before := s.rss()
	stop := s.watchNeighbour()
	t.Cleanup(func() { // when something failed before the end
		_ = stop()
		_, _, _ = s.call("DELETE", "/v1/sandboxes/"+sb.ID, nil)
	})
	if a.begin != nil {
		a.begin(t)
	}
	if a.command != "" {
		var e executionJSON
		code, body := api.do("POST", "/v1/sandboxes/"+sb.ID+"/commands", map[string]any{"command": a.command, "timeout": max(a.timeout, 1)})
		_ = json.Unmarshal(body, &e)
		if a.check != nil {
			a.check(t, e, code)
		}
		if a.reason != "" && a.survives {
			a.survives = code == http.StatusOK
		}
		if a.reason != "" && !a.survives {
			require.Equal(t, http.StatusConflict, code, "%.300s", body)
			require.Contains(t, string(body), a.reason)
		}
	}
	if a.outside != nil {
		a.outside(s, sb.ID)
	}
	switch {
	case a.survives:
		require.Eventually(t, func() bool {
			code, body, err := s.call("POST", "/v1/sandboxes/"+sb.ID+"/commands", strings.NewReader(`{"command":"echo alive","timeout":5}`))
			return err == nil && code == 200 && strings.Contains(string(body), `"alive\n"`)
		}, 2*answersWithin, 100*time.Millisecond, "it answers again")
		if a.after != nil {
			a.after(t, s, sb.ID)
		}
	case a.reason != "":
		api.ok("GET", "/v1/sandboxes/"+sb.ID, nil, &sb)
		require.Equal(t, "failed", sb.Status)
		require.Equal(t, a.reason, sb.Reason)
	}
	took := stop()
	require.NotContains(t, took, time.Duration(0), "the neighbour and the list answer all the while")
	grown := (s.rss() - before) >> 20

	begin := time.Now()
	api.ok("DELETE", "/v1/sandboxes/"+sb.ID, nil, nil)
	killed := time.Since(begin)
	require.Less(t, killed, 10*time.Second, "kill works at once")
	left, err := sandboxtest.Census(s.mark, s.data)
	require.NoError(t, err)
	for _, l := range left {
		require.NotContains(t, l, sb.ID, "left on the host")
	}
	now := p95(took)
	t.Logf("%-28s neighbour p95 %7s (%4.1f times quiet), worst %7s of %3d; killed in %6s; the server grew by %d MiB", a.name,
		now.Round(time.Millisecond), float64(now)/float64(s.quiet), slices.Max(took).Round(time.Millisecond), len(took), killed.Round(time.Millisecond), grown)
}

// noSpace wants a command to have been told that the disk is full.
func noSpace(t *testing.T, e executionJSON, code int) {
	t.Helper()
	require.Equal(t, 200, code)
	require.Contains(t, e.Stderr, "No space left on device")
}

// emptyFiles makes files until something gives way.
func emptyFiles(dir string) string {
	return fmt.Sprintf(`mkdir -p %[1]s/many && cd %[1]s/many && python3 -c '
import os
n = 0
while n < 1000000:
    os.close(os.open(str(n), os.O_CREAT | os.O_WRONLY))
    n += 1'`, dir)
}

// inodeFill: a file costs memory wherever it lies, and nothing but the memory's limit bounds their number.
func inodeFill(dir string) attack {
	return attack{
		name: "inode fill of " + dir, command: emptyFiles(dir) + "; sleep 20", timeout: 50, reason: "out_of_memory", resources: map[string]any{"memory_mb": 80},
	}
}

// openFiles opens the same number of new files in each of two processes, and tells how far it came.
const openFiles = `mkdir /work/n; cd /work/n; for k in 1 2; do python3 -c '
import os, resource, time
resource.setrlimit(resource.RLIMIT_NOFILE, (65536, 65536))
n = 0
for i in range(50000):
    os.open("f%d.%d" % (os.getpid(), i), os.O_CREAT | os.O_RDWR)
    n += 1
print(n)' & done; wait`

// attacks end inside: each line of what a guest can run out of.
func attacks() []attack {
	list := []attack{
		{name: "fork bomb", command: ":() { :|:& };:; sleep 20", timeout: 25, reason: "too_many_processes"},
		{
			// The kernel chooses: the program, or all of the sandbox.
			name: "memory bomb", command: "python3 -c 'x = []\nwhile True: x.append(bytearray(10**7))'", timeout: 30, survives: true, reason: "out_of_memory",
			check: func(t *testing.T, e executionJSON, code int) {
				if code == http.StatusOK {
					require.Equal(t, 137, e.ExitCode)
				}
			},
		},
		{name: "memory bomb in files", command: "head -c 100M /dev/zero >/dev/shm/a; head -c 100M /dev/zero >/tmp/b; sleep 20", timeout: 25, reason: "out_of_memory", resources: map[string]any{"memory_mb": 128}},
		{name: "disk fill of /", command: "head -c 100M /dev/zero >/big", timeout: 30, survives: true, check: noSpace, after: diskFull},
		{name: "disk fill of /tmp", command: "head -c 100M /dev/zero >/tmp/big", timeout: 30, survives: true, check: noSpace, resources: map[string]any{"memory_mb": 128}},
		{name: "disk fill of /dev/shm", command: "head -c 100M /dev/zero >/dev/shm/big", timeout: 30, survives: true, check: noSpace, resources: map[string]any{"memory_mb": 128}},
		{name: "disk fill of /run", command: "head -c 100M /dev/zero >/run/big", timeout: 30, survives: true, check: noSpace},
		// It has no size of its own: the memory's limit ends it.
		{name: "disk fill of /dev", command: "head -c 400M /dev/zero >/dev/big; sleep 20", timeout: 25, reason: "out_of_memory", resources: map[string]any{"memory_mb": 128}},
		{
			name: "stdout and stderr flood", command: "(yes | head -c 40M) & (yes | head -c 40M >&2); wait; exit 3", timeout: 60, survives: true,
			check: func(t *testing.T, e executionJSON, code int) {
				require.Equal(t, 200, code)
				require.True(t, e.Truncated)
				require.Equal(t, 3, e.ExitCode, "it went on to its end")
				require.Len(t, e.Stdout, 16<<20)
				require.Len(t, e.Stderr, 16<<20)
			},
		},
		{
			name: "CPU hog", command: "for i in 1 2 3 4 5 6 7 8; do while :; do :; done & done; sleep 30", timeout: 3, survives: true,
			check: func(t *testing.T, e executionJSON, _ int) { require.True(t, e.TimedOut) },
		},
		{
			name: "100,000 open files", command: openFiles, timeout: 60, survives: true, resources: map[string]any{"memory_mb": 1024},
			check: func(t *testing.T, e executionJSON, _ int) { require.Equal(t, "50000\n50000\n", e.Stdout, e.Stderr) },
		},
	}
	for _, dir := range []string{"/work", "/tmp", "/dev"} {
		list = append(list, inodeFill(dir))
	}
	return append(list, moreAttacks()...)
}

// diskFull: whoever writes over the API is told so, and may delete.
func diskFull(t *testing.T, s *siege, id string) {
	t.Helper()
	api := rest{t: t, url: s.api.url, key: s.api.key}
	code, body := api.do("POST", "/v1/sandboxes/"+id+"/files", map[string]any{"path": "/work/x", "content": strings.Repeat("y", 1<<20)})
	require.Equal(t, http.StatusConflict, code)
	require.Contains(t, string(body), `"reason":"disk_full"`)
	api.ok("DELETE", "/v1/sandboxes/"+id+"/files?path=/big", nil, nil)
	api.ok("POST", "/v1/sandboxes/"+id+"/files", map[string]any{"path": "/work/x", "content": "now"}, nil)
}

// Whatever is used up inside one sandbox: the neighbour and the server answer meanwhile, it is itself again afterwards or
// shown as failed with the reason, and it is killed at once with nothing left.
func TestExhaustionEndsInside(t *testing.T) {
	s := newSiege(t)
	for _, a := range attacks() {
		t.Run(a.name, func(t *testing.T) { a.run(t, s) })
	}
}
