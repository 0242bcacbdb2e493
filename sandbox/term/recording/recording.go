// Package recording owns recordings of terminals: what a workspace asks for, the files in the data directory (asciicast v3),
// how they are written as output comes, continued after a crash, and read. It must never know people, permissions or SQL, and
// nothing that it was told is secret is in a file.
package recording

import (
	"regexp"
	"time"

	"sandgate/internal/fault"
)

// Mode says what of a workspace's terminals is recorded.
type Mode string

// The modes.
const (
	Off    Mode = "off"
	On     Mode = "on"     // a terminal that cannot be recorded opens all the same
	Always Mode = "always" // … does not open, and nobody types in one whose recording broke
)

// Policy is what a workspace asks for.
type Policy struct {
	Mode     Mode
	Input    bool  // what is typed, too: passwords are in it
	MaxMB    int64 // of one recording
	TotalMB  int64 // of all of the workspace: the oldest go first
	KeepDays int   // after its end
}

// DefaultPolicy holds where nothing was set.
func DefaultPolicy() Policy { return Policy{Mode: Off, MaxMB: 64, TotalMB: 2048, KeepDays: 90} }

// Bounds of a policy's numbers.
const (
	MostMB    = 1024
	MostTotal = 1 << 20
	MostDays  = 3650
)

// Check refuses what is no policy, with the fields that are wrong.
func (p Policy) Check() error {
	bad := map[string]string{}
	if p.Mode != Off && p.Mode != On && p.Mode != Always {
		bad["mode"] = "must be off, on or always"
	}
	if p.MaxMB < 1 || p.MaxMB > MostMB {
		bad["max_mb"] = "must be between 1 and 1024"
	}
	if p.TotalMB < p.MaxMB || p.TotalMB > MostTotal {
		bad["total_mb"] = "must be between max_mb and 1048576"
	}
	if p.KeepDays < 1 || p.KeepDays > MostDays {
		bad["keep_days"] = "must be between 1 and 3650"
	}
	if len(bad) == 0 {
		return nil
	}
	e := fault.New(fault.Invalid, "Some fields are not valid.")
	e.Fields = bad
	return e
}

// How a recording ended.
const (
	EndExited = "exited"     // the terminal did
	EndGone   = "gone"       // the terminal or its sandbox is gone
	EndLimit  = "limit"      // as large as one may be; under Always the next part goes on
	EndOff    = "turned_off" // the policy
	EndFailed = "failed"     // it could not be written
)

// Recording is the record of one; it outlives its sandbox.
type Recording struct {
	ID          string
	WorkspaceID string
	SandboxID   string
	Label       string // of the sandbox
	PTY         string
	Part        int    // 1, or more for one that goes on where another had reached its limit
	ByKind      string // who opened the terminal, or was the first to come to one that was not recorded yet
	ByID        string
	By          string
	Input       bool
	StartedAt   time.Time
	EndedAt     time.Time // zero: it goes on
	End         string    // how; "" while it goes on
	Bytes       int64     // of its file; not fresh while it goes on
}

// Filter chooses recordings of a workspace, newest first.
type Filter struct {
	WorkspaceID string
	SandboxID   string   // "": of all
	PTYs        []string // nil: all
	Before      time.Time
	BeforeID    string // of those that started at Before: only lower ids; "": none of them
	Limit       int
}

var idShape = regexp.MustCompile(`^rec[a-z0-9]{20}$`)

// ValidID tells the shape of an id.
func ValidID(id string) bool { return idShape.MatchString(id) }
