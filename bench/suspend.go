package main

import (
	"errors"
	"os"
	"path/filepath"
	"time"
)

const sleepRounds = 15

// resume: POST `echo hi` to a suspended sandbox until its output is there, against bare restore and exec.
func (b *bench) resume() (err error) {
	id, err := b.srv.createPersistent()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.srv.kill(id)) }()
	state, done, err := b.bare.checkpointed()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	var ours, reference []float64
	for range sleepRounds {
		var sb struct{ Status string }
		if err := b.srv.call("POST", "/v1/sandboxes/"+id+"/suspend", nil, &sb); err != nil {
			return err
		}
		begin := time.Now()
		if err := b.srv.exec(id, "echo hi"); err != nil {
			return err
		}
		ours = append(ours, ms(begin))

		c, err := b.bare.prepare()
		if err != nil {
			return err
		}
		begin = time.Now()
		if err := errors.Join(c.restore(state), c.exec("echo hi")); err != nil {
			return err
		}
		reference = append(reference, ms(begin))
		if err := c.delete(); err != nil {
			return err
		}
	}
	b.pair("resume", "ms", ours, reference)
	return nil
}

// fork: POST fork and POST `echo hi` to the fork, against bare checkpoint of one that runs on, restore and exec.
func (b *bench) fork() (err error) {
	id, err := b.srv.createPersistent()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.srv.kill(id)) }()
	origin, err := b.bare.create()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, origin.delete()) }()
	var ours, reference []float64
	for range sleepRounds {
		var sb struct{ ID string }
		begin := time.Now()
		if err := b.srv.call("POST", "/v1/sandboxes/"+id+"/fork", nil, &sb); err != nil {
			return err
		}
		if err := b.srv.exec(sb.ID, "echo hi"); err != nil {
			return err
		}
		ours = append(ours, ms(begin))
		if err := b.srv.kill(sb.ID); err != nil {
			return err
		}

		c, err := b.bare.prepare()
		if err != nil {
			return err
		}
		state := filepath.Join(b.srv.data, "bare-state")
		begin = time.Now()
		if err := errors.Join(origin.checkpoint(state), c.restore(state), c.exec("echo hi")); err != nil {
			return err
		}
		reference = append(reference, ms(begin))
		if err := errors.Join(c.delete(), os.RemoveAll(state)); err != nil {
			return err
		}
	}
	b.pair("fork", "ms", ours, reference)
	return nil
}

func (s *server) createPersistent() (string, error) {
	return s.createWith(map[string]any{"label": "bench", "persistent": true})
}

// checkpointed gives the state of a bare sandbox.
func (b *bare) checkpointed() (state string, done func() error, err error) {
	c, err := b.create()
	if err != nil {
		return "", nil, err
	}
	state = filepath.Join(b.srv.data, "bare-state")
	err = errors.Join(c.checkpoint(state), c.delete())
	return state, func() error { return os.RemoveAll(state) }, err
}

// checkpoint writes the state and lets the sandbox run on.
func (c *container) checkpoint(state string) error {
	return c.b.run(c.b.command(nil, "checkpoint", "--leave-running", "--image-path="+state, c.id))
}

// restore makes and starts one from a state.
func (c *container) restore(state string) error {
	overlay := "--overlay2=root:dir=" + filepath.Join(c.b.srv.data, c.id) + ",size=4096m"
	return c.b.run(c.b.command([]string{overlay}, "restore", "--detach", "--bundle", filepath.Join(c.b.dir, c.id), "--image-path="+state, c.id))
}
