package term

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

func TestFirstViewerGetsHelloSnapshotAndOutput(t *testing.T) {
	r := newRig(t)
	r.f.prints("earlier\r\n")
	w := r.opened(typist)
	require.Equal(t, map[string]any{
		"type": "hello", "role": "driver", "cols": 80.0, "rows": 24.0, "oldest": 0.0, "next": 9.0,
		"driver": "ann",
	}, w.find("hello")[0])
	r.until(func() bool { return len(w.snapshots()) == 1 }, "snapshot")
	require.Contains(t, string(w.snapshots()[0]), "earlier\r\n")
	r.f.prints("$ ")
	r.shows(w, "$ ")
	w.types("id\r")
	r.until(func() bool { return r.f.typed() == "id\r" }, "input")
	require.Equal(t, []string{"hello", "snapshot", "output"}, w.order)
}

func TestExitComesAfterTheLastOutput(t *testing.T) {
	r := newRig(t)
	w := r.opened(typist)
	tail := strings.Repeat("line\r\n", 100_000) + "TAIL"
	r.f.do(func() {
		r.f.out = append(r.f.out, tail...)
		r.f.exit = &agent.Exit{Code: 137, Signal: "KILL"}
	})
	r.ended(w, CloseExited)
	require.True(t, strings.HasSuffix(w.text(), "TAIL"))
	require.Equal(t, []map[string]any{{"type": "exit", "code": 137.0, "signal": "KILL"}}, w.find("exit"))
	require.Equal(t, "exit", w.order[len(w.order)-1])

	late := r.open(watcher)
	r.ended(late, CloseExited)
	require.Contains(t, string(late.snapshots()[0]), "TAIL")
	r.until(func() bool { return r.f.attached() == 0 }, "the attachment to go with the last viewer")
}

func TestEveryByteValuePasses(t *testing.T) {
	r := newRig(t)
	w := r.opened(typist)
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	r.f.print(all)
	r.shows(w, string(all))
	w.types(string(all))
	r.until(func() bool { return r.f.typed() == string(all) }, "input")
}

func TestLoneFirstByteOfACharacterPassesAfterAWhile(t *testing.T) {
	r := newRig(t)
	r.hub.times.partial = 5 * time.Millisecond
	w := r.opened(typist)
	r.f.print([]byte{0xe2})
	r.shows(w, "\xe2")
	r.f.print([]byte{0xff})
	r.shows(w, "\xe2\xff")
}

func TestFramesEndBetweenCharacters(t *testing.T) {
	r := newRig(t)
	r.hub.times.partial = time.Hour
	w := r.opened(typist)
	r.until(func() bool { return len(w.snapshots()) == 1 }, "snapshot")
	r.f.print([]byte("A\xe2\x80"))
	r.shows(w, "A")
	r.f.print([]byte("\x94B\xf0\x90\x80"))
	r.shows(w, "A—B")
	r.f.print([]byte("\x80"))
	r.shows(w, "A—B\xf0\x90\x80\x80")
	r.f.do(func() { r.f.out = append(r.f.out, 0xe3); r.f.exit = &agent.Exit{} })
	r.ended(w, CloseExited) // at the end nothing is held back
	require.True(t, strings.HasSuffix(w.text(), "\xe3"))

	// Long runs of characters of every width: no frame ends inside one.
	r2 := newRig(t)
	w2 := r2.opened(typist, func(c *fakeConn) { c.keep = true })
	text := strings.Repeat("aé漢😀", 50_000)
	r2.f.prints(text)
	r2.until(func() bool { return len(w2.text()) == len(text) }, "all output")
	require.Equal(t, text, w2.text())
	require.LessOrEqual(t, w2.biggest, maxFrame)
}

func TestTwentyViewersOneStalled(t *testing.T) {
	r := newRig(t)
	r.hub.times.write = 200 * time.Millisecond
	views := []*view{r.opened(typist, func(c *fakeConn) { c.keep = false })}
	for i := range 18 {
		views = append(views, r.opened(Viewer{Name: fmt.Sprint("v", i), Since: -1}, func(c *fakeConn) { c.keep = false }))
	}
	stalled := r.opened(watcher)
	stalled.do(func() { stalled.stalled = true })

	block := bytes.Repeat([]byte("0123456789abcdef\r\n"), 4096)
	total := 0
	for range 120 { // 9 MB, two rings full
		r.f.print(block)
		total += len(block)
		r.until(func() bool {
			return views[0].reached() > int64(total-(2<<20))
		}, "the driver to keep up")
	}
	for _, w := range views {
		r.until(func() bool { return w.reached() == int64(total) }, "all output")
	}
	r.ended(stalled, CloseTooSlow)
	driver, others := r.hub.Viewers(testID, testPTY)
	require.Equal(t, "ann", driver)
	require.Len(t, others, 18)
}

