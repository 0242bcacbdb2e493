package views

import (
	"strconv"

	"sandgate/views/ui"
)

// Sandbox is the page of one sandbox.
type Sandbox struct {
	Shell
	Head          SandboxHead
	URL           string // of the page without a query
	Files         Files
	Preview       *Preview
	Terminals     []TerminalTab
	CanRun        bool
	Asks          bool // a terminal would be asked about: none is opened by itself
	CanKill       bool
	Running       bool
	Side          SandboxSide
	Warning       SandboxWarning
	Network       Network
	Activity      []ActivityLine
	RecordingsURL string // of its terminals, "" without the right to them
	AllURL        string // the sandbox's whole activity, "" without the right to it
	Snippet       string
}

// SandboxHead is its name and state; live.
type SandboxHead struct {
	ID    string
	Label string
	State ui.State
	Story string
	Calm  bool // Story tells of nothing bad
	// Where the buttons lead that suspend and wake it; "" is no button.
	SuspendURL string
	ResumeURL  string
	// … and where those lead that make more of it.
	SnapshotURL string
	ForkURL     string
}

// SandboxSide is limits, use and details; live.
type SandboxSide struct {
	Life    []string // sentences: since when it is unused, why it lives, what happens when
	Meters  []Meter
	Change  string   // where limits are changed, "" for who may not
	Asks    []string // what it asks approval for
	Details []Detail
}

// SandboxWarning says that a sandbox is about to end; live. KeepURL "" where nothing can be done about it.
type SandboxWarning struct {
	Text    string
	KeepURL string
}

// Meter is how much of a limit is in use.
type Meter struct {
	Text  string
	Value int // 0..100, -1 when not known
}

// Detail is a name and its value.
type Detail struct {
	Name  string
	Value string
	When  ui.When // instead of Value
	URL   string  // where Value leads, or ""
}

// TerminalTab is an open terminal.
type TerminalTab struct {
	ID     string
	Name   string
	Ended  bool
	Others string // who else is at it, short; "" for nobody
	People string // who is at it, in words
}

// ActivityLine is a line of the strip below the terminal.
type ActivityLine struct {
	At   ui.When
	Text string
	Tone ui.Tone
}

// Files is one folder.
type Files struct {
	Here      string // shown path
	HereQuery string // its query string, "path=…"
	Base      string // "/w/SLUG/sandboxes/ID"
	Crumbs    []ui.Link
	Entries   []FileEntry
	Total     int
	More      string // address of the next page, "" on the last
	CanWrite  bool
	Problem   string
	Archive   string
}

// FileEntry is a line of a folder. Name may hold visible escapes; Odd says so.
type FileEntry struct {
	Name     string
	Odd      bool
	Icon     string
	Folder   bool
	Size     string
	Modified ui.When
	Open     string // folder or preview, "" for what can't be opened
	Download string
	Archive  string
	Rename   string
	Delete   string
	Target   string // of a link
	Broken   bool   // a link that leads nowhere
	Selected bool
}

// Preview is what can be shown of a file.
type Preview struct {
	Name     string
	Path     string
	Kind     string // as files.Preview
	Size     string
	Text     string
	Rows     [][]string
	Cut      bool
	Wide     bool
	ImageURL string
	Download string
	Close    string
	Problem  string
}

// People is members, invitations and keys.
type People struct {
	Shell
	Members     []MemberRow
	Invitations []InvitationRow
	Keys        []KeyRow
	CanMembers  bool
	CanKeys     bool
	Invite      InviteForm
	NewKey      KeyForm
	Shown       *ShownOnce
	Matrix      Matrix
	Wrong       string
}

// MemberRow is one member.
type MemberRow struct {
	Email    string
	Me       bool
	Role     string
	Roles    []ui.Choice
	CanRun   bool
	Granted  string // further permissions by name
	Disabled bool
	Joined   ui.When
	RoleURL  string
	RunURL   string
	Remove   string
}

// InvitationRow is one invitation that is still open.
type InvitationRow struct {
	Email    string
	Role     string
	Run      bool
	Expires  ui.When
	Withdraw string
}

// InviteForm asks for a new member.
type InviteForm struct {
	Action string
	Email  ui.Field
	Roles  []ui.Choice
	Run    bool
}

// KeyRow is one API key.
type KeyRow struct {
	Name        string
	Prefix      string
	Owner       string // "" is a service account
	Permissions []string
	Created     ui.When
	Expires     ui.When
	Used        ui.When
	Ended       string // "revoked", "expired" or ""
	Policy      string // where what is asked of it is set; "" for who may not
	Revoke      string
}

// KeyForm asks for a new key.
type KeyForm struct {
	Action      string
	Name        ui.Field
	Permissions []ui.Choice // Selected: ticked, Disabled: not one's own
	Expiry      []ui.Choice
	CanService  bool
	Service     bool
	Wrong       string
}

// ShownOnce is a secret that is shown now and never again.
type ShownOnce struct {
	Title   string
	Words   string
	Secret  string
	Snippet string
}

// Matrix says which role may do what.
type Matrix struct {
	Roles []string
	Rows  []MatrixRow
}

// MatrixRow is one permission.
type MatrixRow struct {
	Permission string
	Meaning    string
	Has        []bool
}

// count says how many entries the folder has.
func (f Files) count() string {
	if f.Total == 1 {
		return "1 item"
	}
	return strconv.Itoa(f.Total) + " items"
}
