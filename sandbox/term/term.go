// Package term owns terminals on the host's side: one attachment to the agent per terminal, any number of viewers with
// their own cursors and credit, who drives, snapshots for those who come late. It must never know HTTP, people or permissions:
// it is told a name and whether that viewer may type, and speaks through the Conn it is given.
package term

import (
	"context"
	"errors"
	"sync"
	"time"

	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

// Subprotocol is the websocket subprotocol of the frames in the contract.
const Subprotocol = "sandgate.term.v1"

// Close codes of the contract.
const (
	CloseExited    = 1000
	CloseStopping  = 1001
	CloseTooSlow   = 1013
	CloseTakenOver = 4001
	CloseForbidden = 4003
	CloseGone      = 4004
	CloseExpired   = 4008
	CloseApproval  = 4009
)

// CloseError ends a viewer with a close code: cancel the context given to Serve with it as the cause.
type CloseError struct {
	Code   int
	Reason string // at most 120 bytes
}

// Error gives the reason.
func (e *CloseError) Error() string { return e.Reason }

// Conn is one viewer's message connection; handlers implement it over a websocket. Read and Write may run at the same
// time, and Close beside both. Write does not keep p. Read's p is valid until the next Read. The contexts given to Read
// and Write end only after Close, or when a Write has been stuck for too long.
type Conn interface {
	Read(ctx context.Context) (binary bool, p []byte, err error)
	Write(ctx context.Context, binary bool, p []byte) error
	Close(code int, reason string) error
}

// Viewer is who looks on.
type Viewer struct {
	Name    string // shown to the others
	Who     string // the same for every connection of one person or key; "" for nobody in particular
	MayType bool   // has sandboxes:run: may drive
	Since   int64  // offset to continue at exactly; -1 asks for a snapshot
}

// AttachFunc reaches a terminal in a sandbox, without waking one that is suspended: sandbox.ErrAsleep, the terminal waits,
// and input wakes it. The attachment lives at most as long as ctx.
type AttachFunc func(ctx context.Context, id sandbox.ID, pty string, since int64) (agent.Attachment, error)

// Hub shares terminals among viewers. Safe for concurrent use.
type Hub struct {
	attach AttachFunc
	wake   func(ctx context.Context, id sandbox.ID) error // nil: only others wake sandboxes
	times  times

	mu       sync.Mutex
	sessions map[key]*session
	stopped  bool
	serving  sync.WaitGroup // viewers and sessions
}

type key struct {
	id  sandbox.ID
	pty string
}

// times are the hub's delays; tests shorten them.
type times struct {
	linger     time.Duration // a terminal that nobody looks at stays attached for so long
	write      time.Duration // one frame may take so long
	starve     time.Duration // output may wait so long for an acknowledgement
	partial    time.Duration // a character's first bytes wait so long for the rest
	quiet      time.Duration // silence that tells the end of what the agent had kept
	settle     time.Duration // … and the longest wait for it
	driverStop time.Duration // a driver that is behind holds the program up for at most so long
	skipPause  time.Duration // after an interrupt, output is skipped until it pauses for so long
	skipMost   time.Duration // … and at most for so long
	giveUp     time.Duration // a sandbox may be out of reach for so long
	retry      time.Duration // first pause between attempts; doubles up to 2 s
}

var defaultTimes = times{
	linger: 30 * time.Second, write: 10 * time.Second, starve: 2 * time.Minute, partial: time.Second,
	quiet: 30 * time.Millisecond, settle: 2 * time.Second, driverStop: 2 * time.Second,
	skipPause: 60 * time.Millisecond, skipMost: 2 * time.Second, giveUp: 30 * time.Second,
	retry: 50 * time.Millisecond,
}

// NewHub makes a hub.
func NewHub(attach AttachFunc) *Hub {
	return &Hub{attach: attach, times: defaultTimes, sessions: map[key]*session{}}
}

// WakeBy sets how input wakes a suspended sandbox. Call it before the first viewer.
func (h *Hub) WakeBy(wake func(ctx context.Context, id sandbox.ID) error) { h.wake = wake }

// Awake tells terminals that wait for a suspended sandbox to look again.
func (h *Hub) Awake(id sandbox.ID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for k, s := range h.sessions {
		if k.id == id {
			s.stir()
		}
	}
}

// Serve carries one viewer until the terminal exits, the viewer leaves, or ctx ends (with a *CloseError as cause: that code).
// It closes conn itself. onInput, when not nil, is told at most once a second that the viewer typed.
// The error is nil when the terminal exited or the viewer left, else the *CloseError that ended it.
func (h *Hub) Serve(ctx context.Context, id sandbox.ID, pty string, v Viewer, conn Conn, onInput func()) error {
	s, w, refused := h.join(key{id, pty}, v, conn, onInput)
	if refused != nil {
		_ = conn.Close(refused.Code, refused.Reason)
		return refused
	}
	defer h.serving.Done()

	// Reading and writing must not end with ctx: a websocket whose read is cancelled cannot say why it closes.
	ioctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var loops sync.WaitGroup
	loops.Go(func() { w.readLoop(ioctx) })
	loops.Go(func() { w.writeLoop(ioctx) })

	var end *CloseError
	select {
	case <-ctx.Done():
		if !errors.As(context.Cause(ctx), &end) {
			end = &CloseError{CloseStopping, "going away"}
		}
	case <-w.over:
		end = w.ending
	}
	h.leave(s, w, end)
	if end == nil { // the viewer left: nobody hears the code
		end = &CloseError{Code: CloseExited}
	}
	_ = conn.Close(end.Code, end.Reason)
	cancel()
	loops.Wait()
	if end.Code == CloseExited {
		return nil
	}
	return end
}

// join puts a viewer at a terminal, which is attached first if nobody else looks at it.
func (h *Hub) join(k key, v Viewer, conn Conn, onInput func()) (*session, *viewer, *CloseError) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopped {
		return nil, nil, &CloseError{CloseStopping, "the server is stopping; come back"}
	}
	s := h.sessionAt(k)
	w := newViewer(s, v, conn, onInput)
	if refused := s.add(w); refused != nil {
		return nil, nil, refused
	}
	h.serving.Add(1)
	return s, w, nil
}

