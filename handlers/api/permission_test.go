package api

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/internal/seal"
	"sandgate/internal/store"
	"sandgate/internal/webhost"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/netjail/policy"
	"sandgate/sandbox/sandboxtest"
	"sandgate/sandbox/term"
	"sandgate/sandbox/term/recording"
)

// allowed says for every call what a key is answered that may sandboxes:read; sandboxes:run; sandboxes:manage; what an
// administrator of the workspace may, which is everything but run; and one of another workspace that may everything there.
// Keys that are missing, unknown, expired, revoked or of a disabled owner get 401, whatever the call.
// A websocket answers with a close code; 0 is that it stays open.
var allowed = map[string][5]int{
	//                                             read run  manage admin other
	"GET /v1/nodes":                              {200, 200, 200, 200, 200},
	"GET /v1/admin/me":                           {200, 200, 200, 200, 200},
	"GET /v1/knowledge-bases":                    {200, 200, 200, 200, 200},
	"POST /v1/sandboxes":                         {403, 200, 403, 403, 200},
	"GET /v1/sandboxes":                          {200, 200, 200, 200, 200},
	"GET /v1/sandboxes/:id":                      {200, 200, 200, 200, 404},
	"DELETE /v1/sandboxes/:id":                   {403, 403, 200, 200, 404}, // run kills only its own: see below
	"PATCH /v1/sandboxes/:id":                    {403, 403, 200, 200, 404}, // likewise
	"POST /v1/sandboxes/:id/suspend":             {403, 403, 409, 409, 404}, // likewise; this one is not persistent
	"POST /v1/sandboxes/:id/fork":                {403, 200, 403, 403, 404},
	"POST /v1/sandboxes/:id/snapshots":           {403, 200, 403, 403, 404},
	"GET /v1/snapshots":                          {200, 200, 200, 200, 200},
	"DELETE /v1/snapshots/:snapshot":             {403, 403, 200, 200, 404}, // run deletes only its own
	"POST /v1/sandboxes/:id/resume":              {403, 200, 403, 403, 404},
	"POST /v1/sandboxes/:id/keepalive":           {403, 200, 200, 200, 404},
	"GET /v1/limits":                             {200, 200, 200, 200, 200},
	"PUT /v1/limits":                             {403, 403, 403, 200, 200},
	"GET /v1/recordings":                         {200, 200, 403, 200, 200},
	"GET /v1/recordings/:recording":              {200, 200, 403, 200, 404},
	"GET /v1/recordings/:recording/cast":         {200, 200, 403, 200, 404},
	"DELETE /v1/recordings/:recording":           {403, 403, 200, 200, 404},
	"GET /v1/recording-policy":                   {200, 200, 200, 200, 200},
	"PUT /v1/recording-policy":                   {403, 403, 403, 200, 200},
	"GET /v1/audit":                              {403, 403, 403, 200, 200}, // of one sandbox whoever may see it: internal/workspace
	"GET /v1/sandboxes/:id/metrics":              {200, 200, 200, 200, 404},
	"GET /v1/sandboxes/:id/metrics/history":      {200, 200, 200, 200, 404},
	"GET /v1/sandboxes/:id/metrics/stream":       {200, 200, 200, 200, 404},
	"GET /v1/sandboxes/:id/events":               {200, 200, 403, 200, 404},
	"GET /v1/events":                             {200, 200, 403, 200, 200},
	"POST /v1/sandboxes/:id/commands":            {403, 200, 403, 403, 404},
	"GET /v1/sandboxes/:id/commands":             {200, 200, 403, 200, 404},
	"GET /v1/sandboxes/:id/commands/:cmd":        {200, 200, 403, 200, 404},
	"GET /v1/sandboxes/:id/commands/:cmd/logs":   {200, 200, 403, 200, 404},
	"GET /v1/sandboxes/:id/commands/:cmd/stream": {200, 200, 403, 200, 404},
	"POST /v1/sandboxes/:id/commands/:cmd/stdin": {403, 200, 403, 403, 404},
	"POST /v1/sandboxes/:id/commands/:cmd/kill":  {403, 200, 403, 403, 404},
	"GET /v1/sandboxes/:id/files":                {200, 200, 403, 200, 404},
	"POST /v1/sandboxes/:id/files":               {403, 200, 403, 403, 404},
	"DELETE /v1/sandboxes/:id/files":             {403, 200, 403, 403, 404},
	"GET /v1/sandboxes/:id/files/list":           {200, 200, 403, 200, 404},
	"GET /v1/sandboxes/:id/files/stat":           {200, 200, 403, 200, 404},
	"POST /v1/sandboxes/:id/files/mkdir":         {403, 200, 403, 403, 404},
	"POST /v1/sandboxes/:id/files/move":          {403, 200, 403, 403, 404},
	"GET /v1/sandboxes/:id/files/raw":            {200, 200, 403, 200, 404},
	"PUT /v1/sandboxes/:id/files/raw":            {403, 200, 403, 403, 404},
	"GET /v1/sandboxes/:id/files/archive":        {200, 200, 403, 200, 404},
	"PUT /v1/sandboxes/:id/files/archive":        {403, 200, 403, 403, 404},
	"GET /v1/sandboxes/:id/files/search":         {200, 200, 403, 200, 404},
	"GET /v1/sandboxes/:id/files/watch":          {200, 200, 403, 200, 404},
	"POST /v1/sandboxes/:id/files/copy":          {403, 200, 403, 403, 404},
	"POST /v1/sandboxes/:id/files/chmod":         {403, 200, 403, 403, 404},
	"POST /v1/sandboxes/:id/ptys":                {403, 200, 403, 403, 404},
	"GET /v1/sandboxes/:id/ptys":                 {200, 200, 403, 200, 404},
	"GET /v1/sandboxes/:id/ptys/:pty":            {200, 200, 403, 200, 404},
	"PATCH /v1/sandboxes/:id/ptys/:pty":          {403, 200, 403, 403, 404},
	"DELETE /v1/sandboxes/:id/ptys/:pty":         {403, 200, 403, 403, 404},
	"POST /v1/sandboxes/:id/ptys/:pty/ticket":    {200, 200, 403, 200, 404},
	"GET " + socketPath:                          {0, 0, term.CloseForbidden, 0, term.CloseGone},
	"GET /v1/approvals":                          {200, 200, 200, 200, 200},
	"GET /v1/approvals/:approval":                {200, 200, 200, 200, 404},
	"GET /v1/approvals/:approval/contents/:name": {200, 200, 200, 200, 404},
	"POST /v1/approvals/:approval/approve":       {403, 403, 403, 403, 403}, // who may is in the tests of approvals
	"POST /v1/approvals/:approval/deny":          {403, 403, 403, 403, 403},
	"POST /v1/approvals/:approval/dry-run":       {403, 403, 403, 403, 403},
	"POST /v1/approvals/:approval/cancel":        {403, 403, 403, 403, 404}, // only who asked
	"GET /v1/policy":                             {200, 200, 200, 200, 200},
	"PUT /v1/policy":                             {403, 403, 403, 200, 200},
	"GET /v1/admin/system-keys/:key/policy":      {403, 403, 403, 200, 404},
	"PUT /v1/admin/system-keys/:key/policy":      {403, 403, 403, 200, 404},
	"GET /v1/admin/groups":                       {403, 403, 403, 200, 200},
	"POST /v1/admin/groups":                      {403, 403, 403, 403, 403},
	"DELETE /v1/admin/groups/:group":             {403, 403, 403, 403, 404},
	"POST /v1/admin/groups/:group/api-keys":      {403, 403, 403, 200, 404},
	"GET /v1/admin/system-keys":                  {403, 403, 403, 200, 200},
	"POST /v1/admin/system-keys":                 {403, 403, 403, 200, 200},
	"DELETE /v1/admin/system-keys/:key":          {403, 403, 403, 200, 404},
	"GET /v1/admin/users":                        {403, 403, 403, 200, 200},
	"GET /v1/admin/roles":                        {403, 403, 403, 200, 200},
	"POST /v1/admin/roles":                       {403, 403, 403, 403, 403},
	"DELETE /v1/admin/roles/:role":               {403, 403, 403, 403, 403},
}

