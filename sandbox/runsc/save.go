package runsc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandgate/internal/fault"
	"sandgate/sandbox"
)

const (
	saveLimit   = 10 * time.Minute // of one checkpoint: it goes with the size
	bridgeLimit = 5 * time.Second  // bridges that were closed are gone by then

	// filesInPassing is up to how large a writable layer a save of a running sandbox keeps the files by themselves, too: they
	// take 5 s a GB, in which calls wait.
	filesInPassing = 128 << 20
)

// Save implements sandbox.Saver.
func (r *Runtime) Save(ctx context.Context, id sandbox.ID, to sandbox.SaveID, journal sandbox.Journal) error {
	return r.save(ctx, id, to, false, journal)
}

// Suspend implements sandbox.Saver.
func (r *Runtime) Suspend(ctx context.Context, id sandbox.ID, journal sandbox.Journal) error {
	if err := check(id); err != nil {
		return err
	}
	if err := r.save(ctx, id, r.ownSave(id), true, journal); err != nil {
		return err
	}
	if err := journal("free"); err != nil {
		return fmt.Errorf("suspend %s: free: %w", id, err)
	}
	return r.Free(context.WithoutCancel(ctx), id)
}

// save makes a save. As long as the last of its steps is not done, what was kept before is what there is. The sandbox
// always outlives the writing of its state, because a state that could not be written would be lost with it: one that is
// to stop is paused before, so that nothing happens in it that its state does not know.
func (r *Runtime) save(ctx context.Context, id sandbox.ID, to sandbox.SaveID, stop bool, journal sandbox.Journal) error {
	if err := check(id); err != nil {
		return err
	}
	if !to.Valid() {
		return fmt.Errorf("save %s: %q is no name of a save", id, to)
	}
	st, err := r.load(id)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !(st.Started && st.Sentry.alive()) {
		return fault.New(fault.NotFound, "Sandbox not found")
	}
	if err != nil {
		return fmt.Errorf("save %s: %w", id, err)
	}
	release, err := r.bridges.shut(ctx, id, bridgeLimit)
	if err != nil {
		return err
	}
	defer release()
	m, need, err := r.describe(ctx, st, to)
	if err != nil {
		return fmt.Errorf("save %s: %w", id, err)
	}
	for _, s := range []struct {
		name string
		do   func() error
	}{
		{"save directory", func() error { return r.makeNext(id, to, m, need) }},
		{"pause", func() error { return r.pause(ctx, st, stop) }},
		{"files", func() error {
			if to.Passing() || !stop && to == r.ownSave(id) && m.Disk > filesInPassing {
				return nil
			}
			return r.saveFiles(ctx, id, to)
		}},
		{"checkpoint", func() error { return r.checkpoint(ctx, id, to) }},
		{"keep save", func() error { return r.finish(to, m) }},
	} {
		err := ctx.Err()
		if err == nil {
			err = journal(s.name)
		}
		if err == nil {
			err = s.do()
		}
		if err != nil {
			return errors.Join(fmt.Errorf("save %s: %s: %w", id, s.name, err), r.dropNext(to), r.unpause(ctx, st))
		}
	}
	return nil
}

func (r *Runtime) pause(ctx context.Context, st state, stop bool) error {
	if !stop {
		return nil
	}
	st.Paused = true // before it is, so that whoever comes after a crash knows
	if err := writeJSON(r.stateFile(st.ID), st, 0o600); err != nil {
		return err
	}
	return r.callWhole(ctx, st.ID, "pause")
}

// callWhole has runsc pause or resume a sandbox. Neither is ever cut short, not by the end of the server either: between the
// sandbox and what runsc notes of it, the two would differ for good, and a sandbox that is paused without a note cannot be
// resumed any more.
func (r *Runtime) callWhole(ctx context.Context, id sandbox.ID, command string) error {
	return r.callDetached(context.WithoutCancel(ctx), startLimit, id, append(r.flags(), command, string(id))...)
}

// unpause lets a sandbox run on.
func (r *Runtime) unpause(ctx context.Context, st state) error {
	now, err := r.load(st.ID)
	if err != nil || !now.Paused {
		return err
	}
	// An error is that it was not paused yet; whether it runs is asked of itself.
	err = r.callWhole(ctx, st.ID, "resume")
	limited, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if aerr := r.answers(limited, st.ID); aerr != nil {
		return fmt.Errorf("let %s run on: %w", st.ID, errors.Join(err, aerr))
	}
	now.Paused = false
	return writeJSON(r.stateFile(st.ID), now, 0o600)
}

