// Package sandbox owns the life of sandboxes: their states, creation with undo, death with its reason, teardown and
// taking up again after a restart. It must never know a person, a permission, HTTP, SQL, or how runsc is spoken to:
// it declares the Runtime and the Records that it needs, and others provide them.
package sandbox

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"regexp"
	"strings"
	"time"
)

// ID names a sandbox: "sb" and 20 of a-z0-9. The length is fixed because runsc matches ids by prefix and glob.
type ID string

var idPattern = regexp.MustCompile(`^sb[a-z0-9]{20}$`)

// Valid reports whether id has the one shape that ids have. Check it before the id gets near an argument list.
func (id ID) Valid() bool { return idPattern.MatchString(string(id)) }

// NewID makes a random id (20 characters of 36: over 100 bits).
func NewID() ID { return ID(RandomID("sb")) }

// RandomID makes prefix plus 20 random characters of a-z0-9; the same shape serves pty, cmd, ap and snap ids.
func RandomID(prefix string) string {
	const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
	out := make([]byte, 0, len(prefix)+20)
	out = append(out, prefix...)
	var buf [32]byte
	for len(out) < len(prefix)+20 {
		_, _ = rand.Read(buf[:]) // never fails since Go 1.24
		for _, b := range buf {
			// 252 = 7*36: larger bytes would favour the first letters.
			if b < 252 && len(out) < len(prefix)+20 {
				out = append(out, alphabet[int(b)%36])
			}
		}
	}
	return string(out)
}

// Status is where a sandbox is in its life. The words are the contract's.
type Status string

// The statuses. A killed or expired sandbox has none: it is gone.
const (
	Creating   Status = "creating"
	Running    Status = "running"
	Suspending Status = "suspending"
	Suspended  Status = "suspended"
	Resuming   Status = "resuming"
	Stopping   Status = "stopping"
	Failed     Status = "failed"
	Gone       Status = "gone" // kept in records only, so that a second DELETE is told from an unknown id
)

// Reasons why a sandbox is failed or stopping; Record.Reason holds one of them or "". One that was resumed from an earlier
// save because the host was restarted, or on its files alone, says so while it runs.
const (
	ReasonOutOfMemory      = "out_of_memory"
	ReasonTooManyProcesses = "too_many_processes"
	ReasonDiskFull         = "disk_full"
	ReasonCrash            = "crash"
	ReasonKilled           = "killed"
	ReasonStartFailed      = "start_failed"
	ReasonHostRestarted    = "host_restarted"
	ReasonSaveLost         = "save_lost"
	ReasonMemoryLost       = "memory_lost"
)

// Resources caps what a sandbox may take of the host.
type Resources struct {
	CPU      float64 `json:"cpu"`       // cores
	MemoryMB int64   `json:"memory_mb"` // MiB, everything: processes, tmpfs, sentry
	DiskMB   int64   `json:"disk_mb"`   // MiB of the writable layer
	PIDs     int64   `json:"pids"`      // host tasks of the sandbox; below 256 even quiet guests die
}

// DefaultResources are the contract's.
var DefaultResources = Resources{CPU: 1, MemoryMB: 1024, DiskMB: 4096, PIDs: 1024}

// Spec is everything a runtime needs to make one sandbox. It is immutable once the sandbox is created.
type Spec struct {
	ID        ID
	Image     string // name of an image, e.g. "base"
	Hostname  string // what `hostname` says inside: made from the label, safe characters only; "": it gets its name later, once
	Cwd       string
	User      string
	Env       map[string]string // given to every command and terminal, not to process 1
	Resources Resources
	Network   Attachment // the zero value: none but a loopback
}

// Death tells how a sandbox ended, read from the host before its traces are removed.
type Death struct {
	Reason string // one of the Reason constants
	Detail string // for the log and the operator: e.g. "memory.oom_control: oom_kill 1"
}

