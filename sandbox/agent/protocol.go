// Package agent owns what host and agent say to each other, and the host's client for it. It must never trust an
// answer: every length is bounded, every name and path is hostile text, every call has a time limit.
package agent

import (
	"bytes"
	"path"
	"time"

	"sandgate/internal/fault"
)

// The agent listens inside the sandbox on two unix sockets, both HTTP/1.1: MuxSocket behind yamux (many small calls over
// one bridge), BulkSocket plain (one bridge per bulk transfer, so that a large file does not wait behind yamux windows).
const (
	GuestPath  = "/.sandgate/agent"   // where the agent's binary is mounted, read-only
	MuxSocket  = "/.sandgate-run/mux" // in a small tmpfs that only root inside may enter
	BulkSocket = "/.sandgate-run/bulk"
	Workdir    = "/work"
)

// Bounds of the protocol. Both sides hold to them; the host enforces them on what it reads.
const (
	MaxOutput      = 16 << 20 // bytes of stdout, and of stderr, of one command; then truncated
	MaxStdin       = 16 << 20 // bytes of stdin given with a command
	MaxFrame       = 64 << 10 // payload bytes of one stream frame
	MaxPath        = 4096     // bytes of a path; PATH_MAX counts the NUL, so 4095 usable
	MaxInput       = 1 << 20  // bytes of one terminal input message
	DefaultRing    = 4 << 20  // bytes of output a terminal keeps
	MaxCols        = 500
	MaxRows        = 300
	DefaultTimeout = 60 * time.Second
	MaxTimeout     = 24 * time.Hour
	DrainAfterExit = 300 * time.Millisecond // main process gone, children hold the pipe: answer after this
	StreamWindow   = 1 << 20                // yamux window of one stream, each way: what a stalled reader can make its side hold
)

// Hello is the agent's answer to GET /v1/hello.
type Hello struct {
	Version string `json:"version"`
	BootID  string `json:"boot_id"` // random per start of the agent: tells a restored agent from a new one
}

// CommandSpec starts a command: POST /v1/commands. The id is chosen by the host, so that a lost answer can be asked again.
type CommandSpec struct {
	ID         string            `json:"id"`
	Command    string            `json:"command"` // for bash -c, sh -c without bash
	Cwd        string            `json:"cwd,omitempty"`
	User       string            `json:"user,omitempty"`
	Env        map[string]string `json:"env,omitempty"` // over the login environment
	Stdin      []byte            `json:"stdin,omitempty"`
	KeepStdin  bool              `json:"keep_stdin,omitempty"` // leave stdin open for POST …/stdin
	TimeoutMS  int64             `json:"timeout_ms"`           // 0: DefaultTimeout for a foreground one, none for a background one
	Background bool              `json:"background,omitempty"`
	Tag        string            `json:"tag,omitempty"`
	Last       bool              `json:"last,omitempty"`  // no other will follow: nothing is made to stand by for one
	Files      []FileSum         `json:"files,omitempty"` // what has to be there right before it starts; else fault.Conflict, and nothing starts
}

// FileSum is a regular file by its content.
type FileSum struct {
	Path   []byte `json:"path_b64"` // absolute; links are followed
	Real   []byte `json:"real_b64"` // where that leads
	SHA256 string `json:"sha256"`   // hex
	Size   int64  `json:"size"`     // bytes
}

// Bounds of what is compared before a command starts.
const (
	MaxFileSums    = 16
	MaxFileSumSize = 16 << 20 // bytes of one
)

// Command is what the agent says of one: GET /v1/commands/{id}.
type Command struct {
	ID         string     `json:"id"`
	Command    string     `json:"command"`
	Status     string     `json:"status"` // "running" or "exited"
	Background bool       `json:"background"`
	Tag        string     `json:"tag,omitempty"`
	StartedAt  time.Time  `json:"started_at"`
	EndedAt    *time.Time `json:"ended_at,omitempty"`
	Exit       *Exit      `json:"exit,omitempty"`
}

// Exit is how a command or terminal ended, as the contract counts: the code itself, 128+n for signal n, 124 timed out,
// 127 not found, 126 not executable.
type Exit struct {
	Code      int     `json:"exit_code"`
	Signal    string  `json:"signal,omitempty"` // "KILL", …; "" when it exited
	TimedOut  bool    `json:"timed_out"`
	Truncated bool    `json:"truncated"` // output beyond MaxOutput was dropped
	Duration  float64 `json:"duration"`  // seconds
}

// FrameType is the first byte of a frame of a command's stream: type, 4 bytes big-endian length, payload.
type FrameType byte

// The frames of GET /v1/commands/{id}/stream and of the answer to POST /v1/commands?stream=1.
const (
	FrameInit   FrameType = 'i' // JSON {"id"}
	FrameStdout FrameType = 'o'
	FrameStderr FrameType = 'e'
	FrameExit   FrameType = 'x' // JSON Exit; the last frame
	FrameError  FrameType = '!' // JSON Failure; the last frame
	FramePing   FrameType = 'p' // empty, every 10 s of silence
	FrameEnd    FrameType = '.' // GET /v1/commands/{id}/logs: all that is kept has been sent; the last frame
)

// Failure is the agent's JSON body for a refused call, with an HTTP status of 4xx or 5xx. Code is a fault kind's word.
type Failure struct {
	Code   string            `json:"code"`
	Detail string            `json:"detail"`
	Fields map[string]string `json:"fields,omitempty"`
	Reason string            `json:"reason,omitempty"` // e.g. "disk_full"
}

// MaxPTYName is the longest name of a terminal, in bytes.
const MaxPTYName = 200

