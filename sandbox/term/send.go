package term

import "time"

// next decides what is sent next: a frame, or nothing for at most wait, or the end.
func (w *viewer) next(buf []byte) (frame []byte, binary bool, wait time.Duration, end *CloseError) {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if !w.greeted {
		return w.hello(), false, 0, nil
	}
	if len(w.control) > 0 {
		frame, w.control = w.control[0], w.control[1:]
		return frame, false, 0, nil
	}
	if w.peopleDue {
		return w.people(), false, 0, nil
	}
	if wait := w.skipping(); wait > 0 {
		return nil, false, wait, nil
	}
	if w.wants || w.cursor < s.ring.oldest() {
		return w.resync()
	}
	limit := s.ring.next
	if w.sizeSeq < s.sizeSeq {
		w.sizeSeq = max(w.sizeSeq, s.sizeSeq-len(s.sizes))
		m := s.sizes[len(s.sizes)-(s.sizeSeq-w.sizeSeq)]
		if m.off <= w.cursor {
			w.sizeSeq++
			return encode(sizeMessage{"size", m.size.Cols, m.size.Rows}), false, 0, nil
		}
		limit = min(limit, m.off)
	}
	if w.cursor < s.ring.next {
		return w.output(buf, limit)
	}
	w.starved, w.partial = time.Time{}, time.Time{}
	switch {
	case s.exit == nil:
		return nil, false, time.Hour, nil
	case !w.exitSaid:
		w.exitSaid = true
		return encode(exitMessage{"exit", s.exit.Code, s.exit.Signal}), false, 0, nil
	default:
		return nil, false, 0, &CloseError{CloseExited, "exited"}
	}
}

// hello seats the cursor: exactly where the viewer left off when the ring still holds that, else behind a snapshot.
// Deciding and subscribing are one step under the lock, so nothing falls between them.
func (w *viewer) hello() []byte {
	s := w.s
	w.greeted = true
	at := w.Since
	if at < s.ring.oldest() || at > s.ring.next {
		at, w.wants = s.ring.next, true
	}
	w.cursor, w.acked = at, at
	size, seq := s.sizeAt(at)
	w.sizeSeq = seq
	if s.rec != nil {
		w.say(recordingMessage{"recording", true})
	}
	return encode(helloMessage{"hello", w.role(), size.Cols, size.Rows, s.ring.oldest(), s.ring.next, s.driverName()})
}

// resync sends a snapshot, behind the current size, as soon as the credit allows it.
func (w *viewer) resync() (frame []byte, binary bool, wait time.Duration, end *CloseError) {
	s := w.s
	if w.cursor-w.acked+w.snapped > resyncCredit {
		return w.starve()
	}
	if w.sizeSeq < s.sizeSeq {
		w.sizeSeq = s.sizeSeq
		size := s.sizes[len(s.sizes)-1].size
		return encode(sizeMessage{"size", size.Cols, size.Rows}), false, 0, nil
	}
	payload, next := s.screen.Snapshot(maxSnapshot), s.ring.next-int64(s.screen.Pending())
	frame = append(header(make([]byte, 0, headerSize+len(payload)), frameSnapshot, next), payload...)
	w.snapped += w.cursor - w.acked + int64(len(payload))
	w.wants, w.starved, w.partial = false, time.Time{}, time.Time{}
	w.acked = next
	w.advance(next)
	return frame, true, 0, nil
}

// output sends what is there, up to a limit, a frame and the credit; it ends on a character's border.
func (w *viewer) output(buf []byte, limit int64) (frame []byte, binary bool, wait time.Duration, end *CloseError) {
	s := w.s
	room := credit - (w.cursor - w.acked) - w.snapped
	if room < min(limit-w.cursor, minChunk) {
		return w.starve()
	}
	w.starved = time.Time{}
	buf = header(buf[:0], frameOutput, w.cursor)
	data := buf[headerSize : headerSize+min(limit-w.cursor, room, maxFrame-headerSize)]
	s.ring.copyAt(data, w.cursor)
	if tail := partialTail(data); tail > 0 {
		switch {
		case tail < len(data):
			data = data[:len(data)-tail]
		case limit == s.ring.next && s.exit == nil:
			// Nothing but the beginning of a character: its rest is awaited, but not for ever.
			now := time.Now()
			if w.partial.IsZero() {
				w.partial = now
			}
			if wait := s.hub.times.partial - now.Sub(w.partial); wait > 0 {
				return nil, false, wait, nil
			}
		}
	}
	w.partial = time.Time{}
	w.advance(w.cursor + int64(len(data)))
	return buf[:headerSize+len(data)], true, 0, nil
}

// interrupted is called when the driver interrupts a program. What that program printed and nobody has seen yet would hold
// the prompt up, so it is skipped, as a terminal's own line does with what it has not sent: a snapshot of the newest output takes its
// place once the flood ends.
func (w *viewer) interrupted() {
	w.skipTill = time.Now().Add(w.s.hub.times.skipMost)
	w.advance(w.cursor) // the reader must not wait for this viewer meanwhile
	w.poke()
}

// skipping says how long to wait for the end of a flood; 0 when there is none.
func (w *viewer) skipping() time.Duration {
	now, flood := time.Now(), w.s.ring.next-w.cursor > skipLag
	w.skips = w.skips || flood && now.Before(w.skipTill)
	if !w.skips {
		return 0
	}
	pause := w.s.printed.Add(w.s.hub.times.skipPause)
	if w.s.exit == nil && now.Before(pause) && now.Before(w.skipTill) {
		return min(pause.Sub(now), w.skipTill.Sub(now))
	}
	w.skips, w.wants = false, true
	return 0
}

// advance moves the cursor and lets a reader go on that waited for the driver.
func (w *viewer) advance(to int64) {
	w.cursor, w.stalled = to, false
	if w.s.driver == w {
		select {
		case w.s.moved <- struct{}{}:
		default:
		}
	}
}

// starve waits for an acknowledgement, and gives a viewer up that sends none.
func (w *viewer) starve() (frame []byte, binary bool, wait time.Duration, end *CloseError) {
	now := time.Now()
	if w.starved.IsZero() {
		w.starved = now
	}
	if wait = w.s.hub.times.starve - now.Sub(w.starved); wait > 0 {
		return nil, false, wait, nil
	}
	return nil, false, 0, &CloseError{CloseTooSlow, "nothing was acknowledged for too long; come back"}
}
