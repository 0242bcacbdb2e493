package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	// One turn of bulk output is less than the product's ring, so that every byte of it comes: of what outruns the ring a snapshot
	// takes the place, and less would be carried than by the reference.
	bulkBytes = 3 << 20
	bulk      = "/work/bulk"
	makeBulk  = "head -c 3000000 /dev/urandom | base64 -w 75 | head -c 3145728 >" + bulk
	bulkEnd   = "E.N.D\r\n" // base64 has no full stops
	sayEnd    = "; echo E.''N.D\n"

	termLimit   = 4 * time.Minute // after which a connection is given up, so that nothing hangs
	turnsLeast  = 3               // of each, however long they take
	turnsMost   = 15
	bulkTime    = 12 * time.Second // after which no other turn begins
	echoTime    = 10 * time.Second
	echoLeast   = 10 // lines of each, however long they take
	echoLines   = 40
	echoKeys    = 40 // of one line, which stays narrower than the screen
	onlookers   = 20
	reattaches  = 15
	fullCount   = 12      // terminals whose ring is full
	fullBytes   = 5 << 20 // more than a ring takes
	openCount   = 200
	openEach    = 50 // in one sandbox; it may have 64
	openAtOnce  = 4
	openRest    = 10 * time.Second
	openWatch   = 30 * time.Second // each connection is pinged once in it
	freeingRest = 2 * time.Second
)

// terminals: bulk output and the echo of keys, against terminado over a host pty on `runsc exec bash`. What the client does is
// the same for both.
func (b *bench) terminals() (err error) {
	ctx, cancel := context.WithTimeout(b.ctx, termLimit)
	defer cancel()
	id, err := b.srv.create()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.srv.kill(id)) }()
	c, err := b.bare.create()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.delete()) }()
	if err := errors.Join(b.srv.exec(id, makeBulk), c.exec(makeBulk)); err != nil {
		return err
	}
	ours, _, err := b.srv.shell(ctx, id)
	if err != nil {
		return err
	}
	defer ours.close()
	server, err := startTerminado(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.close()) }()
	theirs, err := server.shell(ctx)
	if err != nil {
		return fmt.Errorf("terminado: %w", err)
	}
	defer theirs.close()

	var keys, referenceKeys []float64
	for begin, lines := time.Now(), 0; lines < echoLines && (lines < echoLeast || time.Since(begin) < echoTime); lines++ {
		if keys, err = ours.echo(keys); err != nil {
			return err
		}
		if referenceKeys, err = theirs.echo(referenceKeys); err != nil {
			return fmt.Errorf("terminado: %w", err)
		}
	}
	var speeds, reference []float64
	err = turns(func() error {
		speed, err := ours.bulk()
		if err != nil {
			return err
		}
		speeds = append(speeds, speed)
		if speed, err = theirs.bulk(); err != nil {
			return fmt.Errorf("terminado: %w", err)
		}
		reference = append(reference, speed)
		return nil
	})
	if err != nil {
		return err
	}
	b.speed("term_bulk", "MB/s", speeds, reference)
	b.pair("term_echo_p50", "µs", []float64{percentile(keys, 50)}, []float64{percentile(referenceKeys, 50)})
	b.pair("term_echo_p99", "µs", []float64{percentile(keys, 99)}, []float64{percentile(referenceKeys, 99)})
	return nil
}

// turns repeats a turn of ours and of the reference, for a while.
func turns(turn func() error) error {
	for begin, n := time.Now(), 0; n < turnsMost && (n < turnsLeast || time.Since(begin) < bulkTime); n++ {
		if err := turn(); err != nil {
			return err
		}
	}
	return nil
}

// bulk prints a file and gives how fast it came, in MB/s.
func (t *terminal) bulk() (float64, error) {
	begin := time.Now()
	n, err := t.do("cat "+bulk+sayEnd, bulkEnd)
	took := time.Since(begin)
	if err != nil {
		return 0, err
	}
	if n < bulkBytes { // a snapshot took the place of some
		return 0, fmt.Errorf("only %d of %d bytes of bulk output came", n, bulkBytes)
	}
	_, err = t.until(prompt)
	return bulkBytes / 1e6 / took.Seconds(), err
}

// echo types a line at the prompt, each key once the one before is seen, and adds how long each took to come back, in µs.
// Bash itself echoes there, so a key goes to the program and back.
func (t *terminal) echo(took []float64) ([]float64, error) {
	if _, err := t.do(": ", ": "); err != nil {
		return nil, err
	}
	for range echoKeys {
		begin := time.Now()
		if _, err := t.do("k", "k"); err != nil {
			return nil, err
		}
		took = append(took, float64(time.Since(begin).Nanoseconds())/1000)
	}
	_, err := t.do("\n", prompt)
	return took, err
}

