// Package ui owns the small components that pages are made of, and their plain values. It must never know what a sandbox, a
// person or a request is, and must show every text as text.
package ui

import "github.com/a-h/templ"

// Tone is the meaning of a colour.
type Tone string

// The tones; "" is neutral.
const (
	Ok   Tone = "ok"
	Warn Tone = "warn"
	Bad  Tone = "bad"
	Idle Tone = "idle"
)

// State is a word in a coloured pill. Busy lets its dot pulse: something is under way.
type State struct {
	Text string
	Tone Tone
	Busy bool
}

// When is a moment: what a machine reads, what a person reads, and the exact time for the tooltip. The zero value shows a dash.
type When struct {
	ISO   string // RFC 3339 UTC
	Text  string // "12 min ago"
	Exact string // "2026-11-30 14:02:11 UTC"
}

// Link is a text that leads somewhere; On marks where one is.
type Link struct {
	Text string
	URL  string
	On   bool
}

// Message is a sentence that stands out on a page.
type Message struct {
	Tone Tone
	Text string
	More string // smaller, after it
}

// Field is an input of a form with what was typed and what is wrong with it.
type Field struct {
	Name  string
	Label string
	Value string
	Hint  string
	Wrong string
	Usual string // what an empty input means, shown in it
}

// Choice is one entry of a select.
type Choice struct {
	Value    string
	Text     string
	Selected bool
	Disabled bool
}

func stateClass(s State) string {
	class := "st"
	if s.Tone != "" {
		class += " " + string(s.Tone)
	}
	if s.Busy {
		class += " busy"
	}
	return class
}

func messageIcon(t Tone) string {
	switch t {
	case Ok:
		return "circle-check"
	case Warn:
		return "triangle-alert"
	case Bad:
		return "circle-alert"
	default:
		return "info"
	}
}

func describedBy(f Field) string {
	if f.Wrong != "" {
		return f.Name + "-wrong"
	}
	if f.Hint != "" {
		return f.Name + "-hint"
	}
	return ""
}

// invalid gives the attributes that tie an input to the words below it.
func invalid(f Field) templ.Attributes {
	attrs := templ.Attributes{}
	if by := describedBy(f); by != "" {
		attrs["aria-describedby"] = by
	}
	if f.Wrong != "" {
		attrs["aria-invalid"] = "true"
	}
	return attrs
}

func noteRole(t Tone) string {
	if t == Bad || t == Warn {
		return "alert"
	}
	return "status"
}
