package api

import (
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"sandgate/sandbox/agent"
)

// operation is what the document says of a call beyond its row in the table.
type operation struct {
	tag, summary, about string
	query               []param
	headers             []param
	body                reflect.Type // of a JSON body; nil: none
	media               string       // of a body that is not JSON
	answers             []reply      // when it went well
	refusals            []int        // beyond those that follow from the row and the body
}

type param struct {
	name, about string
	schema      huma.Schema
	required    bool
}

// reply is one status that is no refusal.
type reply struct {
	status  int
	about   string
	json    reflect.Type // nil: media, or no body
	media   string
	events  []reflect.Type // the data of an event each, where media is a stream of them
	headers []string
}

func of[T any]() reflect.Type { return reflect.TypeFor[T]() }

func ok[T any](about string) []reply {
	return []reply{{status: http.StatusOK, about: about, json: of[T]()}}
}

// stream is the answer of a call that tells what happens for as long as its client listens.
func stream[T any](about string) []reply {
	return []reply{{status: http.StatusOK, about: about + noticeAbout, media: eventStream, events: []reflect.Type{of[T](), of[notice]()}}}
}

func bound(f float64) *float64 { return &f }
func length(n int) *int        { return &n }

// Parameters that several calls have.
var (
	pathQuery = []param{
		{name: "path", about: "Absolute, at most 4095 bytes, percent-encoded. This or path_b64 must be given.", schema: huma.Schema{Type: "string", Pattern: `^/[^\x00]*$`, MaxLength: length(4095)}},
		{name: "path_b64", about: "The path in base64, for names that are not UTF-8.", schema: huma.Schema{Type: "string", ContentEncoding: "base64"}},
	}
	cursorQuery = param{name: "cursor", about: "From an earlier answer; the start unless given.", schema: huma.Schema{Type: "string", Pattern: `^(\d{1,18}\.\d{1,18})?$`}}
	timeQuery   = huma.Schema{Type: "string", Pattern: `^(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?(Z|[+-]\d{2}:\d{2}))?$`, MaxLength: length(35)}
	wordQuery   = huma.Schema{Type: "string", MaxLength: length(maxAuditWord)}
	idempotency = param{name: "Idempotency-Key", about: "Repeats with the same key give the sandbox of the first call.", schema: huma.Schema{Type: "string", MaxLength: length(255), Pattern: `^[ -~]*$`}}
	conditional = []param{
		{name: "If-Match", about: "Only if the file has this ETag; * is any.", schema: huma.Schema{Type: "string"}},
		{name: "If-None-Match", about: "Only if the file does not have this ETag; * is any.", schema: huma.Schema{Type: "string"}},
	}
	ranged = append([]param{
		{name: "Range", about: "One range of bytes.", schema: huma.Schema{Type: "string"}},
		{name: "If-Range", about: "The range only if the file has this ETag.", schema: huma.Schema{Type: "string"}},
	}, conditional...)
)

// asksHeaders are those of calls that may have to be approved.
var asksHeaders = []param{
	{name: approvalHeader, about: "Of a request that was made before for the same call.", schema: huma.Schema{Type: "string", Pattern: `^(ap[a-z0-9]{20})?$`}},
	{name: reasonHeader, about: "Why, for who decides about it.", schema: huma.Schema{Type: "string", MaxLength: length(maxReason)}},
	{name: "Prefer", about: "wait=SECONDS, at most 100, which is the default; respond-async: a 202 at once where an approval is needed.", schema: huma.Schema{Type: "string"}},
}

func with(more []param, first ...param) []param {
	return append(append([]param(nil), more...), first...)
}

func oneOf(words ...any) huma.Schema { return huma.Schema{Type: "string", Enum: words} }

func whole(lo, hi float64, def int) huma.Schema {
	return huma.Schema{Type: "integer", Minimum: bound(lo), Maximum: bound(hi), Default: def}
}

const (
	octets      = "application/octet-stream"
	eventStream = "text/event-stream"
	eventsAbout = "Server-sent events; the data of each is one Event."
	noticeAbout = " A ping is to be ignored; the last is end, or error with code and detail."
)

