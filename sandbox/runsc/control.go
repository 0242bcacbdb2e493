package runsc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

// A sentry is asked over a socket that it listens on, the one that every runsc asks it over: a JSON object for a call and
// one for its answer, file descriptors beside the first byte. To ask it ourselves saves a process of runsc for each bridge:
// 10 ms of processor time to start it, 10 MiB as long as it lives.

// What of the wire is used here.
const (
	methodExec   = "containerManager.ExecuteAsync" // execArgs → the process's number inside
	methodWait   = "containerManager.WaitPID"      // waitArgs → its wait status, once it has ended
	methodSignal = "containerManager.Signal"       // signalArgs → nothing

	maxAnswer   = 64 << 10
	stoppedLook = time.Second // so often a caller who waits for an answer looks whether the sentry was stopped
)

type execArgs struct {
	Argv         []string `json:"argv"`
	Dir          string   `json:"wd"`
	KUID, KGID   uint32
	Capabilities *execCapabilities
	SupportTTYs  bool
	GuestFDs     []int // what the files sent along become
	ContainerID  string
}

// execCapabilities are bit sets.
type execCapabilities struct{ PermittedCaps, InheritableCaps, EffectiveCaps, BoundingCaps, AmbientCaps uint64 }

type waitArgs struct {
	PID int32
	CID string
}

type signalArgs struct {
	CID   string
	Signo int32
	PID   int32
	Mode  int // 0: to this process alone
}

// control is where one sentry listens, and as whom it runs.
type control struct {
	sentry   proc
	path     string
	uid, gid int
	size     int64 // of the file that says so, to see cheaply that it is whole
}

// controlOf reads it from runsc's state, which is mended if need be.
func (r *Runtime) controlOf(id sandbox.ID, sentry proc) (control, error) {
	if known, ok := r.controls.Load(id); ok {
		c := known.(control)
		if fi, err := os.Stat(r.runscState(id)); err == nil && fi.Size() == c.size && c.sentry == sentry {
			return c, nil
		}
	}
	b, err := r.mendState(id, sentry)
	if err != nil {
		return control{}, err
	}
	var st struct {
		Sandbox struct {
			UID  int    `json:"uid"`
			GID  int    `json:"gid"`
			Path string `json:"controlSocketPath"`
		} `json:"sandbox"`
	}
	if err := json.Unmarshal(b, &st); err != nil {
		return control{}, fmt.Errorf("state of runsc: %w", err)
	}
	if !filepath.IsAbs(st.Sandbox.Path) || st.Sandbox.UID <= 0 || st.Sandbox.GID <= 0 {
		return control{}, errors.New("state of runsc: no control socket in it, or a sentry with the rights of root")
	}
	c := control{sentry: sentry, path: st.Sandbox.Path, uid: st.Sandbox.UID, gid: st.Sandbox.GID, size: int64(len(b))}
	r.controls.Store(id, c)
	return c, nil
}

// line is one connection to a sentry. One call at a time.
type line struct {
	conn    *net.UnixConn
	st      state
	patient bool // does not look whether the sentry was stopped
}

// open connects.
func (c control) open(ctx context.Context, st state) (*line, error) {
	path := c.path
	if len(path) >= len(unix.RawSockaddrUnix{}.Path) {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("control socket: %w", err)
		}
		defer func() { _ = unix.Close(fd) }()
		path = "/proc/self/fd/" + strconv.Itoa(fd)
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return &line{conn: conn.(*net.UnixConn), st: st}, nil
}

// call asks, with files sent along, and waits for the answer until ctx ends, the sentry does, or it is found stopped:
// agent.ErrStopped. After an error the line is of no more use.
func (l *line) call(ctx context.Context, method string, arg any, files []*os.File, result any) error {
	stop := context.AfterFunc(ctx, func() { _ = l.conn.Close() })
	defer stop()
	err := l.ask(method, arg, files)
	if err == nil {
		err = l.answer(result)
	}
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	return nil
}

func (l *line) ask(method string, arg any, files []*os.File) error {
	text, err := json.Marshal(struct {
		Method string `json:"method"`
		Arg    any    `json:"arg"`
	}{method, arg})
	if err != nil {
		return err
	}
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	n, _, err := l.conn.WriteMsgUnix(text, rights, nil)
	if err == nil && n < len(text) {
		_, err = l.conn.Write(text[n:])
	}
	return err
}

