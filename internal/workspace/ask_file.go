package workspace

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"

	"sandgate/internal/approval"
	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/files"
)

// fileAct is a change of files: what a caller asked for, and what is done. An approval takes its place whole.
type fileAct struct {
	name        string
	path        []byte // as it was asked for, tidied
	destination []byte // of a move or copy
	mode        uint32
	recursive   bool
	format      string
	write       agent.WriteOptions
	body        io.Reader // of a write or an archive

	at, atDestination []byte // where it is done: what was asked for, or what an approval found that to be
	content           []byte // the body, once it had to be kept
	kept              bool
}

// newFileAct tidies the paths.
func newFileAct(name string, path, destination []byte) (*fileAct, error) {
	clean, err := files.Clean(path)
	if err != nil {
		return nil, err
	}
	f := &fileAct{name: name, path: clean, at: clean}
	if destination != nil {
		if f.destination, err = files.Clean(destination); err != nil {
			return nil, err
		}
		f.atDestination = f.destination
	}
	return f, nil
}

// target is the act's place as the record shows it.
func (f *fileAct) target() string {
	if f.destination == nil {
		return files.Display(f.path)
	}
	return files.Display(f.path) + " → " + files.Display(f.destination)
}

// reader gives the body, kept or not.
func (f *fileAct) reader() io.Reader {
	if f.kept {
		return bytes.NewReader(f.content)
	}
	return f.body
}

// follows reports whether a last symlink is followed.
func (f *fileAct) follows() bool {
	return f.name == "file.write" || f.name == "file.mkdir" || f.name == "file.unpack"
}

// below reports whether it touches more than the paths that it names.
func (f *fileAct) below() bool {
	return f.recursive || f.name == "file.unpack" || f.name == "file.move" || f.name == "file.copy"
}

// keep reads the body into memory, for it has to wait.
func (f *fileAct) keep() error {
	if f.kept || f.body == nil {
		return nil
	}
	content, err := io.ReadAll(io.LimitReader(f.body, maxKept+1))
	switch {
	case err != nil:
		return err
	case len(content) > maxKept:
		return fault.New(fault.TooLarge, "This has to be approved, and what is kept until then may have at most %d MiB.", maxKept>>20)
	case f.write.Size >= 0 && int64(len(content)) != f.write.Size:
		return fault.New(fault.BadRequest, "The upload has another length than announced; nothing was changed.")
	}
	f.content, f.kept, f.write.Size = content, true, int64(len(content))
	return nil
}

// options are the conditions of a write as they are bound.
func (f *fileAct) options() (string, error) {
	text, err := json.Marshal(f.write)
	return string(text), err
}

// Names in State: where paths really were, and what was there.
const (
	statePath        = "path"
	stateOldType     = "old_type"
	stateOldTag      = "old_etag"
	stateOldSHA      = "old_sha256"
	stateDestination = "destination"
	stateDestTag     = "destination_etag"
)

// maxOld bounds what is replaced and kept to compare with, in bytes.
const maxOld = 1 << 20

