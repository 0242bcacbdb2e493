// Package term owns terminals on the host's side: one attachment to the agent per terminal, any number of viewers with
// their own cursors and credit, who drives, snapshots for those who come late. It must never know HTTP, people or permissions:
// it is told a name and whether that viewer may type, and speaks through the Conn it is given.
package term

import (
	"context"

	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

// Subprotocol is the websocket subprotocol of the frames in the contract.
const Subprotocol = "sandgate.term.v1"

// Close codes of the contract.
const (
	CloseExited    = 1000
	CloseStopping  = 1001
	CloseTooSlow   = 1013
	CloseTakenOver = 4001
	CloseForbidden = 4003
	CloseGone      = 4004
	CloseExpired   = 4008
	CloseApproval  = 4009
)

// CloseError ends a viewer with a close code: cancel the context given to Serve with it as the cause.
type CloseError struct {
	Code   int
	Reason string // at most 120 bytes
}

// Error gives the reason.
func (e *CloseError) Error() string { return e.Reason }

// Conn is one viewer's message connection; handlers implement it over a websocket. Read and Write may run at the same time.
type Conn interface {
	Read(ctx context.Context) (binary bool, p []byte, err error)
	Write(ctx context.Context, binary bool, p []byte) error
	Close(code int, reason string) error
}

// Viewer is who looks on.
type Viewer struct {
	Name    string // shown to the others
	MayType bool   // has sandboxes:run: may drive
	Since   int64  // offset to continue at exactly; -1 asks for a snapshot
}

// AttachFunc reaches a terminal in a sandbox.
type AttachFunc func(ctx context.Context, id sandbox.ID, pty string, since int64) (agent.Attachment, error)

// Hub shares terminals among viewers. Safe for concurrent use.
type Hub struct{ attach AttachFunc }

// NewHub makes a hub.
func NewHub(attach AttachFunc) *Hub { return &Hub{attach: attach} }

// Serve carries one viewer until the terminal exits, the viewer leaves, or ctx ends (with a *CloseError as cause: that code).
// It closes conn itself. onInput, when not nil, is told at most once a second that the viewer typed.
func (h *Hub) Serve(ctx context.Context, id sandbox.ID, pty string, v Viewer, conn Conn, onInput func()) error {
	panic("term helper")
}

// Viewers names who looks at a terminal, the driver first; for lists.
func (h *Hub) Viewers(id sandbox.ID, pty string) (driver string, others []string) {
	panic("term helper")
}

// Drop ends every viewer of a sandbox with CloseGone; called when the sandbox is killed or dies.
func (h *Hub) Drop(id sandbox.ID, reason string) { panic("term helper") }

// Shutdown ends every viewer with CloseStopping.
func (h *Hub) Shutdown() { panic("term helper") }
