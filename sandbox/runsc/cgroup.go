package runsc

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sandgate/internal/fault"
	"sandgate/sandbox"
)

// cgroups makes, reads and removes the groups of one installation: a parent sandgate-INST with one leaf for each
// sandbox, in every hierarchy that runsc would join. We make the leaves before runsc starts, so runsc joins them, takes
// its idea of memory and CPUs from them, and leaves their removal to us.
type cgroups struct {
	inst   string
	v2     bool
	mounts []hierarchy
}

// hierarchy is one mounted cgroup tree: on v2 there is one, on v1 one for each controller or group of controllers.
type hierarchy struct {
	dir         string
	controllers []string
}

func (h hierarchy) has(c string) bool { return slices.Contains(h.controllers, c) }

const cpuPeriod = 100000 // microseconds

func detectCgroups(inst string) (*cgroups, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("cgroups: %w", err)
	}
	defer func() { _ = f.Close() }()
	return parseCgroups(f, inst)
}

// parseCgroups reads the mounted hierarchies. v1 is used when its memory, cpu and pids controllers are all there,
// whatever empty v2 tree is mounted beside them (runsc decides the same way: by what is mounted at the top).
func parseCgroups(mountinfo io.Reader, inst string) (*cgroups, error) {
	c := &cgroups{inst: inst}
	var unified string
	sc := bufio.NewScanner(mountinfo)
	for sc.Scan() {
		before, after, ok := strings.Cut(sc.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 6 || len(right) < 3 {
			continue
		}
		dir := left[4]
		switch right[0] {
		case "cgroup2":
			if unified == "" {
				unified = dir
			}
		case "cgroup":
			h := hierarchy{dir: dir}
			for o := range strings.SplitSeq(right[2], ",") {
				switch {
				case o == "rw" || o == "ro" || o == "xattr" || strings.HasPrefix(o, "release_agent="):
				case strings.HasPrefix(o, "name="):
					h.controllers = append(h.controllers, strings.TrimPrefix(o, "name="))
				default:
					h.controllers = append(h.controllers, o)
				}
			}
			if !slices.ContainsFunc(c.mounts, func(k hierarchy) bool { return k.dir == dir }) {
				c.mounts = append(c.mounts, h)
			}
		}
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("cgroups: %w", err)
	}
	if c.missing() == nil {
		return c, nil
	}
	// Some hosts mount a v1 hierarchy of no concern (net_cls, name=systemd) beside v2.
	if unified != "" && len(c.missing()) == 3 {
		return &cgroups{inst: inst, v2: true, mounts: []hierarchy{{dir: unified, controllers: []string{"memory", "cpu", "pids"}}}}, nil
	}
	return nil, fault.New(fault.Internal, "This host lacks the cgroup controllers that limit sandboxes (%s): mount them, or boot with cgroup v2.", strings.Join(c.missing(), ", "))
}

func (c *cgroups) missing() []string {
	var out []string
	for _, need := range []string{"memory", "cpu", "pids"} {
		if !slices.ContainsFunc(c.mounts, func(h hierarchy) bool { return h.has(need) }) {
			out = append(out, need)
		}
	}
	return out
}

// path is what goes into the OCI configuration.
func (c *cgroups) path(leaf string) string { return "/" + c.parent() + "/" + leaf }

func (c *cgroups) parent() string { return "sandgate-" + c.inst }

// file is a control file of a leaf in the hierarchy that has the controller.
func (c *cgroups) file(controller, leaf, name string) string {
	for _, h := range c.mounts {
		if h.has(controller) {
			return filepath.Join(h.dir, c.parent(), leaf, name)
		}
	}
	return ""
}

// make makes the leaf in every hierarchy and sets its limits.
func (c *cgroups) make(leaf string, res sandbox.Resources) error {
	for _, h := range c.mounts {
		parent := filepath.Join(h.dir, c.parent())
		if err := c.makeParent(h, parent); err != nil {
			return err
		}
		dir := filepath.Join(parent, leaf)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("cgroup: %w", err)
		}
		if !c.v2 && h.has("cpuset") {
			if err := inheritCpuset(parent, dir); err != nil {
				return err
			}
		}
	}
	if c.v2 {
		return c.limitV2(leaf, res)
	}
	return c.limitV1(leaf, res)
}

