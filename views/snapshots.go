package views

import "sandgate/views/ui"

// SnapshotList is the page of a workspace's snapshots.
type SnapshotList struct {
	Shell
	Rows   SnapshotRows
	Events string // address of the stream that sends the rows again
}

// SnapshotRows is what of the page is live.
type SnapshotRows struct {
	Rows  []SnapshotRow
	Words string // what is kept for how long
}

// SnapshotRow is one of them. Start and Delete are addresses, "" for who may not.
type SnapshotRow struct {
	ID      string
	Name    string
	Of      string // the sandbox it was taken of
	OfURL   string
	Owner   string
	Image   string
	Size    string
	Taken   ui.When
	Used    ui.When
	Expires ui.When
	Start   string
	Delete  string
}

// StartForm asks how a sandbox from a snapshot is called.
type StartForm struct {
	Shell
	Heading string
	Wrong   string
	Key     string // makes a second click give the first one's sandbox
	Label   ui.Field
	Keep    ui.Field
	Kept    bool
	Action  string
	Cancel  string
}
