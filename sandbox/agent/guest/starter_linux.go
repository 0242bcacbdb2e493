package guest

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// starterFD is the least number of the starter's descriptor: between fork and exec, Go moves descriptors about just above
// those that the child gets.
const starterFD = 4000

// starterPath is where this process keeps its starter: one for all servers in it.
var starterPath = sync.OnceValue(newStarter)

// newStarter keeps the starter in memory, where every user inside may execute it, and gives its path; "" when there is none.
func newStarter() string {
	program := starterProgram()
	if program == nil {
		return ""
	}
	low, err := unix.MemfdCreate("start", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return ""
	}
	defer func() { _ = unix.Close(low) }()
	if n, err := unix.Write(low, program); err != nil || n != len(program) || unix.Fchmod(low, 0o555) != nil {
		return ""
	}
	_, _ = unix.FcntlInt(uintptr(low), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE|unix.F_SEAL_SEAL)
	fd, err := unix.FcntlInt(uintptr(low), unix.F_DUPFD_CLOEXEC, starterFD)
	if err != nil {
		return ""
	}
	return "/proc/self/fd/" + strconv.Itoa(fd)
}

// startTree starts a program as the head of a tree that none of its descendants leaves while it lives.
func (s *Server) startTree(path string, argv []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
	if s.starter != "" {
		pid, done, err := s.children.start(s.starter, append([]string{"start", path}, argv...), attr)
		if err == nil {
			return pid, done, nil
		}
	}
	return s.children.start(path, argv, attr)
}

// native reports whether a file is a program that the kernel executes without anybody's help, so that executing it does not
// fail for what is in it.
func native(dir, path string) bool {
	if !strings.HasPrefix(path, "/") {
		path = dir + "/" + path
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var head [4]byte
	n, _ := f.Read(head[:])
	return n == 4 && string(head[:]) == "\x7fELF"
}
