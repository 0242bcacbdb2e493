package guest

import (
	"bytes"
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

// input queues typed bytes; false when the program has not read enough of what was typed before.
func (t *terminal) input(p []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.exit != nil || len(p) == 0 {
		return true
	}
	if t.queued+len(p) > agent.MaxInput {
		return false
	}
	t.queue = append(t.queue, append([]byte(nil), p...))
	t.queued += len(p)
	select {
	case t.typed <- struct{}{}:
	default:
	}
	return true
}

// writeAll types what was queued. Only this goroutine waits for a program that does not read.
func (t *terminal) writeAll() {
	for {
		t.mu.Lock()
		var p []byte
		if len(t.queue) > 0 {
			p = t.queue[0]
			t.queue = t.queue[1:]
		}
		drops := t.drops
		t.mu.Unlock()
		if p == nil {
			select {
			case <-t.typed:
				continue
			case <-t.gone:
				return
			}
		}
		for len(p) > 0 {
			part := t.part(p)
			n, err := t.master.Write(part)
			if errors.Is(err, os.ErrClosed) {
				return
			}
			if err != nil {
				// A line discipline in a bad moment (its foreground group just died) must not end all typing.
				n = max(n, 1)
			}
			t.mu.Lock()
			if t.drops != drops {
				t.mu.Unlock()
				break
			}
			t.queued = max(t.queued-n, 0)
			t.mu.Unlock()
			p = p[n:]
		}
	}
}

// part gives the beginning of p that is written at once. In gVisor a character that signals is written alone, after
// what was typed before it and not read has been dropped. Linux drops it itself; gVisor keeps it, and does not even
// look at the character before the line in front of it has been read.
func (t *terminal) part(p []byte) []byte {
	p = p[:min(len(p), writeAttempt)]
	if !t.sentry {
		return p
	}
	switch i := bytes.IndexAny(p, "\x03\x1a\x1c"); {
	case i > 0:
		return p[:i]
	case i == 0:
		if t.signals(p[0]) {
			t.flushTyped()
		}
		return p[:1]
	}
	return p
}

// signals reports whether c is a character that makes the line discipline send a signal now.
func (t *terminal) signals(c byte) bool {
	found := false
	_ = control(t.master, func(fd int) error {
		tio, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err == nil && tio.Lflag&unix.ISIG != 0 && tio.Lflag&unix.NOFLSH == 0 && c != 0 {
			found = c == tio.Cc[unix.VINTR] || c == tio.Cc[unix.VQUIT] || c == tio.Cc[unix.VSUSP]
		}
		return err
	})
	return found
}

// flushTyped drops what the line discipline holds of typed bytes. Only the program's end of the terminal can; it is
// not kept open, or its last holder could never be gone.
func (t *terminal) flushTyped() {
	fd, err := unix.Open(t.tty, unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	_ = unix.IoctlSetInt(fd, unix.TCFLSH, unix.TCIFLUSH)
	_ = unix.Close(fd)
}

// dropQueue forgets what was typed and not written yet: after an interrupt it would meet another program.
func (t *terminal) dropQueue() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.queued == 0 {
		return
	}
	t.drops++
	t.queue, t.queued = nil, 0
	// A write that waits for the program gives up.
	_ = t.master.SetWriteDeadline(now())
	_ = t.master.SetWriteDeadline(time.Time{})
}

// signal reaches the foreground process group at once, past everything that was typed.
func (t *terminal) signal(sig syscall.Signal) error {
	select {
	case <-t.gone:
		return fault.New(fault.Conflict, "The terminal has ended.")
	default:
	}
	if sig == syscall.SIGINT || sig == syscall.SIGQUIT || sig == syscall.SIGTSTP {
		t.dropQueue()
	}
	var group int
	err := control(t.master, func(fd int) error {
		var err error
		group, err = unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		return err
	})
	if err != nil || group <= 1 {
		// gVisor answers this to members of the session only. The line discipline knows the group, for three signals.
		if t.typeSignal(sig) {
			return nil
		}
		group = t.youngestGroup()
	}
	if t.reaped.Load() && group == t.pid {
		return nil
	}
	return syscall.Kill(-group, sig)
}

// typeSignal writes the character that means sig straight to the line discipline, where it means that now.
func (t *terminal) typeSignal(sig syscall.Signal) bool {
	place, known := map[syscall.Signal]int{
		syscall.SIGINT: unix.VINTR, syscall.SIGQUIT: unix.VQUIT, syscall.SIGTSTP: unix.VSUSP,
	}[sig]
	if !known {
		return false
	}
	if t.sentry {
		t.flushTyped()
	}
	return control(t.master, func(fd int) error {
		tio, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err != nil {
			return err
		}
		if tio.Lflag&unix.ISIG == 0 || tio.Cc[place] == 0 {
			return syscall.EINVAL
		}
		// Not through the file: a write of typed bytes may hold it until the program reads.
		n, err := unix.Write(fd, []byte{tio.Cc[place]})
		if err == nil && n != 1 {
			err = syscall.EAGAIN
		}
		return err
	}) == nil
}

// youngestGroup guesses the foreground group: the one that was made last and is not stopped, else the shell's own.
func (t *terminal) youngestGroup() int {
	group := t.pid
	for _, p := range processes() {
		if p.session == t.pid && p.pid == p.pgrp && p.state != 'T' && p.state != 'Z' {
			group = max(group, p.pgrp)
		}
	}
	return group
}
