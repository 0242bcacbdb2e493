package agent

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"sandgate/internal/fault"
)

// Output receives a command's stream in order. A slow Output stops the reading (backpressure up to the program). An error
// from it ends the stream but not the command.
type Output interface {
	Stdout(p []byte) error
	Stderr(p []byte) error
}

// follower is the host's place in a command's two streams; it outlives bridges.
type follower struct {
	id    string
	out   Output
	pos   [2]int64
	begun bool      // a frame came: the command exists
	due   time.Time // when the agent must have ended it; zero: never
}

// outputError is an error of the Output, told from the bridge's.
type outputError struct{ error }

func (e outputError) Unwrap() error { return e.error }

// Run starts a foreground command and follows it to its end, over as many bridges as it takes: the agent starts an id
// once only. If ctx ends first, the command's whole tree is killed.
func (c *Client) Run(ctx context.Context, spec CommandSpec, out Output) (Exit, error) {
	body, err := json.Marshal(spec)
	if err != nil {
		return Exit{}, fmt.Errorf("command: %w", err)
	}
	f := &follower{id: spec.ID, out: out}
	if spec.TimeoutMS > 0 {
		f.due = time.Now().Add(time.Duration(spec.TimeoutMS)*time.Millisecond + overdue)
	}
	start := c.postJSON("/v1/commands", url.Values{"stream": {"1"}}, body)
	exit, err := c.follow(ctx, f, &start)
	if ctx.Err() != nil && (f.begun || !errors.As(err, new(*fault.Error))) {
		// Not with ctx, which is over; the command must not outlive the one who asked for it.
		killCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer cancel()
		if kerr := c.Kill(killCtx, spec.ID, "KILL"); kerr != nil && !fault.Is(kerr, fault.NotFound) {
			return Exit{}, errors.Join(ctx.Err(), kerr)
		}
		return Exit{}, ctx.Err()
	}
	return exit, err
}

// Follow streams a command's kept output from two byte offsets (0, 0: from the start), then live, to its end.
func (c *Client) Follow(ctx context.Context, id string, stdoutFrom, stderrFrom int64, out Output) (Exit, error) {
	return c.follow(ctx, &follower{id: id, out: out, pos: [2]int64{stdoutFrom, stderrFrom}, begun: true}, nil)
}

// follow reads to the end, on fresh bridges when one breaks. start is what begins the command, nil when it has begun.
func (c *Client) follow(ctx context.Context, f *follower, start *call) (Exit, error) {
	if !validID(f.id) {
		return Exit{}, fault.Field("id", "is not an id")
	}
	failures := 0
	posted := false
	for {
		before, holds := f.pos, c.holdCount()
		var k call
		if f.begun || posted {
			k = call{method: http.MethodGet, path: "/v1/commands/" + f.id + "/stream", query: f.query(), repeat: true}
		} else {
			k = *start
		}
		posted = true
		exit, err := c.followOnce(ctx, k, f)
		switch {
		case err == nil:
			return exit, nil
		case ctx.Err() != nil:
			return Exit{}, ctx.Err()
		case errors.Is(err, ErrStopped):
			return Exit{}, err
		case start != nil && !f.begun && fault.Is(err, fault.NotFound):
			posted = false // the start never arrived
		case !errors.Is(err, ErrBridge):
			if oe, ok := errors.AsType[outputError](err); ok {
				return Exit{}, oe.error
			}
			return Exit{}, err
		}
		if f.pos != before || c.holdCount() != holds {
			failures = 0
		}
		if failures++; failures > 4 || !f.due.IsZero() && time.Now().After(f.due) {
			return Exit{}, err
		}
		select {
		case <-time.After(time.Duration(failures) * 50 * time.Millisecond):
		case <-ctx.Done():
			return Exit{}, ctx.Err()
		}
	}
}

// overdue is how long after a command's time-out its end may be awaited in silence: the agent gives its tree 10 s to die.
// A variable for tests.
var overdue = 15 * time.Second

// patience is how long the agent may be silent. One that was stopped or replaced by the guest shall not hold a command
// far beyond its time-out; one that still sends, to a slow reader, may.
func (f *follower) patience() time.Duration {
	if f.due.IsZero() {
		return silence
	}
	return min(silence, max(overdue, time.Until(f.due)))
}

func (f *follower) query() url.Values {
	return url.Values{"stdout": {strconv.FormatInt(f.pos[0], 10)}, "stderr": {strconv.FormatInt(f.pos[1], 10)}}
}

