package handlers_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/files"
	"sandgate/sandbox/term"
)

// now is the moment that pages are rendered at.
var now = time.Date(2026, 11, 30, 14, 24, 0, 0, time.UTC)

// fake is a service in memory: one workspace "research", people by id, and whatever a test puts into it.
type fake struct {
	mu        sync.Mutex
	rights    map[string]auth.Permissions // by user id
	workspace auth.Workspace
	sandboxes []workspace.Sandbox
	list      agent.Listing
	preview   files.Preview
	content   map[string][]byte
	ptys      []workspace.Terminal
	members   []auth.Member
	invited   []workspace.Invitation
	keys      []auth.Key
	policy    approval.Policy
	approvals []workspace.Approval
	events    []audit.Event
	printed   *audit.Output
	record    workspace.RecordState
	asked     audit.Filter // the last one
	calls     []string     // "method arg": what was asked to change
	fail      error        // what every change answers
	needSetup bool
	lost      chan struct{} // closed: Guard's contexts end
	changed   chan workspace.Change
	usage     sandbox.Usage
	created   workspace.CreateOptions // the last one
}

func newFake() *fake {
	return &fake{
		workspace: auth.Workspace{ID: "w1", Slug: "research", Name: "Research"},
		rights:    map[string]auth.Permissions{"ana": {auth.SandboxesRead, auth.SandboxesRun, auth.SandboxesManage, auth.AuditRead, auth.MembersManage, auth.KeysManage}},
		content:   map[string][]byte{}, lost: make(chan struct{}), changed: make(chan workspace.Change, 8),
		usage: sandbox.Usage{CPUSeconds: 12, MemoryBytes: 412 << 20, PIDs: 34, DiskBytes: 700 << 20},
	}
}

func (f *fake) note(call string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call)
	return f.fail
}

func (f *fake) called() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

func (f *fake) PersonActor(_ context.Context, userID, sessionID, slug, address, requestID string) (auth.Actor, error) {
	a := auth.Actor{Kind: auth.Person, UserID: userID, SessionID: sessionID, Name: userID + "@example.org", Address: address, RequestID: requestID}
	if slug == "" {
		return a, nil
	}
	perms, ok := f.rights[userID]
	if slug != f.workspace.Slug || !ok {
		return auth.Actor{}, fault.New(fault.NotFound, "Workspace not found")
	}
	a.Workspace, a.Permissions = f.workspace, perms
	return a, nil
}

func (f *fake) WorkspacesOf(context.Context, string) ([]auth.Workspace, error) {
	return []auth.Workspace{f.workspace, {ID: "w2", Slug: "ops", Name: "Operations"}}, nil
}

func (f *fake) Require(_ context.Context, _ auth.Actor, action, _ string, anyOf ...auth.Permission) error {
	_ = f.note("refused " + action)
	return fault.New(fault.Forbidden, "This needs the permission %s, which you do not have in this workspace.", anyOf[0])
}

func (f *fake) Guard(ctx context.Context, _ auth.Actor, _ auth.Permission) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-f.lost:
			cancel(fault.New(fault.Forbidden, "You may not look here any more."))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

func (f *fake) Changes(context.Context, auth.Actor) <-chan workspace.Change { return f.changed }

func (f *fake) SetupNeeded(context.Context) (bool, error) { return f.needSetup, nil }

func (f *fake) Setup(_ context.Context, s workspace.SetupForm, _, _ string) (auth.User, auth.Workspace, error) {
	return auth.User{ID: "ana"}, f.workspace, f.note("setup " + s.Email)
}

func (f *fake) SignIn(_ context.Context, email, password, _, _ string) (auth.User, error) {
	if password != "correct horse" {
		return auth.User{}, fault.New(fault.Unauthenticated, "E-mail or password is wrong.")
	}
	return auth.User{ID: "ana", Email: email}, nil
}

func (f *fake) SignedOut(context.Context, auth.Actor) error { return f.note("signed out") }

func (f *fake) InvitationByToken(_ context.Context, token string) (workspace.Invitation, error) {
	if token != "good" {
		return workspace.Invitation{}, fault.New(fault.NotFound, "Invitation not found")
	}
	return workspace.Invitation{Email: "tom@example.org", Role: auth.Analyst, Run: true, Workspace: f.workspace}, nil
}

