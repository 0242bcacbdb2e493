package sandbox

import (
	"context"
	"time"

	"sandgate/internal/fault"
)

const (
	saveLook  = time.Minute            // how often it is looked for what is due, at most
	saveTouch = 500 * time.Millisecond // of CPU: less is nothing that was done
)

// KeepSaved saves what runs and is persistent, so that a power cut costs at most what was done since, until ctx ends. One
// in which nothing was done is left alone, and so is one with a transfer under way until the next look.
func (m *Manager) KeepSaved(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(min(saveLook, max(every/4, 100*time.Millisecond)))
	defer tick.Stop()
	done := map[ID]float64{} // CPU seconds at the last save
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		records, err := m.o.Records.Sandboxes(ctx, Filter{})
		if err != nil {
			continue // told by whoever else reads
		}
		seen := map[ID]float64{}
		for _, r := range records {
			if r.Status != Running || !r.Persistent || ctx.Err() != nil {
				continue
			}
			seen[r.ID] = done[r.ID]
			last := r.SavedAt
			if last.IsZero() {
				last = r.CreatedAt
			}
			u, err := m.o.Runtime.Usage(ctx, r.ID)
			if err != nil || m.o.Now().Sub(last) < every || r.LastActivity.Before(r.SavedAt) && u.CPUSeconds-done[r.ID] < saveTouch.Seconds() {
				continue
			}
			if err := m.Save(ctx, r.ID); err != nil {
				m.o.Log.Warn("save a running sandbox", "sandbox", string(r.ID), "cause", err.Error())
				continue
			}
			if u, err = m.o.Runtime.Usage(ctx, r.ID); err == nil {
				seen[r.ID] = u.CPUSeconds
			}
		}
		done = seen
	}
}

// Save keeps the state of a running sandbox and lets it run on. Calls wait meanwhile, and what streams goes on after.
func (m *Manager) Save(ctx context.Context, id ID) error {
	return m.saveAs(ctx, id, SaveID(id))
}

// saveAs saves under a name.
func (m *Manager) saveAs(ctx context.Context, id ID, to SaveID) error {
	for {
		r, err := m.o.Records.SandboxByID(ctx, id)
		if err != nil {
			return err
		}
		b := m.boxOf(id)
		if r.Status != Running || b == nil {
			return notRunning(r)
		}
		mine := false
		p, err := m.begin(b, false, func(ctx context.Context) error {
			mine = true
			return m.save(ctx, b, to)
		})
		if err != nil {
			return err
		}
		if err := finished(ctx, p.done); err != nil {
			return err
		}
		if mine {
			return p.err
		}
	}
}

func (m *Manager) save(ctx context.Context, b *box, to SaveID) error {
	held, cancel := context.WithTimeout(ctx, holdLimit)
	release, err := b.client.Hold(held)
	cancel()
	if err != nil {
		return fault.Wrap(err, fault.Conflict, "The sandbox is in use: a file is being transferred. Try again when it is done.")
	}
	defer release()
	b.host.Lock()
	defer b.host.Unlock()
	if err := m.o.Runtime.Save(ctx, b.id, to, m.journal(ctx, b.id)); err != nil {
		if b.isDoomed() {
			return fault.Wrap(err, fault.NotFound, "Sandbox not found")
		}
		return err
	}
	if to == SaveID(b.id) {
		m.noteSave(ctx, b.id)
	}
	return nil
}