// sessionAt gives the session of a terminal, a new one if there is none. Called with mu held.
func (h *Hub) sessionAt(k key) *session {
	s := h.sessions[k]
	if s == nil {
		s = newSession(h, k)
		h.sessions[k] = s
		h.serving.Go(s.run)
		h.serving.Go(s.inputLoop)
		h.serving.Go(s.controlLoop)
	}
	return s
}

// leave takes a viewer away.
func (h *Hub) leave(s *session, w *viewer, why *CloseError) {
	s.mu.Lock()
	s.remove(w, why)
	over := h.lingerLocked(s)
	s.mu.Unlock()
	if over {
		h.endIdle(s)
	}
}

// lingerLocked starts the clock that ends the attachment, once nobody looks and nothing records; over: there is nothing to wait
// for. Called with the session's mu held.
func (h *Hub) lingerLocked(s *session) (over bool) {
	if !s.unused() || s.ended != nil {
		return false
	}
	if s.exit != nil {
		return true
	}
	if s.linger != nil {
		s.linger.Stop()
	}
	s.linger = time.AfterFunc(h.times.linger, func() { h.endIdle(s) })
	return false
}

// endIdle ends a session that nobody looks at.
func (h *Hub) endIdle(s *session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.mu.Lock()
	idle := s.unused()
	s.mu.Unlock()
	if idle {
		h.endLocked(s, &CloseError{CloseGone, "nobody looks at it"})
	}
}

// end ends a session and every viewer of it.
func (h *Hub) end(s *session, why *CloseError) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.endLocked(s, why)
}

func (h *Hub) endLocked(s *session, why *CloseError) {
	if h.sessions[s.key] == s {
		delete(h.sessions, s.key)
	}
	s.stop(why)
}

// Viewers names who looks at a terminal, the driver first; for lists.
func (h *Hub) Viewers(id sandbox.ID, pty string) (driver string, others []string) {
	h.mu.Lock()
	s := h.sessions[key{id, pty}]
	h.mu.Unlock()
	if s == nil {
		return "", nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.viewers {
		if w == s.driver {
			driver = w.Name
		} else {
			others = append(others, w.Name)
		}
	}
	return driver, others
}

// Drop ends every viewer of a sandbox with CloseGone; called when the sandbox is killed or dies.
func (h *Hub) Drop(id sandbox.ID, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for k, s := range h.sessions {
		if k.id == id {
			h.endLocked(s, &CloseError{CloseGone, cutReason(reason)})
		}
	}
}

// Shutdown ends every viewer with CloseStopping and waits, for a few seconds at most, until they are gone.
func (h *Hub) Shutdown() {
	h.mu.Lock()
	h.stopped = true
	for _, s := range h.sessions {
		h.endLocked(s, &CloseError{CloseStopping, "the server is stopping; come back"})
	}
	h.mu.Unlock()
	gone := make(chan struct{})
	go func() {
		h.serving.Wait()
		close(gone)
	}()
	select {
	case <-gone:
	case <-time.After(3 * time.Second):
	}
}

// cutReason keeps a reason within what a close frame holds.
func cutReason(s string) string {
	if len(s) <= 120 {
		return s
	}
	s = s[:120]
	return s[:len(s)-partialTail([]byte(s))]
}
