package agent

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/stretchr/testify/require"
)

// TestIdleBridgeCloses: a bridge goes when no call uses it, never under a call, and comes back with the next.
func TestIdleBridgeCloses(t *testing.T) {
	var dials, open atomic.Int32
	hold := make(chan struct{})
	client := NewClient(func(context.Context, bool) (io.ReadWriteCloser, error) {
		host, guest := net.Pipe()
		session, err := yamux.Server(guest, nil)
		if err != nil {
			return nil, err
		}
		dials.Add(1)
		open.Add(1)
		go func() {
			_ = http.Serve(session, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/v1/files/stat" {
					<-hold
				}
				_, _ = io.WriteString(w, "{}")
			}))
			open.Add(-1)
		}()
		return host, nil
	})
	client.keepIdle = 5 * time.Millisecond
	gone := func() bool { return open.Load() == 0 }
	_, err := client.Hello(context.Background())
	require.NoError(t, err)
	require.Eventually(t, gone, 60*time.Second, time.Millisecond)

	done := make(chan error, 1)
	go func() { _, err := client.Stat(context.Background(), []byte("/a")); done <- err }()
	require.Eventually(t, func() bool { return dials.Load() == 2 }, 60*time.Second, time.Millisecond)
	require.Never(t, gone, 50*time.Millisecond, 5*time.Millisecond)
	close(hold)
	require.NotErrorIs(t, <-done, ErrBridge)
	require.Eventually(t, gone, 60*time.Second, time.Millisecond)
}
