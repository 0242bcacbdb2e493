package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/fault"
	"sandgate/internal/store"
	"sandgate/internal/testenv"
	"sandgate/sandbox"
	"sandgate/sandbox/image"
	"sandgate/sandbox/netjail"
	"sandgate/sandbox/runsc"
	"sandgate/sandbox/sandboxtest"
)

var errInjected = errors.New("an injected fault")

// failing is a store one write of which fails: before it happens, or after.
type failing struct {
	*store.Store

	mu    sync.Mutex
	seen  int // writes since arm
	at    int // which one fails; 0: none
	after bool
	what  string // the one that failed
}

func (f *failing) arm(at int, after bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen, f.at, f.after, f.what = 0, at, after, ""
}

// disarm tells what failed; "" when there were fewer writes.
func (f *failing) disarm() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = 0
	return f.what
}

func (f *failing) write(what string, do func() error) error {
	f.mu.Lock()
	f.seen++
	hit, after := f.seen == f.at, f.after
	if hit {
		f.what = what
	}
	f.mu.Unlock()
	if hit && !after {
		return errInjected
	}
	if err := do(); err != nil || !hit {
		return err
	}
	return errInjected
}

func (f *failing) InsertSandboxWithin(ctx context.Context, r sandbox.Record, q sandbox.Quota) error {
	return f.write("record", func() error { return f.Store.InsertSandboxWithin(ctx, r, q) })
}

func (f *failing) ChangeStatus(ctx context.Context, id sandbox.ID, from, to sandbox.Status, reason string, at time.Time) (moved bool, err error) {
	err = f.write(string(from)+" to "+string(to), func() error {
		moved, err = f.Store.ChangeStatus(ctx, id, from, to, reason, at)
		return err
	})
	return moved, err
}

func (f *failing) NoteStep(ctx context.Context, id sandbox.ID, step string, at time.Time) error {
	return f.write("step "+step, func() error { return f.Store.NoteStep(ctx, id, step, at) })
}

func (f *failing) NoteSave(ctx context.Context, id sandbox.ID, at time.Time, bytes int64) error {
	return f.write("save", func() error { return f.Store.NoteSave(ctx, id, at, bytes) })
}

func (f *failing) ExtendIdle(ctx context.Context, id sandbox.ID, at time.Time) error {
	return f.write("deadline", func() error { return f.Store.ExtendIdle(ctx, id, at) })
}

func (f *failing) InsertSnapshotWithin(ctx context.Context, s sandbox.Snapshot, q sandbox.SnapshotQuota) error {
	return f.write("snapshot", func() error { return f.Store.InsertSnapshotWithin(ctx, s, q) })
}

func (f *failing) FinishSnapshot(ctx context.Context, id sandbox.SaveID, bytes int64, q sandbox.SnapshotQuota) error {
	return f.write("whole snapshot", func() error { return f.Store.FinishSnapshot(ctx, id, bytes, q) })
}

func (f *failing) DeleteSnapshot(ctx context.Context, id sandbox.SaveID) error {
	return f.write("forget snapshot", func() error { return f.Store.DeleteSnapshot(ctx, id) })
}

// failingRunsc passes every call on to runsc but the next one of a word, which fails before it does anything, or after.
const failingRunsc = `#!/bin/sh
plan=$(cat "$(dirname "$0")/plan" 2>/dev/null)
word=
for a in "$@"; do case $a in -*) ;; *) word=$a; break ;; esac; done
case $plan in
"$word before") rm -f "$(dirname "$0")/plan"; exit 1 ;;
"$word after") rm -f "$(dirname "$0")/plan"; %[1]s "$@"; exit 1 ;;
esac
exec %[1]s "$@"
`

// shop is a manager over the real runtime, network and store, each of which can fail.
type shop struct {
	*sandbox.Manager
	t       *testing.T
	records *failing
	runtime *runsc.Runtime
	jail    *netjail.Jail
	inst    string
	data    string
	plan    string // the file that says which call of runsc fails
}

