package guest

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

const (
	keepEnded      = 200              // ended commands that are remembered
	keepDelivered  = 60 * time.Second // output of a foreground command after the host has had it all
	keepSpilled    = 256 << 20        // bytes on disk that ended commands may hold together
	readerWindow   = 1 << 20          // bytes a foreground command may be ahead of its reader
	stdout, stderr = 0, 1
)

// command is one run of a shell line.
type command struct {
	job
	spec    agent.CommandSpec
	started time.Time
	stdin   *os.File // nil when closed

	mu        sync.Mutex
	changed   chan struct{} // closed and replaced at every change below
	logs      [2]outlog
	readers   map[*reader]struct{}
	exit      *agent.Exit
	ended     time.Time
	delivered time.Time // when a reader has had everything up to the exit; zero before
}

// reader is a follower's place in both streams.
type reader struct{ pos [2]int64 }

// shell finds the shell of commands; the image decides. It is looked for each time: packages come and go.
func shell() (path, name string) {
	for _, p := range []string{"/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"} {
		if fi, err := os.Stat(p); err == nil && fi.Mode().IsRegular() {
			return p, "bash"
		}
	}
	return "/bin/sh", "sh"
}

// place checks where and as whom a job starts and gives environment and attributes.
func (s *Server) place(cwd, user, id string, env map[string]string, pty bool) (account, *syscall.ProcAttr, error) {
	a, err := lookupUser(user)
	if err != nil {
		return a, nil, err
	}
	vars, err := s.environ(a, env, id, pty)
	if err != nil {
		return a, nil, err
	}
	if cwd == "" {
		cwd = s.cfg.Workdir
		if _, err := os.Stat(cwd); errors.Is(err, os.ErrNotExist) {
			if err := os.MkdirAll(cwd, 0o755); err == nil && a.credential() != nil {
				_ = os.Chown(cwd, int(a.uid), int(a.gid))
			}
		}
	} else if !strings.HasPrefix(cwd, "/") || strings.ContainsRune(cwd, 0) || len(cwd) >= agent.MaxPath {
		return a, nil, fault.Field("cwd", "is not an absolute path")
	}
	if fi, err := os.Stat(cwd); err != nil || !fi.IsDir() {
		return a, nil, fault.Field("cwd", "is not a directory in the sandbox")
	}
	return a, &syscall.ProcAttr{
		Dir: cwd, Env: append(vars, "PWD="+cwd), // spares the shell a walk to find out
		Sys: &syscall.SysProcAttr{Setsid: true, Credential: a.credential()},
	}, nil
}

// startFault says in public words why a process could not be started.
func startFault(err error) error {
	switch {
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM):
		return fault.Wrap(err, fault.Conflict, "The sandbox has no room for another process.").With("reason", "too_many_processes")
	case errors.Is(err, syscall.E2BIG):
		return fault.Field("command", "is too long together with its environment")
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return fault.Field("cwd", "may not be entered by this user")
	case errors.Is(err, syscall.ENOENT):
		return fault.Wrap(err, fault.Conflict, "The sandbox's image has no shell.")
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return fault.Wrap(err, fault.Conflict, "Too many commands run at once in this sandbox.")
	}
	return err
}

