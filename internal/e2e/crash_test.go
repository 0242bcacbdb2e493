package e2e

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Whatever several clients do, a server that is killed at any moment loses nothing that it said yes to, and the next one
// leaves nothing that no record owns.
func TestNothingIsLostOrLeftByCrashes(t *testing.T) { crashes(t, 30) }

// crashSeed lets a run be repeated as far as time allows: what the clients do, and when the server is killed.
func crashSeed(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("SANDGATE_TEST_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("SANDGATE_TEST_SEED=%d", seed)
	return seed
}

const (
	crashClients   = 4
	crashBoxes     = 7 // alive at a time, about
	crashSnapshots = 2
	crashAnswers   = 50                     // the kill comes after fewer answers,
	crashPause     = 250 * time.Millisecond // and up to so much later,
	crashPatience  = 3 * time.Second        // but not later than this on a slow machine
)

func crashes(t *testing.T, rounds int) {
	seed := crashSeed(t)
	host := newInstallation(t)
	host.person("ann@example.org", "alpha")
	key := host.key("alpha", "sandboxes:run")
	rng := rand.New(rand.NewPCG(seed, 0))
	l := newLedger()
	s := host.serve()
	begin := time.Now()
	for round := range rounds {
		late, pause, answers := time.After(crashPatience), time.Duration(rng.Int64N(int64(crashPause))), rng.IntN(crashAnswers)
		busy := l.begin(answers)
		var clients sync.WaitGroup
		for n := range crashClients {
			c := &crashClient{ledger: l, url: s.url, key: key, rng: rand.New(rand.NewPCG(seed, uint64(1+round*crashClients+n)))}
			clients.Go(c.run)
		}
		select {
		case <-busy:
			<-time.After(pause)
		case <-late:
		}
		l.open.Store(false)
		s.stop(syscall.SIGKILL)
		clients.Wait()
		l.fine(t, round)
		pool := round%3 == 1 // the next server also keeps sandboxes that belong to nobody, and saves in passing
		if pool {
			s = host.serve("--pool", "2", "--save-every", "1s")
		} else {
			s = host.serve()
		}
		l.compare(t, s, key, pool, rng)
		if t.Failed() {
			return
		}
	}
	l.wakeAll(t, s.rest(key))
	t.Logf("%d crashes in %s: %s", rounds, time.Since(begin).Round(time.Second), l.story())
	host.run("sandbox", "kill", "--all")
	api := s.rest(key)
	for _, snap := range slices.Sorted(maps.Keys(l.snaps)) {
		api.ok("DELETE", "/v1/snapshots/"+snap, nil, nil)
	}
	s.stop(syscall.SIGTERM)
	host.nothingLeft()
	host.noSaves()
	require.Contains(t, host.run("audit", "verify"), "the chain holds")
}

// crashClient does one thing after the other until the server is gone.
type crashClient struct {
	*ledger
	url, key string
	rng      *rand.Rand
}

func (c *crashClient) run() {
	for c.open.Load() {
		switch n := c.rng.IntN(100); {
		case n < 15:
			c.create()
		case n < 47:
			c.write()
		case n < 59:
			c.terminal()
		case n < 68:
			c.suspend()
		case n < 74:
			c.resume()
		case n < 82:
			c.fork()
		case n < 91:
			c.snapshot()
		default:
			c.end()
		}
	}
}

// create makes a sandbox, from a snapshot where there is one, unless there are enough.
func (c *crashClient) create() {
	if c.alive() >= crashBoxes {
		c.end()
		return
	}
	a := &account{label: c.name("c"), persistent: c.rng.IntN(3) > 0, writes: map[string]string{}}
	body := map[string]any{"label": a.label, "persistent": a.persistent}
	var from *kept
	if c.rng.IntN(2) == 0 {
		from = c.someSnapshot(c.rng)
	}
	if from != nil {
		body["snapshot_id"], a.writes = from.id, maps.Clone(from.writes)
	}
	c.begun(a)
	var sb sandboxJSON
	ok, refused := c.call("POST", "/v1/sandboxes", body, &sb, c.snapDoomed(from))
	c.answered(a, sb.ID, ok, refused)
	if !ok || from != nil {
		return
	}
	// Memory is kept as well as files: what runs in it must go on.
	var cmd struct{ ID string }
	if ok, _ := c.call("POST", "/v1/sandboxes/"+sb.ID+"/commands", map[string]any{"command": "exec sleep 1000000", "background": true}, &cmd, c.doomed(a)); ok {
		c.runs(a, cmd.ID)
	}
}

// write makes a file in one of the ways there are.
func (c *crashClient) write() {
	a := c.some(c.rng, false)
	if a == nil {
		c.create()
		return
	}
	name, path := c.name("w"), "/v1/sandboxes/"+a.id
	file := "/work/kept/" + name
	content := name
	var ok bool
	switch c.rng.IntN(3) {
	case 0:
		ok, _ = c.call("POST", path+"/files", map[string]any{"path": file, "content": content}, nil, c.doomed(a))
	case 1: // more than goes in one piece
		content = repeated(name, 200<<10+c.rng.IntN(300<<10))
		ok, _ = c.call("PUT", path+"/files/raw?path="+file, []byte(content), nil, c.doomed(a))
	case 2:
		var e executionJSON
		ok, _ = c.call("POST", path+"/commands", map[string]any{"command": fmt.Sprintf("mkdir -p /work/kept && printf %%s %s >%s", name, file)}, &e, c.doomed(a))
		if ok && e.ExitCode != 0 && !c.doomed(a)() {
			c.fault("a command that writes ended with %d: %s", e.ExitCode, e.Stderr)
		}
		ok = ok && e.ExitCode == 0
	}
	if ok {
		c.wrote(a, name, sum(content))
	}
}

// terminal writes a file by hand.
func (c *crashClient) terminal() {
	a := c.some(c.rng, false)
	if a == nil {
		c.create()
		return
	}
	pty := c.somePTY(a, c.rng)
	if pty == "" {
		var p struct{ ID string }
		if ok, _ := c.call("POST", "/v1/sandboxes/"+a.id+"/ptys", map[string]any{"cols": 80, "rows": 24}, &p, c.doomed(a)); !ok {
			return
		}
		c.opened(a, p.ID)
		pty = p.ID
	}
	name := c.name("t")
	if c.typed(a, pty, name) {
		c.wrote(a, name, sum(name+"\n"))
	}
}

func (c *crashClient) suspend() {
	if a := c.some(c.rng, true); a != nil {
		c.call("POST", "/v1/sandboxes/"+a.id+"/suspend", nil, nil, c.doomed(a))
	}
}

func (c *crashClient) resume() {
	if a := c.some(c.rng, true); a != nil {
		c.call("POST", "/v1/sandboxes/"+a.id+"/resume", nil, nil, c.doomed(a))
	}
}

func (c *crashClient) fork() {
	of := c.some(c.rng, false)
	if of == nil || c.alive() >= crashBoxes {
		c.end()
		return
	}
	a := c.copyOf(of)
	c.begun(a)
	var sb sandboxJSON
	ok, refused := c.call("POST", "/v1/sandboxes/"+of.id+"/fork", nil, &sb, c.doomed(of))
	c.answered(a, sb.ID, ok, refused)
}

func (c *crashClient) snapshot() {
	if c.snapshots() >= crashSnapshots {
		snap := c.someSnapshot(c.rng)
		if snap == nil {
			return
		}
		c.dropping(snap)
		ok, refused := c.call("DELETE", "/v1/snapshots/"+snap.id, nil, nil, c.snapDoomed(snap))
		c.dropped(snap, ok, refused)
		return
	}
	of := c.some(c.rng, false)
	if of == nil {
		return
	}
	snap := c.keeping(of, c.name("s"))
	var made snapshotJSON
	ok, refused := c.call("POST", "/v1/sandboxes/"+of.id+"/snapshots", map[string]any{"name": snap.name}, &made, c.doomed(of))
	c.keptAs(snap, made.ID, ok, refused)
}

func (c *crashClient) end() {
	if a := c.some(c.rng, false); a != nil {
		c.dooming(a)
		ok, _ := c.call("DELETE", "/v1/sandboxes/"+a.id, nil, nil, func() bool { return false })
		c.ended(a, ok)
	}
}
