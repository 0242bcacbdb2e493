package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/coder/websocket"
	"golang.org/x/term"
)

type shCmd struct {
	remote `embed:""`
	ID     string `arg:"" help:"The sandbox."`
}

// Sizes of the terminal protocol (docs/terminal.md).
const (
	offsetBytes = 8
	ackEvery    = 32 << 10
	inputChunk  = 32 << 10
)

// Run opens a terminal in the sandbox and carries it until its program ends; its exit code is ours.
func (c *shCmd) Run(e *env) error {
	stdin, ok := e.stdin.(*os.File)
	if !ok || !term.IsTerminal(int(stdin.Fd())) {
		return errors.New("sh needs a terminal; for scripts there is `sandgate run ID -- COMMAND`")
	}
	cols, rows, err := term.GetSize(int(stdin.Fd()))
	if err != nil {
		return err
	}
	pty, err := c.open(e, cols, rows)
	if err != nil {
		return err
	}
	path := "/v1/sandboxes/" + url.PathEscape(c.ID) + "/ptys/" + pty + "/ws?since=0"
	conn, resp, err := websocket.Dial(e.ctx, strings.TrimRight(c.URL, "/")+path, &websocket.DialOptions{
		Subprotocols: []string{"sandgate.term.v1"}, HTTPHeader: http.Header{"X-Api-Key": {c.Key}},
	})
	if resp != nil && resp.Body != nil {
		_ = resp.Body.Close()
	}
	if err != nil {
		return err
	}
	defer func() { _ = conn.CloseNow() }()
	conn.SetReadLimit(8 << 20) // a snapshot is one message

	old, err := term.MakeRaw(int(stdin.Fd()))
	if err != nil {
		return err
	}
	code, err := c.carry(e, conn, stdin)
	_ = term.Restore(int(stdin.Fd()), old)
	if err != nil {
		return err
	}
	if code != 0 {
		return exitError(code)
	}
	return nil
}

func (c *shCmd) open(e *env, cols, rows int) (string, error) {
	resp, err := c.call(e, http.MethodPost, "/v1/sandboxes/"+url.PathEscape(c.ID)+"/ptys", "application/json", map[string]int{"cols": cols, "rows": rows})
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	var pty struct{ ID string }
	return pty.ID, json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&pty)
}

// carry copies both ways until the terminal exits; the copiers end with the connection.
func (c *shCmd) carry(e *env, conn *websocket.Conn, stdin *os.File) (code int, err error) {
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	go func() { // ends with the process at the latest: a read of a terminal cannot be interrupted
		buf := make([]byte, 1+inputChunk)
		for {
			n, err := stdin.Read(buf[1:])
			if n > 0 && conn.Write(ctx, websocket.MessageBinary, buf[:1+n]) != nil || err != nil {
				return
			}
		}
	}()
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-resized:
				if cols, rows, err := term.GetSize(int(stdin.Fd())); err == nil {
					_ = send(ctx, conn, map[string]any{"type": "resize", "cols": cols, "rows": rows})
				}
			}
		}
	}()
	var acked, seen uint64
	for {
		kind, msg, err := conn.Read(ctx)
		if err != nil {
			return 0, closedWords(err)
		}
		if kind == websocket.MessageText {
			var m struct {
				Type, Text string
				Code       int
			}
			if json.Unmarshal(msg, &m) == nil && m.Type == "exit" {
				return m.Code, nil
			}
			continue
		}
		if len(msg) < 1+offsetBytes {
			continue
		}
		out := msg[1+offsetBytes:]
		if _, err := e.stdout.Write(out); err != nil {
			return 0, err
		}
		seen = binary.BigEndian.Uint64(msg[1:])
		if msg[0] == 1 { // a snapshot's offset is where output continues, an output's is where it begins
			seen += uint64(len(out))
		}
		if seen-acked >= ackEvery || msg[0] != 1 {
			acked = seen
			if err := send(ctx, conn, map[string]any{"type": "ack", "offset": seen}); err != nil {
				return 0, err
			}
		}
	}
}

func send(ctx context.Context, conn *websocket.Conn, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return conn.Write(ctx, websocket.MessageText, b)
}

// closedWords prefers the reason that the server gave.
func closedWords(err error) error {
	if ce, ok := errors.AsType[websocket.CloseError](err); ok && ce.Reason != "" {
		return fmt.Errorf("the terminal was closed: %s", ce.Reason)
	}
	return err
}
