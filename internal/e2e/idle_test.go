package e2e

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// idleJSON is what a sandbox tells of its life.
type idleJSON struct {
	Status string
	Idle   struct {
		AliveBecause []string `json:"alive_because"`
		At           *string
	}
}

// Sandboxes that have two seconds: those at work outlive them, in every way that one can be at work, and are gone when the
// work is done; the one that nobody uses is gone at once.
func TestIdleSandboxesOnRealTime(t *testing.T) {
	host := newInstallation(t)
	s := host.serve()
	host.run("workspace", "create", "alpha")
	api := s.rest(host.key("alpha", "sandboxes:run"))
	short := func(o map[string]any) string {
		o["idle_timeout"] = 2
		var sb sandboxJSON
		api.ok("POST", "/v1/sandboxes", o, &sb)
		return sb.ID
	}
	gone := func(id string) bool {
		code, _ := api.do("GET", "/v1/sandboxes/"+id, nil)
		return code == http.StatusNotFound
	}
	eventually := func(what string, cond func() bool) {
		require.Eventually(t, cond, 2*time.Minute, 200*time.Millisecond, what)
	}
	var wait sync.WaitGroup
	defer wait.Wait()

	wait.Go(func() { // nobody reads it, nobody calls it, its records are read all the time
		id := short(map[string]any{"label": "unused"})
		eventually("unused and alive", func() bool { return gone(id) })
	})
	wait.Go(func() {
		id := short(map[string]any{"label": "foreground"})
		e := api.exec(id, "sleep 6; echo ok")
		require.Equal(t, "ok\n", e.Stdout)
		eventually("alive after its command", func() bool { return gone(id) })
	})
	wait.Go(func() {
		id := short(map[string]any{"label": "computing"})
		api.exec(id, "(timeout 6 sh -c 'while :; do :; done') >/dev/null 2>&1 & sleep 0.1")
		eventually("it computes, which shows", func() bool {
			var b idleJSON
			code, _ := api.do("GET", "/v1/sandboxes/"+id, nil)
			require.Equal(t, http.StatusOK, code, "ended while it computed")
			api.ok("GET", "/v1/sandboxes/"+id, nil, &b)
			return strings.Contains(strings.Join(b.Idle.AliveBecause, " "), "cpu")
		})
		eventually("alive and at rest", func() bool { return gone(id) })
	})
	wait.Go(func() {
		id := short(map[string]any{"label": "download", "keep_while_busy": false})
		api.exec(id, "truncate -s 300M /work/large")
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, "GET", api.url+"/v1/sandboxes/"+id+"/files/raw?path="+url.QueryEscape("/work/large"), nil)
		require.NoError(t, err)
		req.Header.Set("X-API-Key", api.key)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer func() { _ = resp.Body.Close() }()
		var n int64
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for range 6 { // slowly
			m, err := io.CopyN(io.Discard, resp.Body, 1<<20)
			require.NoError(t, err)
			n += m
			<-tick.C
		}
		m, err := io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		require.Equal(t, int64(300<<20), n+m)
		eventually("alive after its download", func() bool { return gone(id) })
	})
}

// A background command that runs when the server is killed keeps its sandbox alive after the next start, too.
func TestBusyAcrossARestart(t *testing.T) {
	host := newInstallation(t)
	s := host.serve()
	host.run("workspace", "create", "alpha")
	key := host.key("alpha", "sandboxes:run")
	api := s.rest(key)
	var busy, unused sandboxJSON
	api.ok("POST", "/v1/sandboxes", map[string]any{"idle_timeout": 2, "keep_while_busy": false}, &busy)
	api.ok("POST", "/v1/sandboxes/"+busy.ID+"/commands", map[string]any{"command": "sleep 12", "background": true}, nil)
	api.ok("POST", "/v1/sandboxes", map[string]any{"idle_timeout": 3}, &unused)
	s.stop(syscall.SIGKILL)
	s = host.serve()
	api = s.rest(key)
	require.Eventually(t, func() bool {
		code, _ := api.do("GET", "/v1/sandboxes/"+unused.ID, nil)
		return code == http.StatusNotFound
	}, 20*time.Second, 200*time.Millisecond)
	var b idleJSON
	api.ok("GET", "/v1/sandboxes/"+busy.ID, nil, &b)
	require.Equal(t, []string{"command"}, b.Idle.AliveBecause)
	require.Nil(t, b.Idle.At)
	require.Eventually(t, func() bool {
		code, _ := api.do("GET", "/v1/sandboxes/"+busy.ID, nil)
		return code == http.StatusNotFound
	}, 40*time.Second, 200*time.Millisecond)
}
