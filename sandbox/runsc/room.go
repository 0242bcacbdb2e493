package runsc

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sandgate/sandbox"
)

var _ sandbox.Host = (*Runtime)(nil)

// Room implements sandbox.Host: what the kernel says can be had without swapping, and the disk of the data directory and
// of the writable layers in it, which may be a mount of its own.
func (r *Runtime) Room(ctx context.Context) (sandbox.Room, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return sandbox.Room{}, err
	}
	defer func() { _ = f.Close() }()
	room, err := parseMeminfo(f)
	if err != nil {
		return room, err
	}
	seen := map[unix.Fsid]bool{}
	for _, dir := range []string{r.o.DataDir, r.boxesDir()} {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			return room, fmt.Errorf("disk of %s: %w", dir, err)
		}
		if seen[st.Fsid] {
			continue
		}
		seen[st.Fsid] = true
		size := int64(st.Bsize)
		room.Disks = append(room.Disks, sandbox.DiskRoom{Path: dir, Total: int64(st.Blocks) * size, Free: int64(st.Bavail) * size})
	}
	return room, ctx.Err()
}

// parseMeminfo reads /proc/meminfo.
func parseMeminfo(in io.Reader) (sandbox.Room, error) {
	var room sandbox.Room
	sc := bufio.NewScanner(in)
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		if len(f) < 2 {
			continue
		}
		var into *int64
		switch f[0] {
		case "MemTotal:":
			into = &room.MemoryTotal
		case "MemAvailable:":
			into = &room.MemoryFree
		default:
			continue
		}
		kib, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			return room, fmt.Errorf("meminfo: %w", err)
		}
		*into = kib << 10
	}
	if err := sc.Err(); err != nil {
		return room, fmt.Errorf("meminfo: %w", err)
	}
	if room.MemoryTotal == 0 {
		return room, fmt.Errorf("meminfo: no total in it")
	}
	return room, nil
}

// maxLog is how large what the sentry writes about a sandbox may become: a guest can make it warn, and the files lie on the
// host's disk. They are appended to, so that cutting one is safe.
const maxLog = 1 << 20

// trimLogs cuts the files that the sentry writes on the host. It is called whenever the meters are read.
func (r *Runtime) trimLogs(id sandbox.ID) {
	for _, name := range []string{"panic.log", "runsc.log"} {
		path := filepath.Join(r.dir(id), name)
		fi, err := os.Lstat(path)
		if err != nil || fi.Size() <= maxLog || !fi.Mode().IsRegular() {
			continue
		}
		r.o.Log.Warn("what a sandbox's kernel wrote on the host was cut", "sandbox", string(id), "file", name, "bytes", fi.Size())
		if err := os.Truncate(path, 0); err != nil {
			r.o.Log.Warn("cut a log", "sandbox", string(id), "cause", err.Error())
		}
	}
}
