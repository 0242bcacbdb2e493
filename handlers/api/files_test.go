package api

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sandgate/sandbox/agent"
)

const filesPath = "/v1/sandboxes/" + knownID + "/files"

func at(call, path string) string { return filesPath + call + "?path=" + url.QueryEscape(path) }

func TestFilesAsTheOfficialClientReadsThem(t *testing.T) {
	b := start(t)
	all := base64.StdEncoding.EncodeToString(allBytes())
	got := b.do("POST", filesPath, `{"path":"/work/b","content":"`+all+`","encoding":"base64"}`)
	assert.Equal(t, 200, got.status)
	assert.JSONEq(t, `{"path":"/work/b","size":256}`, got.body)
	assert.Equal(t, allBytes(), b.f.files["/work/b"])
	assert.EqualValues(t, 256, b.f.written.Size)
	got = b.do("GET", at("", "/work/b")+"&encoding=base64", "")
	assert.JSONEq(t, `{"path":"/work/b","content":"`+all+`","encoding":"base64"}`, got.body)
	got = b.do("GET", at("", "/work/b")+"&encoding=utf-8", "")
	assert.Equal(t, 422, got.status)
	assertError(t, got, "invalid", "encoding")

	got = b.do("POST", filesPath, `{"path":"/work/t","content":"h\u00e9 <&>\r\n","encoding":"utf-8"}`)
	assert.Equal(t, 200, got.status)
	got = b.do("GET", at("", "/work/t"), "")
	assert.JSONEq(t, `{"path":"/work/t","content":"hé <&>\r\n","encoding":"utf-8"}`, got.body)
	got = b.do("POST", filesPath, `{"path":"/work/empty","content":"","encoding":"utf-8"}`)
	assert.Equal(t, 200, got.status)
}

func TestBadPaths(t *testing.T) {
	b := start(t)
	b.f.infos = map[string]agent.FileInfo{"/d": {Type: "directory"}, "/fifo": {Type: "fifo"}, "/dev/zero": {Type: "char_device"}}
	long := "/" + strings.Repeat("x", 4999)
	for _, row := range []struct {
		path   string
		status int
		code   string
	}{
		{"", 422, "invalid"},
		{"work/x", 422, "invalid"},
		{"../etc/passwd", 422, "invalid"},
		{long, 422, "invalid"},
		{"/a\x00b", 422, "invalid"},
		{"/none", 404, "not_found"},
		{"/d", 400, "bad_request"},
		{"/fifo", 400, "bad_request"},
		{"/dev/zero", 400, "bad_request"},
	} {
		for _, call := range []string{"", "/raw"} {
			got := b.do("GET", at(call, row.path), "")
			assert.Equal(t, row.status, got.status, "%s %.20q", call, row.path)
			assertError(t, got, row.code, "")
		}
		if row.status != 422 {
			continue
		}
		for _, call := range []string{"/list", "/stat", "/archive"} {
			assertError(t, b.do("GET", at(call, row.path), ""), "invalid", "path")
		}
		assertError(t, b.do("DELETE", at("", row.path), ""), "invalid", "path")
		assertError(t, b.do("PUT", at("/raw", row.path), "x"), "invalid", "path")
		p, err := json.Marshal(row.path)
		require.NoError(t, err)
		assertError(t, b.do("POST", filesPath, `{"path":`+string(p)+`,"content":"x"}`), "invalid", "path")
		assertError(t, b.do("POST", filesPath+"/mkdir", `{"path":`+string(p)+`}`), "invalid", "path")
		assertError(t, b.do("POST", filesPath+"/move", `{"source":"/a","destination":`+string(p)+`}`), "invalid", "destination")
	}
	assertError(t, b.do("GET", filesPath, ""), "invalid", "path")
	assertError(t, b.do("GET", at("", "/a")+"&path_b64=L2E=", ""), "invalid", "path")
	assertError(t, b.do("GET", filesPath+"?path_b64=!", ""), "invalid", "path_b64")
	assertError(t, b.do("GET", filesPath+"?path_b64="+base64.URLEncoding.EncodeToString([]byte("a\x00")), ""), "invalid", "path_b64")
	assertError(t, b.do("POST", filesPath, `{"content":"x"}`), "invalid", "path")
	assertError(t, b.do("POST", filesPath, `{"path":"/a"}`), "invalid", "content")
	assertError(t, b.do("POST", filesPath, `{"path":"/a","content":"x","encoding":"latin-1"}`), "invalid", "encoding")
	assertError(t, b.do("POST", filesPath, `{"path":"/a","content":"?","encoding":"base64"}`), "invalid", "content")
	assertError(t, b.do("GET", at("", "/a")+"&encoding=latin-1", ""), "invalid", "encoding")
	for _, q := range []string{"limit=0", "limit=1001", "limit=x", "depth=11"} {
		name, _, _ := strings.Cut(q, "=")
		assertError(t, b.do("GET", at("/list", "/a")+"&"+q, ""), "invalid", name)
	}
	assertError(t, b.do("DELETE", at("", "/a")+"&recursive=yes", ""), "invalid", "recursive")
	assertError(t, b.do("GET", at("/archive", "/a")+"&format=rar", ""), "invalid", "format")
}

