package workspace_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/approval"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox/agent"
)

// errCrash is a server that ends: what comes after does not happen.
var errCrash = errors.New("the server ends here")

// crashing is a store that ends the server at a step, before or after it was written.
type crashing struct {
	workspace.Store
	mu     sync.Mutex
	at     string
	before bool
	hit    bool
}

func (c *crashing) arm(at string, before bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.before, c.hit = at, before, false
}

func (c *crashing) step(name string, do func() error) error {
	c.mu.Lock()
	now, before := c.at == name, c.before
	if now {
		c.at, c.hit = "", true
	}
	c.mu.Unlock()
	if now && before {
		return errCrash
	}
	if err := do(); err != nil {
		return err
	}
	if now {
		return errCrash
	}
	return nil
}

func (c *crashing) InsertApproval(ctx context.Context, r approval.Record, contents []approval.Content) error {
	return c.step("insert", func() error { return c.Store.InsertApproval(ctx, r, contents) })
}

func (c *crashing) DecideApproval(ctx context.Context, id, digest string, to approval.Status, d approval.Decision, useBy time.Time) (ok bool, err error) {
	err = c.step("decide", func() error { ok, err = c.Store.DecideApproval(ctx, id, digest, to, d, useBy); return err })
	return ok, err
}

func (c *crashing) ClaimApproval(ctx context.Context, id, digest string, at time.Time) (ok bool, err error) {
	err = c.step("claim", func() error { ok, err = c.Store.ClaimApproval(ctx, id, digest, at); return err })
	return ok, err
}

func (c *crashing) FinishApproval(ctx context.Context, id, outcome string, g approval.Grant) error {
	return c.step("finish", func() error { return c.Store.FinishApproval(ctx, id, outcome, g) })
}

// trial is one thing that is asked for, and everything that happens to it meanwhile, at once.
type trial struct {
	*court
	t    *testing.T
	rnd  *rand.Rand
	box  string
	n    int
	file string // what the approved bytes, and nothing else, append to or replace
	evil string // what must never be there
}

const interleavings = 1000

// TestApprovedBytesAndNothingElse races callers, approvers, the clock, changes inside and crashes against each other. In
// every one of 1,000 interleavings at most one decision counts, what runs is what was approved, at most once, and nothing
// runs without a yes.
func TestApprovedBytesAndNothingElse(t *testing.T) {
	seed := uint64(20261130)
	crash := &crashing{}
	c := &court{}
	c.world = newWorldWith(t, func(o *workspace.Options) {
		policies, ok := o.Store.(approval.Policies)
		require.True(t, ok)
		o.Gate = approval.NewGate(policies)
		crash.Store = o.Store
		o.Store = crash
	})
	c.judy = c.join(t, c.ann, "judy@example.org", "approver", false)
	c.ann.MakesPlaces = true
	boxes := []string{c.asks(t, approval.Policy{Command: approval.AskIt, Write: approval.AskIt}), c.asks(t, approval.Policy{Command: approval.AskIt, Write: approval.AskIt})}
	ran := 0
	for n := range interleavings {
		x := &trial{
			court: c, t: t, rnd: rand.New(rand.NewPCG(seed, uint64(n))), box: boxes[n%2], n: n,
			file: filepath.Join(c.tmp, fmt.Sprintf("good%d", n)), evil: filepath.Join(c.tmp, fmt.Sprintf("evil%d", n)),
		}
		if x.run(crash, boxes[(n+1)%2]) {
			ran++
		}
	}
	require.Greater(t, ran, interleavings/10, "approved ones do run")
	require.Less(t, ran, interleavings, "and not all do")
}

// act is what the trial asks for: a command or a write, told apart by what is given.
func (x *trial) act(ctx context.Context, box string, evil bool, kind int) error {
	where, text := x.file, "good"
	if evil {
		text = "evil"
	}
	switch kind {
	case 0:
		command := "printf good >> " + where
		if evil {
			command = strings.Replace(command, "good", "g\u043e\u043ed", 1) // two letters that only look alike
		}
		_, err := x.run0(ctx, box, agent.CommandSpec{Command: command})
		return err
	case 1: // the same text, but the environment decides
		env := map[string]string{"TEXT": text}
		_, err := x.run0(ctx, box, agent.CommandSpec{Command: `printf "$TEXT" >> ` + where, Env: env})
		return err
	case 2: // … or standard input
		_, err := x.run0(ctx, box, agent.CommandSpec{Command: "cat >> " + where, Stdin: []byte(text)})
		return err
	case 3: // … or the directory
		dir := filepath.Dir(where)
		if evil {
			dir = x.evil
		}
		_, err := x.run0(ctx, box, agent.CommandSpec{Command: "printf good >> " + filepath.Base(where), Cwd: dir})
		return err
	}
	return x.write(ctx, box, where, text)
}

func (x *trial) run0(ctx context.Context, box string, spec agent.CommandSpec) (agent.Exit, error) {
	return x.RunCommand(ctx, x.ann, box, spec, nothing{})
}