func TestSlowViewerGetsASnapshotInsteadOfAGap(t *testing.T) {
	r := newRig(t)
	w := r.opened(watcher)
	r.until(func() bool { return len(w.snapshots()) == 1 }, "snapshot")
	w.do(func() { w.silent = true })
	r.f.prints(strings.Repeat("x", credit/2) + "\r\n")
	r.until(func() bool { return len(w.text()) > credit/2 }, "output within the credit")
	r.f.prints(strings.Repeat("0123456789\r\n", (agent.DefaultRing+1<<20)/12) + "the end")
	r.caughtUp()
	require.Len(t, w.snapshots(), 1)
	w.do(func() {
		w.silent = false
		w.ackLocked()
	})
	r.until(func() bool { return len(w.snapshots()) == 2 }, "second snapshot")
	require.Contains(t, string(w.snapshots()[1]), "0123456789\r\nthe end")
	require.LessOrEqual(t, len(w.snapshots()[1]), maxSnapshot)
	r.f.prints(" and on")
	r.shows(w, " and on")
}

func TestViewerWithoutAcknowledgementsIsGivenUp(t *testing.T) {
	r := newRig(t)
	r.hub.times.starve = 10 * time.Millisecond
	w := r.opened(watcher, func(c *fakeConn) { c.silent = true })
	r.f.prints(strings.Repeat("y\r\n", credit))
	r.ended(w, CloseTooSlow)
	require.LessOrEqual(t, len(w.text()), credit)
}

func TestReconnectByOffsetIsExact(t *testing.T) {
	r := newRig(t)
	r.hub.times.linger = time.Minute
	want, got := sha256.New(), sha256.New()
	stop, finished := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(finished)
		tick := time.NewTicker(50 * time.Microsecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-tick.C:
				line := fmt.Appendf(nil, "n%d é漢\n", i)
				want.Write(line)
				r.f.print(line)
			}
		}
	}()
	next := int64(0)
	for range 100 {
		v := typist
		v.Since = next
		w := r.opened(v)
		from := next
		r.until(func() bool { return w.reached() > from+10 }, "some output")
		w.leave()
		<-w.done
		require.Empty(t, w.snapshots())
		require.Equal(t, from, w.base)
		got.Write(w.got)
		next = w.next
	}
	close(stop)
	<-finished
	v := typist
	v.Since = next
	w := r.opened(v)
	r.until(func() bool { return max(next, w.reached()) == int64(len(r.f.out)) }, "the rest")
	got.Write([]byte(w.text()))
	require.Equal(t, want.Sum(nil), got.Sum(nil))
}

func TestOffsetsOutsideTheRingGetASnapshot(t *testing.T) {
	r := newRig(t)
	r.f.prints("abc\r\n")
	for _, since := range []int64{-1, -5, 6, 1 << 60} {
		v := watcher
		v.Since = since
		w := r.opened(v)
		r.until(func() bool { return len(w.snapshots()) == 1 }, "snapshot")
		w.leave()
	}
	v := watcher
	v.Since = 5
	w := r.opened(v)
	r.f.prints("d")
	r.shows(w, "d")
	require.Empty(t, w.snapshots())
}

func TestBridgeLossIsHealedExactly(t *testing.T) {
	r := newRig(t)
	w := r.opened(typist)
	r.until(func() bool { return len(w.snapshots()) == 1 }, "snapshot")
	var want strings.Builder
	for i := range 50 {
		line := fmt.Sprintf("line %d\r\n", i)
		want.WriteString(line)
		r.f.prints(line)
		if i%5 == 0 {
			r.shows(w, want.String())
			r.f.breakBridges()
		}
		w.types("k")
	}
	r.shows(w, want.String())
	require.Greater(t, r.f.opened, 3)
	require.Len(t, w.snapshots(), 1)
	require.NotContains(t, strings.Trim(r.f.typed(), "k"), "k")

	// The agent's ring went on: a gap is healed by a snapshot.
	r.f.do(func() { r.f.err = errBridge })
	r.f.breakBridges()
	r.f.do(func() {
		r.f.out = append(r.f.out, "lost\r\nkept\r\n"...)
		r.f.oldest = len(r.f.out) - len("kept\r\n")
		r.f.err = nil
	})
	r.until(func() bool { return len(w.snapshots()) == 2 }, "snapshot over the gap")
}

