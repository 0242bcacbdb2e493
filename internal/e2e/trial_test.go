package e2e

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// wheel makes a package for pip by hand: one module.
func wheel(t *testing.T, name, version, module string) []byte {
	t.Helper()
	info := name + "-" + version + ".dist-info/"
	files := []struct{ path, text string }{
		{name + ".py", module},
		{info + "METADATA", "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
	}
	var record strings.Builder
	for _, f := range files {
		sum := sha256.Sum256([]byte(f.text))
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", f.path, base64.RawURLEncoding.EncodeToString(sum[:]), len(f.text))
	}
	record.WriteString(info + "RECORD,,\n")
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	for _, f := range append(files, struct{ path, text string }{info + "RECORD", record.String()}) {
		w, err := z.Create(f.path)
		require.NoError(t, err)
		_, err = w.Write([]byte(f.text))
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	return out.Bytes()
}

// A trial shows everything that such a line does: what it deletes, installs, trains and calls. The script that it names is
// shown with the request, and a replaced one is not run. (pip takes a wheel only under its full name.)
func TestATrialShowsEachEffect(t *testing.T) {
	host := newInstallation(t)
	s := host.serve()
	host.person("ann@example.org", "alpha")
	judge, api := s.judge(), s.rest(host.key("alpha", "sandboxes:run"))
	var sb sandboxJSON
	api.ok("POST", "/v1/sandboxes", map[string]any{"label": "asks", "approval": map[string]string{"command": "ask"}}, &sb)
	put := func(path string, content []byte) {
		code, b := api.do("PUT", "/v1/sandboxes/"+sb.ID+"/files/raw?path=/work/"+path, content)
		require.Less(t, code, 300, "%s", b)
	}
	const train = "import os, lessons\nos.makedirs('/work/out', exist_ok=True)\nopen('/work/out/model', 'w').write(lessons.WORD + os.path.basename(__file__))\n"
	put("x/deep/data", []byte("precious"))
	put("lessons-1.0-py3-none-any.whl", wheel(t, "lessons", "1.0", "WORD = 'trained by '\n"))
	put("train.py", []byte(train))
	const line = "rm -rf /work/x; pip install --no-index ./lessons-1.0-py3-none-any.whl; python train.py; curl -sS -m 20 http://203.0.113.9/"
	id := api.ask(sb.ID, line)

	var asked struct {
		Digest   string
		Compared []string
		Bound    []string
		NotBound []string `json:"not_bound"`
	}
	judge.ok("GET", "/v1/approvals/"+id, nil, &asked)
	require.Equal(t, []string{"/work/train.py"}, asked.Compared)
	require.Empty(t, asked.Bound)
	require.Contains(t, strings.Join(asked.NotBound, "\n"), "is not seen")
	code, script := judge.do("GET", "/v1/approvals/"+id+"/contents/script0", nil)
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, train, string(script))

	var tried struct {
		Effect struct {
			ExitCode       int `json:"exit_code"`
			Stdout, Stderr string
			Files          []struct{ Path, What, Diff string }
			FilesError     *string `json:"files_error"`
			Denied         []struct {
				Protocol, Destination string
				Port                  int
			}
		}
	}
	judge.ok("POST", "/v1/approvals/"+id+"/dry-run", map[string]any{}, &tried)
	e := tried.Effect
	said := e.Stdout + e.Stderr
	require.Nil(t, e.FilesError)
	require.NotZero(t, e.ExitCode, "what curl gives: %s", said)
	what := map[string]string{}
	for _, f := range e.Files {
		what[f.Path] = f.What
		if f.Path == "/work/out/model" {
			require.Contains(t, f.Diff, "+trained by train.py")
		}
	}
	require.Equal(t, "deleted", what["/work/x"], "%s %v", said, what)
	require.Equal(t, "added", what["/work/out/model"], "%s %v", said, what)
	installed := ""
	for path, w := range what {
		if strings.HasSuffix(path, "-packages/lessons.py") && w == "added" {
			installed = path
		}
	}
	require.NotEmpty(t, installed, "%s %v", said, what)
	require.Equal(t, "added", what[strings.TrimSuffix(installed, ".py")+"-1.0.dist-info/METADATA"], "%v", what)
	require.Len(t, e.Denied, 1, said)
	require.Equal(t, "tcp", e.Denied[0].Protocol)
	require.Equal(t, "203.0.113.9", e.Denied[0].Destination)
	require.Equal(t, 80, e.Denied[0].Port)
	require.Contains(t, judge.stat(sb.ID, "/work/out"), "not_found", "the sandbox itself is as it was")

	judge.ok("POST", "/v1/approvals/"+id+"/approve", map[string]any{"digest": asked.Digest}, nil)
	put("train.py", []byte("open('/work/evil', 'w')\n"))
	code, b := api.with("Approval-Id", id).with("Prefer", "wait=0").do("POST", "/v1/sandboxes/"+sb.ID+"/commands", map[string]any{"command": line})
	require.Equal(t, http.StatusConflict, code, "%s", b)
	var refused struct{ Reason, Detail string }
	require.NoError(t, json.Unmarshal(b, &refused))
	require.Equal(t, "void", refused.Reason, "%s", b)
	require.Contains(t, refused.Detail, "/work/train.py has changed")
	require.Contains(t, judge.stat(sb.ID, "/work/x/deep/data"), `"file"`, "not one part of it ran")
}