// run is one interleaving; it tells whether the approved bytes ran.
func (x *trial) run(crash *crashing, other string) bool {
	t, ctx := x.t, context.Background()
	kind := x.rnd.IntN(5)
	err := x.act(ctx, x.box, false, kind)
	id := waits(t, err)
	v, err := x.Approval(ctx, x.judy, id)
	require.NoError(t, err)
	if x.rnd.IntN(4) == 0 {
		crash.arm([]string{"decide", "claim", "finish"}[x.rnd.IntN(3)], x.rnd.IntN(2) == 0)
	}
	var mu sync.Mutex
	decided, used := 0, 0
	voided := false // something changed that may void it
	acts := []func(){
		func() { x.count(&mu, &decided, second(x.ApproveRequest(ctx, x.judy, id, v.Digest))) },
		func() { x.count(&mu, &used, x.act(named(ctx, id), x.box, false, kind)) },
		func() { x.count(&mu, &used, x.act(named(ctx, id), x.box, false, kind)) },
		func() { // a call that waits, and may be given up
			wait, cancel := context.WithTimeout(ctx, time.Duration(x.rnd.IntN(20))*time.Millisecond)
			defer cancel()
			wait, _ = approval.WithCall(wait, approval.Call{ID: id, Wait: time.Second})
			x.count(&mu, &used, x.act(wait, x.box, false, kind))
		},
		func() { require.Error(t, x.act(named(ctx, id), x.box, true, kind), "other bytes by the same yes") },
		func() { require.Error(t, x.act(named(ctx, id), other, false, kind), "another sandbox") },
	}
	switch x.rnd.IntN(6) {
	case 0: // two decide
		acts = append(acts, func() { x.count(&mu, &decided, second(x.ApproveRequest(ctx, x.judy, id, ""))) })
	case 1:
		acts = append(acts, func() { x.count(&mu, &decided, second(x.DenyRequest(ctx, x.judy, id, "no"))) })
	case 2:
		acts = append(acts, func() { _, _ = x.CancelRequest(ctx, x.ann, id) })
	case 3: // the last moment
		acts = append(acts, func() { x.clock.pass(approval.DecideWithin - time.Microsecond) }, func() { x.clock.pass(time.Microsecond) })
	case 4:
		voided = true
		acts = append(acts, func() {
			if kind == 4 { // what is to be written over
				_ = os.WriteFile(x.file, []byte("meanwhile"), 0o600)
			}
		})
	}
	x.rnd.Shuffle(len(acts), func(i, j int) { acts[i], acts[j] = acts[j], acts[i] })
	var all sync.WaitGroup
	for _, act := range acts {
		all.Go(act)
	}
	all.Wait()
	if x.rnd.IntN(2) == 0 { // and once more afterwards, as a client does that lost its answer
		x.count(&mu, &used, x.act(named(ctx, id), x.box, false, kind))
	}
	crash.arm("", false)

	rec, err := x.store.Approval(ctx, id)
	require.NoError(t, err)
	text, err := os.ReadFile(x.file)
	// A caller who hangs up kills what runs for it, which may have begun its file and not written it.
	executed := err == nil && string(text) != "meanwhile" && (string(text) != "" || rec.Outcome == "ok")
	what := fmt.Sprintf("interleaving %d, kind %d: %s %q", x.n, kind, rec.Status, text)
	require.NoFileExists(t, x.evil, what)
	require.LessOrEqual(t, decided, 1, what)
	require.LessOrEqual(t, used, 1, what)
	if executed {
		require.Equal(t, "good", string(text), what)
		require.Equal(t, approval.Used, rec.Status, what)
	}
	if used == 1 && !voided {
		require.True(t, executed, what)
	}
	if rec.Status == approval.Used && rec.Outcome == "ok" && !voided {
		require.True(t, executed, what)
	}
	if rec.Status != approval.Used {
		require.False(t, executed, what)
		_, _ = x.CancelRequest(ctx, x.ann, id) // what waits is bounded
	}
	return executed
}

// count counts successes; every refusal is one that the contract has.
func (x *trial) count(mu *sync.Mutex, n *int, err error) {
	switch {
	case err == nil:
		mu.Lock()
		*n++
		mu.Unlock()
	case errors.Is(err, errCrash), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
	default:
		k := fault.KindOf(err)
		require.Contains(x.t, []fault.Kind{fault.ApprovalNeeded, fault.ApprovalDenied, fault.Conflict, fault.Precondition}, k, "%v", err)
	}
}

func second[T any](_ T, err error) error { return err }

// A server that ends between yes and run never runs it twice; what the record says of it is true.
func TestACrashAtEachStepRunsItAtMostOnce(t *testing.T) {
	for _, step := range []string{"insert", "decide", "claim", "finish"} {
		for _, before := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s before=%t", step, before), func(t *testing.T) {
				crash := &crashing{}
				c := &court{}
				c.world = newWorldWith(t, func(o *workspace.Options) {
					policies, ok := o.Store.(approval.Policies)
					require.True(t, ok)
					o.Gate = approval.NewGate(policies)
					crash.Store = o.Store
					o.Store = crash
				})
				c.judy = c.join(t, c.ann, "judy@example.org", "approver", false)
				box := c.asks(t, asksCommands)
				file := filepath.Join(c.tmp, "ran")
				command := "printf x >> " + file
				crash.arm(step, before)
				_, err := c.run(t.Context(), c.ann, box, command)
				if step == "insert" {
					require.ErrorIs(t, err, errCrash)
					_, err = c.run(t.Context(), c.ann, box, command)
				}
				id := waits(t, err)
				if _, err := c.ApproveRequest(t.Context(), c.judy, id, ""); err != nil {
					require.ErrorIs(t, err, errCrash)
					if before {
						c.approve(t, id)
					}
				}
				for range 3 {
					_, _ = c.run(named(t.Context(), id), c.ann, box, command)
				}
				rec, err := c.store.Approval(t.Context(), id)
				require.NoError(t, err)
				require.Equal(t, approval.Used, rec.Status)
				text, err := os.ReadFile(file)
				if step == "claim" && !before { // claimed, and the server was gone: it may or may not have run
					require.Equal(t, "unknown", rec.Outcome)
					require.Error(t, err, "it was not run again")
					return
				}
				require.NoError(t, err)
				require.Equal(t, "x", string(text))
				if step == "finish" && before {
					require.Equal(t, "unknown", rec.Outcome)
				} else {
					require.Equal(t, "ok", rec.Outcome)
				}
			})
		}
	}
}
