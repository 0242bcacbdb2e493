package guest

import (
	"fmt"
	"os"
	"syscall"
	"time"
)

// A short command's own work is small beside what it takes to start it: pipes, a fork, a first program that makes it the head
// of a tree. So one process per sandbox stands by that has all this behind it and only has to be told what to become. It is
// made after a command has been answered, used once, and given up when nothing used it for a while: what is idle holds nothing.
// A command of another user, or with a standard input, is started the long way.

// standbyFor is how long a process stands by unused: no longer than a bridge does, and no program is much older than its command.
const standbyFor = 30 * time.Second

// standby is a process that waits to be told what to become, with its session, its pipes and its place in the tree ready.
type standby struct {
	pid     int
	done    <-chan syscall.WaitStatus
	control int // written to once
	outputs []*os.File
	expiry  *time.Timer
}

// standBy makes a process stand by, unless one does.
func (s *Server) standBy() {
	s.mu.Lock()
	wanted := s.starter != "" && s.ready == nil && !s.readying && !s.closed
	if wanted {
		s.readying = true
	}
	fresh := s.standbys
	s.mu.Unlock()
	if !wanted {
		return
	}
	b, err := s.newStandby()
	s.mu.Lock()
	s.readying = false
	// One that was made while they were called off may hold what it should not.
	keep := err == nil && !s.closed && s.standbys == fresh
	if keep {
		s.ready = b
		b.expiry = time.AfterFunc(standbyFor, func() { s.dismiss(b) })
	}
	s.mu.Unlock()
	if err == nil && !keep {
		b.release()
	}
}

func (s *Server) newStandby() (_ *standby, err error) {
	var theirs []int
	b := &standby{control: -1}
	defer func() {
		for _, fd := range theirs {
			_ = syscall.Close(fd)
		}
		if err != nil {
			b.release()
		}
	}()
	null, err := syscall.Open(os.DevNull, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("stand by: %w", err)
	}
	theirs = append(theirs, null)
	for range 2 {
		child, us, err := pipe(true)
		if err != nil {
			return nil, fmt.Errorf("stand by: %w", err)
		}
		theirs, b.outputs = append(theirs, child), append(b.outputs, us)
	}
	var control [2]int
	if err := syscall.Pipe2(control[:], syscall.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("stand by: %w", err)
	}
	theirs, b.control = append(theirs, control[0]), control[1]
	b.pid, b.done, err = s.children.start(s.starter, []string{"standby"}, &syscall.ProcAttr{
		Dir: "/", Files: []uintptr{uintptr(theirs[0]), uintptr(theirs[1]), uintptr(theirs[2]), uintptr(theirs[3])},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, fmt.Errorf("stand by: %w", err)
	}
	return b, nil
}

// takeStandby gives the process that stands by, for good; nil when there is none.
func (s *Server) takeStandby() *standby {
	s.mu.Lock()
	b := s.ready
	s.ready = nil
	s.mu.Unlock()
	if b == nil {
		return nil
	}
	b.expiry.Stop()
	select {
	case <-b.done: // somebody inside has ended it
		b.release()
		return nil
	default:
		return b
	}
}

// dismiss gives one up that nobody took.
func (s *Server) dismiss(b *standby) {
	s.mu.Lock()
	mine := s.ready == b
	if mine {
		s.ready = nil
	}
	s.mu.Unlock()
	if mine {
		b.release()
	}
}

// callOff gives up the process that stands by, and one that is being made: what this process may do has changed.
func (s *Server) callOff() {
	s.mu.Lock()
	s.standbys++
	b := s.ready
	s.ready = nil
	s.mu.Unlock()
	if b != nil {
		b.expiry.Stop()
		b.release()
	}
}

// release ends it.
func (b *standby) release() {
	if b.done != nil {
		select {
		case <-b.done:
		default:
			_ = syscall.Kill(b.pid, syscall.SIGKILL)
		}
	}
	if b.control >= 0 {
		_ = syscall.Close(b.control)
		b.control = -1
	}
	for _, f := range b.outputs {
		_ = f.Close()
	}
}

// become tells it what to be. After an error it is of no use.
func (b *standby) become(dir, path string, argv, env []string) error {
	im := image(dir, path, argv, env)
	if im == nil {
		return syscall.E2BIG
	}
	// Somebody inside may have stopped all processes there are; a new one would not be stopped.
	if err := syscall.Kill(b.pid, syscall.SIGCONT); err != nil {
		return fmt.Errorf("wake: %w", err)
	}
	for len(im) > 0 { // more than the pipe holds is taken piece by piece
		n, err := syscall.Write(b.control, im)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("tell: %w", err)
		}
		im = im[n:]
	}
	_ = syscall.Close(b.control)
	b.control = -1
	return nil
}
