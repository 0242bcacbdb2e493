package api

// What callers send. The bodies are taken apart field by field (see object), so that one answer names everything that is
// wrong; these types are how the document tells them. Tests hold both together: every field here is one that the server
// knows and the other way round, and what goes beyond a bound here is refused there. Optional fields may be null.

// createRequest is the body of POST /v1/sandboxes.
type createRequest struct {
	Label         string            `json:"label,omitempty" maxLength:"200" doc:"A name for people, without control characters."`
	Image         string            `json:"image,omitempty" maxLength:"128" doc:"The root filesystem; base unless given."`
	Cwd           string            `json:"cwd,omitempty" pattern:"^/[^\\x00]*$" minLength:"1" maxLength:"4095" doc:"Where commands and terminals start; /work unless given."`
	CwdB64        string            `json:"cwd_b64,omitempty" encoding:"base64" doc:"The same in base64, for paths that are not UTF-8."`
	User          string            `json:"user,omitempty" maxLength:"65" doc:"Who they run as; root unless given."`
	Env           map[string]string `json:"env,omitempty" maxProperties:"128" doc:"Environment variables of every command and terminal."`
	Resources     *resourcesRequest `json:"resources,omitempty"`
	Metadata      map[string]string `json:"metadata,omitempty" maxProperties:"32" doc:"Pairs of your own; keys up to 64 characters, values up to 256."`
	Persistent    bool              `json:"persistent,omitempty" doc:"It can be suspended: kept on disk, and woken by the next call."`
	PlatformKey   bool              `json:"platform_key,omitempty" doc:"NOXUS_API_KEY and NOXUS_BACKEND_URL inside: a key of the caller's rights, for the sandbox's life."`
	KeepWhileBusy *bool             `json:"keep_while_busy,omitempty" nullable:"true" doc:"Use of the processor inside, a tenth of a core or more, keeps it alive; true unless given."`
	Secrets       map[string]string `json:"secrets,omitempty" maxProperties:"128" doc:"Environment variables too, that no answer shows again and that are encrypted at rest. A value has at least 4 bytes."`
	IdleTimeout   *int              `json:"idle_timeout,omitempty" nullable:"true" minimum:"1" maximum:"2592000" doc:"Seconds it may be unused before it is ended, or suspended where it is persistent; 900 unless given."`
	MaxLifetime   *int              `json:"max_lifetime,omitempty" nullable:"true" minimum:"1" maximum:"2592000" doc:"Seconds it may live, used or not; 86400 unless given, without end for a persistent one."`
	SnapshotID    *string           `json:"snapshot_id,omitempty" nullable:"true" pattern:"^snap[a-z0-9]{20}$" doc:"To start from, with all that runs in it; image, resources.disk_mb, cwd, user, env, secrets, resources and network are the snapshot's unless given, the first two always."`
	Network       *networkRequest   `json:"network,omitempty"`
	Approval      *approvalRequest  `json:"approval,omitempty"`
}

type resourcesRequest struct {
	CPU      *float64 `json:"cpu,omitempty" nullable:"true" minimum:"0.1" maximum:"4096" doc:"Cores, at most the host's."`
	MemoryMB *int     `json:"memory_mb,omitempty" nullable:"true" minimum:"64" maximum:"65536" doc:"MiB."`
	DiskMB   *int     `json:"disk_mb,omitempty" nullable:"true" minimum:"16" maximum:"262144" doc:"MiB."`
	PIDs     *int     `json:"pids,omitempty" nullable:"true" minimum:"128" maximum:"32768"`
}

// limitsRequest is the body of PUT /v1/limits. What is absent or null is not set any more: the installation's ceiling holds.
type limitsRequest struct {
	CPU       *float64 `json:"cpu,omitempty" nullable:"true" minimum:"0.1" maximum:"4096" doc:"Cores of one sandbox."`
	MemoryMB  *int     `json:"memory_mb,omitempty" nullable:"true" minimum:"64" maximum:"65536" doc:"MiB of one sandbox."`
	DiskMB    *int     `json:"disk_mb,omitempty" nullable:"true" minimum:"16" maximum:"262144" doc:"MiB of one sandbox."`
	PIDs      *int     `json:"pids,omitempty" nullable:"true" minimum:"128" maximum:"32768" doc:"Of one sandbox."`
	Sandboxes *int     `json:"sandboxes,omitempty" nullable:"true" minimum:"1" maximum:"100000" doc:"That may be alive at a time."`
}

// recordingPolicyRequest is the body of PUT /v1/recording-policy. What is absent or null becomes the default.
type recordingPolicyRequest struct {
	Mode     string `json:"mode,omitempty" enum:"off,on,always" doc:"off unless given. always: a terminal that cannot be recorded does not open."`
	Input    bool   `json:"input,omitempty" doc:"Record what is typed, too: passwords are in it."`
	MaxMB    *int   `json:"max_mb,omitempty" nullable:"true" minimum:"1" maximum:"1024" doc:"MiB of one recording; 64 unless given."`
	TotalMB  *int   `json:"total_mb,omitempty" nullable:"true" minimum:"1" maximum:"1048576" doc:"MiB of all, max_mb at least; 2048 unless given."`
	KeepDays *int   `json:"keep_days,omitempty" nullable:"true" minimum:"1" maximum:"3650" doc:"90 unless given."`
}