// describe says what a save of a running sandbox will be, and about how many bytes it will take.
func (r *Runtime) describe(ctx context.Context, st state, to sandbox.SaveID) (m manifest, need int64, err error) {
	var conf specs.Spec
	if err := savedConfig(r.bundle(st.ID), &conf); err != nil {
		return m, 0, err
	}
	if conf.Root == nil {
		return m, 0, errors.New("the bundle has no root filesystem")
	}
	m = manifest{Save: to, Sandbox: st.ID, At: time.Now().UTC(), Rootfs: conf.Root.Path, CPU: r.features()}
	m.Image = filepath.Base(filepath.Dir(filepath.Dir(m.Rootfs)))
	if m.Runsc, err = r.version(ctx); err != nil {
		return m, 0, err
	}
	u, err := r.cg.usage(r.name(st.ID))
	if err != nil {
		return m, 0, err
	}
	m.Memory, m.Disk = u.MemoryBytes, max(0, r.filestoreBytes(st))
	return m, m.Memory + 2*m.Disk, nil // the files are kept twice: in the state, and by themselves
}

func (r *Runtime) makeNext(id sandbox.ID, to sandbox.SaveID, m manifest, need int64) error {
	if err := os.MkdirAll(r.saveDir(to), 0o700); err != nil {
		return err
	}
	if err := r.room(to, need); err != nil {
		return err
	}
	next := r.next(to)
	if err := os.RemoveAll(next); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(next, stateName), 0o700); err != nil {
		return err
	}
	conf, err := os.ReadFile(filepath.Join(r.bundle(id), "config.json"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(next, configName), conf, 0o600); err != nil {
		return err
	}
	if err := writeJSON(filepath.Join(next, manifestName), m, 0o600); err != nil {
		return err
	}
	return r.hold(m, to)
}

// checkpoint has runsc write the state. It is not killed with the server: the sandbox would go on writing all the same, and
// nobody could tell until when.
func (r *Runtime) checkpoint(ctx context.Context, id sandbox.ID, to sandbox.SaveID) error {
	return r.callDetached(ctx, saveLimit, id,
		append(r.flags(), "checkpoint", "--leave-running", "--image-path="+filepath.Join(r.next(to), stateName), string(id))...)
}

// saveFiles keeps what the sandbox changed in its image as a tar of its own: it can be used where the state cannot.
func (r *Runtime) saveFiles(ctx context.Context, id sandbox.ID, to sandbox.SaveID) error {
	return r.callDetached(ctx, saveLimit, id,
		append(r.flags(), "tar", "rootfs-upper", "--file="+filepath.Join(r.next(to), filesName), string(id))...)
}

func (r *Runtime) finish(to sandbox.SaveID, m manifest) error {
	if err := sealSave(r.next(to), m); err != nil {
		return err
	}
	return r.keep(to)
}

// dropNext takes a save that was not finished away.
func (r *Runtime) dropNext(to sandbox.SaveID) error {
	if _, err := r.loadManifest(to); err != nil {
		return r.DropSave(context.Background(), to)
	}
	return os.RemoveAll(r.next(to))
}

// outlives reports whether an argument is a command of runsc that goes on when the server dies.
func outlives(arg string) bool {
	return arg == "checkpoint" || arg == "tar" || arg == "pause" || arg == "resume"
}

// Settle implements sandbox.Saver. A server that was killed may have left a runsc at its work: it is waited for.
func (r *Runtime) Settle(ctx context.Context, id sandbox.ID) (bool, error) {
	if err := check(id); err != nil {
		return false, err
	}
	to := r.ownSave(id)
	clean := 0 // looks in a row: a program that was just forked when the server died does not bear its name yet
	err := poll(ctx, saveLimit, func() (bool, error) {
		found, args, err := r.strays(string(id))
		clean++
		if slices.ContainsFunc(found, func(p proc) bool { return slices.ContainsFunc(args[p.PID], outlives) }) {
			clean = 0
		}
		return clean > 5, err
	})
	if err != nil {
		return false, fmt.Errorf("settle %s: %w", id, err)
	}
	alive, err := r.Alive(ctx, id)
	if err != nil {
		return false, err
	}
	if alive {
		st, err := r.load(id)
		if err != nil {
			return false, err
		}
		return true, errors.Join(r.dropNext(to), r.unpause(ctx, st))
	}
	if err := r.dropNext(to); err != nil {
		return false, err
	}
	if _, err := r.loadManifest(to); err != nil {
		return false, err
	}
	return false, r.Free(ctx, id)
}
