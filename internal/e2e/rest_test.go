package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// rest is a client of the REST face with one key.
type rest struct {
	t   *testing.T
	url string
	key string

	header http.Header // beside the key
}

func (s *server) rest(key string) rest { return rest{t: s.t, url: s.url, key: key} }

// with gives a client that sends a header with each call.
func (r rest) with(name, value string) rest {
	if r.header = r.header.Clone(); r.header == nil {
		r.header = http.Header{}
	}
	r.header.Set(name, value)
	return r
}

// do sends a request; body may be nil, []byte, or anything that becomes JSON.
func (r rest) do(method, path string, body any) (int, []byte) {
	r.t.Helper()
	var in io.Reader
	switch b := body.(type) {
	case nil:
	case []byte:
		in = bytes.NewReader(b)
	default:
		j, err := json.Marshal(b)
		require.NoError(r.t, err)
		in = bytes.NewReader(j)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, r.url+path, in)
	require.NoError(r.t, err)
	for name, values := range r.header {
		req.Header[name] = values
	}
	req.Header.Set("X-API-Key", r.key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	require.NoError(r.t, err, "%s %s", method, path)
	defer func() { _ = resp.Body.Close() }()
	out, err := io.ReadAll(resp.Body)
	require.NoError(r.t, err, "%s %s", method, path)
	return resp.StatusCode, out
}

// ok sends a request that must succeed, and reads its JSON into out (nil: not read).
func (r rest) ok(method, path string, body, out any) {
	r.t.Helper()
	code, b := r.do(method, path, body)
	require.True(r.t, code == http.StatusOK || code == http.StatusAccepted, "%s %s: %d %s", method, path, code, b)
	if out != nil {
		require.NoError(r.t, json.Unmarshal(b, out), "%s", b)
	}
}

type sandboxJSON struct {
	ID, Status, Reason, Label string
}

type executionJSON struct {
	Stdout, Stderr string
	ExitCode       int  `json:"exit_code"`
	TimedOut       bool `json:"timed_out"`
	Truncated      bool
	ID             string
}

func (r rest) create(label string) string {
	r.t.Helper()
	var sb sandboxJSON
	r.ok("POST", "/v1/sandboxes", map[string]any{"label": label}, &sb)
	require.Equal(r.t, "running", sb.Status)
	return sb.ID
}

func (r rest) exec(id, command string) executionJSON {
	r.t.Helper()
	var e executionJSON
	r.ok("POST", "/v1/sandboxes/"+id+"/commands", map[string]any{"command": command}, &e)
	return e
}

func (r rest) openPTY(id string) string {
	r.t.Helper()
	var p struct{ ID string }
	r.ok("POST", "/v1/sandboxes/"+id+"/ptys", map[string]any{"cols": 80, "rows": 24}, &p)
	return p.ID
}
