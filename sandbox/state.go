package sandbox

import (
	"context"
	"fmt"
	"slices"
)

// next lists, for each status, where a sandbox may go from it. What is not listed cannot happen.
var next = map[Status][]Status{
	Creating:   {Running, Stopping},
	Running:    {Suspending, Stopping, Failed},
	Suspending: {Suspended, Running, Stopping, Failed},
	Suspended:  {Resuming, Stopping, Failed},
	Resuming:   {Running, Suspended, Stopping, Failed},
	Failed:     {Stopping},
	Stopping:   {Gone},
	Gone:       {},
}

// CanBecome reports whether a sandbox may go from s to t.
func (s Status) CanBecome(t Status) bool { return slices.Contains(next[s], t) }

// become is the one transition function: it checks the table, moves the record by compare-and-set, and tells the
// listener. It answers false when another transition was faster; the caller then reads the record again.
func (m *Manager) become(ctx context.Context, id ID, from, to Status, reason string) (bool, error) {
	if !from.CanBecome(to) {
		return false, fmt.Errorf("sandbox %s: %s cannot become %s", id, from, to)
	}
	moved, err := m.o.Records.ChangeStatus(ctx, id, from, to, reason, m.o.Now())
	if err != nil {
		return false, fmt.Errorf("sandbox %s: %s to %s: %w", id, from, to, err)
	}
	if moved {
		m.o.Log.Info("sandbox changed", "sandbox", string(id), "from", string(from), "to", string(to), "reason", reason)
		m.tell(ctx, id)
	}
	return moved, nil
}

// tell gives the listener the record as it is now.
func (m *Manager) tell(ctx context.Context, id ID) {
	if m.o.OnChange == nil {
		return
	}
	if r, err := m.o.Records.SandboxByID(ctx, id); err == nil {
		m.o.OnChange(r)
	}
}
