// Package wsconn owns the websocket under a terminal: the upgrade with its Origin and Host rules, message limits, pings and
// close codes. It must never look into a message, or let a page of another origin in.
package wsconn

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/coder/websocket"

	"sandgate/internal/fault"
	"sandgate/internal/webhost"
)

const (
	// maxMessage is the contract's 1 MiB of input and its type byte, with room for JSON around nothing larger.
	maxMessage = 1<<20 + 64
	pingEvery  = 25 * time.Second
	pongWithin = 20 * time.Second
	// writeWithin bounds one message to a peer that does not read; slower than that is gone.
	writeWithin = 30 * time.Second
)

// Options are the rules of one upgrade.
type Options struct {
	Names       *webhost.Names
	Subprotocol string
	// Cookie says that the request is authenticated by a cookie: then an Origin is required. Without it (an API key) a
	// missing Origin is fine, but one that is there must still be ours.
	Cookie bool
}

// Accept upgrades. An error is a fault of kind Forbidden, returned before anything was written, or one that coder/websocket
// has answered itself, for which answered is true.
func Accept(w http.ResponseWriter, r *http.Request, o Options) (conn *Conn, answered bool, err error) {
	if !o.Names.HostAllowed(r) {
		return nil, false, fault.New(fault.Forbidden, "This server does not answer to that host name.")
	}
	if (o.Cookie || len(r.Header.Values("Origin")) > 0) && !o.Names.OriginAllowed(r) {
		return nil, false, fault.New(fault.Forbidden, "A page of another origin may not open this connection.")
	}
	opts := &websocket.AcceptOptions{
		CompressionMode: websocket.CompressionDisabled,
		// The check above is stricter than the library's, which lets a missing Origin and another scheme pass; behind a
		// proxy that rewrites Host the library would refuse our own public origin.
		InsecureSkipVerify: true,
	}
	if o.Subprotocol != "" {
		opts.Subprotocols = []string{o.Subprotocol}
	}
	ws, err := websocket.Accept(w, r, opts)
	if err != nil {
		return nil, true, fault.Wrap(err, fault.BadRequest, "This address speaks websocket only.")
	}
	ws.SetReadLimit(maxMessage)
	c := &Conn{ws: ws, done: make(chan struct{})}
	go c.ping()
	return c, true, nil
}

// Conn is one websocket as term.Conn wants it. Read and Write may run at the same time, several Writes too.
type Conn struct {
	ws   *websocket.Conn
	done chan struct{} // closed by Close, once
	once onceFlag
}

// Read gives the next message.
func (c *Conn) Read(ctx context.Context) (binary bool, p []byte, err error) {
	t, p, err := c.ws.Read(ctx)
	return t == websocket.MessageBinary, p, err
}

// Write sends one message; a peer that takes longer than 30 s for it is dropped.
func (c *Conn) Write(ctx context.Context, binary bool, p []byte) error {
	ctx, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	t := websocket.MessageText
	if binary {
		t = websocket.MessageBinary
	}
	return c.ws.Write(ctx, t, p)
}

// Close sends a close frame; the reason is cut to what a close frame holds. Further calls do nothing.
func (c *Conn) Close(code int, reason string) error {
	if !c.once.first() {
		return nil
	}
	close(c.done)
	if len(reason) > 120 {
		reason = reason[:120]
	}
	return c.ws.Close(websocket.StatusCode(code), validUTF8(reason))
}

// ping keeps proxies from dropping a quiet terminal and finds peers that are gone. It ends with Close or when the peer does
// not answer; browsers answer by themselves even in a background tab.
func (c *Conn) ping() {
	t := time.NewTicker(pingEvery)
	defer t.Stop()
	for {
		select {
		case <-c.done:
			return
		case <-t.C:
		}
		ctx, cancel := context.WithTimeout(context.Background(), pongWithin)
		err := c.ws.Ping(ctx)
		cancel()
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				_ = c.ws.CloseNow()
			}
			return
		}
	}
}