// runCommand starts spec, or gives the command that already bears its id: asking twice starts once.
func (s *Server) runCommand(spec agent.CommandSpec) (*command, error) {
	if !validID(spec.ID) {
		return nil, fault.Field("id", "is not an id")
	}
	switch {
	case strings.TrimSpace(spec.Command) == "":
		return nil, fault.Field("command", "is empty")
	case strings.ContainsRune(spec.Command, 0):
		return nil, fault.Field("command", "contains a NUL byte")
	case spec.TimeoutMS < 0 || spec.TimeoutMS > agent.MaxTimeout.Milliseconds():
		return nil, fault.Field("timeout", "is outside 0 to 86400 seconds")
	case len(spec.Stdin) > agent.MaxStdin:
		return nil, fault.Field("stdin", "is over %d bytes", agent.MaxStdin)
	case len(spec.Files) > agent.MaxFileSums:
		return nil, fault.Field("files", "are more than %d", agent.MaxFileSums)
	}
	timeout := time.Duration(spec.TimeoutMS) * time.Millisecond
	if timeout == 0 && !spec.Background {
		timeout = agent.DefaultTimeout
	}
	_, attr, err := s.place(spec.Cwd, spec.User, spec.ID, spec.Env, false)
	if err != nil {
		return nil, err
	}

	c := &command{job: job{id: spec.ID}, spec: spec, changed: make(chan struct{}), readers: map[*reader]struct{}{}}
	for i := range c.logs {
		c.logs[i].dir, c.logs[i].max = s.cfg.Spill, agent.MaxOutput
	}
	s.mu.Lock()
	if old := s.commands[spec.ID]; old != nil {
		s.mu.Unlock()
		return old, nil
	}
	_, refused := s.refused[spec.ID]
	if s.closed || refused {
		s.mu.Unlock()
		return nil, fault.New(fault.Conflict, "The command was killed before it began.")
	}
	s.commands[spec.ID] = c
	s.mu.Unlock()
	s.forgetOld()

	c.mu.Lock() // until pid is set, nobody may signal or list this command
	defer c.mu.Unlock()
	err = unchanged(spec.Files) // nothing but the start itself comes after it
	if err == nil {
		err = s.spawn(c, attr, timeout)
	}
	if err != nil {
		s.mu.Lock()
		delete(s.commands, spec.ID)
		s.mu.Unlock()
		c.exit = &agent.Exit{Code: 126}
		return nil, startFault(err)
	}
	return c, nil
}

var pumpBuffers = sync.Pool{New: func() any { b := make([]byte, 64<<10); return &b }}

// pump moves one stream into its log until the last holder of the pipe is gone. After the command's end it goes on
// reading into nowhere, so that what was left in the background meets no full or broken pipe.
func (c *command) pump(i int, f *os.File) {
	defer f.Close()
	buf := pumpBuffers.Get().(*[]byte)
	defer pumpBuffers.Put(buf)
	for {
		n, err := f.Read(*buf)
		if n > 0 {
			c.mu.Lock()
			c.logs[i].add((*buf)[:n])
			c.wakeLocked()
			for !c.spec.Background && c.exit == nil && c.aheadLocked(i) {
				changed := c.changed
				c.mu.Unlock()
				<-changed
				c.mu.Lock()
			}
			c.mu.Unlock()
		}
		if err != nil {
			return
		}
	}
}

// aheadLocked reports whether stream i is so far ahead of some reader that the program has to wait for it.
func (c *command) aheadLocked(i int) bool {
	for r := range c.readers {
		if c.logs[i].size-r.pos[i] > readerWindow {
			return true
		}
	}
	return false
}

func (c *command) wakeLocked() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// watch waits for the main process and settles how the command ended.
func (s *Server) watch(c *command, done <-chan syscall.WaitStatus, drained <-chan struct{}, timeout time.Duration) {
	var expired <-chan struct{}
	if timeout > 0 {
		var stop func()
		expired, stop = runningTimer(timeout)
		defer stop()
	}
	var ws syscall.WaitStatus
	timedOut := false
	select {
	case ws = <-done:
	case <-expired:
		timedOut = true
		s.killTree(&c.job)
		ws = <-done
	}
	c.reaped.Store(true)
	select {
	case <-drained:
	default:
		t := time.NewTimer(agent.DrainAfterExit)
		select {
		case <-drained:
		case <-t.C:
		}
		t.Stop()
	}
	c.closeStdin()

	exit := exitOf(ws)
	if timedOut {
		exit = agent.Exit{Code: 124, TimedOut: true}
	}
	c.mu.Lock()
	c.ended = now()
	exit.Duration = c.ended.Sub(c.started).Seconds()
	for i := range c.logs {
		c.logs[i].eof = true
		exit.Truncated = exit.Truncated || c.logs[i].truncated
	}
	c.exit = &exit
	c.wakeLocked()
	c.mu.Unlock()
	s.mu.Lock()
	s.ended = append(s.ended, c)
	s.mu.Unlock()
}

