package term

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/screen"
)

const (
	maxViewers  = 64        // of one terminal
	maxSizes    = 256       // size changes remembered with their place in the output
	maxLag      = 512 << 10 // a driver that is further behind holds the program up
	inputPiece  = 16 << 10  // input goes to the agent in pieces, so that a signal passes between them
	maxSignals  = 16
	maxReattach = 2 * time.Second
	slowPiece   = 10 * time.Millisecond // ordinary output takes a tenth of it
	usefulFor   = time.Second           // an attachment that held so long ends the count of failures, also when nothing was printed
)

// session is one terminal with its viewers. Lock order: Hub.mu, then mu.
type session struct {
	hub    *Hub
	key    key
	ctx    context.Context
	cancel context.CancelFunc
	ready  chan struct{} // closed once what the agent had kept has arrived
	moved  chan struct{} // the driver took output
	stirs  chan struct{} // somebody typed, or the sandbox was woken: holds at most one token

	mu      sync.Mutex
	changed *sync.Cond // for the input and control loops
	att     agent.Attachment
	ring    *ring
	screen  *screen.Screen
	sizes   []sizeMark
	sizeSeq int // number of the size change after the newest
	exit    *agent.Exit
	ended   *CloseError
	viewers []*viewer // in the order they came
	driver  *viewer
	rec     *recorder // nil: not recorded
	seat    *seat     // of a driver whose connection broke; nil once somebody drives on purpose
	seats   int       // how many viewers there ever were
	linger  *time.Timer
	settled bool
	asleep  bool      // viewers were told that the sandbox is suspended
	printed time.Time // when output came last

	input      []piece
	inputBytes int
	resize     *agent.Size
	signals    []string
}

// sizeMark is a size change and its place in the output.
type sizeMark struct {
	off  int64
	size agent.Size
}

// piece is input and who typed it, so that it can be withdrawn when that viewer loses the right.
type piece struct {
	from *viewer
	p    []byte
}

// unused reports whether nobody looks and nothing records. Called with mu held.
func (s *session) unused() bool { return len(s.viewers) == 0 && s.rec == nil }

func newSession(h *Hub, k key) *session {
	s := &session{
		hub: h, key: k, ready: make(chan struct{}), moved: make(chan struct{}, 1), stirs: make(chan struct{}, 1),
		ring: newRing(agent.DefaultRing), screen: screen.New(80, 24),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.changed = sync.NewCond(&s.mu)
	return s
}

// stop ends the session: attachment, loops, viewers. Idempotent.
func (s *session) stop(why *CloseError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return
	}
	s.ended = why
	if s.linger != nil {
		s.linger.Stop()
	}
	s.input, s.inputBytes = nil, 0
	for _, w := range s.viewers {
		w.finish(why)
	}
	s.changed.Broadcast()
	s.cancel()
}

// run keeps the terminal attached, again after each loss of the bridge, until it exits or the session ends.
func (s *session) run() {
	var lost time.Time
	pause, since := s.hub.times.retry, int64(-1)
	for {
		att, err := s.hub.attach(s.ctx, s.key.id, s.key.pty, since)
		if err == nil {
			before, start := s.nextOffset(), time.Now()
			err = s.pump(att)
			if s.ctx.Err() == nil && errors.Is(err, io.EOF) {
				s.hub.endIdle(s)
				return // exited: viewers read the rest from the ring, the last one ends the session
			}
			if since = s.nextOffset(); since > before || time.Since(start) > usefulFor {
				lost, pause = time.Time{}, s.hub.times.retry
			}
			if !s.isSettled() {
				since = -1
			}
		}
		if s.ctx.Err() != nil {
			return
		}
		if errors.Is(err, sandbox.ErrAsleep) {
			if err = s.sleep(); err == nil {
				lost, pause = time.Time{}, s.hub.times.retry
				continue
			}
		}
		if why := fatal(err); why != nil {
			s.hub.end(s, why)
			return
		}
		if lost.IsZero() {
			lost = time.Now()
		} else if time.Since(lost) > s.hub.times.giveUp {
			s.hub.end(s, &CloseError{CloseTooSlow, "the sandbox does not answer; come back"})
			return
		} else {
			s.noticeAll("interrupted", "The connection to the sandbox is interrupted. What you type is kept and sent when it is back.")
		}
		slog.Debug("terminal: bridge lost", "sandbox", s.key.id, "pty", s.key.pty, "cause", err)
		select {
		case <-time.After(pause):
		case <-s.ctx.Done():
			return
		}
		pause = min(2*pause, maxReattach)
	}
}

// sleep waits until there is a reason to look again: somebody types, which wakes the sandbox, or something else woke it.
func (s *session) sleep() error {
	s.mu.Lock()
	told := s.asleep
	s.asleep = true
	s.mu.Unlock()
	if !told {
		s.noticeAll("suspended", textSuspended)
	}
	if !s.hasTyped() {
		select {
		case <-s.stirs:
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
	}
	if s.hasTyped() && s.hub.wake != nil {
		return s.hub.wake(s.ctx, s.key.id)
	}
	return nil
}

func (s *session) hasTyped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.input) > 0 || len(s.signals) > 0
}

// stir lets a session that sleeps look again.
func (s *session) stir() {
	select {
	case s.stirs <- struct{}{}:
	default:
	}
}

