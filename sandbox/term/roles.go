package term

import (
	"errors"
	"slices"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

// add seats a viewer; who may type and finds no driver drives.
func (s *session) add(w *viewer) *CloseError {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return s.ended
	}
	if len(s.viewers) >= maxViewers {
		return &CloseError{CloseTooSlow, "too many viewers of this terminal; come back"}
	}
	if s.linger != nil {
		s.linger.Stop()
	}
	s.seats++
	w.id = s.seats
	s.viewers = append(s.viewers, w)
	if w.MayType && (s.driver == nil || s.seatOf(w)) {
		s.drive(w)
	}
	if s.asleep {
		w.notice("suspended", textSuspended)
	}
	s.peopleChanged()
	return nil
}

// remove takes a viewer's seat; who asked, or else waits longest, and may type drives next. Called with mu held.
func (s *session) remove(w *viewer, why *CloseError) {
	w.left = true
	if i := slices.Index(s.viewers, w); i >= 0 {
		s.viewers = slices.Delete(s.viewers, i, i+1)
	}
	if why != nil && (why.Code == CloseForbidden || why.Code == CloseExpired || why.Code == CloseApproval) {
		// What was typed before the right went, and did not arrive yet, must not run.
		s.input = slices.DeleteFunc(s.input, func(p piece) bool {
			if p.from == w {
				s.inputBytes -= len(p.p)
			}
			return p.from == w
		})
	}
	if s.driver == w {
		s.drive(s.heir())
		s.keepSeat(w, why)
	}
	s.peopleChanged()
}

// drive makes w, or nobody, the driver and tells everybody. Called with mu held.
func (s *session) drive(w *viewer) {
	s.driver, s.seat = w, nil
	if w != nil {
		w.asks = false
	}
	s.resize = nil
	s.signals = nil
	if w != nil {
		s.mark("driver: " + w.Name)
	}
	for _, v := range s.viewers {
		v.roleChanged()
	}
	s.peopleChanged()
	select { // whoever waited for the old driver looks again
	case s.moved <- struct{}{}:
	default:
	}
}

// driverName is who drives, "" for nobody. Called with mu held.
func (s *session) driverName() string {
	if s.driver == nil {
		return ""
	}
	return s.driver.Name
}

func (s *session) noticeAll(code, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.viewers {
		w.notice(code, text)
	}
}

// restored tells everybody that an interruption or a sleep is over, if they were told of one. Called with mu held.
func (s *session) restored() {
	for _, w := range s.viewers {
		told := len(w.noticed)
		delete(w.noticed, "interrupted")
		delete(w.noticed, "suspended")
		if len(w.noticed) < told {
			delete(w.noticed, "restored")
			w.notice("restored", "The sandbox is back.")
		}
	}
}

// enqueue keeps input of the driver. Called with mu held; p is copied.
func (s *session) enqueue(w *viewer, p []byte) {
	if s.inputBytes+len(p) > agent.MaxInput {
		w.notice("input_full", "The program is not reading its input; nothing more can be queued. Interrupt it to go on.")
		return
	}
	for len(p) > 0 {
		n := min(len(p), inputPiece)
		s.input = append(s.input, piece{w, slices.Clone(p[:n])})
		s.inputBytes += n
		p = p[n:]
	}
	s.changed.Broadcast()
	s.stir()
}

// inputLoop types what is queued. It waits while the bridge is broken, but never types a piece twice.
func (s *session) inputLoop() {
	var lost agent.Attachment // what took nothing: the next one is waited for
	for {
		s.mu.Lock()
		for s.ended == nil && (len(s.input) == 0 || s.att == nil || s.att == lost) {
			s.changed.Wait()
		}
		if s.ended != nil {
			s.mu.Unlock()
			return
		}
		att, next := s.att, s.input[0]
		s.input = s.input[1:]
		s.mu.Unlock()

		err := att.Input(next.p)

		s.mu.Lock()
		if errors.Is(err, agent.ErrUnsent) {
			lost = att
			if !next.from.left { // else its right may have gone with it
				s.input = slices.Insert(s.input, 0, next)
				s.mu.Unlock()
				continue
			}
		}
		s.inputBytes = max(0, s.inputBytes-len(next.p))
		switch {
		case err == nil:
			s.tape(next.p)
		case fault.Is(err, fault.SlowDown):
			s.refused()
		default:
			next.from.notice("input_lost", "The connection broke while you typed; the last keys may not have arrived.")
		}
		s.mu.Unlock()
	}
}

// refused drops the input that waits, because the agent's queue is full too: the rest of a paste without its middle would be worse
// than nothing. Called with mu held.
func (s *session) refused() {
	s.input, s.inputBytes = nil, 0
	if s.driver != nil {
		s.driver.notice("input_full", "The program is not reading its input; the rest of it was dropped. Interrupt the program to go on.")
	}
}

// controlLoop carries sizes and signals, beside the input and not behind it.
func (s *session) controlLoop() {
	var lost agent.Attachment
	for {
		s.mu.Lock()
		for s.ended == nil && (s.resize == nil && len(s.signals) == 0 || s.att == nil || s.att == lost) {
			s.changed.Wait()
		}
		if s.ended != nil {
			s.mu.Unlock()
			return
		}
		att, size, names := s.att, s.resize, s.signals
		s.resize, s.signals = nil, nil
		s.mu.Unlock()
		for i, name := range names {
			// A bridge that broke just now is the reader's to notice.
			if err := att.Signal(name); errors.Is(err, agent.ErrUnsent) {
				s.mu.Lock()
				s.signals = append(names[i:len(names):len(names)], s.signals...)
				s.mu.Unlock()
				lost = att
				break
			}
		}
		if size == nil {
			continue
		}
		if err := att.Resize(size.Cols, size.Rows); errors.Is(err, agent.ErrUnsent) {
			s.mu.Lock()
			if s.resize == nil {
				s.resize = size
			}
			s.mu.Unlock()
			lost = att
		}
	}
}
