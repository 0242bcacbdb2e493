package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/effect"
)

// Bounds of a rehearsal.
const (
	rehearsals      = 2               // at once, of all sandboxes; more wait
	rehearseLimit   = 4 * time.Minute // in all
	rehearseFiles   = 2 << 30         // bytes of files that are compared, before and after
	rehearseOutput  = 64 << 10        // bytes of a stream that are kept
	rehearseProcess = 100             // processes that are told of
)

// Rehearsal is a command that is to be tried.
type Rehearsal struct {
	ID      ID // of the copy: chosen by the caller, who is told by it what the network refused
	Command agent.CommandSpec
}

// Rehearsed is what a command did to a copy of its sandbox.
type Rehearsed struct {
	Exit           agent.Exit
	Stdout, Stderr []byte
	OutputCut      bool // there was more than 64 KiB of a stream
	Files          effect.Result
	FilesWhy       string    // why files are not compared; "" when they are
	Left           []Process // that were not there before
	FilesOnly      bool      // the copy began without what was in memory: it could not be copied
}

// Rehearse runs a command in a copy of a sandbox: with its files, its memory and all that runs in it, and without any
// network. The copy is in no record and is thrown away; after a crash reconcile finds it unowned. The sandbox itself runs on.
func (m *Manager) Rehearse(ctx context.Context, of ID, do Rehearsal) (out Rehearsed, err error) {
	ctx, cancel := context.WithTimeout(ctx, rehearseLimit)
	defer cancel()
	select {
	case m.rehearsing <- struct{}{}:
		defer func() { <-m.rehearsing }()
	case <-ctx.Done():
		return out, ctx.Err()
	}
	parent, from, release, err := m.sourceOf(ctx, of)
	if err != nil {
		return out, err
	}
	defer release()
	freed, err := m.reserveRoom(ctx)
	if err != nil {
		return out, err
	}
	defer freed()
	b := m.newBox(do.ID)
	b.pooled.Store(true)
	b.interruptBy(cancel)
	if err := m.admit(b); err != nil {
		return out, err
	}
	defer close(b.made)
	defer func() {
		_ = b.client.Close()
		err = errors.Join(err, m.clear(context.WithoutCancel(ctx), b))
		m.forget(b)
	}()
	copied := parent
	copied.ID, copied.Network = do.ID, NetworkPolicy{Mode: NetworkNone}
	if out.FilesOnly, err = m.bringCopy(ctx, copied, from); err != nil {
		return out, fmt.Errorf("copy %s: %w", of, err)
	}
	if _, err := b.client.Hello(ctx); err != nil {
		return out, fmt.Errorf("copy %s: the agent does not answer: %w", of, err)
	}
	err = m.try(ctx, b, do, &out)
	return out, err
}

// bringCopy is bring without a journal: what is in no record is found by its name.
func (m *Manager) bringCopy(ctx context.Context, r Record, from SaveID) (filesOnly bool, err error) {
	silent := func(string) error { return ctx.Err() }
	spec := specOf(r)
	if spec.Network, err = m.attach(ctx, r, silent); err != nil {
		return false, err
	}
	defer func() { err = cmp.Or(err, spec.Network.Wait()) }()
	err = m.o.Runtime.Resume(ctx, spec, Source{Save: from}, silent)
	if errors.Is(err, ErrUnrestorable) && ctx.Err() == nil {
		return true, m.o.Runtime.Resume(ctx, spec, Source{Save: from, FilesOnly: true}, silent)
	}
	return false, err
}

// try runs the command between two looks at the copy.
func (m *Manager) try(ctx context.Context, b *box, do Rehearsal, out *Rehearsed) error {
	before, filesErr := m.tree(ctx, b)
	ran, err := m.o.Runtime.Processes(ctx, b.id)
	if err != nil {
		return err
	}
	var said heads
	do.Command.Last = true // what stands by for another one would be taken for something that it left
	out.Exit, err = b.client.Run(ctx, do.Command, &said)
	if err != nil {
		return fmt.Errorf("try a command: %w", err)
	}
	out.Stdout, out.Stderr, out.OutputCut = said.stdout, said.stderr, said.cut || out.Exit.Truncated
	if out.Left, err = m.left(ctx, b.id, ran); err != nil {
		return err
	}
	if filesErr == nil {
		filesErr = m.compare(ctx, b, before, &out.Files)
	}
	switch {
	case filesErr == nil:
	case errors.Is(filesErr, effect.ErrTooMuch):
		out.FilesWhy = "The sandbox has changed too many files, or too large ones, to compare them."
	case ctx.Err() != nil:
		return ctx.Err()
	default:
		m.o.Log.Warn("compare files of a copy", "sandbox", string(b.id), "cause", filesErr.Error())
		out.FilesWhy = "The files could not be read."
	}
	return nil
}

// left gives the processes that were not there before.
func (m *Manager) left(ctx context.Context, id ID, before []Process) ([]Process, error) {
	known := map[Process]bool{}
	for _, p := range before {
		known[p] = true
	}
	now, err := m.o.Runtime.Processes(ctx, id)
	if err != nil {
		return nil, err
	}
	var out []Process
	for _, p := range now {
		if !known[p] && len(out) < rehearseProcess {
			out = append(out, p)
		}
	}
	return out, nil
}

// tree reads the files of a copy: the writable layer from outside, and the rest from its agent.
func (m *Manager) tree(ctx context.Context, b *box) (*effect.Tree, error) {
	t := effect.NewTree()
	if err := m.upper(ctx, b.id, t); err != nil {
		return nil, err
	}
	for _, dir := range m.o.Runtime.Scratch() {
		err := func() error {
			r, err := b.client.Archive(ctx, []byte(dir), "tar")
			if err != nil {
				return err
			}
			defer func() { _ = r.Close() }()
			return t.Add(r, dir, rehearseFiles)
		}()
		if err != nil && !fault.Is(err, fault.NotFound) {
			return nil, fmt.Errorf("files below %s: %w", dir, err)
		}
	}
	return t, nil
}

func (m *Manager) upper(ctx context.Context, id ID, t *effect.Tree) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := m.o.Runtime.Upper(ctx, id, w)
		_ = w.CloseWithError(err)
		done <- err
	}()
	err := t.Add(r, ".", rehearseFiles)
	if err != nil {
		cancel()
	}
	_, _ = io.Copy(io.Discard, r) // what follows the end of the archive, or the rest of one that is too large
	if werr := <-done; err == nil {
		err = werr
	}
	return err
}

func (m *Manager) compare(ctx context.Context, b *box, before *effect.Tree, out *effect.Result) error {
	after, err := m.tree(ctx, b)
	if err != nil {
		return err
	}
	base, done, err := m.o.Runtime.Lower(ctx, b.id)
	if err != nil {
		return err
	}
	*out, err = effect.Compare(base, before, after)
	return errors.Join(err, done())
}

// heads keeps the beginnings of what a command says.
type heads struct {
	stdout, stderr []byte
	cut            bool
}

// Stdout implements agent.Output.
func (h *heads) Stdout(p []byte) error { return h.take(&h.stdout, p) }

// Stderr implements agent.Output.
func (h *heads) Stderr(p []byte) error { return h.take(&h.stderr, p) }

func (h *heads) take(into *[]byte, p []byte) error {
	if room := rehearseOutput - len(*into); len(p) > room {
		p, h.cut = p[:room], true
	}
	*into = append(*into, p...)
	return nil
}
