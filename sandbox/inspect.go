package sandbox

import (
	"context"
	"io"

	"sandgate/sandbox/effect"
)

// Process is one that runs inside a sandbox.
type Process struct {
	PID  int
	Name string // at most 15 bytes, chosen by the process: hostile
}

// Inspector looks into running sandboxes from outside: nothing inside is asked, so nothing inside can lie.
type Inspector interface {
	// Upper writes what a sandbox changed of its image as a tar: deletions are character devices 0:0, as overlayfs has them.
	// What lies in Scratch is not in it.
	Upper(ctx context.Context, id ID, w io.Writer) error
	// Scratch lists the directories that are mounts of their own: only the agent can tell what is in them.
	Scratch() []string
	// Lower gives the image that it stands on; close lets go of it.
	Lower(ctx context.Context, id ID) (base effect.Base, close func() error, err error)
	// Processes lists what runs inside, the agent and what belongs to it included.
	Processes(ctx context.Context, id ID) ([]Process, error)
}
