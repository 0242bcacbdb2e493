package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"sandgate/internal/fault"
)

// How long the steps of a passage may take. What is written goes with the sandbox's size.
const (
	holdLimit    = 30 * time.Second // until transfers have ended
	suspendLimit = 15 * time.Minute
	resumeLimit  = 5 * time.Minute
)

// passage is a suspend or a save of a running sandbox that is under way.
type passage struct {
	stops  bool // a suspend
	cancel context.CancelFunc
	done   chan struct{}
	err    error // valid once done
}

// pass begins a passage, or gives the one that is under way. A sandbox that is being killed has none.
func (b *box) pass(stops bool, cancel context.CancelFunc) (p *passage, mine bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.doomed {
		return nil, false, fault.New(fault.NotFound, "Sandbox not found")
	}
	if b.passage != nil {
		return b.passage, false, nil
	}
	b.passage = &passage{stops: stops, cancel: cancel, done: make(chan struct{})}
	return b.passage, true, nil
}

func (b *box) passed(p *passage, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p.err = err
	b.passage = nil
	close(p.done)
}

// under gives the passage that is under way, if any.
func (b *box) under() *passage {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.passage
}

// doom tells everything that is under way for a box to stop and let a kill have it.
func (b *box) doom() {
	b.mu.Lock()
	b.doomed = true
	cancel, p := b.cancel, b.passage
	b.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	if p != nil {
		p.cancel()
	}
}

func (b *box) isDoomed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.doomed
}

// whatOf is what callers are told of a passage that failed: a kill cancels whatever step it finds, and that is no fault of ours.
func (b *box) whatOf(err error) error {
	if err != nil && fault.Is(err, fault.Internal) && b.isDoomed() {
		return fault.Wrap(err, fault.NotFound, "Sandbox not found")
	}
	return err
}

// Suspend keeps a persistent sandbox on disk and frees the host of it. Several callers share one suspend; one that is
// suspended already is fine. A transfer that does not end in time, or a disk without room: an error, and it runs on.
func (m *Manager) Suspend(ctx context.Context, id ID) error {
	for {
		r, err := m.o.Records.SandboxByID(ctx, id)
		if err != nil {
			return err
		}
		b := m.boxOf(id)
		switch {
		case r.Status == Suspended && b == nil:
			return nil
		case r.Status == Running && !r.Persistent:
			return fault.New(fault.Conflict, "Only a persistent sandbox can be suspended.")
		case r.Status == Running && b != nil:
			p, err := m.begin(b, true, func(ctx context.Context) error { return m.suspend(ctx, b) })
			if err != nil {
				return err
			}
			if err := finished(ctx, p.done); err != nil {
				return err
			}
			if p.stops {
				return p.err
			}
		case b != nil && (r.Status == Suspended || r.Status == Suspending || r.Status == Resuming):
			if m.stuck(ctx, b, r) {
				return notRunning(r)
			}
			if err := settled(ctx, b); err != nil {
				return err
			}
		default:
			return notRunning(r)
		}
	}
}

// begin runs a passage in the background: who asked for it may go away.
func (m *Manager) begin(b *box, stops bool, do func(context.Context) error) (*passage, error) {
	ctx, cancel := context.WithTimeout(context.Background(), suspendLimit)
	p, mine, err := b.pass(stops, cancel)
	if err != nil || !mine {
		cancel()
		return p, err
	}
	m.mu.Lock()
	if m.closing {
		m.mu.Unlock()
		cancel()
		err := fault.New(fault.Starting, "The server is stopping; try again in a moment.")
		b.passed(p, err)
		return nil, err
	}
	m.wg.Add(1)
	m.mu.Unlock()
	go func() {
		defer m.wg.Done()
		defer cancel()
		b.passed(p, b.whatOf(do(ctx)))
	}()
	return p, nil
}

