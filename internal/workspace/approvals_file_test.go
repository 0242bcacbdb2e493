package workspace_test

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/internal/approval"
	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

func (c *court) write(ctx context.Context, box, path, text string) error {
	_, err := c.WriteFile(ctx, c.ann, box, []byte(path), strings.NewReader(text), agent.WriteOptions{Size: int64(len(text))})
	return err
}

func (c *court) approve(t *testing.T, id string) {
	t.Helper()
	v, err := c.Approval(t.Context(), c.judy, id)
	require.NoError(t, err)
	_, err = c.ApproveRequest(t.Context(), c.judy, id, v.Digest)
	require.NoError(t, err)
}

func holds(t *testing.T, path, want string) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, string(text))
}

// What is written is what was approved, where it was approved, over what it was to replace; else nothing is.
func TestAWriteIsBoundToItsBytesAndItsPlace(t *testing.T) {
	c := newCourt(t)
	ctx := t.Context()
	box := c.asks(t, approval.Policy{Write: approval.AskIt})
	file, other := filepath.Join(c.tmp, "a"), filepath.Join(c.tmp, "b")
	require.NoError(t, os.WriteFile(file, []byte("old"), 0o600))
	require.NoError(t, os.WriteFile(other, []byte("other"), 0o600))

	id := waits(t, c.write(ctx, box, file, "new"))
	v, err := c.Approval(ctx, c.judy, id)
	require.NoError(t, err)
	require.Equal(t, approval.Sum([]byte("old")), v.Request.State["old_sha256"])
	for name, want := range map[string]string{approval.BlobContent: "new", approval.BlobOld: "old"} {
		data, err := c.ApprovalContent(ctx, c.judy, id, name)
		require.NoError(t, err)
		require.Equal(t, want, string(data))
	}
	c.approve(t, id)
	wantKind(t, c.write(named(ctx, id), box, file, "new!"), fault.Conflict)
	wantKind(t, c.write(named(ctx, id), box, other, "new"), fault.Conflict)
	require.NoError(t, c.write(named(ctx, id), box, file, "new"))
	holds(t, file, "new")
	wantKind(t, c.write(named(ctx, id), box, file, "new"), fault.Conflict)

	t.Run("what it replaces has changed", func(t *testing.T) {
		id := waits(t, c.write(ctx, box, file, "newer"))
		c.approve(t, id)
		require.NoError(t, os.WriteFile(file, []byte("meanwhile"), 0o600))
		wantKind(t, c.write(named(ctx, id), box, file, "newer"), fault.Conflict)
		holds(t, file, "meanwhile")
		v, err := c.Approval(ctx, c.judy, id)
		require.NoError(t, err)
		require.Equal(t, approval.Void, v.Status)
	})
	t.Run("a link leads elsewhere", func(t *testing.T) {
		link := filepath.Join(c.tmp, "link")
		require.NoError(t, os.Symlink(file, link))
		id := waits(t, c.write(ctx, box, link, "through"))
		v, err := c.Approval(ctx, c.judy, id)
		require.NoError(t, err)
		require.Equal(t, file, v.Request.State["path"], "an approver sees where it really goes")
		c.approve(t, id)
		require.NoError(t, os.Remove(link))
		require.NoError(t, os.Symlink(other, link))
		wantKind(t, c.write(named(ctx, id), box, link, "through"), fault.Conflict)
		holds(t, other, "other")
		holds(t, file, "meanwhile")
	})
	t.Run("something is there now", func(t *testing.T) {
		fresh := filepath.Join(c.tmp, "dir", "fresh")
		id := waits(t, c.write(ctx, box, fresh, "1"))
		c.approve(t, id)
		require.NoError(t, os.Mkdir(filepath.Dir(fresh), 0o700))
		require.NoError(t, os.WriteFile(fresh, []byte("mine"), 0o600))
		wantKind(t, c.write(named(ctx, id), box, fresh, "1"), fault.Conflict)
		holds(t, fresh, "mine")
	})
	t.Run("too large to be kept", func(t *testing.T) {
		_, err := c.WriteFile(ctx, c.ann, box, []byte(file), bytes.NewReader(make([]byte, 17<<20)), agent.WriteOptions{Size: 17 << 20})
		wantKind(t, err, fault.TooLarge)
	})
}

// Every change of files asks, and does what it was approved for.
func TestEveryChangeOfFilesAsks(t *testing.T) {
	c := newCourt(t)
	box := c.asks(t, approval.Policy{Write: approval.AskIt})
	at := func(name string) []byte { return []byte(filepath.Join(c.tmp, name)) }
	require.NoError(t, os.WriteFile(string(at("x")), []byte("x"), 0o600))
	var archive bytes.Buffer
	tw := tar.NewWriter(&archive)
	require.NoError(t, tw.WriteHeader(&tar.Header{Name: "in", Mode: 0o600}))
	require.NoError(t, tw.Close())
	for _, step := range []struct {
		name string
		do   func(ctx context.Context) error
		done func() bool
	}{
		{"mkdir", func(ctx context.Context) error { _, err := c.MakeDirectory(ctx, c.ann, box, at("d")); return err }, exists(at("d"))},
		{"copy", func(ctx context.Context) error { _, err := c.CopyFile(ctx, c.ann, box, at("x"), at("y")); return err }, exists(at("y"))},
		{"move", func(ctx context.Context) error { _, err := c.MoveFile(ctx, c.ann, box, at("y"), at("z")); return err }, exists(at("z"))},
		{"chmod", func(ctx context.Context) error { _, err := c.ChmodFile(ctx, c.ann, box, at("x"), 0o640); return err }, func() bool {
			fi, err := os.Stat(string(at("x")))
			return err == nil && fi.Mode().Perm() == 0o640
		}},
		{"unpack", func(ctx context.Context) error {
			_, err := c.UnpackFiles(ctx, c.ann, box, at("u"), "tar", bytes.NewReader(archive.Bytes()), int64(archive.Len()))
			return err
		}, exists(at("u/in"))},
		{"delete", func(ctx context.Context) error { return c.DeleteFile(ctx, c.ann, box, at("u"), true) }, func() bool { return !exists(at("u"))() }},
	} {
		t.Run(step.name, func(t *testing.T) {
			id := waits(t, step.do(t.Context()))
			require.False(t, step.done(), "nothing before the yes")
			c.approve(t, id)
			require.False(t, step.done(), "a yes alone does nothing")
			require.NoError(t, step.do(named(t.Context(), id)))
			require.True(t, step.done())
		})
	}
}

func exists(p []byte) func() bool {
	return func() bool { _, err := os.Lstat(string(p)); return err == nil }
}

// A rule about a path is about where it really leads.
func TestPathRulesLookBehindLinks(t *testing.T) {
	c := newCourt(t)
	secret := filepath.Join(c.tmp, "secret")
	require.NoError(t, os.Mkdir(secret, 0o700))
	require.NoError(t, os.Symlink(secret, filepath.Join(c.tmp, "open")))
	box := c.asks(t, approval.Policy{Rules: []approval.Rule{{Kind: approval.Write, Answer: approval.Deny, Path: secret + "/**"}}})
	require.NoError(t, c.write(t.Context(), box, filepath.Join(c.tmp, "free"), "x"))
	wantKind(t, c.write(t.Context(), box, filepath.Join(c.tmp, "open", "x"), "x"), fault.ApprovalDenied)
	wantKind(t, c.DeleteFile(t.Context(), c.ann, box, []byte(c.tmp), true), fault.ApprovalDenied)
}
