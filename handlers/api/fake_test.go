package api

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/internal/webhost"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/term"
)

const (
	knownID       = "sbaaaaaaaaaaaaaaaaaaaa"
	knownApproval = "apaaaaaaaaaaaaaaaaaaaa"
	knownSnapshot = "snapaaaaaaaaaaaaaaaaaaaa"
	otherID       = "sbbbbbbbbbbbbbbbbbbbbb"
	goneID        = "sbcccccccccccccccccccc"
	knownCmd      = "cmdaaaaaaaaaaaaaaaaaaaa"
	knownPTY      = "ptyaaaaaaaaaaaaaaaaaaaa"
	fullKey       = "sg_abcdefgh_0123456789012345678901234567890123456789"
)

// fake is a Service that keeps everything in memory and does what a test tells it to.
type fake struct {
	mu       sync.Mutex
	keys     map[string]auth.Permissions
	refused  []string // "action id"
	calls    []string
	created  []workspace.CreateOptions
	started  []agent.CommandSpec
	stdin    []byte
	eof      bool
	signal   string
	files    map[string][]byte
	infos    map[string]agent.FileInfo
	written  agent.WriteOptions
	run      func(ctx context.Context, c agent.CommandSpec, out agent.Output) (agent.Exit, error)
	archive  io.ReadCloser
	err      error // of every call below
	guard    context.CancelCauseFunc
	since    int64
	viewed   chan struct{}
	panicky  bool
	stdout   []byte
	exitLogs *agent.Exit
	query    agent.SearchQuery
	asked    audit.Filter // of the last Activity
	patch    workspace.SandboxPatch
	kept     time.Duration
	limits   workspace.Limits
	tapes    workspace.RecordingFilter
	policy   approval.Policy
	decided  []string
	asking   approval.Call
	sampled  func()
	late     error // of a stream, after its events
}

func newFake() *fake {
	return &fake{
		keys:   map[string]auth.Permissions{fullKey: {auth.SandboxesRun}},
		files:  map[string][]byte{},
		infos:  map[string]agent.FileInfo{},
		viewed: make(chan struct{}, 1),
	}
}

func (f *fake) saw(call, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call)
	if f.panicky {
		panic("the secret hunter2 was here")
	}
	if f.err != nil {
		return f.err
	}
	if id != "" && id != knownID {
		return fault.New(fault.NotFound, "Sandbox not found")
	}
	return nil
}

func (f *fake) called() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.calls...)
}

func (f *fake) KeyActor(_ context.Context, secret, address, requestID string) (auth.Actor, error) {
	ps, ok := f.keys[secret]
	if !ok {
		return auth.Actor{}, fault.New(fault.Unauthenticated, "The API key is not valid.")
	}
	return auth.Actor{
		Kind: auth.KeyUser, KeyID: "key1", Name: "robot", Permissions: ps, Address: address, RequestID: requestID,
		Workspace: auth.Workspace{ID: "ws1", Name: "One"},
	}, nil
}

func (f *fake) Refuse(_ context.Context, _ auth.Actor, action string, err *fault.Error) error {
	f.refused = append(f.refused, action)
	return err
}

func (f *fake) Require(_ context.Context, a auth.Actor, action, id string, anyOf ...auth.Permission) error {
	for _, p := range anyOf {
		if a.May(p) {
			return nil
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused = append(f.refused, action+" "+id)
	return fault.New(fault.Forbidden, "This needs the permission %s, which you do not have in this workspace.", anyOf[0])
}

func (f *fake) Guard(ctx context.Context, _ auth.Actor, _ auth.Permission) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	f.mu.Lock()
	f.guard = cancel
	f.mu.Unlock()
	return ctx, func() { cancel(nil) }
}

func (f *fake) revoke() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.guard(fault.New(fault.Forbidden, "The permission sandboxes:run was taken away."))
}