// operations has an entry for every row of the table, by method and path. A test fails for a row without one.
var operations = map[string]operation{
	"GET /v1/nodes":    {tag: "client", summary: "List workflow nodes", about: "Always empty: the official client asks when it starts.", answers: ok[[]nodeBody]("None.")},
	"GET /v1/admin/me": {tag: "admin", summary: "Describe the key", about: "What the key is and may do at this moment.", answers: ok[keyBody]("The key, masked.")},
	"GET /v1/knowledge-bases": {
		tag: "client", summary: "List knowledge bases", about: "Always an empty page.", answers: ok[pageBody]("An empty page."), refusals: []int{422},
		query: []param{{name: "page", schema: whole(1, 1000, 1)}, {name: "size", schema: whole(1, 1000, 50)}},
	},

	"POST /v1/sandboxes": {
		tag: "sandboxes", summary: "Create a sandbox", about: "Answers when it runs. All fields are optional; an option that this version does not have is refused, never ignored.",
		headers: []param{idempotency}, body: of[createRequest](), answers: ok[sandboxBody]("The sandbox."), refusals: []int{409},
	},
	"GET /v1/sandboxes":        {tag: "sandboxes", summary: "List sandboxes", about: "Of the workspace, newest first.", answers: ok[[]sandboxBody]("A bare array.")},
	"GET /v1/sandboxes/:id":    {tag: "sandboxes", summary: "Describe a sandbox", answers: ok[sandboxBody]("The sandbox.")},
	"DELETE /v1/sandboxes/:id": {tag: "sandboxes", summary: "Kill a sandbox", about: "Its files go with it. A success for one that is gone already. sandboxes:run kills one's own, sandboxes:manage anyone's.", answers: ok[doneBody]("It is gone.")},
	"PATCH /v1/sandboxes/:id": {
		tag: "sandboxes", summary: "Change a sandbox", about: "At least one field. sandboxes:run changes label, metadata and the times of one's own sandbox and narrows its network, sandboxes:manage changes everything of anyone's. Limits and network hold at once; a limit below what is in use is refused, and nothing is killed.",
		body: of[patchRequest](), answers: ok[sandboxBody]("The sandbox as it is now."), refusals: []int{409},
	},

	"POST /v1/sandboxes/:id/suspend": {
		tag: "sandboxes", summary: "Suspend a sandbox", about: "A persistent one: memory, processes and files go to the host's disk, and any call that needs them wakes it. sandboxes:run suspends one's own, sandboxes:manage anyone's.",
		answers: ok[sandboxBody]("The sandbox as it is now."), refusals: []int{409, 422},
	},
	"POST /v1/sandboxes/:id/fork": {
		tag: "sandboxes", summary: "Fork a sandbox", about: "Another one that goes on where this one is: its files, its memory and all that runs in it. This one goes on, too.",
		answers: ok[sandboxBody]("The new sandbox."), refusals: []int{409, 422},
	},
	"POST /v1/sandboxes/:id/snapshots": {
		tag: "snapshots", summary: "Take a snapshot", about: "Its files, its memory and all that runs in it, kept under a name. The sandbox runs on; a suspended one is woken for it.",
		body: of[snapshotRequest](), answers: ok[snapshotBody]("The snapshot."), refusals: []int{409},
	},
	"GET /v1/snapshots": {tag: "snapshots", summary: "List snapshots", about: "Of the workspace, newest first.", answers: ok[[]snapshotBody]("A bare array.")},
	"DELETE /v1/snapshots/:snapshot": {
		tag: "snapshots", summary: "Delete a snapshot", about: "Sandboxes that were started from it live on. sandboxes:run deletes one's own, sandboxes:manage anyone's.",
		answers: ok[doneBody]("It is gone."), refusals: []int{409},
	},
	"POST /v1/sandboxes/:id/resume": {
		tag: "sandboxes", summary: "Wake a sandbox", about: "Answers when it runs. One that runs already is a success.",
		answers: ok[sandboxBody]("The sandbox as it is now."), refusals: []int{409, 422},
	},

	"GET /v1/limits": {tag: "sandboxes", summary: "Read the workspace's limits", answers: ok[workspaceLimitsBody]("What holds, and why.")},
	"PUT /v1/limits": {
		tag: "sandboxes", summary: "Set the workspace's limits", about: "Replaces all of them. Sandboxes that are there keep what they have.",
		body: of[limitsRequest](), answers: ok[workspaceLimitsBody]("What holds now."),
	},

	"POST /v1/sandboxes/:id/keepalive": {
		tag: "sandboxes", summary: "Give a sandbox more time", about: "It is not ended for being idle before the time is over. max_lifetime stays.",
		body: of[keepRequest](), answers: ok[sandboxBody]("The sandbox as it is now."), refusals: []int{409},
	},
	"GET /v1/recordings": {
		tag: "recordings", summary: "List recordings", about: "Of terminals of the workspace, newest first, also of sandboxes that are gone.",
		query: []param{
			{name: "sandbox_id", schema: huma.Schema{Type: "string", Pattern: "^(sb[a-z0-9]{20})?$"}},
			{name: "limit", schema: whole(1, 500, 100)},
			{name: "cursor", about: "From the page before.", schema: huma.Schema{Type: "string", Pattern: `^(\d{1,17}\.rec[a-z0-9]{20})?$`}},
		},
		answers: ok[recordingsBody]("A page of it."), refusals: []int{422},
	},
	"GET /v1/recordings/:recording": {tag: "recordings", summary: "Describe a recording", answers: ok[recordingBody]("The recording.")},
	"GET /v1/recordings/:recording/cast": {
		tag: "recordings", summary: "Read a recording", about: "An asciicast v3, as an attachment; one that goes on is there up to this moment. Who reads it is on record. One with what was typed needs audit:read.",
		headers: []param{{name: "Range", about: "One range of bytes.", schema: huma.Schema{Type: "string"}}},
		answers: []reply{
			{status: http.StatusOK, about: "The recording.", media: asciicast, headers: []string{"Content-Disposition", "Last-Modified"}},
			{status: http.StatusPartialContent, about: "The range.", media: asciicast, headers: []string{"Content-Range"}},
		},
		refusals: []int{416},
	},
	"DELETE /v1/recordings/:recording": {
		tag: "recordings", summary: "Delete a recording", about: "Once it has ended.", answers: ok[doneBody]("It is gone."), refusals: []int{409},
	},
	"GET /v1/recording-policy": {tag: "recordings", summary: "Read what the workspace records", answers: ok[recordingPolicyBody]("What holds.")},
	"PUT /v1/recording-policy": {
		tag: "recordings", summary: "Set what the workspace records", about: "Replaces all of it; what is absent becomes the default. Terminals that are open follow.",
		body: of[recordingPolicyRequest](), answers: ok[recordingPolicyBody]("What holds now."),
	},
	"GET /v1/audit": {
		tag: "audit", summary: "Read the record", about: "What happened in the workspace and what was refused, newest first, by when it began. audit:read reads all of it; with sandboxes:read or sandboxes:manage a sandbox_id must be given.",
		query: []param{
			{name: "from", about: "Not before this time.", schema: timeQuery},
			{name: "to", about: "Before this time.", schema: timeQuery},
			{name: "actor", about: "By this person or key, or by a key of this person.", schema: wordQuery},
			{name: "action", about: "Such as command.run, or command. for all about commands.", schema: wordQuery},
			{name: "outcome", about: "ok, refused, failed, started or unknown.", schema: wordQuery},
			{name: "sandbox_id", schema: huma.Schema{Type: "string", Pattern: "^(sb[a-z0-9]{20})?$"}},
			{name: "q", about: "Words, or beginnings of words, all of which the event has in any of its texts.", schema: wordQuery},
			{name: "limit", schema: whole(1, 500, 100)},
			{name: "cursor", about: "From the page before.", schema: huma.Schema{Type: "string", Pattern: `^([1-9]\d{0,17})?$`}},
		},
		answers: ok[auditBody]("A page of it."), refusals: []int{422},
	},
	"GET /v1/sandboxes/:id/metrics": {tag: "metrics and events", summary: "Read the meters", about: "The limits are the sandbox's resources.", answers: ok[sampleBody]("One reading."), refusals: []int{409}},
	"GET /v1/sandboxes/:id/metrics/history": {
		tag: "metrics and events", summary: "Read the meters of the last hour", about: "Oldest first; kept in memory.",
		query: []param{{
			name: "since", about: "Readings after this time; all unless given.",
			schema: huma.Schema{Type: "string", Pattern: `^(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?(Z|[+-]\d{2}:\d{2}))?$`, MaxLength: length(35)},
		}},
		answers: ok[historyBody]("The readings."), refusals: []int{409, 422},
	},
	"GET /v1/sandboxes/:id/metrics/stream": {
		tag: "metrics and events", summary: "Follow the meters", about: "One reading at once, then one every interval.",
		query:   []param{{name: "interval", about: "Seconds.", schema: whole(1, 60, 1)}},
		answers: stream[sampleEvent]("A reading in each event."), refusals: []int{422},
	},
	"GET /v1/sandboxes/:id/events": {tag: "metrics and events", summary: "Follow a sandbox", about: "What happens to it and in it from now on. It ends after the sandbox.", answers: stream[eventBody]("First ready, then what happens.")},
	"GET /v1/events":               {tag: "metrics and events", summary: "Follow the workspace", about: "What happens in all of its sandboxes from now on.", answers: stream[eventBody]("First ready, then what happens.")},

	"POST /v1/sandboxes/:id/commands": {
		tag: "commands", summary: "Run a command", about: "With Accept: text/event-stream it is told as it happens; with background it is answered at once. A command that fails is a 200.",
		body: of[commandRequest](), refusals: []int{409},
		answers: []reply{
			{status: http.StatusOK, about: "How it ended. " + eventsAbout, json: of[executionBody](), media: eventStream},
			{status: http.StatusAccepted, about: "A background command has begun.", json: of[commandBody]()},
		},
	},
	"GET /v1/sandboxes/:id/commands":      {tag: "commands", summary: "List commands", about: "All that run, and those that ended last.", answers: ok[[]commandBody]("A bare array."), refusals: []int{409}},
	"GET /v1/sandboxes/:id/commands/:cmd": {tag: "commands", summary: "Describe a command", answers: ok[commandBody]("The command."), refusals: []int{409}},
	"GET /v1/sandboxes/:id/commands/:cmd/logs": {
		tag: "commands", summary: "Read a command's output", about: "What is there since the cursor, without waiting for more.",
		query: []param{cursorQuery}, answers: ok[logsBody]("The output, and the next cursor."), refusals: []int{409, 422},
	},
	"GET /v1/sandboxes/:id/commands/:cmd/stream": {
		tag: "commands", summary: "Follow a command", about: "What is kept since the cursor, then live, to the command's end.", query: []param{cursorQuery},
		answers: []reply{{status: http.StatusOK, about: eventsAbout, media: eventStream}}, refusals: []int{409, 422},
	},
	"POST /v1/sandboxes/:id/commands/:cmd/stdin": {tag: "commands", summary: "Write to a command", body: of[stdinRequest](), answers: ok[doneBody]("It was taken."), refusals: []int{409}},
	"POST /v1/sandboxes/:id/commands/:cmd/kill":  {tag: "commands", summary: "Signal a command", about: "The whole tree of its processes.", body: of[killRequest](), answers: ok[doneBody]("It was sent."), refusals: []int{409}},

	"GET /v1/sandboxes/:id/files": {
		tag: "files", summary: "Read a file over JSON", about: "Up to 16 MiB.", query: with(pathQuery, param{name: "encoding", about: "How content is written; utf-8 unless given.", schema: oneOf("utf-8", "base64")}),
		answers: ok[contentBody]("The file."), refusals: []int{400, 409, 413, 422},
	},
	"POST /v1/sandboxes/:id/files": {tag: "files", summary: "Write a file over JSON", about: "Up to 16 MiB. Missing directories are made.", body: of[writeRequest](), answers: ok[writtenBody]("What was written."), refusals: []int{409}},
	"DELETE /v1/sandboxes/:id/files": {
		tag: "files", summary: "Delete a file or directory", query: with(pathQuery, param{name: "recursive", about: "Also a directory that is not empty.", schema: huma.Schema{Type: "boolean"}}),
		answers: ok[doneBody]("It is gone."), refusals: []int{400, 409, 422},
	},
	"GET /v1/sandboxes/:id/files/list": {
		tag: "files", summary: "List a directory", about: "Directories first, then by name.",
		query: with(
			pathQuery, param{name: "limit", schema: whole(1, 1000, 200)}, param{name: "depth", schema: whole(1, 10, 1)},
			param{name: "cursor", about: "From the page before.", schema: huma.Schema{Type: "string", MaxLength: length(8192)}},
		),
		answers: ok[listingBody]("A page of it."), refusals: []int{400, 409, 422},
	},
	"GET /v1/sandboxes/:id/files/stat":   {tag: "files", summary: "Describe a file", about: "A symlink is described itself.", query: pathQuery, answers: ok[entryBody]("The file."), refusals: []int{400, 409, 422}},
	"POST /v1/sandboxes/:id/files/mkdir": {tag: "files", summary: "Make a directory", about: "And those above it that are missing.", body: of[pathRequest](), answers: ok[entryBody]("The directory."), refusals: []int{409}},
	"POST /v1/sandboxes/:id/files/move":  {tag: "files", summary: "Move or rename", about: "Never replaces what is at the destination.", body: of[moveRequest](), answers: ok[entryBody]("The file at its new place."), refusals: []int{409}},
	"GET /v1/sandboxes/:id/files/raw": {
		tag: "files", summary: "Read a file's bytes", about: "Of any size. HEAD tells the same without the bytes.", query: pathQuery, headers: ranged,
		answers: []reply{
			{status: http.StatusOK, about: "The file, always as an attachment.", media: octets, headers: []string{"ETag", "Accept-Ranges", "Last-Modified", "Content-Disposition"}},
			{status: http.StatusPartialContent, about: "The range.", media: octets, headers: []string{"ETag", "Content-Range"}},
			{status: http.StatusNotModified, about: "The file has the ETag that was named."},
		},
		refusals: []int{400, 409, 412, 416, 422},
	},
	"PUT /v1/sandboxes/:id/files/raw": {
		tag: "files", summary: "Write a file's bytes", about: "The body, of any size, replaces the file in one step.", query: pathQuery, headers: conditional, media: octets,
		answers: []reply{{status: http.StatusOK, about: "The file.", json: of[entryBody](), headers: []string{"ETag"}}}, refusals: []int{400, 409, 412, 422},
	},
	"GET /v1/sandboxes/:id/files/archive": {
		tag: "files", summary: "Read a directory as an archive", query: with(pathQuery, param{name: "format", about: "tar unless given.", schema: oneOf("tar", "tar.gz", "zip")}),
		answers: []reply{{status: http.StatusOK, about: "The archive.", media: octets, headers: []string{"Content-Disposition"}}}, refusals: []int{400, 409, 422},
	},
	"PUT /v1/sandboxes/:id/files/archive": {
		tag: "files", summary: "Unpack an archive", about: "The body, a tar, tar.gz or zip, below a directory: all of it or nothing. Files that are there are replaced.",
		query: with(pathQuery, param{name: "format", about: "tar unless given.", schema: oneOf("tar", "tar.gz", "zip")}), media: octets,
		answers: ok[unpackedBody]("What it became."), refusals: []int{409, 413, 422},
	},
	"GET /v1/sandboxes/:id/files/search": {
		tag: "files", summary: "Search below a directory", about: "By name, by content or by both: one must be given. Links are not followed. A page may end early, with a cursor to go on from.",
		query: with(
			pathQuery,
			param{name: "name", about: "A glob over the last part of a path.", schema: huma.Schema{Type: "string", MaxLength: length(agent.MaxPattern), Pattern: `^[^/\x00]*$`}},
			param{name: "content", about: "Bytes that a file holds, at most 4096, percent-encoded.", schema: huma.Schema{Type: "string", MaxLength: length(agent.MaxNeedle)}},
			param{name: "content_b64", about: "The same in base64.", schema: huma.Schema{Type: "string", ContentEncoding: "base64"}},
			param{name: "limit", schema: whole(1, 1000, 200)},
			param{name: "cursor", about: "From the page before.", schema: huma.Schema{Type: "string", MaxLength: length(8192)}},
		),
		answers: ok[searchBody]("A page of what was found."), refusals: []int{409, 422},
	},
	"GET /v1/sandboxes/:id/files/watch": {
		tag: "files", summary: "Watch a directory", about: "What changes in it from now on. Links are not followed.",
		query:   with(pathQuery, param{name: "recursive", about: "Also all below it.", schema: huma.Schema{Type: "boolean"}}),
		answers: stream[changeBody]("First ready, then what changes."), refusals: []int{422},
	},
	"POST /v1/sandboxes/:id/files/copy":  {tag: "files", summary: "Copy a file or directory", about: "With all that is in it. Never replaces what is at the destination.", body: of[moveRequest](), answers: ok[entryBody]("The copy."), refusals: []int{409}},
	"POST /v1/sandboxes/:id/files/chmod": {tag: "files", summary: "Change permission bits", body: of[chmodRequest](), answers: ok[entryBody]("The file."), refusals: []int{409}},

	"POST /v1/sandboxes/:id/ptys":     {tag: "terminals", summary: "Open a terminal", body: of[terminalRequest](), answers: ok[terminalBody]("The terminal."), refusals: []int{409}},
	"GET /v1/sandboxes/:id/ptys":      {tag: "terminals", summary: "List terminals", answers: ok[[]terminalBody]("A bare array."), refusals: []int{409}},
	"GET /v1/sandboxes/:id/ptys/:pty": {tag: "terminals", summary: "Describe a terminal", answers: ok[terminalBody]("The terminal."), refusals: []int{409}},
	"PATCH /v1/sandboxes/:id/ptys/:pty": {
		tag: "terminals", summary: "Rename a terminal", about: "Everybody who looks at it sees the new name at once.",
		body: of[nameRequest](), answers: ok[terminalBody]("The terminal."), refusals: []int{409},
	},
	"DELETE /v1/sandboxes/:id/ptys/:pty": {tag: "terminals", summary: "Close a terminal", answers: ok[doneBody]("It is closed."), refusals: []int{409}},
	"POST /v1/sandboxes/:id/ptys/:pty/ticket": {
		tag: "terminals", summary: "Get a ticket to attach with", answers: ok[ticketBody]("The ticket."), refusals: []int{409, 429},
		about: "For where a websocket can bear no header: given as its ticket parameter, it opens this terminal as this key, once, within 30 s.",
	},
	"GET " + socketPath: {
		tag: "terminals", summary: "Attach to a terminal", refusals: []int{400, 426},
		about: "A websocket with the subprotocol sandgate.term.v1. A wrong Host or Origin is a 403; every other refusal is a close code after the upgrade. Typing needs sandboxes:run.",
		query: []param{
			{name: "since", about: "An offset from which output goes on; a snapshot of the screen comes first unless given.", schema: huma.Schema{Type: "integer", Minimum: bound(-1)}},
			{name: "ticket", about: "Instead of a key: one from …/ticket.", schema: huma.Schema{Type: "string", Pattern: "^tk[a-z0-9]{26}$"}},
		},
		answers: []reply{{status: http.StatusSwitchingProtocols, about: "The websocket is open."}},
	},

	"GET /v1/approvals": {
		tag: "approvals", summary: "List requests for approval", about: "Pending ones oldest first, others newest first.",
		query: []param{
			{name: "status", schema: oneOf("pending", "approved", "denied", "expired", "cancelled", "used", "void")},
			{name: "sandbox_id", schema: huma.Schema{Type: "string", Pattern: `^(sb[a-z0-9]{20})?$`}},
			{name: "limit", schema: whole(1, 200, 50)},
			{name: "cursor", about: "From the page before.", schema: huma.Schema{Type: "string", Pattern: `^(ap[a-z0-9]{20})?$`}},
		},
		answers: ok[approvalsBody]("A page of them."), refusals: []int{422},
	},
	"GET /v1/approvals/:approval": {tag: "approvals", summary: "Read a request for approval", answers: ok[approvalRecordBody]("The request.")},
	"GET /v1/approvals/:approval/contents/:name": {
		tag: "approvals", summary: "Read a content of a request", about: "What would be written, what it replaces, standard input, a script. Secrets of the sandbox are masked.",
		answers: []reply{{status: http.StatusOK, about: "The bytes.", media: octets, headers: []string{"Content-Disposition"}}},
	},
	"POST /v1/approvals/:approval/approve": {
		tag: "approvals", summary: "Approve a request", about: "Exactly what the digest stands for, for one time. Never one's own, and by key only where the key belongs to a person.",
		body: of[approveRequest](), answers: ok[approvalRecordBody]("The request as it is now."), refusals: []int{409},
	},
	"POST /v1/approvals/:approval/deny": {
		tag: "approvals", summary: "Deny a request", body: of[denyRequest](), answers: ok[approvalRecordBody]("The request as it is now."), refusals: []int{409},
	},
	"POST /v1/approvals/:approval/dry-run": {
		tag: "approvals", summary: "Try a command in a copy",
		about:   "Copies the sandbox, cuts the copy's network, runs the command there for at most a minute, and keeps with the request what it did. The copy is thrown away.",
		answers: ok[approvalRecordBody]("The request, with its effect."), refusals: []int{409, 503},
	},
	"POST /v1/approvals/:approval/cancel": {tag: "approvals", summary: "Take one's own request back", answers: ok[approvalRecordBody]("The request as it is now."), refusals: []int{409}},
	"GET /v1/policy":                      {tag: "approvals", summary: "Read the workspace's policy", answers: ok[policyBody]("The policy.")},
	"PUT /v1/policy": {
		tag: "approvals", summary: "Replace the workspace's policy", about: "What is absent is allow. Requests that wait become void where what holds for them changes.",
		body: of[approvalRequest](), answers: ok[policyBody]("The policy."),
	},
	"GET /v1/admin/system-keys/:key/policy": {tag: "approvals", summary: "Read a key's policy", answers: ok[policyBody]("The policy.")},
	"PUT /v1/admin/system-keys/:key/policy": {tag: "approvals", summary: "Replace a key's policy", about: "The strictest of workspace, key and sandbox counts.", body: of[approvalRequest](), answers: ok[policyBody]("The policy.")},

	"GET /v1/admin/groups":                  {tag: "admin", summary: "List workspaces", about: "The one that the key is of.", answers: ok[[]groupBody]("A bare array.")},
	"POST /v1/admin/groups":                 {tag: "admin", summary: "Create a workspace", about: "Refused to every key: a person who administers the installation makes workspaces.", body: of[groupRequest](), answers: ok[groupBody]("The workspace.")},
	"DELETE /v1/admin/groups/:group":        {tag: "admin", summary: "Delete a workspace", about: "Refused to every key.", answers: ok[doneBody]("It is gone.")},
	"POST /v1/admin/groups/:group/api-keys": {tag: "admin", summary: "Create a key in a workspace", about: "Without permissions it may what the asking key may, less keys:manage and approvals:decide.", body: of[keyRequest](), answers: ok[adminKeyBody]("The key, with its secret."), refusals: []int{409}},
	"GET /v1/admin/system-keys":             {tag: "admin", summary: "List keys", about: "All of the workspace, revoked ones too.", answers: ok[[]adminKeyBody]("A bare array.")},
	"POST /v1/admin/system-keys":            {tag: "admin", summary: "Create a key", about: "A service account of at most the permissions of the asking key.", body: of[keyRequest](), answers: ok[adminKeyBody]("The key, with its secret."), refusals: []int{409}},
	"DELETE /v1/admin/system-keys/:key":     {tag: "admin", summary: "Revoke a key", about: "At once; what it has open ends.", answers: ok[doneBody]("It is revoked.")},
	"GET /v1/admin/users":                   {tag: "admin", summary: "List members", answers: ok[[]userBody]("A bare array.")},
	"GET /v1/admin/roles":                   {tag: "admin", summary: "List roles", about: "They are fixed.", answers: ok[[]roleBody]("A bare array.")},
	"POST /v1/admin/roles":                  {tag: "admin", summary: "Create a role", about: "Refused to every key: the roles are fixed.", body: of[roleRequest](), answers: ok[roleBody]("The role.")},
	"DELETE /v1/admin/roles/:role":          {tag: "admin", summary: "Delete a role", about: "Refused to every key: the roles are fixed.", answers: ok[doneBody]("It is gone.")},
}

