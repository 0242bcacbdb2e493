package handlers

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"sandgate/auth"
	"sandgate/static"
)

// route is one row of the table. Exactly one of need, person and public says who may come in; the service judges again.
type route struct {
	method string
	path   string
	need   []auth.Permission // any of them, in the workspace of the path
	person bool              // anybody who is signed in; with a workspace in the path: its members
	public string            // why nobody needs to be signed in
	action string            // noun.verb under which a refusal is put on record
	stream bool              // the body is not a form: not bounded here
	run    func(*visit) error
	raw    func(echo.Context) error // instead of run: no session, no CSRF rule
}

var (
	read    = []auth.Permission{auth.SandboxesRead, auth.SandboxesManage}
	run     = []auth.Permission{auth.SandboxesRun}
	kill    = []auth.Permission{auth.SandboxesRun, auth.SandboxesManage}
	manage  = []auth.Permission{auth.SandboxesManage}
	members = []auth.Permission{auth.MembersManage}
	asked   = []auth.Permission{auth.SandboxesRead, auth.ApprovalsDecide, auth.SandboxesManage}
	ruling  = []auth.Permission{auth.SandboxesRead, auth.ApprovalsDecide, auth.SandboxesManage, auth.MembersManage}
	keys    = []auth.Permission{auth.KeysManage}
	decide  = []auth.Permission{auth.ApprovalsDecide}
	records = []auth.Permission{auth.AuditRead, auth.SandboxesRead, auth.SandboxesManage}
	replay  = []auth.Permission{auth.SandboxesRead, auth.AuditRead}
	whole   = []auth.Permission{auth.AuditRead}
)

const (
	get  = http.MethodGet
	post = http.MethodPost
	ws   = "/w/:slug"
	sbs  = ws + "/sandboxes"
	sb   = sbs + "/:id"
	snap = ws + "/snapshots/:snapshot"
	aps  = ws + "/approvals"
	ap   = aps + "/:approval"
)

