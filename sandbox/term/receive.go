package term

import (
	"context"
	"encoding/json"
	"time"

	"sandgate/sandbox/agent"
)

// readLoop takes messages until the viewer leaves or is over.
func (w *viewer) readLoop(ctx context.Context) {
	for {
		binary, p, err := w.conn.Read(ctx)
		if err != nil {
			w.finish(nil)
			return
		}
		select {
		case <-w.over: // nothing is accepted once the viewer is to end
			return
		default:
		}
		if w.receive(binary, p) && w.onInput != nil {
			w.onInput()
		}
	}
}

// receive acts on one message and reports whether onInput is due. Nothing a viewer sends ends the connection.
func (w *viewer) receive(binary bool, p []byte) (typed bool) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	if w.left {
		return false
	}
	if binary {
		// An empty message and unknown kinds are ignored, so that the protocol can grow.
		return len(p) > 1 && p[0] == frameInput && w.typed(p[1:])
	}
	if len(p) > maxJSON {
		w.notice("bad_message", "That message is too long to be a control message; it was ignored.")
		return false
	}
	var m clientMessage
	if err := json.Unmarshal(p, &m); err != nil {
		w.notice("bad_message", "That message is no control message; it was ignored.")
		return false
	}
	switch m.Type {
	case "ack":
		w.ack(m.Offset)
	case "take_control":
		w.takeControl()
	case "request_control":
		w.requestControl()
	case "withdraw_request":
		w.withdrawRequest()
	case "grant_control":
		w.grantControl(m.Viewer)
	case "decline_control":
		w.declineControl(m.Viewer)
	case "people":
		w.wantsPeople, w.peopleDue = true, true
		w.poke()
	case "ping":
		if m.ID != nil {
			w.say(pongMessage{"pong", *m.ID, w.received})
		}
	case "resize":
		w.resize(m.Cols, m.Rows)
	case "signal":
		w.signal(m.Name)
	}
	return false
}

// drives reports whether the viewer drives, and tells it otherwise. Called with mu held.
func (w *viewer) drives() bool {
	if w.s.driver == w {
		return true
	}
	if w.MayType {
		w.notice("not_driver", "Somebody else drives this terminal. Take over to type.")
	} else {
		w.notice("not_driver", "You may watch this terminal but not type in it.")
	}
	return false
}

func (w *viewer) typed(p []byte) bool {
	w.received += int64(len(p))
	switch {
	case !w.drives() || w.s.exit != nil:
		return false
	case len(p) > agent.MaxInput:
		w.notice("input_too_large", "One message carries at most 1 MiB of input; that one was dropped.")
		return false
	}
	w.s.seat = nil
	w.s.enqueue(w, p)
	if len(p) == 1 && (p[0] == 0x03 || p[0] == 0x1c || p[0] == 0x1a) { // as typed: ^C, ^\, ^Z
		w.interrupted()
	}
	if now := time.Now(); now.Sub(w.lastType) >= onInputAtMost {
		w.lastType = now
		return true
	}
	return false
}

// ack gives credit back. What was never sent, or was acknowledged before, changes nothing.
func (w *viewer) ack(off *int64) {
	if off == nil || !w.greeted || *off < w.acked || *off > w.cursor {
		return
	}
	w.acked, w.snapped = *off, 0
	w.starved, w.stalled = time.Time{}, false
	w.poke()
}

func (w *viewer) takeControl() {
	switch {
	case !w.MayType:
		w.drives()
	case w.s.driver != w:
		w.s.drive(w)
	}
}

func (w *viewer) resize(cols, rows *int) {
	switch {
	case !w.drives():
	case cols == nil || rows == nil:
		w.notice("bad_message", "A resize needs cols and rows.")
	default:
		size := clampSize(*cols, *rows)
		w.s.resize = &size
		w.s.changed.Broadcast()
	}
}

func (w *viewer) signal(name string) {
	switch {
	case !w.drives():
	case !signals[name]:
		w.notice("bad_signal", "A signal is one of INT, QUIT, TSTP, TERM, KILL, HUP and CONT.")
	case len(w.s.signals) < maxSignals:
		w.s.signals = append(w.s.signals, name)
		w.interrupted()
		w.s.changed.Broadcast()
		w.s.stir()
	}
}
