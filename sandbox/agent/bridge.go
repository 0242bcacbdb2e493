package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/hashicorp/yamux"

	"sandgate/internal/fault"
)

// ErrBridge means that the connection to the agent broke or cannot be made. Whether the call had its effect is not
// known, unless the call says that it repeats itself. The sandbox may be dead: ask its runtime.
var ErrBridge = errors.New("the bridge to the sandbox's agent broke")

// Bounds on what the agent may answer and on how long it may take.
const (
	callTimeout  = 30 * time.Second // of a small call, answer included
	dialTimeout  = 20 * time.Second
	keepIdle     = 30 * time.Second // a bridge that nobody uses costs 10 MiB, a new one 50 ms
	silence      = 45 * time.Second // in a stream that pings every 10 s
	maxHeader    = 64 << 10
	maxFailure   = 64 << 10
	maxSmall     = 64 << 10
	maxOneJSON   = 4 << 20  // a command with its text
	maxListJSON  = 16 << 20 // 1000 entries with the longest names
	maxBulk      = 8        // bulk bridges of one client at a time
	inlineLimit  = 256 << 10
	maxFollowers = 512 // calls of one client at a time
)

// bridge is one live multiplexed connection.
type bridge struct {
	session *yamux.Session
	http    *http.Transport
	cancel  context.CancelFunc
	calls   int             // in flight; guarded by the client's mu
	idle    *time.Timer     // closes it; guarded by the client's mu
	stopped context.Context // ends when the sandbox was found stopped
	stop    context.CancelCauseFunc
}

func (b *bridge) close() {
	_ = b.session.Close()
	b.http.CloseIdleConnections()
	b.cancel()
}

// dialOne makes one connection. ctx bounds the making only: what the dialer ties to its context must live on after it.
func (c *Client) dialOne(ctx context.Context, bulk bool) (net.Conn, context.CancelFunc, error) {
	c.mu.Lock()
	ended := c.ended
	c.mu.Unlock()
	if ended {
		return nil, nil, fmt.Errorf("dial agent: %w: the client is closed", ErrBridge)
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	timer := time.AfterFunc(dialTimeout, cancel)
	rwc, err := c.dial(life, bulk)
	stop()
	timer.Stop()
	if err == nil && life.Err() != nil {
		_ = rwc.Close()
		err = life.Err()
	}
	if err != nil {
		cancel()
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		if errors.Is(err, ErrStopped) {
			return nil, nil, fmt.Errorf("dial agent: %w: %w", ErrBridge, ErrStopped)
		}
		// Only the text of the cause: a runtime's "not found" is no answer to what the caller asked of the agent.
		return nil, nil, fmt.Errorf("dial agent: %w: %s", ErrBridge, err.Error())
	}
	return Conn(rwc), cancel, nil
}

// acquire counts a call on the live bridge, so that it is not closed for idleness; release ends the count.
func (c *Client) acquire() (b *bridge, release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b = c.bridge
	if b == nil || b.session.IsClosed() {
		return nil, nil
	}
	b.calls++
	if b.idle != nil {
		b.idle.Stop()
	}
	return b, sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if b.calls--; b.calls == 0 {
			b.idle = time.AfterFunc(c.keepIdle, func() { c.closeIdle(b) })
		}
	})
}

func (c *Client) closeIdle(b *bridge) {
	c.mu.Lock()
	idle := b.calls == 0
	if idle && c.bridge == b {
		c.bridge = nil
	}
	c.mu.Unlock()
	if idle {
		b.close()
	}
}

// current gives the live bridge or makes one; one dial at a time, and whoever waits for it may give up.
func (c *Client) current(ctx context.Context) (*bridge, func(), error) {
	for range 3 { // an agent that ends every bridge at once must not keep us dialling
		if b, release := c.acquire(); b != nil {
			return b, release, nil
		}
		if err := c.connect(ctx); err != nil {
			return nil, nil, err
		}
	}
	return nil, nil, fmt.Errorf("bridge ends as it begins: %w", ErrBridge)
}

