package mcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandgate/auth"
	"sandgate/internal/fault"
)

// toolError is an error as the model reads it: JSON with detail and code.
type toolError string

// Error gives the text that becomes the tool's answer.
func (e toolError) Error() string { return string(e) }

// add registers a tool: do gets the actor of the request's key, and a context that ends when the client hangs up. What it
// returns as an error becomes an answer that is marked as one; the model can read it and try something else.
func add[In, Out any](s *server, to *mcp.Server, t mcp.Tool, do func(context.Context, auth.Actor, In) (Out, error)) {
	mcp.AddTool(to, &t, func(ctx context.Context, req *mcp.CallToolRequest, in In) (_ *mcp.CallToolResult, out Out, err error) {
		c, ok := ctx.Value(callKey{}).(*call)
		if !ok {
			return nil, out, toolError(told(errors.New("no caller")))
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(c.ctx, cancel)()
		defer s.progress(ctx, req)()
		// The SDK calls tools on goroutines of its own, where no middleware sees a panic.
		defer func() {
			if p := recover(); p != nil {
				err = s.toolRefused(ctx, c.actor, t.Name, fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
			}
		}()
		out, err = do(ctx, c.actor, in)
		if err != nil {
			err = s.toolRefused(ctx, c.actor, t.Name, err)
		}
		return nil, out, err
	})
}

// toolRefused logs why a call failed and gives what the model is told.
func (s *server) toolRefused(ctx context.Context, a auth.Actor, tool string, err error) error {
	level := slog.LevelInfo
	if fault.Is(err, fault.Internal) && ctx.Err() == nil {
		level = slog.LevelError
	}
	s.o.Log.LogAttrs(ctx, level, "mcp call refused",
		slog.String("request_id", a.RequestID), slog.String("tool", tool), slog.String("cause", err.Error()))
	return toolError(told(err))
}

// progress tells a client that asked for it that the call goes on, so that it does not give up on a long command. The
// function returned ends that.
func (s *server) progress(ctx context.Context, req *mcp.CallToolRequest) (stop func()) {
	token := req.Params.GetProgressToken()
	if token == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { // ends with stop
		defer close(done)
		tick := time.NewTicker(s.o.Progress)
		defer tick.Stop()
		for begin := time.Now(); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			p := mcp.ProgressNotificationParams{ProgressToken: token, Progress: time.Since(begin).Seconds(), Message: "still running"}
			if req.Session.NotifyProgress(ctx, &p) != nil {
				return // the client is gone, which ends the call by itself
			}
		}
	}()
	return func() { cancel(); <-done }
}
