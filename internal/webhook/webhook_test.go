package webhook_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/webhook"
)

var (
	secret = []byte("a secret of enough bytes")
	local  = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
)

// call is one request as the receiver got it.
type call struct {
	header http.Header
	body   []byte
}

// receiver answers with the codes in turn, then with 200.
func receiver(t *testing.T, codes ...int) (*httptest.Server, <-chan call) {
	t.Helper()
	calls := make(chan call, 100)
	var mu sync.Mutex
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		calls <- call{r.Header.Clone(), b}
		mu.Lock()
		defer mu.Unlock()
		if len(codes) > 0 {
			w.WriteHeader(codes[0])
			codes = codes[1:]
		}
	}))
	t.Cleanup(s.Close)
	return s, calls
}

func hook(t *testing.T, o webhook.Options) *webhook.Hook {
	t.Helper()
	o.Secret, o.Installation = secret, "ab12"
	if o.Pause == nil {
		o.Pause = func(int) time.Duration { return time.Millisecond }
	}
	h, err := webhook.New(o)
	require.NoError(t, err)
	return h
}

func run(t *testing.T, h *webhook.Hook) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { h.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
}

func take(t *testing.T, calls <-chan call) call {
	t.Helper()
	select {
	case c := <-calls:
		return c
	case <-time.After(time.Minute):
		require.Fail(t, "nothing was told")
		return call{}
	}
}

func state(h *webhook.Hook) webhook.State { s, _ := h.State(); return s }

func settled(t *testing.T, h *webhook.Hook, when func(webhook.State) bool) webhook.State {
	t.Helper()
	require.Eventually(t, func() bool { return when(state(h)) }, time.Minute, 5*time.Millisecond)
	return state(h)
}

func TestSignedAndRetried(t *testing.T) {
	s, calls := receiver(t, 500, 302)
	h := hook(t, webhook.Options{URL: s.URL + "/hook?token=x", Allow: local})
	run(t, h)
	h.Send(webhook.Event{Type: "audit.head", Data: map[string]any{"seq": 7}})
	ids := map[string]bool{}
	for range 3 {
		c := take(t, calls)
		id, stamp := c.header.Get("webhook-id"), c.header.Get("webhook-timestamp")
		ids[id] = true
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(id + "." + stamp + "." + string(c.body)))
		require.Equal(t, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)), c.header.Get("webhook-signature"))
		var b struct {
			ID, Type, At, Installation string
			Data                       struct{ Seq int }
		}
		require.NoError(t, json.Unmarshal(c.body, &b))
		require.Equal(t, []any{id, "audit.head", "ab12", 7}, []any{b.ID, b.Type, b.Installation, b.Data.Seq})
	}
	require.Len(t, ids, 1, "a repeat has the id of the first attempt")
	st := settled(t, h, func(s webhook.State) bool { return s.Waiting == 0 })
	require.Empty(t, st.Failed)
	require.False(t, st.Delivered.IsZero())
}

func TestSendNeverWaits(t *testing.T) {
	h := hook(t, webhook.Options{URL: "http://127.0.0.1:1/", Allow: local})
	for range 1200 { // nobody runs
		h.Send(webhook.Event{Type: "approval.requested"})
	}
	require.Equal(t, 1000, state(h).Waiting)
	require.Equal(t, 200, state(h).Lost)
	h.Send(webhook.Event{Type: "bad", Data: func() {}})
	require.Equal(t, 1000, state(h).Waiting)
	var none *webhook.Hook
	none.Send(webhook.Event{})
	none.Run(context.Background())
	none.Flush(context.Background())
	_, ok := none.State()
	require.False(t, ok)
}

func TestNewerTakesThePlaceOfItsKey(t *testing.T) {
	s, calls := receiver(t)
	h := hook(t, webhook.Options{URL: s.URL, Allow: local})
	for n := range 5 {
		h.Send(webhook.Event{Type: "audit.head", Key: "head", Data: n})
	}
	h.Send(webhook.Event{Type: "approval.requested", Data: "a"})
	require.Equal(t, 2, state(h).Waiting)
	h.Flush(context.Background())
	require.Zero(t, state(h).Waiting)
	require.Contains(t, string(take(t, calls).body), `"data":"a"`, "the newest first, when time is short")
	require.Contains(t, string(take(t, calls).body), `"data":4`)
}

