package resolver

import (
	"io/fs"
	"syscall"
)

// fileID tells a file that was replaced from one that was kept.
func fileID(info fs.FileInfo) uint64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Ino
	}
	return 0
}
