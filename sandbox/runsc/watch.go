package runsc

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// watcher waits for many file descriptors (pidfds, cgroup events) in one goroutine, hence one thread for any number of
// sandboxes. Safe for concurrent use.
type watcher struct {
	ep   int
	wake int
	done chan struct{}

	mu    sync.Mutex
	chans map[int32]chan struct{}
}

func newWatcher() (*watcher, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watcher: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(ep)
		return nil, fmt.Errorf("watcher: %w", err)
	}
	w := &watcher{ep: ep, wake: wake, done: make(chan struct{}), chans: map[int32]chan struct{}{}}
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(wake)}); err != nil {
		return nil, errors.Join(fmt.Errorf("watcher: %w", err), unix.Close(ep), unix.Close(wake))
	}
	go w.loop()
	return w, nil
}

func (w *watcher) loop() {
	defer close(w.done)
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(w.ep, events, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return
		}
		w.mu.Lock()
		for _, e := range events[:n] {
			if e.Fd == int32(w.wake) {
				w.mu.Unlock()
				return
			}
			if c := w.chans[e.Fd]; c != nil {
				select {
				case c <- struct{}{}:
				default: // an event that was not taken yet says the same
				}
			}
		}
		w.mu.Unlock()
	}
}

// add watches a descriptor: one value on the channel for each change, at least. stop ends the watch and closes fd.
func (w *watcher) add(fd int, events uint32) (<-chan struct{}, func(), error) {
	c := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := unix.EpollCtl(w.ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events | unix.EPOLLET, Fd: int32(fd)}); err != nil {
		_ = unix.Close(fd)
		return nil, nil, fmt.Errorf("watch: %w", err)
	}
	w.chans[int32(fd)] = c
	var once sync.Once
	return c, func() {
		once.Do(func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			delete(w.chans, int32(fd))
			_ = unix.EpollCtl(w.ep, unix.EPOLL_CTL_DEL, fd, nil)
			_ = unix.Close(fd)
		})
	}, nil
}

// exact watches one exact process; unix.ESRCH when it is gone already.
func (w *watcher) exact(p proc) (<-chan struct{}, func(), error) {
	fd, err := p.open()
	if err != nil {
		return nil, nil, err
	}
	return w.add(fd, unix.EPOLLIN)
}

// memory watches a leaf for the kernel killing in it.
func (w *watcher) memory(c *cgroups, leaf string) (<-chan struct{}, func(), error) {
	if c.v2 {
		fd, err := unix.Open(c.file("memory", leaf, "memory.events"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, nil, err
		}
		return w.add(fd, unix.EPOLLPRI)
	}
	oom, err := os.Open(c.file("memory", leaf, "memory.oom_control"))
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = oom.Close() }()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, nil, err
	}
	if err := writeControl(c.file("memory", leaf, "cgroup.event_control"), fmt.Sprintf("%d %d", fd, oom.Fd())); err != nil {
		_ = unix.Close(fd)
		return nil, nil, err
	}
	return w.add(fd, unix.EPOLLIN)
}

func (w *watcher) close() error {
	one := [8]byte{1}
	_, err := unix.Write(w.wake, one[:])
	if err != nil {
		return err
	}
	<-w.done
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(unix.Close(w.ep), unix.Close(w.wake))
}