// Usage is a reading of what a sandbox takes right now.
type Usage struct {
	CPUSeconds  float64 // since it was created
	MemoryBytes int64
	PIDs        int64
	DiskBytes   int64 // of the writable layer; -1 when unknown
}

// Journal is called with a step's name before that step changes the host; an error stops the step from being tried.
type Journal func(step string) error

// Runtime makes, reaches and removes sandboxes on one machine. All methods are safe for concurrent use, take only ids
// that are Valid, and answer fault errors where a person can do something about it. Implemented by sandbox/runsc, and
// for unit tests by sandbox/sandboxtest, which also holds the contract test that both pass.
type Runtime interface {
	// Create makes and starts the sandbox; when it fails or ctx ends, every step done so far is undone first.
	Create(ctx context.Context, spec Spec, journal Journal) error
	// Dial opens one bridge to the agent's socket inside: a byte stream that ends when the bridge or sandbox does.
	// bulk false reaches the multiplexed socket (yamux), true the plain HTTP/1.1 one, a bridge of its own for bulk bytes.
	Dial(ctx context.Context, id ID, bulk bool) (io.ReadWriteCloser, error)
	// Wait blocks until the sandbox is dead and says why, or returns ctx's error. It works for adopted sandboxes too.
	Wait(ctx context.Context, id ID) (Death, error)
	// Alive reports whether the sandbox runs. The sentry is judged by /proc (pid and start time), not by runsc's word.
	Alive(ctx context.Context, id ID) (bool, error)
	// Usage reads the cgroup.
	Usage(ctx context.Context, id ID) (Usage, error)
	// Update holds a running sandbox to other limits of CPU, memory and processes, at once; the disk's is ignored. Memory
	// or processes below what it uses and cannot give back: fault.Conflict, and nothing is changed or killed.
	Update(ctx context.Context, id ID, res Resources) error
	// Remove takes everything of the sandbox off the host, its own save too. It is idempotent, tries every step, and joins
	// the errors.
	Remove(ctx context.Context, id ID) error
	// Free is Remove but for the save.
	Free(ctx context.Context, id ID) error
	// Found lists the ids of which any trace that bears our INST is on the host, whatever records say.
	Found(ctx context.Context) ([]ID, error)

	Saver
	Inspector
}

// SaveID names a save: the id of the sandbox whose own it is, that of a snapshot ("snap" and 20 of a-z0-9), or "fork" and
// 20 of a-z0-9 for one that is used at once and dropped: it need not outlive the host.
type SaveID string

var savePattern = regexp.MustCompile(`^(sb|snap|fork)[a-z0-9]{20}$`)

// Passing reports whether a save is for use at once.
func (id SaveID) Passing() bool { return strings.HasPrefix(string(id), "fork") }

// Valid reports whether id has one of the shapes that ids of saves have.
func (id SaveID) Valid() bool { return savePattern.MatchString(string(id)) }

// Save is a kept state of a sandbox: memory, processes and files. It is on disk, whole, and outlives a reboot.
type Save struct {
	ID    SaveID
	At    time.Time
	Bytes int64 // on disk
	Image string
	Whole bool // else it is the trace of one that was not finished, and the fields above are not known
	// Unfinished says that another one under the same name was begun and is not finished: it is being made, or was when the
	// server ended.
	Unfinished bool
}

// ErrUnrestorable means that a save cannot be made to run again: another runtime, another processor, or damaged. Its
// files may still be there: Source.FilesOnly.
var ErrUnrestorable = errors.New("the save cannot be made to run again")

// Source tells Resume what to start from.
type Source struct {
	Save SaveID
	// FilesOnly starts afresh on the files of the save: processes, terminals and what was in memory are lost.
	FilesOnly bool
}

