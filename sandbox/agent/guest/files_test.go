package guest_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

func write(t testing.TB, c *agent.Client, path string, content []byte, o agent.WriteOptions) (agent.FileInfo, error) {
	t.Helper()
	return c.WriteFile(within(t, 30*time.Second), []byte(path), bytes.NewReader(content), o)
}

func read(t testing.TB, c *agent.Client, path string, offset, length int64) (agent.FileInfo, []byte, error) {
	t.Helper()
	info, r, err := c.ReadFile(within(t, 30*time.Second), []byte(path), offset, length)
	if err != nil {
		return info, nil, err
	}
	defer r.Close()
	content, err := io.ReadAll(r)
	return info, content, err
}

func kind(t testing.TB, want fault.Kind, err error) {
	t.Helper()
	require.Equal(t, want, fault.KindOf(err), "%v", err)
}

func TestFilesComeBackExact(t *testing.T) {
	client, work := newAgent(t)
	for _, size := range []int{0, 1, 256, 256 << 10, 256<<10 + 1, 3_000_000} {
		content := make([]byte, size)
		_, _ = rand.Read(content)
		for _, announced := range []int64{int64(size), -1} {
			path := fmt.Sprintf("%s/deep/er/%d-%d", work, size, announced)
			info, err := write(t, client, path, content, agent.WriteOptions{Size: announced})
			require.NoError(t, err)
			require.Equal(t, int64(size), info.Size)
			require.Equal(t, uint32(0o644), info.Mode)
			require.Equal(t, path, string(info.PathB64))
			back, got, err := read(t, client, path, 0, -1)
			require.NoError(t, err)
			require.True(t, bytes.Equal(content, got))
			require.Equal(t, info.ETag, back.ETag)
			if size > 10 {
				_, got, err = read(t, client, path, 5, int64(size)-7)
				require.NoError(t, err)
				require.True(t, bytes.Equal(content[5:size-2], got))
			}
			_, got, err = read(t, client, path, int64(size), -1)
			require.NoError(t, err)
			require.Empty(t, got)
			_, _, err = read(t, client, path, int64(size)+1, -1)
			kind(t, fault.Range, err)
		}
	}
}

