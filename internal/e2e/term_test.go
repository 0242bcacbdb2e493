package e2e

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
)

// viewer is a scripted terminal: it reads frames in the background, acknowledges them, and keeps all output.
type viewer struct {
	t    *testing.T
	conn *websocket.Conn

	mu       sync.Mutex
	out      []byte // output and snapshots, in order
	next     int64  // offset after the last byte of output
	snapshot []byte
	role     string // as it was told last
	closed   error
	changed  chan struct{}
}

// view connects to a terminal; query is "" or "?since=N".
func (r rest) view(id, pty, query string) *viewer {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	url := "ws" + strings.TrimPrefix(r.url, "http") + "/v1/sandboxes/" + id + "/ptys/" + pty + "/ws" + query
	conn, _, err := websocket.Dial(ctx, url, &websocket.DialOptions{
		HTTPHeader: http.Header{"X-API-Key": {r.key}}, Subprotocols: []string{"sandgate.term.v1"},
	})
	require.NoError(r.t, err)
	require.Equal(r.t, "sandgate.term.v1", conn.Subprotocol())
	conn.SetReadLimit(8 << 20)
	v := &viewer{t: r.t, conn: conn, changed: make(chan struct{}, 1)}
	life, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); v.read(life) }()
	r.t.Cleanup(func() { stop(); _ = conn.CloseNow(); <-done })
	return v
}

func (v *viewer) read(ctx context.Context) {
	for {
		kind, p, err := v.conn.Read(ctx)
		v.mu.Lock()
		var ack int64
		switch {
		case err != nil:
			v.closed = err
		case kind == websocket.MessageBinary && len(p) >= 9:
			offset := int64(binary.BigEndian.Uint64(p[1:9]))
			v.out = append(v.out, p[9:]...)
			if p[0] == 0x02 {
				v.snapshot, v.next = append([]byte(nil), p[9:]...), offset
			} else {
				v.next = offset + int64(len(p)-9)
			}
			ack = v.next
		case kind == websocket.MessageText:
			var m struct{ Role string }
			if json.Unmarshal(p, &m) == nil && m.Role != "" {
				v.role = m.Role
			}
		}
		v.mu.Unlock()
		select {
		case v.changed <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
		if ack > 0 {
			b, _ := json.Marshal(map[string]any{"type": "ack", "offset": ack})
			if v.conn.Write(ctx, websocket.MessageText, b) != nil {
				return
			}
		}
	}
}

func (v *viewer) send(kind websocket.MessageType, p []byte) {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	require.NoError(v.t, v.conn.Write(ctx, kind, p))
}

// drives waits for the seat: one who left may be in it for another moment, and nobody else's keys count.
func (v *viewer) drives() *viewer {
	v.t.Helper()
	v.until("the seat", func() bool { return v.role == "driver" })
	return v
}

func (v *viewer) typeText(s string) {
	v.t.Helper()
	v.send(websocket.MessageBinary, append([]byte{0}, s...))
}

// until waits for a state of the viewer.
func (v *viewer) until(what string, cond func() bool) {
	v.t.Helper()
	deadline := time.After(time.Minute)
	for {
		v.mu.Lock()
		ok, out, closed := cond(), string(v.out), v.closed
		v.mu.Unlock()
		if ok {
			return
		}
		if len(out) > 4096 {
			out = out[len(out)-4096:]
		}
		select {
		case <-v.changed:
			if closed != nil {
				require.Fail(v.t, "closed while waiting for "+what, "%v; output %q", closed, out)
			}
		case <-deadline:
			require.Fail(v.t, "no "+what+" in time", "closed: %v; output %q", closed, out)
		}
	}
}

// sees waits for text in the output since the last call of forget.
func (v *viewer) sees(text string) {
	v.t.Helper()
	v.until(text, func() bool { return strings.Contains(string(v.out), text) })
}

// interrupt presses ^C until text shows up. One that falls between two programs of a loop may reach neither, here as at any
// terminal; whoever sits there presses it again.
func (v *viewer) interrupt(text string) {
	v.t.Helper()
	deadline, again := time.After(20*time.Second), time.NewTicker(time.Second)
	defer again.Stop()
	v.typeText("\x03")
	for !strings.Contains(v.text(), text) {
		select {
		case <-v.changed:
		case <-again.C:
			v.typeText("\x03")
		case <-deadline:
			require.Fail(v.t, "no "+text+" after ^C", "output %q", v.text())
		}
	}
}

func (v *viewer) forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.out = nil
}

func (v *viewer) text() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return string(v.out)
}

func (v *viewer) offset() int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.next
}

// closedWith waits for the end and gives its close code.
func (v *viewer) closedWith() websocket.StatusCode {
	v.t.Helper()
	v.until("close", func() bool { return v.closed != nil })
	return websocket.CloseStatus(v.closed)
}