func newShop(t *testing.T) *shop {
	t.Helper()
	real := testenv.Runsc(t)
	testenv.Image(t)
	dir := func(pattern string) string {
		d, err := os.MkdirTemp("", pattern)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, os.RemoveAll(d)) })
		return d
	}
	bin := dir("sandgate-bin-")
	h := &shop{t: t, inst: sandbox.RandomID("")[:4], data: dir("sandgate-data-"), plan: filepath.Join(bin, "plan")}
	wrapper := filepath.Join(bin, "runsc")
	require.NoError(t, os.WriteFile(wrapper, fmt.Appendf(nil, failingRunsc, real), 0o755))
	st, err := store.Open(t.Context(), filepath.Join(h.data, "sandgate.db"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	require.NoError(t, st.InsertUser(t.Context(), auth.User{ID: "us1", Email: "p1@example.org", PasswordHash: "x"}))
	_, err = st.InsertWorkspace(t.Context(), auth.Workspace{ID: "ws1", Slug: "lab", Name: "Lab"}, auth.Member{WorkspaceID: "ws1", UserID: "us1", Role: auth.Admin})
	require.NoError(t, err)
	h.records = &failing{Store: st}
	images, err := image.Open(testenv.CacheDir())
	require.NoError(t, err)
	h.runtime, err = runsc.New(runsc.Options{
		Binary: wrapper, AgentBinary: testenv.Program(t, "sandgate-agent"), Images: images, DataDir: h.data, Inst: h.inst,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.runtime.Close()) })
	h.jail, err = netjail.New(netjail.Options{Inst: h.inst})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.jail.Close()) })
	h.Manager, err = sandbox.New(sandbox.Options{Runtime: h.runtime, Records: h.records, Snapshots: h.records, Network: h.jail})
	require.NoError(t, err)
	t.Cleanup(h.Close)
	t.Cleanup(func() {
		require.NoError(t, os.RemoveAll(h.plan))
		all, err := st.Sandboxes(context.Background(), sandbox.Filter{})
		require.NoError(t, err)
		for _, r := range all {
			require.NoError(t, h.Kill(context.Background(), r.ID, sandbox.ReasonKilled))
		}
		h.empty("at the end")
	})
	return h
}

func (h *shop) record(persistent bool) sandbox.Record {
	return sandbox.Record{
		ID: sandbox.NewID(), WorkspaceID: "ws1", Image: "base", OwnerKind: "person", OwnerID: "us1", OwnerName: "p1@example.org", Cwd: "/work", User: "root",
		Persistent: persistent, Network: sandbox.NetworkPolicy{Mode: sandbox.NetworkPublic}, Life: sandbox.Life{IdleTimeout: time.Hour},
		Resources: sandbox.Resources{CPU: 1, MemoryMB: 256, DiskMB: 256, PIDs: 256},
	}
}

// empty requires that only these sandboxes, and their own saves, are anywhere.
func (h *shop) empty(when string, but ...sandbox.ID) {
	h.t.Helper()
	ctx := context.Background()
	strange := func() []string {
		lines, err := sandboxtest.Census(h.inst, h.data)
		require.NoError(h.t, err)
		lines = slices.DeleteFunc(lines, func(line string) bool {
			if len(but) > 0 && !idPattern.MatchString(line) && !strings.HasPrefix(line, "link ") {
				return true // shared by all
			}
			return slices.ContainsFunc(but, func(id sandbox.ID) bool {
				return strings.Contains(line, string(id)) || strings.HasPrefix(line, "link sg"+h.inst+string(id[2:11]))
			})
		})
		saves, err := h.runtime.Saves(ctx)
		require.NoError(h.t, err)
		for _, s := range saves {
			if !slices.Contains(but, sandbox.ID(s.ID)) || s.Unfinished {
				lines = append(lines, fmt.Sprintf("save %+v", s))
			}
		}
		nets, err := h.jail.Found(ctx)
		require.NoError(h.t, err)
		for _, id := range nets {
			if !slices.Contains(but, id) {
				lines = append(lines, "network "+string(id))
			}
		}
		return lines
	}
	var left []string
	// Bridges that were just closed end a moment later, and a save that was broken off is settled beside the reconciliation.
	require.Eventually(h.t, func() bool { left = strange(); return len(left) == 0 }, 2*time.Minute, 20*time.Millisecond, "left %s: %v", when, &left)
	all, err := h.records.Sandboxes(ctx, sandbox.Filter{})
	require.NoError(h.t, err)
	for _, r := range all {
		require.Contains(h.t, but, r.ID, "on record %s: %+v", when, r)
	}
	snaps, err := h.records.Store.Snapshots(ctx, "")
	require.NoError(h.t, err)
	require.Empty(h.t, snaps, when)
}

// boot gives the start of a sandbox's agent, which is another one when what ran in it was lost.
func (h *shop) boot(when string, id sandbox.ID) string {
	h.t.Helper()
	c, err := h.Agent(h.t.Context(), id)
	require.NoError(h.t, err, when)
	hello, err := c.Hello(h.t.Context())
	require.NoError(h.t, err, when)
	return hello.BootID
}

