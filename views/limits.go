package views

import "sandgate/views/ui"

// LimitsForm asks for limits, of a sandbox or of a workspace.
type LimitsForm struct {
	Shell
	Heading string
	Words   []string
	Wrong   string
	Fields  []ui.Field
	Action  string
	Cancel  string
	Button  string
}
