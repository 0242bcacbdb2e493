package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

type mcpCmd struct {
	remote `embed:""`
}

// bridgeFailed is the JSON-RPC code of an answer that the bridge gives because the server gave none.
const bridgeFailed = -32000

// Run carries messages between a client on stdin and stdout and the server's /mcp, until stdin ends.
func (c *mcpCmd) Run(e *env) error {
	if c.Key == "" {
		return errors.New("name an API key: --key KEY or $SANDGATE_KEY")
	}
	local, err := (&mcp.IOTransport{Reader: io.NopCloser(e.stdin), Writer: keepOpen{e.stdout}}).Connect(e.ctx)
	if err != nil {
		return err
	}
	b := &mcpBridge{remote: c.remote, local: local, running: map[jsonrpc.ID]context.CancelFunc{}}
	return b.run(e.ctx)
}

// keepOpen is a writer that is not ours to close.
type keepOpen struct{ io.Writer }

func (keepOpen) Close() error { return nil }

// mcpBridge gives every message a connection to the server of its own. The server keeps no session, so a restart of it is
// one failed call and no more, and hanging up on a call ends that call alone.
type mcpBridge struct {
	remote remote
	local  mcp.Connection
	calls  sync.WaitGroup

	mu      sync.Mutex
	running map[jsonrpc.ID]context.CancelFunc // calls that are not answered yet
	version string                            // of the protocol, as the server's answer to initialize has it
}

func (b *mcpBridge) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer b.calls.Wait()
	defer cancel() // whoever left hears no answers: their commands end too
	defer func() { _ = b.local.Close() }()
	for {
		msg, err := b.local.Read(ctx)
		if errors.Is(err, io.EOF) || ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("standard input: %w", err)
		}
		req, ok := msg.(*jsonrpc.Request)
		switch {
		case !ok: // an answer, but the server never asks
		case !req.IsCall():
			if req.Method == "notifications/cancelled" && b.hangUp(req) {
				continue // the server learns of it by the connection, which is all it knows the call by
			}
			if err := b.forward(ctx, req); err != nil && ctx.Err() == nil {
				return err
			}
		default:
			b.start(ctx, req)
		}
	}
}

// hangUp ends the call that a client does not want any more.
func (b *mcpBridge) hangUp(req *jsonrpc.Request) bool {
	var p struct {
		RequestID any `json:"requestId"`
	}
	if json.Unmarshal(req.Params, &p) != nil {
		return false
	}
	id, err := jsonrpc.MakeID(p.RequestID)
	if err != nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	cancel, ok := b.running[id]
	if ok {
		cancel()
	}
	return ok
}

// start answers a call on a goroutine of its own, so that others can follow and it can be cancelled.
func (b *mcpBridge) start(ctx context.Context, req *jsonrpc.Request) {
	call, cancel := context.WithCancel(ctx)
	b.mu.Lock()
	b.running[req.ID] = cancel
	b.mu.Unlock()
	answer := func() {
		err := b.forward(call, req)
		b.mu.Lock()
		delete(b.running, req.ID)
		b.mu.Unlock()
		if err != nil && call.Err() == nil { // who cancelled awaits no answer
			_ = b.local.Write(ctx, &jsonrpc.Response{ID: req.ID, Error: &jsonrpc.Error{Code: bridgeFailed, Message: err.Error()}})
		}
		cancel()
	}
	if req.Method == "initialize" { // what follows bears the version that this negotiates
		answer()
		return
	}
	b.calls.Go(answer)
}

// forward sends one message, and hands back what the server says until it has answered a call.
func (b *mcpBridge) forward(ctx context.Context, req *jsonrpc.Request) error {
	b.mu.Lock()
	version := b.version
	b.mu.Unlock()
	signed := &signing{key: b.remote.Key, version: version}
	to := &mcp.StreamableClientTransport{
		Endpoint: strings.TrimRight(b.remote.URL, "/") + "/mcp", HTTPClient: &http.Client{Transport: signed},
		MaxRetries: -1, DisableStandaloneSSE: true,
	}
	conn, err := to.Connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.Write(ctx, req); err != nil {
		return signed.explain(err)
	}
	for req.IsCall() {
		msg, err := conn.Read(ctx)
		if err != nil {
			return signed.explain(err)
		}
		resp, last := msg.(*jsonrpc.Response)
		if last && req.Method == "initialize" {
			b.negotiated(resp)
		}
		if err := b.local.Write(ctx, msg); err != nil || last {
			return err
		}
	}
	return nil
}

func (b *mcpBridge) negotiated(resp *jsonrpc.Response) {
	var r struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	if json.Unmarshal(resp.Result, &r) == nil {
		b.mu.Lock()
		b.version = r.ProtocolVersion
		b.mu.Unlock()
	}
}

// signing sends the key and the protocol's version with every request, and remembers the sentence of a refusal, which the
// SDK would reduce to its status.
type signing struct {
	key, version string
	refused      string
}

// RoundTrip implements http.RoundTripper.
func (s *signing) RoundTrip(r *http.Request) (*http.Response, error) {
	const header = "Mcp-Protocol-Version"
	r = r.Clone(r.Context())
	r.Header.Set("X-API-Key", s.key)
	if s.version != "" && r.Header.Get(header) == "" {
		r.Header.Set(header, s.version)
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil || resp.StatusCode < 400 {
		return resp, err
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	_ = resp.Body.Close()
	var refused struct{ Detail string }
	if err == nil && json.Unmarshal(text, &refused) == nil {
		s.refused = refused.Detail
	}
	resp.Body = io.NopCloser(strings.NewReader(string(text)))
	return resp, nil
}

func (s *signing) explain(err error) error {
	if s.refused != "" {
		return errors.New(s.refused)
	}
	return err
}
