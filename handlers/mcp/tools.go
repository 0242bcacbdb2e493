package mcp

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

// Bounds of what a model gives and is given.
const (
	defaultTimeout = 60 * time.Second
	maxTimeout     = time.Hour
	maxCommand     = 128<<10 - 1 // bytes: what Linux takes as one argument

	defaultOutput = 32 << 10  // bytes of each stream
	maxShown      = 256 << 10 // bytes, the most that can be asked for of a stream or a file
	defaultRead   = 64 << 10  // bytes of a file
	maxWrite      = 4 << 20   // bytes of a file

	defaultEntries = 200
	maxEntries     = 1000
	maxDepth       = 10
)

func (s *server) addTools(to *mcp.Server) {
	yes, no := true, false
	reads := &mcp.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: &no}
	add(s, to, mcp.Tool{
		Name: "create_sandbox", Annotations: &mcp.ToolAnnotations{DestructiveHint: &no, OpenWorldHint: &no},
		Description: "Create an isolated Linux sandbox and return it running. Its id is what the other tools take.",
	}, s.createSandbox)
	add(s, to, mcp.Tool{
		Name: "list_sandboxes", Annotations: reads,
		Description: "List the sandboxes of this workspace, newest first.",
	}, s.listSandboxes)
	add(s, to, mcp.Tool{
		Name: "run_command", Annotations: &mcp.ToolAnnotations{DestructiveHint: &yes, OpenWorldHint: &yes},
		Description: "Run a shell command (bash -c) in a sandbox, in /work unless cwd says otherwise, and wait for its end. " +
			"Exit code 124 with timed_out means that it was killed at the timeout. The middle of long output is left out, and " +
			"truncated says so: redirect it into a file and read that in parts.",
	}, s.runCommand)
	add(s, to, mcp.Tool{
		Name: "read_file", Annotations: reads,
		Description: "Read a file of a sandbox, or a part of it. Bytes that are not UTF-8 text come as base64. When truncated " +
			"is true there is more: read on at next_offset.",
	}, s.readFile)
	add(s, to, mcp.Tool{
		Name: "write_file", Annotations: &mcp.ToolAnnotations{DestructiveHint: &yes, IdempotentHint: true, OpenWorldHint: &no},
		Description: "Write a file in a sandbox, replacing what is there. Parent directories are made.",
	}, s.writeFile)
	add(s, to, mcp.Tool{
		Name: "list_files", Annotations: reads,
		Description: "List a directory of a sandbox, directories first. When cursor is not empty there is more: call again with it.",
	}, s.listFiles)
	add(s, to, mcp.Tool{
		Name: "kill_sandbox", Annotations: &mcp.ToolAnnotations{DestructiveHint: &yes, IdempotentHint: true, OpenWorldHint: &no},
		Description: "End a sandbox and everything in it, for good.",
	}, s.killSandbox)
}

type sandboxOut struct {
	ID        string `json:"id"`
	Status    string `json:"status"`
	Reason    string `json:"reason,omitempty" jsonschema:"why it failed"`
	Label     string `json:"label"`
	Image     string `json:"image"`
	Owner     string `json:"owner"`
	CreatedAt string `json:"created_at"`
}

func toSandbox(s workspace.Sandbox) sandboxOut {
	return sandboxOut{string(s.ID), string(s.Status), s.Reason, s.Label, s.Image, s.OwnerName, stamp(s.CreatedAt)}
}

type createIn struct {
	Label     string            `json:"label,omitempty" jsonschema:"a name for people to know it by, at most 200 characters"`
	Image     string            `json:"image,omitempty" jsonschema:"the root filesystem; base when absent"`
	Env       map[string]string `json:"env,omitempty" jsonschema:"environment of every command"`
	Resources resourcesIn       `json:"resources,omitzero" jsonschema:"limits; what is absent or 0 takes the default"`
}

