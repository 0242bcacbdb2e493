package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/coder/websocket"
)

const (
	prompt    = "ready> "
	setPrompt = "PS1='rea''dy> '\n" // its echo does not look like the prompt
	ackEvery  = 48 << 10            // bytes, as the page does
)

// terminal is a scripted client of one terminal, the product's or terminado's: the same loop, and below it how each frames
// its messages. One goroutine at a time may use it.
type terminal struct {
	ctx  context.Context
	conn *websocket.Conn
	dialect
	text []byte // came and was not looked at yet
}

// dialect is how a terminal server frames its messages.
type dialect interface {
	// input makes a message of what is typed.
	input(text string) (websocket.MessageType, []byte)
	// output gives what a message paints, nil for nothing, and an answer to it, nil for none.
	output(kind websocket.MessageType, message []byte) (text, answer []byte, err error)
}

func dial(ctx context.Context, url string, d dialect, options *websocket.DialOptions) (*terminal, error) {
	conn, resp, err := websocket.Dial(ctx, url, options)
	if err != nil {
		return nil, err
	}
	if resp.Body != nil {
		_ = resp.Body.Close() // empty
	}
	conn.SetReadLimit(16 << 20)
	return &terminal{ctx: ctx, conn: conn, dialect: d}, nil
}

func (t *terminal) close() { _ = t.conn.CloseNow() } // the other side may have closed already

func (t *terminal) write(text string) error {
	kind, p := t.input(text)
	return t.conn.Write(t.ctx, kind, p)
}

// read waits for the next output.
func (t *terminal) read() ([]byte, error) {
	for {
		kind, p, err := t.conn.Read(t.ctx)
		if err != nil {
			return nil, err
		}
		text, answer, err := t.output(kind, p)
		if err != nil {
			return nil, err
		}
		if answer != nil {
			if err := t.conn.Write(t.ctx, websocket.MessageText, answer); err != nil {
				return nil, err
			}
		}
		if text != nil {
			return text, nil
		}
	}
}

// until reads to the end of a text and gives how many bytes that were.
func (t *terminal) until(text string) (n int, err error) {
	for {
		if i := bytes.Index(t.text, []byte(text)); i >= 0 {
			i += len(text)
			t.text = t.text[i:]
			return n + i, nil
		}
		keep := min(len(t.text), len(text)-1) // the beginning of it, perhaps
		n += len(t.text) - keep
		p, err := t.read()
		if err != nil {
			return n, fmt.Errorf("waiting for %q: %w", text, err)
		}
		t.text = append(t.text[:copy(t.text, t.text[len(t.text)-keep:])], p...)
	}
}

// do types something and waits for a text.
func (t *terminal) do(typed, text string) (n int, err error) {
	if err := t.write(typed); err != nil {
		return 0, err
	}
	return t.until(text)
}

// sandgateDialect is the product's: subprotocol sandgate.term.v1.
type sandgateDialect struct {
	next, acked int64
	snapshots   int // how many came
}

func (*sandgateDialect) input(text string) (websocket.MessageType, []byte) {
	return websocket.MessageBinary, append([]byte{0}, text...)
}

func (d *sandgateDialect) output(kind websocket.MessageType, p []byte) (text, answer []byte, err error) {
	if kind != websocket.MessageBinary {
		var hello struct {
			Type string
			Next int64
		}
		return nil, nil, json.Unmarshal(p, &hello)
	}
	if len(p) < 9 {
		return nil, nil, errors.New("a frame without an offset")
	}
	text = p[9:]
	switch at := int64(binary.BigEndian.Uint64(p[1:9])); {
	case p[0] == 2:
		d.snapshots++
		d.next, d.acked = at, at-ackEvery // acknowledged at once
	case at != d.next:
		return nil, nil, fmt.Errorf("output at %d instead of %d", at, d.next)
	default:
		d.next += int64(len(text))
	}
	if d.next-d.acked >= ackEvery {
		d.acked = d.next
		answer = fmt.Appendf(nil, `{"type":"ack","offset":%d}`, d.next)
	}
	return text, answer, nil
}

// openTerminal makes a terminal in a sandbox.
func (s *server) openTerminal(id string) (pty string, err error) {
	var made struct{ ID string }
	err = s.call("POST", "/v1/sandboxes/"+id+"/ptys", map[string]any{"cols": 80, "rows": 24}, &made)
	return made.ID, err
}

// view connects to a terminal and reads to the end of the first snapshot.
func (s *server) view(ctx context.Context, id, pty string) (*terminal, error) {
	t, err := dial(ctx, "ws"+strings.TrimPrefix(s.url, "http")+"/v1/sandboxes/"+id+"/ptys/"+pty+"/ws", &sandgateDialect{}, &websocket.DialOptions{
		HTTPHeader: http.Header{"X-API-Key": {s.key}}, Subprotocols: []string{"sandgate.term.v1"},
	})
	if err != nil {
		return nil, err
	}
	if t.text, err = t.read(); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// shell opens a terminal in a sandbox, connects, and waits for the prompt that the others look for.
func (s *server) shell(ctx context.Context, id string) (t *terminal, pty string, err error) {
	if pty, err = s.openTerminal(id); err != nil {
		return nil, "", err
	}
	if t, err = s.view(ctx, id, pty); err != nil {
		return nil, "", err
	}
	if _, err = t.do(setPrompt, prompt); err != nil {
		t.close()
		return nil, "", err
	}
	return t, pty, nil
}

// terminadoDialect is JSON: arrays whose first element says what they are.
type terminadoDialect struct{}

func (terminadoDialect) input(text string) (websocket.MessageType, []byte) {
	p, _ := json.Marshal([]string{"stdin", text}) // of strings it does not fail
	return websocket.MessageText, p
}

func (terminadoDialect) output(_ websocket.MessageType, p []byte) (text, answer []byte, err error) {
	var message []json.RawMessage
	if err := json.Unmarshal(p, &message); err != nil {
		return nil, nil, err
	}
	if len(message) != 2 || string(message[0]) != `"stdout"` {
		return nil, nil, nil
	}
	var s string
	err = json.Unmarshal(message[1], &s)
	return []byte(s), nil, err
}

// shell connects, which opens a terminal, and waits for the prompt.
func (t *terminado) shell(ctx context.Context) (*terminal, error) {
	client, err := dial(ctx, t.url, terminadoDialect{}, nil)
	if err != nil {
		return nil, err
	}
	if _, err := client.do(setPrompt, prompt); err != nil {
		client.close()
		return nil, err
	}
	return client, nil
}
