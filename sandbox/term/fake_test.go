package term

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

const (
	testID  = sandbox.ID("sbaaaaaaaaaaaaaaaaaaaa")
	testPTY = "ptyaaaaaaaaaaaaaaaaaaaa"
	soon    = 60 * time.Second
)

var errBridge = errors.New("bridge broke")

// fakeTerm is a terminal as the agent keeps it: a ring with offsets, sizes in order, an exit.
type fakeTerm struct {
	mu      sync.Mutex
	cond    *sync.Cond
	out     []byte
	oldest  int
	sizes   []sizeMark
	exit    *agent.Exit
	input   []byte
	signals []string
	blocked bool // Input does not return
	refuse  error
	refused bool // the next event says that input was refused
	err     error
	atts    map[*fakeAtt]bool
	opened  int
}

func newFakeTerm() *fakeTerm {
	f := &fakeTerm{atts: map[*fakeAtt]bool{}, sizes: []sizeMark{{0, agent.Size{Cols: 80, Rows: 24}}}}
	f.cond = sync.NewCond(&f.mu)
	return f
}

func (f *fakeTerm) do(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	f.cond.Broadcast()
}

func (f *fakeTerm) print(p []byte)  { f.do(func() { f.out = append(f.out, p...) }) }
func (f *fakeTerm) prints(s string) { f.print([]byte(s)) }

// breakBridges ends all attachments without an exit.
func (f *fakeTerm) breakBridges() {
	f.do(func() {
		for a := range f.atts {
			a.broken = true
		}
	})
}

func (f *fakeTerm) typed() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return string(f.input)
}

func (f *fakeTerm) size() agent.Size {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sizes[len(f.sizes)-1].size
}

func (f *fakeTerm) attached() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.atts)
}

func (f *fakeTerm) attach(_ context.Context, _ sandbox.ID, _ string, since int64) (agent.Attachment, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, f.err
	}
	f.opened++
	a := &fakeAtt{f: f, pos: max(int(since), f.oldest)}
	f.atts[a] = true
	return Replayed(a, int64(len(f.out))), nil
}

// fakeAtt is one attachment.
type fakeAtt struct {
	f      *fakeTerm
	pos    int
	sized  int
	said   bool
	broken bool
	closed bool
	buf    [4096]byte
}

func (a *fakeAtt) Next() (agent.PTYEvent, error) {
	f := a.f
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		if a.broken || a.closed {
			return agent.PTYEvent{}, errBridge
		}
		if f.refused {
			f.refused = false
			return agent.PTYEvent{Refused: true}, nil
		}
		a.pos = max(a.pos, f.oldest)
		end := len(f.out)
		if a.sized < len(f.sizes) {
			if m := f.sizes[a.sized]; int(m.off) <= a.pos {
				a.sized++
				return agent.PTYEvent{Size: &m.size}, nil
			}
			end = int(f.sizes[a.sized].off)
		}
		if a.pos < end {
			n := copy(a.buf[:], f.out[a.pos:end])
			ev := agent.PTYEvent{Offset: int64(a.pos), Output: a.buf[:n]}
			a.pos += n
			return ev, nil
		}
		if f.exit != nil {
			if a.said {
				return agent.PTYEvent{}, io.EOF
			}
			a.said = true
			return agent.PTYEvent{Exit: f.exit}, nil
		}
		f.cond.Wait()
	}
}

func (a *fakeAtt) Input(p []byte) error {
	f := a.f
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.blocked && !a.closed && !a.broken {
		f.cond.Wait()
	}
	if a.closed || a.broken {
		return errBridge
	}
	if f.refuse != nil {
		return f.refuse
	}
	f.input = append(f.input, p...)
	f.cond.Broadcast()
	return nil
}

func (a *fakeAtt) Resize(cols, rows int) error {
	a.f.do(func() {
		a.f.sizes = append(a.f.sizes, sizeMark{int64(len(a.f.out)), agent.Size{Cols: cols, Rows: rows}})
	})
	return nil
}

