package netjail

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// ListenControl is net.ListenConfig.Control for what serves sandboxes at GatewayAddr and PlatformAddr. Its sockets bear the
// mark without which nothing finds a way into a sandbox, and may be opened before the addresses are there.
func ListenControl(_, address string, c syscall.RawConn) error {
	var errs error
	err := c.Control(func(fd uintptr) {
		errs = errors.Join(
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, markPassed),
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_FREEBIND, 1),
		)
	})
	if err := errors.Join(err, errs); err != nil {
		return fmt.Errorf("listen at %s for sandboxes: %w", address, err)
	}
	return nil
}
