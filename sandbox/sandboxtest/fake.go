package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sort"
	"sync"
	"time"

	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/agent/guest"
)

// Fake is a sandbox.Runtime without any isolation: its agents run in this process and act on the host's files as this
// user. It is for unit tests of what stands above a runtime, which must not run anything that needs a sandbox.
type Fake struct {
	o FakeOptions

	mu    sync.Mutex
	boxes map[sandbox.ID]*fakeBox
	saves map[sandbox.SaveID]*fakeSave
}

// FakeOptions of NewFake. Dir is required.
type FakeOptions struct {
	Dir string // working directories of the agents are made below it
	// Agent serves one bridge until it ends; nil means a real agent for each sandbox.
	Agent func(id sandbox.ID, conn io.ReadWriteCloser, bulk bool)
	// Step is called before each step's change, after the journal; an error fails that step. May be nil.
	Step func(id sandbox.ID, step string) error
}

type fakeBox struct {
	image   string
	started bool
	aside   chan struct{} // closed when it was suspended
	dead    chan struct{} // closed when it died
	death   sandbox.Death // set before dead is closed
	agent   *guest.Server
	bridges map[net.Conn]bool
	limits  sandbox.Resources
}

var _ sandbox.Runtime = (*Fake)(nil)

// NewFake makes a runtime with no sandboxes.
func NewFake(o FakeOptions) *Fake {
	return &Fake{o: o, boxes: map[sandbox.ID]*fakeBox{}, saves: map[sandbox.SaveID]*fakeSave{}}
}

// fakeSteps are the names that the fake's journal sees.
var fakeSteps = []string{"directories", "agent", "start"}

func checkID(id sandbox.ID) error {
	if !id.Valid() {
		return fault.New(fault.NotFound, "Sandbox not found")
	}
	return nil
}

// Create implements sandbox.Runtime.
func (f *Fake) Create(ctx context.Context, spec sandbox.Spec, journal sandbox.Journal) (err error) {
	if err := checkID(spec.ID); err != nil {
		return err
	}
	b := &fakeBox{image: spec.Image, aside: make(chan struct{}), dead: make(chan struct{}), bridges: map[net.Conn]bool{}, limits: spec.Resources}
	f.mu.Lock()
	if f.boxes[spec.ID] != nil {
		f.mu.Unlock()
		return fault.New(fault.Conflict, "A sandbox of this id exists already.")
	}
	f.boxes[spec.ID] = b
	f.mu.Unlock()
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Remove(context.WithoutCancel(ctx), spec.ID))
		}
	}()
	for _, step := range fakeSteps {
		err := ctx.Err()
		if err == nil {
			err = journal(step)
		}
		if err == nil && f.o.Step != nil {
			err = f.o.Step(spec.ID, step)
		}
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			err = f.do(step, spec, b)
		}
		if err != nil {
			return fmt.Errorf("create sandbox %s: %s: %w", spec.ID, step, err)
		}
	}
	return nil
}

