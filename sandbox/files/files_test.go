package files

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/hashicorp/yamux"
	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"/": "/", "/a/../b//c/.": "/b/c", "/../..": "/", "/caf\xe9": "/caf\xe9", "/" + strings.Repeat("a", 4094): "/" + strings.Repeat("a", 4094),
	} {
		got, err := Clean([]byte(in))
		require.NoError(t, err)
		require.Equal(t, want, string(got))
	}
	for _, in := range []string{"", "a", "./a", "~/a", "/a\x00b", "/" + strings.Repeat("a", 4095), strings.Repeat("/a", 2500)} {
		_, err := Clean([]byte(in))
		require.Equal(t, fault.Invalid, fault.KindOf(err), "%q", in)
	}
}

func TestDisplay(t *testing.T) {
	for in, want := range map[string]string{
		"plain name.txt": "plain name.txt", "caf\xe9.txt": `caf\xE9.txt`, "é漢": "é漢", "a\nb": `a\u{A}b`, "\x1b[31m": `\u{1B}[31m`,
		"\u202egnp.exe": `\u{202E}gnp.exe`, "a\u00a0b": `a\u{A0}b`, "\xff\xfe": `\xFF\xFE`, "\ufffd": "\ufffd",
	} {
		require.Equal(t, want, Display([]byte(in)))
	}
}

func TestDisposition(t *testing.T) {
	for in, want := range map[string]string{
		"a.txt": "a.txt", "é.txt": "é.txt", "caf\xe9": "caf_", `..\..\evil.sh`: ".._.._evil.sh",
		"a\"b\r\nSet-Cookie: x": "a\"b__Set-Cookie: x", "..": "download", "": "download",
		strings.Repeat("漢", 85): strings.Repeat("漢", 85),
	} {
		value := Disposition([]byte(in))
		require.NotContains(t, value, "\n")
		kind, p, err := mime.ParseMediaType(value)
		require.NoError(t, err, value)
		require.Equal(t, "attachment", kind)
		require.Equal(t, want, p["filename"])
	}
}

// fake is a file as an agent tells of it.
type fake struct {
	content []byte
	size    int64 // when it is more than the content
}

// look previews a fake file through a client whose agent is a handler in this process.
func look(t *testing.T, name string, f fake) Preview {
	t.Helper()
	size := max(f.size, int64(len(f.content)))
	info, err := json.Marshal(agent.FileInfo{NameB64: []byte("x"), PathB64: []byte("/x"), Type: "file", Size: size})
	require.NoError(t, err)
	client := agent.NewClient(func(context.Context, bool) (io.ReadWriteCloser, error) {
		host, guest := net.Pipe()
		session, err := yamux.Server(guest, nil)
		if err != nil {
			return nil, err
		}
		go func() {
			_ = http.Serve(session, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set(agent.FileHeader, base64.RawURLEncoding.EncodeToString(info))
				_, _ = w.Write(f.content[:min(len(f.content), headBytes)])
			}))
		}()
		return host, nil
	})
	t.Cleanup(func() { _ = client.Close() })
	p, err := PreviewOf(context.Background(), client, []byte(name))
	require.NoError(t, err)
	return p
}

func TestPreviewKinds(t *testing.T) {
	png := append([]byte("\x89PNG\x0d\x0a\x1a\x0a"), make([]byte, 100)...)
	require.Equal(t, Preview{Kind: "empty"}, look(t, "/a", fake{}))
	require.Equal(t, Preview{Kind: "image", Media: "image/png", Size: 108}, look(t, "/a.txt", fake{content: png}))
	require.Equal(t, "large", look(t, "/a.png", fake{content: png, size: 9 << 20}).Kind)
	require.Equal(t, "text", look(t, "/a.svg", fake{content: []byte(`<svg onload="x"/>`)}).Kind)
	require.Equal(t, "text", look(t, "/a.png", fake{content: []byte("not a picture")}).Kind)
	bin := look(t, "/a.txt", fake{content: append([]byte("abc\x00"), make([]byte, 1000)...)})
	require.Equal(t, "binary", bin.Kind)
	require.True(t, bin.Cut)
	require.Contains(t, bin.Text, "61 62 63 00")
	require.Equal(t, "binary", look(t, "/a", fake{content: []byte("caf\xe9")}).Kind)
}

func TestPreviewCutsAtACharacter(t *testing.T) {
	long := strings.Repeat("漢", headBytes)
	p := look(t, "/a.txt", fake{content: []byte(long)})
	require.Equal(t, "text", p.Kind)
	require.True(t, p.Cut)
	require.True(t, utf8.ValidString(p.Text))
	require.InDelta(t, headBytes, len(p.Text), 3)
}

func TestPreviewTable(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want [][]string
	}{
		"comma":     {"a,b\n1,\"x,y\"\n", [][]string{{"a", "b"}, {"1", "x,y"}}},
		"semicolon": {"a;b,c;d\n1;2;3\n", [][]string{{"a", "b,c", "d"}, {"1", "2", "3"}}},
		"tab":       {"a\tb\r\n1\t2\r\n", [][]string{{"a", "b"}, {"1", "2"}}},
		"ragged":    {"a,b\n1\n1,2,3\n", [][]string{{"a", "b"}, {"1"}, {"1", "2", "3"}}},
		"bare":      {"a,b\"c\n", [][]string{{"a", "b\"c"}}},
		"bom":       {"\xef\xbb\xbfa,b\n", [][]string{{"a", "b"}}},
	} {
		p := look(t, "/x.CSV", fake{content: []byte(c.text)})
		require.Equal(t, "csv", p.Kind, name)
		require.Equal(t, c.want, p.Rows, name)
		require.False(t, p.Cut, name)
	}
	var big strings.Builder
	for i := range 300 {
		for j := range 80 {
			fmt.Fprintf(&big, "%d-%d,", i, j)
		}
		big.WriteString(strings.Repeat("z", 300) + "\n")
	}
	p := look(t, "/x.csv", fake{content: []byte(big.String())})
	require.Len(t, p.Rows, csvRows)
	require.Len(t, p.Rows[0], csvCols)
	require.True(t, p.Cut)
	require.True(t, p.Wide)
	p = look(t, "/x.csv", fake{content: []byte(strings.Repeat("z", 300) + ",b\n")})
	require.Equal(t, csvCell+1, utf8.RuneCountInString(p.Rows[0][0]))
}
