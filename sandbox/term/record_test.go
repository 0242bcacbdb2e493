package term

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

// tape is a sink that keeps everything.
type tape struct {
	mu    sync.Mutex
	out   []byte
	next  int64
	story []string // everything but output, with the bytes that had come before
	fail  error
	hold  chan struct{} // Output waits for it
	syncs int
}

func (p *tape) note(format string, args ...any) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.story = append(p.story, fmt.Sprintf("%d ", len(p.out))+fmt.Sprintf(format, args...))
	return p.fail
}

func (p *tape) Output(_ time.Time, off int64, b []byte) error {
	if p.hold != nil {
		<-p.hold
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if off != p.next {
		p.story = append(p.story, fmt.Sprintf("%d gap %d", len(p.out), off-p.next))
	}
	p.out = append(p.out, b...)
	p.next = off + int64(len(b))
	return p.fail
}

func (p *tape) Skip(_ time.Time, off int64, why string) error {
	p.mu.Lock()
	p.next = off
	p.mu.Unlock()
	return p.note("skip %d %s", off, why)
}
func (p *tape) Resize(_ time.Time, cols, rows int) error { return p.note("r %dx%d", cols, rows) }
func (p *tape) Input(_ time.Time, b []byte) error        { return p.note("i %s", b) }
func (p *tape) Mark(_ time.Time, label string) error     { return p.note("m %s", label) }
func (p *tape) Flush() error                             { return nil }
func (p *tape) Sync() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.syncs++
	return nil
}

func (p *tape) has() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return string(p.out)
}

func (p *tape) told() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.story, "\n")
}

// recording is one under way.
type recording struct {
	*tape
	stop func()
	done chan struct{}
	exit *agent.Exit
	err  error
}

func (r *rig) record(since int64, input bool, p *tape) *recording {
	ctx, cancel := context.WithCancel(context.Background())
	out := &recording{tape: p, stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(out.done)
		out.exit, out.err = r.hub.Record(ctx, testID, testPTY, since, input, p)
	}()
	r.t.Cleanup(func() {
		cancel()
		out.over(r.t)
	})
	r.until(func() bool {
		select {
		case <-out.done:
			return true
		default:
			return r.session() != nil
		}
	}, "the recording to begin")
	return out
}

func (p *recording) over(t *testing.T) {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(soon):
		t.Fatal("the recording did not end")
	}
}

func TestRecordsWhenNobodyLooks(t *testing.T) {
	r := newRig(t)
	r.hub.times.linger = time.Millisecond
	r.f.prints("earlier\r\n")
	p := r.record(-1, false, &tape{})
	r.until(func() bool { return p.has() == "earlier\r\n" }, "what was there")
	w := r.opened(typist)
	r.until(func() bool { return len(w.find("recording")) == 1 }, "viewers are told")
	w.types("id\r")
	r.until(func() bool { return r.f.typed() == "id\r" }, "input")
	w.leave()
	r.until(func() bool { return len(r.session().viewersNow()) == 0 }, "nobody looks")
	for i := range 100 {
		r.f.prints(fmt.Sprintf("line %d\r\n", i))
	}
	r.until(func() bool { return strings.HasSuffix(p.has(), "line 99\r\n") }, "output")
	r.f.do(func() {
		r.f.out = append(r.f.out, "LAST"...)
		r.f.exit = &agent.Exit{Code: 7}
	})
	p.over(t)
	require.NoError(t, p.err)
	require.Equal(t, 7, p.exit.Code)
	require.Equal(t, string(r.f.out), p.has())
	require.Equal(t, "0 r 80x24\n9 m driver: ann", p.told(), "no input unless asked for")
	r.until(func() bool { return r.f.attached() == 0 }, "the attachment to go")
}

func (s *session) viewersNow() []*viewer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.viewers
}

func TestRecordsSizesInputAndMarkersInTheirPlaces(t *testing.T) {
	r := newRig(t)
	p := r.record(-1, true, &tape{})
	r.f.prints("ab")
	r.until(func() bool { return p.has() == "ab" }, "output")
	w := r.opened(typist)
	w.types("x")
	r.until(func() bool { return strings.Contains(p.told(), "2 i x") }, "input")
	r.f.do(func() {
		r.f.sizes = append(r.f.sizes, sizeMark{int64(len(r.f.out)), agent.Size{Cols: 100, Rows: 30}})
		r.f.out = append(r.f.out, "cd"...)
	})
	r.until(func() bool { return p.has() == "abcd" }, "output")
	r.hub.Mark(testID, "", "approved: rm")
	r.hub.Mark(testID, "ptybbbbbbbbbbbbbbbbbbbb", "elsewhere")
	r.until(func() bool { return strings.Contains(p.told(), "4 m approved: rm") }, "marker")
	p.stop()
	p.over(t)
	require.ErrorIs(t, p.err, context.Canceled)
	require.Equal(t, "0 r 80x24\n2 m driver: ann\n2 i x\n2 r 100x30\n4 m approved: rm", p.told())
	r.until(func() bool { l := w.find("recording"); return len(l) == 2 && l[1]["on"] == false }, "viewers are told")
}

