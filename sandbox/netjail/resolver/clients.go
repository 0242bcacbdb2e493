package resolver

import (
	"sync"
	"time"

	"golang.org/x/time/rate"

	"sandgate/sandbox"
)

// client is what is known about one sandbox that asks.
type client struct {
	within *rate.Limiter // questions that are answered
	over   *rate.Limiter // questions beyond that which are refused; what is beyond even this gets silence

	inFlight, conns int
	seen            time.Time
}

// clients holds those that asked lately, and counts what is under way.
type clients struct {
	rate  float64
	burst int

	mu              sync.Mutex
	of              map[sandbox.ID]*client
	inFlight, conns int
	swept           time.Time
}

func newClients(qps float64, burst int) *clients {
	return &clients{rate: qps, burst: burst, of: map[sandbox.ID]*client{}}
}

const forgetAfter = 2 * time.Minute // by then every limiter is full again

// get gives the client of id. The caller holds mu.
func (cs *clients) get(id sandbox.ID) *client {
	now := time.Now()
	if now.Sub(cs.swept) > forgetAfter {
		cs.swept = now
		for id, c := range cs.of {
			if c.inFlight == 0 && c.conns == 0 && now.Sub(c.seen) > forgetAfter {
				delete(cs.of, id)
			}
		}
	}
	c := cs.of[id]
	if c == nil {
		c = &client{
			within: rate.NewLimiter(rate.Limit(cs.rate), cs.burst),
			over:   rate.NewLimiter(rate.Limit(4*cs.rate), 4*cs.burst),
		}
		cs.of[id] = c
	}
	c.seen = now
	return c
}

// verdict is what a question meets before anybody looks at it.
type verdict int

const (
	pass   verdict = iota // answered; release follows
	refuse                // over the rate
	busy                  // too many of this sandbox, or of all, wait for a name server
	silent                // far over the rate
)

func (cs *clients) enter(id sandbox.ID) verdict {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.get(id)
	switch {
	case !c.within.Allow():
		if c.over.Allow() {
			return refuse
		}
		return silent
	case c.inFlight >= maxInFlight || cs.inFlight >= maxInFlightIn:
		return busy
	}
	c.inFlight++
	cs.inFlight++
	return pass
}

func (cs *clients) leave(id sandbox.ID) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.get(id).inFlight--
	cs.inFlight--
}

func (cs *clients) connect(id sandbox.ID) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.get(id)
	if c.conns >= maxConns || cs.conns >= maxConnsIn {
		return false
	}
	c.conns++
	cs.conns++
	return true
}

func (cs *clients) disconnect(id sandbox.ID) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.get(id).conns--
	cs.conns--
}