func (f *Fake) do(step string, spec sandbox.Spec, b *fakeBox) error {
	dir := filepath.Join(f.o.Dir, string(spec.ID))
	switch step {
	case "directories":
		return os.MkdirAll(dir, 0o700)
	case "agent":
		if f.o.Agent == nil {
			b.agent = guest.New(guest.Config{Workdir: dir, Spill: dir, Env: os.Environ(), Version: "fake"})
		}
	case "start":
		if err := spec.Network.Wait(); err != nil {
			return err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		b.started = true
	}
	return nil
}

// Die ends a sandbox as if by itself.
func (f *Fake) Die(id sandbox.ID, d sandbox.Death) {
	f.mu.Lock()
	b := f.boxes[id]
	if b != nil {
		f.die(b, d)
	}
	f.mu.Unlock()
	if b != nil && b.agent != nil {
		_ = b.agent.Close()
	}
}

// die needs mu.
func (f *Fake) die(b *fakeBox, d sandbox.Death) {
	select {
	case <-b.dead:
	default:
		b.death = d
		close(b.dead)
	}
	for c := range b.bridges {
		_ = c.Close()
	}
}

// Dial implements sandbox.Runtime.
func (f *Fake) Dial(ctx context.Context, id sandbox.ID, bulk bool) (io.ReadWriteCloser, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.boxes[id]
	if b == nil || !b.started {
		return nil, fault.New(fault.NotFound, "Sandbox not found")
	}
	select {
	case <-b.dead:
		return nil, fault.New(fault.SandboxDied, "The sandbox has died.")
	default:
	}
	host, inside := net.Pipe()
	b.bridges[inside] = true
	go func() {
		if f.o.Agent != nil {
			f.o.Agent(id, inside, bulk)
		} else {
			b.agent.ServeConn(inside, bulk)
		}
		_ = inside.Close()
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(b.bridges, inside)
	}()
	return host, nil
}

// Wait implements sandbox.Runtime.
func (f *Fake) Wait(ctx context.Context, id sandbox.ID) (sandbox.Death, error) {
	if err := checkID(id); err != nil {
		return sandbox.Death{}, err
	}
	f.mu.Lock()
	b := f.boxes[id]
	var aside chan struct{}
	if b != nil {
		aside = b.aside
	}
	f.mu.Unlock()
	if b == nil {
		return sandbox.Death{Reason: sandbox.ReasonCrash, Detail: "there is no state of it"}, nil
	}
	select {
	case <-ctx.Done():
		return sandbox.Death{}, ctx.Err()
	case <-aside:
		return sandbox.Death{Reason: sandbox.ReasonCrash, Detail: "it was suspended"}, nil
	case <-b.dead:
		return b.death, nil
	}
}

// Alive implements sandbox.Runtime.
func (f *Fake) Alive(ctx context.Context, id sandbox.ID) (bool, error) {
	if err := checkID(id); err != nil {
		return false, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.boxes[id]
	if b == nil {
		return false, ctx.Err()
	}
	select {
	case <-b.dead:
		return false, ctx.Err()
	default:
		return b.started, ctx.Err()
	}
}

// Usage implements sandbox.Runtime with made-up numbers.
func (f *Fake) Usage(ctx context.Context, id sandbox.ID) (sandbox.Usage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.boxes[id] == nil {
		return sandbox.Usage{}, fault.New(fault.NotFound, "Sandbox not found")
	}
	return sandbox.Usage{CPUSeconds: 0.25, MemoryBytes: fakeMemory, PIDs: 20, DiskBytes: 4096}, ctx.Err()
}

// fakeMemory is what every sandbox of the fake uses.
const fakeMemory = 14 << 20

// Update implements sandbox.Runtime.
func (f *Fake) Update(ctx context.Context, id sandbox.ID, res sandbox.Resources) error {
	if err := checkID(id); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.boxes[id]
	if b == nil {
		return fault.New(fault.NotFound, "Sandbox not found")
	}
	if res.MemoryMB<<20 < fakeMemory {
		return fault.New(fault.Conflict, "The sandbox uses %d MiB of memory.", fakeMemory>>20)
	}
	b.limits = res
	return ctx.Err()
}

// Limits gives what a sandbox of the fake is held to.
func (f *Fake) Limits(id sandbox.ID) sandbox.Resources {
	f.mu.Lock()
	defer f.mu.Unlock()
	if b := f.boxes[id]; b != nil {
		return b.limits
	}
	return sandbox.Resources{}
}

// Free implements sandbox.Runtime.
func (f *Fake) Free(ctx context.Context, id sandbox.ID) error {
	if err := checkID(id); err != nil {
		return err
	}
	f.mu.Lock()
	b := f.boxes[id]
	delete(f.boxes, id)
	if b != nil {
		f.die(b, sandbox.Death{Reason: sandbox.ReasonKilled, Detail: "removed"})
	}
	f.mu.Unlock()
	if b == nil {
		return nil
	}
	if b.agent != nil {
		_ = b.agent.Close()
	}
	// Processes that the agent just killed may still be writing their last files.
	var err error
	for range 50 {
		if err = os.RemoveAll(filepath.Join(f.o.Dir, string(id))); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
	return err
}

// Found implements sandbox.Runtime.
func (f *Fake) Found(ctx context.Context) ([]sandbox.ID, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]sandbox.ID, 0, len(f.boxes))
	for id := range f.boxes {
		out = append(out, id)
	}
	sort.Slice(out, func(i, j int) bool { return out[i] < out[j] })
	return out, ctx.Err()
}