func TestUnreachableSandboxIsGivenUp(t *testing.T) {
	r := newRig(t)
	r.hub.times.giveUp = 5 * time.Millisecond
	r.f.err = errBridge
	r.ended(r.open(typist), CloseTooSlow)
}

func TestAttachErrorsBecomeCloseCodes(t *testing.T) {
	for kind, code := range map[fault.Kind]int{
		fault.NotFound: CloseGone, fault.SandboxDied: CloseGone, fault.Forbidden: CloseForbidden,
		fault.ApprovalNeeded: CloseApproval,
	} {
		r := newRig(t)
		r.f.err = fault.New(kind, "%s", strings.Repeat("wörd ", 60))
		w := r.open(typist)
		r.ended(w, code)
		require.NotEmpty(t, w.reason)
	}
}

func TestCloseCodesFromOutside(t *testing.T) {
	r := newRig(t)
	a, b, c := r.opened(typist), r.opened(typist2), r.opened(watcher)
	a.cancel(&CloseError{CloseForbidden, "permission lost"})
	r.ended(a, CloseForbidden)
	r.until(func() bool { return b.role() == "driver" }, "the next to drive")
	c.cancel(errors.New("request ended"))
	r.ended(c, CloseStopping)
	r.hub.Drop("sbbbbbbbbbbbbbbbbbbbbb", "another one")
	r.hub.Drop(testID, "the sandbox was killed")
	r.ended(b, CloseGone)
	require.Equal(t, "the sandbox was killed", b.reason)

	d := r.opened(typist)
	r.hub.Shutdown()
	r.ended(d, CloseStopping)
	r.ended(r.open(typist), CloseStopping)
}

func TestNothingIsTypedAfterTheRightWent(t *testing.T) {
	r := newRig(t)
	r.f.do(func() { r.f.blocked = true })
	a, b := r.opened(typist), r.opened(typist2)
	a.types("first ")
	a.types("second ")
	s := r.session()
	r.until(func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.input) == 1 }, "one piece queued, one under way")
	a.cancel(&CloseError{CloseForbidden, "permission lost"})
	r.ended(a, CloseForbidden)
	a.types("third")
	r.until(func() bool { return b.role() == "driver" }, "the other to drive")
	b.types("fourth")
	r.f.do(func() { r.f.blocked = false })
	r.until(func() bool { return strings.HasSuffix(r.f.typed(), "fourth") }, "input")
	require.Equal(t, "first fourth", r.f.typed())
}

func TestLingerKeepsTheAttachmentForAWhile(t *testing.T) {
	r := newRig(t)
	r.hub.times.linger = 50 * time.Millisecond
	w := r.opened(typist)
	w.leave()
	<-w.done
	w = r.opened(typist)
	require.Equal(t, 1, r.f.opened)
	w.leave()
	<-w.done
	r.until(func() bool { return r.f.attached() == 0 }, "the attachment to be closed")
	r.hub.mu.Lock()
	defer r.hub.mu.Unlock()
	require.Empty(t, r.hub.sessions)
}

func TestManyShortVisitsLeaveNothing(t *testing.T) {
	r := newRig(t)
	r.hub.times.linger = time.Millisecond
	for range 200 {
		ctx, cancel := context.WithCancelCause(t.Context())
		c := newFakeConn(t)
		done := make(chan error, 1)
		go func() { done <- r.hub.Serve(ctx, testID, testPTY, typist, c, nil) }()
		if rand.IntN(2) == 0 {
			c.leave()
		} else {
			cancel(&CloseError{CloseExpired, "signed out"})
		}
		<-done
		cancel(nil)
	}
	r.until(func() bool { return r.f.attached() == 0 }, "no attachment")
}

func TestSizesComeInOrderWithTheOutput(t *testing.T) {
	r := newRig(t)
	w := r.opened(typist)
	r.until(func() bool { return len(w.snapshots()) == 1 }, "snapshot")
	r.f.do(func() {
		for i := range 3 {
			r.f.out = append(r.f.out, fmt.Sprintf("%d;", i)...)
			r.f.sizes = append(r.f.sizes, sizeMark{int64(len(r.f.out)), agent.Size{Cols: 100 + i, Rows: 30}})
		}
	})
	r.until(func() bool { return len(w.find("size")) == 3 }, "sizes")
	require.Equal(t, []string{"hello", "snapshot", "output", "size", "output", "size", "output", "size"}, w.order)

	v := watcher
	v.Since = 2 // behind the first change
	again := r.opened(v)
	r.until(func() bool { return len(again.find("size")) == 2 }, "the sizes after it")
	require.EqualValues(t, 100, again.find("hello")[0]["cols"])
}
