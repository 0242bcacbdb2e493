package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"sync"
	"time"
)

const (
	manyAtOnce = 4
	manyEach   = 32 // MiB that one of many sandboxes may take while it is idle; a quarter of them is kept back
	manyRest   = 20 * time.Second
	manyWatch  = time.Minute // what is done once a minute is in it
	listRounds = 21
	person     = "bench@example.org"
	password   = "only for this one data directory"
)

// many: 500 idle sandboxes at once. How long the list page takes in the server, and what they and the server cost of the
// processor, against as many bare ones.
func (b *bench) manyIdle() (err error) {
	if free, err := mebibytes("/proc/meminfo", "MemAvailable"); err != nil {
		return err
	} else if need := float64(b.many * manyEach); free < need {
		return fmt.Errorf("%d sandboxes need %.0f MiB of memory to be sure, %.0f are free: -many N makes fewer", b.many, need, free)
	}
	server, err := newGroup("sandgate-bench-server")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.leave(b.srv.cmd.Process.Pid), server.close()) }()
	if err := server.join(b.srv.cmd.Process.Pid); err != nil {
		return err
	}
	ours, err := b.manyOurs(server)
	if err != nil {
		return err
	}
	reference, err := b.manyBare()
	if err != nil {
		return err
	}
	b.rows["idle_cpu_500"] = row{Value: ours, Unit: "cores", Reference: reference, Ratio: round(ours / max(reference, 0.0001))}
	return nil
}

func (b *bench) manyOurs(server *group) (cores float64, err error) {
	boxes, err := b.srv.boxes()
	if err != nil {
		return 0, err
	}
	ids := make([]string, b.many)
	defer func() {
		err = errors.Join(err, b.each(len(ids), manyAtOnce, func(i int) error {
			if ids[i] == "" {
				return nil
			}
			return b.srv.kill(ids[i])
		}))
	}()
	err = b.each(b.many, manyAtOnce, func(i int) (err error) {
		ids[i], err = b.srv.createWith(map[string]any{"label": fmt.Sprintf("bench %d", i), "idle_timeout": 86400})
		return err
	})
	if err != nil {
		return 0, err
	}
	if err := b.list(); err != nil {
		return 0, err
	}
	if err := b.atRest(ids); err != nil {
		return 0, err
	}
	return b.watch(manyRest, manyWatch, server, boxes)
}

func (b *bench) manyBare() (cores float64, err error) {
	all := make([]*container, b.many)
	defer func() {
		err = errors.Join(err, b.each(len(all), manyAtOnce, func(i int) error {
			if all[i] == nil {
				return nil
			}
			return all[i].delete()
		}))
	}()
	err = b.bare.within(func() error {
		return b.each(b.many, manyAtOnce, func(i int) (err error) {
			if all[i], err = b.bare.prepare(); err == nil {
				err = all[i].start()
			}
			return err
		})
	})
	if err != nil {
		return 0, err
	}
	return b.watch(manyRest, manyWatch, b.bare.group)
}

// watch gives the cores that groups use while nobody calls anything, after a rest.
func (b *bench) watch(rest, during time.Duration, groups ...*group) (cores float64, err error) {
	if err := b.pause(rest); err != nil {
		return 0, err
	}
	before, err := cpuOf(groups)
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	if err := b.pause(during); err != nil {
		return 0, err
	}
	after, err := cpuOf(groups)
	return math.Round(1e4*(after-before)/time.Since(begin).Seconds()) / 1e4, err
}

func (b *bench) pause(d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-b.ctx.Done():
		return b.ctx.Err()
	}
}

// each does something n times, so many at once, and goes on after failures; none begins after the run was ended.
func (b *bench) each(n, atOnce int, do func(i int) error) error {
	var wait sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	errs := make([]error, n)
	for i := range n {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			errs[i] = do(i)
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

// list times the list page as a browser asks for it.
func (b *bench) list() error {
	browser, err := b.srv.signIn()
	if err != nil {
		return err
	}
	var took []float64
	for range listRounds {
		begin := time.Now()
		page, err := b.srv.page(browser, "/w/bench/sandboxes")
		if err != nil {
			return err
		}
		took = append(took, ms(begin))
		if n := strings.Count(page, `id="row-`); n < b.many {
			return fmt.Errorf("the list shows %d of %d sandboxes", n, b.many)
		}
	}
	b.rows["list500_ms"] = row{Value: round(median(took)), Unit: "ms"}
	return nil
}

// signIn makes a person of the workspace, once, and a browser in which they are signed in.
func (s *server) signIn() (*http.Client, error) {
	for _, args := range [][]string{
		{"user", "create", "--email", person, "--password-stdin"},
		{"workspace", "grant", "--workspace", "bench", "--email", person, "--role", "admin"},
	} {
		cmd := s.command(args...)
		cmd.Stdin = strings.NewReader(password + "\n")
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	browser := &http.Client{Jar: jar, Timeout: time.Minute}
	resp, err := browser.PostForm(s.url+"/sign-in", url.Values{"email": {person}, "password": {password}})
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		return nil, fmt.Errorf("sign in: %d %s", resp.StatusCode, text)
	}
	return browser, nil
}

func (s *server) page(browser *http.Client, path string) (string, error) {
	ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := browser.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %d %s", path, resp.StatusCode, text)
	}
	return string(text), err
}
