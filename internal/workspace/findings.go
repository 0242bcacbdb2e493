package workspace

import (
	"context"
	"errors"
	"sync"
	"time"

	"sandgate/auth"
	"sandgate/internal/audit"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

// findings are what a change finds out for the record while it happens. The zero value is ready.
type findings struct {
	facts   audit.Facts
	printed *printed
}

type findingsKey struct{}

func (f *findings) in(ctx context.Context) context.Context {
	return context.WithValue(ctx, findingsKey{}, f)
}

// findingsOf gives those of the change that is under way; outside of one they go nowhere.
func findingsOf(ctx context.Context) *findings {
	if f, ok := ctx.Value(findingsKey{}).(*findings); ok {
		return f
	}
	return &findings{}
}

// copy gives what was printed as it is kept: bounded, without secrets. nil where nothing was printed.
func (f *findings) copy(hidden mask) *audit.Output {
	if f.printed == nil {
		return nil
	}
	p := f.printed
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.total[0]+p.total[1] == 0 {
		return nil
	}
	o := &audit.Output{StdoutTotal: p.total[0], StderrTotal: p.total[1]}
	left := audit.MaxOutput
	for i, to := range []*[]byte{&o.Stdout, &o.Stderr} {
		cut := p.total[i] > int64(len(p.kept[i]))
		text := hidden.hideEnd(string(p.kept[i]), cut)
		if len(text) > left { // a name in brackets may be longer than what it stands for
			text, cut = hidden.hideEnd(text[:left], true), true
			text = text[:min(left, len(text))]
		}
		*to, o.Cut = []byte(text), o.Cut || cut
		left -= len(text)
	}
	return o
}

// errEnough stops reading what would not be kept.
var errEnough = errors.New("enough")

// sample is an Output that takes as much as is kept, and then no more.
type sample struct{ printed }

func (s *sample) Stdout(b []byte) error { return s.take(0, b) }
func (s *sample) Stderr(b []byte) error { return s.take(1, b) }

func (s *sample) take(stream int, b []byte) error {
	s.keep(stream, b)
	if s.total[0]+s.total[1] > audit.MaxOutput {
		return errEnough
	}
	return nil
}

const noteLimit = 10 * time.Second

// noteEnd puts the end of a background command on record, with the beginning of what it printed. Who started it is on
// record already, beside its id.
func (s *Service) noteEnd(r sandbox.Record, client *agent.Client, cmd string, exit agent.Exit) {
	ctx, cancel := context.WithTimeout(context.Background(), noteLimit)
	defer cancel()
	hidden := s.mask(ctx, string(r.ID))
	var found findings
	seen := &sample{}
	found.printed = &seen.printed
	if _, err := client.Follow(ctx, cmd, 0, 0, seen); err != nil && !errors.Is(err, errEnough) {
		s.o.Log.Debug("read what a background command printed", "sandbox", string(r.ID), "command", cmd, "cause", err.Error())
	}
	e := audit.Event{
		WorkspaceID: r.WorkspaceID, ActorKind: auth.System, Actor: "system", SandboxID: string(r.ID), Action: "command.end",
		Outcome: audit.OK, Duration: exit.Duration, Detail: cmd + ": " + exitWords(exit),
	}
	if c, err := client.Command(ctx, cmd); err == nil {
		e.Target = hidden.hideCut(c.Command)
	}
	if err := s.o.Audit.NoteWith(ctx, e, found.copy(hidden)); err != nil {
		s.o.Log.Error("record the end of a background command", "sandbox", string(r.ID), "command", cmd, "cause", err.Error())
	}
}

// printed passes a command's output on and keeps its beginning, as much as comes first of both streams. Each stream is
// called from one goroutine at a time, both may be at once.
type printed struct {
	out agent.Output

	mu    sync.Mutex
	kept  [2][]byte
	total [2]int64
}

func (p *printed) Stdout(b []byte) error { p.keep(0, b); return p.out.Stdout(b) }
func (p *printed) Stderr(b []byte) error { p.keep(1, b); return p.out.Stderr(b) }

func (p *printed) keep(stream int, b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total[stream] += int64(len(b))
	if left := audit.MaxOutput - len(p.kept[0]) - len(p.kept[1]); left > 0 {
		p.kept[stream] = append(p.kept[stream], b[:min(left, len(b))]...)
	}
}
