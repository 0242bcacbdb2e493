package sandbox

import (
	"context"
	"errors"
	"io"
	"time"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

// Agent gives the client of a running sandbox, and wakes one that is suspended for it. Otherwise: fault NotFound,
// Starting, or SandboxDied with its reason.
func (m *Manager) Agent(ctx context.Context, id ID) (*agent.Client, error) {
	for {
		c, err := m.AwakeAgent(ctx, id)
		if !errors.Is(err, ErrAsleep) {
			return c, err
		}
		if _, err := m.Resume(ctx, id); err != nil {
			return nil, err
		}
	}
}

// ErrAsleep means that a sandbox is suspended, or on its way there or back.
var ErrAsleep = errors.New("the sandbox is suspended")

// AwakeAgent is Agent without waking: ErrAsleep instead.
func (m *Manager) AwakeAgent(ctx context.Context, id ID) (*agent.Client, error) {
	r, err := m.o.Records.SandboxByID(ctx, id)
	if err != nil {
		return nil, err
	}
	return m.AgentOf(r)
}

// AgentOf is AwakeAgent for a record that was read just now.
func (m *Manager) AgentOf(r Record) (*agent.Client, error) {
	switch r.Status {
	case Running:
		if b := m.boxOf(r.ID); b != nil {
			return b.client, nil
		}
	case Suspending, Suspended, Resuming:
		return nil, fault.Wrap(ErrAsleep, fault.Starting, "The sandbox is %s.", r.Status)
	}
	return nil, notRunning(r)
}

func notRunning(r Record) error {
	switch r.Status {
	case Gone, Stopping:
		return fault.New(fault.NotFound, "Sandbox not found")
	case Failed:
		return Died(r.Reason)
	case Suspended:
		return fault.New(fault.Conflict, "The sandbox is suspended; wake it first.").With("reason", "suspended")
	default:
		return fault.New(fault.Starting, "The sandbox is %s; try again in a moment.", r.Status)
	}
}

// Died is the error for calls to a sandbox that ended by itself.
func Died(reason string) error {
	words := map[string]string{
		ReasonOutOfMemory:      "it used more memory than its limit",
		ReasonTooManyProcesses: "it started more processes than its limit",
		ReasonDiskFull:         "its disk was full",
		ReasonCrash:            "its kernel stopped unexpectedly",
		ReasonKilled:           "it was killed",
		ReasonStartFailed:      "it could not be started",
		ReasonHostRestarted:    "the host was restarted",
		ReasonSaveLost:         "what was kept of it while it was suspended is gone",
		ReasonIdle:             "nothing used it for longer than its idle_timeout",
		ReasonExpired:          "its max_lifetime was over",
	}
	w, ok := words[reason]
	if !ok {
		w = "of an unknown reason"
	}
	return fault.New(fault.SandboxDied, "The sandbox died: %s.", w).With("reason", reason)
}

// Explain turns a broken bridge into what really happened: it waits a little for the sandbox's death to be known.
func (m *Manager) Explain(ctx context.Context, id ID, err error) error {
	if errors.Is(err, agent.ErrStopped) {
		return fault.Wrap(err, fault.Starting, "The sandbox is stopped: somebody on the host has sent its processes a stop signal. It answers again when they are continued; it can be killed as it is.").
			With("reason", "stopped")
	}
	if err == nil || !errors.Is(err, agent.ErrBridge) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		r, rerr := m.o.Records.SandboxByID(ctx, id)
		switch {
		case rerr == nil && r.Status == Failed:
			return Died(r.Reason)
		case rerr == nil && (r.Status == Stopping || r.Status == Gone):
			if r.Reason == ReasonIdle || r.Reason == ReasonExpired {
				return Died(r.Reason)
			}
			return Died(ReasonKilled)
		case rerr == nil && (r.Status == Suspending || r.Status == Suspended || r.Status == Resuming):
			return fault.Wrap(err, fault.Starting, "The sandbox was suspended meanwhile. What runs in it goes on when it wakes: ask again.").With("reason", "suspended")
		}
		select {
		case <-ctx.Done():
			return fault.Wrap(err, fault.Starting, "The connection into the sandbox broke; try again.")
		case <-tick.C:
		}
	}
}

// Record gives one record, Gone ones too.
func (m *Manager) Record(ctx context.Context, id ID) (Record, error) {
	return m.o.Records.SandboxByID(ctx, id)
}

// Records lists records by filter.
func (m *Manager) Records(ctx context.Context, f Filter) ([]Record, error) {
	return m.o.Records.Sandboxes(ctx, f)
}

// Usage reads what a sandbox takes: of a suspended one, what is kept of it on the disk.
func (m *Manager) Usage(ctx context.Context, id ID) (Usage, error) {
	if m.boxOf(id) == nil {
		r, err := m.o.Records.SandboxByID(ctx, id)
		if err != nil {
			return Usage{}, err
		}
		if r.Status == Suspended {
			return Usage{DiskBytes: r.SavedBytes}, nil
		}
		return Usage{}, notRunning(r)
	}
	return m.o.Runtime.Usage(ctx, id)
}

// Running lists the sandboxes that this process supervises and that are not being made or removed.
func (m *Manager) Running() []ID {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]ID, 0, len(m.boxes))
	for id, b := range m.boxes {
		if b.pooled.Load() {
			continue
		}
		select {
		case <-b.made:
			b.mu.Lock()
			if b.removal == nil {
				out = append(out, id)
			}
			b.mu.Unlock()
		default:
		}
	}
	return out
}
