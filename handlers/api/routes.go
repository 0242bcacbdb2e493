package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"sandgate/auth"
)

// route is one call: its place, the action that a refusal is recorded as, and who may make it.
type route struct {
	method, path string
	action       string
	need         []auth.Permission // any one of them; nil: every key that is valid
	stream       bool              // answers for as long as it likes; has no HEAD
	run          echo.HandlerFunc
}

// The permission sets of the table. A person or key without any of them is refused before a body is read.
var (
	anyKey = []auth.Permission(nil)
	see    = []auth.Permission{auth.SandboxesRead, auth.SandboxesManage}
	read   = []auth.Permission{auth.SandboxesRead}
	run    = []auth.Permission{auth.SandboxesRun}
	end    = []auth.Permission{auth.SandboxesRun, auth.SandboxesManage}

	members = []auth.Permission{auth.MembersManage}
	bounds  = []auth.Permission{auth.SandboxesRead, auth.SandboxesManage, auth.MembersManage}
	keys    = []auth.Permission{auth.KeysManage}
	asked   = []auth.Permission{auth.SandboxesRead, auth.ApprovalsDecide, auth.SandboxesManage}
	decide  = []auth.Permission{auth.ApprovalsDecide}
	ruling  = []auth.Permission{auth.SandboxesRead, auth.ApprovalsDecide, auth.SandboxesManage, auth.MembersManage}
	replay  = []auth.Permission{auth.SandboxesRead, auth.AuditRead}
	manage  = []auth.Permission{auth.SandboxesManage}
	records = []auth.Permission{auth.AuditRead, auth.SandboxesRead, auth.SandboxesManage}
	house   = []auth.Permission{auth.MembersManage, auth.KeysManage}
)

// socketPath is the one websocket: its refusals are close codes, after the upgrade.
const socketPath = "/v1/sandboxes/:id/ptys/:pty/ws"

