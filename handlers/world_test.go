package handlers_test

import (
	"flag"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/andybalholm/cascadia"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"sandgate/auth"
	"sandgate/handlers"
	"sandgate/internal/audit"
	"sandgate/internal/webhost"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

// demo serves the fakes for eyes and browsers: go test ./handlers -run TestDemo -demo 127.0.0.1:9900
var demo = flag.String("demo", "", "serve a furnished fake at this address until interrupted")

const (
	host      = "127.0.0.1:8080"
	sbRunning = "sbaaaaaaaaaaaaaaaaaaaa"
	sbFailed  = "sbbbbbbbbbbbbbbbbbbbbb"
	page      = "/w/research/sandboxes"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// furnished is a fake with something of everything in it.
func furnished() *fake {
	f := newFake()
	rec := func(id, label, owner string, st sandbox.Status, reason string, age time.Duration) workspace.Sandbox {
		return workspace.Sandbox{
			Record: sandbox.Record{
				ID: sandbox.ID(id), WorkspaceID: "w1", Label: label, Image: "base", OwnerKind: "person", OwnerName: owner, Status: st, Reason: reason,
				Cwd: "/work", User: "root", Resources: sandbox.DefaultResources, CreatedAt: now.Add(-age), LastActivity: now.Add(-age / 4),
			}, Mine: owner == "ana@example.org",
		}
	}
	f.sandboxes = []workspace.Sandbox{
		rec(sbRunning, "churn-notebook", "ana@example.org", sandbox.Running, "", 12*time.Minute),
		rec("sbcccccccccccccccccccc", "nightly-agent", "ci-agent", sandbox.Running, "", time.Hour),
		rec("sbdddddddddddddddddddd", "geo-import", "tom@example.org", sandbox.Creating, "", 3*time.Second),
		rec("sbeeeeeeeeeeeeeeeeeeee", "", "ana@example.org", sandbox.Stopping, "killed", 49*time.Hour),
		rec(sbFailed, "scratch", "mei@example.org", sandbox.Failed, sandbox.ReasonOutOfMemory, 5*time.Minute),
	}
	f.sandboxes[1].OwnerKind = "key"
	file := func(name, kind string, size int64) agent.FileInfo {
		return agent.FileInfo{NameB64: []byte(name), PathB64: []byte("/work/" + name), Type: kind, Size: size, ModifiedAt: now.Add(-time.Hour)}
	}
	f.list = agent.Listing{Total: 9, Entries: []agent.FileInfo{
		file("data", "directory", 0), file("venv", "directory", 0), file("churn.csv", "file", 212_000_000), file("model.pkl", "file", 4_100_000),
		file("notes.md", "file", 1024), file("roc.png", "file", 38_000), file("train.py", "file", 2200), file("run.sock", "socket", 0),
	}}
	link := file("latest", "symlink", 8)
	link.TargetB64, link.TargetType = []byte("model.pkl"), "file"
	f.list.Entries = append(f.list.Entries, link)
	f.members = []auth.Member{
		{UserID: "ana", Email: "ana@example.org", Role: auth.Admin, Granted: auth.Permissions{auth.SandboxesRun}, JoinedAt: now.Add(-100 * time.Hour)},
		{UserID: "tom", Email: "tom@example.org", Role: auth.Analyst, JoinedAt: now.Add(-90 * time.Minute)},
	}
	f.invited = []workspace.Invitation{{ID: "i1", Email: "mei@example.org", Role: auth.Viewer, ExpiresAt: now.Add(100 * time.Hour)}}
	f.keys = []auth.Key{
		{ID: "k1", Name: "ci-agent", Permissions: auth.Permissions{auth.SandboxesRun}, Prefix: "sg_k3j9x2ab", CreatedAt: now.Add(-30 * time.Hour), ExpiresAt: now.Add(60 * 24 * time.Hour), LastUsedAt: now.Add(-3 * time.Minute)},
		{ID: "k2", Name: "laptop", OwnerID: "ana", OwnerEmail: "ana@example.org", Permissions: auth.Permissions{auth.SandboxesRead}, Prefix: "sg_99aa00bb", CreatedAt: now.Add(-300 * time.Hour), RevokedAt: now},
	}
	ev := func(seq int64, ago time.Duration, actor, action, target, outcome, detail string) audit.Event {
		return audit.Event{Seq: seq, At: now.Add(-ago), Actor: actor, ActorKind: auth.Person, Action: action, Target: target, Outcome: outcome, Detail: detail, SandboxID: sbRunning, Duration: 0.41, Address: "10.1.2.3"}
	}
	f.events = []audit.Event{
		ev(9, time.Minute, "ana@example.org", "command.run", "python train.py --epochs 3", "ok", "exit 0"),
		ev(8, 2*time.Minute, "tom@example.org", "sandbox.create", "", "refused", "needs sandboxes:run"),
		ev(7, 5*time.Minute, "ana@example.org", "file.write", "/work/churn.csv", "ok", "212000000 bytes"),
		ev(6, 6*time.Minute, "ana@example.org", "terminal.open", "", "ok", ""),
		ev(5, 12*time.Minute, "ana@example.org", "sandbox.create", "churn-notebook", "failed", "host full"),
	}
	f.content["/work/notes.md"] = []byte("# notes\n")
	f.preview.Kind, f.preview.Text, f.preview.Size = "text", "# notes\n\nepochs: 3\n", 19
	return f
}

func names(t *testing.T, listen string) *webhost.Names {
	t.Helper()
	n, err := webhost.New(webhost.Options{Listen: listen})
	require.NoError(t, err)
	return n
}

// server makes the handler over a fake; change may alter the options.
func server(t *testing.T, f *fake, change ...func(*handlers.Options)) http.Handler {
	t.Helper()
	o := handlers.Options{
		Service: f, Sessions: fakeSessions{}, Images: fakeImages{state: "ready"}, Names: names(t, host), Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Now: func() time.Time { return now }, Tick: 20 * time.Millisecond,
	}
	for _, c := range change {
		c(&o)
	}
	s, err := handlers.New(o)
	require.NoError(t, err)
	return s.Handler()
}

// ask is one request of ana's browser; header pairs follow.
func ask(h http.Handler, method, target string, form url.Values, headers ...string) *httptest.ResponseRecorder {
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	r := httptest.NewRequest(method, target, body)
	r.Host = host
	r.AddCookie(&http.Cookie{Name: "who", Value: "ana"})
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		switch headers[i] {
		case "Host":
			r.Host = headers[i+1]
		case "who":
			r.Header.Del("Cookie")
			r.AddCookie(&http.Cookie{Name: "who", Value: headers[i+1]})
		default:
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// tree parses an answer.
func tree(t *testing.T, w *httptest.ResponseRecorder) *html.Node {
	t.Helper()
	n, err := html.Parse(strings.NewReader(w.Body.String()))
	require.NoError(t, err)
	return n
}

func all(n *html.Node, selector string) []*html.Node {
	return cascadia.QueryAll(n, cascadia.MustCompile(selector))
}

// one finds exactly one node.
func one(t *testing.T, n *html.Node, selector string) *html.Node {
	t.Helper()
	found := all(n, selector)
	require.Len(t, found, 1, selector)
	return found[0]
}

func attr(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

func text(n *html.Node) string {
	if n.Type == html.TextNode {
		return n.Data
	}
	var b strings.Builder
	for c := n.FirstChild; c != nil; c = c.NextSibling {
		b.WriteString(text(c))
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// TestDemo serves the furnished fake when it is asked to, and passes at once else.
func TestDemo(t *testing.T) {
	if *demo == "" {
		return
	}
	l, err := net.Listen("tcp", *demo)
	require.NoError(t, err)
	f := furnished()
	h := server(t, f, func(o *handlers.Options) {
		o.Names, o.Tick = names(t, l.Addr().String()), 2*time.Second
		o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	})
	// Everybody is ana here, and ?theme= chooses the theme: pictures are taken without clicking.
	as := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.AddCookie(&http.Cookie{Name: "who", Value: "ana"})
		if theme := r.URL.Query().Get("theme"); theme != "" {
			r.AddCookie(&http.Cookie{Name: "sandgate_theme", Value: theme})
		}
		if r.URL.Query().Has("nobody") {
			r.Header.Del("Cookie")
		}
		h.ServeHTTP(w, r)
	})
	srv := &http.Server{Handler: as, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = srv.Serve(l) }()
	t.Logf("http://%s, cookie who=ana", l.Addr())
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt)
	<-stop
	require.NoError(t, srv.Close())
}
