package guest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

const (
	maxPTYs      = 64 // running ones
	keepPTYs     = 32 // ended ones that nobody closed
	keepSizes    = 64 // size changes remembered with their place in the output
	closeStep    = 300 * time.Millisecond
	writeAttempt = 4 << 10
)

// terminal is a pty and the session of its shell. One goroutine reads the master always, one writes it.
type terminal struct {
	job
	created time.Time
	name    string
	master  *os.File
	tty     string        // path of the program's end
	sentry  bool          // gVisor, whose line discipline differs from Linux
	typed   chan struct{} // something is in queue
	gone    chan struct{} // closed when exit is set

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at every change below
	ring    ring
	sizes   []sizeAt // never empty; the last one is the present size
	sizeSeq int64    // number of sizes ever, the last one's number
	queue   [][]byte
	queued  int
	drops   int // how often the queue was dropped
	lastOut time.Time
	exit    *agent.Exit
}

// sizeAt is a size and the offset of the first byte that was printed under it.
type sizeAt struct {
	at   int64
	size agent.Size
}

func clampSize(cols, rows int) agent.Size {
	return agent.Size{Cols: min(max(cols, 2), agent.MaxCols), Rows: min(max(rows, 1), agent.MaxRows)}
}

// openPTY starts a terminal, or gives the one that already bears the id.
func (s *Server) openPTY(spec agent.PTYSpec) (*terminal, error) {
	if !validID(spec.ID) {
		return nil, fault.Field("id", "is not an id")
	}
	a, attr, err := s.place(spec.Cwd, spec.User, spec.ID, spec.Env, true)
	if err != nil {
		return nil, err
	}
	if spec.Cols == 0 && spec.Rows == 0 {
		spec.Cols, spec.Rows = 80, 24
	}
	size := clampSize(spec.Cols, spec.Rows)
	t := &terminal{
		job: job{id: spec.ID}, created: now(), name: spec.Name[:min(len(spec.Name), agent.MaxPTYName)], typed: make(chan struct{}, 1), gone: make(chan struct{}),
		changed: make(chan struct{}), ring: ring{limit: s.cfg.Ring}, sizes: []sizeAt{{0, size}},
	}
	t.mu.Lock() // until it runs, nobody may use it
	defer t.mu.Unlock()
	s.mu.Lock()
	if old := s.ptys[spec.ID]; old != nil {
		s.mu.Unlock()
		return old, nil
	}
	if err := s.roomForPTYLocked(); err != nil {
		s.mu.Unlock()
		return nil, err
	}
	s.ptys[spec.ID] = t
	s.mu.Unlock()
	if err := s.spawnPTY(t, a, attr, size); err != nil {
		s.mu.Lock()
		delete(s.ptys, spec.ID)
		s.mu.Unlock()
		t.exit = &agent.Exit{Code: 126}
		close(t.gone)
		return nil, startFault(err)
	}
	return t, nil
}

func (s *Server) roomForPTYLocked() error {
	running := 0
	var ended []*terminal
	for _, t := range s.ptys {
		select {
		case <-t.gone:
			ended = append(ended, t)
		default:
			running++
		}
	}
	if s.closed {
		return fault.New(fault.Conflict, "The sandbox is ending.")
	}
	if running >= maxPTYs {
		return fault.New(fault.Conflict, "This sandbox has %d terminals open already. Close one first.", maxPTYs)
	}
	for len(ended) > keepPTYs {
		oldest := 0
		for i, t := range ended {
			if t.created.Before(ended[oldest].created) {
				oldest = i
			}
		}
		delete(s.ptys, ended[oldest].id)
		ended = append(ended[:oldest], ended[oldest+1:]...)
	}
	return nil
}

// loginShell is the account's own shell where it is one that lets people in.
func loginShell(a account) (path, name string) {
	base := filepath.Base(a.shell)
	if fi, err := os.Stat(a.shell); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 &&
		base != "nologin" && base != "false" && base != "sh" && strings.HasPrefix(a.shell, "/") {
		return a.shell, base
	}
	return shell()
}

func (s *Server) spawnPTY(t *terminal, a account, attr *syscall.ProcAttr, size agent.Size) error {
	first, tty, err := pty.Open()
	if err != nil {
		return err
	}
	defer tty.Close()
	// The library leaves the master blocking; a second descriptor that the poller knows can be closed under a reader.
	fd, err := unix.FcntlInt(first.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	_ = first.Close()
	if err != nil {
		return err
	}
	_ = syscall.SetNonblock(fd, true)
	t.master = os.NewFile(uintptr(fd), "ptmx")
	t.tty = tty.Name()
	t.sentry = control(t.master, func(fd int) error { _, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP); return err }) != nil
	_ = setSize(t.master, size)
	if tio, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS); err == nil {
		tio.Iflag |= unix.IUTF8 // so that backspace takes a whole character
		_ = unix.IoctlSetTermios(int(tty.Fd()), unix.TCSETS, tio)
	}
	if a.credential() != nil {
		_ = tty.Chown(int(a.uid), -1)
	}
	attr.Sys.Setctty, attr.Sys.Ctty = true, 0
	attr.Files = []uintptr{tty.Fd(), tty.Fd(), tty.Fd()}
	path, name := loginShell(a)
	pid, done, err := s.children.start(path, []string{name}, attr)
	if err != nil {
		_ = t.master.Close()
		return err
	}
	t.pid = pid
	eof := make(chan struct{})
	go t.readAll(eof)
	go t.writeAll()
	go s.watchPTY(t, done, eof)
	return nil
}

// setSize sets the size; control runs on the descriptor without making it blocking.
func setSize(f *os.File, size agent.Size) error {
	return control(f, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(size.Cols), Row: uint16(size.Rows)})
	})
}

