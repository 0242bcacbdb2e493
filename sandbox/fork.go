package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"sandgate/internal/fault"
)

// Fork makes a sandbox that goes on where another is, which runs on, or sleeps on. Image and
// limits are the other's, all else is as r says.
func (m *Manager) Fork(ctx context.Context, of ID, r Record, q Quota) (Record, error) {
	parent, from, release, err := m.sourceOf(ctx, of)
	if err != nil {
		return Record{}, err
	}
	defer release()
	r.Parent, r.Image, r.Resources = string(of), parent.Image, parent.Resources
	return m.createFrom(ctx, r, q, from)
}

// sourceOf gives a save of a sandbox as it is now, to start another from; release lets go of it.
func (m *Manager) sourceOf(ctx context.Context, of ID) (parent Record, from SaveID, release func(), err error) {
	if parent, err = m.o.Records.SandboxByID(ctx, of); err != nil {
		return parent, "", nil, err
	}
	switch parent.Status {
	case Suspended:
		return parent, SaveID(of), func() {}, nil
	case Running:
	default:
		return parent, "", nil, notRunning(parent)
	}
	from = SaveID(RandomID("fork"))
	if err := m.borrow(from); err != nil {
		return parent, "", nil, err
	}
	release = func() { m.dropBorrowed(context.WithoutCancel(ctx), from) }
	if err := m.saveAs(ctx, of, from); err != nil {
		release()
		return parent, "", nil, err
	}
	return parent, from, release, nil
}

// dropBorrowed ends the short life of a fork's save.
func (m *Manager) dropBorrowed(ctx context.Context, id SaveID) {
	if err := m.o.Runtime.DropSave(ctx, id); err != nil {
		m.o.Log.Error("drop a save", "save", string(id), "cause", err.Error()) // reconcile tries again
	}
	m.giveBack(id)
}

// bring does what makes the sandbox of a record run: from nothing, or from a save. It says what of it people should know.
func (m *Manager) bring(ctx context.Context, r Record, from SaveID) (reason string, err error) {
	spec, journal := specOf(r), m.journal(ctx, r.ID)
	if spec.Network, err = m.attach(ctx, r, journal); err != nil {
		return "", err
	}
	defer func() { err = cmp.Or(err, spec.Network.Wait()) }() // a runtime has waited where it came to that
	if from == "" {
		return "", m.o.Runtime.Create(ctx, spec, journal)
	}
	err = m.o.Runtime.Resume(ctx, spec, Source{Save: from}, journal)
	if errors.Is(err, ErrUnrestorable) && ctx.Err() == nil {
		m.o.Log.Warn("start on the files alone", "sandbox", string(r.ID), "save", string(from), "cause", err.Error())
		reason = ReasonMemoryLost
		err = m.o.Runtime.Resume(ctx, spec, Source{Save: from, FilesOnly: true}, journal)
	}
	if fault.Is(err, fault.NotFound) {
		err = fmt.Errorf("start %s from %s: %w", r.ID, from, err)
	}
	return reason, err
}
