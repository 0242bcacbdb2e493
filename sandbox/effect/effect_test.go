package effect

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// layer makes an archive as the sentry writes one. A line is "path", "path=content", "path->target", "path/" (a directory),
// "path/!" (one that hides what is below), "path!" (a whiteout) or "path~target" (a hard link).
func layer(t *testing.T, lines ...string) *Tree {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, l := range lines {
		h := tar.Header{Mode: 0o644, Format: tar.FormatPAX}
		body := ""
		switch {
		case strings.HasSuffix(l, "/!"):
			h.Name, h.Typeflag, h.Mode = "./"+strings.TrimSuffix(l, "!"), tar.TypeDir, 0o755
			h.PAXRecords = map[string]string{opaqueMark: "y"}
		case strings.HasSuffix(l, "/"):
			h.Name, h.Typeflag, h.Mode = "./"+l, tar.TypeDir, 0o755
		case strings.HasSuffix(l, "!"):
			h.Name, h.Typeflag = "./"+strings.TrimSuffix(l, "!"), tar.TypeChar
		case strings.Contains(l, "->"):
			h.Name, h.Linkname, _ = strings.Cut("./"+l, "->")
			h.Typeflag, h.Mode = tar.TypeSymlink, 0o777
		case strings.Contains(l, "~"):
			h.Name, h.Linkname, _ = strings.Cut("./"+l, "~")
			h.Typeflag, h.Linkname = tar.TypeLink, "./"+h.Linkname
		default:
			h.Name, body, _ = strings.Cut("./"+l, "=")
			h.Typeflag, h.Size = tar.TypeReg, int64(len(body))
		}
		require.NoError(t, w.WriteHeader(&h))
		_, err := w.Write([]byte(body))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	tree := NewTree()
	require.NoError(t, tree.Add(&b, ".", 1<<30))
	return tree
}

func image() Base {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s), Mode: 0o644} }
	return Base{FS: fstest.MapFS{
		"etc/profile": file("one\ntwo\n"), "etc/issue": file("Debian\n"), "usr/doc/a": file("a"), "usr/doc/b/c": file("c"), "usr/doc-x": file("x"),
		"usr/man/old": file("old"), "usr": {Mode: fs.ModeDir | 0o755}, "etc": {Mode: fs.ModeDir | 0o755}, "bin": {Data: []byte("usr/bin"), Mode: fs.ModeSymlink | 0o777},
		"usr/man": {Mode: fs.ModeDir | 0o755}, "usr/doc": {Mode: fs.ModeDir | 0o755},
	}}
}

// said is a result in few words.
func said(t *testing.T, base Base, before, after *Tree) (out []string) {
	t.Helper()
	r, err := Compare(base, before, after)
	require.NoError(t, err)
	require.Equal(t, len(r.Changes), r.Added+r.Changed+r.Deleted)
	for _, c := range r.Changes {
		l := c.What + " " + c.Kind + " " + c.Path
		if c.Under > 0 {
			l += fmt.Sprintf(" with %d", c.Under)
		}
		if c.Was != "" {
			l += " was " + c.Was
		}
		out = append(out, l)
	}
	return out
}