func (f *fake) AcceptInvitation(_ context.Context, _, password, _, _ string) (auth.User, auth.Workspace, error) {
	if len(password) < auth.PasswordMinRunes {
		return auth.User{}, auth.Workspace{}, fault.Field("password", "must have %d characters or more", auth.PasswordMinRunes)
	}
	return auth.User{ID: "tom"}, f.workspace, nil
}

func (f *fake) CreateWorkspace(_ context.Context, _ auth.Actor, name string) (auth.Workspace, error) {
	return auth.Workspace{Slug: "new"}, f.note("workspace " + name)
}

func (f *fake) CreateSandbox(_ context.Context, _ auth.Actor, o workspace.CreateOptions) (workspace.Sandbox, error) {
	if o.Resources.CPU > 64 {
		return workspace.Sandbox{}, fault.Field("resources.cpu", "must be between 0.1 and 2")
	}
	f.mu.Lock()
	f.created = o
	f.mu.Unlock()
	return workspace.Sandbox{Record: sandbox.Record{ID: sandbox.ID(sbRunning)}}, f.note("create " + o.Label + " " + o.Image + " " + o.Env["A"])
}

func (f *fake) Sandboxes(context.Context, auth.Actor) ([]workspace.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.sandboxes), nil
}

func (f *fake) Sandbox(_ context.Context, _ auth.Actor, id string) (workspace.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, b := range f.sandboxes {
		if string(b.ID) == id {
			return b, nil
		}
	}
	return workspace.Sandbox{}, fault.New(fault.NotFound, "Sandbox not found")
}

func (f *fake) KeepAlive(_ context.Context, _ auth.Actor, id string, _ time.Duration) (workspace.Sandbox, error) {
	return workspace.Sandbox{}, f.note("keep " + id)
}

func (f *fake) OwnSessions(_ context.Context, a auth.Actor) ([]auth.Session, error) {
	return []auth.Session{
		{ID: a.SessionID, UserAgent: "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/140.0 Safari/537.36", Address: "192.0.2.1"},
		{ID: "other", UserAgent: hostile, Address: "192.0.2.2"},
	}, nil
}

func (f *fake) EndSession(_ context.Context, _ auth.Actor, id string) error {
	return f.note("end " + id)
}

func (f *fake) EndOtherSessions(context.Context, auth.Actor) error {
	return f.note("end others")
}

func (f *fake) ChangePassword(_ context.Context, _ auth.Actor, current, password string) error {
	return f.note("password " + current + " " + password)
}

func (f *fake) KillSandbox(_ context.Context, _ auth.Actor, id string) error {
	return f.note("kill " + id)
}

func (f *fake) SuspendSandbox(_ context.Context, _ auth.Actor, id string) (workspace.Sandbox, error) {
	return workspace.Sandbox{}, f.note("suspend " + id)
}

func (f *fake) ForkSandbox(_ context.Context, _ auth.Actor, id string) (workspace.Sandbox, error) {
	return workspace.Sandbox{Record: sandbox.Record{ID: sandbox.ID(sbRunning)}}, f.note("fork " + id)
}

func (f *fake) TakeSnapshot(_ context.Context, _ auth.Actor, id, name string) (workspace.Snapshot, error) {
	if name == "" {
		return workspace.Snapshot{}, fault.Field("name", "must not be empty")
	}
	return workspace.Snapshot{}, f.note("snapshot " + id + " " + name)
}

func (f *fake) Snapshots(context.Context, auth.Actor) ([]workspace.Snapshot, error) {
	return []workspace.Snapshot{{Snapshot: sandbox.Snapshot{ID: aSnapshot, Name: hostile, Image: "base", OwnerName: hostile, SandboxID: sandbox.ID(sbRunning), Bytes: 5e7}}}, nil
}

func (f *fake) DeleteSnapshot(_ context.Context, _ auth.Actor, id string) error {
	return f.note("delete snapshot " + id)
}

func (f *fake) ResumeSandbox(_ context.Context, _ auth.Actor, id string) (workspace.Sandbox, error) {
	return workspace.Sandbox{}, f.note("resume " + id)
}

