package runsc

import (
	"io"
	"os"
	"sync"
	"time"

	"sandgate/sandbox"
)

// first is the bridge that a new sandbox has from the start: standard input and output of process 1 are its pipes, which
// spares a creation the program that every later one is started with.
type first struct {
	in, out *os.File
	once    sync.Once
	ended   func()
}

// Read gives bytes from the agent.
func (b *first) Read(p []byte) (int, error) { return b.out.Read(p) }

// Write sends bytes to the agent.
func (b *first) Write(p []byte) (int, error) { return b.in.Write(p) }

// How long the agent has to close its side, after it saw the end of its input: while somebody waits, and in all.
const (
	letGo     = 250 * time.Millisecond
	letGoMost = 10 * time.Second
)

// Close ends the bridge and waits a little until the agent has closed its side. Until it has the bridge counts as open,
// because a state in which it has not cannot be restored.
func (b *first) Close() error {
	closed := make(chan struct{})
	b.once.Do(func() {
		_ = b.in.Close()
		go func() {
			defer close(closed)
			if b.out.SetReadDeadline(time.Now().Add(letGoMost)) == nil {
				_, _ = io.Copy(io.Discard, b.out)
			}
			_ = b.out.Close()
			b.ended()
		}()
		select {
		case <-closed:
		case <-time.After(letGo):
		}
	})
	return nil
}

// drop gives up one that nobody uses, of a sandbox that goes: it need not have noticed.
func (b *first) drop() {
	b.once.Do(func() { _, _ = b.in.Close(), b.out.Close(); b.ended() })
}

// make gives the streams of a sandbox that is about to be made, and keeps the host's side until it is asked for or dropped.
func (b *bridges) make(id sandbox.ID) (stdin, stdout *os.File, err error) {
	if err := b.enter(id); err != nil {
		return nil, nil, err
	}
	inR, inW, outR, outW, err := bridgePipes()
	if err != nil {
		b.leave(id)
		return nil, nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fresh == nil {
		b.fresh = map[sandbox.ID]*first{}
	}
	b.fresh[id] = &first{in: inW, out: outR, ended: func() { b.leave(id) }}
	return inR, outW, nil
}

// take gives the bridge that a sandbox was made with; nil when somebody has had it, there is none, or a save is made.
func (b *bridges) take(id sandbox.ID) *first {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held[id] {
		return nil
	}
	f := b.fresh[id]
	delete(b.fresh, id)
	return f
}

// drop gives up the bridge that a sandbox was made with, if nobody has had it.
func (b *bridges) drop(id sandbox.ID) {
	b.mu.Lock()
	f := b.fresh[id]
	delete(b.fresh, id)
	b.mu.Unlock()
	if f != nil {
		f.drop()
	}
}

// retire ends the bridge that a sandbox was made with, if nobody has had it; it counts as open until the sandbox has noticed.
func (b *bridges) retire(id sandbox.ID) {
	b.mu.Lock()
	f := b.fresh[id]
	delete(b.fresh, id)
	b.mu.Unlock()
	if f != nil {
		_ = f.Close()
	}
}

// dropAll gives up all that nobody has had.
func (b *bridges) dropAll() {
	b.mu.Lock()
	all := b.fresh
	b.fresh = nil
	b.mu.Unlock()
	for _, f := range all {
		f.drop()
	}
}