func TestNamesThatAreNotUTF8(t *testing.T) {
	b := start(t)
	name := "/work/a\xffb"
	b64 := base64.RawURLEncoding.EncodeToString([]byte(name))
	got := b.do("POST", filesPath, `{"path_b64":"`+b64+`","content":"x"}`)
	require.Equal(t, 200, got.status, got.body)
	assert.Equal(t, []byte("x"), b.f.files[name])
	assert.Contains(t, got.body, base64.StdEncoding.EncodeToString([]byte(name)))
	for _, query := range []string{"path_b64=" + b64, "path=" + url.QueryEscape(name)} {
		got = b.do("GET", filesPath+"?"+query, "")
		assert.Equal(t, 200, got.status, query)
		got = b.do("GET", filesPath+"/stat?"+query, "")
		assert.JSONEq(t, `{"name":"a\ufffdb","name_b64":"Yf9i","path":"/work/a\ufffdb","path_b64":"`+base64.StdEncoding.EncodeToString([]byte(name))+`",
			"type":"file","size":1,"mode":"0644","owner":"root","group":"root","modified_at":"1970-01-01T00:01:40.000000Z","etag":"\"e1\""}`, got.body)
		got = b.do("GET", filesPath+"/raw?"+query, "")
		assert.Equal(t, `attachment; filename=a_b`, got.header.Get("Content-Disposition"))
	}
}

func TestListing(t *testing.T) {
	b := start(t)
	b.f.infos["/work"] = agent.FileInfo{NameB64: []byte("l"), PathB64: []byte("/work/l"), Type: "symlink", TargetB64: []byte("to"), Mode: 0o4755}
	got := b.do("GET", at("/list", "/work")+"&limit=7&cursor=c", "")
	assert.JSONEq(t, `{"entries":[{"name":"l","path":"/work/l","type":"symlink","size":0,"mode":"4755","owner":"","group":"",
		"modified_at":"0001-01-01T00:00:00.000000Z","target":"to"}],"cursor":"c","total":7}`, got.body)
	got = b.do("GET", at("/list", "/work"), "")
	assert.Contains(t, got.body, `"cursor":null`)
	assert.Contains(t, got.body, `"total":200`)
	assert.Equal(t, 200, b.do("POST", filesPath+"/mkdir", `{"path":"/work/d"}`).status)
	assert.Equal(t, 200, b.do("POST", filesPath+"/move", `{"source":"/a","destination_b64":"L2I="}`).status)
	assert.JSONEq(t, `{"success":true}`, b.do("DELETE", at("", "/a")+"&recursive=true", "").body)
}

func TestSizesOfJSONFiles(t *testing.T) {
	const maxContent = 1 << 16
	b := start(t, func(o *Options) { o.MaxContent = maxContent })
	b.f.files["/full"] = make([]byte, maxContent)
	b.f.files["/over"] = make([]byte, maxContent+1)
	b.f.infos["/proc/endless"] = agent.FileInfo{Type: "file"}
	b.f.files["/proc/endless"] = make([]byte, maxContent+1)
	assert.Equal(t, 200, b.do("GET", at("", "/full")+"&encoding=base64", "").status)
	for _, p := range []string{"/over", "/proc/endless"} {
		got := b.do("GET", at("", p)+"&encoding=base64", "")
		assert.Equal(t, 413, got.status)
		assertError(t, got, "too_large", "")
	}
	content := base64.StdEncoding.EncodeToString(b.f.files["/full"])
	assert.Equal(t, 200, b.do("POST", filesPath, `{"path":"/w","encoding":"base64","content":"`+content+`"}`).status)
	content = base64.StdEncoding.EncodeToString(b.f.files["/over"])
	got := b.do("POST", filesPath, `{"path":"/w","encoding":"base64","content":"`+content+`"}`)
	assert.Equal(t, 413, got.status)
	got = b.do("POST", filesPath, `{"path":"/w","content":"`+strings.Repeat("x", 25<<20)+`"}`)
	assert.Equal(t, 413, got.status)
}