// Every write to the records and every call of runsc fails in turn, before and after it happened, in every passage of a
// sandbox's life. The next reconciliation, at the latest, leaves records and host agreeing and nothing lost or left.
func TestEveryStepMayFail(t *testing.T) {
	h := newShop(t)
	ctx := t.Context()
	base := h.record(true)
	_, err := h.CreateWithin(ctx, base, sandbox.Quota{})
	require.NoError(t, err)
	boot := h.boot("at first", base.ID)
	awake := func() { _, err := h.Resume(ctx, base.ID); require.NoError(t, err) }
	var made sandbox.ID // by the passage
	created := func(when string) {
		r, err := h.Record(ctx, made)
		if fault.Is(err, fault.NotFound) || err == nil && r.Status == sandbox.Gone {
			return
		}
		require.NoError(t, err)
		require.Equal(t, sandbox.Running, r.Status, when)
		h.boot(when, made)
		require.NoError(t, h.Kill(ctx, made, sandbox.ReasonKilled))
	}
	passages := []struct {
		name  string
		first func()
		do    func() error
		then  func(when string)
		words []string // of runsc that it calls
	}{
		{"create", func() {}, func() error {
			r := h.record(false)
			made = r.ID
			_, err := h.CreateWithin(ctx, r, sandbox.Quota{})
			return err
		}, created, []string{"create", "start"}},
		{"kill", func() {
			r := h.record(false)
			made = r.ID
			_, err := h.CreateWithin(ctx, r, sandbox.Quota{})
			require.NoError(t, err)
		}, func() error { return h.Kill(ctx, made, sandbox.ReasonKilled) }, created, nil}, // one that was refused was not begun
		{"suspend", awake, func() error { return h.Suspend(ctx, base.ID) }, func(string) {}, []string{"pause", "tar", "checkpoint"}},
		{"resume", func() { awake(); require.NoError(t, h.Suspend(ctx, base.ID)) }, func() error {
			_, err := h.Resume(ctx, base.ID)
			return err
		}, func(string) {}, nil}, // a failed restore goes on with the files alone: TestWhatCannotBeRestoredIsToldApart
		{"fork", awake, func() error {
			r := h.record(false)
			made = r.ID
			_, err := h.Fork(ctx, base.ID, r, sandbox.Quota{})
			return err
		}, created, []string{"checkpoint"}},
		{"snapshot", awake, func() error {
			s, err := h.TakeSnapshot(ctx, base.ID, sandbox.Snapshot{ID: sandbox.NewSnapshotID(), WorkspaceID: "ws1", Name: "kept"}, sandbox.SnapshotQuota{})
			if err == nil {
				err = h.DropSnapshot(ctx, s.ID)
			}
			return err
		}, func(when string) { // one whose end was refused stays
			left, err := h.Snapshots(ctx, "")
			require.NoError(t, err, when)
			for _, s := range left {
				require.NoError(t, h.DropSnapshot(ctx, s.ID), when)
			}
		}, []string{"tar", "checkpoint"}},
	}
	begin, count := time.Now(), 0
	after := func(when string, then func(string)) {
		count++
		require.NoError(t, h.Reconcile(ctx), when)
		then(when)
		require.Equal(t, boot, h.boot(when, base.ID), "%s: what ran was lost", when)
		h.empty(when, base.ID)
	}
	for _, p := range passages {
		for nth, more, what := 1, true, ""; more; nth++ {
			for _, late := range []bool{false, true} {
				if late && strings.HasPrefix(what, "step ") {
					continue // an intent that is noted and not followed is as one that is not noted
				}
				p.first()
				h.records.arm(nth, late)
				err := p.do()
				what = h.records.disarm()
				if more = what != ""; !more {
					require.NoError(t, err, "%s without a fault", p.name)
				}
				after(fmt.Sprintf("after %s, whose write %d (%s) failed (it was done: %t)", p.name, nth, what, late), p.then)
			}
		}
		for _, word := range p.words {
			for _, when := range []string{"before", "after"} {
				p.first()
				require.NoError(t, os.WriteFile(h.plan, []byte(word+" "+when), 0o600))
				_ = p.do()
				_, err := os.Stat(h.plan)
				require.ErrorIs(t, err, os.ErrNotExist, "%s calls runsc %s", p.name, word)
				after(fmt.Sprintf("after %s, whose runsc %s failed %s it was done", p.name, word, when), p.then)
			}
		}
		t.Logf("%s: %d faults in %s", p.name, count, time.Since(begin).Round(time.Second))
	}
}
