package views

import "sandgate/views/ui"

// RecordingList is the page of a workspace's recordings, or of those of one sandbox or terminal.
type RecordingList struct {
	Shell
	Rows   []RecordingRow
	Of     string // what they are of; "": of everything
	AllURL string // all of the workspace, when these are not
	Older  string // address of the next page
	Policy string // address of the policy, "" for who may not set it
	Words  string // what is recorded
}

// RecordingRow is one of them. Delete is an address, "" for who may not, or for one that goes on.
type RecordingRow struct {
	ID      string
	URL     string
	Of      string // the sandbox
	OfURL   string // "" when it is gone
	By      string
	State   ui.State
	Started ui.When
	Length  string
	Size    string
	Delete  string
}

// RecordingPage plays one.
type RecordingPage struct {
	Shell
	Row   RecordingRow
	Facts []Detail
	Cast  string // address of the recording itself
	Input bool   // what was typed is in it
	Goes  bool   // it goes on
	List  string
	// Requests is the address of requests for approval, without an id; "" for who may see none.
	Requests string
}

// RecordingForm asks what a workspace records.
type RecordingForm struct {
	Shell
	Wrong  string
	Modes  []RecordingMode
	Input  bool
	Fields []ui.Field
	Action string
	Cancel string
}

// RecordingMode is one of the choices, with what it means.
type RecordingMode struct {
	Value, Text, Means string
	Chosen             bool
}