func (f *fake) Usage(context.Context, auth.Actor, string) (sandbox.Usage, error) { return f.usage, nil }

func (f *fake) StatFile(_ context.Context, _ auth.Actor, _ string, path []byte) (agent.FileInfo, error) {
	for _, e := range f.list.Entries {
		if bytes.HasSuffix(path, e.NameB64) {
			return e, nil
		}
	}
	return agent.FileInfo{}, fault.New(fault.NotFound, "There is nothing at that path.")
}

func (f *fake) ListFiles(_ context.Context, _ auth.Actor, _ string, path []byte, _ string, _, _ int) (agent.Listing, error) {
	if string(path) == "/root/secret" {
		return agent.Listing{}, fault.New(fault.NotFound, "There is nothing at that path.")
	}
	return f.list, nil
}

func (f *fake) ReadFile(_ context.Context, _ auth.Actor, _ string, path []byte, _, length int64) (agent.FileInfo, io.ReadCloser, error) {
	content, ok := f.content[string(path)]
	if !ok {
		return agent.FileInfo{}, nil, fault.New(fault.NotFound, "There is nothing at that path.")
	}
	info := agent.FileInfo{Type: "file", Size: int64(len(content)), ETag: "e1"}
	if length >= 0 {
		content = content[:min(length, int64(len(content)))]
	}
	return info, io.NopCloser(bytes.NewReader(content)), nil
}

func (f *fake) PreviewFile(context.Context, auth.Actor, string, []byte) (files.Preview, error) {
	return f.preview, nil
}

func (f *fake) ArchiveFiles(_ context.Context, _ auth.Actor, _ string, path []byte, format string) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader([]byte(format + " of " + string(path)))), nil
}

func (f *fake) WriteFile(_ context.Context, _ auth.Actor, _ string, path []byte, body io.Reader, _ agent.WriteOptions) (agent.FileInfo, error) {
	n, err := io.Copy(io.Discard, body)
	if err != nil {
		return agent.FileInfo{}, err
	}
	return agent.FileInfo{Size: n}, f.note("write " + string(path) + " " + itoa(n))
}

func (f *fake) MakeDirectory(_ context.Context, _ auth.Actor, _ string, path []byte) (agent.FileInfo, error) {
	return agent.FileInfo{}, f.note("mkdir " + string(path))
}

func (f *fake) MoveFile(_ context.Context, _ auth.Actor, _ string, source, destination []byte) (agent.FileInfo, error) {
	return agent.FileInfo{}, f.note("move " + string(source) + " " + string(destination))
}

func (f *fake) DeleteFile(_ context.Context, _ auth.Actor, _ string, path []byte, recursive bool) error {
	if recursive {
		return f.note("delete all of " + string(path))
	}
	return f.note("delete " + string(path))
}

func (f *fake) OpenTerminal(_ context.Context, _ auth.Actor, _ string, p agent.PTYSpec) (workspace.Terminal, error) {
	t := workspace.Terminal{PTY: agent.PTY{ID: sandbox.RandomID("pty"), Status: "running", Cols: p.Cols, Rows: p.Rows}}
	f.mu.Lock()
	f.ptys = append(f.ptys, t)
	f.mu.Unlock()
	return t, f.note("open terminal")
}

func (f *fake) Terminals(context.Context, auth.Actor, string) ([]workspace.Terminal, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.ptys), nil
}

func (f *fake) RenameTerminal(_ context.Context, _ auth.Actor, _, pty, name string) (workspace.Terminal, error) {
	f.mu.Lock()
	for i := range f.ptys {
		if f.ptys[i].ID == pty {
			f.ptys[i].Name = name
		}
	}
	f.mu.Unlock()
	if name == "" {
		return workspace.Terminal{}, fault.Field("name", "must not be empty")
	}
	return workspace.Terminal{}, f.note("rename " + pty + " to " + name)
}

func (f *fake) CloseTerminal(_ context.Context, _ auth.Actor, _, pty string) error {
	return f.note("close " + pty)
}