type resourcesIn struct {
	CPU      float64 `json:"cpu,omitempty" jsonschema:"cores"`
	MemoryMB int64   `json:"memory_mb,omitempty" jsonschema:"MiB"`
	DiskMB   int64   `json:"disk_mb,omitempty" jsonschema:"MiB"`
	PIDs     int64   `json:"pids,omitempty" jsonschema:"processes"`
}

func (s *server) createSandbox(ctx context.Context, a auth.Actor, in createIn) (sandboxOut, error) {
	sb, err := s.o.Service.CreateSandbox(ctx, a, workspace.CreateOptions{
		Label: in.Label, Image: in.Image, Env: in.Env, Resources: sandbox.Resources(in.Resources),
	})
	if err != nil {
		return sandboxOut{}, err
	}
	return toSandbox(sb), nil
}

type sandboxesOut struct {
	Sandboxes []sandboxOut `json:"sandboxes"`
}

func (s *server) listSandboxes(ctx context.Context, a auth.Actor, _ struct{}) (sandboxesOut, error) {
	list, err := s.o.Service.Sandboxes(ctx, a)
	if err != nil {
		return sandboxesOut{}, err
	}
	out := sandboxesOut{Sandboxes: make([]sandboxOut, len(list))}
	for i, sb := range list {
		out.Sandboxes[i] = toSandbox(sb)
	}
	return out, nil
}

type runIn struct {
	Sandbox string            `json:"sandbox_id"`
	Command string            `json:"command" jsonschema:"a line for the shell"`
	Timeout int               `json:"timeout,omitempty" jsonschema:"seconds until the command and all its children are killed, 1 to 3600; 60 when absent"`
	Cwd     string            `json:"cwd,omitempty" jsonschema:"absolute path of the directory to run in"`
	Env     map[string]string `json:"env,omitempty" jsonschema:"added to the environment"`
	Stdin   string            `json:"stdin,omitempty" jsonschema:"text for standard input"`
	asking
	MaxOutput int `json:"max_output,omitempty" jsonschema:"bytes of stdout, and of stderr, to return, at most 262144; 32768 when absent"`
}

type runOut struct {
	Stdout    string  `json:"stdout"`
	Stderr    string  `json:"stderr"`
	ExitCode  int     `json:"exit_code"`
	TimedOut  bool    `json:"timed_out"`
	Truncated bool    `json:"truncated" jsonschema:"output was left out; a line in the text says where and how much"`
	Duration  float64 `json:"duration" jsonschema:"seconds"`
	ID        string  `json:"id" jsonschema:"of the command, as it stands in the record"`
}

// asking are the arguments of tools whose calls may have to be approved by a person.
type asking struct {
	ApprovalID string `json:"approval_id,omitempty" jsonschema:"of an earlier call with exactly the same arguments that answered approval_required"`
	Reason     string `json:"reason,omitempty" jsonschema:"why, for the person who may have to approve it"`
}

// in gives a context that waits for a decision as long as the REST face does.
func (a asking) in(ctx context.Context) context.Context {
	ctx, _ = approval.WithCall(ctx, approval.Call{ID: a.ApprovalID, Reason: a.Reason, Wait: approval.MaxWait})
	return ctx
}

