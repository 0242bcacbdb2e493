package runsc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sandgate/sandbox"
	"sandgate/sandbox/image"
)

// Remove implements sandbox.Runtime.
func (r *Runtime) Remove(ctx context.Context, id sandbox.ID) error {
	if err := check(id); err != nil {
		return err
	}
	// The save last: what is still on the host may be writing it.
	return errors.Join(r.Free(ctx, id), r.DropSave(ctx, r.ownSave(id)))
}

// Free implements sandbox.Runtime: every undo of a creation, each tried, in reverse.
func (r *Runtime) Free(ctx context.Context, id sandbox.ID) error {
	if err := check(id); err != nil {
		return err
	}
	r.stores.Delete(id)
	r.controls.Delete(id)
	r.readings.Delete(id)
	err := undoAll(ctx, id, r.steps(sandbox.Spec{ID: id}, image.Image{}))
	if err != nil {
		err = fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	return errors.Join(err, r.leaveHost())
}

// leaveHost takes away what all sandboxes share once there is none: the tmpfs and the parent cgroups. A creation that is
// under way, here or in another process, keeps it.
func (r *Runtime) leaveHost() error {
	r.parent.Lock()
	defer r.parent.Unlock()
	lock, err := os.OpenFile(filepath.Join(r.boxesDir(), ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("remove shared state: %w", err)
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil // somebody is creating
	}
	ids, err := r.found(false)
	if err != nil || len(ids) > 0 {
		return err
	}
	r.cg.removeParent()
	// Beside the tmpfs itself: runsc pins an empty network namespace for its file servers inside it.
	if err := unmountBelow(r.instDir()); err != nil {
		return err
	}
	err = os.RemoveAll(r.instDir())
	_ = os.Remove(r.o.RunDir) // stays while other installations use it
	return err
}

// unmountBelow unmounts everything in a directory, itself included, the newest mount first.
func unmountBelow(dir string) error {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var mounts []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 && (f[4] == dir || strings.HasPrefix(f[4], dir+"/")) {
			mounts = append(mounts, f[4])
		}
	}
	var errs []error
	for _, m := range slices.Backward(mounts) {
		if err := unix.Unmount(m, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", m, err))
		}
	}
	return errors.Join(errs...)
}

// Found implements sandbox.Runtime.
func (r *Runtime) Found(ctx context.Context) ([]sandbox.ID, error) {
	ids, err := r.found(true)
	if err != nil {
		return nil, fmt.Errorf("find sandboxes: %w", err)
	}
	return ids, ctx.Err()
}

var idInName = regexp.MustCompile(`sb[a-z0-9]{20}`)

// found unites the traces: directories, cgroup leaves, runsc's state, and (if asked, it is slow) processes.
func (r *Runtime) found(processes bool) ([]sandbox.ID, error) {
	ids := map[sandbox.ID]bool{}
	names, err := r.cg.leaves()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(r.boxesDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	for _, n := range names {
		if id, ok := r.idOf(n); ok {
			ids[id] = true
		}
	}
	entries, err = os.ReadDir(r.root())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if m := idInName.FindString(e.Name()); m != "" {
			ids[sandbox.ID(m)] = true
		}
	}
	if processes {
		_, args, err := r.strays("")
		if err != nil {
			return nil, err
		}
		for _, argv := range args {
			for _, a := range argv {
				if id := sandbox.ID(a); id.Valid() {
					ids[id] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(ids)), nil
}