// town is a server over the real service, on a fake runtime whose agents work in this process: what runs must be harmless.
type town struct {
	store *store.Store
	shelf *recording.Shelf
	*bench
	svc  *workspace.Service
	tmp  string
	user string
	boss auth.Actor // who owns the sandboxes
	keys map[string]string

	mu  sync.Mutex
	now time.Time
}

func (w *town) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func newTown(t *testing.T) *town {
	t.Helper()
	w := &town{tmp: t.TempDir(), now: time.Now(), keys: map[string]string{"no key": "", "an unknown key": fullKey}}
	me, err := user.Current()
	require.NoError(t, err)
	w.user = me.Username
	dir := t.TempDir()
	ctx := context.Background()
	st, err := store.Open(ctx, filepath.Join(dir, "sandgate.db"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	log, err := audit.New(audit.Options{Store: st, Key: bytes.Repeat([]byte{1}, 32), HeadFile: filepath.Join(dir, "audit.head"), Now: w.clock})
	require.NoError(t, err)
	manager, err := sandbox.New(sandbox.Options{Runtime: sandboxtest.NewFake(sandboxtest.FakeOptions{Dir: t.TempDir()}), Records: st, Deadlines: st, Snapshots: st, Now: w.clock})
	require.NoError(t, err)
	t.Cleanup(func() {
		all, err := manager.Records(ctx, sandbox.Filter{})
		require.NoError(t, err)
		for _, r := range all {
			require.NoError(t, manager.Kill(ctx, r.ID, sandbox.ReasonKilled))
		}
		manager.Close()
	})
	box, err := seal.New(bytes.Repeat([]byte{2}, seal.KeyLen))
	require.NoError(t, err)
	w.store = st
	w.shelf, err = recording.Open(t.TempDir())
	require.NoError(t, err)
	w.svc, err = workspace.New(workspace.Options{
		Recordings: w.shelf,
		Store:      st, Seal: box, Audit: log, Gate: approval.NewGate(st), Sandboxes: manager, Terminals: term.NewHub(workspace.AttachVia(manager)), Images: oneImage{}, Now: w.clock,
		PlatformURL:  "http://sandgate.internal",
		CheckNetwork: func(p sandbox.NetworkPolicy) (sandbox.NetworkPolicy, error) { return policy.Check(p, nil) },
	})
	require.NoError(t, err)
	w.people(t)

	names, err := webhost.New(webhost.Options{Listen: "0.0.0.0:0"})
	require.NoError(t, err)
	h, err := New(Options{Service: w.svc, Names: names, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	w.bench = &bench{t: t, url: srv.URL}
	return w
}

type oneImage struct{}

func (oneImage) ImageState(string) (string, int, string) { return "ready", 100, "" }
func (oneImage) ImageNames() []string                    { return []string{"base"} }

// people makes the two workspaces, and a key of each kind.
func (w *town) people(t *testing.T) {
	t.Helper()
	ctx := context.Background()
	const password = "tall-river-42"
	for _, slug := range []string{"lab", "other"} {
		_, err := w.svc.AdminCreateWorkspace(ctx, slug)
		require.NoError(t, err)
	}
	join := func(email, slug string, role auth.Role, more ...auth.Permission) string {
		u, err := w.svc.AdminCreateUser(ctx, email, password, false)
		require.NoError(t, err)
		_, err = w.svc.AdminGrant(ctx, slug, email, role, more)
		require.NoError(t, err)
		return u.ID
	}
	ann := join("ann@example.org", "lab", auth.Admin, auth.SandboxesRun)
	join("carol@example.org", "lab", auth.Admin)
	join("dave@example.org", "lab", auth.Viewer, auth.SandboxesRun)
	join("eve@example.org", "other", auth.Admin, auth.SandboxesRun)
	key := func(name, slug, owner string, days int, ps ...auth.Permission) string {
		k, secret, err := w.svc.AdminCreateKey(ctx, workspace.AdminKeyForm{Workspace: slug, Name: name, OwnerEmail: owner, ExpiresDays: days, Permissions: ps})
		require.NoError(t, err)
		w.keys[name] = secret
		return k.ID
	}
	key("read", "lab", "", -1, auth.SandboxesRead)
	key("run", "lab", "", -1, auth.SandboxesRun)
	key("manage", "lab", "", -1, auth.SandboxesManage)
	key("admin", "lab", "carol@example.org", -1, auth.AllPermissions...)
	key("other", "other", "eve@example.org", -1, auth.AllPermissions...)
	key("expired", "lab", "ann@example.org", 1, auth.AllPermissions...)
	revoked := key("revoked", "lab", "ann@example.org", -1, auth.AllPermissions...)
	_, err := w.svc.AdminRevokeKey(ctx, revoked)
	require.NoError(t, err)
	key("of a disabled owner", "lab", "dave@example.org", -1, auth.SandboxesRun)
	require.NoError(t, w.svc.AdminDisableUser(ctx, "dave@example.org", true))
	w.mu.Lock()
	w.now = w.now.Add(25 * time.Hour)
	w.mu.Unlock()
	w.boss, err = w.svc.PersonActor(ctx, ann, "", "lab", "192.0.2.1", "r1")
	require.NoError(t, err)
}

// things is one of everything. The command has ended where the call would follow it for ever.
func (w *town) things(t *testing.T, box string, r route) map[string]string {
	t.Helper()
	ctx := context.Background()
	cmd, err := w.svc.StartCommand(ctx, w.boss, box, agent.CommandSpec{ID: sandbox.RandomID("cmd"), Command: "cat", KeepStdin: true, Background: true})
	require.NoError(t, err)
	pty, err := w.svc.OpenTerminal(ctx, w.boss, box, agent.PTYSpec{Cols: 80, Rows: 24})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = w.svc.KillCommand(ctx, w.boss, box, cmd.ID, "KILL")
		_ = w.svc.CloseTerminal(ctx, w.boss, box, pty.ID)
	})
	if strings.HasSuffix(r.path, "/stream") {
		require.NoError(t, w.svc.KillCommand(ctx, w.boss, box, cmd.ID, "KILL"))
	}
	key, _, err := w.svc.AdminCreateKey(ctx, workspace.AdminKeyForm{Workspace: "lab", Name: "to be revoked", Permissions: auth.Permissions{auth.SandboxesRead}})
	require.NoError(t, err)
	return map[string]string{"id": box, "cmd": cmd.ID, "pty": pty.ID, "group": w.boss.Workspace.ID, "key": key.ID, "role": "viewer"}
}

// asked is a request for approval with a content, of somebody else than the callers.
func (w *town) asked(t *testing.T) map[string]string {
	t.Helper()
	made, err := w.svc.CreateSandbox(context.Background(), w.boss, workspace.CreateOptions{
		Label: "asks", Cwd: w.tmp, User: w.user, Approval: approval.Policy{Command: approval.AskIt},
	})
	require.NoError(t, err)
	_, err = w.svc.RunCommand(context.Background(), w.boss, string(made.ID), agent.CommandSpec{ID: sandbox.RandomID("cmd"), Command: "true", Stdin: []byte("x")}, nil)
	fe, ok := errors.AsType[*fault.Error](err)
	require.True(t, ok, "%v", err)
	id, _ := fe.Extra["approval_id"].(string)
	return map[string]string{"approval": id, "name": "stdin"}
}

func (w *town) box(t *testing.T, a auth.Actor) string {
	t.Helper()
	made, err := w.svc.CreateSandbox(context.Background(), a, workspace.CreateOptions{Label: "box", Cwd: w.tmp, User: w.user})
	require.NoError(t, err)
	return string(made.ID)
}

func TestWhoMayCallWhat(t *testing.T) {
	w := newTown(t)
	shared := w.box(t, w.boss)
	rows := (&server{}).routes()
	for _, r := range rows {
		want, stated := allowed[r.method+" "+r.path]
		if !assert.True(t, stated, "say in this test who may call %s %s", r.method, r.path) {
			continue
		}
		t.Run(r.method+" "+r.path, func(t *testing.T) {
			things := map[string]string{"id": shared, "group": w.boss.Workspace.ID, "role": "viewer"}
			if strings.Contains(r.path, ":approval") {
				things = w.asked(t)
			}
			if strings.Contains(r.path, ":cmd") || strings.Contains(r.path, ":pty") || strings.Contains(r.path, ":key") {
				things = w.things(t, shared, r) // at most one of the callers ends them
			}
			for i, caller := range []string{"read", "run", "manage", "admin", "other"} {
				w.call(t, r, caller, want[i], things)
			}
			for _, caller := range []string{"no key", "an unknown key", "expired", "revoked", "of a disabled owner"} {
				status := 401
				if r.path == socketPath {
					status = term.CloseExpired
				}
				w.call(t, r, caller, status, things)
			}
		})
	}
	require.Len(t, allowed, len(rows), "and nothing else is stated")

	t.Run("run changes and kills its own", func(t *testing.T) {
		a, err := w.svc.KeyActor(context.Background(), w.keys["run"], "", "")
		require.NoError(t, err)
		own := w.box(t, a)
		require.Equal(t, 200, w.do("PATCH", "/v1/sandboxes/"+own, `{"label":"mine"}`, "X-API-Key", w.keys["run"]).status)
		require.Equal(t, 200, w.do("DELETE", "/v1/sandboxes/"+own, "", "X-API-Key", w.keys["run"]).status)
	})
	require.Equal(t, 200, w.do("GET", "/v1/sandboxes/"+shared, "", "X-API-Key", w.keys["read"]).status, "it was touched by none of that")
}

// call makes one call with what it needs, and compares the answer.
func (w *town) call(t *testing.T, r route, caller string, want int, things map[string]string) {
	t.Helper()
	if r.method == "DELETE" && r.path == "/v1/sandboxes/:id" && want == 200 {
		things = map[string]string{"id": w.box(t, w.boss)}
	}
	if strings.Contains(r.path, ":snapshot") {
		n, err := w.svc.TakeSnapshot(context.Background(), w.boss, things["id"], "kept")
		require.NoError(t, err)
		things = map[string]string{"snapshot": string(n.ID)}
	}
	if strings.Contains(r.path, ":recording") {
		things = map[string]string{"recording": w.recorded(t)}
	}
	require.NoError(t, os.RemoveAll(filepath.Join(w.tmp, "c")))
	require.NoError(t, os.WriteFile(filepath.Join(w.tmp, "a"), []byte("hello"), 0o600))
	here := strings.NewReplacer("/work/a&limit", w.tmp+"&limit", "/work/", w.tmp+"/")
	sample := samples[r.method+" "+r.path]
	target := r.path
	for name, id := range things {
		target = strings.Replace(target, ":"+name, id, 1)
	}
	target += here.Replace(sample.query)
	if r.path == socketPath {
		w.socket(t, target, caller, want)
		return
	}
	content := "application/json"
	if m := operations[r.method+" "+r.path].media; m != "" {
		content = octets
	}
	ask := w.do
	if endless[r.path] {
		ask = w.glance
	}
	a := ask(r.method, target, here.Replace(sample.body), "X-API-Key", w.keys[caller], "Content-Type", content)
	assert.Equal(t, want, a.status, "%s: %s %s: %.300s", caller, r.method, target, a.body)
}

// recorded keeps a recording that has ended.
func (w *town) recorded(t *testing.T) string {
	t.Helper()
	r := recording.Recording{
		ID: sandbox.RandomID("rec"), WorkspaceID: w.boss.Workspace.ID, SandboxID: string(sandbox.NewID()), PTY: sandbox.RandomID("pty"),
		Part: 1, StartedAt: w.clock(), EndedAt: w.clock(), End: recording.EndExited,
	}
	f, err := w.shelf.Create(r.ID, recording.Start{At: r.StartedAt, Cols: 80, Rows: 24})
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, w.store.InsertRecording(context.Background(), r))
	return r.ID
}

// socket attaches to a terminal; want is the close code, or 0 where it stays open.
func (w *town) socket(t *testing.T, target, caller string, want int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn, _, err := w.dial(target, "X-Api-Key", w.keys[caller])
	require.NoError(t, err)
	defer func() { _ = conn.CloseNow() }()
	kind, hello, err := conn.Read(ctx)
	if want == 0 {
		require.NoError(t, err, caller)
		require.Equal(t, websocket.MessageText, kind)
		require.Contains(t, string(hello), `"hello"`)
		role := `"viewer"`
		if caller == "run" {
			role = `"driver"`
		}
		require.Contains(t, string(hello), role, caller)
		return
	}
	assert.Equal(t, want, int(websocket.CloseStatus(err)), "%s: %v", caller, err)
}