// A bridge that breaks, a server that starts again: the recording goes on where it was.
func TestRecordingGoesOnAtItsOffset(t *testing.T) {
	r := newRig(t)
	r.f.prints("0123456789")
	p := r.record(4, false, &tape{next: 4})
	r.until(func() bool { return p.has() == "456789" }, "from the offset")
	r.f.breakBridges()
	r.f.prints("abc")
	r.until(func() bool { return p.has() == "456789abc" }, "after a lost bridge")
	require.Equal(t, "0 r 80x24", p.told())
	r.hub.Shutdown()
	p.over(t)
	var end *CloseError
	require.ErrorAs(t, p.err, &end)
	require.Equal(t, CloseStopping, end.Code)
	require.Positive(t, p.syncs) // at the end, and each second before

	again := newRig(t)
	again.f.prints("0123456789abcdef")
	q := again.record(13, false, &tape{next: 13})
	again.until(func() bool { return q.has() == "def" }, "the rest")
}

func TestAGapOfTheRingReachesTheRecording(t *testing.T) {
	r := newRig(t)
	r.f.do(func() {
		r.f.out = []byte("0123456789")
		r.f.oldest = 6
	})
	p := r.record(2, false, &tape{next: 2})
	r.until(func() bool { return p.has() == "6789" }, "what is left")
	require.Contains(t, p.told(), "0 gap 4")
}

func TestARecordingAheadOfItsTerminalSaysSo(t *testing.T) {
	r := newRig(t)
	r.f.prints("0123")
	p := r.record(50, false, &tape{next: 50})
	r.until(func() bool { return strings.Contains(p.told(), "skip 4 ") }, "the way back")
	r.f.prints("new")
	r.until(func() bool { return p.has() == "new" }, "what comes from then on")
}

func TestADrainAtTheSandboxesEnd(t *testing.T) {
	r := newRig(t)
	hold := make(chan struct{})
	p := r.record(-1, false, &tape{hold: hold})
	r.f.print(bytes.Repeat([]byte("x"), 200_000))
	r.until(func() bool { return r.session().nextOffset() == 200_000 }, "the ring")
	r.hub.Drop(testID, "killed")
	close(hold)
	p.over(t)
	var end *CloseError
	require.ErrorAs(t, p.err, &end)
	require.Equal(t, CloseGone, end.Code)
	require.Len(t, p.has(), 200_000)
}

// One that ends before it has settled is on record as far as it was read.
func TestAnEndBeforeItHasSettled(t *testing.T) {
	for since, want := range map[int64]string{-1: "0123", 2: "23", 50: ""} {
		s := newSession(NewHub(nil), key{testID, testPTY})
		s.takeOutput(0, []byte("0123"))
		p := &tape{next: max(0, since)}
		r := &recorder{s: s, sink: p, since: since}
		s.stop(&CloseError{CloseGone, "killed"})
		_, err := r.run(t.Context())
		var end *CloseError
		require.ErrorAs(t, err, &end)
		require.Equal(t, want, p.has(), since)
		require.NotContains(t, p.told(), "skip")
	}
}

// A disk that hangs holds the program up for a moment, then it runs on.
func TestASlowRecorderIsWaitedForButNotForEver(t *testing.T) {
	r := newRig(t)
	r.hub.times.driverStop = 20 * time.Millisecond
	hold := make(chan struct{})
	p := r.record(-1, false, &tape{hold: hold})
	total := 6 << 20
	r.f.print(bytes.Repeat([]byte("0123456789abcdef"), total/16))
	r.until(func() bool { return r.session().nextOffset() == int64(total) }, "all of it")
	close(hold)
	r.until(func() bool { return p.reached() == int64(total) }, "the end")
	require.Contains(t, p.told(), " gap ")
}

func (p *tape) reached() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.next
}

func TestASinkThatFailsEndsTheRecordingAlone(t *testing.T) {
	r := newRig(t)
	w := r.opened(typist)
	p := r.record(-1, false, &tape{fail: errors.New("disk full")})
	p.over(t)
	require.ErrorContains(t, p.err, "disk full")
	r.f.prints("on")
	r.shows(w, "on")
	r.hub.Disconnect(testID, testPTY, &CloseError{CloseTooSlow, "not recorded"})
	r.ended(w, CloseTooSlow)
}

func TestARecordingWaitsForASleepingSandbox(t *testing.T) {
	r := newRig(t)
	var asleep atomic.Bool
	asleep.Store(true)
	attach := r.hub.attach
	r.hub.attach = func(ctx context.Context, id sandbox.ID, pty string, since int64) (agent.Attachment, error) {
		if asleep.Load() {
			return nil, fmt.Errorf("%w: test", sandbox.ErrAsleep)
		}
		return attach(ctx, id, pty, since)
	}
	p := r.record(2, false, &tape{next: 2})
	r.f.prints("0123")
	asleep.Store(false)
	r.until(func() bool { r.hub.Awake(testID); return p.has() == "23" }, "output")
}

func TestATerminalHasOneRecording(t *testing.T) {
	r := newRig(t)
	p := r.record(-1, false, &tape{})
	r.f.prints("x")
	r.until(func() bool { return p.has() == "x" }, "output")
	_, err := r.hub.Record(context.Background(), testID, testPTY, -1, false, &tape{})
	require.ErrorContains(t, err, "already")
}
