package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// bare runs runsc without the product around it: the image, the flags and the configuration are those of a sandbox that the
// product made, its network namespace is there already, and `sleep` takes the place of the agent.
type bare struct {
	ctx    context.Context
	srv    *server
	world  *world
	like   string // id of the sandbox that it is like
	runsc  string
	flags  []string
	mu     sync.Mutex // for config
	config map[string]any
	dir    string // state and bundles
	count  atomic.Int64
	group  *group // all of it is in there
}

func newBare(ctx context.Context, srv *server, w *world) (*bare, error) {
	b := &bare{ctx: ctx, srv: srv, world: w}
	err := b.masquerade()
	if err != nil {
		return nil, err
	}
	if b.group, err = newGroup(w.name); err != nil {
		return nil, err
	}
	if b.like, err = srv.create(); err != nil {
		return nil, err
	}
	if err := b.learn(); err != nil {
		return nil, err
	}
	// On tmpfs, as the product's own.
	if b.dir, err = os.MkdirTemp("/run", "sandgate-bench-"); err != nil {
		return nil, err
	}
	return b, nil
}

// learn reads program and flags from the sentry's command line, and the configuration from its bundle.
func (b *bare) learn() error {
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	for _, dir := range procs {
		text, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || !bytes.Contains(text, []byte(b.like)) {
			continue
		}
		args := strings.Split(strings.TrimRight(string(text), "\x00"), "\x00")
		boot := slices.Index(args, "boot")
		if boot < 1 {
			continue
		}
		if b.runsc, err = os.Readlink(filepath.Join(dir, "exe")); err != nil {
			return err
		}
		for _, flag := range args[1:boot] {
			name, _, _ := strings.Cut(strings.TrimLeft(flag, "-"), "=")
			// Those with a place or a descriptor of that one sandbox.
			if slices.Contains([]string{"root", "log", "debug-log", "panic-log", "user-log", "overlay2"}, name) || strings.HasSuffix(name, "-fd") {
				continue
			}
			b.flags = append(b.flags, flag)
		}
	}
	if b.runsc == "" {
		return errors.New("no sentry found to be like")
	}
	bundles, err := filepath.Glob(filepath.Join(b.srv.data, "sandboxes", "*"+b.like, "bundle", "config.json"))
	if err != nil || len(bundles) != 1 {
		return fmt.Errorf("no bundle of %s: %v %w", b.like, bundles, err)
	}
	text, err := os.ReadFile(bundles[0])
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &b.config); err != nil {
		return err
	}
	process, ok := b.config["process"].(map[string]any)
	if !ok {
		return errors.New("the bundle has no process")
	}
	process["args"] = []string{"/bin/sleep", "1000000"}
	return nil
}

// container is one bare sandbox.
type container struct {
	b  *bare
	id string
	n  int
}

// configFor gives the configuration with another network namespace and group. Nothing is limited: that is the product's work.
func (b *bare) configFor(id, namespace string) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	linux, _ := b.config["linux"].(map[string]any)
	linux["cgroupsPath"] = "/" + filepath.Join(b.world.name, id)
	all, _ := linux["namespaces"].([]any)
	for _, one := range all {
		if ns, ok := one.(map[string]any); ok && ns["type"] == "network" {
			ns["path"] = namespace
		}
	}
	return json.Marshal(b.config)
}

func (b *bare) command(flags []string, args ...string) *exec.Cmd {
	all := slices.Concat([]string{"--root=" + filepath.Join(b.dir, "root")}, b.flags, flags, args)
	return exec.CommandContext(b.ctx, b.runsc, all...)
}

// within does something with this program in the group, so that all that it starts is counted there.
func (b *bare) within(do func() error) error {
	if err := b.group.join(os.Getpid()); err != nil {
		return err
	}
	return errors.Join(do(), b.group.leave(os.Getpid()))
}

// run runs it with files for output: what a sandbox inherits must not be a pipe that somebody reads to its end.
func (b *bare) run(cmd *exec.Cmd) error {
	log, err := os.CreateTemp(b.dir, "log-")
	if err != nil {
		return err
	}
	defer func() { _ = log.Close(); _ = os.Remove(log.Name()) }()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(log.Name())
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, text)
	}
	return nil
}

// create makes and starts one.
func (b *bare) create() (*container, error) {
	c, err := b.prepare()
	if err != nil {
		return nil, err
	}
	return c, c.start()
}

// prepare makes what is ready before a bare sandbox is timed: its network namespace, bundle and directory.
func (b *bare) prepare() (*container, error) {
	n := int(b.count.Add(1))
	c := &container{b: b, id: fmt.Sprintf("bare%04d", n), n: n}
	namespace, err := b.link(c.n)
	if err != nil {
		return nil, err
	}
	bundle, overlay := filepath.Join(b.dir, c.id), filepath.Join(b.srv.data, c.id)
	for _, dir := range []string{bundle, overlay} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, err
		}
	}
	text, err := b.configFor(c.id, namespace)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), text, 0o644); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *container) start() error {
	overlay := "--overlay2=root:dir=" + filepath.Join(c.b.srv.data, c.id) + ",size=4096m"
	if err := c.b.run(c.b.command([]string{overlay}, "create", "--bundle", filepath.Join(c.b.dir, c.id), c.id)); err != nil {
		return err
	}
	return c.b.run(c.b.command(nil, "start", c.id))
}

func (c *container) exec(command string) error {
	return c.b.run(c.b.command(nil, "exec", c.id, "sh", "-c", command))
}

func (c *container) delete() error {
	err := c.b.run(c.b.command(nil, "delete", "--force", c.id))
	return errors.Join(err, os.RemoveAll(filepath.Join(c.b.dir, c.id)), os.RemoveAll(filepath.Join(c.b.srv.data, c.id)), c.b.unlink(c.n))
}

// close removes what is left of the run; runsc keeps a mount in its state that has to go first.
func (b *bare) close() error {
	mounts, _ := filepath.Glob(filepath.Join(b.dir, "root", "null-netns*"))
	for _, m := range mounts {
		_ = exec.Command("umount", m).Run() // not one where this version makes none
	}
	return errors.Join(b.srv.kill(b.like), os.RemoveAll(b.dir), b.group.close())
}
