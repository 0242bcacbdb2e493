package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
)

// gate counts what must not be cut, holds back what is new, and tells when nothing is inside. Small calls are inside until
// they are answered, long streams (a command followed, a terminal watched) until they have begun: those continue where
// they were on the next bridge.
type gate struct {
	mu     sync.Mutex
	inside int
	before int           // uploads whose beginning is still being read: they are let in, whatever their sender takes
	moved  chan struct{} // closed and replaced when inside or before becomes 0
	held   chan struct{} // not nil while held; closed when it opens again
}

// told wakes who waits for the gate. The caller holds mu.
func (g *gate) told() {
	if g.moved != nil {
		close(g.moved)
		g.moved = nil
	}
}

// changed gives what is closed at the next change. The caller holds mu.
func (g *gate) changed() <-chan struct{} {
	if g.moved == nil {
		g.moved = make(chan struct{})
	}
	return g.moved
}

// enter waits while the gate is held and counts one call; leave ends the count.
func (g *gate) enter(ctx context.Context) (leave func(), err error) {
	for {
		g.mu.Lock()
		held := g.held
		if held == nil {
			g.inside++
			g.mu.Unlock()
			return sync.OnceFunc(g.leave), nil
		}
		g.mu.Unlock()
		select {
		case <-held:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside--; g.inside == 0 {
		g.told()
	}
}

// wait waits while the gate is held and counts an upload that begins, until away is called. in counts it as a call that is
// inside instead, with no moment between.
func (g *gate) wait(ctx context.Context) (in func() (leave func()), away func(), err error) {
	leave, err := g.enter(ctx)
	if err != nil {
		return nil, nil, err
	}
	g.mu.Lock()
	g.before++
	g.mu.Unlock()
	leave()
	away = sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.before--; g.before == 0 {
			g.told()
		}
	})
	return func() func() {
		g.mu.Lock()
		g.inside++
		g.mu.Unlock()
		away()
		return sync.OnceFunc(g.leave)
	}, away, nil
}

// quiet waits until no upload begins.
func (g *gate) quiet(ctx context.Context) error {
	for {
		g.mu.Lock()
		if g.before == 0 {
			g.mu.Unlock()
			return nil
		}
		changed := g.changed()
		g.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// errBeginning means that an upload began at this moment.
var errBeginning = errors.New("agent: an upload begins")

// hold closes the gate and waits until nobody is inside. While an upload begins it is not closed: errBeginning.
func (g *gate) hold(ctx context.Context) (open func(), err error) {
	g.mu.Lock()
	if g.held != nil {
		g.mu.Unlock()
		return nil, fmt.Errorf("agent: held already")
	}
	if g.before > 0 {
		g.mu.Unlock()
		return nil, errBeginning
	}
	held := make(chan struct{})
	g.held = held
	g.mu.Unlock()
	open = sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.held = nil
		close(held)
	})
	for {
		g.mu.Lock()
		if g.inside == 0 {
			g.mu.Unlock()
			return open, nil
		}
		changed := g.changed()
		g.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			open()
			return nil, ctx.Err()
		}
	}
}

// Hold takes the bridges away in good order, for as long as until release is called: it waits for transfers to end, small
// ones too, and for small calls to be answered, then cuts what streams. New calls wait. Commands and terminals that are followed go on
// after release where they were; what was typed before has arrived. It fails when ctx ends first, and holds nothing then.
func (c *Client) Hold(ctx context.Context) (release func(), err error) {
	var tokens int
	free := func() {
		for ; tokens > 0; tokens-- {
			<-c.bulk
		}
	}
	var open func()
	for err = errBeginning; errors.Is(err, errBeginning); {
		free() // who begins may need one
		if err := c.gate.quiet(ctx); err != nil {
			return nil, err
		}
		for tokens < cap(c.bulk) {
			select {
			case c.bulk <- struct{}{}:
				tokens++
			case <-ctx.Done():
				free()
				return nil, ctx.Err()
			}
		}
		open, err = c.gate.hold(ctx)
	}
	if err != nil {
		free()
		return nil, err
	}
	c.mu.Lock()
	c.holds++
	c.mu.Unlock()
	_ = c.Close()
	return sync.OnceFunc(func() { open(); free() }), nil
}

// holdCount tells an attachment whether its bridge was taken away.
func (c *Client) holdCount() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.holds
}

// begin does a call whose answer is a stream.
func (c *Client) begin(ctx context.Context, k call) (*http.Response, error) {
	leave, err := c.gate.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return c.do(ctx, k)
}

// ErrUnsent means, beside ErrBridge, that nothing of a message left: it may be sent again.
var ErrUnsent = errors.New("nothing was sent")

// End is Close for good: whoever still has the client gets ErrBridge. What is behind it may be another's by then.
func (c *Client) End() error {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	return c.Close()
}
