package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// callLimit is how long one call may take: of a hundred creates at once the last one waits for all others.
const callLimit = 5 * time.Minute

// server is the product's, on a data directory of its own.
type server struct {
	ctx       context.Context
	data, url string
	key       string
	cmd       *exec.Cmd
}

// client keeps a connection for each of as many callers as the table has at once.
var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 128, DisableCompression: true, ReadBufferSize: chunk, WriteBufferSize: chunk}}

func startServer(ctx context.Context, flags ...string) (s *server, err error) {
	s = &server{ctx: ctx}
	if s.data, err = os.MkdirTemp("", "sandgate-bench-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	log, err := os.Create(filepath.Join(s.data, "server.log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	s.cmd = s.command(append([]string{"serve", "--listen", "127.0.0.1:0", "--max-sandboxes", "0", "--max-workspace-sandboxes", "0"}, flags...)...)
	s.cmd.Stderr = log
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	in := bufio.NewScanner(stdout)
	for s.url == "" && in.Scan() {
		s.url, _ = strings.CutPrefix(in.Text(), "listening on ")
	}
	if s.url == "" {
		text, _ := os.ReadFile(log.Name())
		return nil, fmt.Errorf("the server did not start: %s", text)
	}
	go func() { _, _ = io.Copy(io.Discard, stdout) }() // ends with the server

	if _, err := s.command("workspace", "create", "bench").Output(); err != nil {
		return nil, fmt.Errorf("workspace create: %w", err)
	}
	key, err := s.command("key", "create", "--workspace", "bench", "--name", "bench", "--permission", "sandboxes:run").Output()
	if err != nil {
		return nil, fmt.Errorf("key create: %w", err)
	}
	s.key = strings.TrimSpace(string(key))
	return s, nil
}

func (s *server) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(s.ctx, "bin/sandgate", args...)
	cmd.Env = append(os.Environ(), "SANDGATE_DATA="+s.data)
	return cmd
}

// close ends every sandbox and the server, and removes its data.
func (s *server) close() error {
	var errs []error
	if s.url != "" {
		kill := exec.Command("bin/sandgate", "sandbox", "kill", "--all") // the context may have ended already
		kill.Env = append(os.Environ(), "SANDGATE_DATA="+s.data)
		errs = append(errs, kill.Run())
	}
	if s.cmd != nil && s.cmd.Process != nil {
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		_ = s.cmd.Wait() // its exit code tells nothing here
	}
	return errors.Join(append(errs, os.RemoveAll(s.data))...)
}

func (s *server) call(method, path string, body, out any) error {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(s.ctx, callLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("X-API-Key", s.key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body) // to its end: the connection is kept
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %d %s", method, path, resp.StatusCode, answer)
	}
	return json.Unmarshal(answer, out)
}

func (s *server) create() (string, error) { return s.createWith(map[string]any{"label": "bench"}) }

func (s *server) createWith(options map[string]any) (string, error) {
	var sb struct{ ID string }
	err := s.call("POST", "/v1/sandboxes", options, &sb)
	return sb.ID, err
}

func (s *server) kill(id string) error {
	var done struct{ Success bool }
	return s.call("DELETE", "/v1/sandboxes/"+id, nil, &done)
}

// exec runs a command that must succeed.
func (s *server) exec(id, command string) error {
	var e struct {
		ExitCode int `json:"exit_code"`
	}
	if err := s.call("POST", "/v1/sandboxes/"+id+"/commands", map[string]any{"command": command}, &e); err != nil {
		return err
	}
	if e.ExitCode != 0 {
		return fmt.Errorf("%q: exit code %d", command, e.ExitCode)
	}
	return nil
}
