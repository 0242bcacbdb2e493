package handlers_test

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/handlers"
	"sandgate/internal/webhost"
)

func newServer(t *testing.T, f *fake) *handlers.Server {
	t.Helper()
	s, err := handlers.New(handlers.Options{
		Service: f, Sessions: fakeSessions{}, Images: fakeImages{state: "ready"}, Names: names(t, host), Log: slog.New(slog.DiscardHandler),
		API: http.NotFoundHandler(), MCP: http.NotFoundHandler(),
	})
	require.NoError(t, err)
	return s
}

func TestEveryRouteSaysWhoMayComeIn(t *testing.T) {
	s := newServer(t, newFake())
	known := map[string]bool{}
	for _, r := range s.Table() {
		name := r.Method + " " + r.Path
		require.False(t, known[name], "%s stands twice in the table", name)
		known[name] = true
		ways := 0
		for _, w := range []bool{r.Need > 0, r.Person, r.Public != ""} {
			if w {
				ways++
			}
		}
		require.Equal(t, 1, ways, "%s: a permission, a person or a public reason, exactly one of them", name)
		if r.Need > 0 {
			require.NotEmpty(t, r.Action, "%s: a refusal needs a name on the record", name)
			require.Contains(t, r.Path, "/w/:slug", "%s: a permission is one in a workspace", name)
		}
		if r.IsRaw {
			require.NotEmpty(t, r.Public, "%s", name)
		}
	}
	for _, r := range s.Routes() {
		require.True(t, known[r.Method+" "+r.Path], "%s %s is answered but not in the table", r.Method, r.Path)
	}
}

// fill puts values into a route's parameters.
var fill = strings.NewReplacer(":slug", "research", ":id", sbRunning, ":pty", "ptyaaaaaaaaaaaaaaaaaaaa", ":user", "tom", ":key", "k1", ":invitation", "i1", ":image", "base", ":snapshot", aSnapshot, ":event", "9", ":recording", "recaaaaaaaaaaaaaaaaaaaa", "*", "x")

func TestNobodyAndStrangersGetNowhere(t *testing.T) {
	f := furnished()
	f.rights["looker"] = auth.Permissions{}
	s := newServer(t, f)
	h := s.Handler()
	for _, r := range s.Table() {
		if r.Public != "" {
			continue
		}
		target := fill.Replace(r.Path)
		w := ask(h, r.Method, target, url.Values{}, "who", "")
		require.Contains(t, []int{303, 401}, w.Code, "%s %s signed out", r.Method, r.Path)
		if w.Code == 303 {
			require.True(t, strings.HasPrefix(w.Header().Get("Location"), "/sign-in"), r.Path)
		}
		if strings.Contains(r.Path, ":slug") {
			w = ask(h, r.Method, target, url.Values{}, "who", "stranger")
			require.Equal(t, 404, w.Code, "%s %s of another workspace", r.Method, r.Path)
		}
		if r.Need > 0 {
			w = ask(h, r.Method, target, url.Values{}, "who", "looker")
			require.Equal(t, 403, w.Code, "%s %s without the permission", r.Method, r.Path)
			require.Contains(t, f.called(), "refused "+r.Action, "the refusal is on record")
		}
	}
}

func TestHeadersOfEveryAnswer(t *testing.T) {
	h := server(t, furnished(), func(o *handlers.Options) { o.PublicURL = "https://gate.example.org" })
	for _, target := range []string{"/sign-in", page, "/nothing/here", "/static/none.css", page + "/" + sbRunning + "/files/raw?path=/work/notes.md"} {
		w := ask(h, "GET", target, nil)
		hd := w.Header()
		require.Regexp(t, `^[a-z0-9]{20,}$`, hd.Get("X-Request-ID"), target)
		require.Equal(t, "nosniff", hd.Get("X-Content-Type-Options"), target)
		require.Equal(t, "same-origin", hd.Get("Referrer-Policy"), target+": no-referrer would make browsers post forms with a null Origin")
		require.Equal(t, "same-origin", hd.Get("Cross-Origin-Opener-Policy"), target)
		require.Equal(t, "same-origin", hd.Get("Cross-Origin-Resource-Policy"), target)
		require.NotEmpty(t, hd.Get("Permissions-Policy"), target)
		require.NotEmpty(t, hd.Get("Strict-Transport-Security"), target)
		require.NotEmpty(t, hd.Get("Content-Security-Policy"), target)
	}
	csp := ask(h, "GET", page, nil).Header().Get("Content-Security-Policy")
	for _, part := range []string{"default-src 'none'", "script-src 'self';", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'", "connect-src 'self' ws://" + host} {
		require.Contains(t, csp, part)
	}
	require.NotContains(t, csp, "unsafe-eval")
	require.Equal(t, "no-store", ask(h, "GET", page, nil).Header().Get("Cache-Control"))
	require.Empty(t, ask(server(t, furnished()), "GET", page, nil).Header().Get("Strict-Transport-Security"), "over plain http browsers are not told")
}

