package views

import "sandgate/views/ui"

// Approvals is the page of what waits for a decision, and of what was decided; one request is open beside the list.
type Approvals struct {
	Shell
	Queue    ApprovalQueue
	Tabs     []ui.Link // waiting, decided
	Request  *ApprovalRequest
	Events   string // address of the live stream
	MayWatch bool   // decides: is offered notices by the browser
}

// ApprovalQueue is the list, which is replaced live.
type ApprovalQueue struct {
	Items   []ApprovalItem
	Words   string // "3 waiting · oldest 4 min"
	Waiting int
	Closed  bool   // a list of decided ones
	Older   string // address of the next page
}

// ApprovalItem is one line of the list.
type ApprovalItem struct {
	ID    string
	URL   string
	Title string
	Who   string
	When  ui.When
	State ui.State
	On    bool // the one that is open
}

// ApprovalRequest is one request, whole.
type ApprovalRequest struct {
	ID       string
	Title    string // "ci-agent wants to run a command"
	State    ui.State
	Expires  ui.When // to be decided until; zero when it is decided
	Digest   string
	Facts    []Fact
	Reason   string // in the requester's words
	Why      string // which policy asked
	Warnings []ui.Message
	Command  []Piece // of a command
	Env      []Fact
	Secrets  []string
	Contents []ApprovalContent
	Network  []Fact // of a change of the network
	Unbound  []string
	Before   []PastLine
	History  []string
	Outcome  []Fact // who decided, when, why; what became of it
	Effect   *ApprovalEffect
	Try      ApprovalTry
	Decide   ApprovalDecide
	Cancel   string // address to take it back; "" for who may not
}

// Fact is a name with a value.
type Fact struct {
	Name  string
	Value string
	URL   string
	Mono  bool
}

// Piece is a run of text of one meaning: "", "prog", "str", "op", "var", "note", "bad" (dangerous), "odd" (a letter that looks like
// another), "hid" (something that cannot be seen, spelled out).
type Piece struct {
	Text  string
	Class string
	Title string
}

// ApprovalContent is a content that goes with a request: what is written, a script that the command runs, its stdin.
type ApprovalContent struct {
	Name     string // "The script that it runs"
	Path     string
	Bound    bool
	Compared bool // right before the command starts
	Digest   string
	Size     string
	Words    string // what it is where it cannot be shown
	Lines    []DiffLine
	Cut      bool
	Hex      [2]string // old and new
	Images   [2]string // addresses, old and new
	Get      string    // address of the whole content
}

// DiffLine is a row of two texts side by side. Class is "", "add", "del", "chg" or "skip".
type DiffLine struct {
	Class    string
	OldN     string
	Old      []Piece
	NewN     string
	New      []Piece
	OneSided bool // there is no old text at all
}

// PastLine is something that happened before.
type PastLine struct {
	At      ui.When
	Action  string
	Target  string
	Outcome ui.State
}

// ApprovalEffect is what a command did in a copy.
type ApprovalEffect struct {
	Words    string // "tried in a copy with the network cut · 6.2 s"
	Facts    []Fact
	Stdout   string
	Stderr   string
	Cut      bool
	Files    []EffectFile
	FilesWhy string
	Denied   []string
	Left     []string
	NotShown []string
}

// EffectFile is a path that was changed.
type EffectFile struct {
	Path  string
	Words string
	Class string // add, del, chg
	Lines []DiffLine
}

// ApprovalTry offers to try a command in a copy.
type ApprovalTry struct {
	Action string // "" for who may not, or where there is nothing to try
	Button string
	Wrong  string
}

// ApprovalDecide offers the decision.
type ApprovalDecide struct {
	Approve string // address; "" when it cannot be decided
	Deny    string
	Why     string // why not
	Same    []Same // further requests for the very same
}

// Same is a further request that asks for the very same.
type Same struct {
	ID     string
	Digest string
}

// DenyForm asks for the reason of a no.
type DenyForm struct {
	Shell
	Heading string
	Action  string
	Cancel  string
	Reason  ui.Field
	Stop    ui.Field // a box to tick; no name: it is not offered
	Same    []Same
	Wrong   string
}

// short is the beginning and the end of a digest.
func short(digest string) string {
	if len(digest) <= 12 {
		return digest
	}
	return digest[:4] + "…" + digest[len(digest)-4:]
}
