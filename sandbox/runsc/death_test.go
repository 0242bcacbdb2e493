package runsc

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sandgate/sandbox"
)

// wait gives the death of a sandbox when it comes; the test fails when it does not.
func wait(t *testing.T, r *Runtime, id sandbox.ID) <-chan sandbox.Death {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	out := make(chan sandbox.Death, 1)
	go func() {
		defer cancel()
		d, err := r.Wait(ctx, id)
		if err != nil {
			t.Errorf("wait: %v", err)
		}
		out <- d
	}()
	return out
}

func TestWhyASandboxDied(t *testing.T) {
	for reason, bomb := range map[string]string{
		// Files in memory are the sentry's own memory, so the whole sandbox goes.
		sandbox.ReasonOutOfMemory:      "head -c 200M /dev/zero > /dev/shm/a; head -c 200M /dev/zero > /tmp/b",
		sandbox.ReasonTooManyProcesses: "f() { f | f & f; }; f; sleep 25",
		sandbox.ReasonCrash:            "kill -KILL 1",
	} {
		t.Run(reason, func(t *testing.T) {
			r := open(t, options(t))
			id := start(t, r, small)
			deaths := wait(t, r, id)
			go func() { _, _ = inside(context.WithoutCancel(t.Context()), r, id, bomb) }()
			d := <-deaths
			require.Equal(t, reason, d.Reason, d.Detail)
			require.NotEmpty(t, d.Detail)
			alive, err := r.Alive(t.Context(), id)
			require.NoError(t, err)
			require.False(t, alive)
			require.NoError(t, r.Remove(t.Context(), id))
		})
	}
}

// lines gives each line of a log to whoever wants it.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

func TestKillingOneProcessForMemoryIsNoDeath(t *testing.T) {
	o := options(t)
	said := make(lines, 16)
	o.Log = slog.New(slog.NewTextHandler(said, nil))
	r := open(t, o)
	id := start(t, r, small)
	deaths := wait(t, r, id)
	_, err := inside(t.Context(), r, id, `python3 -c 'x = []
while True: x.append(bytearray(10000000))'`)
	require.Error(t, err)
	require.Positive(t, r.cg.events(r.name(id)).oomKills)
	// The sentry gives the memory back a moment after the kill; until then the kernel may take the next process as well.
	require.Eventually(t, func() bool {
		out, err := inside(t.Context(), r, id, "echo alive")
		return err == nil && out == "alive\n"
	}, 2*time.Minute, 10*time.Millisecond)
	noticed := fmt.Sprintf("it goes on\" sandbox=%s killed=%d", id, r.cg.events(r.name(id)).oomKills)
	for line := ""; !strings.Contains(line, noticed); {
		select {
		case line = <-said:
			require.Contains(t, line, "it goes on")
		case <-time.After(30 * time.Second):
			t.Fatal("nobody noticed")
		}
	}
	require.Empty(t, deaths)
	// What it got over is not why it dies later.
	st, err := r.load(id)
	require.NoError(t, err)
	require.NoError(t, unix.Kill(st.Sentry.PID, unix.SIGKILL))
	require.Equal(t, sandbox.ReasonKilled, (<-deaths).Reason)
}

func TestWithoutItsFileServerASandboxIsEnded(t *testing.T) {
	r := open(t, options(t))
	id := start(t, r, small)
	deaths := wait(t, r, id)
	st, err := r.load(id)
	require.NoError(t, err)
	require.NoError(t, unix.Kill(st.Gofer.PID, unix.SIGKILL))
	require.NotEmpty(t, (<-deaths).Reason)
	require.False(t, st.Sentry.alive())
}

func TestAnImageInUseIsKnown(t *testing.T) {
	r := open(t, options(t))
	id := start(t, r, small)
	img, err := r.o.Images.Get("base")
	require.NoError(t, err)
	used, err := UsesImage(img.Rootfs)
	require.NoError(t, err)
	require.True(t, used)
	// Asked of our own file server only: what others run on this host may stand on anything.
	st, err := r.load(id)
	require.NoError(t, err)
	bundles, err := bundlesInUse()
	require.NoError(t, err)
	conf, known := placesOf(st.Gofer.PID, bundles[st.Gofer.PID])
	require.True(t, known)
	require.Equal(t, img.Rootfs, conf.Root.Path)
	require.Equal(t, r.agent, conf.agentOf())
	_, known = placesOf(st.Gofer.PID, t.TempDir())
	require.False(t, known, "it runs, and may stand on anything")
	require.NoError(t, r.Remove(t.Context(), id))
}

func TestInside(t *testing.T) {
	r := open(t, options(t))
	id := start(t, r, small)
	for command, want := range map[string]string{
		"id -u":                              "0",
		"hostname":                           "test",
		"python -c 'print(6*7)'":             "42",
		"python -c 'import noxus_sdk'":       "",
		"su nobody -s /bin/sh -c 'id -un'":   "nobody",
		"sudo -u nobody id -un 2>&1 | xargs": "nobody",
		"touch /work/a && chown 1000 /work/a && stat -c %u /work/a": "1000",
		"ip -o link | grep -vc ' lo: '":                             "0",
		"python -c 'import socket as s; l = s.create_server((\"127.0.0.1\", 0)); s.create_connection(l.getsockname()); print(7)'": "7",
		"pip config list; ls -A /.sandgate":                     "agent",
		"echo x > /.sandgate/agent || echo read-only":           "read-only",
		"cat /proc/1/comm":                                      "agent",
		"grep -c . /etc/machine-id":                             "0",
		"dpkg --audit && apt-get check >/dev/null && echo well": "well",
		"df --output=size -m / /tmp /run /dev/shm | tail -n +2 | tr -dc '0-9\\n' | xargs": "256 128 32 128",
	} {
		out, _ := inside(t.Context(), r, id, command)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		require.Equal(t, want, lines[len(lines)-1], "%s: %s", command, out)
	}
	out, err := inside(t.Context(), r, id, "head -c 400M /dev/zero > /big")
	require.Error(t, err)
	require.Contains(t, out, "No space left")
	u, err := r.Usage(t.Context(), id)
	require.NoError(t, err)
	require.Greater(t, u.DiskBytes, int64(200<<20))
}

func TestRootInsideCannotWriteTheHostsFilesByProcessOnesStreams(t *testing.T) {
	r := open(t, options(t))
	id := start(t, r, small)
	_, _ = inside(t.Context(), r, id, "head -c 10M /dev/zero > /proc/1/fd/1; head -c 10M /dev/zero > /proc/1/fd/2")
	var size int64
	require.NoError(t, filepath.WalkDir(r.dir(id), func(_ string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err == nil {
			size += fi.Size()
		}
		return err
	}))
	require.Less(t, size, int64(1<<20))
}