type networkRequest struct {
	Mode  string   `json:"mode,omitempty" enum:"none,public,allow-list" doc:"public unless given: every public address, and nothing of the host's own networks."`
	Allow []string `json:"allow,omitempty" maxItems:"64" doc:"For allow-list: names (example.org, *.example.org) and IPv4 networks (1.2.3.0/24), each with an optional port (:443)."`
}

// approvalRequest is a policy, of a sandbox or whole.
type approvalRequest struct {
	Command  string        `json:"command,omitempty" enum:"allow,ask,deny" doc:"allow unless given, here and below."`
	Write    string        `json:"write,omitempty" enum:"allow,ask,deny"`
	Terminal string        `json:"terminal,omitempty" enum:"allow,ask,deny"`
	Network  string        `json:"network,omitempty" enum:"allow,ask,deny"`
	Port     string        `json:"port,omitempty" enum:"allow,ask,deny"`
	Rules    []ruleRequest `json:"rules,omitempty" maxItems:"100" doc:"The first that matches counts before the answers above."`
}

type ruleRequest struct {
	Kind      string `json:"kind" enum:"command,write,terminal,network,port"`
	Answer    string `json:"answer" enum:"allow,ask,deny"`
	Command   string `json:"command,omitempty" maxLength:"512" doc:"Words: a program's name or path, then leading arguments; globs."`
	Path      string `json:"path,omitempty" maxLength:"512" doc:"Of a write: a glob over the path as it is resolved inside; ** crosses slashes."`
	Requester string `json:"requester,omitempty" maxLength:"512" doc:"E-mail of a person or of a key's owner, or a key's name; a glob."`
	Image     string `json:"image,omitempty" maxLength:"512"`
}

// approveRequest is the body of POST /v1/approvals/{id}/approve.
type approveRequest struct {
	Digest string `json:"digest,omitempty" maxLength:"64" doc:"Of what was looked at: another one is refused."`
}

// denyRequest is the body of POST /v1/approvals/{id}/deny.
type denyRequest struct {
	Reason string `json:"reason,omitempty" maxLength:"1000" doc:"Reaches the requester."`
}

// snapshotRequest is the body of POST /v1/sandboxes/{id}/snapshots.
type snapshotRequest struct {
	Name string `json:"name" minLength:"1" maxLength:"100" doc:"A name for people, without control characters. Several may have the same."`
}

// patchRequest is the body of PATCH /v1/sandboxes/{id}. One of them must be there; null empties label and metadata,
// and leaves the others.
type patchRequest struct {
	Label     string            `json:"label,omitempty" maxLength:"200" doc:"A name for people, without control characters. It stays unless given."`
	Metadata  map[string]string `json:"metadata,omitempty" maxProperties:"32" doc:"Replaces all of it. It stays unless given."`
	Resources *resourcesRequest `json:"resources,omitempty" doc:"What is not named stays. disk_mb cannot be changed. Needs sandboxes:manage."`
	Network   *networkChange    `json:"network,omitempty"`
	Approval  *approvalRequest  `json:"approval,omitempty" doc:"Replaces what the sandbox asks for; only stricter."`

	IdleTimeout   *int  `json:"idle_timeout,omitempty" nullable:"true" minimum:"1" maximum:"2592000" doc:"Seconds it may be unused; its idle time begins anew."`
	MaxLifetime   *int  `json:"max_lifetime,omitempty" nullable:"true" minimum:"1" maximum:"2592000" doc:"Seconds it may live, counted from its creation."`
	KeepWhileBusy *bool `json:"keep_while_busy,omitempty" nullable:"true" doc:"Use of the processor inside keeps it alive."`
}

// networkChange replaces a sandbox's network.
type networkChange struct {
	Mode  string   `json:"mode" enum:"none,public,allow-list" doc:"In force at once. To reach more than before needs sandboxes:manage; less, sandboxes:run and one's own sandbox."`
	Allow []string `json:"allow,omitempty" maxItems:"64" doc:"As when it is created; empty unless given."`
}

// keepRequest is the body of POST …/keepalive.
type keepRequest struct {
	Timeout *int `json:"timeout,omitempty" nullable:"true" minimum:"1" maximum:"2592000" doc:"Seconds it lives at least from now on, unless its life is over before; its idle_timeout unless given."`
}

// commandRequest is the body of POST …/commands.
type commandRequest struct {
	Command    string            `json:"command" minLength:"1" maxLength:"131071" pattern:"\\S" doc:"Given to bash -c; at most 131071 bytes, without NUL."`
	Timeout    *int              `json:"timeout,omitempty" nullable:"true" minimum:"1" maximum:"86400" doc:"Seconds; 60 unless given, none for background commands."`
	Cwd        string            `json:"cwd,omitempty" pattern:"^/[^\\x00]*$" minLength:"1" maxLength:"4095"`
	CwdB64     string            `json:"cwd_b64,omitempty" encoding:"base64"`
	Env        map[string]string `json:"env,omitempty" maxProperties:"128"`
	User       string            `json:"user,omitempty" maxLength:"65"`
	Stdin      string            `json:"stdin,omitempty" maxLength:"16777216" doc:"Text; at most 16 MiB."`
	Background bool              `json:"background,omitempty" doc:"Answer at once; the command goes on without its caller."`
	Tag        string            `json:"tag,omitempty" maxLength:"64" doc:"A name for people, without control characters."`
}

