package webhost_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/internal/webhost"
)

func request(host, origin string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Host = host
	if origin != "" {
		r.Header.Set("Origin", origin)
	}
	return r
}

func TestHosts(t *testing.T) {
	n, err := webhost.New(webhost.Options{Listen: "127.0.0.1:8080", PublicURL: "https://gate.example.org", Hosts: []string{"inner.example:81"}})
	require.NoError(t, err)
	for host, want := range map[string]bool{
		"127.0.0.1:8080": true, "localhost:8080": true, "LOCALHOST:8080": true, "[::1]:8080": true, "gate.example.org": true,
		"inner.example:81": true, "localhost": false, "localhost:8081": false, "127.0.0.1.evil.example:8080": false,
		"evil.example": false, "evil.example:8080": false, "gate.example.org.evil.example": false, "": false, "inner.example": false,
	} {
		require.Equal(t, want, n.HostAllowed(request(host, "")), "Host %q", host)
	}
}

func TestWildcardListenerTakesOnlyTheAddressItCameInOn(t *testing.T) {
	n, err := webhost.New(webhost.Options{Listen: "0.0.0.0:8080"})
	require.NoError(t, err)
	at := func(host string) *http.Request {
		r := request(host, "")
		local := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 5), Port: 8080}
		return r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(local)))
	}
	require.True(t, n.HostAllowed(at("10.0.0.5:8080")))
	require.True(t, n.HostAllowed(at("localhost:8080")))
	require.False(t, n.HostAllowed(at("10.0.0.6:8080")))
	require.False(t, n.HostAllowed(at("10.0.0.5:9090")))
	require.False(t, n.HostAllowed(at("rebound.example:8080")))
}

func TestOrigins(t *testing.T) {
	n, err := webhost.New(webhost.Options{Listen: "127.0.0.1:8080", PublicURL: "https://gate.example.org"})
	require.NoError(t, err)
	for _, c := range []struct {
		host, origin string
		want         bool
	}{
		{"127.0.0.1:8080", "http://127.0.0.1:8080", true},
		{"localhost:8080", "http://localhost:8080", true},
		{"gate.example.org", "https://gate.example.org", true},
		{"127.0.0.1:8080", "https://gate.example.org", true}, // a proxy that rewrites Host
		{"127.0.0.1:8080", "", false},
		{"127.0.0.1:8080", "null", false},
		{"127.0.0.1:8080", "http://localhost:8080", false},
		{"127.0.0.1:8080", "http://127.0.0.1:8081", false},
		{"127.0.0.1:8080", "https://127.0.0.1:8080", false},
		{"gate.example.org", "http://gate.example.org", false}, // the public name is https
		{"gate.example.org", "https://gate.example.org.evil.example", false},
		{"gate.example.org", "https://sub.gate.example.org", false},
		{"evil.example", "http://evil.example", false},
	} {
		require.Equal(t, c.want, n.OriginAllowed(request(c.host, c.origin)), "%+v", c)
	}
}

func TestBadNamesAreRefused(t *testing.T) {
	for _, o := range []webhost.Options{
		{PublicURL: "gate.example.org"},
		{PublicURL: "ftp://x"},
		{Hosts: []string{"*"}},
		{Hosts: []string{"a/b"}},
		{Listen: "nonsense"},
		{PublicURL: "https://user:pass@host"},
	} {
		_, err := webhost.New(o)
		require.Error(t, err, "%+v", o)
	}
}
