package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

// Options are what a Manager needs. Runtime and Records are required.
type Options struct {
	Runtime   Runtime
	Records   Records
	Pool      PoolOptions
	Network   Network // nil: sandboxes have none but a loopback, whatever their policy
	Host      Host    // nil: nobody asks whether there is room for one more
	Reserve   Reserve // what Host must have left after a creation
	Log       *slog.Logger
	Now       func() time.Time
	OnChange  func(Record) // after each change of status; must not block
	Deadlines Deadlines    // needed where sandboxes end by the clock
	Snapshots Snapshots    // needed where states are kept under a name
}

// How long things may take. Starting is 0.2 s and removing 0.1 s on a quiet machine; a full one is slower.
const (
	createLimit = 60 * time.Second
	removeLimit = 60 * time.Second
	touchGrain  = time.Second
)

// Manager supervises every sandbox of one data directory: one process at a time holds it. Safe for concurrent use.
type Manager struct {
	o Options

	mu         sync.Mutex
	pool       *pool
	boxes      map[ID]*box // being created, running, or being removed
	closing    bool
	settleWait time.Duration // shorter in tests
	rooms      rooms
	rehearsing chan struct{} // one for each rehearsal that may run

	borrowed map[SaveID]int // saves that are being made, or started from: by how many; dropping: about to go

	life context.Context // ends with Close: watchers stop, sandboxes live on
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// box is the process-local side of one sandbox.
type box struct {
	id     ID
	client *agent.Client
	made   chan struct{} // closed when creation or resume has ended, one way or the other
	pooled atomic.Bool   // made before anybody asked for it, and nobody did yet
	failed error         // why a resume did not end in Running; valid once made
	host   sync.Mutex    // held while Runtime.Remove works: death and kill may meet

	mu      sync.Mutex
	cancel  context.CancelFunc // ends its creation, or its watcher
	removal *removal           // not nil once somebody removes it; others wait for the same
	touched time.Time
	passage *passage // not nil while it is suspended or saved
	doomed  bool     // somebody kills it: nothing new begins

	clock clockwork
}

// interrupt ends the creation or the watcher, whichever runs.
func (b *box) interrupt() {
	b.mu.Lock()
	cancel := b.cancel
	b.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

func (b *box) interruptBy(cancel context.CancelFunc) {
	b.mu.Lock()
	b.cancel = cancel
	b.mu.Unlock()
}

// removal is one teardown that several callers may wait for.
type removal struct {
	done chan struct{}
	err  error
}

// New makes a manager. Call Reconcile before the first request.
func New(o Options) (*Manager, error) {
	if o.Runtime == nil || o.Records == nil {
		return nil, errors.New("sandbox manager: a runtime and records are required")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Pool.Max > 0 && (o.Pool.Image == "" || o.Pool.State == nil) {
		return nil, errors.New("sandbox manager: a pool needs an image and its state")
	}
	m := &Manager{o: o, boxes: map[ID]*box{}, borrowed: map[SaveID]int{}, pool: newPool(o.Pool), rehearsing: make(chan struct{}, rehearsals), settleWait: settleWait}
	m.life, m.stop = context.WithCancel(context.Background())
	return m, nil
}

// CreateWithin writes the record, makes the sandbox and returns it running. When it fails, is killed meanwhile, or ctx ends,
// nothing is left on the host and the record is Gone. Without room on the host (fault.HostFull), or with as many sandboxes as
// the quota allows (fault.QuotaExceeded), nothing is begun.
func (m *Manager) CreateWithin(ctx context.Context, r Record, q Quota) (Record, error) {
	return m.createFrom(ctx, r, q, "")
}

// createFrom is CreateWithin of a sandbox that goes on from a save; "": one that begins.
func (m *Manager) createFrom(ctx context.Context, r Record, q Quota, from SaveID) (Record, error) {
	r.Status, r.CreatedAt = Creating, m.o.Now()
	r.LastActivity = r.CreatedAt
	r.IdleAt = r.CreatedAt.Add(r.Life.IdleTimeout)
	if r.Life.MaxLifetime > 0 {
		r.ExpiresAt = r.CreatedAt.Add(r.Life.MaxLifetime)
	}
	if one := m.pool.claim(r.ID); one != nil {
		if err := m.give(ctx, one, r, q); err != nil {
			if fault.Is(err, fault.Internal) {
				err = startFault(ctx, err)
			}
			return Record{}, err
		}
		return m.o.Records.SandboxByID(context.WithoutCancel(ctx), r.ID)
	}
	release, err := m.reserveRoom(ctx)
	if err != nil {
		return Record{}, err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, createLimit)
	defer cancel()
	b := m.newBox(r.ID)
	b.interruptBy(cancel)
	if err := m.admit(b); err != nil {
		return Record{}, err
	}
	defer close(b.made)
	if err := m.o.Records.InsertSandboxWithin(ctx, r, q); err != nil {
		m.forget(b)
		return Record{}, fmt.Errorf("create %s: %w", r.ID, err)
	}
	m.tell(ctx, r.ID)
	if err := m.start(ctx, b, r, from); err != nil {
		m.discard(b, err)
		if fault.Is(err, fault.Internal) {
			err = startFault(ctx, err)
		}
		return Record{}, err
	}
	return m.o.Records.SandboxByID(context.WithoutCancel(ctx), r.ID)
}

// start does the host's part of a creation and ends in Running.
func (m *Manager) start(ctx context.Context, b *box, r Record, from SaveID) error {
	reason, err := m.bring(ctx, r, from)
	if err != nil {
		return err
	}
	if _, err := b.client.Hello(ctx); err != nil {
		return fmt.Errorf("create %s: the agent does not answer: %w", r.ID, err)
	}
	if from != "" { // its host name is its own, but the file in it that says so is from before
		if err := b.client.Name(ctx, hostname(r.Label, r.ID)); err != nil && ctx.Err() == nil {
			m.o.Log.Warn("name a sandbox", "sandbox", string(r.ID), "cause", err.Error())
		}
	}
	if m.o.Deadlines != nil { // the making took its time, which is not counted
		if err := m.o.Deadlines.ExtendIdle(ctx, r.ID, m.o.Now().Add(r.Life.IdleTimeout)); err != nil {
			return err
		}
	}
	moved, err := m.become(ctx, r.ID, Creating, Running, reason)
	if err != nil {
		return err
	}
	if !moved || ctx.Err() != nil {
		return killedMeanwhile()
	}
	m.watch(b)
	return nil
}

// specOf says what a runtime needs to make the sandbox of a record.
func specOf(r Record) Spec {
	return Spec{ID: r.ID, Image: r.Image, Hostname: hostname(r.Label, r.ID), Cwd: r.Cwd, User: r.User, Env: r.Env, Resources: r.Resources}
}

// hostname makes what `hostname` says inside: letters, digits and dashes of the label, else the id.
func hostname(label string, id ID) string {
	var b strings.Builder
	for _, c := range strings.ToLower(label) {
		switch {
		case c >= 'a' && c <= 'z' || c >= '0' && c <= '9':
			b.WriteRune(c)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
		if b.Len() >= 40 {
			break
		}
	}
	if h := strings.Trim(b.String(), "-"); h != "" {
		return h
	}
	return string(id)
}

// discard undoes a creation that did not end in Running.
func (m *Manager) discard(b *box, cause error) {
	m.o.Log.Warn("sandbox not created", "sandbox", string(b.id), "cause", cause.Error())
	ctx := context.Background()
	if err := m.remove(ctx, b, ReasonStartFailed); err != nil {
		m.o.Log.Error("discard sandbox", "sandbox", string(b.id), "cause", err.Error())
	}
}

func killedMeanwhile() error {
	return fault.New(fault.Conflict, "The sandbox was killed while it was being created.").With("reason", ReasonKilled)
}

func startFault(ctx context.Context, cause error) error {
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return killedMeanwhile()
	}
	return fault.Wrap(cause, fault.HostFull, "The sandbox could not be started on this host. Nothing of it was left behind; try again, and ask the operator if it stays so.")
}

// Kill ends a sandbox and leaves nothing on the host. Several callers share one teardown. Gone already: nil.
func (m *Manager) Kill(ctx context.Context, id ID, reason string) error {
	b := m.boxOf(id)
	if b == nil {
		r, err := m.o.Records.SandboxByID(ctx, id)
		if err != nil {
			return err
		}
		if r.Status == Gone {
			return nil
		}
		b = m.newBox(id)
		close(b.made)
		if b, err = m.adoptForRemoval(b); err != nil {
			return err
		}
	}
	b.doom() // what is under way stops at its next step and undoes itself
	<-b.made
	if p := b.under(); p != nil {
		<-p.done
	}
	return m.remove(context.WithoutCancel(ctx), b, reason)
}

// remove is the one teardown: Stopping, every host step, Gone. The first caller does it, others wait for it.
func (m *Manager) remove(ctx context.Context, b *box, reason string) error {
	b.mu.Lock()
	if r := b.removal; r != nil {
		b.mu.Unlock()
		select {
		case <-r.done:
			return r.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	r := &removal{done: make(chan struct{})}
	b.removal = r
	b.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, removeLimit)
	defer cancel()
	r.err = m.tearDown(ctx, b, reason)
	m.forget(b) // after a failure the record stays Stopping: the next reconcile or kill begins anew
	close(r.done)
	return r.err
}

func (m *Manager) tearDown(ctx context.Context, b *box, reason string) error {
	rec, err := m.o.Records.SandboxByID(ctx, b.id)
	if err != nil {
		return err
	}
	for rec.Status != Stopping && rec.Status != Gone {
		if _, err := m.become(ctx, b.id, rec.Status, Stopping, reason); err != nil {
			return err
		}
		if rec, err = m.o.Records.SandboxByID(ctx, b.id); err != nil {
			return err
		}
	}
	_ = b.client.Close()
	if err := m.clear(ctx, b); err != nil {
		return err
	}
	if rec.Status == Gone {
		return nil
	}
	_, err = m.become(ctx, b.id, Stopping, Gone, rec.Reason)
	return err
}

// watch waits for the sandbox's death in the background.
func (m *Manager) watch(b *box) {
	ctx, cancel := context.WithCancel(m.life)
	b.interruptBy(cancel)
	m.wg.Go(func() {
		defer cancel()
		death, err := m.o.Runtime.Wait(ctx, b.id)
		if ctx.Err() != nil {
			return // killed by us, or the server stops
		}
		if err != nil {
			death = Death{Reason: ReasonCrash, Detail: err.Error()}
		}
		m.died(b, death)
	})
}

// died frees what a dead sandbox held and keeps its record, so that people can read why.
func (m *Manager) died(b *box, d Death) {
	ctx, cancel := context.WithTimeout(context.Background(), removeLimit)
	defer cancel()
	m.o.Log.Warn("sandbox died", "sandbox", string(b.id), "reason", d.Reason, "detail", d.Detail)
	moved, err := m.become(ctx, b.id, Running, Failed, d.Reason)
	if err != nil {
		// Without its box the next reconcile takes the record up, and finds the sandbox dead again.
		m.o.Log.Error("note a death", "sandbox", string(b.id), "cause", err.Error())
		_ = b.client.Close()
		m.forget(b)
		return
	}
	if !moved {
		b.mu.Lock()
		taken := b.removal != nil || b.passage != nil
		b.mu.Unlock()
		if !taken { // it was removed before this box was made: nobody else forgets it
			_ = b.client.Close()
			m.forget(b)
		}
		return
	}
	_ = b.client.Close()
	_ = m.clear(ctx, b) // logged; reconcile tries again
	m.forget(b)
}

// clear takes everything of b off the host.
func (m *Manager) clear(ctx context.Context, b *box) error {
	b.host.Lock()
	defer b.host.Unlock()
	if err := m.sweep(ctx, b.id); err != nil {
		m.o.Log.Error("remove sandbox", "sandbox", string(b.id), "cause", err.Error())
		return fmt.Errorf("remove %s: %w", b.id, err)
	}
	return nil
}

// Life ends when the manager lets go of its sandboxes.
func (m *Manager) Life() context.Context { return m.life }

// Close lets go of every sandbox without ending it: creations under way are undone, bridges closed, watchers stopped.
func (m *Manager) Close() {
	m.mu.Lock()
	m.closing = true
	boxes := make([]*box, 0, len(m.boxes))
	for _, b := range m.boxes {
		boxes = append(boxes, b)
	}
	m.mu.Unlock()
	for _, b := range boxes {
		select {
		case <-b.made:
		default:
			b.interrupt()
			<-b.made
		}
	}
	m.drain()
	m.stop()
	m.wg.Wait()
	for _, b := range boxes {
		_ = b.client.Close()
	}
}

// ---- the map of boxes ----

func (m *Manager) newBox(id ID) *box {
	dial := func(ctx context.Context, bulk bool) (io.ReadWriteCloser, error) {
		return m.o.Runtime.Dial(ctx, id, bulk)
	}
	return &box{id: id, client: agent.NewClient(dial), made: make(chan struct{})}
}

func (m *Manager) boxOf(id ID) *box {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.boxes[id]
}

// admit enters a box that is about to be created; refused while closing.
func (m *Manager) admit(b *box) error {
	if !b.id.Valid() {
		return fmt.Errorf("sandbox id %q is not valid", b.id)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closing {
		return fault.New(fault.Starting, "The server is stopping; try again in a moment.")
	}
	if m.boxes[b.id] != nil {
		return fault.New(fault.Conflict, "A sandbox with this id exists already.")
	}
	m.boxes[b.id] = b
	return nil
}

// adoptForRemoval enters b, or gives the box that another caller has entered meanwhile.
func (m *Manager) adoptForRemoval(b *box) (*box, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if other := m.boxes[b.id]; other != nil {
		return other, nil
	}
	m.boxes[b.id] = b
	return b, nil
}

func (m *Manager) forget(b *box) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.boxes[b.id] == b {
		delete(m.boxes, b.id)
	}
}
