package guest_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

// plant writes files by their names; a name that ends in / is a directory.
func plant(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		p := filepath.Join(root, name)
		if strings.HasSuffix(name, "/") {
			require.NoError(t, os.MkdirAll(p, 0o755))
			continue
		}
		require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
		require.NoError(t, os.WriteFile(p, []byte(text), 0o644))
	}
}

func hits(page agent.SearchPage, root string) (out []string) {
	for _, h := range page.Hits {
		out = append(out, strings.TrimPrefix(string(h.PathB64), root+"/"))
	}
	return out
}

func TestSearch(t *testing.T) {
	client, work := newAgent(t)
	ctx := within(t, 20*time.Second)
	plant(t, work, map[string]string{
		"a/one.py": "x\nneedle here\n", "a/two.txt": "needle", "b.py": strings.Repeat("y", 300<<10) + "needle", "c/\xff.py": "", "d/": "",
	})
	require.NoError(t, os.Symlink("/", filepath.Join(work, "loop")))
	require.NoError(t, unix.Mkfifo(filepath.Join(work, "pipe"), 0o600))

	page, err := client.Search(ctx, []byte(work), agent.SearchQuery{Name: "*.py", Limit: 100})
	require.NoError(t, err)
	require.Equal(t, []string{"a/one.py", "b.py", "c/\xff.py"}, hits(page, work))
	require.Empty(t, page.Cursor)

	page, err = client.Search(ctx, []byte(work), agent.SearchQuery{Content: []byte("needle"), Limit: 100})
	require.NoError(t, err)
	require.Equal(t, []string{"a/one.py", "a/two.txt", "b.py"}, hits(page, work))
	require.EqualValues(t, 2, page.Hits[0].Line)
	require.Equal(t, "needle here", string(page.Hits[0].Text))
	require.LessOrEqual(t, len(page.Hits[2].Text), agent.MaxExcerpt)
	require.Contains(t, string(page.Hits[2].Text), "needle")

	// Page by page it is the same, whatever the page's size.
	for limit := 1; limit < 4; limit++ {
		var all []string
		q := agent.SearchQuery{Name: "*", Limit: limit}
		for {
			page, err := client.Search(ctx, []byte(work), q)
			require.NoError(t, err)
			all = append(all, hits(page, work)...)
			if page.Cursor == "" {
				break
			}
			require.Equal(t, "limit", page.Stopped)
			q.Cursor = page.Cursor
		}
		require.Equal(t, []string{"a", "a/one.py", "a/two.txt", "b.py", "c", "c/\xff.py", "d", "loop", "pipe"}, all)
	}
	for _, q := range []agent.SearchQuery{{Name: "[", Limit: 1}, {Name: "a", Limit: 0}, {Name: "a", Limit: 1, Cursor: "?"}, {Name: "a/b", Limit: 1}} {
		_, err := client.Search(ctx, []byte(work), q)
		require.True(t, fault.Is(err, fault.Invalid), "%+v: %v", q, err)
	}
	_, err = client.Search(ctx, []byte(work+"/none"), agent.SearchQuery{Name: "a", Limit: 1})
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	_, err = client.Search(ctx, []byte(work+"/b.py"), agent.SearchQuery{Name: "a", Limit: 1})
	require.True(t, fault.Is(err, fault.BadRequest), "%v", err)
}

