package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const burst = 100

// burst100: 100 creates at once until all are answered, against 100 bare ones, created and started as many at a time as
// suits this machine best. What failed and what was left behind are rows of their own.
func (b *bench) burst() (err error) {
	boxes, err := b.srv.boxes()
	if err != nil {
		return err
	}
	server, err := newGroup("sandgate-bench-server")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.leave(b.srv.cmd.Process.Pid), server.close()) }()
	if err := server.join(b.srv.cmd.Process.Pid); err != nil {
		return err
	}
	var ours, reference []float64
	failed, left := 0, 0
	round := func() error {
		took, f, l, err := b.burstOurs(server, boxes)
		ours, failed, left = append(ours, took), failed+f, left+l
		return err
	}
	if err := round(); err != nil {
		return err
	}
	for _, atOnce := range []int{1, 2, 4, 8} {
		took, err := b.burstBare(atOnce)
		if err != nil {
			return err
		}
		reference = append(reference, took)
	}
	if err := round(); err != nil { // the machine may have been busier at first, or after
		return err
	}
	b.pair("burst100", "ms", ours, []float64{slices.Min(reference)})
	b.rows["burst100_failures"] = row{Value: float64(failed), Unit: "of 200"}
	b.rows["burst100_leftovers"] = row{Value: float64(left), Unit: "traces"}
	return nil
}

// told says on the way what a table cannot: on a busy machine processor time tells more than the clock.
func (b *bench) told(who string, took, cores float64) {
	fmt.Fprintf(os.Stderr, "%d %s: %.0f ms, %.1f ms of processor time each\n", b.burstSize, who, took, 1e3*cores/float64(b.burstSize))
}

func (b *bench) burstOurs(groups ...*group) (took float64, failed, left int, err error) {
	before, err := b.srv.traces()
	if err != nil {
		return 0, 0, 0, err
	}
	ids := make([]string, b.burstSize)
	errs := make([]error, b.burstSize)
	used, err := cpuOf(groups)
	if err != nil {
		return 0, 0, 0, err
	}
	begin := time.Now()
	_ = b.each(b.burstSize, b.burstSize, func(i int) error {
		ids[i], errs[i] = b.srv.create()
		return nil
	})
	took = ms(begin)
	now, err := cpuOf(groups)
	if err != nil {
		return 0, 0, 0, err
	}
	b.told("creates at once", took, now-used)
	for _, err := range errs {
		if err != nil {
			failed++
			fmt.Fprintln(os.Stderr, "a create of the burst failed:", err)
		}
	}
	err = b.each(len(ids), manyAtOnce, func(i int) error {
		if ids[i] == "" {
			return nil
		}
		return b.srv.kill(ids[i])
	})
	after, terr := b.srv.traces()
	for _, trace := range after {
		if !slices.Contains(before, trace) {
			left++
			fmt.Fprintln(os.Stderr, "left of the burst:", trace)
		}
	}
	return took, failed, left, errors.Join(err, terr)
}

func (b *bench) burstBare(atOnce int) (took float64, err error) {
	all := make([]*container, b.burstSize)
	defer func() {
		err = errors.Join(err, b.each(len(all), manyAtOnce, func(i int) error {
			if all[i] == nil {
				return nil
			}
			return all[i].delete()
		}))
	}()
	if err := b.each(len(all), manyAtOnce, func(i int) (err error) { all[i], err = b.bare.prepare(); return err }); err != nil {
		return 0, err
	}
	used, err := b.bare.group.cpu()
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	err = b.bare.within(func() error {
		err := b.each(len(all), atOnce, func(i int) error { return all[i].start() })
		took = ms(begin)
		return err
	})
	if err != nil {
		return 0, err
	}
	now, err := b.bare.group.cpu()
	b.told(fmt.Sprintf("bare ones, %d at a time", atOnce), took, now-used)
	return took, err
}

// traces lists what bears the installation's mark on the host: directories, groups, namespaces, links.
func (s *server) traces() ([]string, error) {
	inst, err := os.ReadFile(filepath.Join(s.data, "inst"))
	if err != nil {
		return nil, err
	}
	mark := string(inst)
	var out []string
	for _, pattern := range []string{
		filepath.Join(s.data, "sandboxes", "sg-"+mark+"-*"), "/sys/fs/cgroup/sandgate-" + mark + "/sg-*", "/sys/fs/cgroup/*/sandgate-" + mark + "/sg-*",
		"/run/netns/sg-" + mark + "-*", "/sys/class/net/sg" + mark + "*", "/run/sandgate/" + mark + "/*/*_sandbox:*",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return out, nil
}
