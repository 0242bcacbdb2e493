package runsc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandgate/sandbox"
)

// Wait implements sandbox.Runtime. The sentry need not be our child: its end is seen through a pidfd, and why it ended
// through the counters of its cgroup, which stays until Remove.
func (r *Runtime) Wait(ctx context.Context, id sandbox.ID) (sandbox.Death, error) {
	if err := check(id); err != nil {
		return sandbox.Death{}, err
	}
	st, err := r.load(id)
	if errors.Is(err, fs.ErrNotExist) {
		return r.absent(id)
	}
	if err != nil {
		return sandbox.Death{}, fmt.Errorf("wait for %s: %w", id, err)
	}
	sentry, stopSentry, err := r.watch.exact(st.Sentry)
	if errors.Is(err, unix.ESRCH) {
		return r.reason(id, st, exitUnknown, events{}), nil
	}
	if err != nil {
		return sandbox.Death{}, fmt.Errorf("wait for %s: %w", id, err)
	}
	defer stopSentry()
	exit, err := st.Sentry.open()
	if err != nil {
		return r.reason(id, st, exitUnknown, events{}), nil
	}
	defer func() { _ = unix.Close(exit) }()
	gofer, stopGofer, err := r.watch.exact(st.Gofer)
	if err != nil { // without its file server a sandbox hangs
		return r.end(ctx, id, st, exit, events{})
	}
	defer stopGofer()
	memory, stopMemory, err := r.watch.memory(r.cg, r.name(id))
	if err != nil {
		r.o.Log.Warn("memory events of a sandbox cannot be watched", "sandbox", string(id), "cause", err.Error())
	} else {
		defer stopMemory()
	}
	// What the sandbox got over before is not why it dies now.
	past := r.cg.events(r.name(id))
	for {
		select {
		case <-ctx.Done():
			return sandbox.Death{}, ctx.Err()
		case <-sentry:
			return r.reason(id, st, exitCode(st.Sentry, exit), past), nil
		case <-gofer:
			return r.end(ctx, id, st, exit, past)
		case <-memory:
			// The kernel tells when memory has run out, and counts a moment later, if it kills at all.
			now := past
			_ = poll(ctx, time.Second, func() (bool, error) {
				now = r.cg.events(r.name(id))
				return now.oomKills != past.oomKills || !st.Sentry.alive(), nil
			})
			if now.oomKills == past.oomKills {
				continue
			}
			if !r.survives(ctx, id, st.Sentry) {
				return r.end(ctx, id, st, exit, past)
			}
			past = r.cg.events(r.name(id))
			r.o.Log.Info("the kernel killed a process of a sandbox for memory; it goes on", "sandbox", string(id), "killed", past.oomKills)
		}
	}
}

// absent tells what became of a sandbox of which there is no state of this boot.
func (r *Runtime) absent(id sandbox.ID) (sandbox.Death, error) {
	var old state
	if readJSON(r.stateFile(id), &old) == nil && old.Boot != r.boot {
		return sandbox.Death{Reason: sandbox.ReasonHostRestarted, Detail: "started in an earlier boot of the host"}, nil
	}
	return sandbox.Death{Reason: sandbox.ReasonCrash, Detail: "there is no state of it"}, nil
}

// end kills a sandbox that cannot go on and says why.
func (r *Runtime) end(ctx context.Context, id sandbox.ID, st state, exit int, past events) (sandbox.Death, error) {
	// Whatever killed one of its processes may be about to kill the sentry, too: its own end is the better witness.
	own, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	died := waitExit(own, exit) == nil
	cancel()
	code := exitUnknown
	if died {
		code = exitCode(st.Sentry, exit)
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := st.Sentry.kill(limited); err != nil {
		return sandbox.Death{}, fmt.Errorf("wait for %s: %w", id, err)
	}
	return r.reason(id, st, code, past), nil
}

// survives asks after the kernel killed something for memory whether the sandbox still answers: which process dies is
// the kernel's choice. The memory of the one that it chose is given back a moment later, and until then the question may
// be killed as well: it is asked again.
func (r *Runtime) survives(ctx context.Context, id sandbox.ID, sentry proc) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	answered := false
	_ = poll(ctx, 5*time.Second, func() (bool, error) {
		answered = r.answers(ctx, id) == nil
		return answered || !sentry.alive(), nil
	})
	return answered
}

// reason reads why a sandbox ended. The counters come first: a sentry that found no memory or no thread just crashes.
func (r *Runtime) reason(id sandbox.ID, st state, exit int, past events) sandbox.Death {
	reap(st.Sentry.PID)
	reap(st.Gofer.PID)
	ev := r.cg.events(r.name(id))
	ev.oomKills -= past.oomKills
	ev.pidsMax -= past.pidsMax
	panicked := panicText(filepath.Join(r.dir(id), "panic.log"))
	switch {
	case ev.oomKills > 0:
		return sandbox.Death{Reason: sandbox.ReasonOutOfMemory, Detail: fmt.Sprintf("the kernel killed %d processes for memory", ev.oomKills)}
	case ev.pidsMax > 0 && exit != exitKilled:
		return sandbox.Death{Reason: sandbox.ReasonTooManyProcesses, Detail: fmt.Sprintf("%d new processes were refused; %s", ev.pidsMax, panicked)}
	case exit == exitKilled:
		return sandbox.Death{Reason: sandbox.ReasonKilled, Detail: "the sentry got SIGKILL"}
	case exit == 0:
		return sandbox.Death{Reason: sandbox.ReasonCrash, Detail: "its first process ended"}
	}
	return sandbox.Death{Reason: sandbox.ReasonCrash, Detail: fmt.Sprintf("the sentry ended with %d; %s", exit, panicked)}
}

// panicText gives the first lines of what the sentry wrote when it crashed.
func panicText(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return "no panic was logged"
	}
	defer func() { _ = f.Close() }()
	b := make([]byte, 512)
	n, _ := f.Read(b)
	if n == 0 {
		return "no panic was logged"
	}
	return strings.ToValidUTF8(string(b[:n]), "?")
}

// Exit codes as exitCode gives them: 0 to 255, or one of these.
const (
	exitUnknown = -1
	exitKilled  = -9 // by SIGKILL; other signals likewise negative
)

// exitCode asks the kernel how a process ended that need not be our child. As long as its parent has not reaped it, /proc
// says it; afterwards the pidfd does (Linux 6.15 and later). A child of ours is left unreaped until here.
func exitCode(p proc, fd int) int {
	var status int64
	// Between the two there is a moment in which neither knows.
	err := poll(context.Background(), 300*time.Millisecond, func() (bool, error) {
		if s, ok := p.zombieStatus(); ok {
			status = s
			return true, nil
		}
		info := pidfdInfo{mask: pidfdInfoExit}
		if err := ioctlPidfdInfo(fd, &info); err != nil {
			return false, err
		}
		status = int64(info.exitCode)
		return info.mask&pidfdInfoExit != 0, nil
	})
	if err != nil {
		return exitUnknown
	}
	ws := unix.WaitStatus(status)
	switch {
	case ws.Signaled():
		return -int(ws.Signal())
	case ws.Exited():
		return ws.ExitStatus()
	}
	return exitUnknown
}