func record(o workspace.CreateOptions) workspace.Sandbox {
	at := time.Date(2026, 11, 30, 12, 0, 0, 123456000, time.UTC)
	return workspace.Sandbox{Record: sandbox.Record{
		ID: knownID, Label: o.Label, Image: "base", OwnerKind: "key", OwnerName: "robot", Status: sandbox.Running,
		Metadata: o.Metadata, Persistent: o.Persistent, Resources: sandbox.DefaultResources, CreatedAt: at, LastActivity: at,
	}, Mine: true, Idle: workspace.Idle{Since: at, Action: workspace.ActionKill}}
}

func (f *fake) CreateSandbox(_ context.Context, _ auth.Actor, o workspace.CreateOptions) (workspace.Sandbox, error) {
	if err := f.saw("CreateSandbox", ""); err != nil {
		return workspace.Sandbox{}, err
	}
	f.created = append(f.created, o)
	return record(o), nil
}

func (f *fake) Sandboxes(context.Context, auth.Actor) ([]workspace.Sandbox, error) {
	return []workspace.Sandbox{record(workspace.CreateOptions{Label: "one"})}, f.saw("Sandboxes", "")
}

func (f *fake) Sandbox(_ context.Context, _ auth.Actor, id string) (workspace.Sandbox, error) {
	return record(workspace.CreateOptions{Label: "one"}), f.saw("Sandbox", id)
}

func (f *fake) KillSandbox(_ context.Context, _ auth.Actor, id string) error {
	if id == goneID {
		return nil
	}
	return f.saw("KillSandbox", id)
}

func (f *fake) RunCommand(ctx context.Context, _ auth.Actor, id string, c agent.CommandSpec, out agent.Output) (agent.Exit, error) {
	if err := f.saw("RunCommand", id); err != nil {
		return agent.Exit{}, err
	}
	f.mu.Lock()
	f.started, f.asking = append(f.started, c), approval.CallOf(ctx)
	run := f.run
	f.mu.Unlock()
	f.asking.Pass()
	if run == nil {
		return agent.Exit{}, nil
	}
	return run(ctx, c, out)
}

func (f *fake) StartCommand(_ context.Context, _ auth.Actor, id string, c agent.CommandSpec) (agent.Command, error) {
	f.started = append(f.started, c)
	return agent.Command{ID: c.ID, Command: c.Command, Status: "running", Background: true, Tag: c.Tag}, f.saw("StartCommand", id)
}

func (f *fake) Commands(_ context.Context, _ auth.Actor, id string) ([]agent.Command, error) {
	return []agent.Command{{ID: knownCmd, Status: "running"}}, f.saw("Commands", id)
}

func (f *fake) Command(_ context.Context, _ auth.Actor, id, cmd string) (agent.Command, error) {
	ended := time.Unix(5, 0)
	return agent.Command{
		ID: cmd, Status: "exited", StartedAt: time.Unix(3, 0), EndedAt: &ended,
		Exit: &agent.Exit{Code: 137, Signal: "KILL", Duration: 2},
	}, f.saw("Command", id)
}

func (f *fake) CommandLogs(_ context.Context, _ auth.Actor, id, cmd string, from, _ int64) (stdout, stderr []byte, c agent.Command, err error) {
	p := f.stdout
	if int(from) <= len(p) {
		p = p[from:]
	}
	return p, nil, agent.Command{ID: cmd, Status: "running", Exit: f.exitLogs}, f.saw("CommandLogs", id)
}

func (f *fake) FollowCommand(ctx context.Context, _ auth.Actor, id, cmd string, _, _ int64, out agent.Output) (agent.Exit, error) {
	if err := f.saw("FollowCommand", id); err != nil {
		return agent.Exit{}, err
	}
	if f.run == nil {
		return agent.Exit{}, nil
	}
	return f.run(ctx, agent.CommandSpec{ID: cmd}, out)
}

