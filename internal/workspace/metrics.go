package workspace

import (
	"context"
	"sync"
	"time"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/sandbox"
	"sandgate/sandbox/idle"
)

// The meters of every running sandbox are read every MetricsGrain and kept for an hour, in memory.
const (
	MetricsGrain = 10 * time.Second
	keptSamples  = 360
)

// Sample is a reading of what a sandbox takes.
type Sample struct {
	At time.Time
	sandbox.Usage
	// Cores is the processor time used a second since the reading before; -1 in the first one.
	Cores float64
}

// meters are the rings of all sandboxes. The zero value is ready.
type meters struct {
	mu    sync.Mutex
	rings map[sandbox.ID]*ring
}

// ring holds the last samples of one sandbox; it grows to its full size and is written round then.
type ring struct {
	samples []Sample
	next    int // where the oldest is, once full
}

func (r *ring) add(s Sample) {
	s.Cores = -1
	if n := len(r.samples); n > 0 {
		s.Cores = coresBetween(r.samples[(r.next+n-1)%n], s)
	}
	if len(r.samples) < keptSamples {
		r.samples = append(r.samples, s)
		return
	}
	r.samples[r.next] = s
	r.next = (r.next + 1) % keptSamples
}

// coresBetween is the mean use of the processor between two readings; -1 when it cannot be told.
func coresBetween(a, b Sample) float64 {
	d := b.At.Sub(a.At).Seconds()
	if d <= 0 || b.CPUSeconds < a.CPUSeconds {
		return -1
	}
	return (b.CPUSeconds - a.CPUSeconds) / d
}

func (m *meters) forget(id sandbox.ID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.rings, id)
}

// SampleMetrics reads the meters of all running sandboxes every MetricsGrain until ctx ends: one loop for all.
func (s *Service) SampleMetrics(ctx context.Context) {
	tick := time.NewTicker(MetricsGrain)
	defer tick.Stop()
	for {
		s.sample(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sample reads every meter once, and forgets the rings of sandboxes that run no more.
func (s *Service) sample(ctx context.Context) {
	if s.o.Sandboxes == nil {
		return
	}
	running := map[sandbox.ID]bool{}
	for _, id := range s.o.Sandboxes.Running() {
		running[id] = true
		u, err := s.o.Sandboxes.Usage(ctx, id)
		if err != nil {
			continue // it is ending
		}
		s.meters.mu.Lock()
		if s.meters.rings == nil {
			s.meters.rings = map[sandbox.ID]*ring{}
		}
		r := s.meters.rings[id]
		if r == nil {
			r = &ring{}
			s.meters.rings[id] = r
		}
		r.add(Sample{At: s.o.Now(), Usage: u})
		computing := r.samples[(r.next+len(r.samples)-1)%len(r.samples)].Cores >= idle.BusyCores
		s.meters.mu.Unlock()
		if !computing {
			continue
		}
		if rec, err := s.o.Sandboxes.Record(ctx, id); err == nil && rec.Life.KeepWhileBusy {
			s.o.Sandboxes.Busy(ctx, id)
		}
	}
	s.meters.mu.Lock()
	defer s.meters.mu.Unlock()
	for id := range s.meters.rings {
		if !running[id] {
			delete(s.meters.rings, id)
		}
	}
}

// Metrics gives a reading of a running sandbox, with its use of the processor since the last kept one. Needs read or manage.
func (s *Service) Metrics(ctx context.Context, a auth.Actor, id string) (Sample, error) {
	u, err := s.Usage(ctx, a, id)
	if err != nil {
		return Sample{}, err
	}
	out := Sample{At: s.o.Now(), Usage: u, Cores: -1}
	s.meters.mu.Lock()
	defer s.meters.mu.Unlock()
	if r := s.meters.rings[sandbox.ID(id)]; r != nil {
		n := len(r.samples)
		out.Cores = coresBetween(r.samples[(r.next+n-1)%n], out)
	}
	return out, nil
}

// MetricsHistory gives the kept readings of a sandbox that are later than since, oldest first. Needs read or manage.
func (s *Service) MetricsHistory(ctx context.Context, a auth.Actor, id string, since time.Time) ([]Sample, error) {
	if err := s.may(ctx, a, approval.Action{Name: "sandbox.usage", SandboxID: id}, auth.SandboxesRead, auth.SandboxesManage); err != nil {
		return nil, err
	}
	r, err := s.locate(ctx, a, id)
	if err != nil {
		return nil, err
	}
	s.meters.mu.Lock()
	defer s.meters.mu.Unlock()
	out := []Sample{}
	if kept := s.meters.rings[r.ID]; kept != nil {
		for i := range kept.samples {
			if one := kept.samples[(kept.next+i)%len(kept.samples)]; one.At.After(since) {
				out = append(out, one)
			}
		}
	}
	return out, nil
}