func (c *Client) followOnce(ctx context.Context, k call, f *follower) (Exit, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	quiet := time.AfterFunc(f.patience(), cancel) // the first answer comes at once, or nothing does
	resp, err := c.begin(ctx, k)
	quiet.Stop()
	if err != nil {
		if errors.Is(err, context.Canceled) {
			err = fmt.Errorf("command %s: silent: %w", f.id, ErrBridge)
		}
		return Exit{}, err
	}
	defer resp.Body.Close()
	fr := &frameReader{r: bufio.NewReaderSize(resp.Body, 16<<10), limit: MaxFrame, stop: cancel}
	for {
		fr.wait = f.patience()
		t, p, err := fr.next()
		if err != nil {
			return Exit{}, err
		}
		f.begun = true
		switch t {
		case FrameInit, FramePing:
		case FrameStdout, FrameStderr:
			if err := f.take(t, p); err != nil {
				return Exit{}, err
			}
		case FrameExit:
			var exit Exit
			if err := json.Unmarshal(p, &exit); err != nil {
				return Exit{}, fmt.Errorf("agent exit: %w", err)
			}
			// To its end, so that the stream's connection serves the next call.
			_, _ = io.Copy(io.Discard, io.LimitReader(fr.r, 1<<10))
			return exit, exit.check()
		case FrameEnd:
			_, _ = io.Copy(io.Discard, io.LimitReader(fr.r, 1<<10))
			return Exit{}, io.EOF
		case FrameError:
			var fail Failure
			if err := json.Unmarshal(p, &fail); err != nil {
				return Exit{}, fmt.Errorf("agent failure: %w", err)
			}
			return Exit{}, fail.fault()
		default:
			return Exit{}, fmt.Errorf("agent: a frame of unknown type %q", byte(t))
		}
	}
}

func (f *follower) take(t FrameType, p []byte) error {
	i, write := 0, f.out.Stdout
	if t == FrameStderr {
		i, write = 1, f.out.Stderr
	}
	if f.pos[i]+int64(len(p)) > MaxOutput {
		return fmt.Errorf("agent: more output than it may send")
	}
	if err := write(p); err != nil {
		return outputError{err}
	}
	f.pos[i] += int64(len(p))
	return nil
}

// frameReader reads frames with a bound on their size and on silence between them.
type frameReader struct {
	r     *bufio.Reader
	limit uint32
	stop  func() // ends the stream when it is silent for wait; nil: silence is fine
	wait  time.Duration
	buf   []byte
}

// next gives a frame; the payload is valid until the next call. A stream that ends is ErrBridge.
func (f *frameReader) next() (FrameType, []byte, error) {
	if f.stop != nil {
		t := time.AfterFunc(f.wait, f.stop)
		defer t.Stop()
	}
	var head [5]byte
	if _, err := io.ReadFull(f.r, head[:]); err != nil {
		return 0, nil, fmt.Errorf("agent stream: %w: %w", ErrBridge, err)
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > f.limit {
		return 0, nil, fmt.Errorf("agent stream: a frame of %d bytes", n)
	}
	if uint32(cap(f.buf)) < n {
		f.buf = make([]byte, max(n, 4<<10))
	}
	p := f.buf[:n]
	if _, err := io.ReadFull(f.r, p); err != nil {
		return 0, nil, fmt.Errorf("agent stream: %w: %w", ErrBridge, err)
	}
	return FrameType(head[0]), p, nil
}

// collect is an Output that keeps everything.
type collect struct{ out [2][]byte }

func (c *collect) Stdout(p []byte) error { c.out[0] = append(c.out[0], p...); return nil }
func (c *collect) Stderr(p []byte) error { c.out[1] = append(c.out[1], p...); return nil }

// Logs gives what is kept of the output from two byte offsets on, at most MaxOutput each, without waiting for more.
func (c *Client) Logs(ctx context.Context, id string, stdoutFrom, stderrFrom int64) (stdout, stderr []byte, cmd Command, err error) {
	if cmd, err = c.Command(ctx, id); err != nil {
		return nil, nil, cmd, err
	}
	short, cancel := context.WithTimeout(ctx, 2*callTimeout)
	defer cancel()
	for try := 0; ; try++ {
		var got collect
		f := &follower{id: id, out: &got, pos: [2]int64{stdoutFrom, stderrFrom}, begun: true}
		k := call{method: http.MethodGet, path: "/v1/commands/" + id + "/logs", query: f.query()}
		_, err = c.followOnce(short, k, f)
		if errors.Is(err, io.EOF) && !errors.Is(err, ErrBridge) {
			return got.out[0], got.out[1], cmd, nil
		}
		if err == nil {
			err = fmt.Errorf("agent: an exit among logs")
		}
		if !errors.Is(err, ErrBridge) || try > 0 {
			return nil, nil, cmd, c.late(ctx, short, k, err)
		}
	}
}
