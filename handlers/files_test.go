package handlers_test

import (
	"bytes"
	"encoding/base64"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

const filesAt = page + "/" + sbRunning + "/files"

func TestDownloadIsAlwaysAnAttachment(t *testing.T) {
	f := furnished()
	f.content["/work/evil\"\r\n.html"] = []byte("<script>alert(1)</script>")
	h := server(t, f)
	w := ask(h, "GET", filesAt+"/raw?path="+url.QueryEscape("/work/evil\"\r\n.html"), nil)
	require.Equal(t, 200, w.Code)
	require.Equal(t, "application/octet-stream", w.Header().Get("Content-Type"))
	require.True(t, strings.HasPrefix(w.Header().Get("Content-Disposition"), "attachment"))
	require.Equal(t, "sandbox; default-src 'none'", w.Header().Get("Content-Security-Policy"))
	require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
	require.Equal(t, "25", w.Header().Get("Content-Length"))
	w = ask(h, "GET", filesAt+"/raw?path=/work/none", nil)
	require.Equal(t, 404, w.Code)
	require.Empty(t, w.Header().Get("Content-Disposition"), "an error is a page, not a download")
}

func TestImagesAreJudgedByTheirBytes(t *testing.T) {
	f := furnished()
	f.content["/a.png"] = append([]byte("\x89PNG\r\n\x1a\n"), make([]byte, 600)...)
	f.content["/b.png"] = []byte(`<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>`)
	f.content["/c.png"] = []byte("<html><script>alert(1)</script>")
	h := server(t, f)
	w := ask(h, "GET", filesAt+"/image?path=/a.png", nil)
	require.Equal(t, 200, w.Code)
	require.Equal(t, "image/png", w.Header().Get("Content-Type"))
	require.Equal(t, f.content["/a.png"], w.Body.Bytes())
	for _, p := range []string{"/b.png", "/c.png"} {
		w = ask(h, "GET", filesAt+"/image?path="+p, nil)
		require.Equal(t, 400, w.Code, p)
		require.True(t, strings.HasPrefix(w.Header().Get("Content-Type"), "text/html"), "our error page")
		require.NotContains(t, w.Body.String(), "alert")
	}
}

func TestUploadStreams(t *testing.T) {
	f := furnished()
	h := server(t, f)
	const n = 50 << 20
	r := httptest.NewRequest("PUT", filesAt+"/raw?path=/work/big.bin", io.LimitReader(zeros{}, n))
	r.Host, r.ContentLength = host, n
	r.AddCookie(&http.Cookie{Name: "who", Value: "ana"})
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	require.Equal(t, 200, w.Code)
	require.Equal(t, []string{"write /work/big.bin " + itoa(n)}, f.called())
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestUploadByForm(t *testing.T) {
	f := furnished()
	h := server(t, f)
	send := func(name string) *httptest.ResponseRecorder {
		var body bytes.Buffer
		m := multipart.NewWriter(&body)
		part, err := m.CreateFormFile("file", name)
		require.NoError(t, err)
		_, _ = part.Write(make([]byte, 3<<20))
		require.NoError(t, m.Close())
		r := httptest.NewRequest("POST", filesAt+"/upload?path=/work", &body)
		r.Host = host
		r.AddCookie(&http.Cookie{Name: "who", Value: "ana"})
		r.Header.Set("Content-Type", m.FormDataContentType())
		r.Header.Set("Sec-Fetch-Site", "same-origin")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	w := send("data.csv")
	require.Equal(t, 303, w.Code, "larger than a form, because it streams")
	require.Equal(t, page+"/"+sbRunning+"?path=/work", w.Header().Get("Location"))
	require.Equal(t, 303, send("../../etc/passwd").Code)
	require.Equal(t, []string{"write /work/data.csv 3145728", "write /work/passwd 3145728"}, f.called(), "a name is a name, not a path")
}

func TestChangesWithoutJavaScript(t *testing.T) {
	f := furnished()
	h := server(t, f)
	for _, c := range []struct{ form, sends, want string }{
		{"new-folder?path=/work", "name=out", "mkdir /work/out"},
		{"rename?path=/work/notes.md", "name=todo.md", "move /work/notes.md /work/todo.md"},
		{"rename?path=/work/notes.md", "name=/tmp/x", "move /work/notes.md /tmp/x"},
		{"delete?path=/work/notes.md", "", "delete /work/notes.md"},
		{"delete?path=/work/data", "recursive=1", "delete all of /work/data"},
	} {
		n := tree(t, ask(h, "GET", filesAt+"/"+c.form, nil))
		form := one(t, n, "main form")
		require.Equal(t, "post", attr(form, "method"))
		require.Equal(t, filesAt+"/"+c.form, attr(form, "action"))
		values, err := url.ParseQuery(c.sends)
		require.NoError(t, err)
		w := ask(h, "POST", attr(form, "action"), values)
		require.Equal(t, 303, w.Code, c.form)
		require.True(t, strings.HasPrefix(w.Header().Get("Location"), page+"/"+sbRunning+"?path=/work"), c.form)
		calls := f.called()
		require.Equal(t, c.want, calls[len(calls)-1])
	}
	n := tree(t, ask(h, "GET", filesAt+"/delete?path=/work/data", nil))
	require.Contains(t, text(one(t, n, "main form")), "everything in it")
}

func TestFileMistakesComeBackInTheForm(t *testing.T) {
	f := furnished()
	h := server(t, f)
	for _, name := range []string{"", ".", "..", "a/b", strings.Repeat("x", 256), "a\x00b"} {
		w := ask(h, "POST", filesAt+"/new-folder?path=/work", url.Values{"name": {name}})
		require.Equal(t, 422, w.Code, "%q", name)
		require.NotEmpty(t, text(one(t, tree(t, w), "#name-wrong")))
	}
	require.Empty(t, f.called())
	f.fail = fault.New(fault.Conflict, "There is something of that name already.")
	w := ask(h, "POST", filesAt+"/rename?path=/work/notes.md", url.Values{"name": {"data"}}, "HX-Request", "true")
	require.Equal(t, 422, w.Code)
	require.Contains(t, w.Body.String(), "of that name already")
	require.NotContains(t, w.Body.String(), "<nav")
}

func TestAfterAChangeTheScriptReadsAgain(t *testing.T) {
	h := server(t, furnished())
	w := ask(h, "POST", filesAt+"/delete?path=/work/notes.md", url.Values{}, "HX-Request", "true")
	require.Equal(t, "files-changed", w.Header().Get("HX-Trigger"))
}

func TestBadPaths(t *testing.T) {
	h := server(t, furnished())
	for _, q := range []string{"", "path=", "path=work", "path=" + strings.Repeat("/x", 2500), "path=/a%00b", "path_b64=!!!", "path_b64=" + base64.RawURLEncoding.EncodeToString([]byte("a"))} {
		for _, what := range []string{"raw", "image", "archive", "rename", "delete"} {
			w := ask(h, "GET", filesAt+"/"+what+"?"+q, nil)
			require.Equal(t, 422, w.Code, "%s?%s", what, q)
		}
	}
}

func TestNamesThatAreNoTextStillWork(t *testing.T) {
	f := furnished()
	odd := []byte("caf\xe9\u202e.txt")
	f.list = agent.Listing{Total: 1, Entries: []agent.FileInfo{{NameB64: odd, Type: "file", Size: 3}}}
	f.content["/work/"+string(odd)] = []byte("abc")
	h := server(t, f)
	n := tree(t, ask(h, "GET", filesAt+"?path=/work", nil, "HX-Request", "true"))
	require.Contains(t, text(one(t, n, ".entry .odd")), `caf\xE9`)
	w := ask(h, "GET", attr(one(t, n, ".entry .menu a[download]"), "href"), nil)
	require.Equal(t, "abc", w.Body.String(), "the link goes by the bytes")
}

func TestFolderPane(t *testing.T) {
	f := furnished()
	f.list.Cursor, f.list.Total = "next one", 5000
	h := server(t, f)
	w := ask(h, "GET", filesAt+"?path=/work/a%20b", nil, "HX-Request", "true")
	n := tree(t, w)
	require.Len(t, all(n, ".crumbs a"), 3)
	more := one(t, n, "a[data-files-more]")
	require.Contains(t, text(more), "5000")
	w = ask(h, "GET", attr(more, "href"), nil, "HX-Request", "true")
	require.True(t, strings.HasPrefix(w.Body.String(), "<li"), "further lines alone")
	require.Equal(t, 303, ask(h, "GET", filesAt+"?path=/work", nil).Code, "without a script it is the page")
	n = tree(t, ask(h, "GET", filesAt+"?path=/root/secret", nil, "HX-Request", "true"))
	require.Contains(t, text(one(t, n, ".empty")), "nothing at that path")
	f.rights["tom"] = auth.Permissions{auth.SandboxesRead}
	n = tree(t, ask(h, "GET", filesAt+"?path=/work", nil, "HX-Request", "true", "who", "tom"))
	require.Empty(t, all(n, `a[href*="/delete"], a[href*="/rename"], [data-upload]`), "who may look is offered nothing else")
}

func TestArchive(t *testing.T) {
	h := server(t, furnished())
	w := ask(h, "GET", filesAt+"/archive?format=zip&path=/work/data", nil)
	require.Equal(t, "zip of /work/data", w.Body.String())
	require.Contains(t, w.Header().Get("Content-Disposition"), "data.zip")
	require.Equal(t, 422, ask(h, "GET", filesAt+"/archive?format=rar&path=/work", nil).Code)
	require.Contains(t, ask(h, "GET", filesAt+"/archive?format=tar&path=/", nil).Header().Get("Content-Disposition"), "root.tar")
}

func TestPreviews(t *testing.T) {
	f := furnished()
	h := server(t, f)
	for kind, selector := range map[string]string{
		"text": "pre", "binary": "pre.hex", "csv": "table.csv", "image": `img[src*="/files/image?path="]`, "empty": "p", "large": "p",
	} {
		f.preview.Kind, f.preview.Rows, f.preview.Text = kind, [][]string{{"a", "b"}, {"1", "2"}}, "x\u202ey"
		n := tree(t, ask(h, "GET", filesAt+"/preview?file=/work/roc.png", nil, "HX-Request", "true"))
		require.NotEmpty(t, all(n, ".preview "+selector), kind)
		require.NotContains(t, text(n), "\u202e")
	}
}
