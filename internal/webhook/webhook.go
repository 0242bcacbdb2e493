// Package webhook owns telling one address of the operator's choice what happened: signed, in the background, with
// retries. It must never hold up who tells, follow a redirect, use a proxy, or reach an address that is not public unless
// the operator named it; and the secret leaves it as a signature only.
package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Event is one thing to tell.
type Event struct {
	Type string // "audit.head", "approval.requested", …
	// Key lets a newer event take the place of one of the same key that still waits; "" is never replaced.
	Key string
	// Until is when telling it is of no use any more; zero is an hour from now.
	Until time.Time
	Data  any // becomes JSON at once: later changes do not show
}

// Options are what New needs.
type Options struct {
	URL          string         // http or https, without user and password
	Secret       []byte         // of the signature, at least 16 bytes
	Allow        []netip.Prefix // addresses that may be reached although they are not public
	Installation string         // tells several installations apart at the receiver's
	Log          *slog.Logger   // default: nowhere
	Now          func() time.Time
	// Pause gives how long to wait after a number of failed attempts; default: doubling from 1 s to 5 min, with jitter.
	Pause func(failed int) time.Duration
}

// State is how telling goes, for people.
type State struct {
	Host      string    // that is told
	Delivered time.Time // when the last event was taken; zero: none yet
	Waiting   int
	Failed    string // what the last attempt met, "" when it went well
	Lost      int    // events that were given up
}

const (
	maxWaiting = 1000
	maxAge     = time.Hour
	minSecret  = 16
)

// Hook tells events. A nil *Hook is one that tells nobody. Safe for concurrent use.
type Hook struct {
	o      Options
	host   string
	client *http.Client

	mu      sync.Mutex
	waiting []*delivery // in order of arrival
	state   State
	wake    chan struct{} // holds at most one token
}

// delivery is an event on its way.
type delivery struct {
	id, kind, key string
	body          []byte
	until, due    time.Time
	failed        int
	busy          bool
}

// New checks the options. Nothing is told before Run.
func New(o Options) (*Hook, error) {
	u, err := url.Parse(o.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.Fragment != "" {
		return nil, errors.New("webhook: the URL must be http or https, with neither user nor fragment")
	}
	if len(o.Secret) < minSecret {
		return nil, fmt.Errorf("webhook: the secret must have %d bytes or more", minSecret)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Pause == nil {
		o.Pause = pause
	}
	h := &Hook{o: o, host: u.Host, client: newClient(o.Allow), wake: make(chan struct{}, 1)}
	h.state.Host = u.Host
	return h, nil
}

// body is what the receiver gets.
type body struct {
	ID           string          `json:"id"`
	Type         string          `json:"type"`
	At           string          `json:"at"`
	Installation string          `json:"installation,omitempty"`
	Data         json.RawMessage `json:"data"`
}

// Send puts an event in line and returns at once. When a thousand wait, the oldest is given up.
func (h *Hook) Send(e Event) {
	if h == nil {
		return
	}
	data, err := json.Marshal(e.Data)
	if err != nil {
		h.o.Log.Error("tell an event", "type", e.Type, "cause", err.Error())
		return
	}
	now := h.o.Now()
	d := &delivery{id: newID(), kind: e.Type, key: e.Key, until: e.Until, due: now}
	if d.until.IsZero() {
		d.until = now.Add(maxAge)
	}
	d.body, err = json.Marshal(body{ID: d.id, Type: e.Type, At: now.UTC().Format(time.RFC3339Nano), Installation: h.o.Installation, Data: data})
	if err != nil { // checked above: data is JSON
		return
	}
	h.mu.Lock()
	h.put(d)
	h.mu.Unlock()
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// put adds d, in place of what it replaces. The caller holds the lock.
func (h *Hook) put(d *delivery) {
	for i, w := range h.waiting {
		if d.key != "" && w.key == d.key && !w.busy {
			// The receiver is no better for a newer event: the pause goes on.
			d.due, d.failed = w.due, w.failed
			h.waiting[i] = d
			return
		}
	}
	if len(h.waiting) >= maxWaiting {
		h.give(h.waiting[0], "too many wait")
	}
	h.waiting = append(h.waiting, d)
}

// give gives a delivery up. The caller holds the lock.
func (h *Hook) give(d *delivery, why string) {
	h.drop(d)
	h.state.Lost++
	h.o.Log.Warn("an event could not be told", "type", d.kind, "id", d.id, "why", why)
}

func (h *Hook) drop(d *delivery) {
	for i, w := range h.waiting {
		if w == d {
			h.waiting = append(h.waiting[:i], h.waiting[i+1:]...)
			return
		}
	}
}

// State tells how it goes. ok is false where nobody is told.
func (h *Hook) State() (s State, ok bool) {
	if h == nil {
		return State{}, false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s = h.state
	s.Waiting = len(h.waiting)
	return s, true
}

// Run tells what waits until ctx ends.
func (h *Hook) Run(ctx context.Context) {
	if h == nil {
		return
	}
	for ctx.Err() == nil {
		d, in := h.next(h.o.Now())
		if d != nil {
			h.attempt(ctx, d)
			continue
		}
		timer := time.NewTimer(in)
		select {
		case <-ctx.Done():
		case <-h.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// Flush tries everything that waits once more, until ctx ends; call it when Run has ended.
func (h *Hook) Flush(ctx context.Context) {
	if h == nil {
		return
	}
	h.mu.Lock()
	all := append([]*delivery(nil), h.waiting...)
	h.mu.Unlock()
	for i := len(all) - 1; i >= 0 && ctx.Err() == nil; i-- { // the newest matters most when time is short
		h.attempt(ctx, all[i])
	}
	if s, _ := h.State(); s.Waiting > 0 {
		h.o.Log.Warn("events were not told before the end", "waiting", s.Waiting, "cause", s.Failed)
	}
}

// next gives the first delivery that is due, or how long until there may be one. What is too old is given up.
func (h *Hook) next(now time.Time) (*delivery, time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	in := maxAge
	for _, d := range append([]*delivery(nil), h.waiting...) {
		switch {
		case !now.Before(d.until):
			h.give(d, "too late")
		case !now.Before(d.due):
			d.busy = true
			return d, 0
		default:
			in = min(in, d.due.Sub(now))
		}
	}
	return nil, in
}

// attempt tells d once, and puts down how it went.
func (h *Hook) attempt(ctx context.Context, d *delivery) {
	err := h.post(ctx, d)
	h.mu.Lock()
	defer h.mu.Unlock()
	d.busy = false
	if err == nil {
		h.drop(d)
		h.state.Delivered, h.state.Failed = h.o.Now(), ""
		return
	}
	d.failed++
	d.due = h.o.Now().Add(h.o.Pause(d.failed))
	h.state.Failed = strings.ToValidUTF8(err.Error(), "?")
	if d.failed == 1 || d.failed%10 == 0 {
		h.o.Log.Warn("tell an event", "type", d.kind, "id", d.id, "attempt", d.failed, "cause", err.Error())
	}
	for _, w := range h.waiting { // a newer one came meanwhile and goes on in its place
		if w != d && d.key != "" && w.key == d.key {
			w.due, w.failed = d.due, d.failed
			h.drop(d)
			return
		}
	}
}
