package workspace

import (
	"context"
	"sync"

	"sandgate/auth"
)

// Change tells that something in a workspace changed; receivers load what they show again.
type Change struct {
	Kind      string // "sandbox", "terminal", "people", "snapshot"
	SandboxID string
}

// Changes sends a Change for each change in the actor's workspace until ctx ends, then closes the channel. Bursts of the
// same Change are merged, none is lost. The caller guards the stream with Guard.
func (s *Service) Changes(ctx context.Context, a auth.Actor) <-chan Change {
	sub := s.feed.subscribe(a.Workspace.ID)
	out := make(chan Change)
	go func() { // owned by ctx
		defer close(out)
		defer s.feed.unsubscribe(sub)
		for {
			select {
			case <-ctx.Done():
				return
			case <-sub.wake:
			}
			for _, c := range sub.take() {
				select {
				case out <- c:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return out
}

// feed fans changes out. The zero value is ready.
type feed struct {
	mu   sync.Mutex
	subs map[*subscriber]struct{}
}

type subscriber struct {
	workspace string
	wake      chan struct{} // holds at most one token

	mu      sync.Mutex
	pending []Change // in order of first arrival, without repeats
}

func (f *feed) subscribe(workspace string) *subscriber {
	sub := &subscriber{workspace: workspace, wake: make(chan struct{}, 1)}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.subs == nil {
		f.subs = map[*subscriber]struct{}{}
	}
	f.subs[sub] = struct{}{}
	return sub
}

func (f *feed) unsubscribe(sub *subscriber) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.subs, sub)
}

// send never blocks.
func (f *feed) send(workspace string, c Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for sub := range f.subs {
		if sub.workspace == workspace {
			sub.put(c)
		}
	}
}

func (sub *subscriber) put(c Change) {
	sub.mu.Lock()
	known := false
	for _, p := range sub.pending {
		known = known || p == c
	}
	if !known {
		sub.pending = append(sub.pending, c)
	}
	sub.mu.Unlock()
	select {
	case sub.wake <- struct{}{}:
	default:
	}
}

func (sub *subscriber) take() []Change {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	out := sub.pending
	sub.pending = nil
	return out
}