func (l *line) answer(result any) error {
	var got bytes.Buffer
	buf := make([]byte, 4<<10)
	for {
		var until time.Time
		if !l.patient {
			until = time.Now().Add(stoppedLook)
		}
		if err := l.conn.SetReadDeadline(until); err != nil {
			return err
		}
		n, err := l.conn.Read(buf)
		got.Write(buf[:n])
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			if l.st.Sentry.stopped() || l.st.Gofer.stopped() {
				return agent.ErrStopped
			}
			continue
		case err != nil:
			return err
		case got.Len() > maxAnswer:
			return fmt.Errorf("an answer of more than %d bytes", maxAnswer)
		case !json.Valid(got.Bytes()):
			continue // there is more to come
		}
		var a struct {
			Success bool            `json:"success"`
			Err     string          `json:"err"`
			Result  json.RawMessage `json:"result"`
		}
		if err := json.Unmarshal(got.Bytes(), &a); err != nil {
			return err
		}
		if !a.Success || a.Err != "" {
			return fmt.Errorf("the sentry refuses: %.300q", a.Err)
		}
		if result == nil {
			return nil
		}
		return json.Unmarshal(a.Result, result)
	}
}

// insider is a program to be started inside, as root with these capabilities.
type insider struct {
	args         []string
	file         *os.File // of the host's, to be started in place of the path args[0] inside
	capabilities []string
}

// start starts a program with files as its stdin, stdout and stderr, and gives its number inside.
func (l *line) start(ctx context.Context, p insider, files [3]*os.File) (pid int32, err error) {
	var set uint64
	for _, name := range p.capabilities {
		set |= 1 << bits[name]
	}
	sent := files[:]
	if p.file != nil { // one more than descriptors for it
		sent = append(sent, p.file)
	}
	err = l.call(ctx, methodExec, execArgs{
		Argv: p.args, Dir: "/", SupportTTYs: true, GuestFDs: []int{0, 1, 2}, ContainerID: string(l.st.ID),
		Capabilities: &execCapabilities{PermittedCaps: set, EffectiveCaps: set, BoundingCaps: set},
	}, sent, &pid)
	return pid, err
}

// wait gives how a program that was started over this line ended.
func (l *line) wait(ctx context.Context, pid int32) (unix.WaitStatus, error) {
	var status uint32
	err := l.call(ctx, methodWait, waitArgs{PID: pid, CID: string(l.st.ID)}, nil, &status)
	return unix.WaitStatus(status), err
}

// run runs a program inside to its end, with nothing to read or to say.
func (r *Runtime) run(ctx context.Context, st state, p insider) error {
	c, err := r.controlOf(st.ID, st.Sentry)
	if err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = null.Close() }()
	l, err := c.open(ctx, st)
	if err != nil {
		return err
	}
	defer func() { _ = l.conn.Close() }()
	pid, err := l.start(ctx, p, [3]*os.File{null, null, null})
	if err != nil {
		return err
	}
	if status, err := l.wait(ctx, pid); err != nil || status != 0 {
		return errors.Join(err, fmt.Errorf("%s: status %d", p.args[0], status.ExitStatus()))
	}
	return nil
}

// bits are the numbers of capabilities that sandboxes have.
var bits = map[string]uint{
	"CAP_AUDIT_WRITE": unix.CAP_AUDIT_WRITE, "CAP_CHOWN": unix.CAP_CHOWN, "CAP_DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE,
	"CAP_FOWNER": unix.CAP_FOWNER, "CAP_FSETID": unix.CAP_FSETID, "CAP_KILL": unix.CAP_KILL, "CAP_MKNOD": unix.CAP_MKNOD,
	"CAP_NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE, "CAP_SETFCAP": unix.CAP_SETFCAP, "CAP_SETGID": unix.CAP_SETGID,
	"CAP_SETPCAP": unix.CAP_SETPCAP, "CAP_SETUID": unix.CAP_SETUID, "CAP_SYS_CHROOT": unix.CAP_SYS_CHROOT,
	namingRight: unix.CAP_SYS_ADMIN,
}
