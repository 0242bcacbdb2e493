package workspace

import (
	"context"
	"fmt"
	"io"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/files"
)

// SearchFiles gives a page of what is below a directory and matches. Needs read.
func (s *Service) SearchFiles(ctx context.Context, a auth.Actor, id string, path []byte, q agent.SearchQuery) (agent.SearchPage, error) {
	return fileRead(ctx, s, a, id, path, func(c *agent.Client, p []byte) (agent.SearchPage, error) { return c.Search(ctx, p, q) })
}

// WatchFiles tells out of changes in a directory, recursive in all below it, until ctx ends (nil), the directory is gone
// (nil), out fails, or the actor loses read, which is needed all the time. The first change is "ready".
func (s *Service) WatchFiles(ctx context.Context, a auth.Actor, id string, path []byte, recursive bool, out func(agent.FileChange) error) error {
	// Looking on is no use of the sandbox, however long it lasts.
	r, client, err := s.reach(ctx, a, approval.Action{Name: "file.read", SandboxID: id, Target: files.Display(path)}, auth.SandboxesRead)
	if err != nil {
		return err
	}
	clean, err := files.Clean(path)
	if err != nil {
		return err
	}
	guarded, release := s.Guard(ctx, a, auth.SandboxesRead)
	defer release()
	err = client.Watch(guarded, clean, recursive, out)
	if err != nil && guarded.Err() != nil {
		return s.explain(ctx, r, endOf(ctx, guarded))
	}
	return s.explain(ctx, r, err)
}

// CopyFile copies a file, a link itself or a directory; a destination that exists is a conflict. Needs run.
func (s *Service) CopyFile(ctx context.Context, a auth.Actor, id string, source, destination []byte) (agent.FileInfo, error) {
	return s.fileInfoChange(ctx, a, id, "file.copy", source, given(destination), nil, func(ctx context.Context, c *agent.Client, f *fileAct) (agent.FileInfo, string, error) {
		info, err := c.Copy(ctx, f.at, f.atDestination)
		return info, "", err
	})
}

// ChmodFile sets permission bits. Needs run.
func (s *Service) ChmodFile(ctx context.Context, a auth.Actor, id string, path []byte, mode uint32) (agent.FileInfo, error) {
	return s.fileInfoChange(ctx, a, id, "file.chmod", path, nil, func(f *fileAct) { f.mode = mode },
		func(ctx context.Context, c *agent.Client, f *fileAct) (agent.FileInfo, string, error) {
			info, err := c.Chmod(ctx, f.at, f.mode)
			return info, fmt.Sprintf("mode %04o", f.mode), err
		})
}

// UnpackFiles unpacks an archive ("tar", "tar.gz" or "zip") below a directory; one that is refused or breaks off changes nothing.
// size is the body's length, -1 when unknown. The record's outcome holds what was unpacked and the archive's SHA-256.
// Needs run.
func (s *Service) UnpackFiles(ctx context.Context, a auth.Actor, id string, path []byte, format string, body io.Reader, size int64) (agent.Unpacked, error) {
	f, err := newFileAct("file.unpack", path, nil)
	if err != nil {
		return agent.Unpacked{}, s.badPath(ctx, a, id, err)
	}
	f.body, f.format, f.write.Size = body, format, size
	return fileChange(ctx, s, a, id, f, func(ctx context.Context, c *agent.Client) (agent.Unpacked, string, error) {
		seen := newMeasured(f.reader())
		u, err := c.Unpack(ctx, f.at, f.format, seen, f.write.Size)
		n, digest := seen.soFar()
		if err == nil {
			findingsOf(ctx).facts.NewDigest = digest
		}
		return u, fmt.Sprintf("%d files, %d bytes, from %d bytes of %s", u.Files, u.Bytes, n, f.format), err
	})
}