// termViewers: bulk output as it comes to the driver with 20 viewers beside, against the driver alone; then how long
// it takes from the first byte of a new connection to a full screen, with nobody else there and the ring full.
func (b *bench) termViewers() (err error) {
	ctx, cancel := context.WithTimeout(b.ctx, termLimit)
	defer cancel()
	id, err := b.srv.create()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.srv.kill(id)) }()
	if err := b.srv.exec(id, makeBulk); err != nil {
		return err
	}
	driver, pty, err := b.srv.shell(ctx, id)
	if err != nil {
		return err
	}
	defer driver.close()
	var beside, alone []float64
	err = turns(func() error {
		speed, err := driver.bulk()
		if err != nil {
			return err
		}
		alone = append(alone, speed)
		leave, err := b.srv.watchedBy(ctx, id, pty, onlookers)
		if err != nil {
			return err
		}
		defer leave()
		speed, err = driver.bulk()
		beside = append(beside, speed)
		return err
	})
	if err != nil {
		return err
	}
	b.speed("term_viewers20", "MB/s", beside, alone)

	driver.close()
	var took []float64
	for range reattaches {
		begin := time.Now()
		t, err := b.srv.view(ctx, id, pty)
		if err != nil {
			return err
		}
		_, err = t.until(prompt)
		took = append(took, ms(begin))
		t.close()
		if err != nil {
			return err
		}
	}
	b.rows["term_reattach"] = row{Value: round(median(took)), Unit: "ms"}
	return nil
}

// watchedBy connects so many viewers, who take in what comes until leave is called.
func (s *server) watchedBy(ctx context.Context, id, pty string, n int) (leave func(), err error) {
	var wait sync.WaitGroup
	var all []*terminal
	leave = func() {
		for _, t := range all {
			t.close()
		}
		wait.Wait()
	}
	for range n {
		t, err := s.view(ctx, id, pty)
		if err != nil {
			leave()
			return nil, err
		}
		all = append(all, t)
		wait.Go(func() {
			for {
				if _, err := t.read(); err != nil {
					return // it was closed
				}
			}
		})
	}
	return leave, nil
}

// termIdle: what an open terminal with a full ring adds to the server's memory, and what 200 open idle ones, looked at by
// one viewer each, cost of the processor, server and sandboxes together. The server is a fresh one: no memory of earlier rows is reused.
func (b *bench) termIdle() (err error) {
	ctx, cancel := context.WithTimeout(b.ctx, termLimit)
	defer cancel()
	s, err := startServer(ctx, "--pool", "0", "--jail-pool", "10.214.0.0/16")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	group, err := newGroup(b.bare.world.name + "-term")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, group.leave(s.cmd.Process.Pid), group.close()) }()
	if err := group.join(s.cmd.Process.Pid); err != nil {
		return err
	}
	boxes, err := s.boxes()
	if err != nil {
		return err
	}
	ids := make([]string, openCount/openEach)
	for i := range ids {
		if ids[i], err = s.createWith(map[string]any{"label": "bench", "idle_timeout": 86400}); err != nil {
			return err
		}
		if err := s.exec(ids[i], "true"); err != nil {
			return err
		}
	}
	all := make([]*terminal, openCount)
	defer func() {
		for _, t := range all {
			if t != nil {
				t.close()
			}
		}
	}()
	open := func(i int) (err error) {
		all[i], _, err = s.shell(ctx, ids[i%len(ids)])
		return err
	}

	before, err := mebibytes(s.proc("status"), "VmRSS")
	if err != nil {
		return err
	}
	err = b.each(fullCount, openAtOnce, func(i int) error {
		if err := open(i); err != nil {
			return err
		}
		_, err := all[i].do(fmt.Sprintf("yes terminal | head -c %d", fullBytes)+sayEnd, bulkEnd)
		return err
	})
	if err != nil {
		return err
	}
	if err := b.pause(freeingRest); err != nil {
		return err
	}
	after, err := mebibytes(s.proc("status"), "VmRSS")
	if err != nil {
		return err
	}
	b.rows["term_memory"] = row{Value: round((after - before) / fullCount), Unit: "MiB"}

	if err := b.each(openCount-fullCount, openAtOnce, func(i int) error { return open(fullCount + i) }); err != nil {
		return err
	}
	for _, t := range all { // answers pings
		go func() { _, _ = t.until("\x00") }() // ends with the connection
	}
	cores, err := b.watch(openRest, openWatch, group, boxes)
	if err != nil {
		return err
	}
	b.rows["term_idle_cpu_200"] = row{Value: cores, Unit: "cores"}
	return nil
}
