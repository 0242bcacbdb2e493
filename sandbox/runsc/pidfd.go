package runsc

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// pidfdInfo is struct pidfd_info of linux/pidfd.h in its first version (64 bytes). The kernel fills what it knows.
type pidfdInfo struct {
	mask                               uint64
	cgroupID                           uint64
	pid, tgid, ppid                    uint32
	ruid, rgid, euid, egid, suid, sgid uint32
	fsuid, fsgid                       uint32
	exitCode                           int32
}

const pidfdInfoExit = 1 << 3

// PIDFD_GET_INFO: _IOWR(0xFF, 11, struct pidfd_info of 64 bytes)
const pidfdGetInfo = 3<<30 | 64<<16 | 0xFF<<8 | 11

func ioctlPidfdInfo(fd int, info *pidfdInfo) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), pidfdGetInfo, uintptr(unsafe.Pointer(info)))
	if errno != 0 {
		return errno
	}
	return nil
}
