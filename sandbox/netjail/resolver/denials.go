package resolver

import (
	"context"
	"sync"
	"time"

	"sandgate/sandbox"
)

const (
	flushEvery     = 250 * time.Millisecond
	maxNames       = 32   // kinds of refusal of one sandbox in one flush; the rest is counted without its name
	maxNamesIn     = 2048 // and of all
	otherNames     = "(other names)"
	denialProtocol = "dns"
)

type denialKey struct {
	id        sandbox.ID
	name, why string
}

// denials puts refusals together and hands them on, so that a flood of questions costs a few calls a second.
type denials struct {
	tell func(sandbox.ID, sandbox.Denial)

	mu    sync.Mutex
	kinds map[denialKey]*sandbox.Denial
	per   map[sandbox.ID]int
}

func newDenials(tell func(sandbox.ID, sandbox.Denial)) *denials {
	if tell == nil {
		tell = func(sandbox.ID, sandbox.Denial) {}
	}
	return &denials{tell: tell, kinds: map[denialKey]*sandbox.Denial{}, per: map[sandbox.ID]int{}}
}

func (d *denials) add(id sandbox.ID, name, why string) {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	k := denialKey{id, name, why}
	if d.kinds[k] == nil {
		if d.per[id] >= maxNames || len(d.kinds) >= maxNamesIn {
			k.name = otherNames
		}
		if d.kinds[k] == nil {
			d.kinds[k] = &sandbox.Denial{Protocol: denialProtocol, Destination: k.name, Port: 53, Why: why}
			d.per[id]++
		}
	}
	d.kinds[k].At = now
	d.kinds[k].Count++
}

func (d *denials) flush() {
	d.mu.Lock()
	kinds := d.kinds
	if len(kinds) > 0 {
		d.kinds, d.per = map[denialKey]*sandbox.Denial{}, map[sandbox.ID]int{}
	}
	d.mu.Unlock()
	for k, denial := range kinds {
		d.tell(k.id, *denial)
	}
}

func (d *denials) run(ctx context.Context) {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			d.flush()
		case <-ctx.Done():
			d.flush()
			return
		}
	}
}
