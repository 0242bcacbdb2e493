package guest

import (
	"math"
	"os"
	"syscall"

	"sandgate/internal/fault"
)

// imageSlack is what may lie below the writable layer, whose size is all that a file system here tells.
const imageSlack = 4 << 30

// plausible is the most that can be in a file: what its file system holds, and what the image may have had in it. The kernel
// inside does not tell how much of a file is a hole, so that a larger one counts as one.
func plausible(f *os.File) int64 {
	var st syscall.Statfs_t
	if err := syscall.Fstatfs(int(f.Fd()), &st); err != nil || st.Blocks == 0 {
		return math.MaxInt64
	}
	return holds(st.Blocks, uint64(st.Bsize))
}

func holds(blocks, size uint64) int64 {
	if blocks > (math.MaxInt64-imageSlack)/size {
		return math.MaxInt64
	}
	return int64(blocks*size) + imageSlack
}

// errHole is for reading the whole of a file that is mostly a hole: it would never end.
func errHole(size int64) error {
	return fault.New(fault.TooLarge, "The file says that it has %d bytes, more than its disk holds: most of it is a hole. Read parts of it by Range.", size)
}
