package term

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

func TestOnlyTheDriverActs(t *testing.T) {
	r := newRig(t)
	a, b, c := r.opened(typist), r.opened(typist2), r.opened(watcher)
	require.Equal(t, []string{"driver", "viewer", "viewer"}, []string{a.role(), b.role(), c.role()})
	require.Equal(t, "ann", c.find("hello")[0]["driver"])
	for _, w := range []*view{b, c} {
		for range 3 {
			w.types("id\r")
			w.sends(map[string]any{"type": "resize", "cols": 10, "rows": 5})
			w.sends(map[string]any{"type": "signal", "name": "INT"})
		}
		r.until(func() bool { return w.notices("not_driver") == 1 }, "one notice")
	}
	c.sends(map[string]any{"type": "take_control"}) // may not type: stays a viewer
	c.sends(map[string]any{"type": "nope"})
	a.types("ok")
	a.sends(map[string]any{"type": "signal", "name": "INT"})
	a.sends(map[string]any{"type": "resize", "cols": 101, "rows": 31})
	r.until(func() bool { return r.f.typed() == "ok" && r.f.size() == agent.Size{Cols: 101, Rows: 31} }, "the driver's acts")
	r.until(func() bool { return len(c.find("size")) > 0 }, "the new size at the viewers")
	require.Equal(t, []string{"INT"}, r.f.signals)
	require.Equal(t, "viewer", c.role())
	require.Equal(t, 1, c.notices("not_driver"))
}

func TestTakingControl(t *testing.T) {
	r := newRig(t)
	a, b, c := r.opened(typist), r.opened(typist2), r.opened(watcher)
	b.sends(map[string]any{"type": "take_control"})
	r.until(func() bool { return b.role() == "driver" && a.role() == "viewer" }, "roles to change")
	r.until(func() bool { m := c.find("role"); return len(m) > 0 && m[len(m)-1]["driver"] == "bob" }, "the watcher to hear of it")
	a.types("not me")
	r.until(func() bool { return a.notices("not_driver") == 1 }, "notice")
	b.types("me")
	r.until(func() bool { return r.f.typed() == "me" }, "input")
	require.Zero(t, a.code, "the old driver stays connected")

	driver, others := r.hub.Viewers(testID, testPTY)
	require.Equal(t, "bob", driver)
	require.Equal(t, []string{"ann", "eve"}, others)

	b.leave()
	r.until(func() bool { return a.role() == "driver" }, "the one who waits longest and may type to drive")
	a.leave()
	r.until(func() bool { m := c.find("role"); return m[len(m)-1]["driver"] == "" }, "nobody to drive")
	d := r.opened(typist2)
	require.Equal(t, "driver", d.role())
}

func TestMalformedMessagesDoNoHarm(t *testing.T) {
	r := newRig(t)
	w := r.opened(typist)
	r.until(func() bool { return len(w.snapshots()) == 1 }, "snapshot")
	for _, text := range []string{
		"", "{", "[]", "null", "7", `"x"`, `{"type":7}`, `{"type":"resize"}`, `{"type":"resize","cols":1e30,"rows":1}`,
		`{"type":"nope","x":{}}`, `{"type":"ack"}`, `{"type":"ack","offset":-1}`, `{"type":"ack","offset":99999999}`, `{"type":"ack","offset":"x"}`,
		`{"type":"signal"}`, `{"type":"signal","name":"STOP; rm"}`, strings.Repeat("[", 4000), `{"type":"resize","pad":"` + strings.Repeat("x", 5<<20) + `"}`,
	} {
		w.toHub <- message{false, []byte(text)}
	}
	for _, p := range [][]byte{{}, {frameInput}, {9}, {9, 'x'}, {0xff}} {
		w.toHub <- message{true, p}
	}
	w.types("alive")
	r.until(func() bool { return r.f.typed() == "alive" }, "input")
	r.until(func() bool { return w.notices("bad_message") > 0 && w.notices("bad_signal") > 0 }, "notices")
	require.Equal(t, 1, w.notices("bad_message"))
	require.Equal(t, 1, w.notices("bad_signal"))
	require.Empty(t, r.f.signals)
	require.Equal(t, agent.Size{Cols: 80, Rows: 24}, r.f.size())

	for _, s := range [][4]int{{-1, 0, 2, 1}, {1 << 40, 70000, 500, 300}, {120, 40, 120, 40}} {
		w.sends(map[string]any{"type": "resize", "cols": s[0], "rows": s[1]})
		r.until(func() bool { return r.f.size() == agent.Size{Cols: s[2], Rows: s[3]} }, "clamped size")
	}
}

