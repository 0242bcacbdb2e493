package runsc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sandgate/sandbox/agent"
)

// UsesImage reports whether any sandbox on this host, or the save of one, stands on a root filesystem, whichever
// installation it is of: several may share one cache. It reads all of /proc, so it is for pruning only.
func UsesImage(rootfs string) (bool, error) {
	if heldBySave(rootfs) {
		return true, nil
	}
	bundles, err := bundlesInUse()
	if err != nil {
		return false, fmt.Errorf("uses of image: %w", err)
	}
	for pid, dir := range bundles {
		conf, known := placesOf(pid, dir)
		if !known || conf.Root.Path == rootfs {
			return true, nil
		}
	}
	return false, nil
}

// bundlesInUse gives the bundles of all sandboxes on this host, by the process that serves its files.
func bundlesInUse() (map[int]string, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	out := map[int]string{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		argv, ok := cmdline(pid)
		if dir := bundleOf(argv); ok && dir != "" && slices.Contains(argv, "gofer") {
			out[pid] = dir
		}
	}
	return out, nil
}

// places are what a sandbox has of the host's files, by its configuration.
type places struct {
	Root struct {
		Path string `json:"path"`
	} `json:"root"`
	Mounts []struct {
		Destination string `json:"destination"`
		Source      string `json:"source"`
	} `json:"mounts"`
}

// placesOf reads those of a file server; not known: it runs and may stand on anything.
func placesOf(pid int, bundle string) (conf places, known bool) {
	if err := readJSON(filepath.Join(bundle, "config.json"), &conf); err != nil {
		p, gone := identify(pid)
		return conf, gone != nil || !p.alive()
	}
	return conf, true
}

// agentOf gives the copy of the agent that is mounted.
func (p places) agentOf() string {
	for _, m := range p.Mounts {
		if m.Destination == agent.GuestPath {
			return m.Source
		}
	}
	return ""
}

// agentRest is for how long a copy of the agent stays that nothing uses: another server may be about to.
const agentRest = 24 * time.Hour

// PruneAgents removes copies of the agent below a cache that no sandbox and no save on this host has mounted, whichever
// installation it is of, but for the one that new sandboxes get. What cannot be judged keeps all of them.
func PruneAgents(cache, current string, now time.Time) error {
	used := map[string]bool{}
	bundles, err := bundlesInUse()
	if err != nil {
		return fmt.Errorf("prune agents: %w", err)
	}
	for pid, dir := range bundles {
		conf, known := placesOf(pid, dir)
		if !known {
			return nil
		}
		used[conf.agentOf()] = true
	}
	notes, err := filepath.Glob(filepath.Join(cache, "images", "*", "*", holdsName, "*"))
	if err != nil {
		return fmt.Errorf("prune agents: %w", err)
	}
	for _, note := range notes {
		dir, err := os.ReadFile(note)
		if err != nil {
			continue // dropped meanwhile
		}
		for _, part := range []string{"save", "next"} {
			at := filepath.Join(string(dir), part)
			var conf places
			if err := savedConfig(at, &conf); err == nil {
				used[conf.agentOf()] = true
			} else if _, gone := os.Stat(at); gone == nil {
				return nil
			}
		}
	}
	copies, err := os.ReadDir(agentsDir(cache))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("prune agents: %w", err)
	}
	var errs []error
	for _, c := range copies {
		path := filepath.Join(agentsDir(cache), c.Name())
		if used[path] || path == current || strings.HasSuffix(path, usedMark) || now.Sub(lastUsed(path)) < agentRest {
			continue
		}
		errs = append(errs, os.Remove(path), removeFile(path+usedMark))
	}
	return errors.Join(errs...)
}

// usedMark is the file beside a copy of the agent that was changed when a sandbox was last made with it. The copy itself is
// never touched: states of sandboxes refer to it.
const usedMark = ".used"

func markUsed(agent string) error {
	now := time.Now()
	err := os.Chtimes(agent+usedMark, now, now)
	if errors.Is(err, fs.ErrNotExist) {
		err = os.WriteFile(agent+usedMark, nil, 0o644)
	}
	return err
}

func lastUsed(agent string) time.Time {
	var last time.Time
	for _, path := range []string{agent, agent + usedMark} {
		if fi, err := os.Stat(path); err == nil && fi.ModTime().After(last) {
			last = fi.ModTime()
		}
	}
	return last
}

func agentsDir(cache string) string { return filepath.Join(cache, "agents") }

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
