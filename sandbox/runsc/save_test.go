package runsc

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

func own(id sandbox.ID) sandbox.Source { return sandbox.Source{Save: sandbox.SaveID(id)} }

func quiet(string) error { return nil }

func smallSpec(id sandbox.ID) sandbox.Spec {
	return sandbox.Spec{ID: id, Image: "base", Hostname: "test", Resources: small}
}

func dialed(t *testing.T, r *Runtime, id sandbox.ID) *agent.Client {
	t.Helper()
	c := agent.NewClient(func(ctx context.Context, bulk bool) (io.ReadWriteCloser, error) { return r.Dial(ctx, id, bulk) })
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// dropSaves leaves no save, and so no note beside the image.
func dropSaves(t *testing.T, r *Runtime) {
	t.Helper()
	t.Cleanup(func() {
		saves, err := r.Saves(context.Background())
		require.NoError(t, err)
		for _, s := range saves {
			require.NoError(t, r.DropSave(context.Background(), s.ID))
		}
	})
}

// A suspended sandbox survives the host's restart: another boot id, nothing in memory, runsc's state gone.
func TestASuspendedSandboxOutlivesTheHost(t *testing.T) {
	o := options(t)
	r := open(t, o)
	dropSaves(t, r)
	id := start(t, r, small)
	c := dialed(t, r, id)
	h, err := c.Hello(t.Context())
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.NoError(t, r.Suspend(t.Context(), id, quiet))
	require.NoDirExists(t, r.instDir(), "all of the state root is gone")
	m, err := r.loadManifest(sandbox.SaveID(id))
	require.NoError(t, err)
	used, err := UsesImage(m.Rootfs)
	require.NoError(t, err)
	require.True(t, used, "the image that it stands on stays")

	after := open(t, o)
	after.boot = "00000000-0000-4000-8000-000000000000"
	require.NoError(t, after.Resume(t.Context(), smallSpec(id), own(id), quiet))
	again, err := dialed(t, after, id).Hello(t.Context())
	require.NoError(t, err)
	require.Equal(t, h.BootID, again.BootID)
	require.NoError(t, after.Remove(t.Context(), id))
	holds, err := filepath.Glob(filepath.Join(filepath.Dir(m.Rootfs), holdsName, r.mark()+"*"))
	require.NoError(t, err)
	require.Empty(t, holds)
}

// What ran when the host restarted is dead, and its last save is there.
func TestARunningSandboxFallsBackToItsSaveAfterTheHostsRestart(t *testing.T) {
	o := options(t)
	r := open(t, o)
	dropSaves(t, r)
	id := start(t, r, small)
	require.NoError(t, r.Save(t.Context(), id, sandbox.SaveID(id), quiet))
	st, err := r.load(id)
	require.NoError(t, err)
	require.NoError(t, st.Sentry.kill(t.Context()))
	require.NoError(t, st.Gofer.kill(t.Context()))
	after := open(t, o)
	after.boot = "00000000-0000-4000-8000-000000000000"
	alive, err := after.Alive(t.Context(), id)
	require.NoError(t, err)
	require.False(t, alive)
	d, err := after.Wait(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, sandbox.ReasonHostRestarted, d.Reason)
	require.NoError(t, r.Free(t.Context(), id))
	require.NoError(t, after.Free(t.Context(), id))
	require.NoError(t, after.Resume(t.Context(), smallSpec(id), own(id), quiet))
	_, err = dialed(t, after, id).Hello(t.Context())
	require.NoError(t, err)
	require.NoError(t, after.Remove(t.Context(), id))
}

func TestWhatCannotBeRestoredIsToldApart(t *testing.T) {
	o := options(t)
	r := open(t, o)
	dropSaves(t, r)
	id := start(t, r, small)
	_, err := inside(t.Context(), r, id, "mkdir -p /work/deep; echo kept >/work/deep/file; chown 1234:99 /work/deep/file; ln -s file /work/deep/link; rm /etc/debian_version; echo gone >/tmp/lost")
	require.NoError(t, err)
	require.NoError(t, r.Suspend(t.Context(), id, quiet))
	whole := r.whole(sandbox.SaveID(id))
	refused := func(why string) {
		err := r.Resume(t.Context(), smallSpec(id), own(id), quiet)
		require.ErrorIs(t, err, sandbox.ErrUnrestorable, why)
		require.ErrorContains(t, err, why)
		nothingLeft(t, o, "after: %s", why)
	}
	m, err := readManifest(whole)
	require.NoError(t, err)
	require.NotEmpty(t, m.CPU)
	keep := r.features
	r.features = func() []string { return m.CPU[1:] }
	refused("the processor lacks " + m.CPU[0])
	r.features = keep

	other := m
	other.Runsc = "runsc version release-20991231.0"
	require.NoError(t, writeJSON(filepath.Join(whole, manifestName), other, 0o600))
	refused("it was made by")
	require.NoError(t, writeJSON(filepath.Join(whole, manifestName), m, 0o600))

	state := filepath.Join(whole, stateName, "checkpoint.img")
	b, err := os.ReadFile(state)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(state, b[:len(b)/2], 0o600))
	refused("damaged")
	for i := range b {
		b[i] ^= 0x55
	}
	require.NoError(t, os.WriteFile(state, b, 0o600))
	refused("runsc restore")

	// Its files alone can be used all the same, and what goes on from there is suspended like any other.
	files := sandbox.Source{Save: sandbox.SaveID(id), FilesOnly: true}
	require.NoError(t, r.Resume(t.Context(), smallSpec(id), files, quiet))
	look := func() {
		out, err := inside(t.Context(), r, id, "cat /work/deep/link; stat -c %u:%g /work/deep/file; ls /etc/debian_version /tmp/lost 2>/dev/null; true")
		require.NoError(t, err)
		require.Equal(t, "kept\n1234:99\n", out)
	}
	look()
	require.NoError(t, r.Suspend(t.Context(), id, quiet))
	require.NoError(t, r.Resume(t.Context(), smallSpec(id), own(id), quiet))
	look()
	require.NoError(t, r.Suspend(t.Context(), id, quiet))
	require.NoError(t, os.Truncate(filepath.Join(whole, filesName), 10))
	require.ErrorContains(t, r.Resume(t.Context(), smallSpec(id), files, quiet), "damaged")
}