// Saver keeps states of sandboxes and starts sandboxes from them. Bridges must be closed before a save: while one is open
// it is refused with fault.Conflict, and while it is made Dial answers fault.Starting.
type Saver interface {
	// Save keeps the state of a running sandbox under a name, in place of what was there, and lets it run on. When it fails
	// the sandbox runs on, and what was kept before is still there. No room for it on the disk: fault.HostFull.
	Save(ctx context.Context, id ID, to SaveID, journal Journal) error
	// Suspend keeps the state under the sandbox's own id and takes everything else of it off the host. When it fails the
	// sandbox either runs on or is dead: Settle tells.
	Suspend(ctx context.Context, id ID, journal Journal) error
	// Settle brings a Suspend or Save that was broken off to one of its ends: it gives true when the sandbox runs on, false
	// when it is off the host with its save kept. Neither: fault.NotFound.
	Settle(ctx context.Context, id ID) (running bool, err error)
	// Resume makes a sandbox run from a save, which stays. When it fails or ctx ends, every step done so far is undone
	// first. Its network namespace, hostname and limits are those of spec. ErrUnrestorable: see there.
	Resume(ctx context.Context, spec Spec, from Source, journal Journal) error
	// Saved describes a save that is whole; there is none: fault.NotFound.
	Saved(ctx context.Context, id SaveID) (Save, error)
	// Saves lists all of which there is any trace.
	Saves(ctx context.Context) ([]Save, error)
	// DropSave takes one off the disk; none: nil.
	DropSave(ctx context.Context, id SaveID) error
}

// Record is what is kept of a sandbox. Values are copies; change them through Records only.
type Record struct {
	ID           ID
	WorkspaceID  string
	Label        string // "" is none
	Image        string
	OwnerKind    string // "person" or "key"
	OwnerID      string // user id or key id
	OwnerName    string // e-mail, or the key's name
	Status       Status
	Reason       string
	Cwd          string
	User         string
	Env          map[string]string
	Metadata     map[string]string
	Resources    Resources
	Network      NetworkPolicy
	Persistent   bool      // it is suspended where others end
	Parent       string    // what it was started from: a snapshot's id, or that of the sandbox it is a fork of; "" is an image
	SavedAt      time.Time // of the save that is kept of it; zero: none
	SavedBytes   int64     // … and its size on disk
	CreatedAt    time.Time
	LastActivity time.Time
	EndedAt      time.Time // zero while it lives
	Incarnation  int64     // counts its starts: another one after each resume
	Life         Life
	IdleAt       time.Time // when it ends unless it is used
	ExpiresAt    time.Time // when it ends in any case; zero: never
}

// Filter chooses records. The zero value means all that are not Gone.
type Filter struct {
	WorkspaceID string
	IncludeGone bool
}

// Records keeps records and the journal of steps durably. Implemented by internal/store. Missing: fault.NotFound.
type Records interface {
	// InsertSandboxWithin adds a record, unless that would be one too many (fault.QuotaExceeded): of two at the limit, one wins.
	InsertSandboxWithin(ctx context.Context, r Record, q Quota) error
	// SetResources notes other limits.
	SetResources(ctx context.Context, id ID, res Resources) error
	SandboxByID(ctx context.Context, id ID) (Record, error)
	Sandboxes(ctx context.Context, f Filter) ([]Record, error)
	// ChangeStatus moves one record from a status to another in one statement; false when it was not in from.
	ChangeStatus(ctx context.Context, id ID, from, to Status, reason string, at time.Time) (bool, error)
	// SetNetwork keeps what a sandbox may reach.
	SetNetwork(ctx context.Context, id ID, p NetworkPolicy) error
	// NoteSave keeps when a sandbox was saved last and how large that is.
	NoteSave(ctx context.Context, id ID, at time.Time, bytes int64) error
	// TouchSandbox notes activity, and moves the idle deadline with it; it never moves either backwards.
	TouchSandbox(ctx context.Context, id ID, at time.Time) error
	// NoteStep writes the intent of a host change before it happens.
	NoteStep(ctx context.Context, id ID, step string, at time.Time) error
}
