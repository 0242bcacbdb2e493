package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"sandgate/internal/fault"
	"sandgate/sandbox"
)

// The control socket lets commands on the host reach the server that holds the data directory. It is a unix socket of
// mode 0600 in a 0700 directory: whoever can open it owns the data anyway.

// controlAnswer is the body of every answer.
type controlAnswer struct {
	Killed int    `json:"killed"`
	Error  string `json:"error,omitempty"`
}

// serveControl answers on the control socket until ctx ends; the function returned waits for that.
func (ps *parts) serveControl(ctx context.Context, logger *slog.Logger) (wait func(), err error) {
	path := ps.dir.controlSocket()
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // we hold the lock: a socket here is stale
		return nil, err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /kill", func(w http.ResponseWriter, r *http.Request) {
		var ids []string
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&ids); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer(w, func() (int, error) { return ps.kill(r.Context(), ids) })
	})
	mux.HandleFunc("POST /prune", func(w http.ResponseWriter, r *http.Request) {
		answer(w, func() (int, error) { return 0, ps.manager.Reconcile(r.Context()) })
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: headerLimit}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
			logger.Error("control socket", "cause", err.Error())
		}
	}()
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	return func() { stop(); _ = server.Close(); <-done }, nil
}

func answer(w http.ResponseWriter, do func() (int, error)) {
	n, err := do()
	a := controlAnswer{Killed: n}
	if err != nil {
		a.Error = words(err)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(a)
}

// kill ends the sandboxes named, or all where none is.
func (ps *parts) kill(ctx context.Context, ids []string) (int, error) {
	if len(ids) == 0 {
		return ps.service.AdminKillAll(ctx)
	}
	killed := 0
	for _, id := range ids {
		if !sandbox.ID(id).Valid() {
			return killed, fault.New(fault.NotFound, "%q is not a sandbox id", id)
		}
		if err := ps.service.AdminKill(ctx, id); err != nil {
			return killed, err
		}
		killed++
	}
	return killed, nil
}

// callControl asks the running server; errNoServer when there is none.
func (d *dataDir) callControl(ctx context.Context, path string, body any) (controlAnswer, error) {
	var a controlAnswer
	client := http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, "unix", d.controlSocket())
		},
	}}
	defer client.CloseIdleConnections()
	b, err := json.Marshal(body)
	if err != nil {
		return a, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://control"+path, bytes.NewReader(b))
	if err != nil {
		return a, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return a, fmt.Errorf("%w: %w", errNoServer, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&a); err != nil {
		return a, fmt.Errorf("control socket: %w", err)
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}

var errNoServer = errors.New("no server answers on the control socket")
