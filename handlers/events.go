package handlers

import (
	"bytes"
	"context"
	"encoding/json"
	"hash/maphash"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/a-h/templ"

	"sandgate/auth"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
)

func itoa(n int) string { return strconv.Itoa(n) }

// heartbeat keeps proxies from closing a quiet stream and lets the server see that its reader is gone.
const heartbeat = 15 * time.Second

// events writes one live stream. A part that did not change since it was sent last is not sent again.
type events struct {
	v    *visit
	rc   *http.ResponseController
	seed maphash.Seed
	last map[string]uint64
}

// stream sends what show gives: at once, after each change in the workspace, and every Tick. It ends when the browser goes,
// or within 2 s of the person losing the right to look: then the page is told why.
func (v *visit) stream(show func(*events) error) error {
	return v.streamFor(auth.SandboxesRead, v.s.o.Tick, true, show)
}

// streamFor is stream for another right and another tick; without wakes changes in the workspace bring nothing about.
func (v *visit) streamFor(need auth.Permission, every time.Duration, wakes bool, show func(*events) error) error {
	ctx, cancel := v.s.o.Service.Guard(v.ctx(), v.actor, need)
	defer cancel()
	plain := v.Request()
	defer v.SetRequest(plain) // the page that says what went wrong is rendered when the guard's context has ended
	v.SetRequest(plain.WithContext(ctx))
	h := v.Response().Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	out := &events{v: v, rc: http.NewResponseController(v.Response().Writer), seed: maphash.MakeSeed(), last: map[string]uint64{}}
	_ = out.rc.SetWriteDeadline(time.Time{}) // the server's own limit is for pages
	var changes <-chan workspace.Change
	if wakes {
		changes = v.s.o.Service.Changes(ctx, v.actor)
	}
	tick, beat := time.NewTicker(every), time.NewTicker(heartbeat)
	defer tick.Stop()
	defer beat.Stop()
	for {
		if err := show(out); err != nil {
			return out.end(ctx, err)
		}
		select {
		case <-ctx.Done():
			return out.end(ctx, context.Cause(ctx))
		case _, ok := <-changes:
			if !ok {
				return out.end(ctx, context.Cause(ctx))
			}
		case <-tick.C:
		case <-beat.C:
			if err := out.write([]byte(": still here\n\n")); err != nil {
				return nil // the browser is gone
			}
		}
	}
}

// open begins the answer where there is nothing to send yet, so that the page knows that it is connected.
func (e *events) open() error {
	if e.v.Response().Committed {
		return nil
	}
	return e.write([]byte(": here\n\n"))
}

// end tells the page why the stream ends, if it has begun and there is somebody to tell.
func (e *events) end(ctx context.Context, err error) error {
	if !e.v.Response().Committed {
		return err
	}
	word := ""
	switch fault.KindOf(err) {
	case fault.Unauthenticated:
		word = "signed-out"
	case fault.Forbidden:
		word = "forbidden"
	case fault.NotFound:
		word = "gone"
	}
	if cause := context.Cause(ctx); word == "" && cause != nil {
		switch fault.KindOf(cause) {
		case fault.Unauthenticated:
			word = "signed-out"
		case fault.Forbidden:
			word = "forbidden"
		}
	}
	if word != "" {
		_ = e.send("end", []byte(word))
	}
	return nil
}

// fragment sends a part of the page.
func (e *events) fragment(name string, part templ.Component) error {
	var b bytes.Buffer
	if err := part.Render(e.v.ctx(), &b); err != nil {
		return err
	}
	return e.changed(name, b.Bytes())
}

// value sends plain data for a script.
func (e *events) value(name string, value any) error {
	b, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return e.changed(name, b)
}

func (e *events) changed(name string, data []byte) error {
	sum := maphash.Bytes(e.seed, data)
	if old, ok := e.last[name]; ok && old == sum {
		return nil
	}
	e.last[name] = sum
	return e.send(name, data)
}

// send writes one event. Data may hold any line ends: the format knows three of them.
func (e *events) send(name string, data []byte) error {
	text := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(data))
	var b bytes.Buffer
	b.WriteString("event: " + name + "\n")
	for line := range strings.SplitSeq(text, "\n") {
		b.WriteString("data: " + line + "\n")
	}
	b.WriteByte('\n')
	return e.write(b.Bytes())
}

func (e *events) write(p []byte) error {
	_ = e.rc.SetWriteDeadline(time.Now().Add(streamWrite))
	if _, err := e.v.Response().Write(p); err != nil {
		return err
	}
	return e.rc.Flush()
}
