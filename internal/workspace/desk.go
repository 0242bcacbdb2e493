package workspace

import (
	"sync"

	"sandgate/internal/approval"
)

// desk is what this process keeps of open requests: who waits for them, and what keeps their sandboxes alive. The zero
// value is ready.
type desk struct {
	mu      sync.Mutex
	waiting map[string]map[chan struct{}]struct{} // by request
	holds   map[string]held                       // by request
}

type held struct {
	sandbox string
	done    func()
}

// wait gives a channel that is closed with the next change of a request. leave when done.
func (d *desk) wait(id string) (changed <-chan struct{}, leave func()) {
	ch := make(chan struct{})
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waiting == nil {
		d.waiting = map[string]map[chan struct{}]struct{}{}
	}
	if d.waiting[id] == nil {
		d.waiting[id] = map[chan struct{}]struct{}{}
	}
	d.waiting[id][ch] = struct{}{}
	return ch, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.waiting[id], ch)
		if len(d.waiting[id]) == 0 {
			delete(d.waiting, id)
		}
	}
}

// alone reports whether no call waits for a request.
func (d *desk) alone(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.waiting[id]) == 0
}

// wake tells who waits.
func (d *desk) wake(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for ch := range d.waiting[id] {
		close(ch)
	}
	delete(d.waiting, id)
}

// hold keeps a sandbox alive for a request until release.
func (d *desk) hold(rec approval.Record, done func()) {
	d.mu.Lock()
	if d.holds == nil {
		d.holds = map[string]held{}
	}
	old, twice := d.holds[rec.ID]
	d.holds[rec.ID] = held{rec.SandboxID, done}
	d.mu.Unlock()
	if twice {
		old.done()
	}
}

func (d *desk) release(id string) {
	d.mu.Lock()
	h, ok := d.holds[id]
	delete(d.holds, id)
	d.mu.Unlock()
	if ok {
		h.done()
	}
}

// of lists the open requests of a sandbox that this process knows.
func (d *desk) of(sandbox string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []string
	for id, h := range d.holds {
		if h.sandbox == sandbox {
			out = append(out, id)
		}
	}
	return out
}
