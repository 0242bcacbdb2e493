package sandbox

import (
	"context"
	"time"
)

// Create is CreateWithin without a quota.
func (m *Manager) Create(ctx context.Context, r Record) (Record, error) {
	return m.CreateWithin(ctx, r, Quota{})
}

// Ready tells how many sandboxes of the pool wait for an owner.
func (m *Manager) Ready() int {
	m.pool.mu.Lock()
	defer m.pool.mu.Unlock()
	return len(m.pool.ready)
}

// SettleWithin sets how long a reconciliation waits for one sandbox.
func (m *Manager) SettleWithin(d time.Duration) { m.settleWait = d }