func (f *fake) CommandStdin(_ context.Context, _ auth.Actor, id, _ string, data []byte, eof bool) error {
	f.stdin, f.eof = data, eof
	return f.saw("CommandStdin", id)
}

func (f *fake) KillCommand(_ context.Context, _ auth.Actor, id, _, signal string) error {
	f.signal = signal
	return f.saw("KillCommand", id)
}

func (f *fake) info(path []byte) (agent.FileInfo, error) {
	if info, ok := f.infos[string(path)]; ok {
		return info, nil
	}
	p, ok := f.files[string(path)]
	if !ok {
		return agent.FileInfo{}, fault.New(fault.NotFound, "There is no such file.")
	}
	name := path[bytes.LastIndexByte(path, '/')+1:]
	return agent.FileInfo{
		NameB64: name, PathB64: path, Type: "file", Size: int64(len(p)), Mode: 0o644, Owner: "root", Group: "root",
		ModifiedAt: time.Unix(100, 0), ETag: `"e1"`,
	}, nil
}

func (f *fake) StatFile(_ context.Context, _ auth.Actor, id string, path []byte) (agent.FileInfo, error) {
	if err := f.saw("StatFile", id); err != nil {
		return agent.FileInfo{}, err
	}
	return f.info(path)
}

func (f *fake) ListFiles(_ context.Context, _ auth.Actor, id string, path []byte, cursor string, limit, depth int) (agent.Listing, error) {
	if err := f.saw("ListFiles", id); err != nil {
		return agent.Listing{}, err
	}
	info, err := f.info(path)
	return agent.Listing{Entries: []agent.FileInfo{info}, Total: limit, Cursor: cursor}, err
}

func (f *fake) ReadFile(_ context.Context, _ auth.Actor, id string, path []byte, offset, length int64) (agent.FileInfo, io.ReadCloser, error) {
	if err := f.saw("ReadFile", id); err != nil {
		return agent.FileInfo{}, nil, err
	}
	info, err := f.info(path)
	if err != nil {
		return info, nil, err
	}
	if info.Type == "directory" || info.Type == "fifo" || info.Type == "char_device" {
		return info, nil, fault.New(fault.BadRequest, "This is not a regular file.")
	}
	p := f.files[string(path)]
	p = p[min(offset, int64(len(p))):]
	if length >= 0 {
		p = p[:min(length, int64(len(p)))]
	}
	return info, io.NopCloser(bytes.NewReader(p)), nil
}

func (f *fake) ArchiveFiles(_ context.Context, _ auth.Actor, id string, _ []byte, _ string) (io.ReadCloser, error) {
	return f.archive, f.saw("ArchiveFiles", id)
}

func (f *fake) WriteFile(_ context.Context, _ auth.Actor, id string, path []byte, body io.Reader, o agent.WriteOptions) (agent.FileInfo, error) {
	if err := f.saw("WriteFile", id); err != nil {
		return agent.FileInfo{}, err
	}
	p, err := io.ReadAll(body)
	if err != nil {
		return agent.FileInfo{}, err
	}
	f.files[string(path)], f.written = p, o
	return f.info(path)
}

func (f *fake) MakeDirectory(_ context.Context, _ auth.Actor, id string, path []byte) (agent.FileInfo, error) {
	return agent.FileInfo{PathB64: path, Type: "directory"}, f.saw("MakeDirectory", id)
}

func (f *fake) MoveFile(_ context.Context, _ auth.Actor, id string, _, destination []byte) (agent.FileInfo, error) {
	return agent.FileInfo{PathB64: destination, Type: "file"}, f.saw("MoveFile", id)
}

func (f *fake) DeleteFile(_ context.Context, _ auth.Actor, id string, _ []byte, _ bool) error {
	return f.saw("DeleteFile", id)
}

func (f *fake) terminal() workspace.Terminal {
	return workspace.Terminal{PTY: agent.PTY{ID: knownPTY, Status: "running", Cols: 80, Rows: 24}, Driver: "robot"}
}

