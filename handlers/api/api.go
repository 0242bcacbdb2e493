// Package api owns the REST face under /v1, and the document that describes it: JSON only, API keys only, JSON errors only.
// It must never read a cookie as a sign-in, decide a permission on its own, or reach a sandbox other than through the service that it is given.
package api

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"sandgate/auth"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/internal/webhost"
	"sandgate/internal/workspace"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/term"
)

// Keys tells whose key a request bears and puts refusals on record.
type Keys interface {
	KeyActor(ctx context.Context, secret, address, requestID string) (auth.Actor, error)
	// Refuse puts a refusal on record and gives it back.
	// Require refuses an actor who has none of the permissions, and puts that on record.
	Refuse(ctx context.Context, a auth.Actor, action string, err *fault.Error) error
	Require(ctx context.Context, a auth.Actor, action, sandboxID string, anyOf ...auth.Permission) error
	Guard(ctx context.Context, a auth.Actor, p auth.Permission) (context.Context, context.CancelFunc)
}

// Sandboxes makes, lists and ends sandboxes.
type Sandboxes interface {
	CreateSandbox(ctx context.Context, a auth.Actor, o workspace.CreateOptions) (workspace.Sandbox, error)
	Sandboxes(ctx context.Context, a auth.Actor) ([]workspace.Sandbox, error)
	Sandbox(ctx context.Context, a auth.Actor, id string) (workspace.Sandbox, error)
	KillSandbox(ctx context.Context, a auth.Actor, id string) error
	SuspendSandbox(ctx context.Context, a auth.Actor, id string) (workspace.Sandbox, error)
	ForkSandbox(ctx context.Context, a auth.Actor, id string) (workspace.Sandbox, error)
	TakeSnapshot(ctx context.Context, a auth.Actor, id, name string) (workspace.Snapshot, error)
	Snapshots(ctx context.Context, a auth.Actor) ([]workspace.Snapshot, error)
	DeleteSnapshot(ctx context.Context, a auth.Actor, id string) error
	ResumeSandbox(ctx context.Context, a auth.Actor, id string) (workspace.Sandbox, error)
	KeepAlive(ctx context.Context, a auth.Actor, id string, d time.Duration) (workspace.Sandbox, error)
	UpdateSandbox(ctx context.Context, a auth.Actor, id string, p workspace.SandboxPatch) (workspace.Sandbox, error)
	WorkspaceLimits(ctx context.Context, a auth.Actor) (workspace.WorkspaceLimits, error)
	SetWorkspaceLimits(ctx context.Context, a auth.Actor, own workspace.Limits) (workspace.WorkspaceLimits, error)
	Metrics(ctx context.Context, a auth.Actor, id string) (workspace.Sample, error)
	MetricsHistory(ctx context.Context, a auth.Actor, id string, since time.Time) ([]workspace.Sample, error)
	WatchEvents(ctx context.Context, a auth.Actor, id string, out func(workspace.Event) error) error
}

// Commands runs programs inside and reads their output back.
type Commands interface {
	RunCommand(ctx context.Context, a auth.Actor, id string, c agent.CommandSpec, out agent.Output) (agent.Exit, error)
	StartCommand(ctx context.Context, a auth.Actor, id string, c agent.CommandSpec) (agent.Command, error)
	Commands(ctx context.Context, a auth.Actor, id string) ([]agent.Command, error)
	Command(ctx context.Context, a auth.Actor, id, cmd string) (agent.Command, error)
	CommandLogs(ctx context.Context, a auth.Actor, id, cmd string, stdoutFrom, stderrFrom int64) (stdout, stderr []byte, c agent.Command, err error)
	FollowCommand(ctx context.Context, a auth.Actor, id, cmd string, stdoutFrom, stderrFrom int64, out agent.Output) (agent.Exit, error)
	CommandStdin(ctx context.Context, a auth.Actor, id, cmd string, data []byte, eof bool) error
	KillCommand(ctx context.Context, a auth.Actor, id, cmd, signal string) error
}

