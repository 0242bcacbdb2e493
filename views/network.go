package views

import "sandgate/views/ui"

// NetworkForm asks what a sandbox may reach.
type NetworkForm struct {
	Shell
	Heading string
	Words   []string
	Wrong   string
	Mode    ui.Field
	Modes   []ui.Choice
	Allow   ui.Field
	Action  string
	Cancel  string
}

// Network is what a sandbox may reach, and what it was refused; live.
type Network struct {
	Mode   string
	Allow  []string
	Change string // address of the form, "" without the right to it
	Denied []DeniedLine
	More   int // refused besides those
}

// DeniedLine is one kind of attempt. Where comes from inside.
type DeniedLine struct {
	Where string
	Why   string
	Last  ui.When
	Count string // "" for one
}
