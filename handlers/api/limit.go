package api

import (
	"container/list"
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"sandgate/internal/fault"
)

// maxLimited bounds how many keys are kept in mind; whoever was quiet for the longest is forgotten, with a full bucket.
const maxLimited = 10_000

// Limits keeps one key from taking the server from the others: so many calls a second, and so many open at once. Safe for
// concurrent use. /v1 and /mcp share one, so that a key has no second allowance by another door.
type Limits struct {
	perSecond float64 // 0: no limit
	open      int     // 0: no limit
	now       func() time.Time

	mu     sync.Mutex
	byKey  map[string]*list.Element
	recent *list.List // of *allowance, the latest in front
}

type allowance struct {
	key    string
	bucket *rate.Limiter
	open   int
}

// NewLimits makes one; perSecond 0 and open 0 are no limit.
func NewLimits(perSecond float64, open int) *Limits {
	return &Limits{perSecond: perSecond, open: open, now: time.Now, byKey: map[string]*list.Element{}, recent: list.New()}
}

// of gives a key's allowance; the caller holds the lock.
func (l *Limits) of(key string) *allowance {
	if el, ok := l.byKey[key]; ok {
		l.recent.MoveToFront(el)
		return el.Value.(*allowance)
	}
	if l.recent.Len() >= maxLimited {
		for el := l.recent.Back(); el != nil; el = el.Prev() {
			if a := el.Value.(*allowance); a.open == 0 { // what has a call open is counted down later
				delete(l.byKey, a.key)
				l.recent.Remove(el)
				break
			}
		}
	}
	burst := int(math.Max(1, math.Ceil(2*l.perSecond)))
	a := &allowance{key: key, bucket: rate.NewLimiter(rate.Limit(l.perSecond), burst)}
	l.byKey[key] = l.recent.PushFront(a)
	return a
}

// Take counts one call of a key, or refuses it and says when there is room again.
func (l *Limits) Take(key string) error {
	if l.perSecond <= 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now, a := l.now(), l.of(key)
	r := a.bucket.ReserveN(now, 1)
	wait := r.DelayFrom(now)
	if wait <= 0 {
		return nil
	}
	r.CancelAt(now)
	after := int(math.Ceil(wait.Seconds()))
	return fault.New(fault.SlowDown, "This key makes more than %g calls a second. Wait %d s.", l.perSecond, after).With("retry_after", after)
}

// Enter counts a call of a key as open until the function that it gives is called. A call too many is refused: one that
// answers at once with slow_down, because others of its kind will soon be done; one that may last with quota_exceeded,
// because nobody knows when others of its kind end.
func (l *Limits) Enter(key string, lasting bool) (leave func(), err error) {
	if l.open <= 0 {
		return func() {}, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.of(key)
	switch {
	case a.open < l.open:
	case lasting:
		return nil, fault.New(fault.QuotaExceeded, "This key has %d calls open, which is as many as one may have. End some first.", a.open)
	default:
		return nil, fault.New(fault.SlowDown, "This key has %d calls open, which is as many as one may have.", a.open).With("retry_after", 1)
	}
	a.open++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		a.open--
	}, nil
}
