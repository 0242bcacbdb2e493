package runsc

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

// Every capability that a sandbox has is one that a bridge can be given.
func TestCapabilitiesHaveNumbers(t *testing.T) {
	for _, name := range capabilities {
		require.Contains(t, bits, name)
	}
	require.Len(t, bits, len(capabilities)+1, "and the right to name a sandbox")
}

// A sentry that was taken over answers what it likes: the caller gets an error and keeps its memory.
func TestAnswersOfASentryAreNotBelieved(t *testing.T) {
	for name, c := range map[string]struct{ answer, says string }{
		"refusal":   {`{"success":false,"err":"no such\n\u001b[2Jthing","result":null}`, `no such\n\x1b[2Jthing`},
		"no object": {`[1,2]`, "unmarshal"},
		"no number": {`{"success":true,"result":"many"}`, "unmarshal"},
		"nothing":   {``, "EOF"},
		"half":      {`{"success":true,"resu`, "EOF"},
		"endless":   {`{"success":true,"err":"` + strings.Repeat("x", 1<<20), "more than"},
	} {
		t.Run(name, func(t *testing.T) {
			l := lineTo(t, func(conn *net.UnixConn) { _, _ = conn.Write([]byte(c.answer)) })
			var pid int32
			require.ErrorContains(t, l.call(t.Context(), methodExec, execArgs{}, nil, &pid), c.says)
		})
	}
	t.Run("silence", func(t *testing.T) {
		over := make(chan struct{})
		l := lineTo(t, func(*net.UnixConn) { <-over })
		defer close(over)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, l.call(ctx, methodExec, execArgs{}, nil, nil), context.DeadlineExceeded)
	})
	t.Run("pieces", func(t *testing.T) {
		l := lineTo(t, func(conn *net.UnixConn) {
			for _, piece := range []string{`{"success":tr`, `ue,"err":"","result":4`, `2}`} {
				_, _ = conn.Write([]byte(piece))
			}
		})
		var pid int32
		require.NoError(t, l.call(t.Context(), methodExec, execArgs{}, nil, &pid))
		require.Equal(t, int32(42), pid)
	})
}

// lineTo gives a connection to what answers in the place of a sentry. Its path is longer than a socket's name may be.
func lineTo(t *testing.T, answer func(*net.UnixConn)) *line {
	t.Helper()
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40))
	require.NoError(t, os.Mkdir(dir, 0o700))
	d, err := unix.Open(dir, unix.O_PATH, 0)
	require.NoError(t, err)
	short := filepath.Join("/proc/self/fd", strconv.Itoa(d), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	t.Cleanup(func() { _, _ = l.Close(), unix.Close(d) })
	go func() { // ends with the listener
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 4<<10))
			answer(conn)
			_ = conn.Close()
		}
	}()
	got, err := control{path: filepath.Join(dir, "s")}.open(t.Context(), state{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = got.conn.Close() })
	return got
}

// Root inside takes the place of the bridge's program with one that never ends: closing the bridge ends it all the same, and
// the sandbox can be saved.
func TestABridgeThatNeverEndsIsEnded(t *testing.T) {
	r := open(t, options(t))
	id := start(t, r, small)
	c := clientOf(t, r, id)
	var out both
	exit, err := c.Run(t.Context(), agent.CommandSpec{ID: sandbox.RandomID("cmd"), TimeoutMS: 30_000, Command: `
		mv /.sandgate /old && mkdir /.sandgate && printf '#!/bin/sh\ntrap "" TERM HUP INT PIPE\nwhile :; do sleep 1; done\n' >/.sandgate/agent &&
		chmod 755 /.sandgate/agent`}, &out)
	require.NoError(t, err)
	require.Zero(t, exit.Code, out.String())
	b, err := r.Dial(t.Context(), id, false)
	require.NoError(t, err)
	require.NoError(t, b.Close())
	require.NoError(t, c.Close())
	require.Eventually(t, func() bool {
		release, err := r.bridges.shut(t.Context(), id, time.Second)
		if err == nil {
			release()
		}
		return err == nil
	}, 20*time.Second, 10*time.Millisecond, "the bridges have ended")
	left, err := inside(t.Context(), r, id, `grep -lxz "[c]onnect" /proc/[0-9]*/cmdline | wc -l`)
	require.NoError(t, err)
	require.Equal(t, "0\n", left, "programs of bridges")
}

// When the sentry dies, who reads from a bridge learns of it, and nothing waits for its program.
func TestABridgeEndsWithItsSandbox(t *testing.T) {
	r := open(t, options(t))
	id := start(t, r, small)
	b, err := r.Dial(t.Context(), id, false)
	require.NoError(t, err)
	st, err := r.load(id)
	require.NoError(t, err)
	require.NoError(t, unix.Kill(st.Sentry.PID, unix.SIGKILL))
	_, err = b.Read(make([]byte, 1))
	require.Error(t, err)
	require.NoError(t, b.Close())
	_, err = r.Dial(t.Context(), id, false)
	require.Error(t, err)
}
