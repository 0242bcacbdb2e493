package term

import (
	"slices"
	"time"
)

const (
	askAgain  = 10 * time.Second // whoever was declined asks again after this at the earliest
	seatKept  = 30 * time.Second // a driver whose connection broke finds the seat again within this
	shownName = 100              // characters of a name that others are shown
)

// seat remembers the driver whose connection broke. Whoever drives meanwhile does so by chance, until they type or take over.
type seat struct {
	who  string
	till time.Time
}

// person is a viewer as the others see it. The number is good for this connection only.
type person struct {
	ID      int    `json:"id"`
	Name    string `json:"name"`
	Drives  bool   `json:"drives"`
	MayType bool   `json:"may_type"`
	Asks    bool   `json:"asks"`
	You     bool   `json:"you"`
	Same    bool   `json:"same"` // the same person or key in another window
}

type peopleMessage struct {
	Type   string   `json:"type"`
	People []person `json:"people"`
}

type pongMessage struct {
	Type  string `json:"type"`
	ID    int64  `json:"id"`
	Input int64  `json:"input"`
}

// keepSeat remembers who drove when a connection broke rather than a right ended. Called with mu held.
func (s *session) keepSeat(w *viewer, why *CloseError) {
	if w.Who != "" && s.driver != nil && (why == nil || why.Code == CloseTooSlow) {
		s.seat = &seat{w.Who, time.Now().Add(seatKept)}
	}
}

// seatOf says whether w finds its seat again. Called with mu held.
func (s *session) seatOf(w *viewer) bool {
	return w.MayType && s.seat != nil && s.seat.who == w.Who && time.Now().Before(s.seat.till)
}

// heir is who drives when the driver leaves: who asked first, else who waits longest. Called with mu held.
func (s *session) heir() *viewer {
	for _, asks := range []bool{true, false} {
		if i := slices.IndexFunc(s.viewers, func(v *viewer) bool { return v.MayType && (v.asks || !asks) }); i >= 0 {
			return s.viewers[i]
		}
	}
	return nil
}

// peopleChanged lets everybody who wants to know hear who is there. Called with mu held.
func (s *session) peopleChanged() {
	for _, w := range s.viewers {
		if w.wantsPeople {
			w.peopleDue = true
			w.poke()
		}
	}
}

// people is who is there, in the order they came. Called with mu held.
func (w *viewer) people() []byte {
	w.peopleDue = false
	m := peopleMessage{Type: "people", People: []person{}}
	for _, v := range w.s.viewers {
		name := []rune(v.Name)
		m.People = append(m.People, person{
			ID: v.id, Name: string(name[:min(len(name), shownName)]), Drives: v == w.s.driver, MayType: v.MayType, Asks: v.asks,
			You: v == w, Same: v != w && v.Who == w.Who && v.Who != "",
		})
	}
	return encode(m)
}

// requestControl asks the driver for the keyboard.
func (w *viewer) requestControl() {
	s := w.s
	switch {
	case s.driver == w || w.asks:
	case !w.MayType:
		w.drives()
	case s.driver == nil:
		s.drive(w)
	case time.Since(w.declined) < askAgain:
		w.notice("declined", "Your request was declined a moment ago.")
	default:
		w.asks = true
		s.driver.notice("asked", w.Name+" asks to type here.")
		s.peopleChanged()
	}
}

// withdrawRequest takes the request back.
func (w *viewer) withdrawRequest() {
	if w.asks {
		w.asks = false
		w.s.peopleChanged()
	}
}

// grantControl hands the keyboard to another viewer, who asked or not.
func (w *viewer) grantControl(id *int) {
	if !w.drives() {
		return
	}
	switch v := w.s.numbered(id); {
	case v == nil:
		w.notice("bad_message", "Nobody of that number is here any more.")
	case !v.MayType:
		w.notice("bad_message", "That viewer may watch this terminal but not type in it.")
	case v != w:
		w.s.drive(v)
		v.notice("granted", w.Name+" handed the keyboard over to you.")
	}
}

// declineControl answers a request with no.
func (w *viewer) declineControl(id *int) {
	if !w.drives() {
		return
	}
	if v := w.s.numbered(id); v != nil && v.asks {
		v.asks, v.declined = false, time.Now()
		v.notice("declined", w.Name+" keeps the keyboard for now.")
		w.s.peopleChanged()
	}
}

func (s *session) numbered(id *int) *viewer {
	if id == nil {
		return nil
	}
	if i := slices.IndexFunc(s.viewers, func(v *viewer) bool { return v.id == *id }); i >= 0 {
		return s.viewers[i]
	}
	return nil
}