func (c *Client) connect(ctx context.Context) error {
	select {
	case c.dialing <- struct{}{}:
		defer func() { <-c.dialing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	c.mu.Lock()
	live := c.bridge != nil && !c.bridge.session.IsClosed()
	c.mu.Unlock()
	if live { // somebody else was as quick
		return nil
	}
	conn, cancel, err := c.dialOne(ctx, false)
	if err != nil {
		return err
	}
	cfg := yamux.DefaultConfig()
	cfg.LogOutput = io.Discard
	cfg.AcceptBacklog = 1
	cfg.ConnectionWriteTimeout = callTimeout
	cfg.StreamOpenTimeout = callTimeout
	cfg.StreamCloseTimeout = callTimeout
	cfg.MaxStreamWindowSize = StreamWindow
	session, err := yamux.Client(Coalesce(conn), cfg)
	if err != nil {
		cancel()
		_ = conn.Close()
		return fmt.Errorf("agent session: %w", err)
	}
	go func() {
		// The agent has no reason to open streams; one that does would fill our memory with them.
		if _, err := session.Accept(); err == nil {
			_ = session.Close()
		}
		cancel()
	}()
	b := &bridge{session: session, cancel: cancel, http: &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			s, err := session.OpenStream()
			if err != nil {
				return nil, fmt.Errorf("%w: %w", ErrBridge, err)
			}
			return s, nil
		},
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeader,
		MaxIdleConnsPerHost:    32,
		MaxConnsPerHost:        maxFollowers,
		IdleConnTimeout:        time.Minute,
		ReadBufferSize:         16 << 10,
		WriteBufferSize:        16 << 10,
	}}
	b.stopped, b.stop = context.WithCancelCause(context.Background())
	go c.lookAfter(b)
	c.mu.Lock()
	old := c.bridge
	if c.bridge = b; c.ended {
		c.bridge, old = nil, b
	}
	c.mu.Unlock()
	if old != nil {
		old.close()
	}
	return nil
}

// drop forgets a bridge that does not answer.
func (c *Client) drop(b *bridge) {
	c.mu.Lock()
	if c.bridge == b {
		c.bridge = nil
	}
	c.mu.Unlock()
	b.close()
}

// call is one request to the agent.
type call struct {
	method, path string
	query        url.Values
	header       http.Header
	body         func() (io.Reader, int64) // nil: none
	repeat       bool                      // doing it twice is doing it once: tried again on a fresh bridge
}

func (k call) request(ctx context.Context) (*http.Request, error) {
	u := url.URL{Scheme: "http", Host: "sandbox", Path: k.path, RawQuery: k.query.Encode()}
	var body io.Reader
	size := int64(0)
	if k.body != nil {
		body, size = k.body()
	}
	r, err := http.NewRequestWithContext(ctx, k.method, u.String(), body)
	if err != nil {
		return nil, fmt.Errorf("agent request: %w", err)
	}
	if body != nil {
		r.ContentLength = size
	}
	for name, v := range k.header {
		r.Header[name] = v
	}
	return r, nil
}

// do sends k over the multiplexed bridge. The answer has a good status; its body is the caller's to close. A refusal
// is a fault, a broken bridge ErrBridge.
func (c *Client) do(ctx context.Context, k call) (*http.Response, error) {
	for try := 0; ; try++ {
		b, release, err := c.current(ctx)
		if err != nil {
			return nil, err
		}
		r, err := k.request(ctx)
		if err != nil {
			release()
			return nil, err
		}
		resp, err := b.http.RoundTrip(r)
		if err == nil {
			resp.Body = counted(resp.Body, release)
			return good(resp)
		}
		release()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if !b.session.IsClosed() {
			// A stream that ends badly while the session lives is the agent's doing: start over with a new one.
			c.drop(b)
		}
		err = fmt.Errorf("%s %s: %w: %w", k.method, k.path, ErrBridge, err)
		if stopped := context.Cause(b.stopped); stopped != nil {
			return nil, stopped
		}
		if !k.repeat || try > 0 {
			return nil, err
		}
	}
}

// counted calls release when the body is closed. After an upgrade the body is written, too.
func counted(body io.ReadCloser, release func()) io.ReadCloser {
	if rwc, ok := body.(io.ReadWriteCloser); ok {
		return countedConn{rwc, release}
	}
	return countedBody{body, release}
}

type countedBody struct {
	io.ReadCloser
	release func()
}

func (b countedBody) Close() error { defer b.release(); return b.ReadCloser.Close() }

type countedConn struct {
	io.ReadWriteCloser
	release func()
}

func (b countedConn) Close() error { defer b.release(); return b.ReadWriteCloser.Close() }

