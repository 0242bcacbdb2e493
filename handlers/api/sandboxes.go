package api

import (
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"sandgate/internal/workspace"
	"sandgate/sandbox"
)

// Bounds of what a caller may write about a sandbox.
const (
	maxLabel    = 200 // characters
	maxMetadata = 32  // entries
	maxUser     = 65  // bytes: a user and a group
)

type sandboxBody struct {
	ID           sandbox.ID        `json:"id"`
	Status       sandbox.Status    `json:"status"`
	Reason       *string           `json:"reason"`
	CreatedAt    string            `json:"created_at"`
	LastActivity string            `json:"last_activity"`
	Label        *string           `json:"label"`
	Persistent   bool              `json:"persistent"`
	Image        string            `json:"image"`
	Parent       *string           `json:"parent" doc:"What it was started from: the id of a snapshot, or of the sandbox that it is a fork of; null is the image alone."`
	Owner        ownerBody         `json:"owner"`
	ExpiresAt    *string           `json:"expires_at"`
	Idle         idleBody          `json:"idle"`
	Resources    sandbox.Resources `json:"resources"`
	Network      networkBody       `json:"network"`
	Approval     policyBody        `json:"approval" doc:"What the sandbox asks approval for, beside workspace and key."`
	Waiting      int               `json:"approvals_waiting" doc:"Requests that wait for a decision."`
	Metadata     map[string]string `json:"metadata"`
}

type ownerBody struct {
	Kind string `json:"kind"` // "person" or "key"
	Name string `json:"name"`
}

type idleBody struct {
	Since         string   `json:"since" doc:"When it was last used."`
	AliveBecause  []string `json:"alive_because" doc:"What keeps it alive now: command, transfer, call, terminal, cpu, keepalive, approval. Empty: its time runs."`
	Action        string   `json:"action" enum:"none,kill,suspend" doc:"What happens when it stays unused: kill, or suspend for a persistent one; none where it does not run."`
	At            *string  `json:"at" doc:"When that happens if nothing uses it until then; null while something keeps it alive."`
	Timeout       int64    `json:"idle_timeout" doc:"Seconds it may be unused."`
	MaxLifetime   *int64   `json:"max_lifetime" doc:"Seconds it may live; null: no end."`
	KeepWhileBusy bool     `json:"keep_while_busy" doc:"Use of the processor inside, a tenth of a core or more, keeps it alive."`
}

func toIdle(s workspace.Sandbox) idleBody {
	b := idleBody{
		Since: stamp(s.Idle.Since), AliveBecause: s.Idle.Because, Action: s.Idle.Action, At: stampOrNull(s.Idle.At),
		Timeout: int64(s.Life.IdleTimeout.Seconds()), KeepWhileBusy: s.Life.KeepWhileBusy,
	}
	if b.AliveBecause == nil {
		b.AliveBecause = []string{}
	}
	if s.Life.MaxLifetime > 0 {
		n := int64(s.Life.MaxLifetime.Seconds())
		b.MaxLifetime = &n
	}
	return b
}

type networkBody struct {
	Mode  string   `json:"mode"`
	Allow []string `json:"allow"`
}

func toSandbox(s workspace.Sandbox) sandboxBody {
	b := sandboxBody{
		ID: s.ID, Status: s.Status, Reason: orNull(s.Reason), CreatedAt: stamp(s.CreatedAt), LastActivity: stamp(s.LastActivity),
		Label: orNull(s.Label), Persistent: s.Persistent, Image: s.Image, Parent: orNull(s.Parent), Owner: ownerBody{Kind: s.OwnerKind, Name: s.OwnerName},
		ExpiresAt: stampOrNull(s.ExpiresAt), Idle: toIdle(s),
		Resources: s.Resources,
		Network:   toNetwork(s.Network),
		Approval:  toPolicy(s.Approval, false),
		Waiting:   s.Waiting,
		Metadata:  s.Metadata,
	}
	if b.Metadata == nil {
		b.Metadata = map[string]string{}
	}
	return b
}