func TestForgedAcknowledgementsGiveNoCredit(t *testing.T) {
	r := newRig(t)
	w := r.opened(watcher, func(c *fakeConn) { c.silent = true })
	for _, off := range []int64{1 << 40, -1 << 40, 1} {
		w.sends(map[string]any{"type": "ack", "offset": off})
	}
	r.f.prints(strings.Repeat("y", 2*credit)) // fakeConn fails when more than the credit comes
	r.until(func() bool { return len(w.text()) > credit/2 }, "output")
	w.sends(map[string]any{"type": "ack", "offset": 1 << 40})
	w.sends(map[string]any{"type": "take_control"})
	r.until(func() bool { return w.notices("not_driver") == 1 }, "the messages to be read")
	require.LessOrEqual(t, len(w.text()), credit)
}

func TestInputIsBoundedAndSignalsPass(t *testing.T) {
	r := newRig(t)
	r.f.do(func() { r.f.blocked = true })
	w := r.opened(typist)
	for range 130 {
		w.types(strings.Repeat("x", 8<<10))
	}
	w.sends(map[string]any{"type": "signal", "name": "INT"})
	w.sends(map[string]any{"type": "resize", "cols": 100, "rows": 30})
	r.until(func() bool { return r.f.size() == agent.Size{Cols: 100, Rows: 30} }, "resize past the input")
	require.Equal(t, []string{"INT"}, r.f.signals)
	r.until(func() bool { return w.notices("input_full") == 1 }, "notice")
	r.f.do(func() { r.f.blocked = false })
	r.until(func() bool { return len(r.f.typed()) >= agent.MaxInput-(16<<10) }, "what was queued")
	require.LessOrEqual(t, len(r.f.typed()), agent.MaxInput)

	w.types(strings.Repeat("z", agent.MaxInput+1))
	r.until(func() bool { return w.notices("input_too_large") == 1 }, "notice")
	require.NotContains(t, r.f.typed(), "z")
}

func TestRefusedInputIsSaid(t *testing.T) {
	r := newRig(t)
	r.f.refuse = fault.New(fault.SlowDown, "full")
	w := r.opened(typist)
	w.types("x")
	r.until(func() bool { return w.notices("input_full") == 1 }, "notice")

	r = newRig(t)
	w = r.opened(typist)
	r.f.do(func() { r.f.refused = true })
	r.until(func() bool { return w.notices("input_full") == 1 }, "notice")
	w.types("y")
	r.until(func() bool { return r.f.typed() == "y" }, "input to go on")
}

func TestOneBigMessageArrivesWhole(t *testing.T) {
	r := newRig(t)
	w := r.opened(typist)
	text := "#" + strings.Repeat("a漢", 200_000)
	w.types(text)
	r.until(func() bool { return len(r.f.typed()) == len(text) }, "input")
	require.Equal(t, text, r.f.typed())
}

func TestOnInputIsToldNowAndThen(t *testing.T) {
	r := newRig(t)
	var told atomic.Int32
	c := newFakeConn(t)
	done := make(chan error, 1)
	go func() { done <- r.hub.Serve(t.Context(), testID, testPTY, typist, c, func() { told.Add(1) }) }()
	start := time.Now()
	for range 100 {
		c.types("k")
	}
	r.until(func() bool { return len(r.f.typed()) == 100 }, "input")
	require.GreaterOrEqual(t, told.Load(), int32(1))
	require.LessOrEqual(t, told.Load(), int32(1+time.Since(start)/onInputAtMost))
	c.leave()
	require.NoError(t, <-done)
}

func TestInterruptSkipsTheFlood(t *testing.T) {
	for _, signal := range []bool{false, true} {
		r := newRig(t)
		r.hub.times.driverStop, r.hub.times.skipMost = 50*time.Millisecond, soon
		w := r.opened(typist, func(c *fakeConn) { c.silent = true })
		flood := strings.Repeat("y\r\n", 1<<20)
		r.f.prints(flood)
		r.until(func() bool { return len(w.text()) > credit/2 }, "the flood")
		if signal {
			w.sends(map[string]any{"type": "signal", "name": "INT"})
		} else {
			w.types("\x03")
		}
		r.f.prints("^C\r\n$ ")
		r.caughtUp() // the reader does not wait for the driver now
		w.do(func() {
			w.silent = false
			w.ackLocked()
		})
		r.until(func() bool { return len(w.snapshots()) == 2 }, "a snapshot in the flood's place")
		require.Contains(t, string(w.snapshots()[1]), "y\r\n^C\r\n$ ")
		require.Empty(t, w.text())
		r.f.prints("ls")
		r.shows(w, "ls")
	}

	// With little waiting nothing is skipped.
	r := newRig(t)
	w := r.opened(typist)
	r.until(func() bool { return len(w.snapshots()) == 1 }, "snapshot")
	r.f.prints("abc")
	w.types("\x03")
	r.f.prints("^C")
	r.shows(w, "abc^C")
}