// PTYSpec opens a terminal: POST /v1/ptys. The program is the user's login shell.
type PTYSpec struct {
	ID   string            `json:"id"`
	Name string            `json:"name,omitempty"` // what people call it, at most MaxPTYName bytes
	Cols int               `json:"cols"`
	Rows int               `json:"rows"`
	Cwd  string            `json:"cwd,omitempty"`
	User string            `json:"user,omitempty"`
	Env  map[string]string `json:"env,omitempty"`
}

// PTYName gives a terminal another name: PATCH /v1/ptys/{id}. It is text of 1 to MaxPTYName bytes.
type PTYName struct {
	Name string `json:"name"`
}

// PTY is what the agent says of a terminal. Oldest and Next are absolute byte offsets of its ring.
type PTY struct {
	ID        string    `json:"id"`
	Name      string    `json:"name,omitempty"`
	Status    string    `json:"status"`        // "running" or "exited"
	Cwd       []byte    `json:"cwd,omitempty"` // where its shell is now; empty when it can't be told
	Cols      int       `json:"cols"`
	Rows      int       `json:"rows"`
	Oldest    int64     `json:"oldest"`
	Next      int64     `json:"next"`
	CreatedAt time.Time `json:"created_at"`
	Exit      *Exit     `json:"exit,omitempty"`
}

// A terminal is attached by POST /v1/ptys/{id}/attach?since=OFFSET with "Connection: Upgrade, Upgrade: sandgate-pty"; after
// 101 both sides send frames: type, 4 bytes big-endian length, payload.
const (
	// host to agent
	PTYInput  FrameType = 'i' // raw bytes, up to MaxInput
	PTYResize FrameType = 'r' // JSON {"cols","rows"}
	PTYSignal FrameType = 's' // JSON {"name"}: INT, QUIT, TSTP, TERM, KILL, HUP, CONT to the foreground process group; not queued behind input
	// agent to host
	PTYOutput FrameType = 'o' // 8 bytes big-endian absolute offset of the first byte, then output
	PTYSize   FrameType = 'z' // JSON {"cols","rows"}, ordered with the output
	PTYExit   FrameType = 'x' // JSON Exit, after the last output; the last frame
	// PTYRefused says that an input message was dropped whole: MaxInput bytes wait for the program already.
	PTYRefused FrameType = 'q'
)

// PTYUpgrade is the word of the Upgrade header.
const PTYUpgrade = "sandgate-pty"

// FileHeader is the response header of GET /v1/files/raw: FileInfo as JSON, base64url.
const FileHeader = "Sandgate-File"

// NotInline is the response header that comes instead of a body when a file is larger than the request's inline=BYTES.
const NotInline = "Sandgate-Not-Inline"

// FileInfo describes one file. Names are bytes: Name and Path carry the text when it is UTF-8, the _b64 fields always the bytes.
type FileInfo struct {
	NameB64    []byte    `json:"name_b64"`
	PathB64    []byte    `json:"path_b64"`
	Type       string    `json:"type"` // file directory symlink fifo socket char_device block_device
	Size       int64     `json:"size"`
	Mode       uint32    `json:"mode"` // permission bits with setuid, setgid and sticky: 0o7777
	UID        int       `json:"uid"`
	GID        int       `json:"gid"`
	Owner      string    `json:"owner"` // the name inside, else the number
	Group      string    `json:"group"`
	ModifiedAt time.Time `json:"modified_at"`
	TargetB64  []byte    `json:"target_b64,omitempty"`  // of a symlink, as written
	TargetType string    `json:"target_type,omitempty"` // type that a symlink leads to; "" when it leads nowhere
	ETag       string    `json:"etag"`                  // strong: inode, ctime in ns, size
	// Replaced is, of a file that was just written, the SHA-256 in hexadecimal of the one that was there before, or one of the
	// words below; "" from an agent that does not tell.
	Replaced string `json:"replaced,omitempty"`
}

// Deleted is what was deleted.
type Deleted struct {
	Was string `json:"was,omitempty"` // of a regular file as FileInfo.Replaced; "": it was none
}

// What stands for the digest of a replaced file where there is none.
const (
	ReplacedNone   = "none"       // nothing was there
	ReplacedLarge  = "large"      // larger than MaxReplaced
	ReplacedClosed = "unreadable" // it could not be read
)

// MaxReplaced is up to which size a replaced file is digested, in bytes: a write must not take much longer for it.
const MaxReplaced = 16 << 20

// Place is where a path really is, with links followed, and what is there: GET /v1/files/place.
type Place struct {
	PathB64 []byte `json:"path_b64"`
	Type    string `json:"type,omitempty"` // as of FileInfo; "": nothing
	Size    int64  `json:"size,omitempty"`
	ETag    string `json:"etag,omitempty"`
}

// Listing is one page of a directory, sorted: directories first, then by name bytes.
type Listing struct {
	Entries []FileInfo `json:"entries"`
	Cursor  string     `json:"cursor"` // "" on the last page
	Total   int        `json:"total"`
}

// CleanPath checks a path from outside and tidies it: absolute, at most MaxPath-1 bytes, no NUL; "." and ".." resolved
// by name. It never looks at a file system. The error is fault.Invalid about the field "path".
func CleanPath(p []byte) ([]byte, error) {
	switch {
	case len(p) == 0:
		return nil, fault.Field("path", "is empty")
	case len(p) >= MaxPath:
		return nil, fault.Field("path", "is longer than %d bytes", MaxPath-1)
	case bytes.IndexByte(p, 0) >= 0:
		return nil, fault.Field("path", "contains a NUL byte")
	case p[0] != '/':
		return nil, fault.Field("path", "is not absolute: it has to start with /")
	}
	return []byte(path.Clean(string(p))), nil
}