func (s *server) runCommand(ctx context.Context, a auth.Actor, in runIn) (runOut, error) {
	if in.Timeout == 0 {
		in.Timeout = int(defaultTimeout.Seconds())
	}
	if in.MaxOutput == 0 {
		in.MaxOutput = defaultOutput
	}
	bad := map[string]string{}
	within(bad, "timeout", in.Timeout, 1, int(maxTimeout.Seconds()))
	within(bad, "max_output", in.MaxOutput, 1, maxShown)
	switch {
	case strings.TrimSpace(in.Command) == "":
		bad["command"] = "must not be empty"
	case len(in.Command) > maxCommand:
		bad["command"] = "is longer than " + strconv.Itoa(maxCommand) + " bytes: write a script into a file and run that"
	}
	if err := invalid(bad); err != nil {
		return runOut{}, err
	}
	ctx, release := s.o.Service.Guard(in.in(ctx), a, auth.SandboxesRun)
	defer release()
	spec := agent.CommandSpec{
		ID: sandbox.RandomID("cmd"), Command: in.Command, Cwd: in.Cwd, Env: in.Env, Stdin: []byte(in.Stdin),
		TimeoutMS: int64(in.Timeout) * 1000,
	}
	output := newOutput(in.MaxOutput)
	exit, err := s.o.Service.RunCommand(ctx, a, in.Sandbox, spec, output)
	if err != nil {
		if cause, ok := errors.AsType[*fault.Error](context.Cause(ctx)); ok && errors.Is(err, context.Canceled) {
			err = cause // the right to run was taken away meanwhile
		}
		return runOut{}, err
	}
	return runOut{
		Stdout: output.stdout.String(), Stderr: output.stderr.String(), ExitCode: exit.Code, TimedOut: exit.TimedOut,
		Truncated: exit.Truncated || output.stdout.cut() || output.stderr.cut(), Duration: exit.Duration, ID: spec.ID,
	}, nil
}

type readIn struct {
	Sandbox string `json:"sandbox_id"`
	Path    string `json:"path" jsonschema:"absolute"`
	Offset  int64  `json:"offset,omitempty" jsonschema:"byte to start at"`
	Limit   int    `json:"limit,omitempty" jsonschema:"most bytes to return, at most 262144; 65536 when absent"`
}

type readOut struct {
	Path       string `json:"path"`
	Content    string `json:"content"`
	Encoding   string `json:"encoding" jsonschema:"utf-8 or base64"`
	Size       int64  `json:"size" jsonschema:"bytes of the whole file"`
	Truncated  bool   `json:"truncated" jsonschema:"there is more after this part"`
	NextOffset int64  `json:"next_offset" jsonschema:"where the next part starts"`
}

func (s *server) readFile(ctx context.Context, a auth.Actor, in readIn) (out readOut, err error) {
	if in.Limit == 0 {
		in.Limit = defaultRead
	}
	bad := map[string]string{}
	within(bad, "limit", in.Limit, 1, maxShown)
	if in.Offset < 0 {
		bad["offset"] = "must not be negative"
	}
	if err := invalid(bad); err != nil {
		return out, err
	}
	// One byte more than is shown tells whether there is more: the size of a file in /proc does not.
	info, r, err := s.o.Service.ReadFile(ctx, a, in.Sandbox, []byte(in.Path), in.Offset, int64(in.Limit)+1)
	if err != nil {
		return out, err
	}
	p, err := io.ReadAll(io.LimitReader(r, int64(in.Limit)+1))
	if err := errors.Join(err, r.Close()); err != nil {
		return out, err
	}
	out = readOut{Path: in.Path, Encoding: "utf-8", Size: info.Size, Truncated: len(p) > in.Limit}
	if out.Truncated {
		p = p[:in.Limit]
		if n := openTail(p); n < len(p) { // half a character is left for the next part
			p = p[:len(p)-n]
		}
	}
	out.NextOffset = in.Offset + int64(len(p))
	if out.Content = string(p); !utf8.Valid(p) {
		out.Content, out.Encoding = base64.StdEncoding.EncodeToString(p), "base64"
	}
	return out, nil
}

type writeIn struct {
	Sandbox  string `json:"sandbox_id"`
	Path     string `json:"path" jsonschema:"absolute"`
	Content  string `json:"content"`
	Encoding string `json:"encoding,omitempty" jsonschema:"how content is written: utf-8, the default, or base64"`
	asking
}

type writeOut struct {
	Path string `json:"path"`
	Size int64  `json:"size" jsonschema:"bytes written"`
}