func TestWhatALayerDoesToAnImage(t *testing.T) {
	for _, e := range []struct {
		name          string
		before, after []string
		want          []string
	}{
		{"nothing", nil, nil, nil},
		{"what was there before the command", []string{"work/", "work/a=1"}, []string{"work/", "work/a=1"}, nil},
		{"a copy without a change", nil, []string{"etc/", "etc/issue=Debian\n"}, nil},
		{"a new file", []string{"work/"}, []string{"work/", "work/a=1"}, []string{"added file /work/a"}},
		{"a file of the layer", []string{"work/a=1"}, []string{"work/a=2"}, []string{"changed file /work/a"}},
		{"a file of the image", nil, []string{"etc/", "etc/profile=one\n"}, []string{"changed file /etc/profile"}},
		{"a file that is gone", nil, []string{"etc/", "etc/issue!"}, []string{"deleted file /etc/issue"}},
		{"a file of the layer that is gone", []string{"work/", "work/a=1"}, []string{"work/"}, []string{"deleted file /work/a"}},
		{"one that was gone before", []string{"etc/issue!"}, []string{"etc/issue!"}, nil},
		{"one that is back", []string{"etc/issue!"}, []string{"etc/issue=Debian\n"}, []string{"added file /etc/issue"}},
		{"whiteouts are links of each other", nil, []string{"etc/issue!", "etc/profile~etc/issue"}, []string{"deleted file /etc/issue", "deleted file /etc/profile"}},
		{"a directory that is gone", nil, []string{"usr/", "usr/doc!"}, []string{"deleted directory /usr/doc with 2"}},
		{
			"what sorts between a directory and what is in it",
			[]string{"w/", "w/d/", "w/d/x=1", "w/d-e/", "w/d-e/y=1"},
			[]string{"w/"},
			[]string{"deleted directory /w/d with 1", "deleted directory /w/d-e with 1"},
		},
		{"a directory in place of another", nil, []string{"usr/man/!", "usr/man/new=n"}, []string{"added file /usr/man/new", "deleted file /usr/man/old"}},
		{"a file in place of a directory", nil, []string{"usr/doc=x"}, []string{"changed file /usr/doc was directory"}},
		{"a link in place of a file", nil, []string{"etc/issue->profile"}, []string{"changed symlink /etc/issue was file"}},
		{"another target", nil, []string{"bin->usr/sbin"}, []string{"changed symlink /bin"}},
		{"a hard link", []string{"w/a=1"}, []string{"w/a=1", "w/b~w/a"}, []string{"added file /w/b"}},
		{"names that lead out", nil, []string{"../../etc/shadow=x", "/abs=y"}, []string{"added file /abs", "added file /etc/shadow"}},
	} {
		t.Run(e.name, func(t *testing.T) {
			require.Equal(t, e.want, said(t, image(), layer(t, e.before...), layer(t, e.after...)))
		})
	}
}

func TestDifferencesByLines(t *testing.T) {
	r, err := Compare(image(), layer(t), layer(t, "etc/profile=one\nthree\n", "etc/new=n\n", "etc/bin=\x00\x01", "etc/issue!"))
	require.NoError(t, err)
	byPath := map[string]Change{}
	for _, c := range r.Changes {
		byPath[c.Path] = c
	}
	require.Contains(t, byPath["/etc/profile"].Diff, "-two\n+three\n")
	require.Contains(t, byPath["/etc/new"].Diff, "+n\n")
	require.Contains(t, byPath["/etc/issue"].Diff, "-Debian\n")
	require.Empty(t, byPath["/etc/bin"].Diff, "bytes that are no text are shown by their digest")
	require.Len(t, byPath["/etc/bin"].Digest, 64)
	require.NotEqual(t, byPath["/etc/profile"].Digest, byPath["/etc/profile"].OldDigest)

	long := layer(t, "etc/long="+strings.Repeat("line\n", 10_000))
	r, err = Compare(image(), layer(t), long)
	require.NoError(t, err)
	require.True(t, r.Changes[0].DiffCut)
	require.LessOrEqual(t, len(r.Changes[0].Diff), maxDiff)
}

func TestTreesAreBounded(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	require.NoError(t, w.WriteHeader(&tar.Header{Name: "sparse", Typeflag: tar.TypeReg, Size: 1 << 40}))
	require.ErrorIs(t, NewTree().Add(&b, ".", 1<<30), ErrTooMuch, "a size is believed before the bytes come")
	require.Error(t, NewTree().Add(strings.NewReader("no archive at all"), ".", 1<<30))

	lines := make([]string, 0, maxChanges+10)
	for i := range maxChanges + 10 {
		lines = append(lines, fmt.Sprintf("many/%d=x", i))
	}
	elsewhere := NewTree()
	b.Reset()
	w = tar.NewWriter(&b)
	for _, n := range []string{"tmp/x", "etc/passwd", ".sandgate-skipped.txt", "tmp/../../etc/shadow"} {
		require.NoError(t, w.WriteHeader(&tar.Header{Name: n, Typeflag: tar.TypeReg}))
	}
	require.NoError(t, w.Close())
	require.NoError(t, elsewhere.Add(&b, "/tmp", 1<<30))
	require.Equal(t, []string{"added file /tmp/x"}, said(t, Base{}, NewTree(), elsewhere), "an archive of one directory tells of no other")

	big := layer(t, lines...)
	r, err := Compare(Base{}, NewTree(), big)
	require.NoError(t, err)
	require.Len(t, r.Changes, maxChanges)
	require.Equal(t, maxChanges+10, r.Added)
}
