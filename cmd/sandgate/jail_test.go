package main

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHowSandboxesReachTheServer(t *testing.T) {
	for public, want := range map[string]string{
		"http://127.0.0.1:8080":           "http://sandgate.internal:8080",
		"http://[::1]:8080":               "http://sandgate.internal:8080",
		"http://localhost:8080":           "http://sandgate.internal:8080",
		"http://gate:8080":                "http://sandgate.internal:8080",
		"http://192.168.1.5":              "http://sandgate.internal",
		"http://gate.example.org":         "http://gate.example.org",
		"http://Gate.Example.org:8080":    "http://gate.example.org:8080",
		"https://gate.example.org":        "http://gate.example.org",
		"https://gate.example.org:8443":   "http://gate.example.org",
		"https://b\u00fccher.example.org": "http://sandgate.internal",
	} {
		u, err := url.Parse(public)
		require.NoError(t, err)
		in, err := insideOf(u)
		require.NoError(t, err)
		require.Equal(t, want, in.url(), public)
		require.Equal(t, want, "http://"+in.host())
	}
}

func TestSettingsOfTheJailAreKept(t *testing.T) {
	d := &dataDir{path: t.TempDir()}
	s, err := d.lastJail()
	require.NoError(t, err)
	require.Equal(t, "10.213.0.0/16", s.pool.String())

	s = jailSettings{Pool: "10.9.0.0/20", Allow: []string{"10.1.2.3:443,10.1.2.3:443", "[fd00::1]:80"}}
	require.NoError(t, s.read())
	require.Equal(t, []string{"10.1.2.3/32:443", "[fd00::1/128]:80"}, s.Allow)
	require.NoError(t, d.writeJail(s))
	again, err := d.lastJail()
	require.NoError(t, err)
	require.Equal(t, s, again)

	for _, bad := range []jailSettings{{Pool: ""}, {Pool: "10.0.0.1"}, {Pool: "10.0.0.0/8", Allow: []string{"10.0.0.1"}}} {
		require.Error(t, bad.read())
	}
	off := jailSettings{Pool: jailOff}
	require.NoError(t, off.read())
}
