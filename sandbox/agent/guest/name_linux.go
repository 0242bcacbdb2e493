package guest

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"sandgate/internal/fault"
)

// name gives a sandbox its host name, when it was made before anybody knew what it would be called. Process 1 holds the
// right to do so only until it did. One that was started from a state has its host name already, and only the file is old.
func (s *Server) name(w http.ResponseWriter, r *http.Request) error {
	name := r.URL.Query().Get("name")
	if name == "" || len(name) > 63 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return fault.Field("name", "is no host name")
	}
	if !s.cfg.Init { // not ours to name
		return ok(w, struct{}{})
	}
	if have, err := os.Hostname(); err != nil || have != name {
		if err := unix.Sethostname([]byte(name)); err != nil {
			return fault.Wrap(err, fault.Conflict, "The sandbox has its name already.")
		}
	}
	// sudo and others look their own name up.
	if old, err := os.ReadFile("/etc/hosts"); err == nil {
		if before, rest, found := strings.Cut(string(old), ownName); found {
			_, after, _ := strings.Cut(rest, "\n")
			_ = os.WriteFile("/etc/hosts", []byte(before+ownName+name+"\n"+after), 0o644) // a nicety
		}
	}
	if held, err := holdsAdmin(); err == nil && !held {
		return ok(w, struct{}{})
	}
	if err := dropAdmin(); err != nil {
		return fmt.Errorf("name: %w", err)
	}
	s.callOff()                       // what was started before holds it still
	defer func() { go s.standBy() }() // its first command comes soon
	return ok(w, struct{}{})
}

// holdsAdmin reports whether process 1 may still name the sandbox.
func holdsAdmin() (bool, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false, err
	}
	return data[unix.CAP_SYS_ADMIN/32].Permitted&(1<<(unix.CAP_SYS_ADMIN%32)) != 0, nil
}

// dropAdmin takes CAP_SYS_ADMIN from every thread of this process and from all that it will start, for good.
func dropAdmin() error {
	if _, _, errno := syscall.AllThreadsSyscall(syscall.SYS_PRCTL, unix.PR_CAPBSET_DROP, unix.CAP_SYS_ADMIN, 0); errno != 0 {
		return fmt.Errorf("bound capabilities: %w", errno)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	const word, bit = unix.CAP_SYS_ADMIN / 32, 1 << (unix.CAP_SYS_ADMIN % 32)
	data[word].Effective &^= bit
	data[word].Permitted &^= bit
	data[word].Inheritable &^= bit
	_, _, errno := syscall.AllThreadsSyscall(syscall.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0)
	if errno != 0 {
		return fmt.Errorf("drop capabilities: %w", errno)
	}
	return nil
}