func TestHostsAndSites(t *testing.T) {
	f := furnished()
	h := server(t, f)
	form := url.Values{"id": {sbRunning}}
	for _, c := range []struct {
		name    string
		headers []string
		want    int
	}{
		{"our own page", []string{"Sec-Fetch-Site", "same-origin"}, 303},
		{"another site", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"another port of this machine", []string{"Sec-Fetch-Site", "same-site"}, 403},
		{"an old browser, own origin", []string{"Sec-Fetch-Site", "", "Origin", "http://" + host}, 303},
		{"an old browser, foreign origin", []string{"Sec-Fetch-Site", "", "Origin", "http://evil.example"}, 403},
		{"a null origin", []string{"Sec-Fetch-Site", "", "Origin", "null"}, 403},
		{"a sign-in that tells no origin", []string{"Sec-Fetch-Site", ""}, 403},
		{"a name made to point here", []string{"Host", "evil.example:8080"}, 403},
		{"the other loopback name", []string{"Host", "localhost:8080"}, 303},
	} {
		w := ask(h, "POST", page+"/kill", form, c.headers...)
		require.Equal(t, c.want, w.Code, c.name)
	}
	require.Equal(t, []string{"kill " + sbRunning, "kill " + sbRunning, "kill " + sbRunning}, f.called(), "only our own pages change anything")
}

func TestClientAddress(t *testing.T) {
	f := furnished()
	var seen string
	h := server(t, f, func(o *handlers.Options) {
		o.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
		o.API = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = handlers.ClientIP(r) })
	})
	ask(h, "GET", "/v1/x", nil, "X-Forwarded-For", "6.6.6.6, 203.0.113.9") // httptest's peer is 192.0.2.1
	require.Equal(t, "203.0.113.9", seen, "the last that is no proxy of ours")
	h = server(t, f, func(o *handlers.Options) {
		o.API = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = handlers.ClientIP(r) })
	})
	w := ask(h, "GET", "/v1/x", nil, "X-Forwarded-For", "6.6.6.6", "X-Request-ID", "chosen-by-client")
	require.Equal(t, "192.0.2.1", seen, "nobody is believed who was not named")
	require.NotEqual(t, "chosen-by-client", w.Header().Get("X-Request-ID"))
}

func TestLogHoldsTheIDAndNoToken(t *testing.T) {
	var log bytes.Buffer
	f := furnished()
	f.fail = errors.New("password=hunter2 in the cause")
	h := server(t, f, func(o *handlers.Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	w := ask(h, "GET", "/invite?token=verysecret", nil)
	require.Contains(t, log.String(), w.Header().Get("X-Request-ID"))
	require.NotContains(t, log.String(), "verysecret")
	log.Reset()
	w = ask(h, "POST", page+"/kill", url.Values{"id": {sbRunning}})
	require.Equal(t, 500, w.Code)
	require.Contains(t, log.String(), "level=ERROR")
	require.Contains(t, w.Body.String(), w.Header().Get("X-Request-ID"))
	require.NotContains(t, w.Body.String(), "hunter2", "the cause is for the log alone")
}

func TestPanicIsAnAnswer(t *testing.T) {
	h := server(t, furnished(), func(o *handlers.Options) {
		o.API = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("boom") })
	})
	w := ask(h, "GET", "/v1/x", nil)
	require.Equal(t, 500, w.Code)
	require.NotContains(t, w.Body.String(), "boom")
}

func TestOptionsAreChecked(t *testing.T) {
	_, err := handlers.New(handlers.Options{})
	require.Error(t, err)
}

func TestPublicOriginMayPostBehindAProxy(t *testing.T) {
	f := furnished()
	h := server(t, f, func(o *handlers.Options) {
		n, err := webhost.New(webhost.Options{Listen: host, PublicURL: "https://gate.example.org"})
		require.NoError(t, err)
		o.Names, o.PublicURL = n, "https://gate.example.org"
	})
	w := ask(h, "POST", page+"/kill", url.Values{"id": {sbRunning}}, "Sec-Fetch-Site", "", "Origin", "https://gate.example.org")
	require.Equal(t, 303, w.Code, "a proxy that rewrites Host")
}
