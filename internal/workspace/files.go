package workspace

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"sync"

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

// fileChange runs one changing call through gate and record. do does what f says at that moment: an approval may have
// taken its place. Needs run.
func fileChange[T any](ctx context.Context, s *Service, a auth.Actor, id string, f *fileAct, do func(context.Context, *agent.Client) (T, string, error)) (T, error) {
	var out T
	what := approval.Action{Kind: approval.Write, Name: f.name, SandboxID: id, Target: f.target()}
	r, client, done, err := s.use(ctx, a, what, auth.SandboxesRun, idle.Transfer)
	if err != nil {
		return out, err
	}
	defer done()
	err = s.changeAsking(ctx, a, what, s.askFile(r, client, f), func(ctx context.Context) (string, error) {
		var detail string
		var err error
		out, detail, err = do(ctx, client)
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
	f, err := newFileAct("file.write", path, nil)
	if err != nil {
		return agent.FileInfo{}, s.badPath(ctx, a, id, err)
	}
	f.body, f.write = body, o
	return fileChange(ctx, s, a, id, f, func(ctx context.Context, c *agent.Client) (agent.FileInfo, string, error) {
		seen := newMeasured(f.reader())
		info, err := c.WriteFile(ctx, f.at, seen, f.write)
		n, digest := seen.soFar()
		if err == nil {
			findingsOf(ctx).facts = audit.Facts{OldDigest: info.Replaced, NewDigest: digest}
		}
		return info, fmt.Sprintf("%d bytes", n), err
	})
}

// measured counts and digests what passes. It may still be read when an answer has come already: HTTP sends a body beside.
type measured struct {
	r io.Reader

	mu  sync.Mutex
	sum hash.Hash
	n   int64
}

func newMeasured(r io.Reader) *measured { return &measured{r: r, sum: sha256.New()} }

func (m *measured) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.n += int64(n)
	m.sum.Write(p[:n])
	return n, err
}

// soFar gives the count and the digest, in hex, of what has passed.
func (m *measured) soFar() (n int64, digest string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.n, hex.EncodeToString(m.sum.Sum(nil))
}

// badPath gives the error of a path that cannot be one, but to who may not change files that they may not.
func (s *Service) badPath(ctx context.Context, a auth.Actor, id string, bad error) error {
	if _, _, err := s.reach(ctx, a, approval.Action{Kind: approval.Write, Name: "file.write", SandboxID: id}, auth.SandboxesRun); err != nil {
		return err
	}
	return bad
}

// fileInfoChange is fileChange for calls that answer with a description.
func (s *Service) fileInfoChange(ctx context.Context, a auth.Actor, id, name string, path, destination []byte, set func(*fileAct),
	do func(context.Context, *agent.Client, *fileAct) (agent.FileInfo, string, error),
) (agent.FileInfo, error) {
	f, err := newFileAct(name, path, destination)
	if err != nil {
		return agent.FileInfo{}, s.badPath(ctx, a, id, err)
	}
	if set != nil {
		set(f)
	}
	return fileChange(ctx, s, a, id, f, func(ctx context.Context, c *agent.Client) (agent.FileInfo, string, error) { return do(ctx, c, f) })
}

// MakeDirectory makes one with its parents.
func (s *Service) MakeDirectory(ctx context.Context, a auth.Actor, id string, path []byte) (agent.FileInfo, error) {
	return s.fileInfoChange(ctx, a, id, "file.mkdir", path, nil, nil, func(ctx context.Context, c *agent.Client, f *fileAct) (agent.FileInfo, string, error) {
		info, err := c.Mkdir(ctx, f.at)
		return info, "", err
	})
}

// MoveFile renames; a destination that exists is a conflict.
func (s *Service) MoveFile(ctx context.Context, a auth.Actor, id string, source, destination []byte) (agent.FileInfo, error) {
	return s.fileInfoChange(ctx, a, id, "file.move", source, given(destination), nil, func(ctx context.Context, c *agent.Client, f *fileAct) (agent.FileInfo, string, error) {
		info, err := c.Move(ctx, f.at, f.atDestination, false)
		return info, "", err
	})
}

// given makes a path that was given, if only as an empty one.
func given(p []byte) []byte {
	if p == nil {
		return []byte{}
	}
	return p
}

// DeleteFile removes. The record's outcome holds the SHA-256 of a regular file.
func (s *Service) DeleteFile(ctx context.Context, a auth.Actor, id string, path []byte, recursive bool) error {
	_, err := s.fileInfoChange(ctx, a, id, "file.delete", path, nil, func(f *fileAct) { f.recursive = recursive },
		func(ctx context.Context, c *agent.Client, f *fileAct) (agent.FileInfo, string, error) {
			detail := ""
			if f.recursive {
				detail = "with everything in it"
			}
			deleted, err := c.Delete(ctx, f.at, f.recursive)
			if err == nil {
				findingsOf(ctx).facts = audit.Facts{OldDigest: deleted.Was}
			}
			return agent.FileInfo{}, detail, err
		})
	return err
}
