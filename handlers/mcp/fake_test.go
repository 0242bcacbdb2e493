package mcp_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/handlers/api"
	"sandgate/handlers/mcp"
	"sandgate/internal/fault"
	"sandgate/internal/webhost"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

const (
	knownID = "sbaaaaaaaaaaaaaaaaaaaa"
	runKey  = "sg_abcdefgh_0123456789012345678901234567890123456789"
	readKey = "sg_ijklmnop_0123456789012345678901234567890123456789"
)

// fake is a Service that keeps everything in memory and does what a test tells it to.
type fake struct {
	mu    sync.Mutex
	keys  map[string]auth.Permissions
	calls []string
	files map[string][]byte
	spec  agent.CommandSpec
	opts  workspace.CreateOptions
	size  int64 // of a file, where it lies
	run   func(ctx context.Context, out agent.Output) (agent.Exit, error)
	guard context.CancelCauseFunc
}

func newFake() *fake {
	return &fake{
		keys:  map[string]auth.Permissions{runKey: {auth.SandboxesRun}, readKey: {auth.SandboxesRead}},
		files: map[string][]byte{},
		run:   func(context.Context, agent.Output) (agent.Exit, error) { return agent.Exit{}, nil },
	}
}

func (f *fake) may(a auth.Actor, call, id string, p auth.Permission) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call+" by "+a.Name+" at "+a.Address)
	if !a.May(p) {
		return fault.New(fault.Forbidden, "This needs the permission %s, which you do not have in this workspace.", p)
	}
	if id != "" && id != knownID {
		return fault.New(fault.NotFound, "Sandbox not found")
	}
	return nil
}

func (f *fake) revoke(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.keys, key)
	if f.guard != nil {
		f.guard(fault.New(fault.Unauthenticated, "The API key is not valid any more."))
	}
}

func (f *fake) KeyActor(_ context.Context, secret, address, requestID string) (auth.Actor, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ps, ok := f.keys[secret]
	if !ok {
		return auth.Actor{}, fault.New(fault.Unauthenticated, "The API key is not valid.")
	}
	return auth.Actor{Kind: auth.KeyUser, KeyID: "key1", Name: "robot", Permissions: ps, Address: address, RequestID: requestID, Workspace: auth.Workspace{ID: "ws1"}}, nil
}

func (f *fake) Guard(ctx context.Context, _ auth.Actor, _ auth.Permission) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	f.mu.Lock()
	f.guard = cancel
	f.mu.Unlock()
	return ctx, func() { cancel(nil) }
}

func known(label string) workspace.Sandbox {
	return workspace.Sandbox{Record: sandbox.Record{
		ID: knownID, Label: label, Image: "base", OwnerName: "robot", Status: sandbox.Running, CreatedAt: time.Unix(100, 0),
	}}
}

func (f *fake) CreateSandbox(_ context.Context, a auth.Actor, o workspace.CreateOptions) (workspace.Sandbox, error) {
	f.opts = o
	return known(o.Label), f.may(a, "create", "", auth.SandboxesRun)
}

func (f *fake) Sandboxes(_ context.Context, a auth.Actor) ([]workspace.Sandbox, error) {
	return []workspace.Sandbox{known("one")}, f.may(a, "list", "", auth.SandboxesRead)
}

func (f *fake) KillSandbox(_ context.Context, a auth.Actor, id string) error {
	return f.may(a, "kill", id, auth.SandboxesRun)
}

func (f *fake) RunCommand(ctx context.Context, a auth.Actor, id string, c agent.CommandSpec, out agent.Output) (agent.Exit, error) {
	if err := f.may(a, "run", id, auth.SandboxesRun); err != nil {
		return agent.Exit{}, err
	}
	f.spec = c
	return f.run(ctx, out)
}

func (f *fake) ListFiles(_ context.Context, a auth.Actor, id string, path []byte, cursor string, limit, _ int) (agent.Listing, error) {
	entry := agent.FileInfo{PathB64: append(path, "/\xff\x1b[31m<b>"...), Type: "file", Size: 3, ModifiedAt: time.Unix(100, 0)}
	return agent.Listing{Entries: []agent.FileInfo{entry}, Total: limit, Cursor: cursor}, f.may(a, "ls", id, auth.SandboxesRead)
}

func (f *fake) ReadFile(_ context.Context, a auth.Actor, id string, path []byte, offset, length int64) (agent.FileInfo, io.ReadCloser, error) {
	if err := f.may(a, "read", id, auth.SandboxesRead); err != nil {
		return agent.FileInfo{}, nil, err
	}
	p, ok := f.files[string(path)]
	if !ok {
		return agent.FileInfo{}, nil, fault.New(fault.NotFound, "There is no such file.")
	}
	size := int64(len(p))
	p = p[min(offset, size):]
	return agent.FileInfo{Size: size + f.size}, io.NopCloser(bytes.NewReader(p[:min(length, int64(len(p)))])), nil
}

func (f *fake) WriteFile(_ context.Context, a auth.Actor, id string, path []byte, body io.Reader, _ agent.WriteOptions) (agent.FileInfo, error) {
	if err := f.may(a, "write", id, auth.SandboxesRun); err != nil {
		return agent.FileInfo{}, err
	}
	p, err := io.ReadAll(body)
	f.files[string(path)] = p
	return agent.FileInfo{}, err
}

// house is a server of /mcp over a fake.
type house struct {
	t    *testing.T
	f    *fake
	url  string
	log  *lockedBuffer
	here atomic.Pointer[http.Handler]
	// limits of the next restart; nil: none
	limits *api.Limits
}

// restart puts a new server in the place of the one that was.
func (s *house) restart() {
	s.t.Helper()
	names, err := webhost.New(webhost.Options{Listen: "0.0.0.0:0", Hosts: []string{"sandgate.test"}})
	require.NoError(s.t, err)
	h, err := mcp.New(mcp.Options{Service: s.f, Names: names, Log: slog.New(slog.NewTextHandler(s.log, nil)), Progress: 10 * time.Millisecond, Limits: s.limits})
	require.NoError(s.t, err)
	s.here.Store(&h)
}

func start(t *testing.T) *house {
	t.Helper()
	s := &house{t: t, f: newFake(), log: &lockedBuffer{}}
	s.restart()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.Host, "127.0.0.1:") {
			r.Host = "sandgate.test" // the port of a test is not known before
		}
		(*s.here.Load()).ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	s.url = srv.URL
	return s
}

// keyed sends a key with every request.
type keyed string

func (k keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(k))
	return http.DefaultTransport.RoundTrip(r)
}

// client connects the SDK's own client with a key.
func (s *house) client(key string, o *sdk.ClientOptions) *sdk.ClientSession {
	s.t.Helper()
	c, err := sdk.NewClient(&sdk.Implementation{Name: "test"}, o).Connect(context.Background(), &sdk.StreamableClientTransport{
		Endpoint: s.url, HTTPClient: &http.Client{Transport: keyed(key)}, MaxRetries: -1,
	}, nil)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

type args = map[string]any

// call calls a tool that must answer, and gives its text.
func (s *house) call(c *sdk.ClientSession, tool string, a args) (text string, refused bool) {
	s.t.Helper()
	r, err := c.CallTool(context.Background(), &sdk.CallToolParams{Name: tool, Arguments: a})
	require.NoError(s.t, err)
	require.Len(s.t, r.Content, 1)
	content, ok := r.Content[0].(*sdk.TextContent)
	require.True(s.t, ok, "everything comes as text")
	return content.Text, r.IsError
}

// lockedBuffer is a buffer that a server writes while a test reads.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
