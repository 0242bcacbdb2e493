package runsc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/image"
)

// Resume implements sandbox.Saver.
func (r *Runtime) Resume(ctx context.Context, spec sandbox.Spec, from sandbox.Source, journal sandbox.Journal) error {
	if err := check(spec.ID); err != nil {
		return err
	}
	m, err := r.loadManifest(from.Save)
	if err != nil {
		return err
	}
	steps := r.restoreSteps(spec, m)
	if from.FilesOnly {
		if err := r.intact(m, filesName, configName); err != nil {
			return fmt.Errorf("resume %s: %w", spec.ID, err)
		}
		if m.Files[filesName] == 0 {
			return fmt.Errorf("resume %s: %w, and its files were not kept by themselves", spec.ID, sandbox.ErrUnrestorable)
		}
		steps = r.filesSteps(spec, m)
	} else if err := r.restorable(ctx, m); err != nil {
		return fmt.Errorf("resume %s: %w", spec.ID, err)
	}
	if _, err := os.Lstat(r.dir(spec.ID)); err == nil {
		return fault.New(fault.Conflict, "A sandbox of this id exists already.")
	}
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return fmt.Errorf("resume %s: %w", spec.ID, ctx.Err())
	}
	release, err := r.shareHost()
	if err != nil {
		return fmt.Errorf("resume %s: %w", spec.ID, err)
	}
	err = take(ctx, spec.ID, steps, journal)
	release()
	if err != nil {
		err = errors.Join(fmt.Errorf("resume %s: %w", spec.ID, err), r.leaveHost())
	}
	return err
}

// restoreSteps lists what makes a sandbox from a save. The undos are those of steps, so that Remove knows them all.
func (r *Runtime) restoreSteps(spec sandbox.Spec, m manifest) []hostStep {
	id := spec.ID
	return []hostStep{
		{"directories", func(context.Context) error { return r.restoreDirs(spec, m) }, r.removeDirs},
		{"cgroup", func(context.Context) error { return r.cg.make(r.name(id), spec.Resources) }, r.removeCgroup},
		{"runsc restore", func(ctx context.Context) error { return r.runRestore(ctx, spec, m) }, r.removeProcesses},
		{"verify limits", func(ctx context.Context) error {
			return errors.Join(ctx.Err(), r.verifyStarted(id), r.rename(ctx, spec, m))
		}, nil},
	}
}

// filesSteps lists what starts a sandbox afresh on the files of a save: those of a creation, with one between.
func (r *Runtime) filesSteps(spec sandbox.Spec, m manifest) []hostStep {
	steps := r.steps(spec, image.Image{Name: m.Image, Rootfs: m.Rootfs})
	const flag = "--allow-rootfs-tar-annotation"
	for i, s := range steps {
		switch s.name {
		case "runsc create":
			steps[i].do = func(ctx context.Context) error { return r.runCreate(ctx, spec, flag) }
		case "runsc start":
			steps[i].do = func(ctx context.Context) error { return r.runStart(ctx, spec, flag) }
		case "directories":
			steps[i].do = func(ctx context.Context) error {
				conf := r.ociSpec(spec, m.Rootfs)
				// The one annotation there is, and nothing of it is a guest's or a caller's.
				conf.Annotations = map[string]string{"dev.gvisor.tar.rootfs.upper": filepath.Join(r.whole(m.Save), filesName)}
				return errors.Join(ctx.Err(), r.writeBundle(spec.ID, conf))
			}
		}
	}
	return steps
}

// restoreDirs makes the bundle anew from what was saved: only what belongs to the place and not to the state is of now.
func (r *Runtime) restoreDirs(spec sandbox.Spec, m manifest) error {
	var conf specs.Spec
	if err := savedConfig(r.whole(m.Save), &conf); err != nil {
		return fmt.Errorf("%w: %w", sandbox.ErrUnrestorable, err)
	}
	if conf.Root == nil || conf.Linux == nil {
		return fmt.Errorf("%w: its configuration is damaged", sandbox.ErrUnrestorable)
	}
	fresh := r.ociSpec(spec, conf.Root.Path)
	conf.Hostname, conf.Annotations = fresh.Hostname, fresh.Annotations
	conf.Linux.CgroupsPath, conf.Linux.Namespaces = fresh.Linux.CgroupsPath, fresh.Linux.Namespaces
	return r.writeBundle(spec.ID, &conf)
}

