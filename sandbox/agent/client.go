package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"sandgate/internal/fault"
)

// Dialer opens one bridge into a sandbox: bulk false to MuxSocket, true to BulkSocket. The bridge may live as long as
// ctx does: the client ends ctx when it has closed the bridge.
type Dialer func(ctx context.Context, bulk bool) (io.ReadWriteCloser, error)

// Client speaks to one sandbox's agent. It dials when first needed, keeps one multiplexed bridge while there is use for
// it and 30 s longer, and dials again when that breaks. Safe for concurrent use. Errors are fault errors where a person can act; a dead bridge is ErrBridge.
type Client struct {
	dial    Dialer
	dialing chan struct{} // a token: one dial at a time
	bulk    chan struct{} // tokens of bulk bridges
	gate    gate          // what Hold closes

	keepIdle time.Duration

	mu     sync.Mutex
	bridge *bridge
	holds  int // how often Hold took the bridges away
	ended  bool
}

// NewClient makes a client that is not connected yet.
func NewClient(dial Dialer) *Client {
	return &Client{dial: dial, dialing: make(chan struct{}, 1), bulk: make(chan struct{}, maxBulk), keepIdle: keepIdle}
}

// Close drops the bridge; running commands and terminals inside go on, and the next call dials again.
func (c *Client) Close() error {
	c.mu.Lock()
	b := c.bridge
	c.bridge = nil
	c.mu.Unlock()
	if b != nil {
		b.close()
	}
	return nil
}

// postJSON is a POST that may be repeated: ids are chosen by us, so that twice is once.
func (c *Client) postJSON(path string, query url.Values, body []byte) call {
	return call{
		method: http.MethodPost, path: path, query: query, repeat: true,
		header: http.Header{"Content-Type": {"application/json"}},
		body:   func() (io.Reader, int64) { return bytes.NewReader(body), int64(len(body)) },
	}
}

// Hello asks who is there.
func (c *Client) Hello(ctx context.Context) (Hello, error) {
	var h Hello
	err := c.small(ctx, call{method: http.MethodGet, path: "/v1/hello", repeat: true}, maxSmall, &h)
	if err == nil && (len(h.Version) > 128 || len(h.BootID) > 128 || !plain(h.Version) || !plain(h.BootID)) {
		err = fmt.Errorf("agent: an impossible hello")
	}
	return h, err
}

// Name gives a sandbox that was made without one its host name; once only.
func (c *Client) Name(ctx context.Context, hostname string) error {
	return c.small(ctx, c.postJSON("/v1/name", url.Values{"name": {hostname}}, nil), maxSmall, &struct{}{})
}

// Warm has the agent make ready for a first command what it can.
func (c *Client) Warm(ctx context.Context) error {
	return c.small(ctx, c.postJSON("/v1/warm", nil, nil), maxSmall, &struct{}{})
}

// Start starts a background command; starting an id twice starts it once.
func (c *Client) Start(ctx context.Context, spec CommandSpec) (Command, error) {
	spec.Background = true
	body, err := json.Marshal(spec)
	if err != nil {
		return Command{}, fmt.Errorf("command: %w", err)
	}
	return one[Command](ctx, c, c.postJSON("/v1/commands", nil, body))
}

// checked is what the agent describes and we verify.
type checked interface{ check() error }

// one does a call that answers one described thing.
func one[T checked](ctx context.Context, c *Client, k call) (T, error) {
	var v T
	if err := c.small(ctx, k, maxOneJSON, &v); err != nil {
		return v, err
	}
	return v, v.check()
}

