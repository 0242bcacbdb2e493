package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSystemdIsToldHowTheServerIs(t *testing.T) {
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"})
	require.NoError(t, err)
	defer func() { _ = socket.Close() }()
	t.Setenv("NOTIFY_SOCKET", socket.LocalAddr().String())
	t.Setenv("WATCHDOG_USEC", "20000")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	said := func() string {
		t.Helper()
		require.NoError(t, socket.SetReadDeadline(time.Now().Add(10*time.Second)))
		buf := make([]byte, 256)
		n, err := socket.Read(buf)
		require.NoError(t, err)
		return string(buf[:n])
	}
	notifyReady()
	require.Equal(t, "READY=1", said())
	notifyStopping()
	require.Equal(t, "STOPPING=1", said())

	ctx, cancel := context.WithCancel(t.Context())
	ended, asked := make(chan struct{}), make(chan error)
	go func() {
		defer close(ended)
		feedWatchdog(ctx, func(context.Context) error { return <-asked }, slog.New(slog.DiscardHandler))
	}()
	asked <- errors.New("the database does not answer") // nothing is said
	asked <- nil
	require.Equal(t, "WATCHDOG=1", said())
	cancel()
	close(asked)
	<-ended
}
