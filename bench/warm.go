package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"time"
)

// poolSettle is what a sandbox that has started takes at most until it can be given away: its agent is asked once.
const poolSettle = 300 * time.Millisecond

// createWarm is create_cold on a server that has a sandbox ready. Nothing is timed while it makes the next one ready.
func (b *bench) createWarm() (err error) {
	s, err := startServer(b.ctx, "--pool", "1", "--jail-pool", "10.214.0.0/16")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	var ours, reference []float64
	for range createRounds {
		if err := s.filled(); err != nil {
			return err
		}
		begin := time.Now()
		id, err := s.create()
		if err != nil {
			return err
		}
		if err := s.exec(id, "echo hi"); err != nil {
			return err
		}
		ours = append(ours, ms(begin))
		if err := s.kill(id); err != nil {
			return err
		}
		if err := s.filled(); err != nil {
			return err
		}
		took, err := b.bareCreate()
		if err != nil {
			return err
		}
		reference = append(reference, took)
	}
	b.pair("create_warm", "ms", ours, reference)
	return nil
}

// filled waits until a sandbox that nobody owns has started.
func (s *server) filled() error {
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		states, err := filepath.Glob(filepath.Join(s.data, "sandboxes", "*", "state.json"))
		if err != nil {
			return err
		}
		for _, path := range states {
			if text, err := os.ReadFile(path); err == nil && bytes.Contains(text, []byte(`"started":true`)) {
				time.Sleep(poolSettle)
				return nil
			}
		}
	}
	return errors.New("no sandbox became ready")
}
