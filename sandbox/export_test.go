package sandbox

// Ready tells how many sandboxes of the pool wait for an owner.
func (m *Manager) Ready() int {
	m.pool.mu.Lock()
	defer m.pool.mu.Unlock()
	return len(m.pool.ready)
}