func (r *Runtime) writeBundle(id sandbox.ID, conf *specs.Spec) error {
	if err := os.Mkdir(r.dir(id), 0o711); err != nil {
		return err
	}
	for _, d := range []string{r.bundle(id), r.overlay(id)} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return err
		}
	}
	b, err := json.Marshal(conf)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.bundle(id), "config.json"), b, 0o600)
}

// runRestore makes the sandbox and loads the state. It runs from then on, in the network namespace of its configuration.
func (r *Runtime) runRestore(ctx context.Context, spec sandbox.Spec, m manifest) error {
	var saved specs.Spec
	if err := savedConfig(r.whole(m.Save), &saved); err != nil {
		return err
	}
	if err := spec.Network.Wait(); err != nil { // it begins to run at once
		return err
	}
	flags := r.sandboxFlags(spec)
	if len(saved.Annotations) > 0 {
		// It began on files alone, of a place that it does not need any more: else runsc wants the same annotation again.
		flags = append(flags, "--restore-spec-validation=ignore")
	}
	args := append(flags, "restore", "--detach", "--bundle="+r.bundle(spec.ID),
		"--image-path="+filepath.Join(r.whole(m.Save), stateName), string(spec.ID))
	if err := r.call(ctx, saveLimit, spec.ID, args...); err != nil {
		if ctx.Err() == nil {
			// Whatever it is, the state did not come to run, and trying again would not help it.
			err = fmt.Errorf("%w: %w", sandbox.ErrUnrestorable, err)
		}
		return err
	}
	sentry, gofer, err := r.pids(spec.ID)
	if err != nil {
		return err
	}
	return writeJSON(r.stateFile(spec.ID), state{ID: spec.ID, Boot: r.boot, Sentry: sentry, Gofer: gofer}, 0o600)
}

func (r *Runtime) verifyStarted(id sandbox.ID) error {
	if err := r.verify(id); err != nil {
		return err
	}
	st, err := r.load(id)
	if err != nil {
		return err
	}
	st.Started = true
	return errors.Join(r.keepState(id), writeJSON(r.stateFile(id), st, 0o600))
}

// renameLimit bounds one start of a program inside.
const renameLimit = 10 * time.Second

// rename gives a copy of a sandbox its own host name where that of the configuration is not taken over: gVisor keeps a name
// that was given from inside, as to those that waited in a pool, and nobody in there may change it any more. The program is
// a file of the host's, because whoever is root inside could have put another in the agent's place, and holds this right
// alone, so that nobody inside can trace it. Without it the sandbox works, under the name of what it is a copy of.
func (r *Runtime) rename(ctx context.Context, spec sandbox.Spec, m manifest) error {
	if m.Sandbox == spec.ID {
		return nil
	}
	var conf specs.Spec
	if err := savedConfig(r.bundle(spec.ID), &conf); err != nil {
		return err
	}
	if conf.Process == nil || conf.Process.Capabilities == nil || !slices.Contains(conf.Process.Capabilities.Bounding, namingRight) {
		return nil
	}
	program, err := os.Open(r.agent)
	if err != nil {
		return err
	}
	defer func() { _ = program.Close() }()
	ctx, cancel := context.WithTimeout(ctx, renameLimit)
	defer cancel()
	st, err := r.load(spec.ID)
	if err != nil {
		return err
	}
	err = r.run(ctx, st, insider{args: []string{"sandgate-agent", "name", conf.Hostname}, file: program, capabilities: []string{namingRight}})
	if err != nil {
		r.o.Log.Warn("name a copy of a sandbox", "sandbox", string(spec.ID), "cause", err.Error())
	}
	return nil
}
