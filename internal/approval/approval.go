// Package approval owns the one gate that every change passes before it happens. It must never execute anything or know
// how an action is carried out. Until policies exist it lets everything through, but nothing goes around it.
package approval

import (
	"context"

	"sandgate/auth"
)

// Kind groups actions the way policies will.
type Kind string

// The kinds of action. Other is for what policies never hold back: people, keys, sandboxes themselves.
const (
	Command  Kind = "command"
	Write    Kind = "write"
	Terminal Kind = "terminal"
	Network  Kind = "network"
	Port     Kind = "port"
	Other    Kind = "other"
)

// Action is what is about to happen, in the words of the record.
type Action struct {
	Kind      Kind
	Name      string // "command.run", "file.write", …
	SandboxID string
	Target    string // path, command, e-mail, …: shown, never parsed
	Digest    string // SHA-256 (hex) of the bytes that will run or be written, where there are any
}

// Gate decides whether an action may happen now. A nil error lets it through.
type Gate interface {
	Pass(ctx context.Context, who auth.Actor, what Action) error
}

// Open is the gate that lets all through; it stands until policies exist.
type Open struct{}

// Pass lets the action through.
func (Open) Pass(context.Context, auth.Actor, Action) error { return nil }