func (f *fake) OpenTerminal(_ context.Context, _ auth.Actor, id string, _ agent.PTYSpec) (workspace.Terminal, error) {
	return f.terminal(), f.saw("OpenTerminal", id)
}

func (f *fake) Terminals(_ context.Context, _ auth.Actor, id string) ([]workspace.Terminal, error) {
	return []workspace.Terminal{f.terminal()}, f.saw("Terminals", id)
}

func (f *fake) Terminal(_ context.Context, _ auth.Actor, id, _ string) (workspace.Terminal, error) {
	return f.terminal(), f.saw("Terminal", id)
}

func (f *fake) RenameTerminal(_ context.Context, _ auth.Actor, id, _, name string) (workspace.Terminal, error) {
	t := f.terminal()
	t.Name = name
	return t, f.saw("RenameTerminal", id)
}

func (f *fake) CloseTerminal(_ context.Context, _ auth.Actor, id, _ string) error {
	return f.saw("CloseTerminal", id)
}

func (f *fake) ViewTerminal(ctx context.Context, a auth.Actor, id, _ string, since int64, conn term.Conn) error {
	f.since = since
	defer func() { f.viewed <- struct{}{} }()
	if !a.May(auth.SandboxesRead) {
		return conn.Close(term.CloseForbidden, "no permission")
	}
	if err := f.saw("ViewTerminal", id); err != nil {
		return conn.Close(term.CloseGone, "gone")
	}
	if err := conn.Write(ctx, true, []byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 'h', 'i'}); err != nil {
		return err
	}
	return conn.Close(term.CloseExited, "exited")
}

// bench is a server of the API over a fake.
type bench struct {
	t   *testing.T
	f   *fake
	url string
	log *lockedBuffer

	mu   sync.Mutex
	body *object // that the last call read
}

func start(t *testing.T, change ...func(*Options)) *bench {
	t.Helper()
	b := &bench{t: t, f: newFake(), log: &lockedBuffer{}}
	names, err := webhost.New(webhost.Options{Listen: "0.0.0.0:0", Hosts: []string{"sandgate.test"}})
	require.NoError(t, err)
	o := Options{Service: b.f, Names: names, Log: slog.New(slog.NewTextHandler(b.log, nil))}
	for _, c := range change {
		c(&o)
	}
	h, err := New(o)
	require.NoError(t, err)
	router, ok := h.(*echo.Echo)
	require.True(t, ok)
	router.Use(b.spying)
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	b.url = srv.URL
	return b
}

// answer is a response read to its end.
type answer struct {
	status int
	header http.Header
	body   string
	cut    error // the body broke off
}

func (b *bench) do(method, path, body string, header ...string) answer {
	b.t.Helper()
	resp := b.send(method, path, body, header...)
	defer func() { _ = resp.Body.Close() }()
	p, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(p), err}
}

// glance is do for streams that never end: it hangs up after the first event.
func (b *bench) glance(method, path, body string, header ...string) answer {
	b.t.Helper()
	resp := b.send(method, path, body, header...)
	defer func() { _ = resp.Body.Close() }()
	if resp.Header.Get("Content-Type") != eventStream {
		p, err := io.ReadAll(resp.Body)
		return answer{resp.StatusCode, resp.Header, string(p), err}
	}
	first, err := bufio.NewReader(resp.Body).ReadString('\n')
	return answer{resp.StatusCode, resp.Header, first, err}
}

func (b *bench) send(method, path, body string, header ...string) *http.Response {
	b.t.Helper()
	r, err := http.NewRequest(method, b.url+path, strings.NewReader(body))
	require.NoError(b.t, err)
	r.Header.Set("X-API-Key", fullKey)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i+1] == "" {
			r.Header.Del(header[i])
			continue
		}
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	require.NoError(b.t, err)
	return resp
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
