package workspace

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/audit"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/files"
	"sandgate/sandbox/idle"
)

// fileRead runs one reading call. Needs read.
func fileRead[T any](ctx context.Context, s *Service, a auth.Actor, id string, path []byte, do func(*agent.Client, []byte) (T, error)) (T, error) {
	var zero T
	r, client, done, err := s.use(ctx, a, approval.Action{Name: "file.read", SandboxID: id, Target: files.Display(path)}, auth.SandboxesRead, idle.Transfer)
	if err != nil {
		return zero, err
	}
	defer func() { done() }()
	clean, err := files.Clean(path)
	if err != nil {
		return zero, err
	}
	out, err := do(client, clean)
	if body, ok := any(&out).(lasting); ok && err == nil {
		body.until(done) // a transfer that is read after this call lasts until it is closed
		done = func() {}
	}
	return out, s.explain(ctx, r, err)
}

// fileChange runs one changing call through gate and record. Needs run.
func fileChange[T any](ctx context.Context, s *Service, a auth.Actor, id, name string, path []byte, target string,
	do func(context.Context, *agent.Client, []byte) (T, string, error),
) (T, error) {
	var out T
	what := approval.Action{Kind: approval.Write, Name: name, SandboxID: id, Target: files.Display(path) + target}
	r, client, done, err := s.use(ctx, a, what, auth.SandboxesRun, idle.Transfer)
	if err != nil {
		return out, err
	}
	defer done()
	clean, err := files.Clean(path)
	if err != nil {
		return out, err
	}
	err = s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		var detail string
		var err error
		out, detail, err = do(ctx, client, clean)
		return detail, s.explain(ctx, r, err)
	})
	return out, err
}

// StatFile describes a path.
func (s *Service) StatFile(ctx context.Context, a auth.Actor, id string, path []byte) (agent.FileInfo, error) {
	return fileRead(ctx, s, a, id, path, func(c *agent.Client, p []byte) (agent.FileInfo, error) { return c.Stat(ctx, p) })
}

// ListFiles gives a page of a directory.
func (s *Service) ListFiles(ctx context.Context, a auth.Actor, id string, path []byte, cursor string, limit, depth int) (agent.Listing, error) {
	return fileRead(ctx, s, a, id, path, func(c *agent.Client, p []byte) (agent.Listing, error) {
		return c.List(ctx, p, cursor, limit, depth)
	})
}

// opened is a file with its description.
type opened struct {
	info agent.FileInfo
	body io.ReadCloser
}

// lasting is what goes on after the call that opened it.
type lasting interface{ until(done func()) }

func (o *opened) until(done func()) { o.body = closing{o.body, done} }

// closing calls done when it is closed.
type closing struct {
	io.ReadCloser
	done func()
}

func (c closing) Close() error { defer c.done(); return c.ReadCloser.Close() }

// ReadFile opens a regular file from offset, at most length bytes (-1: all).
func (s *Service) ReadFile(ctx context.Context, a auth.Actor, id string, path []byte, offset, length int64) (agent.FileInfo, io.ReadCloser, error) {
	f, err := fileRead(ctx, s, a, id, path, func(c *agent.Client, p []byte) (opened, error) {
		info, body, err := c.ReadFile(ctx, p, offset, length)
		return opened{info, body}, err
	})
	return f.info, f.body, err
}

// PreviewFile gives what a page can show of a file.
func (s *Service) PreviewFile(ctx context.Context, a auth.Actor, id string, path []byte) (files.Preview, error) {
	return fileRead(ctx, s, a, id, path, func(c *agent.Client, p []byte) (files.Preview, error) { return files.PreviewOf(ctx, c, p) })
}

// ArchiveFiles streams a directory as "tar", "tar.gz" or "zip".
func (s *Service) ArchiveFiles(ctx context.Context, a auth.Actor, id string, path []byte, format string) (io.ReadCloser, error) {
	f, err := fileRead(ctx, s, a, id, path, func(c *agent.Client, p []byte) (opened, error) {
		body, err := c.Archive(ctx, p, format)
		return opened{body: body}, err
	})
	return f.body, err
}

// WriteFile replaces a file. The record's outcome holds how much was written and its SHA-256.
func (s *Service) WriteFile(ctx context.Context, a auth.Actor, id string, path []byte, body io.Reader, o agent.WriteOptions) (agent.FileInfo, error) {
	return fileChange(ctx, s, a, id, "file.write", path, "", func(ctx context.Context, c *agent.Client, p []byte) (agent.FileInfo, string, error) {
		seen := &measured{r: body, sum: sha256.New()}
		info, err := c.WriteFile(ctx, p, seen, o)
		if err == nil {
			findingsOf(ctx).facts = audit.Facts{OldDigest: info.Replaced, NewDigest: hex.EncodeToString(seen.sum.Sum(nil))}
		}
		return info, fmt.Sprintf("%d bytes", seen.n), err
	})
}

// measured counts and digests what passes.
type measured struct {
	r   io.Reader
	sum hash.Hash
	n   int64
}

func (m *measured) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	m.n += int64(n)
	m.sum.Write(p[:n])
	return n, err
}

// MakeDirectory makes one with its parents.
func (s *Service) MakeDirectory(ctx context.Context, a auth.Actor, id string, path []byte) (agent.FileInfo, error) {
	return fileChange(ctx, s, a, id, "file.mkdir", path, "", func(ctx context.Context, c *agent.Client, p []byte) (agent.FileInfo, string, error) {
		info, err := c.Mkdir(ctx, p)
		return info, "", err
	})
}

// MoveFile renames; a destination that exists is a conflict.
func (s *Service) MoveFile(ctx context.Context, a auth.Actor, id string, source, destination []byte) (agent.FileInfo, error) {
	to := " → " + files.Display(destination)
	return fileChange(ctx, s, a, id, "file.move", source, to, func(ctx context.Context, c *agent.Client, p []byte) (agent.FileInfo, string, error) {
		dest, err := files.Clean(destination)
		if err != nil {
			return agent.FileInfo{}, "", err
		}
		info, err := c.Move(ctx, p, dest, false)
		return info, "", err
	})
}

// DeleteFile removes.
func (s *Service) DeleteFile(ctx context.Context, a auth.Actor, id string, path []byte, recursive bool) error {
	_, err := fileChange(ctx, s, a, id, "file.delete", path, "", func(ctx context.Context, c *agent.Client, p []byte) (struct{}, string, error) {
		detail := ""
		if recursive {
			detail = "with everything in it"
		}
		return struct{}{}, detail, c.Delete(ctx, p, recursive)
	})
	return err
}
