package runsc

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// UsesImage reports whether any sandbox on this host stands on a root filesystem, whichever installation it is of: several
// may share one cache. It reads all of /proc, so it is for pruning only.
func UsesImage(rootfs string) (bool, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return false, fmt.Errorf("uses of image: %w", err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		argv, ok := cmdline(pid)
		if !ok || !slices.Contains(argv, "gofer") {
			continue
		}
		var conf struct {
			Root struct {
				Path string `json:"path"`
			} `json:"root"`
		}
		bundle := bundleOf(argv)
		if bundle == "" {
			continue
		}
		if err := readJSON(filepath.Join(bundle, "config.json"), &conf); err != nil {
			// A file server whose configuration cannot be read may stand on anything.
			if p, gone := identify(pid); gone == nil && p.alive() {
				return true, nil
			}
			continue
		}
		if conf.Root.Path == rootfs {
			return true, nil
		}
	}
	return false, nil
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