func TestCopyAndChmod(t *testing.T) {
	client, work := newAgent(t)
	ctx := within(t, 20*time.Second)
	plant(t, work, map[string]string{"a/x": "one", "a/b/y": "two"})
	require.NoError(t, os.Symlink("x", filepath.Join(work, "a/link")))
	info, err := client.Copy(ctx, []byte(work+"/a"), []byte(work+"/copy"))
	require.NoError(t, err)
	require.Equal(t, "directory", info.Type)
	text, err := os.ReadFile(work + "/copy/b/y")
	require.NoError(t, err)
	require.Equal(t, "two", string(text))
	target, err := os.Readlink(work + "/copy/link")
	require.NoError(t, err)
	require.Equal(t, "x", target)

	for _, c := range []struct {
		from, to string
		kind     fault.Kind
	}{
		{"/a", "/copy", fault.Conflict}, {"/a", "/a/inside", fault.BadRequest}, {"/none", "/z", fault.NotFound}, {"/a", "/none/z", fault.NotFound},
	} {
		_, err = client.Copy(ctx, []byte(work+c.from), []byte(work+c.to))
		require.True(t, fault.Is(err, c.kind), "%+v: %v", c, err)
	}
	_, err = client.Copy(ctx, []byte(work+"/a"), []byte("/proc/x"))
	require.True(t, fault.Is(err, fault.BadRequest), "%v", err)

	info, err = client.Chmod(ctx, []byte(work+"/a/x"), 0o751)
	require.NoError(t, err)
	require.EqualValues(t, 0o751, info.Mode)
	_, err = client.Chmod(ctx, []byte(work+"/a/link"), 0o600)
	require.True(t, fault.Is(err, fault.BadRequest), "%v", err)
	_, err = client.Chmod(ctx, []byte("/proc/version"), 0o600)
	require.True(t, fault.Is(err, fault.BadRequest), "%v", err)
	left, err := filepath.Glob(work + "/.sandgate*")
	require.NoError(t, err)
	require.Empty(t, left)
}

// watched collects the changes of a watch; stop ends it, and done gives how it ended.
func watched(t *testing.T, client *agent.Client, dir string, recursive bool) (<-chan agent.FileChange, context.CancelFunc, <-chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(within(t, 30*time.Second))
	changes, done := make(chan agent.FileChange, 1024), make(chan error, 1)
	go func() {
		done <- client.Watch(ctx, []byte(dir), recursive, func(c agent.FileChange) error { changes <- c; return nil })
	}()
	require.Equal(t, "ready", (<-changes).Type)
	return changes, cancel, done
}

func TestWatch(t *testing.T) {
	client, work := newAgent(t)
	plant(t, work, map[string]string{"a/x": "", "out/": ""})
	changes, stop, done := watched(t, client, work, true)
	next := func(kind, name string) agent.FileChange {
		t.Helper()
		for {
			select {
			case c := <-changes:
				if c.Type == kind && string(c.PathB64) == filepath.Join(work, name) {
					return c
				}
			case <-time.After(10 * time.Second):
				require.Fail(t, "no change came", "%s %s", kind, name)
			}
		}
	}
	require.NoError(t, os.WriteFile(work+"/a/x", []byte("1"), 0o644))
	next("write", "a/x")
	require.NoError(t, os.Chmod(work+"/a/x", 0o600))
	next("chmod", "a/x")
	require.NoError(t, os.Rename(work+"/a/x", work+"/a/y"))
	require.Equal(t, work+"/a/y", string(next("rename", "a/x").ToB64))
	require.NoError(t, os.Remove(work+"/a/y"))
	next("remove", "a/y")
	require.NoError(t, os.MkdirAll(work+"/new/deep", 0o755))
	require.True(t, next("create", "new").Directory)
	next("create", "new/deep")
	require.NoError(t, os.WriteFile(work+"/new/deep/f", nil, 0o644))
	next("create", "new/deep/f")
	// A directory that moves takes its watches along under its new name.
	require.NoError(t, os.Rename(work+"/new", work+"/old"))
	next("rename", "new")
	require.NoError(t, os.WriteFile(work+"/old/deep/g", nil, 0o644))
	next("create", "old/deep/g")
	stop()
	require.ErrorIs(t, <-done, context.Canceled)

	changes, _, done = watched(t, client, work+"/old", false)
	require.NoError(t, os.WriteFile(work+"/old/deep/h", nil, 0o644))
	require.NoError(t, os.RemoveAll(work+"/old"))
	for c := range changes {
		require.NotEqual(t, work+"/old/deep/h", string(c.PathB64), "not recursive")
		if c.Type == "gone" {
			break
		}
	}
	require.NoError(t, <-done)

	err := client.Watch(within(t, 5*time.Second), []byte(work+"/none"), false, nil)
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	err = client.Watch(within(t, 5*time.Second), []byte("/proc/version"), false, nil)
	require.True(t, fault.Is(err, fault.BadRequest), "%v", err)
}

