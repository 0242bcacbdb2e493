package main

import (
	"errors"
	"math"
	"slices"
	"sync"
	"time"
)

// How often each figure is taken. Ours and the reference alternate, so that a busy moment of the machine hits both.
const (
	createRounds = 25
	crowdRounds  = 40 // of each client
	fileRounds   = 5
	execRounds   = 300
	idleCount    = 20
)

// createCold: POST create and POST `echo hi`, against bare create, start and exec with the namespace ready-made.
func (b *bench) createCold() error {
	var ours, reference []float64
	for range createRounds {
		begin := time.Now()
		id, err := b.srv.create()
		if err != nil {
			return err
		}
		if err := b.srv.exec(id, "echo hi"); err != nil {
			return err
		}
		ours = append(ours, ms(begin))
		if err := b.srv.kill(id); err != nil {
			return err
		}

		took, err := b.bareCreate()
		if err != nil {
			return err
		}
		reference = append(reference, took)
	}
	b.pair("create_cold", "ms", ours, reference)
	return nil
}

// bareCreate times create, start and `echo hi` of a bare sandbox, in ms.
func (b *bench) bareCreate() (float64, error) {
	c, err := b.bare.prepare()
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	if err := c.start(); err != nil {
		return 0, err
	}
	if err := c.exec("echo hi"); err != nil {
		return 0, err
	}
	took := ms(begin)
	return took, c.delete()
}

// exec: POST `true` over one kept connection, against `runsc exec sh -c true`.
func (b *bench) exec() (err error) {
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

	var ours, reference []float64
	for i := range execRounds + 10 {
		begin := time.Now()
		if err := b.srv.exec(id, "true"); err != nil {
			return err
		}
		our := ms(begin)
		begin = time.Now()
		if err := c.exec("true"); err != nil {
			return err
		}
		if i >= 10 { // the first ones warm up
			ours, reference = append(ours, our), append(reference, ms(begin))
		}
	}
	b.pair("exec", "ms", ours, reference)
	b.pair("exec_p99", "ms", []float64{percentile(ours, 99)}, []float64{percentile(reference, 99)})
	return nil
}

// exec32: the same from 32 clients at once, against 32 bare ones. Its 99th percentile stands beside its own median.
func (b *bench) exec32() (err error) {
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
	if _, err := crowd(2, func() error { return b.srv.exec(id, "true") }); err != nil { // warms up
		return err
	}
	ours, err := crowd(crowdRounds, func() error { return b.srv.exec(id, "true") })
	if err != nil {
		return err
	}
	reference, err := crowd(crowdRounds/4, func() error { return c.exec("true") })
	if err != nil {
		return err
	}
	b.pair("exec_32", "ms", ours, reference)
	b.pair("exec_32_p99", "ms", []float64{percentile(ours, 99)}, []float64{median(ours)})
	return nil
}

// crowd does something rounds times for each of 32 clients at once, and gives how long each time took, in ms.
func crowd(rounds int, do func() error) ([]float64, error) {
	const clients = 32
	var all []float64
	var errs []error
	var mu sync.Mutex
	var wait sync.WaitGroup
	for range clients {
		wait.Go(func() {
			for range rounds {
				begin := time.Now()
				err := do()
				took := ms(begin)
				mu.Lock()
				all, errs = append(all, took), append(errs, err)
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	return all, errors.Join(errs...)
}

// idleMemory: proportional set size of everything that belongs to a sandbox, over 20 idle ones at once. They are measured
// once nobody has called them for so long that they are at rest; a bridge that is still there counts.
func (b *bench) idleMemory() (err error) {
	var ids []string
	defer func() {
		for _, id := range ids {
			err = errors.Join(err, b.srv.kill(id))
		}
	}()
	for range idleCount {
		id, err := b.srv.create()
		if err != nil {
			return err
		}
		ids = append(ids, id)
		if err := b.srv.exec(id, "true"); err != nil { // it was used
			return err
		}
	}
	if err := b.atRest(ids); err != nil {
		return err
	}
	ours, err := memoryOf(ids)
	if err != nil {
		return err
	}
	for len(ids) > 0 { // they would share pages with the reference
		if err := b.srv.kill(ids[0]); err != nil {
			return err
		}
		ids = ids[1:]
	}

	var bare []string
	for range idleCount {
		c, err := b.bare.create()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.delete()) }()
		bare = append(bare, c.id)
		if err := c.exec("true"); err != nil {
			return err
		}
	}
	reference, err := memoryOf(bare)
	if err != nil {
		return err
	}
	b.pair("idle_memory", "MiB", []float64{ours / idleCount}, []float64{reference / idleCount})
	return nil
}

func ms(begin time.Time) float64 { return float64(time.Since(begin).Microseconds()) / 1000 }

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

func percentile(v []float64, p int) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[min(len(s)*p/100, len(s)-1)]
}

func round(v float64) float64 { return math.Round(v*100) / 100 }
