package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/testenv"
	"sandgate/sandbox/sandboxtest"
)

// poolAllowance is how many sandboxes may be on a host that are in no record, where a pool keeps two.
const poolAllowance = 3

type recordJSON struct{ ID, Status, Reason, Label, Parent string }

// compare holds what the clients know against the records and the host, after a server was killed and another started. What
// was not answered becomes what it is.
func (l *ledger) compare(t *testing.T, s *server, key string, pool bool, rng *rand.Rand) {
	t.Helper()
	api := s.rest(key)
	running, asleep := l.compareRecords(t, api)
	l.compareSnapshots(t, api)
	l.compareHost(t, s.installation, running, asleep, pool)
	for _, id := range slices.Sorted(maps.Keys(l.boxes)) {
		if slices.Contains(running, id) || rng.IntN(4) == 0 { // looking into it wakes it
			l.boxes[id].check(t, api)
		}
	}
	require.Contains(t, s.run("audit", "verify"), "the chain holds")
}

func (l *ledger) compareRecords(t *testing.T, api rest) (running, asleep []string) {
	t.Helper()
	var list []recordJSON
	api.ok("GET", "/v1/sandboxes", nil, &list)
	there := map[string]bool{}
	for _, r := range list {
		there[r.ID] = true
		switch r.Status {
		case "running":
			running = append(running, r.ID)
		case "suspended":
			asleep = append(asleep, r.ID)
		default:
			require.Fail(t, "a sandbox is neither running nor suspended", "%+v", r)
		}
		require.Empty(t, r.Reason, "%+v", r)
		if l.boxes[r.ID] == nil {
			l.adopt(t, r)
		}
		l.boxes[r.ID].doomed = false
	}
	for id, a := range l.boxes {
		if !there[id] {
			require.True(t, a.doomed, "%s (%s) is lost", id, a.label)
			delete(l.boxes, id)
		}
	}
	l.unsaid = nil
	slices.Sort(running)
	return running, asleep
}

// adopt finds the creation that had no answer and made a sandbox all the same.
func (l *ledger) adopt(t *testing.T, r recordJSON) {
	t.Helper()
	for i, a := range l.unsaid {
		if a.label != "" && a.label == r.Label || a.parent != "" && a.parent == r.Parent {
			a.id = r.ID
			l.boxes[r.ID] = a
			l.unsaid = slices.Delete(l.unsaid, i, i+1)
			return
		}
	}
	require.Fail(t, "a sandbox is there that nobody made, or that was ended", "%+v", r)
}

func (l *ledger) compareSnapshots(t *testing.T, api rest) {
	t.Helper()
	var list []snapshotJSON
	api.ok("GET", "/v1/snapshots", nil, &list)
	there := map[string]bool{}
	for _, n := range list {
		there[n.ID] = true
		if l.snaps[n.ID] == nil {
			i := slices.IndexFunc(l.unkept, func(k *kept) bool { return k.name == n.Name })
			require.GreaterOrEqual(t, i, 0, "a snapshot is there that nobody took, or that was deleted: %+v", n)
			l.unkept[i].id, l.snaps[n.ID] = n.ID, l.unkept[i]
		}
		l.snaps[n.ID].doomed = false
	}
	for id, k := range l.snaps {
		if !there[id] {
			require.True(t, k.doomed, "snapshot %s is lost", id)
			delete(l.snaps, id)
		}
	}
	l.unkept = nil
}

// check looks into a sandbox: every write that was answered is there, and all that ran runs.
func (a *account) check(t *testing.T, api rest) {
	t.Helper()
	have := map[string]string{}
	for line := range strings.Lines(api.exec(a.id, "cd /work/kept && sha256sum * || true").Stdout) {
		if f := strings.Fields(line); len(f) == 2 {
			have[f[1]] = f[0]
		}
	}
	for name, digest := range a.writes {
		require.Equal(t, digest, have[name], "%s in %s, of %d writes", name, a.id, len(a.writes))
	}
	if a.running != "" {
		var cmd struct{ Status string }
		api.ok("GET", "/v1/sandboxes/"+a.id+"/commands/"+a.running, nil, &cmd)
		require.Equal(t, "running", cmd.Status, "a command in %s", a.id)
	}
	var list []struct{ ID, Status string }
	api.ok("GET", "/v1/sandboxes/"+a.id+"/ptys", nil, &list)
	for _, pty := range a.ptys {
		require.True(t, slices.ContainsFunc(list, func(p struct{ ID, Status string }) bool { return p.ID == pty && p.Status == "running" }),
			"terminal %s of %s: %v", pty, a.id, list)
	}
}

func (l *ledger) wakeAll(t *testing.T, api rest) {
	t.Helper()
	for _, id := range slices.Sorted(maps.Keys(l.boxes)) {
		l.boxes[id].check(t, api)
	}
}

// compareHost waits until what is on the host is what the records say: bridges of the server that was killed end by themselves.
func (l *ledger) compareHost(t *testing.T, i *installation, running, asleep []string, pool bool) {
	t.Helper()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for begin := time.Now(); ; <-poll.C {
		why := l.hostDiffers(t, i, running, asleep, pool)
		if why == "" {
			return
		}
		require.Less(t, time.Since(begin), 30*time.Second, "%s", why)
	}
}