// askFile tells how a change of files is put before a person.
func (s *Service) askFile(r sandbox.Record, client *agent.Client, f *fileAct) *asking {
	q := &asking{record: r}
	q.given = func(to *approval.Request) error {
		if err := f.keep(); err != nil {
			return err
		}
		options, err := f.options()
		if err != nil {
			return err
		}
		to.Params = map[string]string{
			"path": string(f.path), "destination": string(f.destination), "mode": fmt.Sprintf("%04o", f.mode), "recursive": strconv.FormatBool(f.recursive),
			"format": f.format, "options": options,
		}
		if f.kept {
			to.Blobs = append(to.Blobs, approval.NewBlob(approval.BlobContent, f.content, true, true))
		}
		return nil
	}
	q.found = func(ctx context.Context, to *approval.Request) error { return s.findFile(ctx, client, f, to) }
	q.changed = func(ctx context.Context, kept *approval.Request) (string, error) {
		now, err := placesOf(ctx, client, f)
		if err != nil {
			return "", err
		}
		for _, name := range []string{statePath, stateDestination} {
			if now[name] != kept.State[name] {
				return "the path leads to another place", nil
			}
		}
		for _, name := range []string{stateOldType, stateOldTag, stateDestTag} {
			if now[name] != kept.State[name] {
				return "what is at the path has changed", nil
			}
		}
		return "", nil
	}
	q.take = func(from *approval.Request) error {
		mode, err := strconv.ParseUint(from.Params["mode"], 8, 32)
		if err != nil {
			return fault.Wrap(err, fault.Conflict, "The kept request has no mode.")
		}
		var write agent.WriteOptions
		if err := json.Unmarshal([]byte(from.Params["options"]), &write); err != nil {
			return fault.Wrap(err, fault.Conflict, "The kept request has no options.")
		}
		f.path, f.mode, f.recursive = []byte(from.Params["path"]), uint32(mode), from.Params["recursive"] == "true"
		f.format, f.write = from.Params["format"], write
		f.at, f.atDestination, f.destination = []byte(from.State[statePath]), nil, nil
		if from.Params["destination"] != "" {
			f.destination, f.atDestination = []byte(from.Params["destination"]), []byte(from.State[stateDestination])
		}
		f.content, f.kept = nil, false
		if b := from.Blob(approval.BlobContent); b != nil {
			f.content, f.kept = slices.Clone(b.Data), true
		}
		return nil
	}
	q.paths = func(ctx context.Context) ([][]byte, error) {
		now, err := placesOf(ctx, client, f)
		out := [][]byte{[]byte(now[statePath])}
		if f.destination != nil {
			out = append(out, []byte(now[stateDestination]))
		}
		return out, err
	}
	q.below = f.below()
	q.taken = func(from *approval.Request) {
		// Between the last look and the change the file may be replaced: the agent looks once more.
		if f.name == "file.write" && f.write.IfMatch == "" && f.write.IfNoneMatch == "" {
			if f.write.IfMatch = from.State[stateOldTag]; f.write.IfMatch == "" {
				f.write.IfNoneMatch = "*"
			}
		}
	}
	return q
}

// placesOf asks inside where the act's paths are and what is there.
func placesOf(ctx context.Context, client *agent.Client, f *fileAct) (map[string]string, error) {
	p, err := client.Place(ctx, f.path, f.follows())
	if err != nil {
		return nil, err
	}
	out := map[string]string{statePath: string(p.PathB64), stateOldType: p.Type}
	if f.name != "file.unpack" && f.name != "file.mkdir" { // of directories that others write into, too
		out[stateOldTag] = p.ETag
	}
	if f.destination != nil {
		d, err := client.Place(ctx, f.destination, false)
		if err != nil {
			return nil, err
		}
		out[stateDestination], out[stateDestTag] = string(d.PathB64), d.ETag
	}
	return out, nil
}

// findFile writes down what is inside where the act would change something.
func (s *Service) findFile(ctx context.Context, client *agent.Client, f *fileAct, to *approval.Request) error {
	var err error
	if to.State, err = placesOf(ctx, client, f); err != nil {
		return err
	}
	kind := to.State[stateOldType]
	if f.name == "file.write" && kind == "file" {
		info, body, err := client.ReadFile(ctx, []byte(to.State[statePath]), 0, maxKept+1)
		if err != nil {
			return err
		}
		old, err := io.ReadAll(io.LimitReader(body, maxKept+1))
		_ = body.Close()
		if err != nil {
			return err
		}
		switch {
		case info.ETag != to.State[stateOldTag]:
			return fault.New(fault.Conflict, "The file keeps changing while it is looked at. Ask again.")
		case len(old) > maxKept:
			to.Unbound = append(to.Unbound, "What the file replaces is too large to be digested; it is bound by its inode, size and time of change.")
		default:
			to.State[stateOldSHA] = approval.Sum(old)
			if len(old) <= maxOld {
				to.Blobs = append(to.Blobs, approval.NewBlob(approval.BlobOld, old, false, false))
			}
		}
	}
	switch {
	case f.name == "file.unpack":
		to.Unbound = append(to.Unbound, "Which files the archive replaces is seen only when it is unpacked.")
	case f.name == "file.delete" && f.recursive && kind == "directory", f.name == "file.copy" && kind == "directory", f.name == "file.move" && kind == "directory":
		to.Unbound = append(to.Unbound, "What is in the directory when it happens may be other than now.")
	}
	return nil
}