// Files reads and changes files inside. Paths are bytes.
type Files interface {
	StatFile(ctx context.Context, a auth.Actor, id string, path []byte) (agent.FileInfo, error)
	ListFiles(ctx context.Context, a auth.Actor, id string, path []byte, cursor string, limit, depth int) (agent.Listing, error)
	ReadFile(ctx context.Context, a auth.Actor, id string, path []byte, offset, length int64) (agent.FileInfo, io.ReadCloser, error)
	ArchiveFiles(ctx context.Context, a auth.Actor, id string, path []byte, format string) (io.ReadCloser, error)
	WriteFile(ctx context.Context, a auth.Actor, id string, path []byte, body io.Reader, o agent.WriteOptions) (agent.FileInfo, error)
	MakeDirectory(ctx context.Context, a auth.Actor, id string, path []byte) (agent.FileInfo, error)
	MoveFile(ctx context.Context, a auth.Actor, id string, source, destination []byte) (agent.FileInfo, error)
	DeleteFile(ctx context.Context, a auth.Actor, id string, path []byte, recursive bool) error
	SearchFiles(ctx context.Context, a auth.Actor, id string, path []byte, q agent.SearchQuery) (agent.SearchPage, error)
	WatchFiles(ctx context.Context, a auth.Actor, id string, path []byte, recursive bool, out func(agent.FileChange) error) error
	CopyFile(ctx context.Context, a auth.Actor, id string, source, destination []byte) (agent.FileInfo, error)
	ChmodFile(ctx context.Context, a auth.Actor, id string, path []byte, mode uint32) (agent.FileInfo, error)
	UnpackFiles(ctx context.Context, a auth.Actor, id string, path []byte, format string, body io.Reader, size int64) (agent.Unpacked, error)
}

// Terminals opens terminals and carries their viewers.
type Terminals interface {
	OpenTerminal(ctx context.Context, a auth.Actor, id string, p agent.PTYSpec) (workspace.Terminal, error)
	Terminals(ctx context.Context, a auth.Actor, id string) ([]workspace.Terminal, error)
	Terminal(ctx context.Context, a auth.Actor, id, pty string) (workspace.Terminal, error)
	RenameTerminal(ctx context.Context, a auth.Actor, id, pty, name string) (workspace.Terminal, error)
	CloseTerminal(ctx context.Context, a auth.Actor, id, pty string) error
	ViewTerminal(ctx context.Context, a auth.Actor, id, pty string, since int64, conn term.Conn) error
}

// Recordings reads recordings of terminals, and sets what is recorded.
type Recordings interface {
	RecordingPolicy(ctx context.Context, a auth.Actor) (workspace.RecordingPolicy, error)
	SetRecordingPolicy(ctx context.Context, a auth.Actor, p workspace.RecordingPolicy) (workspace.RecordingPolicy, error)
	Recordings(ctx context.Context, a auth.Actor, f workspace.RecordingFilter) ([]workspace.Recording, error)
	Recording(ctx context.Context, a auth.Actor, id string) (workspace.Recording, error)
	PlayRecording(ctx context.Context, a auth.Actor, id string) (workspace.Playback, error)
	DeleteRecording(ctx context.Context, a auth.Actor, id string) error
}

// Admin administers the workspace that a key is of.
type Admin interface {
	CreateWorkspace(ctx context.Context, a auth.Actor, name string) (auth.Workspace, error)
	CreateKey(ctx context.Context, a auth.Actor, f workspace.KeyForm) (key auth.Key, secret string, err error)
	Keys(ctx context.Context, a auth.Actor) ([]auth.Key, error)
	RevokeKey(ctx context.Context, a auth.Actor, id string) error
	Members(ctx context.Context, a auth.Actor) ([]auth.Member, error)
}

// Service is what the REST face asks for; workspace.Service is one.
type Service interface {
	Admin
	Keys
	Sandboxes
	Commands
	Files
	Terminals
	Recordings
	Approvals
	Record
}

