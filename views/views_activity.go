package views

import "sandgate/views/ui"

// Activity is the record's page.
type Activity struct {
	Shell
	Find     string
	Actions  []ui.Choice
	Outcomes []ui.Choice
	Spans    []ui.Link // the usual spans of time, by one click
	From, To string    // as their inputs take them, or what was in the address
	Hidden   []ui.Field
	Narrowed []ui.Link // what the list is narrowed to beside the inputs; each leads to the list without it
	Filtered bool
	Rows     ActivityRows
	Clear    string
	NDJSON   string // addresses of the export with the same filter
	CSV      string
	Record   string // of the page about the record itself; "" for who may not see it
	Events   string // address of the live stream with the same filter; "" on an older page
	Newest   string // of the first page; "" there
}

// ActivityRows is the part that is replaced live.
type ActivityRows struct {
	Rows     []ActivityRow
	Older    string
	Filtered bool
	Clear    string
	New      int // how many came since the page was loaded
}

// ActivityRow is one event.
type ActivityRow struct {
	Seq        string
	URL        string
	At         ui.When
	Actor      string
	ActorURL   string // the list narrowed to them
	Owner      string
	Action     string
	Target     string
	Sandbox    string
	SandboxURL string
	Outcome    ui.State
	Duration   string
	Address    string
	Detail     string
	New        bool
}

// ActivityEvent is the page of one event.
type ActivityEvent struct {
	Shell
	Row     ActivityRow
	Target  string // whole
	Facts   []Detail
	Digests []Digest
	Output  *Output
	NoCopy  string // why there is no output, "" where none is to be expected
	Links   []ui.Link
}

// Digest is a SHA-256 with what it is of. Word stands where there is none.
type Digest struct {
	Name string
	Hex  string
	Word string
}

// Output is what a command printed, as it is kept.
type Output struct {
	Stdout, Stderr string
	About          string // how much of it this is
}

// SandboxStory is everything that happened to a sandbox, in order, also when it is gone.
type SandboxStory struct {
	Shell
	ID      string
	Label   string
	State   ui.State
	Facts   []Detail
	Open    string // of the sandbox's own page; "" when it is gone
	Told    StoryRows
	Events  string // address of the live stream; "" where nothing more can come to this page
	Earlier string
	List    string
	NDJSON  string
	CSV     string
}

// StoryRows is a page of a sandbox's story, which is replaced live.
type StoryRows struct {
	Rows  []ActivityRow
	New   int
	Later string // address of the next page
}

// RecordPage is about the record itself: its head, whether it holds, how large it is.
type RecordPage struct {
	Shell
	Head   string // SEQ:HASH, as it is published
	Holds  ui.Message
	Facts  []Detail
	Told   *ui.Message
	Verify string // the command that looks at a head
}