// stdinRequest is the body of POST …/stdin.
type stdinRequest struct {
	Data     string `json:"data,omitempty" maxLength:"25165824" doc:"At most 16 MiB of bytes."`
	Encoding string `json:"encoding,omitempty" enum:"utf-8,base64" doc:"How data is written; utf-8 unless given."`
	EOF      bool   `json:"eof,omitempty" doc:"Close standard input afterwards."`
}

// killRequest is the body of POST …/kill.
type killRequest struct {
	Signal string `json:"signal,omitempty" maxLength:"16" doc:"KILL unless given; one of KILL, TERM, INT, HUP, QUIT, USR1, USR2, STOP, CONT, TSTP, WINCH, with or without SIG."`
}

// writeRequest is the body of POST …/files. One of path and path_b64 must be there.
type writeRequest struct {
	Path     string `json:"path,omitempty" pattern:"^/[^\\x00]*$" minLength:"1" maxLength:"4095"`
	PathB64  string `json:"path_b64,omitempty" encoding:"base64"`
	Content  string `json:"content" maxLength:"25165824" doc:"At most 16 MiB of bytes."`
	Encoding string `json:"encoding,omitempty" enum:"utf-8,base64" doc:"How content is written; utf-8 unless given."`
}

// pathRequest is the body of POST …/mkdir. One of the two must be there.
type pathRequest struct {
	Path    string `json:"path,omitempty" pattern:"^/[^\\x00]*$" minLength:"1" maxLength:"4095"`
	PathB64 string `json:"path_b64,omitempty" encoding:"base64"`
}

// moveRequest is the body of POST …/move and …/copy. Each path must be there in one of its forms.
type moveRequest struct {
	Source         string `json:"source,omitempty" pattern:"^/[^\\x00]*$" minLength:"1" maxLength:"4095"`
	SourceB64      string `json:"source_b64,omitempty" encoding:"base64"`
	Destination    string `json:"destination,omitempty" pattern:"^/[^\\x00]*$" minLength:"1" maxLength:"4095"`
	DestinationB64 string `json:"destination_b64,omitempty" encoding:"base64"`
}

// chmodRequest is the body of POST …/chmod. One of the paths must be there.
type chmodRequest struct {
	Path    string `json:"path,omitempty" pattern:"^/[^\\x00]*$" minLength:"1" maxLength:"4095"`
	PathB64 string `json:"path_b64,omitempty" encoding:"base64"`
	Mode    string `json:"mode" pattern:"^[0-7]{3,4}$" minLength:"3" maxLength:"4" doc:"Octal digits: 0644."`
}

// terminalRequest is the body of POST …/ptys.
type terminalRequest struct {
	Cols   *int              `json:"cols,omitempty" nullable:"true" minimum:"2" maximum:"500" doc:"80 unless given."`
	Rows   *int              `json:"rows,omitempty" nullable:"true" minimum:"1" maximum:"300" doc:"24 unless given."`
	Cwd    string            `json:"cwd,omitempty" pattern:"^/[^\\x00]*$" minLength:"1" maxLength:"4095"`
	CwdB64 string            `json:"cwd_b64,omitempty" encoding:"base64"`
	User   string            `json:"user,omitempty" maxLength:"65"`
	Env    map[string]string `json:"env,omitempty" maxProperties:"128"`
}

// nameRequest is the body of PATCH …/ptys/{pty}.
type nameRequest struct {
	Name string `json:"name" minLength:"1" maxLength:"64" doc:"One line, not blank, without control characters."`
}

// groupRequest is the body of POST /v1/admin/groups.
type groupRequest struct {
	Name        string `json:"name" minLength:"1" maxLength:"60"`
	Description string `json:"description,omitempty" maxLength:"1000"`
}

// keyRequest is the body of the calls that make a key.
type keyRequest struct {
	Name        string   `json:"name" minLength:"1" maxLength:"80" doc:"Without control characters."`
	Permissions []string `json:"permissions,omitempty" doc:"At least one; all that the asking key has where the call lets it be left out."`
	TenantAdmin bool     `json:"tenant_admin,omitempty" doc:"Only false: what a key may administer is in its permissions."`
	ExpiresDays *int     `json:"expires_days,omitempty" nullable:"true" minimum:"-1" maximum:"3650" doc:"90 unless given; -1 is never."`
}

// roleRequest is the body of POST /v1/admin/roles.
type roleRequest struct {
	Name        string          `json:"name" minLength:"1" maxLength:"80"`
	Permissions map[string]bool `json:"permissions,omitempty"`
	Description string          `json:"description,omitempty" maxLength:"1000"`
}