// fatal says which close code an error of the attachment means; nil: try again.
func fatal(err error) *CloseError {
	switch fault.KindOf(err) {
	case fault.NotFound, fault.SandboxDied:
		return &CloseError{CloseGone, cutReason(fault.Public(err))}
	case fault.Forbidden, fault.ApprovalDenied:
		return &CloseError{CloseForbidden, cutReason(fault.Public(err))}
	case fault.ApprovalNeeded:
		return &CloseError{CloseApproval, cutReason(fault.Public(err))}
	}
	return nil
}

// pump takes events until the attachment ends; io.EOF means that the terminal exited.
func (s *session) pump(att agent.Attachment) error {
	defer context.AfterFunc(s.ctx, func() { _ = att.Close() })()
	defer func() {
		s.mu.Lock()
		s.att = nil
		s.mu.Unlock()
		_ = att.Close()
	}()
	s.mu.Lock()
	s.att, s.asleep = att, false
	s.restored()
	s.changed.Broadcast()
	s.mu.Unlock()

	settle := func() {}
	if r, ok := att.(replayer); ok {
		end := r.ReplayEnd()
		settle = func() {
			if s.nextOffset() >= end {
				s.settle()
			}
		}
		settle()
	} else if !s.isSettled() {
		quiet := time.AfterFunc(s.hub.times.quiet, s.settle)
		longest := time.AfterFunc(s.hub.times.settle, s.settle)
		defer longest.Stop()
		defer quiet.Stop()
		settle = func() { quiet.Reset(s.hub.times.quiet) }
	}
	for {
		s.waitForDriver()
		ev, err := att.Next()
		if err != nil {
			if s.hasExited() {
				return io.EOF
			}
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF // an end without an exit is a broken bridge
			}
			return err
		}
		s.take(ev)
		settle()
	}
}

// take puts one event into the ring and wakes everybody.
func (s *session) take(ev agent.PTYEvent) {
	if len(ev.Output) > 0 {
		s.takeOutput(ev.Offset, ev.Output)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case ev.Size != nil:
		size := clampSize(ev.Size.Cols, ev.Size.Rows)
		if n := len(s.sizes); n > 0 && s.sizes[n-1].size == size {
			return
		}
		if len(s.sizes) == maxSizes {
			s.sizes = s.sizes[:copy(s.sizes, s.sizes[maxSizes/2:])]
		}
		s.sizes = append(s.sizes, sizeMark{s.ring.next, size})
		s.screen.Resize(size.Cols, size.Rows)
		s.sizeSeq++
	case ev.Refused:
		s.refused()
	case ev.Exit != nil:
		e := *ev.Exit
		s.exit = &e
		s.settleLocked()
	}
	for _, w := range s.viewers {
		w.poke()
	}
	if s.rec != nil {
		s.rec.poke()
	}
}

// takeOutput takes output in pieces, so that a program whose output is dear to follow holds nobody else up: the lock is free between
// them, and reading rests for thrice as long as a slow piece took.
func (s *session) takeOutput(off int64, p []byte) {
	for len(p) > 0 {
		s.mu.Lock()
		start := time.Now()
		if off > s.ring.next { // the agent's ring went on without us: a gap, healed by a snapshot
			s.ring.reset(off)
			cols, rows := s.screen.Size()
			s.screen = screen.New(cols, rows)
			s.screen.Join()
		}
		if seen := s.ring.next - off; seen > 0 { // sent again after a lost bridge
			if seen >= int64(len(p)) {
				s.mu.Unlock()
				return
			}
			off, p = off+seen, p[seen:]
		}
		n := min(len(p), s.screen.Piece())
		s.ring.append(p[:n])
		s.screen.Write(p[:n])
		s.printed = time.Now()
		off, p = off+int64(n), p[n:]
		for _, w := range s.viewers {
			w.poke()
		}
		took := s.printed.Sub(start)
		s.mu.Unlock()
		if took > slowPiece {
			select {
			case <-time.After(3 * took):
			case <-s.ctx.Done():
				return
			}
		}
	}
}

func (s *session) settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settleLocked()
}

func (s *session) settleLocked() {
	if !s.settled {
		s.settled = true
		close(s.ready)
	}
}

func (s *session) isSettled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settled
}

func (s *session) hasExited() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.exit != nil
}

func (s *session) nextOffset() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ring.next
}

// waitForDriver holds reading up while the driver is far behind, so that a flood slows down instead of running ahead of
// the screen. A driver who takes nothing at all is not waited for: the program must not freeze for a sleeping laptop.
func (s *session) waitForDriver() {
	for {
		s.mu.Lock()
		d := s.driver
		behind := d != nil && d.greeted && !d.stalled && time.Now().After(d.skipTill) && s.ring.next-d.cursor > maxLag
		rec := s.rec
		far := rec.far()
		s.mu.Unlock()
		if !behind && !far {
			return
		}
		select {
		case <-s.moved:
		case <-s.ctx.Done():
			return
		case <-time.After(s.hub.times.driverStop):
			s.mu.Lock()
			if behind {
				d.stalled = true
			}
			if far {
				rec.stalled = true
			}
			s.mu.Unlock()
			return
		}
	}
}

// sizeAt gives the size that holds at an offset, and the number of the change after it.
func (s *session) sizeAt(off int64) (agent.Size, int) {
	size, seq := agent.Size{Cols: 80, Rows: 24}, s.sizeSeq-len(s.sizes)
	for i, m := range s.sizes {
		if m.off > off {
			if i == 0 {
				size = m.size // older ones are forgotten
			}
			break
		}
		size, seq = m.size, s.sizeSeq-len(s.sizes)+i+1
	}
	return size, seq
}
