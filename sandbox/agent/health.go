package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// ErrStopped means that the sandbox was stopped from outside (a signal on the host), so that nobody in it can answer. A
// Dialer answers with it; calls end with it (and ErrBridge) within a few seconds.
var ErrStopped = errors.New("the sandbox is stopped")

// How long a bridge with calls on it may leave a ping unanswered before somebody looks, and how often that is tried.
// Variables for tests.
var (
	pingEach   = 2 * time.Second
	pingWithin = 2 * time.Second
	lookAgain  = 10 * time.Second
)

// lookAfter pings a bridge as long as there are calls on it. A slow sandbox may take its time and is left alone; one that was
// stopped from outside ends its calls, and an agent that was stopped from inside is set going again by a new bridge.
func (c *Client) lookAfter(b *bridge) {
	tick := time.NewTicker(pingEach)
	defer tick.Stop()
	var looked time.Time
	for {
		select {
		case <-b.session.CloseChan():
			return
		case <-tick.C:
		}
		c.mu.Lock()
		calls := b.calls
		c.mu.Unlock()
		if calls == 0 || b.answers() || time.Since(looked) < lookAgain {
			continue
		}
		looked = time.Now()
		if err := c.look(); errors.Is(err, ErrStopped) {
			b.stop(err)
			c.drop(b)
			return
		}
	}
}

// answers pings once.
func (b *bridge) answers() bool {
	done := make(chan error, 1)
	go func() { // ends with the answer, at the latest with the session's own limit
		_, err := b.session.Ping()
		done <- err
	}()
	t := time.NewTimer(pingWithin)
	defer t.Stop()
	select {
	case err := <-done:
		return err == nil
	case <-t.C:
		return false
	}
}

// look makes a bridge of its own and says hello.
func (c *Client) look() error {
	ctx, cancel := context.WithTimeout(context.Background(), lookAgain)
	defer cancel()
	conn, end, err := c.dialOne(ctx, true)
	if err != nil {
		return err
	}
	defer end()
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	r, err := call{method: http.MethodGet, path: "/v1/hello"}.request(ctx)
	if err != nil {
		return err
	}
	if err := r.Write(conn); err != nil {
		return fmt.Errorf("look at the agent: %w", err)
	}
	_, err = conn.Read(make([]byte, 1))
	if errors.Is(err, io.EOF) {
		err = nil // whoever it was, it is not stopped
	}
	return err
}