func (a *fakeAtt) Signal(name string) error {
	a.f.do(func() { a.f.signals = append(a.f.signals, name) })
	return nil
}

func (a *fakeAtt) Close() error {
	a.f.do(func() {
		a.closed = true
		delete(a.f.atts, a)
	})
	return nil
}

type message struct {
	binary bool
	p      []byte
}

// fakeConn is a browser: it reads what it is sent unless it is stalled, keeps it, and acknowledges it.
type fakeConn struct {
	t      *testing.T
	toHub  chan message
	closed chan struct{}

	mu      sync.Mutex
	cond    *sync.Cond
	stalled bool // the network takes nothing
	silent  bool // nothing is acknowledged
	keep    bool // output is kept as a whole
	got     []byte
	base    int64 // offset of got[0]
	next    int64
	seen    bool // an output or snapshot has come
	frames  int
	biggest int
	unacked int64
	acked   int64
	snaps   [][]byte
	json    []map[string]any
	code    int
	reason  string
	order   []string // kinds of frames as they came
}

func newFakeConn(t *testing.T) *fakeConn {
	c := &fakeConn{t: t, toHub: make(chan message, 4096), closed: make(chan struct{}), keep: true}
	c.cond = sync.NewCond(&c.mu)
	return c
}

func (c *fakeConn) Read(ctx context.Context) (bool, []byte, error) {
	select {
	case m := <-c.toHub:
		return m.binary, m.p, nil
	case <-c.closed:
		return false, nil, io.EOF
	case <-ctx.Done():
		return false, nil, ctx.Err()
	}
}

func (c *fakeConn) Write(ctx context.Context, isBinary bool, p []byte) error {
	defer context.AfterFunc(ctx, func() { c.do(func() {}) })()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.stalled && ctx.Err() == nil && c.code == 0 {
		c.cond.Wait()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if c.code != 0 {
		return io.ErrClosedPipe
	}
	defer c.cond.Broadcast()
	if !isBinary {
		m := map[string]any{}
		if json.Unmarshal(p, &m) != nil {
			c.t.Errorf("not JSON: %q", p)
		}
		c.json = append(c.json, m)
		kind, _ := m["type"].(string)
		c.order = append(c.order, kind)
		return nil
	}
	off, body := int64(binary.BigEndian.Uint64(p[1:])), p[headerSize:]
	switch p[0] {
	case frameSnapshot:
		c.order = append(c.order, "snapshot")
		c.snaps = append(c.snaps, append([]byte{}, body...))
		c.got, c.base, c.next, c.acked = nil, off, off, off
		c.unacked += int64(len(body))
	case frameOutput:
		c.order = append(c.order, "output")
		if c.seen && off != c.next {
			c.t.Errorf("output at %d, expected %d", off, c.next)
		}
		if !c.seen {
			c.base = off
		}
		if c.keep {
			c.got = append(c.got, body...)
		}
		c.next = off + int64(len(body))
		c.unacked += int64(len(body))
		c.frames++
		c.biggest = max(c.biggest, len(p))
	default:
		c.t.Errorf("frame of kind %d", p[0])
	}
	c.seen = true
	if c.unacked > credit {
		c.t.Errorf("%d bytes unacknowledged", c.unacked)
	}
	if !c.silent && c.unacked >= 48<<10 {
		c.ackLocked()
	}
	return nil
}

func (c *fakeConn) ackLocked() {
	c.unacked = 0
	p, _ := json.Marshal(map[string]any{"type": "ack", "offset": c.next})
	select {
	case c.toHub <- message{false, p}:
	default:
	}
}

func (c *fakeConn) Close(code int, reason string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.code == 0 {
		c.code, c.reason = code, reason
		close(c.closed)
	}
	c.cond.Broadcast()
	return nil
}

func (c *fakeConn) do(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	c.cond.Broadcast()
}

// leave is the browser's tab being shut.
func (c *fakeConn) leave() { _ = c.Close(1005, "tab shut") }

func (c *fakeConn) sends(v any) {
	p, err := json.Marshal(v)
	require.NoError(c.t, err)
	c.toHub <- message{false, p}
}

func (c *fakeConn) types(s string) { c.toHub <- message{true, append([]byte{frameInput}, s...)} }

// text is everything painted: output since the newest snapshot.
func (c *fakeConn) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.got)
}

