package guest

import (
	"net/http"
	"os"
	"syscall"
	"time"
)

// warmFor is how long the shell has for doing nothing once.
const warmFor = 10 * time.Second

// warm has the shell do nothing once, so that what it consists of is in memory before the first command needs it. It runs as
// nobody: process 1 of a sandbox without an owner may do more than a program of the image should. It is no command, and
// nothing is told of it.
func (s *Server) warm(w http.ResponseWriter, r *http.Request) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = null.Close() }()
	_, _ = lookupUser("")
	_ = s.login.get()
	attr := &syscall.ProcAttr{
		Dir: "/", Env: []string{"PATH=" + defaultPath}, Files: []uintptr{null.Fd(), null.Fd(), null.Fd()},
		Sys: &syscall.SysProcAttr{Setsid: true},
	}
	if os.Getuid() == 0 {
		attr.Sys.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	path, name := shell()
	pid, done, err := s.children.start(path, []string{name, "-c", ":"}, attr)
	if err != nil {
		return err
	}
	timer := time.NewTimer(warmFor)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	case <-r.Context().Done():
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
	return ok(w, struct{}{})
}

// nobody owns nothing.
const nobody = 65534
