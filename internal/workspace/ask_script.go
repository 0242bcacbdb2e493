package workspace

import (
	"context"
	"fmt"
	"io"

	"sandgate/internal/approval"
	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

// maxScript bounds a script that is kept with a request, in bytes: all of them together stay below maxKept.
const maxScript = maxKept / approval.MaxScripts

// findScripts keeps the files that a command names to be run with its request, and says what it may run beside them.
func findScripts(ctx context.Context, client *agent.Client, c *agent.CommandSpec, to *approval.Request) error {
	list, unsure := approval.Scripts(c.Command, c.Cwd, c.Env)
	for _, script := range list {
		words, err := keepScript(ctx, client, script.Path, to)
		if err != nil {
			return err
		}
		if words != "" {
			to.Unbound = append(to.Unbound, fmt.Sprintf("%s %s: what it is when the command runs is not known.", script.Path, words))
		}
	}
	to.Unbound = append(to.Unbound, unsure...)
	if len(to.State) > 0 {
		to.Unbound = append(to.Unbound, "The scripts shown here are compared once more right before the command starts, and it is not started if one is another. "+
			"What replaces one after that moment, the command itself or another process in the sandbox, is not seen.")
	}
	return nil
}

// keepScript reads one; words say why it cannot be kept.
func keepScript(ctx context.Context, client *agent.Client, path string, to *approval.Request) (words string, err error) {
	place, err := client.Place(ctx, []byte(path), true)
	switch {
	case gone(ctx, err):
		return "cannot be looked at", nil
	case err != nil:
		return "", err
	case place.Type == "":
		return "is not there yet", nil
	case place.Type != "file":
		return "is no regular file", nil
	case place.Size > maxScript:
		return fmt.Sprintf("is larger than %d MiB and not kept", maxScript>>20), nil
	}
	info, data, err := readScript(ctx, client, place.PathB64, maxScript)
	switch {
	case gone(ctx, err) || err == nil && info.ETag != place.ETag:
		return "", fault.New(fault.Conflict, "A script changed while it was looked at. Ask again.")
	case err != nil:
		return "", err
	case int64(len(data)) != place.Size: // of the kernel's, such as those in /proc
		return "has no content of its own", nil
	}
	name := fmt.Sprint(approval.BlobScript, len(to.State))
	blob := approval.NewBlob(name, data, false, false)
	blob.Path = path
	to.Blobs = append(to.Blobs, blob)
	if to.State == nil {
		to.State = map[string]string{}
	}
	to.State[name] = string(place.PathB64)
	return "", nil
}

// scriptsOf gives what has to be where when a kept request is used.
func scriptsOf(kept *approval.Request) (out []agent.FileSum) {
	for _, b := range kept.Blobs {
		if b.Compared() {
			out = append(out, agent.FileSum{Path: []byte(b.Path), Real: []byte(kept.State[b.Name]), SHA256: b.SHA256, Size: b.Size})
		}
	}
	return out
}

// scriptChanged tells which script is not any more what a kept request says; "": none.
func scriptChanged(ctx context.Context, client *agent.Client, kept *approval.Request) (string, error) {
	for _, want := range scriptsOf(kept) {
		why := "the script " + string(want.Path) + " has changed"
		place, err := client.Place(ctx, want.Path, true)
		if gone(ctx, err) || err == nil && (string(place.PathB64) != string(want.Real) || place.Type != "file" || place.Size != want.Size) {
			return why, nil
		}
		if err != nil {
			return "", err
		}
		_, data, err := readScript(ctx, client, want.Real, want.Size)
		if gone(ctx, err) || err == nil && approval.Sum(data) != want.SHA256 {
			return why, nil
		}
		if err != nil {
			return "", err
		}
	}
	return "", nil
}

// readScript reads a file, at most one byte more than most.
func readScript(ctx context.Context, client *agent.Client, path []byte, most int64) (agent.FileInfo, []byte, error) {
	info, body, err := client.ReadFile(ctx, path, 0, most+1)
	if err != nil {
		return info, nil, err
	}
	defer body.Close()
	data, err := io.ReadAll(io.LimitReader(body, most+1))
	return info, data, err
}

// gone reports whether an error says something about the file, and not that nobody could be asked.
func gone(ctx context.Context, err error) bool {
	return err != nil && ctx.Err() == nil && (fault.Is(err, fault.NotFound) || fault.Is(err, fault.BadRequest) || fault.Is(err, fault.Invalid) || fault.Is(err, fault.Forbidden))
}
