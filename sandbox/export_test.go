package sandbox

import "context"

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
