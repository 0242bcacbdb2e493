package sandbox

import (
	"context"
	"errors"
	"fmt"
)

// Reconcile compares records with the host and mends both ways: what is ours and alive is taken up again, what is ours
// and dead or half made is removed, what bears our mark and no record owns is removed. What does not bear it is never
// seen. It is safe to call at any time; at start it must end before the first request.
func (m *Manager) Reconcile(ctx context.Context) error {
	// The host first: a record is written before the host is changed, so an id found here without a record is unowned.
	found, err := m.traces(ctx)
	if err != nil {
		return fmt.Errorf("reconcile: %w", err)
	}
	records, err := m.o.Records.Sandboxes(ctx, Filter{})
	if err != nil {
		return fmt.Errorf("reconcile: %w", err)
	}
	var errs []error
	owned := map[ID]bool{}
	for _, r := range records {
		owned[r.ID] = true
		if m.boxOf(r.ID) != nil {
			continue // somebody is at it in this process
		}
		if err := m.takeUp(ctx, r, found[r.ID]); err != nil {
			errs = append(errs, err)
		}
	}
	for id := range found {
		if owned[id] || m.boxOf(id) != nil {
			continue
		}
		m.o.Log.Warn("removing traces that no record owns", "sandbox", string(id))
		if err := m.sweep(ctx, id); err != nil {
			errs = append(errs, fmt.Errorf("remove unowned %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

// takeUp brings one record and the host together again.
func (m *Manager) takeUp(ctx context.Context, r Record, traces bool) error {
	switch r.Status {
	case Running:
		alive, err := m.o.Runtime.Alive(ctx, r.ID)
		if err != nil {
			return fmt.Errorf("take up %s: %w", r.ID, err)
		}
		b := m.newBox(r.ID)
		close(b.made)
		if err := m.admit(b); err != nil {
			return nil // another call took it up, or the server stops
		}
		if alive {
			m.enforce(ctx, r)
			if m.o.Network != nil {
				// Without it the sandbox is cut off, never open: it runs on, and the next start tries again.
				if err := m.o.Network.Adopt(ctx, r.ID, r.Network); err != nil {
					m.o.Log.Error("take up a network", "sandbox", string(r.ID), "cause", err.Error())
				}
			}
			m.watch(b)
			m.tell(ctx, r.ID)
			return nil
		}
		death, err := m.o.Runtime.Wait(ctx, r.ID)
		if err != nil || death.Reason == "" {
			death = Death{Reason: ReasonHostRestarted, Detail: "not alive when the server started"}
		}
		m.died(b, death)
		return nil
	case Failed:
		if !traces {
			return nil
		}
		return m.sweep(ctx, r.ID)
	default: // half made or half removed when the server ended
		return m.Kill(ctx, r.ID, ReasonKilled)
	}
}