// many does a call that answers a list of them.
func many[T checked](ctx context.Context, c *Client, path string, most int) ([]T, error) {
	var list []T
	if err := c.small(ctx, call{method: http.MethodGet, path: path, repeat: true}, maxListJSON, &list); err != nil {
		return nil, err
	}
	if len(list) > most {
		return nil, fmt.Errorf("agent: a list of %d", len(list))
	}
	for _, v := range list {
		if err := v.check(); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// path makes the path of a call about one command or terminal.
func path1(kind, id, rest string) (string, error) {
	if !validID(id) {
		return "", fault.New(fault.NotFound, "There is nothing with this id.")
	}
	return "/v1/" + kind + "/" + id + rest, nil
}

// Commands lists what the agent remembers: all running ones, the last 200 ended ones. Their text is cut at 4 KiB.
func (c *Client) Commands(ctx context.Context) ([]Command, error) {
	return many[Command](ctx, c, "/v1/commands", 10_000)
}

// Command gives one.
func (c *Client) Command(ctx context.Context, id string) (Command, error) {
	path, err := path1("commands", id, "")
	if err != nil {
		return Command{}, err
	}
	return one[Command](ctx, c, call{method: http.MethodGet, path: path, repeat: true})
}

// Stdin writes to a command that was started with KeepStdin; eof closes it after data. It waits, at most 30 s, until
// the program has room for data. It is not repeated when the bridge breaks.
func (c *Client) Stdin(ctx context.Context, id string, data []byte, eof bool) error {
	path, err := path1("commands", id, "/stdin")
	if err != nil {
		return err
	}
	if len(data) > MaxStdin {
		return fault.New(fault.TooLarge, "Standard input takes at most %d bytes at a time.", MaxStdin)
	}
	k := call{
		method: http.MethodPost, path: path,
		body: func() (io.Reader, int64) { return bytes.NewReader(data), int64(len(data)) },
	}
	if eof {
		k.query = url.Values{"eof": {"1"}}
	}
	return c.small(ctx, k, maxSmall, &struct{}{})
}

// Kill sends a signal ("KILL", "TERM", "INT", …) to the command's whole tree; KILL leaves nothing of it, which is so
// when Kill returns.
func (c *Client) Kill(ctx context.Context, id, signal string) error {
	path, err := path1("commands", id, "/kill")
	if err != nil {
		return err
	}
	if signal == "" || len(signal) > 16 || strings.ContainsAny(signal, "\x00\r\n") {
		return fault.Field("signal", "is not a signal's name")
	}
	k := call{method: http.MethodPost, path: path, query: url.Values{"signal": {signal}}, repeat: true}
	return c.small(ctx, k, maxSmall, &struct{}{})
}

// OpenPTY starts a terminal; opening an id twice opens it once.
func (c *Client) OpenPTY(ctx context.Context, spec PTYSpec) (PTY, error) {
	body, err := json.Marshal(spec)
	if err != nil {
		return PTY{}, fmt.Errorf("terminal: %w", err)
	}
	return one[PTY](ctx, c, c.postJSON("/v1/ptys", nil, body))
}

// PTYs lists terminals, ended ones too until they are closed.
func (c *Client) PTYs(ctx context.Context) ([]PTY, error) {
	return many[PTY](ctx, c, "/v1/ptys", 1000)
}

// PTY gives one.
func (c *Client) PTY(ctx context.Context, id string) (PTY, error) {
	path, err := path1("ptys", id, "")
	if err != nil {
		return PTY{}, err
	}
	return one[PTY](ctx, c, call{method: http.MethodGet, path: path, repeat: true})
}

// RenamePTY gives a terminal another name.
func (c *Client) RenamePTY(ctx context.Context, id, name string) (PTY, error) {
	path, err := path1("ptys", id, "")
	if err != nil {
		return PTY{}, err
	}
	body, err := json.Marshal(PTYName{name})
	if err != nil {
		return PTY{}, fmt.Errorf("terminal: %w", err)
	}
	k := c.postJSON(path, nil, body)
	k.method, k.repeat = http.MethodPatch, true
	return one[PTY](ctx, c, k)
}

// ClosePTY hangs the terminal up (HUP, then TERM, then KILL in short steps) and forgets it. What detached itself from
// the session inside (tmux, setsid) goes on.
func (c *Client) ClosePTY(ctx context.Context, id string) error {
	path, err := path1("ptys", id, "")
	if err != nil {
		return err
	}
	return c.small(ctx, call{method: http.MethodDelete, path: path}, maxSmall, &struct{}{})
}
