package term

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/sandbox/agent"
)

// seen is the newest list of people that a viewer was sent, as "name:what".
func (w *view) seen() string {
	lists := w.find("people")
	if len(lists) == 0 {
		return ""
	}
	var out []string
	for _, raw := range lists[len(lists)-1]["people"].([]any) {
		p := raw.(map[string]any)
		line := p["name"].(string)
		for _, what := range []string{"drives", "may_type", "asks", "you", "same"} {
			if p[what] == true {
				line += " " + what
			}
		}
		out = append(out, line)
	}
	return strings.Join(out, "; ")
}

func (w *view) number(name string) int {
	lists := w.find("people")
	for _, raw := range lists[len(lists)-1]["people"].([]any) {
		if p := raw.(map[string]any); p["name"] == name {
			return int(p["id"].(float64))
		}
	}
	return -1
}

func (r *rig) sees(w *view, want string) {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return w.seen() == want }, soon, time.Millisecond, "want %q", want)
}

func TestAskingForControl(t *testing.T) {
	r := newRig(t)
	a, b, c := r.opened(typist), r.opened(typist2), r.opened(watcher)
	require.Empty(t, a.find("people"), "nobody asked who is there")
	for _, w := range []*view{a, b, c} {
		w.sends(map[string]any{"type": "people"})
	}
	r.sees(a, "ann drives may_type you; bob may_type; eve")
	r.sees(c, "ann drives may_type; bob may_type; eve you")

	c.sends(map[string]any{"type": "request_control"}) // may not type: is told so, and nobody else is bothered
	r.until(func() bool { return c.notices("not_driver") == 1 }, "the refusal")
	b.sends(map[string]any{"type": "request_control"})
	r.sees(a, "ann drives may_type you; bob may_type asks; eve")
	r.until(func() bool { return a.notices("asked") == 1 }, "the driver to be told")
	require.Equal(t, "viewer", b.role())
	b.sends(map[string]any{"type": "withdraw_request"})
	r.sees(a, "ann drives may_type you; bob may_type; eve")

	b.sends(map[string]any{"type": "request_control"})
	r.sees(a, "ann drives may_type you; bob may_type asks; eve")
	a.sends(map[string]any{"type": "decline_control", "viewer": a.number("bob")})
	r.sees(a, "ann drives may_type you; bob may_type; eve")
	r.until(func() bool { return b.notices("declined") == 1 }, "the answer")
	b.sends(map[string]any{"type": "request_control"}) // too soon
	b.sends(map[string]any{"type": "ping", "id": 1})
	r.until(func() bool { return len(b.find("pong")) == 1 }, "the request to be read")
	require.Equal(t, "ann drives may_type you; bob may_type; eve", a.seen())

	// Handing over, asked or not; what a viewer sends in the driver's name changes nothing.
	for _, w := range []*view{b, c} {
		w.sends(map[string]any{"type": "grant_control", "viewer": w.number("bob")})
		w.sends(map[string]any{"type": "decline_control", "viewer": w.number("ann")})
	}
	for _, bad := range []any{a.number("eve"), 99, nil, -1} {
		a.sends(map[string]any{"type": "grant_control", "viewer": bad})
	}
	a.sends(map[string]any{"type": "ping", "id": 2})
	r.until(func() bool { return len(a.find("pong")) == 1 }, "all that to be read")
	require.Equal(t, "driver", a.role())
	a.sends(map[string]any{"type": "grant_control", "viewer": a.number("bob")})
	r.until(func() bool { return b.role() == "driver" && b.notices("granted") == 1 }, "bob to drive")
	r.sees(c, "ann may_type; bob drives may_type; eve you")

	c.leave()
	r.sees(a, "ann may_type you; bob drives may_type")
}

func TestWhoAskedDrivesNext(t *testing.T) {
	r := newRig(t)
	a, b := r.opened(typist), r.opened(typist2)
	c := r.opened(Viewer{Name: "cleo", MayType: true, Since: -1})
	c.sends(map[string]any{"type": "request_control"})
	r.until(func() bool { return a.notices("asked") == 1 }, "the request")
	a.leave()
	r.until(func() bool { return c.role() == "driver" }, "who asked to drive")
	require.Equal(t, "viewer", b.role())
}