// exitOf counts as the contract does.
func exitOf(ws syscall.WaitStatus) agent.Exit {
	if ws.Signaled() {
		return agent.Exit{Code: 128 + int(ws.Signal()), Signal: strings.TrimPrefix(unix.SignalName(ws.Signal()), "SIG")}
	}
	return agent.Exit{Code: ws.ExitStatus()}
}

// forgetOld keeps the memory of ended commands within its bounds. Called when a command starts: what does not grow
// needs no clean-up.
func (s *Server) forgetOld() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.ended) > keepEnded {
		c := s.ended[0]
		s.ended = s.ended[1:]
		delete(s.commands, c.id)
		c.forget()
	}
	var spilled int64
	limit := now().Add(-keepDelivered)
	for n := len(s.ended) - 1; n >= 0; n-- {
		c := s.ended[n]
		c.mu.Lock()
		for i := range c.logs {
			l := &c.logs[i]
			if l.file != nil {
				spilled += l.size
			}
			old := !c.spec.Background && !c.delivered.IsZero() && c.delivered.Before(limit)
			if (old || spilled > keepSpilled) && len(c.readers) == 0 {
				l.release()
			}
		}
		c.mu.Unlock()
	}
}

func (c *command) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.logs {
		c.logs[i].release()
	}
	c.wakeLocked()
}

// describe gives what the host is told.
func (c *command) describe() agent.Command {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := agent.Command{
		ID: c.id, Command: c.spec.Command, Status: "running", Background: c.spec.Background, Tag: c.spec.Tag,
		StartedAt: c.started.UTC(),
	}
	if c.exit != nil {
		ended, exit := c.ended.UTC(), *c.exit
		d.Status, d.EndedAt, d.Exit = "exited", &ended, &exit
	}
	return d
}

// follow writes both streams from r's places on. With wait it goes on to the command's end, else it stops at what is there.
func (c *command) follow(ctx context.Context, w *frameWriter, r *reader, wait bool) error {
	c.mu.Lock()
	c.readers[r] = struct{}{}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.readers, r)
		c.wakeLocked()
		c.mu.Unlock()
	}()
	buf := pumpBuffers.Get().(*[]byte)
	defer pumpBuffers.Put(buf)
	flushed := false
	for {
		sent := false
		for i, t := range []agent.FrameType{agent.FrameStdout, agent.FrameStderr} {
			c.mu.Lock()
			n, err := c.logs[i].readAt((*buf)[:agent.MaxFrame], r.pos[i])
			c.mu.Unlock()
			if err != nil {
				return fault.Wrap(err, fault.NotFound, "The output of this command is no longer kept.")
			}
			if n == 0 {
				continue
			}
			if err := w.frame(t, (*buf)[:n]); err != nil {
				return err
			}
			c.mu.Lock()
			r.pos[i] += int64(n)
			c.wakeLocked()
			c.mu.Unlock()
			sent = true
		}
		if sent {
			continue
		}
		c.mu.Lock()
		exit, changed := c.exit, c.changed
		more := c.logs[0].size > r.pos[0] || c.logs[1].size > r.pos[1]
		c.mu.Unlock()
		switch {
		case more:
			continue
		case exit != nil && wait:
			// Not flushed: the answer's end follows at once, and goes out with it.
			if err := w.json(agent.FrameExit, *exit); err != nil {
				return err
			}
			c.mu.Lock()
			c.delivered = now()
			c.mu.Unlock()
			return nil
		case !wait:
			return w.json(agent.FrameEnd, struct{}{})
		}
		// A short command answers in one piece; only one that takes its time is worth a flush before anything came.
		pause := pingEvery
		if w.dirty {
			if !flushed && w.bytes < 64 {
				pause = firstFlush
			} else if err := w.flush(); err != nil {
				return err
			}
		}
		flushed = true
		timer := time.NewTimer(pause)
		select {
		case <-changed:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
			if pause == pingEvery {
				if err := w.frame(agent.FramePing, nil); err != nil {
					return err
				}
			}
			if err := w.flush(); err != nil {
				return err
			}
		}
		timer.Stop()
	}
}
