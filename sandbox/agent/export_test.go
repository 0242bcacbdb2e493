package agent

import "time"

// SetOverdue shortens how long a command's end is awaited after its time-out.
func SetOverdue(d time.Duration) (restore func()) {
	old := overdue
	overdue = d
	return func() { overdue = old }
}

// Busy reports whether bulk transfers are under way.
func (c *Client) Busy() bool { return len(c.bulk) > 0 }
