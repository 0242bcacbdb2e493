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

// letGo is how long the agent has to close its side, after it saw the end of its input.
const letGo = 250 * time.Millisecond

// Close ends the bridge and waits a little until the agent has closed its side, for a state in which it has not should not
// be saved.
func (b *first) Close() error {
	b.once.Do(func() {
		_ = b.in.Close()
		if b.out.SetReadDeadline(time.Now().Add(letGo)) == nil {
			_, _ = io.Copy(io.Discard, b.out)
		}
		_ = b.out.Close()
		b.ended()
	})
	return nil
}

// drop gives up one that nobody uses: the sandbox need not have noticed.
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
