package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

const (
	gigabyte = 1 << 30
	chunk    = 256 << 10 // bytes of one read or write, on both sides of the comparison
	big      = "/work/big"
	makeBig  = "head -c 1073741824 /dev/zero >" + big
)

// files: 1 GiB out of and into a sandbox, against `runsc exec cat`; and how far the server's memory grows meanwhile.
func (b *bench) files() (err error) {
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
	if err := errors.Join(b.srv.exec(id, makeBig), c.exec(makeBig)); err != nil {
		return err
	}
	before, err := mebibytes(b.srv.proc("status"), "VmRSS")
	if err != nil {
		return err
	}
	if err := os.WriteFile(b.srv.proc("clear_refs"), []byte("5"), 0); err != nil { // the peak counts from here
		return err
	}
	var speeds [4][]float64 // ours out, bare out, ours in, bare in
	for range fileRounds {
		for i, do := range []func() error{
			func() error { return b.srv.get(id) }, c.get, func() error { return b.srv.put(id) }, c.put,
		} {
			begin := time.Now()
			if err := do(); err != nil {
				return err
			}
			speeds[i] = append(speeds[i], gigabyte/1e6/time.Since(begin).Seconds())
		}
	}
	peak, err := mebibytes(b.srv.proc("status"), "VmHWM")
	if err != nil {
		return err
	}
	b.speed("file_get_1g", "MB/s", speeds[0], speeds[1])
	b.speed("file_put_1g", "MB/s", speeds[2], speeds[3])
	b.rows["server_rss_growth_1g"] = row{Value: round(max(peak-before, 0)), Unit: "MiB"}
	return nil
}

func (s *server) proc(name string) string {
	return filepath.Join("/proc", strconv.Itoa(s.cmd.Process.Pid), name)
}

// raw does one call of files/raw to its end and gives how many bytes came back.
func (s *server) raw(method string, body io.Reader, size int64) (int64, error) {
	ctx, cancel := context.WithTimeout(s.ctx, 5*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.url, body)
	if err != nil {
		return 0, err
	}
	req.ContentLength = size
	req.Header.Set("X-API-Key", s.key)
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	n, err := io.CopyBuffer(sink{}, source{resp.Body}, make([]byte, chunk))
	if err != nil || resp.StatusCode != http.StatusOK {
		return n, fmt.Errorf("%s files/raw: %d %w", method, resp.StatusCode, err)
	}
	return n, nil
}

func (s *server) at(id string) *server {
	to := *s
	to.url += "/v1/sandboxes/" + id + "/files/raw?path=" + url.QueryEscape(big)
	return &to
}

func (s *server) get(id string) error {
	n, err := s.at(id).raw(http.MethodGet, nil, 0)
	if err == nil && n != gigabyte {
		err = fmt.Errorf("%d bytes came", n)
	}
	return err
}

func (s *server) put(id string) error {
	_, err := s.at(id).raw(http.MethodPut, zeros(gigabyte), gigabyte)
	return err
}

// sink and source hide the shortcuts of io.Copy, so that every copy here is one of chunks.
type sink struct{}

func (sink) Write(p []byte) (int, error) { return len(p), nil }

type source struct{ io.Reader }

// zeros is as many zero bytes.
func zeros(n int64) io.Reader { return io.LimitReader(zero{}, n) }

type zero struct{}

func (zero) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// get reads the file out by `runsc exec cat`.
func (c *container) get() error {
	return c.pipe("cat "+big, func(cmd *exec.Cmd) (func() error, error) {
		out, err := cmd.StdoutPipe()
		return func() error {
			n, err := io.CopyBuffer(sink{}, source{out}, make([]byte, chunk))
			if err == nil && n != gigabyte {
				err = fmt.Errorf("%d bytes came", n)
			}
			return err
		}, err
	})
}

// put writes it in the same way.
func (c *container) put() error {
	return c.pipe("cat >"+big, func(cmd *exec.Cmd) (func() error, error) {
		in, err := cmd.StdinPipe()
		return func() error {
			_, err := io.CopyBuffer(struct{ io.Writer }{in}, zeros(gigabyte), make([]byte, chunk))
			return errors.Join(err, in.Close())
		}, err
	})
}

// pipe runs a command with one pipe to it, which move reads or writes to its end.
func (c *container) pipe(command string, open func(*exec.Cmd) (move func() error, err error)) error {
	cmd := c.b.command(nil, "exec", c.id, "sh", "-c", command)
	move, err := open(cmd)
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	return errors.Join(move(), cmd.Wait())
}
