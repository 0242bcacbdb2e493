package guest

import (
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// spawn starts the shell, or the program that the line means, and everything that watches it.
func (s *Server) spawn(c *command, attr *syscall.ProcAttr, timeout time.Duration) error {
	p, otherwise := programOf(c.spec.Command, attr)
	done, outputs := s.spawnReady(c, p, attr)
	if done == nil {
		var err error
		if done, outputs, err = s.spawnAfresh(c, p, otherwise, attr); err != nil {
			return err
		}
	}
	var pumps sync.WaitGroup
	for i, f := range outputs {
		pumps.Go(func() { c.pump(i, f) })
	}
	drained := make(chan struct{})
	go func() { pumps.Wait(); close(drained) }()
	go s.watch(c, done, drained, timeout)
	return nil
}

// spawnReady starts a program by the process that stands by, if there is one and it can; else done is nil.
func (s *Server) spawnReady(c *command, p program, attr *syscall.ProcAttr) (done <-chan syscall.WaitStatus, outputs []*os.File) {
	if !p.tree || attr.Sys.Credential != nil || c.wantsStdin() {
		return nil, nil
	}
	b := s.takeStandby()
	if b == nil {
		return nil, nil
	}
	c.started = now()
	if err := b.become(attr.Dir, p.path, p.argv, p.env); err != nil {
		b.release() // the long way finds out what is wrong, if anything is
		return nil, nil
	}
	c.pid = b.pid
	return b.done, b.outputs
}

// spawnAfresh makes the pipes and a process.
func (s *Server) spawnAfresh(c *command, p, otherwise program, attr *syscall.ProcAttr) (done <-chan syscall.WaitStatus, outputs []*os.File, err error) {
	var fds []int // the child's ends
	defer func() {
		for _, fd := range fds {
			_ = syscall.Close(fd)
		}
	}()
	var ours []*os.File
	fail := func(err error) (<-chan syscall.WaitStatus, []*os.File, error) {
		for _, f := range ours {
			_ = f.Close()
		}
		return nil, nil, err
	}
	if c.wantsStdin() {
		child, us, err := pipe(false)
		if err != nil {
			return fail(err)
		}
		fds, ours = append(fds, child), append(ours, us)
	} else {
		fd, err := syscall.Open(os.DevNull, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		if err != nil {
			return fail(err)
		}
		fds = append(fds, fd)
	}
	for range 2 {
		child, us, err := pipe(true)
		if err != nil {
			return fail(err)
		}
		fds, ours = append(fds, child), append(ours, us)
	}
	attr.Files = []uintptr{uintptr(fds[0]), uintptr(fds[1]), uintptr(fds[2])}

	c.started = now()
	pid, done, err := s.startProgram(p, otherwise, attr)
	if err != nil {
		return fail(err)
	}
	c.pid = pid
	if c.wantsStdin() {
		c.stdin = ours[0]
		if len(c.spec.Stdin) > 0 {
			go c.feed(c.stdin, c.spec.Stdin, !c.spec.KeepStdin)
			c.spec.Stdin = nil
		}
		ours = ours[1:]
	}
	return done, ours, nil
}

func (c *command) wantsStdin() bool { return c.spec.KeepStdin || len(c.spec.Stdin) > 0 }

// pipe makes a pipe of which only our end is non-blocking: programs are not made for a stdout that says EAGAIN.
func pipe(childWrites bool) (child int, ours *os.File, err error) {
	var p [2]int
	if err := syscall.Pipe2(p[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK); err != nil {
		return -1, nil, err
	}
	us, them := p[1], p[0]
	if childWrites {
		us, them = p[0], p[1]
	}
	// Not SetNonblock, which asks for the flags first: there are no others, and a system call costs 30 µs here.
	if _, err := unix.FcntlInt(uintptr(them), unix.F_SETFL, 0); err != nil {
		_, _ = syscall.Close(us), syscall.Close(them)
		return -1, nil, err
	}
	return them, os.NewFile(uintptr(us), "pipe"), nil
}

func (c *command) feed(w *os.File, data []byte, eof bool) {
	_, _ = w.Write(data) // a program that does not read its stdin is no fault of ours
	if eof {
		c.closeStdin()
	}
}

func (c *command) closeStdin() {
	c.mu.Lock()
	f := c.stdin
	c.stdin = nil
	c.mu.Unlock()
	if f != nil {
		_ = f.Close()
	}
}
