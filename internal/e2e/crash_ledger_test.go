package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// account is what the clients know of one sandbox.
type account struct {
	id         string // "" until a creation was answered
	label      string // by which one is found whose creation was not answered; of a fork: ""
	parent     string // of a fork
	persistent bool
	writes     map[string]string // name of a file to the digest of what must be in it
	ptys       []string
	running    string // a command that never ends
	doomed     bool   // its end was asked for
}

// kept is what the clients know of one snapshot.
type kept struct {
	id, name string
	writes   map[string]string
	doomed   bool
}

// ledger is what all clients together know: what was answered is so, what was not answered may be either.
type ledger struct {
	open   atomic.Bool // the clients go on; when it is closed, the server is about to be killed
	serial atomic.Int64

	mu     sync.Mutex
	boxes  map[string]*account
	snaps  map[string]*kept
	unsaid []*account // creations and forks without an answer
	unkept []*kept    // snapshots without an answer
	faults []string
	count  map[string]int // of what was done, for the log
	left   int            // answers until busy is closed
	busy   chan struct{}
}

func newLedger() *ledger {
	return &ledger{boxes: map[string]*account{}, snaps: map[string]*kept{}, count: map[string]int{}}
}

func (l *ledger) name(kind string) string { return fmt.Sprint(kind, l.serial.Add(1)) }

func (l *ledger) fault(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.faults) < 20 {
		l.faults = append(l.faults, fmt.Sprintf(format, args...))
	}
}

func (l *ledger) did(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count[what]++
	if l.left--; l.left == 0 {
		close(l.busy)
	}
}

// begin lets the clients go, and gives what is closed after so many answers.
func (l *ledger) begin(answers int) (busy <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left, l.busy = answers+1, make(chan struct{})
	l.open.Store(true)
	return l.busy
}

func (l *ledger) story() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for _, what := range slices.Sorted(maps.Keys(l.count)) {
		out = append(out, fmt.Sprintf("%s %d", what, l.count[what]))
	}
	return strings.Join(out, ", ")
}

func (l *ledger) fine(t *testing.T, round int) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	require.Empty(t, l.faults, "answers of a server that lived, in round %d", round)
}

// ---- of sandboxes ----

func (l *ledger) alive() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.boxes) + len(l.unsaid)
}

// some gives a sandbox that nobody has asked the end of; nil: there is none.
func (l *ledger) some(rng *rand.Rand, persistent bool) *account {
	l.mu.Lock()
	defer l.mu.Unlock()
	var may []*account
	for _, id := range slices.Sorted(maps.Keys(l.boxes)) {
		if a := l.boxes[id]; !a.doomed && (a.persistent || !persistent) {
			may = append(may, a)
		}
	}
	if len(may) == 0 {
		return nil
	}
	return may[rng.IntN(len(may))]
}

func (l *ledger) begun(a *account) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unsaid = append(l.unsaid, a)
}

// answered is what became of a creation: it is there, it was refused, or nobody knows.
func (l *ledger) answered(a *account, id string, ok, refused bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ok || refused {
		l.unsaid = slices.DeleteFunc(l.unsaid, func(b *account) bool { return a == b })
	}
	if ok {
		a.id = id
		l.boxes[id] = a
	}
}

// copyOf is what a fork of a sandbox will have at least.
func (l *ledger) copyOf(of *account) *account {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &account{parent: of.id, persistent: of.persistent, writes: maps.Clone(of.writes), ptys: slices.Clone(of.ptys), running: of.running}
}

func (l *ledger) wrote(a *account, name, digest string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a.writes[name] = digest
}

func (l *ledger) runs(a *account, cmd string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a.running = cmd
}

func (l *ledger) opened(a *account, pty string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a.ptys = append(a.ptys, pty)
}

// somePTY gives one that is open, or "" for a new one.
func (l *ledger) somePTY(a *account, rng *rand.Rand) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := rng.IntN(3); n < len(a.ptys) {
		return a.ptys[n]
	}
	return ""
}

func (l *ledger) dooming(a *account) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a.doomed = true
}

// doomed tells later whether the end of a sandbox was asked for: then anything may be answered about it.
func (l *ledger) doomed(a *account) func() bool {
	return func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return a.doomed
	}
}

func (l *ledger) ended(a *account, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ok {
		delete(l.boxes, a.id)
	}
}

// ---- of snapshots ----

func (l *ledger) snapshots() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.snaps) + len(l.unkept)
}

func (l *ledger) someSnapshot(rng *rand.Rand) *kept {
	l.mu.Lock()
	defer l.mu.Unlock()
	var may []*kept
	for _, id := range slices.Sorted(maps.Keys(l.snaps)) {
		if !l.snaps[id].doomed {
			may = append(may, l.snaps[id])
		}
	}
	if len(may) == 0 {
		return nil
	}
	return may[rng.IntN(len(may))]
}

func (l *ledger) keeping(of *account, name string) *kept {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := &kept{name: name, writes: maps.Clone(of.writes)}
	l.unkept = append(l.unkept, k)
	return k
}

func (l *ledger) keptAs(k *kept, id string, ok, refused bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ok || refused {
		l.unkept = slices.DeleteFunc(l.unkept, func(o *kept) bool { return k == o })
	}
	if ok {
		k.id = id
		l.snaps[id] = k
	}
}

func (l *ledger) dropping(k *kept) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k.doomed = true
}

func (l *ledger) snapDoomed(k *kept) func() bool {
	return func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return k != nil && k.doomed
	}
}

func (l *ledger) dropped(k *kept, ok, refused bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ok {
		delete(l.snaps, k.id)
	}
	if refused {
		k.doomed = false
	}
}

func sum(content string) string {
	s := sha256.Sum256([]byte(content))
	return hex.EncodeToString(s[:])
}

func repeated(word string, size int) string {
	return strings.Repeat(word+"\n", size/(len(word)+1)+1)[:size]
}