// snapshots gives all snapshots that came.
func (c *fakeConn) snapshots() [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.snaps[:len(c.snaps):len(c.snaps)]
}

// reached is the offset after the newest byte that came.
func (c *fakeConn) reached() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.next
}

func (c *fakeConn) find(kind string) []map[string]any {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []map[string]any
	for _, m := range c.json {
		if m["type"] == kind {
			found = append(found, m)
		}
	}
	return found
}

func (c *fakeConn) role() string {
	for _, kind := range []string{"role", "hello"} {
		if m := c.find(kind); len(m) > 0 {
			role, _ := m[len(m)-1]["role"].(string)
			return role
		}
	}
	return ""
}

func (c *fakeConn) notices(code string) int {
	n := 0
	for _, m := range c.find("notice") {
		if m["code"] == code {
			n++
		}
	}
	return n
}

// view is a viewer that is being served.
type view struct {
	*fakeConn
	cancel context.CancelCauseFunc
	done   chan error
}

// rig is a hub before one fake terminal.
type rig struct {
	t   *testing.T
	hub *Hub
	f   *fakeTerm
}

func newRig(t *testing.T) *rig {
	t.Helper()
	f := newFakeTerm()
	r := &rig{t: t, f: f, hub: NewHub(f.attach)}
	r.hub.times.linger = 20 * time.Millisecond
	r.hub.times.retry = time.Millisecond
	t.Cleanup(func() {
		r.hub.Shutdown()
		require.Zero(t, f.attached(), "attachments left")
	})
	return r
}

func (r *rig) open(v Viewer, change ...func(*fakeConn)) *view {
	r.t.Helper()
	c := newFakeConn(r.t)
	for _, f := range change {
		f(c)
	}
	ctx, cancel := context.WithCancelCause(r.t.Context())
	w := &view{fakeConn: c, cancel: cancel, done: make(chan error, 1)}
	go func() { w.done <- r.hub.Serve(ctx, testID, testPTY, v, c, nil) }()
	return w
}

// opened waits for the hello as well, and for the snapshot that follows where the viewer has seen nothing yet: what is
// printed before it becomes part of it instead of output.
func (r *rig) opened(v Viewer, change ...func(*fakeConn)) *view {
	r.t.Helper()
	w := r.open(v, change...)
	r.until(func() bool { return len(w.find("hello")) == 1 }, "hello")
	if v.Since < 0 {
		r.until(func() bool { return len(w.snapshots()) > 0 }, "first snapshot")
	}
	return w
}

func (r *rig) until(cond func() bool, what string) {
	r.t.Helper()
	require.Eventually(r.t, cond, soon, time.Millisecond, what)
}

// caughtUp waits until the hub has read all that the terminal printed.
func (r *rig) caughtUp() {
	r.t.Helper()
	s := r.session()
	r.until(func() bool {
		r.f.mu.Lock()
		defer r.f.mu.Unlock()
		return s.nextOffset() == int64(len(r.f.out))
	}, "the hub to read everything")
}

func (r *rig) session() *session {
	r.hub.mu.Lock()
	defer r.hub.mu.Unlock()
	return r.hub.sessions[key{testID, testPTY}]
}

func (r *rig) shows(w *view, text string) {
	r.t.Helper()
	r.until(func() bool { return w.text() == text }, "output "+text)
}

func (r *rig) ended(w *view, code int) {
	r.t.Helper()
	select {
	case <-w.done:
	case <-time.After(soon):
		require.Fail(r.t, "the viewer did not end")
	}
	require.Equal(r.t, code, w.code, w.reason)
	require.LessOrEqual(r.t, len(w.reason), 120)
}

var (
	typist  = Viewer{Name: "ann", MayType: true, Since: -1}
	typist2 = Viewer{Name: "bob", MayType: true, Since: -1}
	watcher = Viewer{Name: "eve", Since: -1}
)
