package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
)

// edge ends TLS and serves a server of ours under a path, as an operator's proxy does.
type edge struct {
	*httptest.Server
	target atomic.Pointer[url.URL]
	strip  string // taken away from paths on their way in
	client *http.Client
}

func newEdge(t *testing.T, strip string) *edge {
	t.Helper()
	f := &edge{strip: strip}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		to := f.target.Load()
		r.Out.URL.Scheme, r.Out.URL.Host = to.Scheme, to.Host
		r.Out.URL.Path, r.Out.URL.RawPath = strings.TrimPrefix(r.In.URL.Path, f.strip), ""
		r.Out.Host = r.In.Host
		r.SetXForwarded()
	}}
	f.Server = httptest.NewTLSServer(proxy)
	t.Cleanup(f.Close)
	pool := x509.NewCertPool()
	pool.AddCert(f.Certificate())
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	f.client = &http.Client{
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}, Jar: jar,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	t.Cleanup(f.client.CloseIdleConnections)
	return f
}

func (f *edge) do(t *testing.T, method, path string, form url.Values) (*http.Response, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, f.URL+path, strings.NewReader(form.Encode()))
	require.NoError(t, err)
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Origin", f.URL)
	}
	resp, err := f.client.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp, string(body)
}

// dial opens a terminal's websocket and says how it was closed, or that output came.
func (f *edge) dial(t *testing.T, path string, header http.Header) (code websocket.StatusCode, refused int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, resp, err := websocket.Dial(ctx, "wss"+strings.TrimPrefix(f.URL, "https")+path, &websocket.DialOptions{
		HTTPClient: f.client, HTTPHeader: header, Subprotocols: []string{"sandgate.term.v1"},
	})
	if err != nil {
		require.NotNil(t, resp, "%v", err)
		return 0, resp.StatusCode
	}
	defer func() { _ = conn.CloseNow() }()
	conn.SetReadLimit(1 << 20)
	for {
		kind, _, err := conn.Read(ctx)
		if err != nil {
			return websocket.CloseStatus(err), 0
		}
		if kind == websocket.MessageBinary {
			return 0, 0
		}
	}
}

// Pages, the REST face and terminals work behind a proxy that ends TLS and serves us under a path, whether it keeps that path or
// takes it away; and a ticket is the only thing in an address that opens anything.
func TestBehindAProxyUnderAPath(t *testing.T) {
	const base = "/tools/gate"
	host := newInstallation(t)
	password := host.person("ann@example.org", "alpha")
	key := host.key("alpha", "sandboxes:run")
	keeps, strips := newEdge(t, ""), newEdge(t, base)
	s := host.serve("--public-url", keeps.URL+base, "--hosts", strips.URL, "--trusted-proxies", "127.0.0.1/32")
	at, err := url.Parse(s.url)
	require.NoError(t, err)
	keeps.target.Store(at)
	strips.target.Store(at)
	api := s.rest(key)
	id := api.create("proxied")
	pty := api.openPTY(id)
	ws := base + "/v1/sandboxes/" + id + "/ptys/" + pty + "/ws"

	for name, f := range map[string]*edge{"the path is kept": keeps, "the path is taken away": strips} {
		t.Run(name, func(t *testing.T) {
			// The door: every address on the way in and in the pages has the path in front.
			resp, _ := f.do(t, "GET", base+"/", nil)
			require.Equal(t, http.StatusSeeOther, resp.StatusCode)
			require.Equal(t, base+"/sign-in", resp.Header.Get("Location"))
			resp, page := f.do(t, "GET", base+"/sign-in", nil)
			require.Equal(t, http.StatusOK, resp.StatusCode)
			require.Contains(t, page, `action="`+base+`/sign-in"`)
			require.Contains(t, page, `data-root="`+base+`/"`)
			for _, asset := range regexp.MustCompile(`(?:src|href)="([^"]+\.(?:js|css|svg))"`).FindAllStringSubmatch(page, -1) {
				require.True(t, strings.HasPrefix(asset[1], base+"/static/"), asset[1])
				resp, _ := f.do(t, "GET", asset[1], nil)
				require.Equal(t, http.StatusOK, resp.StatusCode, asset[1])
			}
			resp, page = f.do(t, "POST", base+"/sign-in", url.Values{"email": {"ann@example.org"}, "password": {password}})
			require.Equal(t, http.StatusSeeOther, resp.StatusCode, page)
			next := resp.Header.Get("Location")
			require.Equal(t, base+"/", next)
			resp, page = f.do(t, "GET", base+"/w/alpha/sandboxes/"+id, nil)
			require.Equal(t, http.StatusOK, resp.StatusCode)
			require.Contains(t, page, `data-sandbox="`+base+"/w/alpha/sandboxes/"+id+`"`)
			require.NotRegexp(t, `(?:href|src|action|sse-connect|hx-get)="/(?:w|static|account|sign|v1)\b`, page)

			// The terminal, by cookie from our own page alone.
			mine := base + "/w/alpha/sandboxes/" + id + "/ptys/" + pty + "/ws"
			code, refused := f.dial(t, mine, http.Header{"Origin": {f.URL}})
			require.Zero(t, code)
			require.Zero(t, refused)
			for _, origin := range []string{"", "null", "https://evil.example", "http" + strings.TrimPrefix(f.URL, "https"), f.URL + ".evil.example"} {
				h := http.Header{}
				if origin != "" {
					h.Set("Origin", origin)
				}
				_, refused = f.dial(t, mine, h)
				require.Equal(t, http.StatusForbidden, refused, "Origin %q", origin)
			}

			// … by key, and by ticket, once. A cookie beside a key is refused, so this is another client.
			program := &edge{Server: f.Server, client: &http.Client{Transport: f.client.Transport}}
			code, refused = program.dial(t, ws, http.Header{"X-Api-Key": {key}})
			require.Zero(t, code)
			require.Zero(t, refused)
			var got struct{ Ticket string }
			api.ok("POST", "/v1/sandboxes/"+id+"/ptys/"+pty+"/ticket", nil, &got)
			code, _ = program.dial(t, ws+"?ticket="+got.Ticket, nil)
			require.Zero(t, code)
			code, _ = program.dial(t, ws+"?ticket="+got.Ticket, nil)
			require.EqualValues(t, 4008, code, "a second time")
			code, _ = program.dial(t, ws+"?key="+key+"&api_key="+key, nil)
			require.EqualValues(t, 4008, code, "a key in an address opens nothing")
			log, err := os.ReadFile(filepath.Join(host.data, "server.log"))
			require.NoError(t, err)
			require.NotContains(t, string(log), got.Ticket)
			require.NotContains(t, string(log), key)
		})
	}
}