func TestWriteConditions(t *testing.T) {
	client, work := newAgent(t)
	path := work + "/f"
	_, err := write(t, client, path, nil, agent.WriteOptions{IfMatch: "*"})
	kind(t, fault.Precondition, err)
	one, err := write(t, client, path, []byte("one"), agent.WriteOptions{IfNoneMatch: "*", Size: 3})
	require.NoError(t, err)
	_, err = write(t, client, path, []byte("two"), agent.WriteOptions{IfNoneMatch: "*", Size: 3})
	kind(t, fault.Precondition, err)
	require.NoError(t, syscall.Chmod(path, 0o4750))
	one, err = client.Stat(within(t, 10*time.Second), []byte(path))
	require.NoError(t, err)
	two, err := write(t, client, path, []byte("two"), agent.WriteOptions{IfMatch: one.ETag, Size: 3})
	require.NoError(t, err)
	require.NotEqual(t, one.ETag, two.ETag, "same size, same second")
	require.Equal(t, uint32(0o4750), two.Mode)
	large := make([]byte, 1<<20)
	for _, content := range [][]byte{[]byte("abc"), large} {
		_, err = write(t, client, path, content, agent.WriteOptions{IfMatch: one.ETag, Size: int64(len(content))})
		kind(t, fault.Precondition, err)
		_, err = write(t, client, path, content, agent.WriteOptions{Size: int64(len(content)) + 1})
		kind(t, fault.BadRequest, err)
		_, err = write(t, client, path, content, agent.WriteOptions{Size: int64(len(content)) - 1})
		kind(t, fault.BadRequest, err)
		_, err = client.WriteFile(within(t, 10*time.Second), []byte(path),
			io.MultiReader(bytes.NewReader(content), broken{}), agent.WriteOptions{Size: -1})
		require.True(t, errors.Is(err, errBroken), "%v", err)
	}
	_, got, err := read(t, client, path, 0, -1)
	require.NoError(t, err)
	require.Equal(t, "two", string(got))
	require.Eventually(t, func() bool {
		entries, err := os.ReadDir(work)
		return err == nil && len(entries) == 1
	}, 60*time.Second, 5*time.Millisecond, "a temporary file is left")

	var wins sync.Map
	var wg sync.WaitGroup
	now, err := client.Stat(within(t, 10*time.Second), []byte(path))
	require.NoError(t, err)
	for i := range 8 {
		wg.Go(func() {
			_, err := client.WriteFile(context.Background(), []byte(path), strings.NewReader(fmt.Sprint(i)), agent.WriteOptions{Size: 1, IfMatch: now.ETag})
			if err == nil {
				wins.Store(i, true)
			} else if !fault.Is(err, fault.Precondition) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	n := 0
	wins.Range(func(any, any) bool { n++; return true })
	require.Equal(t, 1, n, "of parallel writes on one ETag exactly one wins")
}

var errBroken = errors.New("the source broke")

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errBroken }

func TestWriteFollowsLinks(t *testing.T) {
	client, work := newAgent(t)
	require.NoError(t, os.Mkdir(work+"/d", 0o755))
	require.NoError(t, os.Symlink("d/target", work+"/rel"))
	require.NoError(t, os.Symlink(work+"/loop", work+"/loop"))
	_, err := write(t, client, work+"/rel", []byte("x"), agent.WriteOptions{Size: 1})
	require.NoError(t, err)
	got, err := os.ReadFile(work + "/d/target")
	require.NoError(t, err)
	require.Equal(t, "x", string(got))
	target, err := os.Readlink(work + "/rel")
	require.NoError(t, err)
	require.Equal(t, "d/target", target)
	_, err = write(t, client, work+"/loop", []byte("x"), agent.WriteOptions{Size: 1})
	kind(t, fault.BadRequest, err)
}

func TestWhatIsNoFileIsRefusedAtOnce(t *testing.T) {
	client, work := newAgent(t)
	require.NoError(t, syscall.Mkfifo(work+"/fifo", 0o600))
	require.NoError(t, os.Symlink("/dev/zero", work+"/zero"))
	require.NoError(t, os.Symlink("nowhere", work+"/dangling"))
	start := time.Now()
	for _, path := range []string{work, work + "/fifo", work + "/zero", "/dev/null", "/dev/tty", "/proc/self/fd"} {
		_, _, err := read(t, client, path, 0, -1)
		kind(t, fault.BadRequest, err)
		_, err = write(t, client, path, []byte("x"), agent.WriteOptions{Size: 1})
		kind(t, fault.BadRequest, err)
	}
	for _, path := range []string{work + "/missing", work + "/dangling", "/etc/passwd/x"} {
		_, _, err := read(t, client, path, 0, -1)
		kind(t, fault.NotFound, err)
	}
	_, _, err := read(t, client, work+"/"+strings.Repeat("n", 300), 0, -1)
	kind(t, fault.Invalid, err)
	for _, path := range []string{"", "relative", "/a\x00", "/" + strings.Repeat("a/", 2500)} {
		_, _, err := read(t, client, path, 0, -1)
		kind(t, fault.Invalid, err)
	}
	_, got, err := read(t, client, "/proc/version", 0, -1)
	require.NoError(t, err)
	require.Contains(t, string(got), "Linux")
	require.Less(t, time.Since(start), 30*time.Second, "nothing hangs")
	info, err := client.Stat(within(t, 10*time.Second), []byte(work+"/dangling"))
	require.NoError(t, err)
	require.Equal(t, "symlink", info.Type)
	require.Equal(t, "nowhere", string(info.TargetB64))
	require.Empty(t, info.TargetType)
}

func TestNamesAreBytes(t *testing.T) {
	client, work := newAgent(t)
	ctx := within(t, 20*time.Second)
	for _, name := range []string{"caf\xe9.txt", "\xff\xfe", "a\xcc\x81", "\xc3\xa1", "new\nline", "-rf", `back\slash`, " "} {
		path := work + "/" + name
		_, err := write(t, client, path, []byte(name), agent.WriteOptions{Size: -1})
		require.NoError(t, err)
		_, got, err := read(t, client, path, 0, -1)
		require.NoError(t, err)
		require.Equal(t, name, string(got))
		l, err := client.List(ctx, []byte(work), "", 10, 1)
		require.NoError(t, err)
		require.Len(t, l.Entries, 1)
		require.Equal(t, name, string(l.Entries[0].NameB64))
		_, err = client.Move(ctx, []byte(path), []byte(path+"\xf0"), false)
		require.NoError(t, err)
		require.NoError(t, remove(ctx, client, []byte(path+"\xf0"), false))
	}
}

func TestListing(t *testing.T) {
	client, work := newAgent(t)
	ctx := within(t, 30*time.Second)
	for _, d := range []string{"z", "b/x/deep", "b/y"} {
		require.NoError(t, os.MkdirAll(filepath.Join(work, d), 0o755))
	}
	for _, f := range []string{"a", "b/f", "b/x/g", "c"} {
		require.NoError(t, os.WriteFile(filepath.Join(work, f), nil, 0o600))
	}
	require.NoError(t, os.Symlink("b", work+"/link"))
	walk := func(limit, depth int) (paths []string, total int) {
		for cursor := ""; ; {
			l, err := client.List(ctx, []byte(work), cursor, limit, depth)
			require.NoError(t, err)
			require.LessOrEqual(t, len(l.Entries), limit)
			for _, e := range l.Entries {
				paths = append(paths, strings.TrimPrefix(string(e.PathB64), work+"/"))
			}
			if cursor = l.Cursor; cursor == "" {
				return paths, l.Total
			}
		}
	}
	flat := []string{"b", "z", "a", "c", "link"}
	deep := []string{"b", "b/x", "b/x/deep", "b/x/g", "b/y", "b/f", "z", "a", "c", "link"}
	for limit := 1; limit <= 11; limit++ {
		paths, total := walk(limit, 1)
		require.Equal(t, flat, paths)
		require.Equal(t, len(flat), total)
		paths, total = walk(limit, 10)
		require.Equal(t, deep, paths)
		require.Equal(t, len(deep), total)
	}
	_, err := client.List(ctx, []byte(work+"/a"), "", 10, 1)
	kind(t, fault.BadRequest, err)
	_, err = client.List(ctx, []byte(work), "nonsense", 10, 1)
	kind(t, fault.Invalid, err)
}

func TestBigDirectory(t *testing.T) {
	client, work := newAgent(t)
	for i := range 65_000 {
		fd, err := syscall.Open(fmt.Sprintf("%s/%06d", work, i), syscall.O_CREAT|syscall.O_WRONLY, 0o600)
		require.NoError(t, err)
		require.NoError(t, syscall.Close(fd))
	}
	l, err := client.List(within(t, 60*time.Second), []byte(work), "", 200, 1)
	require.NoError(t, err)
	require.Equal(t, 65_000, l.Total)
	require.Equal(t, "000199", string(l.Entries[199].NameB64))
}

func TestChanges(t *testing.T) {
	client, work := newAgent(t)
	ctx := within(t, 30*time.Second)
	p := func(s string) []byte { return []byte(work + "/" + s) }
	info, err := client.Mkdir(ctx, p("a/b"))
	require.NoError(t, err)
	require.Equal(t, "directory", info.Type)
	_, err = client.Mkdir(ctx, p("a/b"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(work+"/a/f", []byte("x"), 0o600))
	_, err = client.Mkdir(ctx, p("a/f"))
	kind(t, fault.Conflict, err)
	_, err = client.Mkdir(ctx, p("a/f/g"))
	kind(t, fault.Conflict, err)
	kind(t, fault.Conflict, remove(ctx, client, p("a"), false))
	_, err = client.Move(ctx, p("a/f"), p("a/b"), false)
	kind(t, fault.Conflict, err)
	_, err = client.Move(ctx, p("a"), p("a/b/c"), false)
	kind(t, fault.BadRequest, err)
	_, err = client.Move(ctx, p("none"), p("x"), false)
	kind(t, fault.NotFound, err)
	require.NoError(t, os.WriteFile(work+"/g", []byte("g"), 0o600))
	_, err = client.Move(ctx, p("g"), p("a/f"), false)
	kind(t, fault.Conflict, err)
	_, err = client.Move(ctx, p("g"), p("a/f"), true)
	require.NoError(t, err)
	require.NoError(t, os.Symlink("/etc/passwd", work+"/l"))
	require.NoError(t, remove(ctx, client, p("l"), true))
	require.FileExists(t, "/etc/passwd")
	require.NoError(t, remove(ctx, client, p("a"), true))
	kind(t, fault.NotFound, remove(ctx, client, p("a"), true))
	require.NoError(t, os.Symlink("/", work+"/root"))
	for _, path := range []string{"/", "/proc", "/sys/kernel", "/.sandgate/agent", "/.sandgate-run", work, string(p("root/proc")), string(p("../" + filepath.Base(work)))} {
		kind(t, fault.BadRequest, remove(ctx, client, []byte(path), true))
	}
	_, err = client.Move(ctx, []byte(work), []byte(work+"2"), false)
	kind(t, fault.BadRequest, err)
}

// tree makes what breaks archives: links to nowhere and to themselves, pipes, odd names.
func tree(t *testing.T, work string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(work+"/t/empty", 0o755))
	require.NoError(t, os.WriteFile(work+"/t/f", bytes.Repeat([]byte("0123456789"), 100_000), 0o640))
	require.NoError(t, os.WriteFile(work+"/t/caf\xe9", []byte("x"), 0o600))
	require.NoError(t, os.WriteFile(work+`/t/..\..\evil.sh`, []byte("x"), 0o600))
	require.NoError(t, os.WriteFile(work+"/t/"+strings.Repeat("n", 200), []byte("x"), 0o600))
	require.NoError(t, os.Symlink("nowhere", work+"/t/dangling"))
	require.NoError(t, os.Symlink(".", work+"/t/loop"))
	require.NoError(t, os.Symlink("/", work+"/t/all"))
	require.NoError(t, syscall.Mkfifo(work+"/t/fifo", 0o600))
}

func TestTar(t *testing.T) {
	client, work := newAgent(t)
	tree(t, work)
	r, err := client.Archive(within(t, 30*time.Second), []byte(work+"/t"), "tar")
	require.NoError(t, err)
	defer r.Close()
	got := map[string]string{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		content, err := io.ReadAll(tr)
		require.NoError(t, err)
		got[h.Name] = h.Linkname + string(content)
		require.False(t, strings.HasPrefix(h.Name, "/"))
	}
	require.Len(t, got, 10)
	require.Equal(t, "nowhere", got["t/dangling"])
	require.Equal(t, "/", got["t/all"])
	require.Equal(t, "x", got["t/caf\xe9"])
	require.Len(t, got["t/f"], 1_000_000)
	require.Equal(t, "t/fifo: fifo\n", got[".sandgate-skipped.txt"])
}

func TestZip(t *testing.T) {
	client, work := newAgent(t)
	tree(t, work)
	r, err := client.Archive(within(t, 30*time.Second), []byte(work+"/t"), "zip")
	require.NoError(t, err)
	defer r.Close()
	content, err := io.ReadAll(r)
	require.NoError(t, err)
	zr, err := zip.NewReader(bytes.NewReader(content), int64(len(content)))
	require.NoError(t, err)
	names := map[string]*zip.File{}
	for _, f := range zr.File {
		names[f.Name] = f
		require.NotContains(t, f.Name, `\`)
	}
	require.Contains(t, names, "t/.._.._evil.sh")
	require.Contains(t, names, ".sandgate-skipped.txt")
	require.NotZero(t, names["t/loop"].Mode()&os.ModeSymlink)
	require.Equal(t, uint64(1_000_000), names["t/f"].UncompressedSize64)
	f, err := names["t/f"].Open()
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, f)
	require.NoError(t, err)
}

func TestManyTransfersAtOnce(t *testing.T) {
	client, work := newAgent(t)
	content := make([]byte, 2<<20)
	_, _ = rand.Read(content)
	require.NoError(t, os.WriteFile(work+"/f", content, 0o600))
	var wg sync.WaitGroup
	for range 24 {
		wg.Go(func() {
			_, r, err := client.ReadFile(context.Background(), []byte(work+"/f"), 0, -1)
			if err != nil {
				t.Error(err)
				return
			}
			defer r.Close()
			got, err := io.ReadAll(r)
			if err != nil || !bytes.Equal(got, content) {
				t.Error("not the same", err)
			}
		})
	}
	wg.Wait()
}

func remove(ctx context.Context, client *agent.Client, path []byte, recursive bool) error {
	_, err := client.Delete(ctx, path, recursive)
	return err
}

// Of a regular file that is deleted, and of nothing else, the digest is told.
func TestADeletedFileIsDigested(t *testing.T) {
	client, work := newAgent(t)
	ctx := within(t, time.Minute)
	require.NoError(t, os.WriteFile(work+"/f", []byte("f"), 0o600))
	require.NoError(t, os.WriteFile(work+"/large", nil, 0o600))
	require.NoError(t, os.Truncate(work+"/large", agent.MaxReplaced+1))
	require.NoError(t, os.Symlink("f", work+"/l"))
	require.NoError(t, os.Mkdir(work+"/d", 0o700))
	require.NoError(t, syscall.Mkfifo(work+"/p", 0o600))
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte("f")))
	for _, c := range []struct{ name, was string }{{"l", ""}, {"f", sum}, {"large", agent.ReplacedLarge}, {"d", ""}, {"p", ""}} {
		deleted, err := client.Delete(ctx, []byte(work+"/"+c.name), true)
		require.NoError(t, err, c.name)
		require.Equal(t, c.was, deleted.Was, c.name)
		require.NoFileExists(t, work+"/"+c.name)
	}
}
