package runsc

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"sandgate/sandbox"
)

// stdio is the first bridge into a sandbox that was just made: process 1's own stdin and stdout, which it gives up when
// that bridge ends. It needs no program of its own, whose start takes a tenth of a creation's time.
type stdio struct {
	in, out *os.File
	left    func()
	once    sync.Once
}

// makeStdio gives the pipes that process 1 begins with. They are the sandbox's first bridge once keep is called with nil.
func (r *Runtime) makeStdio(id sandbox.ID) (theirs []*os.File, keep func(error), err error) {
	var ends [4]*os.File
	if ends[0], ends[1], err = os.Pipe(); err != nil {
		return nil, nil, err
	}
	if ends[2], ends[3], err = os.Pipe(); err != nil {
		return nil, nil, errors.Join(err, ends[0].Close(), ends[1].Close())
	}
	theirs = []*os.File{ends[0], ends[3]}
	b := &stdio{in: ends[1], out: ends[2], left: func() { r.bridges.leave(id) }}
	grow(b.in)
	grow(b.out)
	return theirs, func(err error) {
		_, _ = theirs[0].Close(), theirs[1].Close()
		if err == nil {
			err = r.bridges.enter(id)
		}
		if err != nil {
			_, _ = b.in.Close(), b.out.Close()
			return
		}
		r.firsts.Store(id, b)
	}, nil
}

// closeFirst ends the first bridge if nobody took it.
func (r *Runtime) closeFirst(id sandbox.ID) {
	if b, ok := r.firsts.LoadAndDelete(id); ok {
		_ = b.(*stdio).Close()
	}
}

// Read implements io.Reader.
func (b *stdio) Read(p []byte) (int, error) { return b.out.Read(p) }

// Write implements io.Writer.
func (b *stdio) Write(p []byte) (int, error) { return b.in.Write(p) }

// Close waits a moment until process 1 has given the pipes up.
func (b *stdio) Close() error {
	b.once.Do(func() {
		_ = b.in.Close()
		_ = b.out.SetReadDeadline(time.Now().Add(bridgeGrace))
		_, _ = io.Copy(io.Discard, b.out)
		_ = b.out.Close()
		b.left()
	})
	return nil
}