func TestWatchesAreBounded(t *testing.T) {
	client, work := newAgent(t)
	var stops []context.CancelFunc
	for range agent.MaxWatchers {
		_, stop, _ := watched(t, client, work, false)
		stops = append(stops, stop)
	}
	err := client.Watch(within(t, 5*time.Second), []byte(work), false, nil)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	for _, stop := range stops {
		stop()
	}
	require.Eventually(t, func() bool { // the agent hears that the host left
		stopped := errors.New("enough")
		err := client.Watch(within(t, 5*time.Second), []byte(work), false, func(agent.FileChange) error { return stopped })
		return errors.Is(err, stopped)
	}, 60*time.Second, 20*time.Millisecond)
}

// entry is one of an archive under test.
type entry struct {
	name, text, link string
	kind             byte
}

func tarOf(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		if e.kind == 0 {
			e.kind = tar.TypeReg
		}
		require.NoError(t, w.WriteHeader(&tar.Header{Name: e.name, Typeflag: e.kind, Mode: 0o4750, Size: int64(len(e.text)), Linkname: e.link}))
		_, err := io.WriteString(w, e.text)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}

func gzipOf(t *testing.T, p []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(p)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.Bytes()
}

func zipOf(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, e := range entries {
		h := &zip.FileHeader{Name: e.name, Method: zip.Deflate}
		h.SetMode(0o640)
		if e.kind == tar.TypeSymlink {
			h.SetMode(os.ModeSymlink | 0o777)
			e.text = e.link
		}
		f, err := w.CreateHeader(h)
		require.NoError(t, err)
		_, err = io.WriteString(f, e.text)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}

func TestUnpack(t *testing.T) {
	client, work := newAgent(t)
	ctx := within(t, 20*time.Second)
	entries := []entry{{name: "d/f", text: "one"}, {name: "d/e/g", text: "two"}, {name: "d/l", link: "e/g", kind: tar.TypeSymlink}}
	for format, archive := range map[string][]byte{"tar": tarOf(t, entries...), "tar.gz": gzipOf(t, tarOf(t, entries...)), "zip": zipOf(t, entries...)} {
		for _, size := range []int64{int64(len(archive)), -1} {
			dir := fmt.Sprintf("%s/%s%d/new", work, format, size)
			u, err := client.Unpack(ctx, []byte(dir), format, bytes.NewReader(archive), size)
			require.NoError(t, err, format)
			require.Equal(t, agent.Unpacked{Files: 2, Directories: 2, Links: 1, Bytes: 6}, u)
			text, err := os.ReadFile(dir + "/d/l")
			require.NoError(t, err)
			require.Equal(t, "two", string(text))
			fi, err := os.Stat(dir + "/d/f")
			require.NoError(t, err)
			require.Zero(t, fi.Mode()&os.ModeSetuid)

			// Once more over what is there: files are replaced, others stay.
			plant(t, dir, map[string]string{"d/f": "old", "d/stays": "x"})
			_, err = client.Unpack(ctx, []byte(dir), format, bytes.NewReader(archive), size)
			require.NoError(t, err, format)
			text, err = os.ReadFile(dir + "/d/f")
			require.NoError(t, err)
			require.Equal(t, "one", string(text))
			require.FileExists(t, dir+"/d/stays")
		}
		// What cannot be whole changes nothing.
		_, err := client.Unpack(ctx, []byte(work+"/cut"), format, bytes.NewReader(archive[:len(archive)-len(archive)/2]), -1)
		require.True(t, fault.Is(err, fault.BadRequest), "%s: %v", format, err)
		_, err = client.Unpack(ctx, []byte(work+"/cut"), format, strings.NewReader("no archive at all"), -1)
		require.True(t, fault.Is(err, fault.BadRequest), "%s: %v", format, err)
		_, err = client.Unpack(ctx, []byte(work+"/cut"), format, bytes.NewReader(archive), int64(len(archive)+1))
		require.True(t, fault.Is(err, fault.BadRequest), "%s: %v", format, err)
		require.NoDirExists(t, work+"/cut")
	}
	left, err := filepath.Glob(work + "/*/.sandgate*")
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestUnpackRefusesWhatLeavesOrBursts(t *testing.T) {
	client, work := newAgent(t)
	ctx := within(t, 60*time.Second)
	link := func(name, to string) entry { return entry{name: name, link: to, kind: tar.TypeSymlink} }
	plant(t, work, map[string]string{"keep": "kept"})
	for what, entries := range map[string][]entry{
		"upwards":           {{name: "ok", text: "x"}, {name: "../keep", text: "bad"}},
		"upwards inside":    {{name: "a/../../keep", text: "bad"}},
		"absolute":          {{name: "/keep", text: "bad"}},
		"link out":          {link("l", "../keep")},
		"absolute link":     {link("l", "/etc/passwd")},
		"link through link": {link("x/y/d", "../.."), link("e", "x/y/d/../z")},
		"link as directory": {link("l", "a"), {name: "a/f", text: "x"}, {name: "l/f", text: "bad"}},
		"file as directory": {{name: "f", text: "x"}, {name: "f/g", text: "bad"}},
		"twice":             {{name: "f", text: "x"}, {name: "./f", text: "y"}},
		"over a link":       {link("l", "f"), {name: "l", text: "bad"}},
	} {
		for format, archive := range map[string][]byte{"tar": tarOf(t, entries...), "tar.gz": gzipOf(t, tarOf(t, entries...)), "zip": zipOf(t, entries...)} {
			_, err := client.Unpack(ctx, []byte(work+"/into"), format, bytes.NewReader(archive), -1)
			require.True(t, fault.Is(err, fault.Invalid), "%s %s: %v", format, what, err)
		}
	}
	for what, entries := range map[string][]entry{
		"device":              {{name: "d", kind: tar.TypeChar}},
		"pipe":                {{name: "d", kind: tar.TypeFifo}},
		"hard link out":       {{name: "d", kind: tar.TypeLink, link: "/etc/passwd"}},
		"hard link to a link": {link("l", "f"), {name: "d", kind: tar.TypeLink, link: "l"}},
	} {
		_, err := client.Unpack(ctx, []byte(work+"/into"), "tar", bytes.NewReader(tarOf(t, entries...)), -1)
		require.True(t, fault.Is(err, fault.Invalid), "%s: %v", what, err)
	}
	bomb := zipOf(t, entry{name: "zeros", text: strings.Repeat("\x00", agent.UnpackFree+(1<<20))})
	_, err := client.Unpack(ctx, []byte(work+"/into"), "zip", bytes.NewReader(bomb), -1)
	require.True(t, fault.Is(err, fault.Invalid), "bomb: %v", err)
	require.NoDirExists(t, work+"/into")

	// A link that stands in the place of a directory is not followed, and what is there stays.
	outside := t.TempDir()
	require.NoError(t, os.Mkdir(work+"/target", 0o755))
	require.NoError(t, os.Symlink(outside, work+"/target/d"))
	_, err = client.Unpack(ctx, []byte(work+"/target"), "tar", bytes.NewReader(tarOf(t, entry{name: "a", text: "x"}, entry{name: "d/f", text: "bad"})), -1)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.NoFileExists(t, outside+"/f")
	require.NoFileExists(t, work+"/target/a")
	_, err = client.Unpack(ctx, []byte(work+"/keep"), "tar", bytes.NewReader(tarOf(t, entry{name: "a", text: "x"})), -1)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	left, err := filepath.Glob(work + "/.sandgate*")
	require.NoError(t, err)
	require.Empty(t, left)
}
