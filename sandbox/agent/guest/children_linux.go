package guest

import (
	"sync"
	"syscall"
)

// children starts processes and hands out how each ended. As process 1 a single loop reaps everything, so that no two
// waiters ever compete for a status; otherwise each child is waited for by pid and others' children are left alone.
type children struct {
	init bool
	wake chan struct{} // a child was started: the loop has something to wait for again

	mu       sync.Mutex
	waiting  map[int]chan syscall.WaitStatus
	early    map[int]syscall.WaitStatus // ended before start had registered them
	starting int
}

func newChildren(init bool) *children {
	c := &children{
		init: init, wake: make(chan struct{}, 1),
		waiting: map[int]chan syscall.WaitStatus{}, early: map[int]syscall.WaitStatus{},
	}
	if init {
		go c.reap()
	}
	return c
}

// start forks and executes. The channel delivers the status once, when the process has been reaped: from then on the
// pid means nothing.
func (c *children) start(path string, argv []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
	done := make(chan syscall.WaitStatus, 1)
	if !c.init {
		pid, err := syscall.ForkExec(path, argv, attr)
		if err != nil {
			return 0, nil, err
		}
		go func() {
			var ws syscall.WaitStatus
			for {
				_, err := syscall.Wait4(pid, &ws, 0, nil)
				if err != syscall.EINTR {
					break
				}
			}
			done <- ws
		}()
		return pid, done, nil
	}

	c.mu.Lock()
	c.starting++
	c.mu.Unlock()
	pid, err := syscall.ForkExec(path, argv, attr)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.starting--
	if err == nil {
		if ws, ok := c.early[pid]; ok {
			done <- ws
		} else {
			c.waiting[pid] = done
		}
	}
	if c.starting == 0 {
		clear(c.early)
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return pid, done, err
}

// reap waits for any child, for ever. A blocked wait costs nothing and wakes without the detour over a signal.
func (c *children) reap() {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, 0, nil)
		switch {
		case err == syscall.EINTR:
			continue
		case err != nil:
			// No children, so no orphan can come either until the next start.
			<-c.wake
			continue
		}
		c.mu.Lock()
		if done, ok := c.waiting[pid]; ok {
			delete(c.waiting, pid)
			done <- ws
		} else if c.starting > 0 {
			c.early[pid] = ws
		}
		c.mu.Unlock()
	}
}