func (s *server) writeFile(ctx context.Context, a auth.Actor, in writeIn) (out writeOut, err error) {
	p := []byte(in.Content)
	switch in.Encoding {
	case "", "utf-8":
	case "base64":
		if p, err = base64.StdEncoding.DecodeString(in.Content); err != nil {
			return out, fault.Field("content", "is not base64")
		}
	default:
		return out, fault.Field("encoding", "must be utf-8 or base64")
	}
	if len(p) > maxWrite {
		return out, fault.New(fault.TooLarge, "A file can hold at most %d MiB here: download it inside the sandbox, or use the REST API.", maxWrite>>20)
	}
	_, err = s.o.Service.WriteFile(in.in(ctx), a, in.Sandbox, []byte(in.Path), bytes.NewReader(p), agent.WriteOptions{Size: int64(len(p))})
	return writeOut{in.Path, int64(len(p))}, err
}

type listIn struct {
	Sandbox string `json:"sandbox_id"`
	Path    string `json:"path,omitempty" jsonschema:"absolute; /work when absent"`
	Depth   int    `json:"depth,omitempty" jsonschema:"how many levels, 1 to 10; 1 when absent"`
	Limit   int    `json:"limit,omitempty" jsonschema:"most entries to return, at most 1000; 200 when absent"`
	Cursor  string `json:"cursor,omitempty" jsonschema:"from the answer before, to go on"`
}

type entryOut struct {
	Path       string `json:"path"`
	Type       string `json:"type" jsonschema:"file, directory, symlink or another"`
	Size       int64  `json:"size"`
	ModifiedAt string `json:"modified_at"`
}

type listOut struct {
	Entries []entryOut `json:"entries"`
	Total   int        `json:"total"`
	Cursor  string     `json:"cursor" jsonschema:"empty on the last page"`
}

func (s *server) listFiles(ctx context.Context, a auth.Actor, in listIn) (listOut, error) {
	if in.Path == "" {
		in.Path = agent.Workdir
	}
	if in.Depth == 0 {
		in.Depth = 1
	}
	if in.Limit == 0 {
		in.Limit = defaultEntries
	}
	bad := map[string]string{}
	within(bad, "depth", in.Depth, 1, maxDepth)
	within(bad, "limit", in.Limit, 1, maxEntries)
	if len(in.Cursor) > 8<<10 {
		bad["cursor"] = "must be one that an earlier answer gave"
	}
	if err := invalid(bad); err != nil {
		return listOut{}, err
	}
	l, err := s.o.Service.ListFiles(ctx, a, in.Sandbox, []byte(in.Path), in.Cursor, in.Limit, in.Depth)
	if err != nil {
		return listOut{}, err
	}
	out := listOut{Entries: make([]entryOut, len(l.Entries)), Total: l.Total, Cursor: l.Cursor}
	for i, f := range l.Entries {
		out.Entries[i] = entryOut{string(f.PathB64), f.Type, f.Size, stamp(f.ModifiedAt)}
	}
	return out, nil
}

type killIn struct {
	Sandbox string `json:"sandbox_id"`
}

type killOut struct {
	Success bool `json:"success"`
}

func (s *server) killSandbox(ctx context.Context, a auth.Actor, in killIn) (killOut, error) {
	err := s.o.Service.KillSandbox(ctx, a, in.Sandbox)
	return killOut{err == nil}, err
}

// within notes a number that is out of its bounds.
func within(bad map[string]string, name string, n, lo, hi int) {
	if n < lo || n > hi {
		bad[name] = "must be from " + strconv.Itoa(lo) + " to " + strconv.Itoa(hi)
	}
}

// invalid makes one error of all fields that are wrong.
func invalid(bad map[string]string) error {
	if len(bad) == 0 {
		return nil
	}
	err := fault.New(fault.Invalid, "Some arguments are not valid.")
	err.Fields = bad
	return err
}

// stamp writes a time as RFC 3339 in UTC.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