// A disk that fills up while a save is written costs the save, not the sandbox; nor does it cost the save before.
func TestAFullDiskCostsTheSaveOnly(t *testing.T) {
	o := options(t)
	r := open(t, o)
	require.NoError(t, os.MkdirAll(r.savesDir(), 0o700))
	require.NoError(t, unix.Mount("tmpfs", r.savesDir(), "tmpfs", 0, "size=512m"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(r.savesDir(), unix.MNT_DETACH)) })
	id := start(t, r, small)
	require.NoError(t, r.Save(t.Context(), id, sandbox.SaveID(id), quiet))
	first, err := r.Saved(t.Context(), sandbox.SaveID(id))
	require.NoError(t, err)
	// Enough to write, so that it cannot fit into what the filler leaves.
	_, err = inside(t.Context(), r, id, "head -c 20000000 /dev/urandom >/big")
	require.NoError(t, err)
	filler := filepath.Join(r.savesDir(), "filler")
	for _, stop := range []bool{false, true} {
		fill := func(step string) error {
			if step != "checkpoint" {
				return nil
			}
			var st unix.Statfs_t
			if err := unix.Statfs(r.savesDir(), &st); err != nil {
				return err
			}
			return os.WriteFile(filler, make([]byte, int64(st.Bavail)*st.Bsize-2<<20), 0o600)
		}
		if stop {
			err = r.Suspend(t.Context(), id, fill)
		} else {
			err = r.Save(t.Context(), id, sandbox.SaveID(id), fill)
		}
		require.Error(t, err)
		t.Log(err)
		running, err := r.Settle(t.Context(), id)
		require.NoError(t, err)
		require.True(t, running, "stopping: %v", stop)
		out, err := inside(t.Context(), r, id, "echo here")
		require.NoError(t, err)
		require.Equal(t, "here\n", out)
		kept, err := r.Saved(t.Context(), sandbox.SaveID(id))
		require.NoError(t, err)
		require.Equal(t, first, kept)
		require.NoError(t, os.Remove(filler))
	}
	r.o.MaxSaves = first.Bytes
	require.Equal(t, fault.HostFull, fault.KindOf(r.Save(t.Context(), id, "snapaaaaaaaaaaaaaaaaaaaa", quiet)))
	r.o.MaxSaves = 0
	require.NoError(t, r.Remove(t.Context(), id))
	left, err := os.ReadDir(r.savesDir())
	require.NoError(t, err)
	require.Empty(t, left)
}

// The server is killed while runsc writes: the next one waits for the end of it and finds the sandbox on one side or the other.
func TestAServerKilledWhileItSuspends(t *testing.T) {
	o := options(t)
	r := open(t, o)
	dropSaves(t, r)
	plan := crashPlan{Cache: cacheOf(o), DataDir: o.DataDir, Inst: o.Inst, Binary: o.Binary, Agent: o.AgentBinary, Suspend: true}
	for step, delays := range map[string][]time.Duration{
		"pause": {0, 14 * time.Millisecond, 18 * time.Millisecond, 22 * time.Millisecond, 26 * time.Millisecond}, "checkpoint": {0, 10 * time.Millisecond, 60 * time.Millisecond}, "keep save": {0}, "free": {0, 3 * time.Millisecond},
	} {
		for _, after := range delays {
			id := start(t, r, small)
			c := dialed(t, r, id)
			h, err := c.Hello(t.Context())
			require.NoError(t, err)
			require.NoError(t, c.Close())
			plan.ID, plan.Step, plan.After = id, step, after
			killed(t, plan)
			running, err := r.Settle(t.Context(), id)
			require.NoError(t, err, "%s after %s", step, after)
			if !running {
				nothingLeft(t, o, "%s after %s", step, after)
				require.NoError(t, r.Resume(t.Context(), smallSpec(id), own(id), quiet))
			} else {
				// A checkpoint that had not begun when the server died may come after the first look.
				require.Eventually(t, func() bool {
					if _, err := os.Stat(r.next(sandbox.SaveID(id))); errors.Is(err, fs.ErrNotExist) {
						return true
					}
					running, err := r.Settle(t.Context(), id)
					return !running || err != nil
				}, 2*time.Minute, 10*time.Millisecond, "%s after %s", step, after)
			}
			again, err := dialed(t, r, id).Hello(t.Context())
			require.NoError(t, err, "%s after %s", step, after)
			require.Equal(t, h.BootID, again.BootID)
			require.NoError(t, r.Remove(t.Context(), id))
		}
	}
}
