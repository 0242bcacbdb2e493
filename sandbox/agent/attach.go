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
	"sync"
	"time"

	"sandgate/internal/fault"
)

// Attachment is the host's live connection to one terminal. Next is called by one goroutine; the senders may be called
// by others at the same time.
type Attachment interface {
	// Next returns the next event: exactly one of Output, Size, Exit, Refused is set. io.EOF after Exit; ErrBridge when
	// the bridge broke.
	Next() (PTYEvent, error)
	// Input types bytes. It returns once they are on the bridge; the agent queues at most MaxInput and then drops the
	// message whole, which Next tells as Refused. More than MaxInput at once is fault.TooLarge. An error that is ErrUnsent
	// means that nothing left: it may be sent again over another attachment.
	Input(p []byte) error
	Resize(cols, rows int) error
	Signal(name string) error
	Close() error
}

// PTYEvent is one thing that happened in a terminal.
type PTYEvent struct {
	Offset  int64  // absolute offset of Output[0]
	Output  []byte // valid until the next call of Next
	Size    *Size
	Exit    *Exit
	Refused bool // an input message was dropped: the program does not read
}

// Size is a terminal's.
type Size struct {
	Cols int `json:"cols"`
	Rows int `json:"rows"`
}

// sendTimeout bounds a sender: the agent always reads, so a full bridge for this long is a dead one.
const sendTimeout = 10 * time.Second

// Attach connects to a terminal from an offset on; -1 means from the oldest byte kept. An offset older than the ring
// starts at the oldest byte: the caller sees it by the first event's Offset. The first event is the size there.
func (c *Client) Attach(ctx context.Context, id string, since int64) (Attachment, error) {
	path, err := path1("ptys", id, "/attach")
	if err != nil {
		return nil, err
	}
	k := call{
		method: http.MethodPost, path: path, query: url.Values{"since": {strconv.FormatInt(since, 10)}}, repeat: true,
		header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {PTYUpgrade}},
	}
	leave, err := c.gate.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	short, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := c.do(short, k)
	if err != nil {
		return nil, c.late(ctx, short, k, err)
	}
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if resp.StatusCode != http.StatusSwitchingProtocols || !ok {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("agent attach: no upgrade but status %d", resp.StatusCode)
	}
	a := &attachment{c: c, holds: c.holdCount(), conn: conn, in: frameReader{r: bufio.NewReaderSize(conn, 16<<10), limit: MaxFrame}, next: -1}
	a.stop = context.AfterFunc(ctx, func() { _ = conn.Close() })
	return a, nil
}

type attachment struct {
	c     *Client
	holds int // of the client, when this began
	conn  io.ReadWriteCloser
	stop  func() bool
	in    frameReader
	next  int64 // offset that output has to reach at least; -1 before the first
	over  bool

	mu  sync.Mutex // one frame at a time
	buf []byte
}

func (a *attachment) Next() (PTYEvent, error) {
	if a.over {
		return PTYEvent{}, io.EOF
	}
	for {
		t, p, err := a.in.next()
		if err != nil {
			return PTYEvent{}, err
		}
		switch t {
		case PTYOutput:
			if len(p) < 9 {
				return PTYEvent{}, fmt.Errorf("agent terminal: output without bytes")
			}
			at := binary.BigEndian.Uint64(p)
			if at > maxOffset || int64(at) < a.next {
				return PTYEvent{}, fmt.Errorf("agent terminal: output out of order")
			}
			a.next = int64(at) + int64(len(p)-8)
			return PTYEvent{Offset: int64(at), Output: p[8:]}, nil
		case PTYSize:
			var s Size
			if err := json.Unmarshal(p, &s); err != nil || !s.possible() {
				return PTYEvent{}, fmt.Errorf("agent terminal: an impossible size")
			}
			return PTYEvent{Size: &s}, nil
		case PTYExit:
			var e Exit
			if err := json.Unmarshal(p, &e); err != nil {
				return PTYEvent{}, fmt.Errorf("agent terminal: %w", err)
			}
			a.over = true
			return PTYEvent{Exit: &e}, e.check()
		case PTYRefused:
			return PTYEvent{Refused: true}, nil
		default:
			return PTYEvent{}, fmt.Errorf("agent terminal: a frame of unknown type %q", byte(t))
		}
	}
}

func (a *attachment) send(t FrameType, p []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	leave, err := a.c.gate.enter(ctx) // a frame is on the bridge whole before that is taken away, or not at all
	if err != nil || a.c.holdCount() != a.holds {
		if err == nil {
			leave()
		}
		return fmt.Errorf("agent terminal: %w: %w", ErrBridge, ErrUnsent)
	}
	defer leave()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.buf = append(a.buf[:0], byte(t))
	a.buf = binary.BigEndian.AppendUint32(a.buf, uint32(len(p)))
	a.buf = append(a.buf, p...)
	timer := time.AfterFunc(sendTimeout, func() { _ = a.conn.Close() })
	defer timer.Stop()
	_, err = a.conn.Write(a.buf)
	if cap(a.buf) > MaxFrame {
		a.buf = nil
	}
	if err != nil {
		return fmt.Errorf("agent terminal: %w: %w", ErrBridge, err)
	}
	return nil
}

func (a *attachment) Input(p []byte) error {
	if len(p) > MaxInput {
		return fault.New(fault.TooLarge, "A terminal takes at most %d bytes of input at a time.", MaxInput)
	}
	return a.send(PTYInput, p)
}

func (a *attachment) Resize(cols, rows int) error {
	p, err := json.Marshal(Size{min(max(cols, 2), MaxCols), min(max(rows, 1), MaxRows)})
	return errors.Join(err, a.send(PTYResize, p))
}

func (a *attachment) Signal(name string) error {
	switch name {
	case "INT", "QUIT", "TSTP", "TERM", "KILL", "HUP", "CONT", "WINCH":
	default:
		return fault.Field("signal", "is not one that a terminal sends")
	}
	p, err := json.Marshal(map[string]string{"name": name})
	return errors.Join(err, a.send(PTYSignal, p))
}

func (a *attachment) Close() error {
	a.stop()
	return a.conn.Close()
}
