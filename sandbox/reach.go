package sandbox

import (
	"context"
	"errors"
	"io"
	"time"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

// Agent gives the client of a running sandbox. Otherwise: fault NotFound, Starting, or SandboxDied with its reason.
func (m *Manager) Agent(ctx context.Context, id ID) (*agent.Client, error) {
	r, err := m.o.Records.SandboxByID(ctx, id)
	if err != nil {
		return nil, err
	}
	return m.AgentOf(r)
}

// AgentOf is Agent for a record that was read just now.
func (m *Manager) AgentOf(r Record) (*agent.Client, error) {
	if b := m.boxOf(r.ID); b != nil && r.Status == Running {
		return b.client, nil
	}
	return nil, notRunning(r)
}

func notRunning(r Record) error {
	switch r.Status {
	case Gone, Stopping:
		return fault.New(fault.NotFound, "Sandbox not found")
	case Failed:
		return Died(r.Reason)
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
		ReasonHostRestarted:    "the host was restarted",
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

// Usage reads what a running sandbox takes.
func (m *Manager) Usage(ctx context.Context, id ID) (Usage, error) {
	if m.boxOf(id) == nil {
		r, err := m.o.Records.SandboxByID(ctx, id)
		if err != nil {
			return Usage{}, err
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
