package term

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

// A terminal of a suspended sandbox waits, tells its viewers once, and wakes the sandbox when somebody types.
func TestATerminalWaitsForASleepingSandbox(t *testing.T) {
	r := newRig(t)
	var asleep atomic.Bool
	var wakes, asked atomic.Int32
	attach := r.hub.attach
	r.hub.attach = func(ctx context.Context, id sandbox.ID, pty string, since int64) (agent.Attachment, error) {
		if asleep.Load() {
			asked.Add(1)
			return nil, fmt.Errorf("%w: test", sandbox.ErrAsleep)
		}
		return attach(ctx, id, pty, since)
	}
	r.hub.WakeBy(func(context.Context, sandbox.ID) error {
		wakes.Add(1)
		asleep.Store(false)
		return nil
	})
	w := r.opened(typist)
	r.f.prints("before\n")
	r.shows(w, "before\n")

	asleep.Store(true)
	r.f.breakBridges()
	r.until(func() bool { return w.notices("suspended") == 1 }, "the notice")
	r.hub.Awake(testID) // a false alarm
	r.until(func() bool { return asked.Load() >= 2 }, "another look")
	require.Zero(t, wakes.Load(), "an open page wakes nothing")

	w.types("x")
	r.until(func() bool { return r.f.typed() == "x" }, "the key that woke it")
	require.EqualValues(t, 1, wakes.Load())
	r.f.prints("after\n")
	r.shows(w, "before\nafter\n")
	require.Equal(t, 1, w.notices("suspended"))

	// Woken by something else.
	before := asked.Load()
	asleep.Store(true)
	r.f.breakBridges()
	r.until(func() bool { return asked.Load() > before }, "another try")
	asleep.Store(false)
	r.hub.Awake(testID)
	r.f.prints("again\n")
	r.shows(w, "before\nafter\nagain\n")
	require.EqualValues(t, 1, wakes.Load())
}