// Record reads what happened.
type Record interface {
	Activity(ctx context.Context, a auth.Actor, f audit.Filter) ([]audit.Event, error)
}

// Options are what New needs.
type Options struct {
	Service Service
	Names   *webhost.Names // which hosts and origins a websocket may name
	Log     *slog.Logger
	// ClientIP tells the address of a client, for the record; nil: the peer of the connection.
	ClientIP func(*http.Request) string
	// Life ends when the server stops: streams of events end then, so that it need not wait for them. nil: never.
	Life context.Context
	// MaxContent is how many bytes of a file a JSON body carries; 0: 16 MiB. …/files/raw has no such limit.
	MaxContent int64
	// KeepAlive is how long a call may be silent before white space keeps its client waiting; 0: 25 s.
	KeepAlive time.Duration
	// Limits bound how many calls a second one key may make on average, with twice that in a burst, and how many it may have
	// open at once, streams and terminals counted; nil: nothing is bounded.
	Limits *Limits
	// BodyPatience is how long a body may bring nothing, or a JSON body less than bodyStep, before it is given up; 0: 15 s.
	BodyPatience time.Duration
	// SpoolDir is where long answers wait for their end, in files without names; "": the system's place for such.
	SpoolDir string
}

// heavyCalls bounds how many calls hold a body or logs of megabytes in memory at once; others wait.
const heavyCalls = 2

// server holds what the handlers share. It has no state of its own beyond that, so it is safe for concurrent use.
type server struct {
	svc       Service
	log       *slog.Logger
	clientIP  func(*http.Request) string
	keepAlive time.Duration
	names     *webhost.Names
	content   int64
	life      context.Context // ends when the server stops
	limits    *Limits
	patience  time.Duration
	doc       *document
	spoolDir  string
	tickets   *tickets
	heavy     chan struct{} // one place for each call that holds megabytes in memory for a moment
}

// New makes the handler of everything under /v1. Mount it for all methods at "/v1" and below, without stripping the prefix.
func New(o Options) (http.Handler, error) {
	if o.Service == nil {
		return nil, errors.New("api: a service is required")
	}
	if o.Log == nil || o.Names == nil {
		return nil, errors.New("api: a logger and names are required")
	}
	s := &server{svc: o.Service, log: o.Log, clientIP: o.ClientIP, keepAlive: o.KeepAlive, names: o.Names, content: o.MaxContent, tickets: newTickets()}
	s.limits, s.patience = o.Limits, o.BodyPatience
	if s.limits == nil {
		s.limits = NewLimits(0, 0)
	}
	if s.patience == 0 {
		s.patience = 15 * time.Second
	}
	s.spoolDir, s.heavy = o.SpoolDir, make(chan struct{}, heavyCalls)
	if s.life = o.Life; s.life == nil {
		s.life = context.Background()
	}
	if s.clientIP == nil {
		s.clientIP = peer
	}
	if s.content == 0 {
		s.content = 16 << 20
	}
	if s.keepAlive == 0 {
		s.keepAlive = 25 * time.Second
	}
	var err error
	if s.doc, err = newDocument(s.routes()); err != nil {
		return nil, err
	}
	return s.echo(), nil
}

// echo builds the router: middleware outermost first, then the table.
func (s *server) echo() *echo.Echo {
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.HTTPErrorHandler = s.writeError
	e.Pre(s.identify) // before routing, so that a path without a route bears the id and headers too
	e.Use(s.recovered, s.authenticate, refuseMethod)
	for path, h := range s.open() {
		e.Match([]string{http.MethodGet, http.MethodHead}, path, h)
	}
	for _, r := range s.routes() {
		h := s.permit(r)
		e.Add(r.method, r.path, h)
		if r.method == http.MethodGet && !r.stream {
			e.Add(http.MethodHead, r.path, h)
		}
	}
	return e
}

// peer is the address of the other end of the connection.
func peer(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