// small does k within callTimeout and reads the answer into v (nil: none wanted), at most limit bytes.
func (c *Client) small(ctx context.Context, k call, limit int64, v any) error {
	leave, err := c.gate.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	return c.inside(ctx, k, limit, v)
}

// inside is small for who is inside the gate.
func (c *Client) inside(ctx context.Context, k call, limit int64, v any) error {
	short, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := c.do(short, k)
	if err == nil {
		err = readJSON(resp, limit, v)
	}
	return c.late(ctx, short, k, err)
}

// late makes of an err that came because short, a limit of ours within ctx, has passed what it is: a bridge that does not
// answer, which nobody shall use again. Other errors stay.
func (c *Client) late(ctx, short context.Context, k call, err error) error {
	if err == nil || ctx.Err() != nil || short.Err() == nil || errors.Is(err, ErrStopped) {
		return err
	}
	c.mu.Lock()
	b := c.bridge
	c.mu.Unlock()
	if b != nil {
		c.drop(b)
	}
	return fmt.Errorf("%s %s: no answer in time: %w", k.method, k.path, ErrBridge)
}

func readJSON(resp *http.Response, limit int64, v any) error {
	defer resp.Body.Close()
	body := io.LimitReader(resp.Body, limit+1)
	text, err := io.ReadAll(body)
	if err != nil {
		return fmt.Errorf("agent answer: %w: %w", ErrBridge, err)
	}
	if int64(len(text)) > limit {
		return fmt.Errorf("agent answer: over %d bytes", limit)
	}
	if v == nil {
		return nil
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("agent answer: %w", err)
	}
	return nil
}

// good passes 200 and 101 and makes a fault of a refusal.
func good(resp *http.Response) (*http.Response, error) {
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusSwitchingProtocols {
		return resp, nil
	}
	var f Failure
	if err := readJSON(resp, maxFailure, &f); err != nil {
		if resp.StatusCode == http.StatusNotFound { // no refusal of ours: it does not know the call
			return nil, fault.Wrap(err, fault.Conflict, "The sandbox was started by an older version of Sandgate and cannot do this. Make a new one for it.")
		}
		return nil, fmt.Errorf("agent refusal %d: %w", resp.StatusCode, err)
	}
	return nil, f.fault()
}

// fault makes an error of ours of a refusal; what is not in the list of kinds that an agent may use is internal.
func (f Failure) fault() error {
	switch k := fault.Kind(f.Code); k {
	case fault.Invalid:
		for name, why := range f.Fields {
			switch name {
			case "path", "source", "destination", "cwd", "user", "env", "command", "stdin", "timeout", "signal", "cursor",
				"limit", "mode", "format", "id", "offset", "length", "since", "name", "content", "recursive", "archive":
				return fault.Field(name, "%s", sentence(why))
			}
		}
		return fault.New(fault.Invalid, "%s", sentence(f.Detail))
	case fault.BadRequest, fault.Forbidden, fault.NotFound, fault.Conflict, fault.Precondition, fault.TooLarge,
		fault.Range, fault.SlowDown:
		e := fault.New(k, "%s", sentence(f.Detail))
		switch f.Reason {
		case "disk_full", "too_many_processes":
			e = e.With("reason", f.Reason)
		}
		return e
	}
	return fmt.Errorf("agent: %s: %s", sentence(f.Code), sentence(f.Detail))
}

// sentence makes text of the agent fit to be shown: short, one line, nothing that moves the text around it.
func sentence(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, s)
	if r := []rune(s); len(r) > 300 {
		s = string(r[:300]) + "…"
	}
	return s
}

// watchdog closes a connection on which a read or write makes no progress for too long.
type watchdog struct {
	net.Conn
	limit     time.Duration
	cancel    context.CancelFunc
	once      sync.Once
	uploading func() bool // while true, waiting for the answer is no fault of the agent's
}

func (w *watchdog) Read(p []byte) (int, error) {
	var t *time.Timer
	t = time.AfterFunc(w.limit, func() {
		if w.uploading != nil && w.uploading() {
			t.Reset(w.limit)
			return
		}
		_ = w.Close()
	})
	defer t.Stop()
	return w.Conn.Read(p)
}

func (w *watchdog) Write(p []byte) (int, error) {
	t := time.AfterFunc(w.limit, func() { _ = w.Close() })
	defer t.Stop()
	return w.Conn.Write(p)
}

func (w *watchdog) Close() error {
	err := w.Conn.Close()
	w.once.Do(w.cancel)
	return err
}