func control(f *os.File, do func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = do(int(fd)) }); err != nil {
		return err
	}
	return inner
}

func (t *terminal) wakeLocked() {
	close(t.changed)
	t.changed = make(chan struct{})
}

func (t *terminal) readAll(eof chan<- struct{}) {
	defer close(eof)
	buf := make([]byte, 32<<10)
	for {
		n, err := t.master.Read(buf)
		if n > 0 {
			t.mu.Lock()
			t.ring.add(buf[:n])
			t.lastOut = now()
			t.wakeLocked()
			t.mu.Unlock()
		}
		if err != nil { // EIO: the last holder of the terminal is gone
			return
		}
	}
}

func (t *terminal) resize(cols, rows int) {
	size := clampSize(cols, rows)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.exit != nil || t.sizes[len(t.sizes)-1].size == size {
		return
	}
	if setSize(t.master, size) != nil {
		return
	}
	// The kernel tells the foreground group; a shell that waits for a job wants to know, too.
	if !t.reaped.Load() {
		_ = syscall.Kill(t.pid, syscall.SIGWINCH)
	}
	t.sizes = append(t.sizes, sizeAt{t.ring.next, size})
	t.sizeSeq++
	if len(t.sizes) > keepSizes {
		t.sizes = t.sizes[len(t.sizes)-keepSizes:]
	}
	t.wakeLocked()
}

// watchPTY settles how the terminal ended: everything that was printed first, then the exit.
func (s *Server) watchPTY(t *terminal, done <-chan syscall.WaitStatus, eof <-chan struct{}) {
	ws := <-done
	t.reaped.Store(true)
	ended := now()
	// Something left in the background may hold the terminal open: then silence ends it.
	tick := time.NewTicker(agent.DrainAfterExit / 4)
	defer tick.Stop()
drain:
	for {
		select {
		case <-eof:
			break drain
		case <-tick.C:
			t.mu.Lock()
			last := t.lastOut
			t.mu.Unlock()
			if last.Before(ended) {
				last = ended
			}
			if quiet := time.Since(last); quiet > agent.DrainAfterExit || time.Since(ended) > 10*agent.DrainAfterExit {
				break drain
			}
		}
	}
	_ = t.master.Close()
	<-eof
	exit := exitOf(ws)
	exit.Duration = ended.Sub(t.created).Seconds()
	t.mu.Lock()
	t.exit = &exit
	t.queue, t.queued = nil, 0
	t.wakeLocked()
	t.mu.Unlock()
	close(t.gone)
}

// hangUp ends the session in steps. What left the session (tmux, nohup with setsid) goes on, as after closing a window.
func (t *terminal) hangUp() {
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGTERM, syscall.SIGKILL} {
		if sig == syscall.SIGHUP {
			_ = t.signal(sig) // the foreground job, which may be another group than the shell's
		}
		for _, p := range processes() {
			if p.session == t.pid && !(t.reaped.Load() && p.pid == t.pid) {
				_ = syscall.Kill(p.pid, sig)
				if sig == syscall.SIGHUP {
					_ = syscall.Kill(p.pid, syscall.SIGCONT)
				}
			}
		}
		timer := time.NewTimer(closeStep)
		select {
		case <-t.gone:
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

func (t *terminal) describe() agent.PTY {
	t.mu.Lock()
	defer t.mu.Unlock()
	size := t.sizes[len(t.sizes)-1].size
	d := agent.PTY{
		ID: t.id, Name: t.name, Status: "running", Cols: size.Cols, Rows: size.Rows,
		Oldest: t.ring.oldest(), Next: t.ring.next, CreatedAt: t.created.UTC(),
	}
	if t.exit != nil {
		exit := *t.exit
		d.Status, d.Exit = "exited", &exit
	} else if !t.reaped.Load() {
		d.Cwd = workingDirectory(t.pid)
	}
	return d
}

// workingDirectory is where a process is, nil when that can't be told or is there no more.
func workingDirectory(pid int) []byte {
	link := "/proc/" + strconv.Itoa(pid) + "/cwd"
	dir, err := os.Readlink(link)
	if err != nil || len(dir) >= agent.MaxPath || !strings.HasPrefix(dir, "/") {
		return nil
	}
	if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
		return nil
	}
	return []byte(dir)
}

// cursor is an attached host's place in the output and among the sizes.
type cursor struct {
	pos  int64
	size int64 // number of the last size sent; -1 before the first
}

// next fills buf with the next frame's payload after the cursor. wait is set when there is nothing yet.
func (t *terminal) next(c *cursor, buf []byte) (kind agent.FrameType, offset int64, payload []byte, wait <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.pos = max(c.pos, t.ring.oldest())
	firstSeq := t.sizeSeq - int64(len(t.sizes)) + 1
	end := t.ring.next
	for i, s := range t.sizes {
		seq := firstSeq + int64(i)
		if seq <= c.size {
			continue
		}
		last := i == len(t.sizes)-1
		switch {
		case s.at > c.pos:
			end = min(end, s.at) // output printed under the size before
		case last || t.sizes[i+1].at > c.pos:
			c.size = seq
			payload, _ = json.Marshal(s.size)
			return agent.PTYSize, c.pos, payload, nil
		}
		if s.at > c.pos {
			break
		}
	}
	if c.pos < end {
		n := t.ring.read(buf[:min(int64(len(buf)), end-c.pos)], c.pos)
		offset = c.pos
		c.pos += int64(n)
		return agent.PTYOutput, offset, buf[:n], nil
	}
	if t.exit != nil {
		payload, _ = json.Marshal(t.exit)
		return agent.PTYExit, c.pos, payload, nil
	}
	return 0, c.pos, nil, t.changed
}
