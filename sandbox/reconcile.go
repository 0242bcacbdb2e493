package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sandgate/internal/fault"
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
		if b := m.boxOf(r.ID); b != nil {
			if !m.stuck(ctx, b, r) {
				continue // somebody is at it in this process
			}
			b.interrupt()
			_ = b.client.Close()
			m.forget(b)
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
	errs = append(errs, m.dropUnowned(ctx, owned))
	return errors.Join(errs...)
}

// dropUnowned takes saves off the disk whose sandbox or snapshot is on no record any more.
func (m *Manager) dropUnowned(ctx context.Context, owned map[ID]bool) error {
	saves, err := m.o.Runtime.Saves(ctx)
	if err != nil {
		return fmt.Errorf("reconcile: %w", err)
	}
	// After the saves: a row is written before there is anything on the disk.
	named, err := m.reconcileSnapshots(ctx)
	if named == nil {
		return err
	}
	errs := []error{err}
	for _, s := range saves {
		id := ID(s.ID)
		if owned[id] && s.Unfinished {
			m.settleSave(id)
		}
		if owned[id] || named[s.ID] || m.boxOf(id) != nil || m.isBorrowed(s.ID) {
			continue
		}
		m.o.Log.Warn("removing a save that no record owns", "sandbox", string(id))
		errs = append(errs, m.o.Runtime.DropSave(ctx, s.ID))
	}
	return errors.Join(errs...)
}

// settleSave clears away what is left of a save of a running sandbox that a server did not finish, once nothing writes it
// any more. A passage under way knows itself what it writes.
func (m *Manager) settleSave(id ID) {
	b := m.boxOf(id)
	if b == nil {
		return
	}
	_, err := m.begin(b, false, func(ctx context.Context) error {
		_, err := m.o.Runtime.Settle(ctx, id)
		if err != nil {
			m.o.Log.Error("settle a save", "sandbox", string(id), "cause", err.Error()) // the next round tries again
		}
		return err
	})
	if err != nil {
		m.o.Log.Info("a save is not settled", "sandbox", string(id), "cause", err.Error())
	}
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
			m.keepInForce(ctx, r)
			m.watch(b)
			m.tell(ctx, r.ID)
			return nil
		}
		death, err := m.o.Runtime.Wait(ctx, r.ID)
		if err != nil || death.Reason == "" {
			death = Death{Reason: ReasonHostRestarted, Detail: "not alive when the server started"}
		}
		if r.Persistent && death.Reason == ReasonHostRestarted && m.fallBack(ctx, b) {
			return nil
		}
		m.died(b, death)
		return nil
	case Failed:
		if !traces {
			return nil
		}
		return m.sweep(ctx, r.ID)
	case Suspending, Suspended, Resuming:
		return m.takeUpSave(ctx, r, traces)
	default: // half made or half removed when the server ended
		return m.Kill(ctx, r.ID, ReasonKilled)
	}
}

// keepInForce keeps a sandbox that is taken up again to its limits and to its network's policy.
func (m *Manager) keepInForce(ctx context.Context, r Record) {
	m.enforce(ctx, r)
	if m.o.Network == nil {
		return
	}
	// Without it the sandbox is cut off, never open: it runs on, and the next start tries again.
	if err := m.o.Network.Adopt(ctx, r.ID, r.Network); err != nil {
		m.o.Log.Error("take up a network", "sandbox", string(r.ID), "cause", err.Error())
	}
}

// fallBack makes of a sandbox that the host's restart ended a suspended one, at its last save; false when there is none.
func (m *Manager) fallBack(ctx context.Context, b *box) bool {
	if _, err := m.o.Runtime.Saved(ctx, SaveID(b.id)); err != nil {
		return false
	}
	moved, err := m.become(ctx, b.id, Running, Suspending, ReasonHostRestarted)
	if err == nil && moved {
		err = m.asleep(ctx, b, ReasonHostRestarted)
	}
	if err != nil {
		m.o.Log.Error("fall back to a save", "sandbox", string(b.id), "cause", err.Error()) // the next reconcile goes on
	}
	m.forget(b)
	return true
}

// takeUpSave brings one that is suspended, or was on its way there or back when the server ended, to one of its ends.
func (m *Manager) takeUpSave(ctx context.Context, r Record, traces bool) error {
	if r.Status == Suspended && !traces {
		if _, err := m.o.Runtime.Saved(ctx, SaveID(r.ID)); !fault.Is(err, fault.NotFound) {
			return err
		}
	}
	b := m.newBox(r.ID)
	if err := m.admit(b); err != nil {
		return nil // another call took it up, or the server stops
	}
	if r.Status == Suspending {
		return m.settleSuspend(ctx, b, r)
	}
	defer close(b.made)
	defer m.forget(b)
	if err := m.vacate(ctx, r.ID); err != nil {
		return fmt.Errorf("take up %s: %w", r.ID, err)
	}
	if _, err := m.o.Runtime.Saved(ctx, SaveID(r.ID)); fault.Is(err, fault.NotFound) {
		if err := m.lost(ctx, b, r.Status, ReasonSaveLost); !fault.Is(err, fault.SandboxDied) {
			return err
		}
		return nil
	}
	if r.Status == Resuming {
		if _, err := m.become(ctx, r.ID, Resuming, Suspended, r.Reason); err != nil {
			return err
		}
	}
	return nil
}

// settleWait is how long a reconciliation waits for one sandbox that was being suspended. A state of some GB takes minutes to be
// written, and a sandbox that does not answer never ends: nobody else has to wait for them.
const settleWait = 5 * time.Second

// settleSuspend brings one that was being suspended when the server ended to where its host is. It goes on in the background
// where that takes its time; who wants the sandbox meanwhile waits, and a kill ends it.
func (m *Manager) settleSuspend(ctx context.Context, b *box, r Record) error {
	settling, cancel := context.WithTimeout(m.life, suspendLimit)
	b.interruptBy(cancel)
	done, left := make(chan error), make(chan struct{})
	m.wg.Go(func() {
		defer cancel()
		err := m.settle(settling, b, r.Reason)
		switch {
		case fault.Is(err, fault.SandboxDied): // it is on record
			err = nil
		case err != nil && b.isDoomed(): // the kill goes on from here
			err = nil
		case err != nil:
			m.forget(b)
		case m.boxOf(r.ID) == b:
			m.keepInForce(settling, r) // it runs on
		}
		close(b.made)
		select {
		case done <- err:
		case <-left:
			if err != nil {
				m.o.Log.Error("settle a suspend", "sandbox", string(b.id), "cause", err.Error()) // the next round tries again
			}
		}
	})
	defer close(left)
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(m.settleWait):
		m.o.Log.Info("a suspend is still being settled", "sandbox", string(b.id))
		return nil
	}
}