// pathParams describes what stands in a path.
var pathParams = map[string]param{
	"id":        {about: "Of a sandbox.", schema: huma.Schema{Type: "string", Pattern: "^sb[a-z0-9]{20}$"}},
	"cmd":       {about: "Of a command.", schema: huma.Schema{Type: "string", Pattern: "^cmd[a-z0-9]{20}$"}},
	"pty":       {about: "Of a terminal.", schema: huma.Schema{Type: "string", Pattern: "^pty[a-z0-9]{20}$"}},
	"snapshot":  {about: "Of a snapshot.", schema: huma.Schema{Type: "string", Pattern: "^snap[a-z0-9]{20}$"}},
	"recording": {about: "Of a recording.", schema: huma.Schema{Type: "string", Pattern: "^rec[a-z0-9]{20}$"}},
	"approval":  {about: "Of a request for approval.", schema: huma.Schema{Type: "string", Pattern: "^ap[a-z0-9]{20}$"}},
	"name":      {about: "Of a content.", schema: huma.Schema{Type: "string", MinLength: length(1)}},
	"group":     {about: "Of a workspace.", schema: huma.Schema{Type: "string", MinLength: length(1)}},
	"key":       {about: "Of a key.", schema: huma.Schema{Type: "string", MinLength: length(1)}},
	"role":      {about: "The name of a role.", schema: huma.Schema{Type: "string", MinLength: length(1)}},
}
