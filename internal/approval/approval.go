// Package approval owns the one gate that every change passes before it happens: policies and their rules, and requests,
// which bind what was asked for to a digest. It must never execute anything or know how an action is carried out.
package approval

import (
	"context"
	"sync"
	"time"

	"sandgate/auth"
)

// Kind groups actions the way policies do.
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

// Kinds lists those that policies have an answer for.
var Kinds = []Kind{Command, Write, Terminal, Network, Port}

// Action is what is about to happen, in the words of the record.
type Action struct {
	Kind      Kind
	Name      string // "command.run", "file.write", …
	SandboxID string
	Target    string // path, command, e-mail, …: shown, never parsed
	Digest    string // SHA-256 (hex) of the bytes that will run or be written, where there are any

	// What rules look at, beside who asks.
	Script string            // of a command: what the shell gets
	Env    map[string]string // … and the variables that the call names
	Paths  [][]byte          // of a write: what it touches, resolved inside where rules about paths exist
	Below  bool              // … and whatever is below those
	Image  string

	ApprovalID string // of the request whose yes lets it through
}

// Gate decides whether an action may happen now. A nil error lets it through; *Ask means that a person has to say yes
// first; everything else refuses.
type Gate interface {
	Pass(ctx context.Context, who auth.Actor, what Action) error
}

// Open is the gate that lets all through, for what knows no policies.
type Open struct{}

// Pass lets the action through.
func (Open) Pass(context.Context, auth.Actor, Action) error { return nil }

// Ask is the gate's answer that a person has to decide.
type Ask struct {
	Why    string // which policy, and what in it
	Policy string // digest of all policies that were looked at
}

// Error says why, for the log.
func (a *Ask) Error() string { return "approval: ask: " + a.Why }

// Call is how a caller wants to be treated when what it does has to be approved. The zero value does not wait.
type Call struct {
	ID     string        // of a request that was made before for the same
	Reason string        // why, for the approver
	Wait   time.Duration // for a decision
	passed chan struct{}
	once   *sync.Once
}

type callKey struct{}

// WithCall gives a context in which calls are treated as c says. passed is closed once the gate has let the call through:
// from then on it does what it does.
func WithCall(ctx context.Context, c Call) (_ context.Context, passed <-chan struct{}) {
	c.passed, c.once = make(chan struct{}), &sync.Once{}
	return context.WithValue(ctx, callKey{}, c), c.passed
}

// CallOf gives how the caller of a context wants to be treated.
func CallOf(ctx context.Context) Call {
	c, _ := ctx.Value(callKey{}).(Call)
	return c
}

// Pass notes that the call went through the gate.
func (c Call) Pass() {
	if c.once != nil {
		c.once.Do(func() { close(c.passed) })
	}
}