// routes is everything that this server answers. A test walks Echo's own list and fails on what is not here.
func (s *Server) routes() []route {
	table := []route{
		// the door
		{method: get, path: "/", public: "sends people where they belong", run: s.home},
		{method: get, path: "/sign-in", public: "the form for it", run: s.signInForm},
		{method: post, path: "/sign-in", public: "judged by e-mail and password", run: s.signIn},
		{method: post, path: "/sign-out", public: "ends whatever session there is", run: s.signOut},
		{method: get, path: "/session", public: "tells a page whether it is still signed in", run: s.sessionState},
		{method: get, path: "/setup", public: "judged by the token of the link", run: s.setupForm},
		{method: post, path: "/setup", public: "judged by the token of the link", run: s.setup},
		{method: get, path: "/invite", public: "judged by the token of the link", run: s.inviteForm},
		{method: post, path: "/invite", public: "judged by the token of the link", run: s.acceptInvite},

		// the person
		{method: get, path: "/account", person: true, run: s.account},
		{method: post, path: "/account/theme", public: "a cookie of the browser's own", run: s.setTheme},
		{method: post, path: "/account/password", person: true, run: s.changePassword},
		{method: post, path: "/account/sessions/end", person: true, run: s.endOtherSessions},
		{method: post, path: "/account/sessions/:session/end", person: true, run: s.endSession},
		{method: post, path: "/account/workspaces", person: true, run: s.createWorkspace},

		// sandboxes
		{method: get, path: ws, person: true, run: s.workspaceHome},
		{method: get, path: sbs, need: read, action: "sandbox.list", run: s.sandboxList},
		{method: get, path: sbs + "/events", need: read, action: "sandbox.list", run: s.sandboxListEvents},
		{method: get, path: sbs + "/new", need: run, action: "sandbox.create", run: s.sandboxForm},
		{method: post, path: sbs + "/new", need: run, action: "sandbox.create", run: s.sandboxCreate},
		{method: get, path: ws + "/images/:image", need: read, action: "image.read", run: s.imageProgress},
		{method: get, path: sbs + "/kill", need: kill, action: "sandbox.kill", run: s.sandboxesKillForm},
		{method: post, path: sbs + "/kill", need: kill, action: "sandbox.kill", run: s.sandboxesKill},

		// one sandbox
		{method: get, path: sb, need: read, action: "sandbox.read", run: s.sandboxPage},
		{method: get, path: sb + "/events", need: read, action: "sandbox.read", run: s.sandboxEvents},
		{method: get, path: sb + "/kill", need: kill, action: "sandbox.kill", run: s.sandboxKillForm},
		{method: post, path: sb + "/kill", need: kill, action: "sandbox.kill", run: s.sandboxKill},
		{method: post, path: sb + "/suspend", need: kill, action: "sandbox.suspend", run: s.sandboxSuspend},
		{method: post, path: sb + "/resume", need: run, action: "sandbox.resume", run: s.sandboxResume},

		{method: get, path: sb + "/snapshot", need: run, action: "snapshot.create", run: s.snapshotForm},
		{method: post, path: sb + "/snapshot", need: run, action: "snapshot.create", run: s.snapshotTake},
		{method: get, path: sb + "/fork", need: run, action: "sandbox.fork", run: s.forkForm},
		{method: post, path: sb + "/fork", need: run, action: "sandbox.fork", run: s.fork},
		{method: post, path: sb + "/keepalive", need: kill, action: "sandbox.keepalive", run: s.keepAlive},
		{method: get, path: sb + "/limits", need: manage, action: "sandbox.update", run: s.sandboxLimitsForm},
		{method: post, path: sb + "/limits", need: manage, action: "sandbox.update", run: s.sandboxLimits},
		{method: get, path: sb + "/network", need: kill, action: "sandbox.update", run: s.networkForm},
		{method: post, path: sb + "/network", need: kill, action: "sandbox.update", run: s.networkChange},

		// snapshots
		{method: get, path: ws + "/snapshots", need: read, action: "snapshot.list", run: s.snapshotList},
		{method: get, path: ws + "/snapshots/events", need: read, action: "snapshot.list", run: s.snapshotListEvents},
		{method: get, path: snap + "/start", need: run, action: "sandbox.create", run: s.snapshotStartForm},
		{method: post, path: snap + "/start", need: run, action: "sandbox.create", run: s.snapshotStart},
		{method: get, path: snap + "/delete", need: kill, action: "snapshot.delete", run: s.snapshotDeleteForm},
		{method: post, path: snap + "/delete", need: kill, action: "snapshot.delete", run: s.snapshotDelete},

		// its files
		{method: get, path: sb + "/files", need: read, action: "file.list", run: s.filesPane},
		{method: get, path: sb + "/files/preview", need: read, action: "file.read", run: s.filePreview},
		{method: get, path: sb + "/files/raw", need: read, action: "file.read", run: s.fileDownload},
		{method: http.MethodHead, path: sb + "/files/raw", need: read, action: "file.read", run: s.fileDownload},
		{method: http.MethodPut, path: sb + "/files/raw", need: run, action: "file.write", stream: true, run: s.filePut},
		{method: get, path: sb + "/files/image", need: read, action: "file.read", run: s.fileImage},
		{method: get, path: sb + "/files/archive", need: read, action: "file.archive", run: s.fileArchive},
		{method: post, path: sb + "/files/upload", need: run, action: "file.write", stream: true, run: s.fileUpload},
		{method: get, path: sb + "/files/new-folder", need: run, action: "file.mkdir", run: s.folderForm},
		{method: post, path: sb + "/files/new-folder", need: run, action: "file.mkdir", run: s.folderCreate},
		{method: get, path: sb + "/files/rename", need: run, action: "file.move", run: s.renameForm},
		{method: post, path: sb + "/files/rename", need: run, action: "file.move", run: s.rename},
		{method: get, path: sb + "/files/delete", need: run, action: "file.delete", run: s.deleteForm},
		{method: post, path: sb + "/files/delete", need: run, action: "file.delete", run: s.deleteFile},

		// its terminals
		{method: get, path: sb + "/ptys", need: read, action: "terminal.list", run: s.terminalList},
		{method: post, path: sb + "/ptys", need: run, action: "terminal.open", run: s.terminalOpen},
		{method: post, path: sb + "/ptys/:pty/close", need: run, action: "terminal.close", run: s.terminalClose},
		{method: get, path: sb + "/ptys/:pty/ws", public: "refusals after the upgrade are close codes; the service judges", stream: true, run: s.terminalSocket},

		// approvals
		{method: get, path: aps, need: asked, action: "approval.list", run: s.approvals},
		{method: get, path: aps + "/events", need: asked, action: "approval.list", run: s.approvalEvents},
		{method: get, path: ap, need: asked, action: "approval.read", run: s.approvals},
		{method: get, path: ap + "/contents/:name", need: asked, action: "approval.read", run: s.approvalContent},
		{method: post, path: ap + "/approve", need: decide, action: "approval.approve", run: s.approvalApprove},
		{method: get, path: ap + "/deny", need: decide, action: "approval.deny", run: s.approvalDenyForm},
		{method: post, path: ap + "/deny", need: decide, action: "approval.deny", run: s.approvalDeny},
		{method: post, path: ap + "/try", need: decide, action: "approval.try", run: s.approvalTry},
		{method: post, path: ap + "/cancel", need: run, action: "approval.cancel", run: s.approvalCancel},

		{method: get, path: ws + "/policy", need: ruling, action: "policy.read", run: s.policyPage},
		{method: post, path: ws + "/policy", need: members, action: "policy.set", run: s.policySet},
		{method: get, path: ws + "/keys/:key/policy", need: keys, action: "policy.read", run: s.keyPolicyPage},
		{method: post, path: ws + "/keys/:key/policy", need: keys, action: "policy.set", run: s.keyPolicySet},

		// the record
		{method: get, path: ws + "/activity", need: records, action: "audit.list", run: s.activity},
		{method: get, path: ws + "/activity/live", need: records, action: "audit.list", run: s.activityEvents},
		{method: get, path: ws + "/activity/export", need: records, action: "audit.export", run: s.activityExport},
		{method: get, path: ws + "/activity/record", need: whole, action: "audit.read", run: s.recordPage},
		{method: get, path: ws + "/activity/sandboxes/:id", need: records, action: "audit.list", run: s.sandboxStory},
		{method: get, path: ws + "/activity/sandboxes/:id/live", need: records, action: "audit.list", run: s.storyEvents},
		{method: get, path: ws + "/activity/:event", need: records, action: "audit.read", run: s.activityEvent},

		// people and keys
		{method: get, path: ws + "/people", person: true, run: s.people},
		{method: post, path: ws + "/people/invitations", need: members, action: "member.invite", run: s.invite},
		{method: post, path: ws + "/people/invitations/:invitation/withdraw", need: members, action: "member.withdraw", run: s.withdraw},
		{method: post, path: ws + "/people/:user/role", need: members, action: "member.role", run: s.setRole},
		{method: get, path: ws + "/people/:user/run", need: members, action: "member.grant", run: s.runForm},
		{method: post, path: ws + "/people/:user/run", need: members, action: "member.grant", run: s.setRun},
		{method: get, path: ws + "/people/:user/remove", need: members, action: "member.remove", run: s.removeForm},
		{method: post, path: ws + "/people/:user/remove", need: members, action: "member.remove", run: s.remove},
		{method: get, path: ws + "/recordings", need: replay, action: "recording.list", run: s.recordingList},
		{method: get, path: ws + "/recordings/:recording", need: replay, action: "recording.read", run: s.recordingPage},
		{method: get, path: ws + "/recordings/:recording/cast", need: replay, action: "recording.play", run: s.recordingCast},
		{method: get, path: ws + "/recordings/:recording/delete", need: manage, action: "recording.delete", run: s.recordingDeleteForm},
		{method: post, path: ws + "/recordings/:recording/delete", need: manage, action: "recording.delete", run: s.recordingDelete},
		{method: get, path: ws + "/recording-policy", need: members, action: "recording.read_policy", run: s.recordingPolicyForm},
		{method: post, path: ws + "/recording-policy", need: members, action: "recording.set_policy", run: s.setRecordingPolicy},
		{method: get, path: ws + "/limits", need: members, action: "limit.read", run: s.workspaceLimitsForm},
		{method: post, path: ws + "/limits", need: members, action: "limit.set", run: s.setWorkspaceLimits},
		{method: post, path: ws + "/keys", person: true, run: s.keyCreate},
		{method: get, path: ws + "/keys/:key/revoke", person: true, run: s.keyRevokeForm},
		{method: post, path: ws + "/keys/:key/revoke", person: true, run: s.keyRevoke},

		// what needs no session
		{method: get, path: static.Prefix + "*", public: "stylesheets and scripts", raw: echo.WrapHandler(static.Handler())},
		{method: http.MethodHead, path: static.Prefix + "*", public: "stylesheets and scripts", raw: echo.WrapHandler(static.Handler())},
		{method: get, path: "/favicon.ico", public: "browsers ask for it by themselves", raw: favicon},
	}
	if s.o.API != nil {
		api := echo.WrapHandler(s.o.API)
		for _, m := range []string{get, http.MethodHead, post, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions, echo.RouteNotFound} { // the last is every other
			table = append(table, route{method: m, path: "/v1", public: "API keys, judged there", raw: api},
				route{method: m, path: "/v1/*", public: "API keys, judged there", raw: api})
		}
	}
	if s.o.MCP != nil {
		for _, m := range []string{get, post, http.MethodDelete} {
			table = append(table, route{method: m, path: "/mcp", public: "API keys, judged there", raw: echo.WrapHandler(s.o.MCP)})
		}
	}
	return table
}

func favicon(c echo.Context) error { return c.Redirect(http.StatusFound, static.URL("favicon.svg")) }