func TestRawDownloads(t *testing.T) {
	b := start(t)
	b.f.files["/work/a.html"] = []byte("0123456789")
	for _, row := range []struct {
		name   string
		header []string
		status int
		body   string
		crange string
	}{
		{"whole", nil, 200, "0123456789", ""},
		{"first", []string{"Range", "bytes=0-3"}, 206, "0123", "bytes 0-3/10"},
		{"middle to end", []string{"Range", "bytes=8-"}, 206, "89", "bytes 8-9/10"},
		{"over the end", []string{"Range", "bytes=8-100"}, 206, "89", "bytes 8-9/10"},
		{"last", []string{"Range", "bytes=-2"}, 206, "89", "bytes 8-9/10"},
		{"more than all", []string{"Range", "bytes=-20"}, 206, "0123456789", "bytes 0-9/10"},
		{"several", []string{"Range", "bytes=0-1,3-4"}, 200, "0123456789", ""},
		{"nonsense", []string{"Range", "lines=1-2"}, 200, "0123456789", ""},
		{"backwards", []string{"Range", "bytes=5-2"}, 200, "0123456789", ""},
		{"beyond", []string{"Range", "bytes=10-"}, 416, "", "bytes */10"},
		{"none of the last", []string{"Range", "bytes=-0"}, 416, "", "bytes */10"},
		{"if-range same", []string{"Range", "bytes=0-0", "If-Range", `"e1"`}, 206, "0", "bytes 0-0/10"},
		{"if-range other", []string{"Range", "bytes=0-0", "If-Range", `"e0"`}, 200, "0123456789", ""},
		{"if-range date", []string{"Range", "bytes=0-0", "If-Range", "Thu, 01 Jan 1970 00:01:40 GMT"}, 200, "0123456789", ""},
		{"unchanged", []string{"If-None-Match", `"e0", W/"e1"`}, 304, "", ""},
		{"any", []string{"If-None-Match", "*"}, 304, "", ""},
		{"changed", []string{"If-None-Match", `"e0"`}, 200, "0123456789", ""},
		{"match", []string{"If-Match", `"e0", "e1"`}, 200, "0123456789", ""},
		{"weak match", []string{"If-Match", `W/"e1"`}, 412, "", ""},
		{"no match", []string{"If-Match", `"e0"`}, 412, "", ""},
	} {
		got := b.do("GET", at("/raw", "/work/a.html"), "", row.header...)
		assert.Equal(t, row.status, got.status, row.name)
		assert.Equal(t, row.crange, got.header.Get("Content-Range"), row.name)
		switch row.status {
		case 412:
			assertError(t, got, "precondition_failed", "")
		case 416:
			assertError(t, got, "range_not_satisfiable", "")
		case 304:
			assert.Equal(t, `"e1"`, got.header.Get("ETag"))
		default:
			assert.Equal(t, row.body, got.body, row.name)
			assert.Equal(t, `"e1"`, got.header.Get("ETag"))
			assert.Equal(t, "application/octet-stream", got.header.Get("Content-Type"))
			assert.Equal(t, "attachment; filename=a.html", got.header.Get("Content-Disposition"))
			assert.Equal(t, "nosniff", got.header.Get("X-Content-Type-Options"))
			assert.Equal(t, "sandbox; default-src 'none'", got.header.Get("Content-Security-Policy"))
		}
	}
	got := b.do("HEAD", at("/raw", "/work/a.html"), "")
	assert.Equal(t, 200, got.status)
	assert.Equal(t, "10", got.header.Get("Content-Length"))
	assert.Empty(t, got.body)
	assert.Equal(t, 404, b.do("HEAD", at("/raw", "/none"), "").status)
}

