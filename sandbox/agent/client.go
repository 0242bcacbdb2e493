package agent

import (
	"context"
	"errors"
	"io"
)

// ErrBridge says that the bridge into the sandbox broke and that the call's outcome is unknown.
var ErrBridge = errors.New("the bridge into the sandbox broke")

// Dialer opens one bridge into a sandbox: bulk false to MuxSocket, true to BulkSocket.
type Dialer func(ctx context.Context, bulk bool) (io.ReadWriteCloser, error)

// Client speaks to one sandbox's agent. It dials when first needed, keeps one multiplexed bridge, and dials again when
// that breaks. Safe for concurrent use. Errors are fault errors where a person can act; a dead bridge is ErrBridge.
type Client struct{ dial Dialer }

// NewClient makes a client that is not connected yet.
func NewClient(dial Dialer) *Client { return &Client{dial: dial} }

// Close drops the bridges; running commands and terminals inside go on.
func (c *Client) Close() error { panic("agent helper") }

// Hello asks who is there.
func (c *Client) Hello(ctx context.Context) (Hello, error) { panic("agent helper") }

// Output receives a command's stream in order. A slow Output stops the reading (backpressure up to the program). An error
// from it ends the stream but not the command.
type Output interface {
	Stdout(p []byte) error
	Stderr(p []byte) error
}

// Run starts a foreground command and follows it to its end. If ctx ends first, the command's whole tree is killed.
func (c *Client) Run(ctx context.Context, spec CommandSpec, out Output) (Exit, error) {
	panic("agent helper")
}

// Start starts a background command.
func (c *Client) Start(ctx context.Context, spec CommandSpec) (Command, error) { panic("agent helper") }

// Commands lists what the agent remembers: all running ones, the last 200 ended ones.
func (c *Client) Commands(ctx context.Context) ([]Command, error) { panic("agent helper") }

// Command gives one.
func (c *Client) Command(ctx context.Context, id string) (Command, error) { panic("agent helper") }

// Follow streams a command's kept output from two byte offsets (0, 0: from the start), then live, to its end.
func (c *Client) Follow(ctx context.Context, id string, stdoutFrom, stderrFrom int64, out Output) (Exit, error) {
	panic("agent helper")
}

// Logs gives what is kept of the output from two byte offsets on, at most MaxOutput each, without waiting for more.
func (c *Client) Logs(ctx context.Context, id string, stdoutFrom, stderrFrom int64) (stdout, stderr []byte, cmd Command, err error) {
	panic("agent helper")
}

// Stdin writes to a command that was started with KeepStdin; eof closes it after data.
func (c *Client) Stdin(ctx context.Context, id string, data []byte, eof bool) error {
	panic("agent helper")
}

// Kill sends a signal ("KILL", "TERM", "INT", …) to the command's whole tree; KILL leaves nothing of it.
func (c *Client) Kill(ctx context.Context, id, signal string) error { panic("agent helper") }

// OpenPTY starts a terminal.
func (c *Client) OpenPTY(ctx context.Context, spec PTYSpec) (PTY, error) { panic("agent helper") }

// PTYs lists terminals, ended ones too until they are closed.
func (c *Client) PTYs(ctx context.Context) ([]PTY, error) { panic("agent helper") }

// PTY gives one.
func (c *Client) PTY(ctx context.Context, id string) (PTY, error) { panic("agent helper") }

// ClosePTY hangs the terminal up (HUP, then TERM, then KILL in short steps) and forgets it.
func (c *Client) ClosePTY(ctx context.Context, id string) error { panic("agent helper") }

// Attachment is the host's live connection to one terminal. Next is called by one goroutine; the senders may be called
// by others at the same time.
type Attachment interface {
	// Next returns the next event: exactly one of Output, Size, Exit is set. io.EOF after Exit; ErrBridge when the bridge broke.
	Next() (PTYEvent, error)
	// Input types bytes. It returns once they are on the bridge; the agent queues at most MaxInput and then refuses (fault SlowDown notice).
	Input(p []byte) error
	Resize(cols, rows int) error
	Signal(name string) error
	Close() error
}

// PTYEvent is one thing that happened in a terminal.
type PTYEvent struct {
	Offset int64  // absolute offset of Output[0]
	Output []byte // valid until the next call of Next
	Size   *Size
	Exit   *Exit
}

// Size is a terminal's.
type Size struct {
	Cols int `json:"cols"`
	Rows int `json:"rows"`
}

// Attach connects to a terminal from an offset on; -1 means from the oldest byte kept. An offset older than the ring
// starts at the oldest byte: the caller sees it by the first event's Offset.
func (c *Client) Attach(ctx context.Context, id string, since int64) (Attachment, error) {
	panic("agent helper")
}

// Stat describes a path without following a last symlink. Missing: fault.NotFound.
func (c *Client) Stat(ctx context.Context, path []byte) (FileInfo, error) { panic("agent helper") }

// List gives a page of a directory; limit 1..1000; depth 1..10 (deeper entries follow their directory, paths tell them apart).
func (c *Client) List(ctx context.Context, path []byte, cursor string, limit, depth int) (Listing, error) {
	panic("agent helper")
}

// ReadFile opens a regular file for reading from offset, at most length bytes (-1: to the end). The reader comes over a
// bridge of its own when length is unknown or above 256 KiB. Directory or special file: fault.BadRequest.
func (c *Client) ReadFile(ctx context.Context, path []byte, offset, length int64) (FileInfo, io.ReadCloser, error) {
	panic("agent helper")
}

// WriteOptions are the conditions of a write.
type WriteOptions struct {
	Size        int64  // exact size when known, else -1; a body that is shorter or longer leaves the old file
	Mode        uint32 // of a new file; 0 means 0644; an existing file keeps its mode and owner
	IfMatch     string // an ETag or "*"; fault.Precondition when it does not hold
	IfNoneMatch string // "*": only when nothing is there
	NoParents   bool   // by default missing parent directories are made
}

// WriteFile replaces a file atomically (temporary file beside it, rename); a symlink is followed, its target replaced.
func (c *Client) WriteFile(ctx context.Context, path []byte, body io.Reader, o WriteOptions) (FileInfo, error) {
	panic("agent helper")
}

// Mkdir makes a directory with its parents; one that exists already is fine, a file there is fault.Conflict.
func (c *Client) Mkdir(ctx context.Context, path []byte) (FileInfo, error) { panic("agent helper") }

// Move renames within the sandbox. A destination that exists is fault.Conflict unless overwrite.
func (c *Client) Move(ctx context.Context, source, destination []byte, overwrite bool) (FileInfo, error) {
	panic("agent helper")
}

// Delete removes a file, a symlink itself, or an empty directory; a full one only when recursive, else fault.Conflict.
// "/", "/work" and the agent's own places are refused with fault.BadRequest.
func (c *Client) Delete(ctx context.Context, path []byte, recursive bool) error {
	panic("agent helper")
}

// Archive streams a directory or file as "tar" or "zip": relative names, links as links, specials skipped and listed in a
// last entry ".sandgate-skipped.txt" when there were any. A cut stream is an error at the reader, never a clean end.
func (c *Client) Archive(ctx context.Context, path []byte, format string) (io.ReadCloser, error) {
	panic("agent helper")
}
