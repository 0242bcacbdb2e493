package runsc

import (
	"context"
	"sync"
	"time"

	"sandgate/internal/fault"
	"sandgate/sandbox"
)

// bridges counts the bridges into each sandbox. A state that was saved with one open cannot be restored: its pipes are the
// host's.
type bridges struct {
	mu    sync.Mutex
	open  map[sandbox.ID]int
	held  map[sandbox.ID]bool
	fresh map[sandbox.ID]*first // of new sandboxes, not asked for yet; they count as open
}

// enter counts a bridge that is about to be opened; refused while a save is made.
func (b *bridges) enter(id sandbox.ID) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held[id] {
		return fault.New(fault.Starting, "The state of the sandbox is being saved; try again in a moment.")
	}
	if b.open == nil {
		b.open = map[sandbox.ID]int{}
	}
	b.open[id]++
	return nil
}

// leave counts one that has ended.
func (b *bridges) leave(id sandbox.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open[id]--; b.open[id] <= 0 {
		delete(b.open, id)
	}
}

// shut lets no new bridge in until release is called, and waits until the open ones have ended.
func (b *bridges) shut(ctx context.Context, id sandbox.ID, limit time.Duration) (release func(), err error) {
	b.mu.Lock()
	if b.held[id] {
		b.mu.Unlock()
		return nil, fault.New(fault.Conflict, "The state of the sandbox is being saved already.")
	}
	if b.held == nil {
		b.held = map[sandbox.ID]bool{}
	}
	b.held[id] = true
	b.mu.Unlock()
	release = func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.held, id)
	}
	b.retire(id)
	err = poll(ctx, limit, func() (bool, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.open[id] == 0, nil
	})
	if err != nil {
		release()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fault.New(fault.Conflict, "The sandbox is in use: its state cannot be saved now.")
	}
	return release, nil
}
