package term

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	maxControl    = 64              // messages that wait for a viewer
	noticeEvery   = 5 * time.Second // the same notice at most so often
	skipLag       = 128 << 10       // an interrupt skips output only when more than this waits
	minChunk      = 4 << 10         // credit below this waits for more, so that frames do not get tiny
	resyncCredit  = credit - maxSnapshot - 4<<10
	onInputAtMost = time.Second
)

// viewer is one connection to a session. Everything below "guarded" belongs to session.mu.
type viewer struct {
	Viewer
	s       *session
	conn    Conn
	onInput func()
	wake    chan struct{} // something to send may have come
	over    chan struct{} // closed when the viewer is to end, ending says how
	endOnce sync.Once
	ending  *CloseError // nil: it left by itself

	// guarded
	id          int // among the viewers of this terminal
	asks        bool
	declined    time.Time
	wantsPeople bool
	peopleDue   bool
	received    int64 // bytes of input

	greeted  bool
	left     bool
	stalled  bool // as driver: took nothing for a while
	control  [][]byte
	noticed  map[string]time.Time
	cursor   int64 // offset of the next byte to send
	acked    int64
	snapped  int64 // bytes of a snapshot, and of what was under way before it, not acknowledged yet
	wants    bool  // a snapshot comes before anything else
	sizeSeq  int   // number of the next size change to send
	starved  time.Time
	partial  time.Time // since when the first bytes of a character wait
	lastType time.Time
	exitSaid bool
	skipTill time.Time // until then a flood is skipped, because the driver interrupted it
	skips    bool      // one is being skipped
}

func newViewer(s *session, v Viewer, conn Conn, onInput func()) *viewer {
	return &viewer{
		Viewer: v, s: s, conn: conn, onInput: onInput, wake: make(chan struct{}, 1), over: make(chan struct{}),
		noticed: map[string]time.Time{},
	}
}

// finish ends the viewer; only the first call counts.
func (w *viewer) finish(why *CloseError) {
	w.endOnce.Do(func() {
		w.ending = why
		close(w.over)
	})
}

func (w *viewer) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// say queues a JSON message. Called with mu held.
func (w *viewer) say(m any) {
	if len(w.control) < maxControl {
		w.control = append(w.control, encode(m))
		w.poke()
	}
}

// notice tells the viewer something, each code only now and then. Called with mu held.
func (w *viewer) notice(code, text string) {
	if now := time.Now(); now.Sub(w.noticed[code]) >= noticeEvery {
		w.noticed[code] = now
		w.say(noticeMessage{"notice", code, text})
	}
}

// roleChanged tells the viewer who drives now; before the hello there is nothing to tell. Called with mu held.
func (w *viewer) roleChanged() {
	delete(w.noticed, "not_driver")
	w.stalled = false
	if w.greeted {
		w.say(roleMessage{"role", w.role(), w.s.driverName()})
	}
}

func (w *viewer) role() string {
	if w.s.driver == w {
		return roleDriver
	}
	return roleViewer
}

// writeLoop sends until the viewer is over. It is the only writer.
func (w *viewer) writeLoop(ctx context.Context) {
	select {
	case <-w.s.ready:
	case <-w.over:
		return
	case <-ctx.Done():
		return
	}
	buf := make([]byte, 0, maxFrame)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		frame, binary, wait, end := w.next(buf)
		if end != nil {
			w.finish(end)
			return
		}
		if frame == nil {
			timer.Reset(wait)
			select {
			case <-w.wake:
			case <-timer.C:
			case <-w.over:
				return
			case <-ctx.Done():
				return
			}
			continue
		}
		select {
		case <-w.over: // nothing is sent once the viewer is to end
			return
		default:
		}
		wctx, cancel := context.WithTimeout(ctx, w.s.hub.times.write)
		err := w.conn.Write(wctx, binary, frame)
		cancel()
		switch {
		case err == nil:
		case errors.Is(err, context.DeadlineExceeded):
			w.finish(&CloseError{CloseTooSlow, "too slow; come back"})
			return
		default:
			w.finish(nil)
			return
		}
	}
}