func TestADriverWhoseConnectionBrokeFindsTheSeat(t *testing.T) {
	ann := Viewer{Name: "ann", Who: "person 1", MayType: true, Since: -1}
	for _, c := range []struct {
		name      string
		meanwhile func(r *rig, b *view)
		back      Viewer
		want      string
	}{
		{"nothing happened", func(*rig, *view) {}, ann, "driver"},
		{"the other one typed", func(r *rig, b *view) {
			b.types("x")
			r.until(func() bool { return r.f.typed() == "x" }, "the key")
		}, ann, "viewer"},
		{"somebody else comes", func(*rig, *view) {}, Viewer{Name: "ann", Who: "person 2", MayType: true, Since: -1}, "viewer"},
		{"without the right", func(*rig, *view) {}, Viewer{Name: "ann", Who: "person 1", Since: -1}, "viewer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			a, b := r.opened(ann), r.opened(typist2)
			a.leave()
			r.until(func() bool { return b.role() == "driver" }, "the other one to drive meanwhile")
			c.meanwhile(r, b)
			require.Equal(t, c.want, r.opened(c.back).role())
		})
	}

	// One whose right was taken has no seat to find.
	r := newRig(t)
	a, b := r.opened(ann), r.opened(typist2)
	a.cancel(&CloseError{CloseForbidden, "the right was taken"})
	r.ended(a, CloseForbidden)
	r.until(func() bool { return b.role() == "driver" }, "the other one to drive")
	require.Equal(t, "viewer", r.opened(ann).role())
}

func TestOwnWindowsAreKnown(t *testing.T) {
	r := newRig(t)
	ann := Viewer{Name: "ann", Who: "person 1", MayType: true, Since: -1}
	r.opened(ann)
	b, c := r.opened(ann), r.opened(Viewer{Name: "ann", Who: "person 2", Since: -1})
	for _, w := range []*view{b, c} {
		w.sends(map[string]any{"type": "people"})
	}
	r.sees(b, "ann drives may_type same; ann may_type you; ann")
	r.sees(c, "ann drives may_type; ann may_type; ann you")
}

func TestPongCountsTheInputThatArrived(t *testing.T) {
	r := newRig(t)
	a, b := r.opened(typist), r.opened(typist2)
	a.types("abc")
	a.sends(map[string]any{"type": "ping", "id": 7})
	a.sends(map[string]any{"type": "ping"}) // without a number: nothing to answer
	a.types("d")
	a.sends(map[string]any{"type": "ping", "id": 1 << 52})
	r.until(func() bool { return len(a.find("pong")) == 2 }, "both answers")
	require.Equal(t, "7 3", fmt.Sprint(a.find("pong")[0]["id"], " ", a.find("pong")[0]["input"]))
	require.InDelta(t, 4, a.find("pong")[1]["input"], 0)
	b.types("dropped")
	b.sends(map[string]any{"type": "ping", "id": 1})
	r.until(func() bool { return len(b.find("pong")) == 1 }, "the answer to a viewer")
	r.until(func() bool { return r.f.typed() == "abcd" }, "the driver's input alone")
}

func TestAManyPeopledTerminalKeepsItsListsBounded(t *testing.T) {
	r := newRig(t)
	a := r.opened(Viewer{Name: strings.Repeat("漢", 5000), MayType: true, Since: -1})
	a.sends(map[string]any{"type": "people"})
	for range 20 {
		r.opened(watcher)
	}
	r.until(func() bool { return strings.Count(a.seen(), "eve") == 20 }, "everybody in the list")
	require.Less(t, len(a.seen()), 20*len("eve; ")+3*shownName+40)
	require.Equal(t, agent.Size{Cols: 80, Rows: 24}, r.f.size())
}

func TestAnInterruptionIsToldAndItsEnd(t *testing.T) {
	r := newRig(t)
	w := r.opened(typist)
	require.Zero(t, w.notices("restored"))
	for n := range 2 {
		r.f.do(func() { r.f.err = errBridge })
		r.f.breakBridges()
		r.until(func() bool { return w.notices("interrupted") == n+1 }, "the notice")
		r.f.do(func() { r.f.err = nil })
		r.until(func() bool { return w.notices("restored") == n+1 }, "its end")
	}
}
