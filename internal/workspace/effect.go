package workspace

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"sandgate/sandbox"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/effect"
)

// Effect is what a command did in a copy of its sandbox that reached nothing and is gone. Its texts come from inside; known
// secrets are masked.
type Effect struct {
	At        time.Time
	By        string // who had it tried
	ExitCode  int
	Signal    string
	TimedOut  bool
	Seconds   float64
	Stdout    string
	Stderr    string
	OutputCut bool
	Added     int // paths, of which Files may hold fewer
	Changed   int
	Deleted   int
	Files     []effect.Change
	FilesWhy  string   // why files are not compared; "" when they are
	Left      []string // names of processes that it left behind
	Denied    []Denied // what it tried to reach; all is refused
	FilesOnly bool     // the copy began without what was in memory
	NotShown  []string // what this does not tell, in words
}

// tryFor is how long a command may take in a copy.
const tryFor = 60 * time.Second

// maxTried bounds the attempts at the network that are told of.
const maxTried = 100

// trials hear what copies are refused by the network. The zero value is ready.
type trials struct {
	mu sync.Mutex
	of map[sandbox.ID]*[]Denied
}

func (t *trials) begin(id sandbox.ID) (end func() []Denied) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		t.of = map[sandbox.ID]*[]Denied{}
	}
	heard := &[]Denied{}
	t.of[id] = heard
	return func() []Denied {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.of, id)
		return *heard
	}
}

// hear reports whether id is a copy's; then nobody else needs to be told.
func (t *trials) hear(id sandbox.ID, d sandbox.Denial) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	heard := t.of[id]
	if heard == nil {
		return false
	}
	for i := range *heard {
		one := &(*heard)[i]
		if one.Protocol == d.Protocol && one.Destination == d.Destination && one.Port == d.Port {
			one.Count, one.Last = one.Count+d.Count, d.At
			return true
		}
	}
	if len(*heard) < maxTried {
		*heard = append(*heard, Denied{
			Protocol: d.Protocol, Destination: cut(d.Destination, maxDeniedTo), Port: d.Port, Why: d.Why, First: d.At, Last: d.At, Count: d.Count,
		})
	}
	return true
}

// rehearse runs a command in a copy of a sandbox and tells what it did. c is as it would run, without the sandbox's secrets.
func (s *Service) rehearse(ctx context.Context, r sandbox.Record, c agent.CommandSpec, by string) (*Effect, error) {
	c.ID, c.Background, c.KeepStdin = sandbox.RandomID("cmd"), false, false
	if most := tryFor.Milliseconds(); c.TimeoutMS <= 0 || c.TimeoutMS > most {
		c.TimeoutMS = most
	}
	if c.Env == nil {
		c.Env = map[string]string{}
	}
	if err := s.addSecrets(ctx, r, c.Env); err != nil {
		return nil, err
	}
	id := sandbox.NewID()
	heard := s.trials.begin(id)
	out, err := s.o.Sandboxes.Rehearse(ctx, r.ID, sandbox.Rehearsal{ID: id, Command: c})
	denied := heard()
	if err != nil {
		return nil, err
	}
	m := s.mask(ctx, string(r.ID))
	e := &Effect{
		At: s.o.Now(), By: by, ExitCode: out.Exit.Code, Signal: out.Exit.Signal, TimedOut: out.Exit.TimedOut, Seconds: out.Exit.Duration,
		Stdout: m.hideCut(plainText(out.Stdout)), Stderr: m.hideCut(plainText(out.Stderr)), OutputCut: out.OutputCut,
		Added: out.Files.Added, Changed: out.Files.Changed, Deleted: out.Files.Deleted,
		Files: out.Files.Changes, FilesWhy: out.FilesWhy, FilesOnly: out.FilesOnly,
	}
	for i := range e.Files {
		f := &e.Files[i]
		f.Path, f.Link, f.OldLink, f.Diff = m.hide(f.Path), m.hide(f.Link), m.hide(f.OldLink), m.hide(f.Diff)
	}
	for _, p := range out.Left {
		e.Left = append(e.Left, m.hide(p.Name))
	}
	for _, d := range denied {
		d.Destination = m.hide(d.Destination)
		e.Denied = append(e.Denied, d)
	}
	e.NotShown = notShown(e)
	return e, nil
}

// plainText makes text of bytes: what is no UTF-8 shows as U+FFFD.
func plainText(p []byte) string { return strings.ToValidUTF8(string(p), "\uFFFD") }

// notShown says what a trial cannot show, in words that a person understands.
func notShown(e *Effect) []string {
	out := []string{
		"What it would do over the network: every connection was refused, so what it would fetch, send or install from there is not known.",
		"What it would do at another time: the real run begins later, and files, clocks and random numbers are others by then.",
		"Which of the changes are its own: programs that were already running in the sandbox ran on in the copy, and their changes are listed as well.",
		"What it does only when it notices that it is being tried.",
	}
	if e.TimedOut {
		out = append(out, fmt.Sprintf("What it would do after %d seconds: it was ended then.", int(tryFor.Seconds())))
	}
	if e.FilesOnly {
		out = append(out, "What it would do to running programs: the copy began with the files alone.")
	}
	if len(e.Left) > 0 {
		out = append(out, "What the processes that it leaves behind would do later.")
	}
	if n := e.Added + e.Changed + e.Deleted - len(e.Files); n > 0 {
		out = append(out, fmt.Sprintf("%d more changed paths: the list is cut.", n))
	}
	return out
}
