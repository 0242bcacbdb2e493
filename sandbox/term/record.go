package term

import (
	"context"
	"errors"
	"slices"
	"time"

	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

// Sink takes what happens in a terminal, in order, from one goroutine. An error ends the recording.
type Sink interface {
	// Output takes bytes printed, the first at an offset. One beyond what was expected: the bytes between are lost.
	Output(at time.Time, off int64, p []byte) error
	// Skip says that the output goes on at another offset than expected, and why.
	Skip(at time.Time, off int64, why string) error
	Resize(at time.Time, cols, rows int) error
	Input(at time.Time, p []byte) error
	Mark(at time.Time, label string) error
	// Flush follows when nothing more waits, Sync at most once a second after it.
	Flush() error
	Sync() error
}

const (
	recordPiece = 32 << 10              // bytes handed to a sink at a time
	recordPause = 10 * time.Millisecond // output is gathered for so long
	recordSync  = time.Second
	maxAsides   = 4096 // input and markers that wait for a sink
)

// recorder is a subscriber of its own beside the viewers: a cursor into the output that never sizes, types or answers.
type recorder struct {
	s     *session
	sink  Sink
	input bool
	since int64
	wake  chan struct{}

	// guarded by session.mu
	seated  bool
	stalled bool // took nothing for a while
	cursor  int64
	sizeSeq int
	asides  []aside
}

// aside is input or a marker with its place in the output.
type aside struct {
	at    time.Time
	off   int64
	input []byte
	mark  string
}

// Record writes a terminal's story to a sink for as long as it goes on, whether somebody looks or not: from the offset since, or
// with -1 from the oldest byte kept. A terminal has one recording at a time. It returns the exit; or the *CloseError that ended
// the terminal's session, the sink's error, or the cause of ctx. After CloseTooSlow it may be called again.
func (h *Hub) Record(ctx context.Context, id sandbox.ID, pty string, since int64, input bool, sink Sink) (*agent.Exit, error) {
	r, err := h.startRecorder(key{id, pty}, since, input, sink)
	if err != nil {
		return nil, err
	}
	defer h.serving.Done()
	exit, err := r.run(ctx)
	h.endRecorder(r)
	return exit, err
}

func (h *Hub) startRecorder(k key, since int64, input bool, sink Sink) (*recorder, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopped {
		return nil, &CloseError{CloseStopping, "the server is stopping"}
	}
	s := h.sessionAt(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended != nil:
		return nil, s.ended
	case s.rec != nil:
		return nil, errors.New("terminal is being recorded already")
	}
	if s.linger != nil {
		s.linger.Stop()
	}
	s.rec = &recorder{s: s, sink: sink, input: input, since: since, wake: make(chan struct{}, 1)}
	s.tellRecording()
	h.serving.Add(1)
	return s.rec, nil
}

func (h *Hub) endRecorder(r *recorder) {
	s := r.s
	s.mu.Lock()
	s.rec = nil
	s.tellRecording()
	over := h.lingerLocked(s)
	s.mu.Unlock()
	if over {
		h.endIdle(s)
	}
}

// tellRecording tells viewers whether the terminal is recorded. Called with mu held.
func (s *session) tellRecording() {
	for _, w := range s.viewers {
		if w.greeted {
			w.say(recordingMessage{"recording", s.rec != nil})
		}
	}
	select { // the reader may have waited for a recorder that is gone
	case s.moved <- struct{}{}:
	default:
	}
}

// Disconnect ends the session of one terminal with its viewers; the terminal itself runs on.
func (h *Hub) Disconnect(id sandbox.ID, pty string, why *CloseError) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.sessions[key{id, pty}]; s != nil {
		h.endLocked(s, why)
	}
}

// Mark puts a marker into the recordings of a sandbox's terminals, at what was printed last: that something was approved, for
// example. pty "" means all of them. Terminals that are not recorded, or that nothing is attached to, take none.
func (h *Hub) Mark(id sandbox.ID, pty, label string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for k, s := range h.sessions {
		if k.id == id && (pty == "" || k.pty == pty) {
			s.mu.Lock()
			s.mark(label)
			s.mu.Unlock()
		}
	}
}

// mark notes a marker for the recording. Called with mu held.
func (s *session) mark(label string) { s.aside(aside{mark: label}) }

// tape notes input for the recording. Called with mu held; p is not changed later.
func (s *session) tape(p []byte) {
	if s.rec != nil && s.rec.input {
		s.aside(aside{input: p})
	}
}

func (s *session) aside(a aside) {
	r := s.rec
	if r == nil || len(r.asides) >= maxAsides {
		return
	}
	if a.at, a.off = time.Now(), s.ring.next; len(r.asides) == maxAsides-1 {
		a.input, a.mark = nil, "gap: further markers and input were lost"
	}
	r.asides = append(r.asides, a)
	r.poke()
}

