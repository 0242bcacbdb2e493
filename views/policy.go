package views

import (
	"strconv"

	"sandgate/views/ui"
)

// PolicyForm shows what is asked about, and lets it be changed.
type PolicyForm struct {
	Shell
	Heading string
	Words   []string
	Wrong   string
	Kinds   []PolicyKind
	Rules   []PolicyRule // further empty ones at the end
	Told    []string     // the rules in words, for who may only look
	Action  string       // "" for who may only look
	Cancel  string
}

// PolicyKind is the answer for one kind of action.
type PolicyKind struct {
	Field   ui.Field
	Choices []ui.Choice
}

// PolicyRule is one line of the rules.
type PolicyRule struct {
	Name      string // of its fields: rule0, …
	Kinds     []ui.Choice
	Answers   []ui.Choice
	Command   ui.Field
	Path      ui.Field
	Requester ui.Field
	Image     ui.Field
}

func ordinal(i int) string { return strconv.Itoa(i + 1) }

// chosen is the text of the choice that holds.
func chosen(list []ui.Choice) string {
	for _, c := range list {
		if c.Selected {
			return c.Text
		}
	}
	return ""
}