// ViewTerminal says hello, paints a prompt and waits for the viewer to go.
func (f *fake) ViewTerminal(ctx context.Context, _ auth.Actor, _, _ string, _ int64, conn term.Conn) error {
	_ = conn.Write(ctx, false, []byte(`{"type":"hello","role":"driver","cols":90,"rows":24,"oldest":0,"next":0}`))
	_ = conn.Write(ctx, true, append([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0}, []byte("\x1b[1;32mroot@churn-notebook\x1b[0m:\x1b[34m/work\x1b[0m# ")...))
	for {
		if _, _, err := conn.Read(ctx); err != nil {
			return conn.Close(term.CloseGone, "gone")
		}
	}
}

func (f *fake) Members(context.Context, auth.Actor) ([]auth.Member, error) { return f.members, nil }

func (f *fake) Invite(_ context.Context, _ auth.Actor, email string, _ auth.Role, _ bool) (string, error) {
	return "tok", f.note("invite " + email)
}

func (f *fake) Invitations(context.Context, auth.Actor) ([]workspace.Invitation, error) {
	return f.invited, nil
}

func (f *fake) WithdrawInvitation(_ context.Context, _ auth.Actor, id string) error {
	return f.note("withdraw " + id)
}

func (f *fake) SetRole(_ context.Context, _ auth.Actor, user string, role auth.Role) error {
	return f.note("role " + user + " " + string(role))
}

func (f *fake) SetRun(_ context.Context, _ auth.Actor, user string, run bool) error {
	if run {
		return f.note("grant " + user)
	}
	return f.note("take " + user)
}

func (f *fake) RemoveMember(_ context.Context, _ auth.Actor, user string) error {
	return f.note("remove " + user)
}

func (f *fake) CreateKey(_ context.Context, _ auth.Actor, k workspace.KeyForm) (auth.Key, string, error) {
	return auth.Key{Name: k.Name}, "sg_aaaaaaaa_secret", f.note("key " + k.Name + " " + k.Permissions.String())
}

func (f *fake) Keys(context.Context, auth.Actor) ([]auth.Key, error) { return f.keys, nil }

func (f *fake) RevokeKey(_ context.Context, _ auth.Actor, id string) error {
	return f.note("revoke " + id)
}

func (f *fake) Activity(_ context.Context, _ auth.Actor, fl audit.Filter) ([]audit.Event, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = fl
	return slices.Clone(f.events), nil
}

func (f *fake) ActivityEvent(_ context.Context, _ auth.Actor, seq int64) (audit.Event, *audit.Output, error) {
	for _, e := range f.events {
		if e.Seq == seq {
			return e, f.printed, nil
		}
	}
	return audit.Event{}, nil, fault.New(fault.NotFound, "Event not found")
}

func (f *fake) ExportActivity(_ context.Context, _ auth.Actor, fl audit.Filter, format string, w io.Writer) error {
	_, err := io.WriteString(w, format+" of "+fl.Q)
	return err
}

func (f *fake) SandboxStory(ctx context.Context, a auth.Actor, id string) (sandbox.Record, error) {
	b, err := f.Sandbox(ctx, a, id)
	return b.Record, err
}

func (f *fake) RecordState(context.Context, auth.Actor) (workspace.RecordState, error) {
	return f.record, nil
}

func (f *fake) RecordEnd(context.Context, auth.Actor) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return int64(len(f.events)) + 4, nil // the first of furnished is 9
}

// fakeSessions signs in who the cookie "who" names.
type fakeSessions struct{}

func (fakeSessions) UserID(r *http.Request) (userID, sessionID string, ok bool) {
	c, err := r.Cookie("who")
	if err != nil || c.Value == "" {
		return "", "", false
	}
	return c.Value, "s-" + c.Value, true
}

func (fakeSessions) SignIn(w http.ResponseWriter, _ *http.Request, userID string) error {
	http.SetCookie(w, &http.Cookie{Name: "who", Value: userID, Path: "/"})
	return nil
}

func (fakeSessions) SignOut(w http.ResponseWriter, _ *http.Request) error {
	http.SetCookie(w, &http.Cookie{Name: "who", Path: "/", MaxAge: -1})
	return nil
}

// fakeImages has one image in a state.
type fakeImages struct {
	state   string
	percent int
}

func (f fakeImages) ImageState(string) (string, int, string) {
	return f.state, f.percent, "last line of the log"
}
func (f fakeImages) ImageNames() []string { return []string{"base"} }