func finished(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// settled waits until nothing is under way for a box.
func settled(ctx context.Context, b *box) error {
	if err := finished(ctx, b.made); err != nil {
		return err
	}
	if p := b.under(); p != nil {
		return finished(ctx, p.done)
	}
	return nil
}

// stuck reports whether a record says that a sandbox is asleep, or on its way, while nothing is under way here that would
// end it: a write to the records failed. The next reconciliation takes it up.
func (m *Manager) stuck(ctx context.Context, b *box, r Record) bool {
	if r.Status != Suspended && r.Status != Suspending && r.Status != Resuming {
		return false
	}
	idle := func() bool {
		select {
		case <-b.made:
			return b.under() == nil && m.boxOf(r.ID) == b
		default:
			return false
		}
	}
	if !idle() {
		return false
	}
	now, err := m.o.Records.SandboxByID(ctx, r.ID) // what ended just now is on record
	return err == nil && now.Status == r.Status && idle()
}

// suspend is the passage of one running sandbox to Suspended, or back to Running when it cannot be.
func (m *Manager) suspend(ctx context.Context, b *box) error {
	held, cancel := context.WithTimeout(ctx, holdLimit)
	release, err := b.client.Hold(held)
	cancel()
	if err != nil {
		return fault.Wrap(err, fault.Conflict, "The sandbox is in use: a file is being transferred. Try again when it is done.")
	}
	defer release() // whoever waits learns what became of it
	moved, err := m.become(ctx, b.id, Running, Suspending, "")
	if err != nil { // whether it is on record is not known
		_, berr := m.become(context.WithoutCancel(ctx), b.id, Suspending, Running, "")
		return errors.Join(err, berr)
	}
	if !moved {
		return fault.New(fault.Conflict, "The sandbox is not running any more.")
	}
	b.interrupt() // its watcher: a sandbox that is written to disk ends, and that is no death
	b.host.Lock()
	defer b.host.Unlock()
	err = m.o.Runtime.Suspend(ctx, b.id, m.journal(ctx, b.id))
	if b.isDoomed() {
		return fault.New(fault.NotFound, "Sandbox not found")
	}
	if err == nil {
		return m.asleep(context.WithoutCancel(ctx), b, "")
	}
	m.o.Log.Warn("suspend", "sandbox", string(b.id), "cause", err.Error())
	settle, cancel := context.WithTimeout(context.WithoutCancel(ctx), suspendLimit)
	defer cancel()
	if serr := m.settle(settle, b, ""); serr != nil {
		return errors.Join(err, serr)
	}
	if r, rerr := m.o.Records.SandboxByID(settle, b.id); rerr == nil && r.Status == Suspended {
		return nil // only what came after it failed
	}
	if fault.Is(err, fault.Internal) {
		err = fault.Wrap(err, fault.HostFull, "The sandbox could not be suspended; it runs on.")
	}
	return err
}

func (m *Manager) journal(ctx context.Context, id ID) Journal {
	return func(step string) error { return m.o.Records.NoteStep(ctx, id, step, m.o.Now()) }
}

// settle brings a sandbox that is Suspending to where its host is: asleep, running on, or dead.
func (m *Manager) settle(ctx context.Context, b *box, reason string) error {
	running, err := m.o.Runtime.Settle(ctx, b.id)
	switch {
	case fault.Is(err, fault.NotFound):
		return m.lost(ctx, b, Suspending, ReasonCrash)
	case err != nil:
		return fmt.Errorf("settle %s: %w", b.id, err)
	case !running:
		return m.asleep(ctx, b, reason)
	}
	moved, err := m.become(ctx, b.id, Suspending, Running, "")
	if err != nil {
		return err
	}
	if moved {
		m.watch(b)
	}
	return nil
}

// asleep ends a passage in Suspended.
func (m *Manager) asleep(ctx context.Context, b *box, reason string) error {
	if err := m.vacate(ctx, b.id); err != nil {
		m.o.Log.Error("free the host of a suspended sandbox", "sandbox", string(b.id), "cause", err.Error()) // reconcile tries again
	}
	m.noteSave(ctx, b.id)
	// Forgotten only now that the record can say where it is: who finds neither box nor status would take it for dead.
	_, err := m.become(ctx, b.id, Suspending, Suspended, reason)
	m.forget(b)
	_ = b.client.End()
	return err
}

// vacate frees the host of a sandbox but for its save.
func (m *Manager) vacate(ctx context.Context, id ID) error {
	err := m.o.Runtime.Free(ctx, id)
	if m.o.Network != nil {
		err = errors.Join(err, m.o.Network.Detach(ctx, id))
	}
	return err
}

// noteSave puts on record what is kept of a sandbox.
func (m *Manager) noteSave(ctx context.Context, id ID) {
	s, err := m.o.Runtime.Saved(ctx, SaveID(id))
	if err == nil {
		err = m.o.Records.NoteSave(ctx, id, s.At, s.Bytes)
	}
	if err != nil {
		m.o.Log.Error("note a save", "sandbox", string(id), "cause", err.Error())
	}
}

// lost ends a sandbox of which nothing is left to go on with.
func (m *Manager) lost(ctx context.Context, b *box, from Status, reason string) error {
	_, err := m.become(ctx, b.id, from, Failed, reason)
	_ = b.client.End()
	err = errors.Join(err, m.sweep(ctx, b.id))
	m.forget(b)
	return errors.Join(err, Died(reason))
}

// Resume wakes a suspended sandbox and returns it running. Several callers share one resume; one that runs is fine.
func (m *Manager) Resume(ctx context.Context, id ID) (Record, error) {
	for {
		r, err := m.o.Records.SandboxByID(ctx, id)
		if err != nil {
			return Record{}, err
		}
		b := m.boxOf(id)
		switch {
		case r.Status == Running && b != nil:
			return r, nil
		case r.Status == Suspended && b == nil:
			b := m.newBox(id)
			if err := m.admit(b); fault.Is(err, fault.Conflict) {
				continue // another was as quick
			} else if err != nil {
				return Record{}, err
			}
			m.wake(b, r)
			if err := finished(ctx, b.made); err != nil {
				return Record{}, err
			}
			if b.failed != nil {
				return Record{}, b.failed
			}
		case b != nil && (r.Status == Suspended || r.Status == Suspending || r.Status == Resuming):
			if m.stuck(ctx, b, r) {
				return Record{}, notRunning(r)
			}
			if err := settled(ctx, b); err != nil {
				return Record{}, err
			}
			if b.failed != nil {
				return Record{}, b.failed
			}
		default:
			return Record{}, notRunning(r)
		}
	}
}

// wake resumes in the background: whoever asked first may go away, others wait for the same.
func (m *Manager) wake(b *box, r Record) {
	ctx, cancel := context.WithTimeout(context.Background(), resumeLimit)
	b.interruptBy(cancel)
	go func() {
		defer cancel()
		b.failed = b.whatOf(m.resume(ctx, b, r))
		close(b.made)
	}()
}

// resume is the passage of one suspended sandbox to Running, or back to Suspended when it cannot be.
func (m *Manager) resume(ctx context.Context, b *box, r Record) error {
	moved, err := m.become(ctx, r.ID, Suspended, Resuming, r.Reason)
	if err != nil || !moved {
		m.forget(b)
		return err
	}
	reason, err := m.restore(ctx, r)
	if err == nil {
		if _, err = b.client.Hello(ctx); err != nil {
			err = fmt.Errorf("resume %s: the agent does not answer: %w", r.ID, err)
		}
	}
	if err == nil {
		if moved, err = m.become(ctx, r.ID, Resuming, Running, reason); err == nil && moved && ctx.Err() == nil {
			m.watch(b)
			m.Touch(ctx, r.ID) // its idle time begins
			return nil
		}
	}
	return m.backToSleep(ctx, b, r, err)
}

// restore does the host's part of a resume and says what of it people should know.
func (m *Manager) restore(ctx context.Context, r Record) (reason string, err error) {
	if r.Reason == ReasonHostRestarted {
		reason = r.Reason // what was done since the save is not there
	}
	release, err := m.reserveRoom(ctx)
	if err != nil {
		return "", err
	}
	defer release()
	if r, err = m.o.Records.SandboxByID(ctx, r.ID); err != nil { // its network may have been changed while it slept
		return "", err
	}
	lost, err := m.bring(ctx, r, SaveID(r.ID))
	return cmp.Or(lost, reason), err
}

// backToSleep undoes a resume.
func (m *Manager) backToSleep(ctx context.Context, b *box, r Record, cause error) error {
	canceled := ctx.Err() != nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeLimit)
	defer cancel()
	_ = b.client.End()
	verr := m.vacate(ctx, r.ID)
	if verr != nil {
		m.o.Log.Error("undo a resume", "sandbox", string(r.ID), "cause", verr.Error()) // reconcile tries again
	}
	if b.isDoomed() {
		return fault.New(fault.NotFound, "Sandbox not found") // the kill goes on from here
	}
	for _, from := range []Status{Resuming, Running} { // Running: noted, but then the server stopped
		if from == Running {
			_, _ = m.become(ctx, r.ID, Running, Suspending, r.Reason)
			from = Suspending
		}
		if moved, err := m.become(ctx, r.ID, from, Suspended, r.Reason); err != nil {
			cause = errors.Join(cause, err)
		} else if moved {
			break
		}
	}
	m.forget(b)
	if now, err := m.o.Records.SandboxByID(ctx, r.ID); err == nil && (now.Status == Stopping || now.Status == Gone) {
		return errors.Join(notRunning(now), m.sweep(ctx, r.ID)) // killed past this box: nothing of it may stay
	}
	m.o.Log.Warn("resume", "sandbox", string(r.ID), "cause", fmt.Sprint(cause))
	switch {
	case canceled && m.isClosing():
		return fault.New(fault.Starting, "The server is stopping; try again in a moment.")
	case cause == nil || fault.Is(cause, fault.Internal):
		return fault.Wrap(cause, fault.HostFull, "The sandbox could not be woken on this host; it is still suspended. Try again, and ask the operator if it stays so.")
	}
	return cause
}

func (m *Manager) isClosing() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closing
}