// routes is the table of all calls.
func (s *server) routes() []route {
	const one, cmd, pty = "/v1/sandboxes/:id", "/v1/sandboxes/:id/commands/:cmd", "/v1/sandboxes/:id/ptys/:pty"
	return []route{
		{http.MethodGet, "/v1/nodes", "node.list", anyKey, false, s.nodes},
		{http.MethodGet, "/v1/admin/me", "key.read", anyKey, false, s.me},
		{http.MethodGet, "/v1/knowledge-bases", "knowledge_base.list", anyKey, false, s.knowledgeBases},

		{http.MethodPost, "/v1/sandboxes", "sandbox.create", run, false, s.createSandbox},
		{http.MethodGet, "/v1/sandboxes", "sandbox.list", see, false, s.listSandboxes},
		{http.MethodGet, one, "sandbox.read", see, false, s.getSandbox},
		{http.MethodDelete, one, "sandbox.kill", end, false, s.deleteSandbox},
		{http.MethodPatch, one, "sandbox.update", end, false, s.patchSandbox},
		{http.MethodPost, one + "/suspend", "sandbox.suspend", end, false, s.suspendSandbox},
		{http.MethodPost, one + "/fork", "sandbox.fork", run, false, s.forkSandbox},
		{http.MethodPost, one + "/snapshots", "snapshot.create", run, false, s.takeSnapshot},
		{http.MethodGet, "/v1/snapshots", "snapshot.list", see, false, s.listSnapshots},
		{http.MethodDelete, "/v1/snapshots/:snapshot", "snapshot.delete", end, false, s.deleteSnapshot},
		{http.MethodPost, one + "/resume", "sandbox.resume", run, false, s.resumeSandbox},
		{http.MethodPost, one + "/keepalive", "sandbox.keepalive", end, false, s.keepSandbox},
		{http.MethodGet, "/v1/limits", "limit.read", bounds, false, s.workspaceLimits},
		{http.MethodPut, "/v1/limits", "limit.set", members, false, s.setWorkspaceLimits},
		{http.MethodGet, "/v1/recordings", "recording.list", replay, false, s.listRecordings},
		{http.MethodGet, "/v1/recordings/:recording", "recording.read", replay, false, s.getRecording},
		{http.MethodGet, "/v1/recordings/:recording/cast", "recording.play", replay, false, s.getCast},
		{http.MethodDelete, "/v1/recordings/:recording", "recording.delete", manage, false, s.deleteRecording},
		{http.MethodGet, "/v1/recording-policy", "recording.read_policy", bounds, false, s.recordingPolicy},
		{http.MethodPut, "/v1/recording-policy", "recording.set_policy", members, false, s.setRecordingPolicy},
		{http.MethodGet, "/v1/audit", "audit.read", records, false, s.listAudit},
		{http.MethodGet, one + "/metrics", "sandbox.usage", see, false, s.metrics},
		{http.MethodGet, one + "/metrics/history", "sandbox.usage", see, false, s.metricsHistory},
		{http.MethodGet, one + "/metrics/stream", "sandbox.usage", see, true, s.metricsStream},
		{http.MethodGet, one + "/events", "event.read", read, true, s.watchEvents},
		{http.MethodGet, "/v1/events", "event.read", read, true, s.watchEvents},

		{http.MethodPost, one + "/commands", "command.run", run, true, s.postCommand},
		{http.MethodGet, one + "/commands", "command.list", read, false, s.listCommands},
		{http.MethodGet, cmd, "command.read", read, false, s.getCommand},
		{http.MethodGet, cmd + "/logs", "command.read", read, false, s.commandLogs},
		{http.MethodGet, cmd + "/stream", "command.read", read, true, s.followCommand},
		{http.MethodPost, cmd + "/stdin", "command.stdin", run, false, s.commandStdin},
		{http.MethodPost, cmd + "/kill", "command.kill", run, false, s.killCommand},

		{http.MethodGet, one + "/files", "file.read", read, false, s.readFile},
		{http.MethodPost, one + "/files", "file.write", run, false, s.writeFile},
		{http.MethodDelete, one + "/files", "file.delete", run, false, s.deleteFile},
		{http.MethodGet, one + "/files/list", "file.list", read, false, s.listFiles},
		{http.MethodGet, one + "/files/stat", "file.list", read, false, s.statFile},
		{http.MethodPost, one + "/files/mkdir", "file.mkdir", run, false, s.makeDirectory},
		{http.MethodPost, one + "/files/move", "file.move", run, false, s.moveFile},
		{http.MethodGet, one + "/files/raw", "file.read", read, false, s.getRaw},
		{http.MethodPut, one + "/files/raw", "file.write", run, false, s.putRaw},
		{http.MethodGet, one + "/files/archive", "file.read", read, true, s.archive},
		{http.MethodPut, one + "/files/archive", "file.unpack", run, false, s.unpack},
		{http.MethodGet, one + "/files/search", "file.read", read, false, s.searchFiles},
		{http.MethodGet, one + "/files/watch", "file.read", read, true, s.watchFiles},
		{http.MethodPost, one + "/files/copy", "file.copy", run, false, s.copyFile},
		{http.MethodPost, one + "/files/chmod", "file.chmod", run, false, s.chmodFile},

		{http.MethodPost, one + "/ptys", "terminal.open", run, false, s.openTerminal},
		{http.MethodGet, one + "/ptys", "terminal.list", read, false, s.listTerminals},
		{http.MethodGet, pty, "terminal.list", read, false, s.getTerminal},
		{http.MethodPatch, pty, "terminal.rename", run, false, s.renameTerminal},
		{http.MethodDelete, pty, "terminal.close", run, false, s.closeTerminal},
		{http.MethodPost, pty + "/ticket", "terminal.ticket", read, false, s.terminalTicket},
		// Who may not look on is told by the service, with a close code.
		{http.MethodGet, socketPath, "terminal.view", anyKey, true, s.viewTerminal},

		{http.MethodGet, "/v1/approvals", "approval.list", asked, false, s.listApprovals},
		{http.MethodGet, "/v1/approvals/:approval", "approval.read", asked, false, s.getApproval},
		{http.MethodGet, "/v1/approvals/:approval/contents/:name", "approval.read", asked, false, s.approvalContent},
		{http.MethodPost, "/v1/approvals/:approval/approve", "approval.approve", decide, false, s.approve},
		{http.MethodPost, "/v1/approvals/:approval/deny", "approval.deny", decide, false, s.deny},
		{http.MethodPost, "/v1/approvals/:approval/dry-run", "approval.try", decide, false, s.dryRun},
		{http.MethodPost, "/v1/approvals/:approval/cancel", "approval.cancel", run, false, s.cancelApproval},
		{http.MethodGet, "/v1/policy", "policy.read", ruling, false, s.getPolicy},
		{http.MethodPut, "/v1/policy", "policy.set", members, false, s.putPolicy},
		{http.MethodGet, "/v1/admin/system-keys/:key/policy", "policy.read", keys, false, s.getKeyPolicy},
		{http.MethodPut, "/v1/admin/system-keys/:key/policy", "policy.set", keys, false, s.putKeyPolicy},

		{http.MethodGet, "/v1/admin/groups", "workspace.list", house, false, s.groups},
		{http.MethodPost, "/v1/admin/groups", "workspace.create", members, false, s.createGroup},
		{http.MethodDelete, "/v1/admin/groups/:group", "workspace.delete", members, false, s.deleteGroup},
		{http.MethodPost, "/v1/admin/groups/:group/api-keys", "key.create", keys, false, s.addGroupKey},
		{http.MethodGet, "/v1/admin/system-keys", "key.list", keys, false, s.systemKeys},
		{http.MethodPost, "/v1/admin/system-keys", "key.create", keys, false, s.createSystemKey},
		{http.MethodDelete, "/v1/admin/system-keys/:key", "key.revoke", keys, false, s.deleteSystemKey},
		{http.MethodGet, "/v1/admin/users", "member.list", members, false, s.users},
		{http.MethodGet, "/v1/admin/roles", "role.list", house, false, s.roles},
		{http.MethodPost, "/v1/admin/roles", "role.create", members, false, s.createRole},
		{http.MethodDelete, "/v1/admin/roles/:role", "role.delete", members, false, s.deleteRole},
	}
}