var idPattern = regexp.MustCompile(`sb[a-z0-9]{20}`)

func (l *ledger) hostDiffers(t *testing.T, i *installation, running, asleep []string, pool bool) string {
	t.Helper()
	inst := i.inst()
	lines, err := sandboxtest.Census(inst, i.data)
	require.NoError(t, err)
	kinds := map[string]map[string]bool{"process": {}, "cgroup": {}, "mount": {}, "network": {}, "link": {}, "directory": {}}
	for _, line := range lines {
		kind, rest, _ := strings.Cut(line, " ")
		id := idPattern.FindString(rest)
		if kind == "link" {
			for _, r := range running {
				if strings.HasPrefix(r[2:], strings.TrimPrefix(rest, "sg"+inst)) {
					id = r
				}
			}
			if id == "" {
				id = rest
			}
		}
		if id != "" { // else it is what all share
			kinds[kind][id] = true
		}
	}
	kinds["rules"] = i.ruled(t)
	for kind, ids := range kinds {
		extra := 0
		for id := range ids {
			if !slices.Contains(running, id) {
				extra++
			}
		}
		most := 0
		if pool {
			most = poolAllowance
		}
		if have := len(ids) - extra; have != len(running) || extra > most {
			return fmt.Sprintf("%s: %v, running: %v\n%s", kind, slices.Sorted(maps.Keys(ids)), running, strings.Join(lines, "\n"))
		}
	}
	return l.savesDiffer(t, i, running, asleep, pool)
}

// savesDiffer says what is wrong with what is kept on the disk.
func (l *ledger) savesDiffer(t *testing.T, i *installation, running, asleep []string, saving bool) string {
	t.Helper()
	mark := "sg-" + i.inst() + "-"
	var names [2][]string
	for n, pattern := range []string{filepath.Join(i.data, "checkpoints", "sg-*"), filepath.Join(testenv.CacheDir(), "images", "*", "*", "holds", mark+"*")} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, f := range found {
			names[n] = append(names[n], strings.TrimPrefix(filepath.Base(f), mark))
		}
		slices.Sort(names[n])
		names[n] = slices.Compact(names[n]) // an image has two names: its own, and that of being the current one
	}
	if saving {
		return "" // they come and go
	}
	saves, holds := names[0], names[1]
	if !slices.Equal(saves, holds) {
		return fmt.Sprintf("saves %v, images that are held for them %v", saves, holds)
	}
	for _, id := range saves {
		if a := l.boxes[id]; l.snaps[id] == nil && (a == nil || !a.persistent) {
			return "a save that nobody owns: " + id
		}
		if next, _ := filepath.Glob(filepath.Join(i.data, "checkpoints", mark+id, "next")); len(next) > 0 {
			return "a save that was not finished: " + id
		}
	}
	for _, id := range slices.Concat(asleep, slices.Collect(maps.Keys(l.snaps))) {
		if !slices.Contains(saves, id) {
			return "no save of " + id
		}
	}
	return ""
}

var addressPattern = regexp.MustCompile(`"(\d+\.\d+\.\d+\.\d+)"`)

// ruled gives the sandboxes of which there is anything in the table of rules, by the name of their link.
func (i *installation) ruled(t *testing.T) map[string]bool {
	t.Helper()
	out, err := exec.Command("nft", "-j", "list", "table", "inet", "sandgate_"+i.inst()).Output()
	if err != nil {
		return map[string]bool{} // there is none while nobody needs it
	}
	type set struct {
		Name string
		Elem json.RawMessage
	}
	var table struct {
		Nftables []struct{ Set, Map *set }
	}
	require.NoError(t, json.Unmarshal(out, &table))
	links, err := exec.Command("ip", "-j", "link").Output()
	require.NoError(t, err)
	var named []struct{ Ifname, Ifalias string }
	require.NoError(t, json.Unmarshal(links, &named))
	byLink := map[string]string{}
	for _, l := range named {
		byLink[l.Ifname] = idPattern.FindString(l.Ifalias)
	}
	ids, byAddr := map[string]bool{}, map[string]string{}
	var rest []set
	for _, x := range table.Nftables {
		s := x.Set
		if s == nil {
			s = x.Map
		}
		switch {
		case s == nil || len(s.Elem) == 0:
		case s.Name == "pairs":
			var pairs []struct{ Concat []string }
			require.NoError(t, json.Unmarshal(s.Elem, &pairs), "%s", s.Elem)
			for _, p := range pairs {
				require.Len(t, p.Concat, 2)
				id := byLink[p.Concat[0]]
				if id == "" {
					id = p.Concat[0]
				}
				ids[id], byAddr[p.Concat[1]] = true, id
			}
		default:
			rest = append(rest, *s)
		}
	}
	for _, s := range rest {
		if !slices.Contains([]string{"modes", "gens", "live", "off", "refused"}, s.Name) {
			continue // of addresses elsewhere, or forgotten by the kernel itself
		}
		for _, m := range addressPattern.FindAllStringSubmatch(string(s.Elem), -1) {
			if byAddr[m[1]] == "" {
				ids[m[1]+" in "+s.Name] = true
			}
		}
	}
	return ids
}
