package runsc

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// UsesImage reports whether any sandbox on this host, or the save of one, stands on a root filesystem, whichever
// installation it is of: several may share one cache. It reads all of /proc, so it is for pruning only.
func UsesImage(rootfs string) (bool, error) {
	if heldBySave(rootfs) {
		return true, nil
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return false, fmt.Errorf("uses of image: %w", err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if argv, ok := cmdline(pid); ok && standsOn(pid, argv, rootfs) {
			return true, nil
		}
	}
	return false, nil
}

// standsOn reports whether a process is the file server of a sandbox on this root filesystem, or may be.
func standsOn(pid int, argv []string, rootfs string) bool {
	bundle := bundleOf(argv)
	if bundle == "" || !slices.Contains(argv, "gofer") {
		return false
	}
	var conf struct {
		Root struct {
			Path string `json:"path"`
		} `json:"root"`
	}
	if err := readJSON(filepath.Join(bundle, "config.json"), &conf); err != nil {
		// A file server whose configuration cannot be read may stand on anything.
		p, gone := identify(pid)
		return gone == nil && p.alive()
	}
	return conf.Root.Path == rootfs
}

func bundleOf(argv []string) string {
	for i, a := range argv {
		if v, ok := strings.CutPrefix(a, "--bundle="); ok {
			return v
		}
		if a == "--bundle" && i+1 < len(argv) {
			return argv[i+1]
		}
	}
	return ""
}
