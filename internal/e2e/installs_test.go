package e2e

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/sandbox/sandboxtest"
)

// holdings are what an installation has on the host, but for bridges, which come and go.
func (i *installation) holdings() []string {
	i.t.Helper()
	all, err := sandboxtest.Census(i.inst(), i.data)
	require.NoError(i.t, err)
	all = slices.DeleteFunc(all, func(line string) bool { return strings.HasPrefix(line, "process") && strings.Contains(line, " exec ") })
	for id := range i.ruled(i.t) {
		all = append(all, "rules of "+id)
	}
	slices.Sort(all)
	return all
}

// Two installations share a host and its network. Whatever becomes of one, the other keeps what it has.
func TestInstallationsLeaveEachOtherAlone(t *testing.T) {
	theWorld(t)
	mine, theirs := newInstallation(t), newInstallation(t)
	for _, i := range []*installation{mine, theirs} {
		i.person("ann@example.org", "alpha")
	}
	keyOfMine, keyOfTheirs := mine.key("alpha", "sandboxes:run"), theirs.key("alpha", "sandboxes:run")
	const pool = "10.214.0.0/16"
	other := theirs.serve("--jail-pool", pool)
	api := other.rest(keyOfTheirs)
	id := api.create("bystander")
	asleep := api.createPersistent("asleep")
	require.Zero(t, api.exec(asleep, "echo kept >/work/file").ExitCode)
	api.ok("POST", "/v1/sandboxes/"+asleep+"/suspend", nil, nil)
	snap := api.snapshot(id)
	api.jailed("alone", id)
	before := theirs.holdings()
	require.NotEmpty(t, theirs.ruled(t))
	same := func(when string) {
		t.Helper()
		require.Eventually(t, func() bool { return slices.Equal(before, theirs.holdings()) }, 20*time.Second, 50*time.Millisecond,
			"%s: before\n%s", when, strings.Join(before, "\n"))
		require.Equal(t, "here\n", api.exec(id, "echo here").Stdout, when)
		api.jailed(when, id)
	}

	s := mine.serve()
	require.NotEqual(t, mine.inst(), theirs.inst())
	a := s.rest(keyOfMine)
	first := a.create("first")
	persistent := a.createPersistent("second")
	a.jailed("beside another installation", first)
	for _, to := range []string{first, persistent} {
		code, _ := api.do("GET", "/v1/sandboxes/"+to, nil)
		require.Equal(t, http.StatusNotFound, code)
	}
	a.ok("POST", "/v1/sandboxes/"+persistent+"/suspend", nil, nil)
	same("after creations and a suspend beside it")

	// Mine is killed while it creates, several times; starting again clears up, and nothing but its own.
	for range 3 {
		done := make(chan struct{})
		go func() {
			defer close(done)
			req, err := http.NewRequest("POST", s.url+"/v1/sandboxes", bytes.NewReader([]byte(`{"label": "half"}`)))
			if err != nil {
				return
			}
			req.Header.Set("X-API-Key", keyOfMine)
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_ = resp.Body.Close()
			}
		}()
		<-time.After(60 * time.Millisecond)
		s.stop(syscall.SIGKILL)
		<-done
		mine.run("sandbox", "prune")
		same("after a crash and prune without a server")
		s = mine.serve()
	}
	mine.run("sandbox", "prune")
	same("after prune by a server")
	require.NotContains(t, mine.run("sandbox", "kill", "--all"), "0 killed")
	mine.nothingLeft()
	same("after all of the other installation was killed")
	s.stop(syscall.SIGTERM)
	same("after the other server has stopped")

	// And the other way round: the one that stays is killed and started again, with all of its own.
	other.stop(syscall.SIGKILL)
	other = theirs.serve("--jail-pool", pool)
	api = other.rest(keyOfTheirs)
	same("after its own crash")
	require.Equal(t, "kept\n", api.exec(asleep, "cat /work/file").Stdout)
	api.ok("DELETE", "/v1/snapshots/"+snap, nil, nil)
	theirs.run("sandbox", "kill", "--all")
	theirs.noSaves()
	mine.noSaves()
}