// createSandbox: POST /v1/sandboxes.
func (s *server) createSandbox(c echo.Context) error {
	o, err := readObject(c, smallBody)
	if err != nil {
		return err
	}
	opts := workspace.CreateOptions{
		Label:       o.line("label", maxLabel),
		Persistent:  o.flag("persistent", false),
		Image:       o.line("image", 128),
		Cwd:         string(o.path("cwd", false)),
		User:        o.word("user", maxUser),
		Env:         o.environment("env"),
		Secrets:     o.environment("secrets"),
		Metadata:    o.texts("metadata", maxMetadata, 256, 1024),
		Resources:   o.resources("resources"),
		IdleTimeout: o.seconds("idle_timeout"), MaxLifetime: o.seconds("max_lifetime"), IgnoreBusy: !o.flag("keep_while_busy", true),
	}
	opts.Network = o.network("network")
	opts.SnapshotID = o.snapshot("snapshot_id")
	opts.PlatformKey = o.flag("platform_key", false)
	if p := o.approvalOf("approval"); p != nil {
		opts.Approval = *p
	}
	opts.IdempotencyKey = idempotencyKey(c, o)
	if err := o.check(); err != nil {
		return err
	}
	sb, err := s.svc.CreateSandbox(c.Request().Context(), actor(c), opts)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, toSandbox(sb))
}

// snapshot gives a snapshot's id; absent or null: "".
func (o *object) snapshot(name string) string {
	id := o.word(name, 32)
	if id != "" && !sandbox.SaveID(id).Snapshot() || id == "" && o.has(name) {
		o.fail(name, "is no id of a snapshot")
	}
	return id
}

// resources gives what is asked for; what is absent stays zero and takes the default. Ceilings are the service's.
func (o *object) resources(name string) sandbox.Resources {
	n := o.nested(name)
	if n == nil {
		return sandbox.Resources{}
	}
	const most = 1 << 24 // MiB or tasks: far above every machine, far below an overflow
	return sandbox.Resources{
		CPU:      n.number("cpu", 4096),
		MemoryMB: n.whole("memory_mb", 1, most, 0),
		DiskMB:   n.whole("disk_mb", 1, most, 0),
		PIDs:     n.whole("pids", 1, most, 0),
	}
}

// idempotencyKey reads the header; a second create with the same key gives the sandbox of the first.
func idempotencyKey(c echo.Context, o *object) string {
	const header = "Idempotency-Key"
	key := c.Request().Header.Get(header)
	if len(key) > 255 || strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' }) {
		o.fail(header, "must be at most 255 printable ASCII characters")
	}
	return key
}

// listSandboxes: GET /v1/sandboxes. A bare array, as the official client reads it.
func (s *server) listSandboxes(c echo.Context) error {
	list, err := s.svc.Sandboxes(c.Request().Context(), actor(c))
	if err != nil {
		return err
	}
	out := make([]sandboxBody, 0, len(list))
	for _, sb := range list {
		out = append(out, toSandbox(sb))
	}
	return writeJSON(c, http.StatusOK, out)
}

// getSandbox: GET /v1/sandboxes/{id}.
func (s *server) getSandbox(c echo.Context) error {
	sb, err := s.svc.Sandbox(c.Request().Context(), actor(c), c.Param("id"))
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, toSandbox(sb))
}

// deleteSandbox: DELETE /v1/sandboxes/{id}. One that is gone already is a success: the client's with block deletes again.
func (s *server) deleteSandbox(c echo.Context) error {
	if err := s.svc.KillSandbox(c.Request().Context(), actor(c), c.Param("id")); err != nil {
		return err
	}
	return done(c)
}

// stamp writes a time as RFC 3339 in UTC, to the microsecond.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z") }

// maxSeconds bounds idle_timeout, max_lifetime and what keeps alive: 30 days.
const maxSeconds = 30 * 24 * 3600

// seconds gives a time of 1 s at least; absent or null: 0.
func (o *object) seconds(name string) time.Duration {
	return time.Duration(o.whole(name, 1, maxSeconds, 0)) * time.Second
}

// keepSandbox: POST /v1/sandboxes/{id}/keepalive.
func (s *server) keepSandbox(c echo.Context) error {
	o, err := readObject(c, smallBody)
	if err != nil {
		return err
	}
	d := o.seconds("timeout")
	if err := o.check(); err != nil {
		return err
	}
	sb, err := s.svc.KeepAlive(c.Request().Context(), actor(c), c.Param("id"), d)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, toSandbox(sb))
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
