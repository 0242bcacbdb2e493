package workspace

import (
	"container/list"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/netip"
	"sync"
	"time"
)

// throttle makes attempts wait: the first ones are free, then each failure doubles the time until the next may be made.
// Nobody is locked out for good. It is kept in memory and bounded; the least recently tried name is forgotten first.
type throttle struct {
	max int

	mu      sync.Mutex
	entries map[string]*list.Element
	recent  *list.List // of *attempts, the latest in front
}

// throttleKey is a name with its own patience.
type throttleKey struct {
	name string
	free int           // attempts that do not wait
	base time.Duration // of the first wait; 0 is a second
}

type attempts struct {
	name  string
	count int
	last  time.Time
	until time.Time
}

const (
	maxThrottled    = 20_000
	longestWait     = 15 * time.Minute
	throttleForgets = time.Hour // after so long without a new attempt
)

func newThrottle(max int) *throttle {
	return &throttle{max: max, entries: map[string]*list.Element{}, recent: list.New()}
}

// accountKey throttles tries at one account, whether it exists or not.
func accountKey(email string) throttleKey {
	sum := sha256.Sum256([]byte(email))
	return throttleKey{name: "account " + hex.EncodeToString(sum[:16]), free: 5}
}

// addressKey throttles tries from one client address, with more patience: many people may share it. Of IPv6 the first 64
// bits count, for whoever has one address there has them all.
func addressKey(address string) throttleKey {
	key := throttleKey{name: "address " + address[:min(len(address), 64)], free: 20}
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return key
	}
	ip = ip.Unmap().WithZone("")
	bits := 32
	if ip.Is6() {
		bits = 64
	}
	if p, err := ip.Prefix(bits); err == nil {
		key.name = "address " + p.String()
	}
	return key
}

// take counts an attempt for every key, or, when one of them has to wait, counts nothing and returns the longest wait.
func (t *throttle) take(now time.Time, keys ...throttleKey) (wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range keys {
		if el, ok := t.entries[k.name]; ok {
			wait = max(wait, el.Value.(*attempts).until.Sub(now))
		}
	}
	if wait > 0 {
		return wait
	}
	for _, k := range keys {
		t.count(now, k)
	}
	return 0
}

func (t *throttle) count(now time.Time, k throttleKey) {
	el, ok := t.entries[k.name]
	if !ok {
		if t.recent.Len() >= t.max {
			oldest := t.recent.Back()
			delete(t.entries, oldest.Value.(*attempts).name)
			t.recent.Remove(oldest)
		}
		el = t.recent.PushFront(&attempts{name: k.name})
		t.entries[k.name] = el
	}
	t.recent.MoveToFront(el)
	e := el.Value.(*attempts)
	if now.Sub(e.last) > throttleForgets {
		e.count = 0
	}
	e.count, e.last = e.count+1, now
	if over := e.count - k.free; over > 0 {
		base := k.base
		if base == 0 {
			base = time.Second
		}
		// 20 doublings are beyond the longest wait already.
		e.until = now.Add(min(base<<min(over-1, 20), longestWait))
	}
}

// forgive takes one counted attempt back: it was no failure.
func (t *throttle) forgive(keys ...throttleKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range keys {
		if el, ok := t.entries[k.name]; ok {
			e := el.Value.(*attempts)
			if e.count = max(e.count-1, 0); e.count <= k.free {
				e.until = time.Time{}
			}
		}
	}
}

// clear forgets a name.
func (t *throttle) clear(k throttleKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if el, ok := t.entries[k.name]; ok {
		delete(t.entries, k.name)
		t.recent.Remove(el)
	}
}
