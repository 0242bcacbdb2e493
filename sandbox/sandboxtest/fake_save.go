package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"time"

	"sandgate/internal/fault"
	"sandgate/sandbox"
)

// fakeSave is a kept state. The fake cannot copy an agent: a suspended one is put aside as it is, and goes on in its place.
type fakeSave struct {
	save sandbox.Save
	box  *fakeBox // nil: made while the sandbox went on; a new agent starts from it
	bad  error    // what Resume answers
}

// The names that the fake's journal sees while a save is made or used.
var (
	fakeSaveSteps   = []string{"checkpoint", "keep save"}
	fakeResumeSteps = []string{"directories", "restore"}
)

// step is what comes before each change: the context, the journal, the test's own failure.
func (f *Fake) step(ctx context.Context, id sandbox.ID, step string, journal sandbox.Journal) error {
	err := ctx.Err()
	if err == nil {
		err = journal(step)
	}
	if err == nil && f.o.Step != nil {
		err = f.o.Step(id, step)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("sandbox %s: %s: %w", id, step, err)
	}
	return nil
}

// live needs mu.
func (f *Fake) live(id sandbox.ID) (*fakeBox, error) {
	b := f.boxes[id]
	if b == nil || !b.started {
		return nil, fault.New(fault.NotFound, "Sandbox not found")
	}
	select {
	case <-b.dead:
		return nil, fault.New(fault.NotFound, "Sandbox not found")
	default:
		return b, nil
	}
}

func (f *Fake) makeSave(ctx context.Context, id sandbox.ID, to sandbox.SaveID, stop bool, journal sandbox.Journal) error {
	if err := checkID(id); err != nil {
		return err
	}
	if err := f.unused(ctx, id); err != nil {
		return err
	}
	for _, s := range fakeSaveSteps {
		if err := f.step(ctx, id, s, journal); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	b, err := f.live(id)
	if err != nil {
		return err
	}
	kept := &fakeSave{save: sandbox.Save{ID: to, At: time.Now(), Bytes: 4096, Image: b.image, Whole: true}}
	if stop {
		kept.box = b
		delete(f.boxes, id)
		close(b.aside)
	}
	f.saves[to] = kept
	return nil
}

// unused waits a moment for bridges that were closed.
func (f *Fake) unused(ctx context.Context, id sandbox.ID) error {
	for range 500 {
		f.mu.Lock()
		b, err := f.live(id)
		open := err == nil && len(b.bridges) > 0
		f.mu.Unlock()
		if err != nil || !open {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return fault.New(fault.Conflict, "The sandbox is in use: its state cannot be saved now.")
}

// Save implements sandbox.Saver.
func (f *Fake) Save(ctx context.Context, id sandbox.ID, to sandbox.SaveID, journal sandbox.Journal) error {
	return f.makeSave(ctx, id, to, false, journal)
}

// Suspend implements sandbox.Saver.
func (f *Fake) Suspend(ctx context.Context, id sandbox.ID, journal sandbox.Journal) error {
	return f.makeSave(ctx, id, sandbox.SaveID(id), true, journal)
}

// Settle implements sandbox.Saver.
func (f *Fake) Settle(_ context.Context, id sandbox.ID) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if kept := f.saves[sandbox.SaveID(id)]; kept != nil {
		kept.save.Unfinished = false
	}
	if _, err := f.live(id); err == nil {
		return true, nil
	}
	if f.saves[sandbox.SaveID(id)] == nil {
		return false, fault.New(fault.NotFound, "There is no save of this sandbox.")
	}
	delete(f.boxes, id)
	return false, nil
}

// Resume implements sandbox.Saver.
func (f *Fake) Resume(ctx context.Context, spec sandbox.Spec, from sandbox.Source, journal sandbox.Journal) (err error) {
	if err := checkID(spec.ID); err != nil {
		return err
	}
	f.mu.Lock()
	kept := f.saves[from.Save]
	taken := f.boxes[spec.ID] != nil
	f.mu.Unlock()
	switch {
	case kept == nil:
		return fault.New(fault.NotFound, "There is no save of this sandbox.")
	case taken:
		return fault.New(fault.Conflict, "A sandbox of this id exists already.")
	case kept.bad != nil && !from.FilesOnly:
		return kept.bad
	}
	for _, s := range fakeResumeSteps {
		if err := f.step(ctx, spec.ID, s, journal); err != nil {
			return err
		}
	}
	if kept.box != nil && !from.FilesOnly && sandbox.SaveID(spec.ID) == from.Save {
		f.mu.Lock()
		defer f.mu.Unlock()
		kept.box.aside = make(chan struct{})
		f.boxes[spec.ID] = kept.box
		kept.box = nil
		return nil
	}
	return f.Create(ctx, spec, func(string) error { return nil })
}

// Saved implements sandbox.Saver.
func (f *Fake) Saved(ctx context.Context, id sandbox.SaveID) (sandbox.Save, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	kept := f.saves[id]
	if kept == nil {
		return sandbox.Save{}, fault.New(fault.NotFound, "There is no save of this sandbox.")
	}
	return kept.save, ctx.Err()
}

// Saves implements sandbox.Saver.
func (f *Fake) Saves(ctx context.Context) ([]sandbox.Save, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]sandbox.Save, 0, len(f.saves))
	for _, s := range f.saves {
		out = append(out, s.save)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].ID < out[j].ID })
	return out, ctx.Err()
}

// DropSave implements sandbox.Saver.
func (f *Fake) DropSave(_ context.Context, id sandbox.SaveID) error {
	if !id.Valid() {
		return fault.New(fault.NotFound, "There is no save of this sandbox.")
	}
	f.mu.Lock()
	kept := f.saves[id]
	delete(f.saves, id)
	f.mu.Unlock()
	if kept == nil || kept.box == nil {
		return nil
	}
	if kept.box.agent != nil {
		_ = kept.box.agent.Close()
	}
	return os.RemoveAll(filepath.Join(f.o.Dir, string(id)))
}

// Unfinish makes a save one that another was to take the place of, when the server ended.
func (f *Fake) Unfinish(id sandbox.SaveID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if kept := f.saves[id]; kept != nil {
		kept.save.Unfinished = true
	}
}

// Spoil makes a save one that cannot run again.
func (f *Fake) Spoil(id sandbox.SaveID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if kept := f.saves[id]; kept != nil {
		kept.bad = fmt.Errorf("spoilt: %w", sandbox.ErrUnrestorable)
	}
}

// Remove implements sandbox.Runtime.
func (f *Fake) Remove(ctx context.Context, id sandbox.ID) error {
	if err := checkID(id); err != nil {
		return err
	}
	return errors.Join(f.DropSave(ctx, sandbox.SaveID(id)), f.Free(ctx, id))
}