func TestFilesWhoseSizesLie(t *testing.T) {
	b := start(t)
	b.f.infos["/proc/version"] = agent.FileInfo{Type: "file", ETag: `"p"`}
	b.f.files["/proc/version"] = []byte("Linux")
	got := b.do("GET", at("/raw", "/proc/version"), "", "Range", "bytes=0-1")
	assert.Equal(t, 200, got.status)
	assert.Equal(t, "Linux", got.body)
	b.f.infos["/sys/x"] = agent.FileInfo{Type: "file", Size: 4096, ETag: `"s"`}
	b.f.files["/sys/x"] = []byte("small")
	got = b.do("GET", at("/raw", "/sys/x"), "")
	assert.NoError(t, got.cut)
	assert.Equal(t, "small", got.body)
	b.f.infos["/work/shrinks"] = agent.FileInfo{Type: "file", Size: inlineRead + 10, ETag: `"w"`}
	b.f.files["/work/shrinks"] = []byte("only")
	got = b.do("GET", at("/raw", "/work/shrinks"), "")
	assert.Error(t, got.cut, "a file that became shorter must not look whole")
}

func TestRawUploads(t *testing.T) {
	b := start(t)
	got := b.do("PUT", at("/raw", "/work/up"), "bytes", "Content-Type", "application/octet-stream", "If-Match", `"e1"`)
	assert.Equal(t, 200, got.status, got.body)
	assert.Equal(t, []byte("bytes"), b.f.files["/work/up"])
	assert.Equal(t, agent.WriteOptions{Size: 5, IfMatch: `"e1"`}, b.f.written)
	assert.Equal(t, `"e1"`, got.header.Get("ETag"))
	assert.Contains(t, got.body, `"path":"/work/up"`)
	b.do("PUT", at("/raw", "/work/up"), "x", "If-None-Match", "*")
	assert.Equal(t, "*", b.f.written.IfNoneMatch)
	for _, row := range [][2]string{{"If-Match", "e1"}, {"If-Match", `W/"e1"`}, {"If-Match", `"a", "b"`}, {"If-None-Match", `"e1"`}} {
		assertError(t, b.do("PUT", at("/raw", "/work/up"), "x", row[0], row[1]), "invalid", row[0])
	}
	assert.Equal(t, 400, b.do("PUT", at("/raw", "/work/up"), "x", "Content-Range", "bytes 0-0/2").status)

	r, err := http.NewRequest("PUT", b.url+at("/raw", "/work/chunked"), io.MultiReader(strings.NewReader("a"), strings.NewReader("b")))
	require.NoError(t, err)
	r.Header.Set("X-API-Key", fullKey)
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.EqualValues(t, -1, b.f.written.Size)
	assert.Equal(t, []byte("ab"), b.f.files["/work/chunked"])
}

func TestArchives(t *testing.T) {
	b := start(t)
	b.f.archive = io.NopCloser(strings.NewReader("tar"))
	got := b.do("GET", at("/archive", "/work/x"), "")
	assert.Equal(t, "tar", got.body)
	assert.Equal(t, "attachment; filename=x.tar", got.header.Get("Content-Disposition"))
	b.f.archive = io.NopCloser(io.MultiReader(strings.NewReader("half"), broken{}))
	got = b.do("GET", at("/archive", "/")+"&format=zip", "")
	assert.Error(t, got.cut, "a cut archive must not look whole")
	assert.Equal(t, "attachment; filename=root.zip", got.header.Get("Content-Disposition"))
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("the bridge broke") }

func TestLargeFilesAreOpenedTwice(t *testing.T) {
	b := start(t)
	b.f.files["/large"] = bytes.Repeat([]byte("0123456789abcdef"), inlineRead/16+1)
	b.f.files["/small"] = b.f.files["/large"][:inlineRead]
	for path, opens := range map[string]int{"/large": 2, "/small": 1} {
		before := len(b.f.called())
		got := b.do("GET", at("/raw", path), "")
		assert.Equal(t, string(b.f.files[path]), got.body)
		assert.Len(t, b.f.called(), before+opens)
		got = b.do("GET", at("", path), "")
		assert.Equal(t, 200, got.status)
		assert.Contains(t, got.body, `"content":"`+string(b.f.files[path])+`"`)
	}
}