func (r *recorder) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// far reports whether the reader has to wait for the recorder. Called with mu held.
func (r *recorder) far() bool {
	return r != nil && r.seated && !r.stalled && r.s.ring.next-r.cursor > maxLag
}

func (r *recorder) run(ctx context.Context) (*agent.Exit, error) {
	select {
	case <-r.s.ready:
	case <-r.s.ctx.Done():
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	buf := make([]byte, recordPiece)
	unsynced := false
	sync := time.NewTimer(time.Hour)
	pause := time.NewTimer(time.Hour)
	defer sync.Stop()
	defer pause.Stop()
	for {
		more, exit, err := r.step(buf)
		if more && err == nil {
			if !unsynced {
				unsynced = true
				sync.Reset(recordSync)
			}
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-sync.C:
				unsynced = false
				if err := errors.Join(r.sink.Flush(), r.sink.Sync()); err != nil {
					return nil, err
				}
			default:
			}
			continue
		}
		if exit != nil || err != nil {
			if _, ended := errors.AsType[*CloseError](err); ended {
				err = errors.Join(err, r.sink.Flush(), r.sink.Sync())
			}
			return exit, err
		}
		if err := r.sink.Flush(); err != nil {
			return nil, err
		}
		select {
		case <-r.wake:
			pause.Reset(recordPause)
			select {
			case <-pause.C:
			case <-r.s.ctx.Done():
			case <-ctx.Done():
			}
		case <-sync.C:
			unsynced = false
			if err := r.sink.Sync(); err != nil {
				return nil, err
			}
		case <-r.s.ctx.Done():
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// step hands one thing to the sink. more: there was something. The error is the sink's, or how the session ended.
func (r *recorder) step(buf []byte) (more bool, exit *agent.Exit, _ error) {
	s, now := r.s, time.Now()
	s.mu.Lock()
	if !r.seated {
		// What was read of a terminal that ended meanwhile is on record too.
		if !s.settled && (s.ended == nil || r.since > s.ring.next) {
			defer s.mu.Unlock()
			return false, nil, s.endedError()
		}
		back := r.seat()
		if back >= 0 {
			s.mu.Unlock()
			return true, nil, r.sink.Skip(now, back, "the sandbox went back to an earlier state")
		}
	}
	r.cursor = max(r.cursor, s.ring.oldest())
	limit := s.ring.next
	if r.sizeSeq < s.sizeSeq {
		r.sizeSeq = max(r.sizeSeq, s.sizeSeq-len(s.sizes))
		m := s.sizes[len(s.sizes)-(s.sizeSeq-r.sizeSeq)]
		if m.off <= r.cursor {
			r.sizeSeq++
			s.mu.Unlock()
			return true, nil, r.sink.Resize(now, m.size.Cols, m.size.Rows)
		}
		limit = min(limit, m.off)
	}
	if len(r.asides) > 0 {
		if a := r.asides[0]; a.off <= r.cursor {
			r.asides = slices.Delete(r.asides, 0, 1)
			s.mu.Unlock()
			if a.mark != "" {
				return true, nil, r.sink.Mark(a.at, a.mark)
			}
			return true, nil, r.sink.Input(a.at, a.input)
		}
		limit = min(limit, r.asides[0].off)
	}
	if r.cursor < limit {
		off := r.cursor
		n := s.ring.copyAt(buf[:min(int64(len(buf)), limit-off)], off)
		r.cursor += int64(n)
		r.stalled = false
		select {
		case s.moved <- struct{}{}:
		default:
		}
		s.mu.Unlock()
		return true, nil, r.sink.Output(now, off, buf[:n])
	}
	defer s.mu.Unlock()
	if s.exit != nil {
		e := *s.exit
		return false, &e, nil
	}
	return false, nil, s.endedError()
}

// seat puts the cursor where the recording goes on; back is where instead, when the terminal has not printed so far: the sandbox
// was resumed from a save that is older than the recording. Called with mu held.
func (r *recorder) seat() (back int64) {
	s := r.s
	r.seated, r.cursor, back = true, r.since, -1
	if r.since < 0 {
		r.cursor = s.ring.oldest()
	}
	if r.cursor > s.ring.next {
		r.cursor = s.ring.next
		back = r.cursor
	}
	r.sizeSeq = s.sizeSeq - len(s.sizes)
	for i, m := range s.sizes { // the size that holds there; those before it are past
		if m.off <= r.cursor {
			r.sizeSeq = s.sizeSeq - len(s.sizes) + i
		}
	}
	return back
}

// endedError is how the session ended, nil while it goes on. Called with mu held.
func (s *session) endedError() error {
	if s.ended == nil {
		return nil
	}
	return s.ended
}
