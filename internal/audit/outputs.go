package audit

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"sync"
	"time"

	"sandgate/internal/fault"
)

// MaxOutput is how much of what a command printed is kept, in bytes of both streams together.
const MaxOutput = 64 << 10

// Output is a copy of the beginning of what a command printed, secrets masked.
type Output struct {
	Stdout, Stderr           []byte
	StdoutTotal, StderrTotal int64 // bytes that were printed
	Cut                      bool  // more was printed than is kept
}

// Digest is what the chain holds of it.
func (o Output) Digest() string {
	h := sha256.New()
	h.Write([]byte("sandgate output 1"))
	var n [8]byte
	number := func(v int64) {
		binary.BigEndian.PutUint64(n[:], uint64(v))
		h.Write(n[:])
	}
	for _, p := range [][]byte{o.Stdout, o.Stderr} {
		number(int64(len(p)))
		h.Write(p)
	}
	number(o.StdoutTotal)
	number(o.StderrTotal)
	if o.Cut {
		number(1)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Copy is an Output in its place beside the chain.
type Copy struct {
	Seq      int64
	At       time.Time
	Recorded string // the digest that the chain holds; only read
	Output
}

// Copies keeps them; internal/store implements it.
type Copies interface {
	PutAuditOutputs(ctx context.Context, copies []Copy) error
	// AuditOutput gives one by the number of its row; fault.NotFound.
	AuditOutput(ctx context.Context, seq int64) (Copy, error)
	// AuditOutputs gives those after a seq, in order.
	AuditOutputs(ctx context.Context, after int64, limit int) ([]Copy, error)
	// PruneAuditOutputs removes some of those from before a moment, and the oldest while all together are larger than a number
	// of bytes; more is true when it has to be called again.
	PruneAuditOutputs(ctx context.Context, before time.Time, most int64) (more bool, err error)
	// AuditSizes tells how much there is.
	AuditSizes(ctx context.Context) (Sizes, error)
}

// Sizes is how large the record is.
type Sizes struct {
	Events      int64 // rows of the chain
	Copies      int64
	CopiesBytes int64
	OldestCopy  time.Time
	Database    int64 // bytes of the whole database
}

// maxPending bounds the copies that wait to be written, in bytes.
const maxPending = 16 << 20

// pending are copies on their way into the database.
type pending struct {
	flush sync.Mutex // one writer at a time
	mu    sync.Mutex
	line  []Copy
	bytes int
	wake  chan struct{} // holds at most one token
}

// keep puts a copy in line. Where too many wait it is left out: a command must not wait for its copy.
func (l *Log) keep(seq int64, at time.Time, o Output) {
	size := len(o.Stdout) + len(o.Stderr)
	p := &l.copies
	p.mu.Lock()
	fits := p.bytes+size <= maxPending
	if fits {
		p.line = append(p.line, Copy{Seq: seq, At: at, Output: o})
		p.bytes += size
	}
	p.mu.Unlock()
	if !fits {
		l.o.Log.Warn("the copy of an output is not kept: too many wait", "event", seq)
		return
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// flushBatch is how many copies one transaction takes: it holds the writers of events up.
const flushBatch = 16

// Flush writes the copies that wait. Call it once more at the end of a process.
func (l *Log) Flush(ctx context.Context) error {
	p := &l.copies
	p.flush.Lock()
	defer p.flush.Unlock()
	for {
		p.mu.Lock()
		batch := p.line[:min(len(p.line), flushBatch)]
		p.mu.Unlock()
		if len(batch) == 0 {
			return nil
		}
		if err := l.o.Store.PutAuditOutputs(ctx, batch); err != nil {
			return err
		}
		p.mu.Lock()
		for _, c := range batch {
			p.bytes -= len(c.Stdout) + len(c.Stderr)
		}
		p.line = append([]Copy(nil), p.line[len(batch):]...)
		p.mu.Unlock()
	}
}

// Output gives the copy of what the command of an event printed; fault.NotFound when there is none, or none any more.
func (l *Log) Output(ctx context.Context, e Event) (Output, error) {
	if e.OutputDigest == "" {
		return Output{}, fault.New(fault.NotFound, "Nothing is kept of an output of this event.")
	}
	l.copies.mu.Lock()
	for _, c := range l.copies.line {
		if c.Seq == e.EndSeq {
			l.copies.mu.Unlock()
			return c.Output, nil
		}
	}
	l.copies.mu.Unlock()
	c, err := l.o.Store.AuditOutput(ctx, e.EndSeq)
	return c.Output, err
}
