package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The meters of this program: memory as /proc tells it, processor time as the kernel counts it for a control group.

// mebibytes reads a "Name: 123 kB" line of a file in /proc, in MiB.
func mebibytes(path, name string) (float64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == name+":" {
			kib, err := strconv.ParseFloat(f[1], 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("no %s in %s", name, path)
}

// processesOf gives, for each id, the directories in /proc of the processes whose command line names it.
func processesOf(ids []string) (map[string][]string, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for _, dir := range dirs {
		cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue // gone meanwhile
		}
		if i := slices.IndexFunc(ids, func(id string) bool { return bytes.Contains(cmdline, []byte(id)) }); i >= 0 {
			out[ids[i]] = append(out[ids[i]], dir)
		}
	}
	return out, nil
}

// memoryOf sums the proportional set size, in MiB, of every process whose command line names one of the ids.
func memoryOf(ids []string) (float64, error) {
	all, err := processesOf(ids)
	if err != nil {
		return 0, err
	}
	if len(all) != len(ids) {
		return 0, fmt.Errorf("only %d of %d sandboxes have processes", len(all), len(ids))
	}
	var total float64
	for _, dirs := range all {
		for _, dir := range dirs {
			pss, err := mebibytes(filepath.Join(dir, "smaps_rollup"), "Pss")
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				continue // it ended, or is a thread of the kernel's by now
			}
			total += pss
		}
	}
	return total, nil
}

// restLimit is how long it may take until a sandbox that nobody calls is at rest.
const restLimit = 3 * time.Minute

// restLeast is how long nobody calls a sandbox before it counts as idle: a bridge is kept for 30 s. The first one of each
// cannot be seen from here.
const restLeast = 35 * time.Second

// atRest waits until nothing is connected to the sandboxes any more: their bridges are closed.
func (b *bench) atRest(ids []string) error {
	if err := b.pause(restLeast); err != nil {
		return err
	}
	bridges := 0
	for until := time.Now().Add(restLimit); time.Now().Before(until); {
		text, err := os.ReadFile("/proc/net/unix")
		if err != nil {
			return err
		}
		bridges = 0
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			const connected = "03"
			if len(f) == 8 && f[5] == connected && slices.ContainsFunc(ids, func(id string) bool { return strings.HasSuffix(f[7], "/runsc-"+id+".sock") }) {
				bridges++
			}
		}
		if bridges == 0 {
			return nil
		}
		if err := b.pause(time.Second); err != nil {
			return err
		}
	}
	return fmt.Errorf("after %s there are still %d bridges into %d idle sandboxes", restLimit, bridges, len(ids))
}

// group is a control group whose processor time is counted.
type group struct {
	dir string
	own bool // made here
}

// newGroup makes one; close removes it.
func newGroup(name string) (*group, error) {
	top, err := cpuHierarchy()
	if err != nil {
		return nil, err
	}
	g := &group{dir: filepath.Join(top, name), own: true}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return nil, err
	}
	// A group whose set of processors is empty admits nobody: where that controller is in the same tree, inherit it.
	for _, set := range []string{"cpuset.cpus", "cpuset.mems"} {
		if text, err := os.ReadFile(filepath.Join(top, set)); err == nil {
			_ = os.WriteFile(filepath.Join(g.dir, set), bytes.TrimSpace(text), 0)
		}
	}
	return g, nil
}

// cpuHierarchy is where the tree of groups is mounted that counts processor time: cpuacct of the old kind, else the unified one.
func cpuHierarchy() (string, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	unified := ""
	for line := range strings.Lines(string(text)) {
		before, after, _ := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		switch {
		case len(left) < 5 || len(right) < 3:
		case right[0] == "cgroup2":
			unified = left[4]
		case right[0] == "cgroup" && slices.Contains(strings.Split(right[2], ","), "cpuacct"):
			return left[4], nil
		}
	}
	if unified == "" {
		return "", errors.New("no control groups that count processor time")
	}
	return unified, nil
}

// join puts a process into the group, and what it starts from then on; leave puts it back to the top.
func (g *group) join(pid int) error { return joinGroup(g.dir, pid) }

func (g *group) leave(pid int) error { return joinGroup(filepath.Dir(g.dir), pid) }

func joinGroup(dir string, pid int) error {
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
}

// cpu gives the seconds of processor time that were used in it and below.
func (g *group) cpu() (float64, error) {
	text, err := os.ReadFile(filepath.Join(g.dir, "cpuacct.usage"))
	if err == nil {
		ns, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
		return ns / 1e9, err
	}
	text, err = os.ReadFile(filepath.Join(g.dir, "cpu.stat"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "usage_usec" {
			us, err := strconv.ParseFloat(f[1], 64)
			return us / 1e6, err
		}
	}
	return 0, fmt.Errorf("no processor time in %s", g.dir)
}

func cpuOf(groups []*group) (total float64, err error) {
	for _, g := range groups {
		n, err := g.cpu()
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, nil
}

// boxes is the group that all sandboxes of a server are in.
func (s *server) boxes() (*group, error) {
	inst, err := os.ReadFile(filepath.Join(s.data, "inst"))
	if err != nil {
		return nil, err
	}
	top, err := cpuHierarchy()
	return &group{dir: filepath.Join(top, "sandgate-"+string(inst))}, err
}

// close removes a group of ours and those below it, here and in the trees of other controllers, once the last process has left.
func (g *group) close() error {
	if !g.own {
		return nil
	}
	name := filepath.Base(g.dir)
	var err error
	for until := time.Now().Add(10 * time.Second); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		err = nil
		for _, pattern := range []string{"/sys/fs/cgroup/" + name + "/*", "/sys/fs/cgroup/*/" + name + "/*/", "/sys/fs/cgroup/" + name, "/sys/fs/cgroup/*/" + name} {
			found, _ := filepath.Glob(pattern) // of patterns that are whole
			for _, dir := range found {
				if st, serr := os.Stat(dir); serr == nil && st.IsDir() {
					err = errors.Join(err, os.Remove(dir))
				}
			}
		}
		if err == nil {
			return nil
		}
	}
	return err
}
