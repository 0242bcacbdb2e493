// Package views owns the pages: a typed view model each, and the markup. It must never see a domain type, a request or a
// service: handlers hand it plain values that are ready to be shown.
package views

import "sandgate/views/ui"

// Shell is what every page has around it.
type Shell struct {
	Title      string
	Section    string // "sandboxes", "activity", "people", "account": the place that is marked in the navigation
	Theme      string // "system", "light", "dark"
	Base       string // "/w/SLUG", or "" where there is no workspace
	Workspace  string
	Workspaces []ui.Link
	Person     string // e-mail of who is signed in, "" for nobody
	Rights     string // "can run code"
	Asked      bool   // sees requests for approval
	Waiting    int    // requests that wait
	Notices    []ui.Message
	Insecure   bool // served in the clear to another machine
}

// SignIn is the sign-in page.
type SignIn struct {
	Shell
	Next  string // local path to go to afterwards
	Email string
	Wrong string
}

// Setup makes the first administrator. Stale says that the link is of no use any more.
type Setup struct {
	Shell
	Token     string
	Email     ui.Field
	Password  ui.Field
	Workspace ui.Field
	RunCode   bool
	Wrong     string
}

// Invite lets an invited person join.
type Invite struct {
	Shell
	Token      string
	Email      string
	Into       string // the workspace's name
	Role       string
	Run        bool
	HasAccount bool
	Password   ui.Field
	Wrong      string
}

// SandboxList is the list of a workspace's sandboxes.
type SandboxList struct {
	Shell
	Find   string
	Status string
	Mine   bool
	Chips  []ui.Link
	CanRun bool
	Rows   SandboxRows
	Events string // address of the live stream with the same filter
}

// SandboxRows is the part of the list that is replaced live.
type SandboxRows struct {
	Rows    []SandboxRow
	Total   int // before filtering
	NewURL  string
	AllURL  string
	CanRun  bool
	CanKill bool // of any of the rows: shows the boxes
}

// SandboxRow is one line of it.
type SandboxRow struct {
	ID         string
	URL        string
	Label      string // "" shows the id alone
	State      ui.State
	Owner      string
	Image      string
	Created    ui.When
	Active     ui.When
	Story      string // why it failed
	Life       string // why it lives, or when it ends
	Limits     string
	CanKill    bool
	Waiting    string // requests for approval that wait: "1 waits for a yes"
	WaitingURL string
}

// SessionRow is a place where one is signed in.
type SessionRow struct {
	Browser string
	Address string
	Begun   ui.When
	Used    ui.When
	Here    bool
	End     string
}

// NewSandbox is the form that creates one.
type NewSandbox struct {
	Shell
	Action   string
	Cancel   string
	Wrong    string
	Label    ui.Field
	Image    ui.Field
	Images   []ui.Choice
	Keep     ui.Field // a box to tick: persistent
	Kept     bool
	Building *Progress
	CPU      ui.Field
	Memory   ui.Field
	Disk     ui.Field
	PIDs     ui.Field
	Cwd      ui.Field
	User     ui.Field
	Idle     ui.Field
	Longest  ui.Field
	Env      ui.Field
	Mode     ui.Field
	Modes    []ui.Choice
	Allow    ui.Field
	OwnKey   ui.Field
	WantsKey bool
	Asks     []PolicyKind
	More     bool // open the further options: something in them is set or wrong
	Key      string
}

// Progress is how far an image is.
type Progress struct {
	Image   string
	State   string // "building", "missing", "failed"
	Percent int
	Detail  string
	URL     string // gives this again while it builds
}

// Confirm asks before something that can't be undone.
type Confirm struct {
	Shell
	Heading string
	Words   []string
	Items   []string
	Action  string
	Cancel  string
	Hidden  []ui.Field
	Fields  []ui.Field
	Typed   string // what has to be typed first, "" for nothing
	Wrong   string
	Button  string
	Danger  bool
}

// Problem is an error as a page.
type Problem struct {
	Shell
	Status    int
	Heading   string
	Text      string
	Advice    string
	RequestID string
	Back      ui.Link
}

// Account is what belongs to the person and not to a workspace.
type Account struct {
	Shell
	Sessions   []SessionRow
	Current    ui.Field
	New        ui.Field
	Themes     []ui.Choice
	CanCreate  bool
	NewName    ui.Field
	Workspaces []ui.Link
}
