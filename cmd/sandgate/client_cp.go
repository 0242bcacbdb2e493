package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
)

type cpCmd struct {
	remote `embed:""`
	From   string `arg:"" help:"A file here, or ID:/path in a sandbox."`
	To     string `arg:"" help:"A file or directory here, or ID:/path in a sandbox; a path ending in / keeps the name."`
}

// Run copies one file in or out, streaming; a download that ends early leaves nothing.
func (c *cpCmd) Run(e *env) error {
	fromID, fromPath, fromRemote := remotePlace(c.From)
	toID, toPath, toRemote := remotePlace(c.To)
	switch {
	case fromRemote == toRemote:
		return errors.New("name one file here and one in a sandbox, as ID:/path")
	case toRemote:
		if strings.HasSuffix(toPath, "/") {
			toPath += filepath.Base(c.From)
		}
		return c.up(e, c.From, toID, toPath)
	default:
		to := c.To
		if st, err := os.Stat(to); err == nil && st.IsDir() {
			to = filepath.Join(to, path.Base(fromPath))
		}
		return c.down(e, fromID, fromPath, to)
	}
}

// remotePlace splits ID:/path.
func remotePlace(s string) (id, p string, ok bool) {
	id, p, ok = strings.Cut(s, ":")
	return id, p, ok && strings.HasPrefix(p, "/") && strings.HasPrefix(id, "sb")
}

func rawURL(id, p string) string {
	return "/v1/sandboxes/" + url.PathEscape(id) + "/files/raw?" + url.Values{"path": {p}}.Encode()
}

func (c *cpCmd) up(e *env, local, id, p string) error {
	f, err := os.Open(local)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", local)
	}
	resp, err := c.send(e, http.MethodPut, rawURL(id, p), "application/json", f, st.Size(), "application/octet-stream")
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func (c *cpCmd) down(e *env, id, p, local string) error {
	resp, err := c.send(e, http.MethodGet, rawURL(id, p), "*/*", nil, 0, "")
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	tmp, err := os.CreateTemp(filepath.Dir(local), ".sandgate-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	n, cerr := io.Copy(tmp, resp.Body)
	if cerr == nil && resp.ContentLength >= 0 && n != resp.ContentLength {
		cerr = io.ErrUnexpectedEOF
	}
	if err := errors.Join(cerr, tmp.Chmod(0o644), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), local)
}