func (c *cgroups) makeParent(h hierarchy, parent string) error {
	if err := os.Mkdir(parent, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fault.Wrap(err, fault.Internal, "Groups for limits cannot be made in %s: is it mounted read-only?", h.dir)
	}
	if c.v2 {
		// Both levels have to hand the controllers down; the root may have processes, our parent never has.
		for _, dir := range []string{h.dir, parent} {
			if err := writeControl(filepath.Join(dir, "cgroup.subtree_control"), "+memory +cpu +pids"); err != nil {
				return fault.Wrap(err, fault.Internal, "The cgroup controllers memory, cpu and pids cannot be enabled in %s.", dir)
			}
		}
		return nil
	}
	if h.has("cpuset") {
		return inheritCpuset(h.dir, parent)
	}
	return nil
}

// inheritCpuset copies the CPUs and memory nodes of the group above: an empty set admits no process.
func inheritCpuset(from, to string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		if have, err := os.ReadFile(filepath.Join(to, name)); err == nil && strings.TrimSpace(string(have)) != "" {
			continue
		}
		v, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return fmt.Errorf("cgroup: %w", err)
		}
		if err := writeControl(filepath.Join(to, name), strings.TrimSpace(string(v))); err != nil {
			return err
		}
	}
	return nil
}

func (c *cgroups) limitV1(leaf string, res sandbox.Resources) error {
	bytes := strconv.FormatInt(res.MemoryMB<<20, 10)
	if err := writeControl(c.file("memory", leaf, "memory.limit_in_bytes"), bytes); err != nil {
		return err
	}
	// Memory and swap together get the same limit, so no swap at all; not every kernel counts swap.
	memsw := c.file("memory", leaf, "memory.memsw.limit_in_bytes")
	if _, err := os.Stat(memsw); err == nil {
		if err := writeControl(memsw, bytes); err != nil {
			return err
		}
	}
	if err := writeControl(c.file("cpu", leaf, "cpu.cfs_period_us"), strconv.Itoa(cpuPeriod)); err != nil {
		return err
	}
	if err := writeControl(c.file("cpu", leaf, "cpu.cfs_quota_us"), quota(res.CPU)); err != nil {
		return err
	}
	return writeControl(c.file("pids", leaf, "pids.max"), strconv.FormatInt(res.PIDs, 10))
}

func (c *cgroups) limitV2(leaf string, res sandbox.Resources) error {
	for _, kv := range [][2]string{
		{"memory.max", strconv.FormatInt(res.MemoryMB<<20, 10)},
		{"cpu.max", quota(res.CPU) + " " + strconv.Itoa(cpuPeriod)},
		{"pids.max", strconv.FormatInt(res.PIDs, 10)},
	} {
		if err := writeControl(c.file("memory", leaf, kv[0]), kv[1]); err != nil {
			return err
		}
	}
	swap := c.file("memory", leaf, "memory.swap.max")
	if _, err := os.Stat(swap); err == nil {
		return writeControl(swap, "0")
	}
	return nil
}

// quota turns cores into microseconds of each period; the kernel takes 1000 at least.
func quota(cores float64) string {
	return strconv.FormatInt(max(1000, int64(cores*cpuPeriod)), 10)
}

func writeControl(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	_, err = f.WriteString(value)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("cgroup: set %s to %q: %w", path, value, err)
	}
	return nil
}

// holds reports whether a process is in the leaf in every hierarchy that limits something.
func (c *cgroups) holds(leaf string, pid int) error {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return err
	}
	return c.holdsText(leaf, string(b))
}

func (c *cgroups) holdsText(leaf, text string) error {
	in := map[string]string{}
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		if f[1] == "" {
			in["unified"] = f[2]
		}
		for ctl := range strings.SplitSeq(f[1], ",") {
			in[ctl] = f[2]
		}
	}
	want := c.path(leaf)
	for _, ctl := range []string{"memory", "cpu", "pids"} {
		key := ctl
		if c.v2 {
			key = "unified"
		}
		// In a container the kernel may show a path from above the mount: the end of it counts.
		if got := in[key]; got != want && !strings.HasSuffix(got, want) {
			return fmt.Errorf("not held by the %s cgroup %s but by %q", ctl, want, got)
		}
	}
	return nil
}