func TestTooLateIsGivenUp(t *testing.T) {
	s, _ := receiver(t, 500, 500, 500)
	h := hook(t, webhook.Options{URL: s.URL, Allow: local})
	run(t, h)
	h.Send(webhook.Event{Type: "approval.requested", Until: time.Now().Add(-time.Second)})
	require.Equal(t, 1, settled(t, h, func(s webhook.State) bool { return s.Waiting == 0 }).Lost)
}

// What is not public is not reached, however it is written and wherever a name or a redirect leads.
func TestInsideIsNotReached(t *testing.T) {
	inner, calls := receiver(t)
	_, port, err := net.SplitHostPort(strings.TrimPrefix(inner.URL, "http://"))
	require.NoError(t, err)
	for _, host := range []string{
		"127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:169.254.169.254]", "169.254.169.254", "10.0.0.1", "192.168.1.1", "100.64.0.1",
		"[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::]", "[fd00:ec2::254]", "[fe80::1%25lo]", "0.0.0.0", "168.63.129.16", "[::]",
	} {
		h := hook(t, webhook.Options{URL: "http://" + host + ":" + port + "/"})
		h.Send(webhook.Event{Type: "audit.head"})
		h.Flush(context.Background())
		require.Contains(t, state(h).Failed, "not a public address", host)
		require.Equal(t, 1, state(h).Waiting, "it is tried again: names change")
	}
	// Spellings that are no address for us are names, which nobody answers for.
	for _, host := range []string{"2852039166", "0x7f000001", "0177.0.0.1", "127.1"} {
		h := hook(t, webhook.Options{URL: "http://" + host + ":" + port + "/"})
		h.Send(webhook.Event{Type: "audit.head"})
		h.Flush(context.Background())
		require.NotEmpty(t, state(h).Failed, host)
	}
	outer := httptest.NewServer(http.RedirectHandler(inner.URL, http.StatusTemporaryRedirect))
	t.Cleanup(outer.Close)
	h := hook(t, webhook.Options{URL: outer.URL, Allow: local})
	h.Send(webhook.Event{Type: "audit.head"})
	h.Flush(context.Background())
	require.Contains(t, state(h).Failed, "307")
	require.Empty(t, calls, "somebody inside was reached")
}

func TestNoProxyStandsBetween(t *testing.T) {
	proxy, calls := receiver(t)
	t.Setenv("HTTP_PROXY", proxy.URL)
	t.Setenv("http_proxy", proxy.URL)
	h := hook(t, webhook.Options{URL: "http://10.0.0.1/"})
	h.Send(webhook.Event{Type: "audit.head"})
	h.Flush(context.Background())
	require.Empty(t, calls)
}

func TestErrorsTellNoSecret(t *testing.T) {
	h := hook(t, webhook.Options{URL: "http://127.0.0.1:1/services/T0KEN"})
	h.Send(webhook.Event{Type: "audit.head"})
	h.Flush(context.Background())
	require.NotContains(t, state(h).Failed, "T0KEN")
	require.Equal(t, "127.0.0.1:1", state(h).Host)
}

func TestOptionsAreChecked(t *testing.T) {
	for _, u := range []string{"", "hooks.example.org", "ftp://example.org/", "http://", "https://me:pw@example.org/", "https://example.org/#x"} {
		_, err := webhook.New(webhook.Options{URL: u, Secret: secret})
		require.Error(t, err, u)
	}
	_, err := webhook.New(webhook.Options{URL: "https://example.org", Secret: []byte("short")})
	require.Error(t, err)
	for text, want := range map[string]string{
		"  plain secret of bytes\n":                                 "plain secret of bytes",
		"whsec_" + base64.StdEncoding.EncodeToString(secret) + "\n": string(secret),
		"short": "", "whsec_!!": "",
	} {
		got, err := webhook.Secret([]byte(text))
		require.Equal(t, want == "", err != nil, text)
		require.Equal(t, want, string(got))
	}
}
