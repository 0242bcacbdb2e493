package runsc

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"sandgate/sandbox"
)

// runscState is the file in which runsc keeps what it knows of a sandbox. It writes it in place: one that was cut short
// makes every later call of runsc fail, while the sandbox runs on.
func (r *Runtime) runscState(id sandbox.ID) string {
	return filepath.Join(r.root(), fmt.Sprintf("%s_sandbox:%s.state", id, id))
}

func (r *Runtime) keptState(id sandbox.ID) string { return filepath.Join(r.dir(id), "runsc.state") }

// keepState copies what runsc knows of a sandbox that has just been started.
func (r *Runtime) keepState(id sandbox.ID) error {
	b, err := os.ReadFile(r.runscState(id))
	if err != nil {
		return fmt.Errorf("state of runsc: %w", err)
	}
	return os.WriteFile(r.keptState(id), b, 0o600)
}

// mendState gives that state, and puts the copy in the place of a state that is torn or gone. Nothing of it changes while a sandbox runs; one that
// is removed meanwhile must not get it back: who removes ends the sentry first and takes the state away then.
func (r *Runtime) mendState(id sandbox.ID, sentry proc) ([]byte, error) {
	b, err := os.ReadFile(r.runscState(id))
	if err == nil && json.Valid(b) {
		return b, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("state of runsc: %w", err)
	}
	b, err = os.ReadFile(r.keptState(id))
	if err != nil {
		return nil, fmt.Errorf("state of runsc is torn, and there is no copy: %w", err)
	}
	r.o.Log.Warn("the state that runsc keeps of a sandbox was torn; a copy takes its place", "sandbox", string(id))
	tmp := r.runscState(id) + ".new"
	if err := os.WriteFile(tmp, b, 0o640); err != nil {
		return nil, fmt.Errorf("mend the state of runsc: %w", err)
	}
	if err := os.Rename(tmp, r.runscState(id)); err != nil {
		return nil, errors.Join(err, os.Remove(tmp))
	}
	if !sentry.alive() {
		return nil, errors.Join(fmt.Errorf("the sandbox has ended"), os.Remove(r.runscState(id)))
	}
	return b, nil
}
