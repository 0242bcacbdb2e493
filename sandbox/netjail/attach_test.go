package netjail

import (
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netns"

	"sandgate/internal/fault"
	"sandgate/sandbox"
)

var public = sandbox.NetworkPolicy{Mode: sandbox.NetworkPublic}

func TestAttachReachesThePublicAndNothingElse(t *testing.T) {
	j := open(t, Options{Inst: "thn1"})
	id, p := attach(t, j, public)

	got := p.tcp(publicHost, 80)
	require.Equal(t, seenOpen, got.Seen, got.Text)
	require.Contains(t, got.Text, uplinkHost.Addr().String(), "the address of the sandbox stays here")
	require.Equal(t, seenOpen, p.udp(publicHost, 53).Seen)
	require.Equal(t, seenOpen, p.ask(ask{Kind: "icmp", To: publicHost.String()}).Seen)

	require.Equal(t, seenRefused, p.tcp(lanPeer, 80).Seen)
	require.Equal(t, seenRefused, p.udp(lanPeer, 53).Seen)
	require.Equal(t, seenRefused, p.tcp(hostExtra, 80).Seen)
	require.Equal(t, seenRefused, p.tcp(uplinkHost.Addr(), 80).Seen)
	require.Equal(t, seenRefused, p.tcp(uplinkOther, 80).Seen, "the network that the host is on")

	_, err := j.Attach(t.Context(), id, public, free)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	found, err := j.Found(t.Context())
	require.NoError(t, err)
	require.Equal(t, []sandbox.ID{id}, found)

	six, err := os.ReadFile("/proc/net/if_inet6")
	require.NoError(t, err)
	require.NotContains(t, string(six), j.boxes[id].link, "the host's end has no IPv6 address")

	require.NoError(t, j.Detach(t.Context(), id))
	require.NoError(t, j.Detach(t.Context(), id), "twice is no error")
	require.Empty(t, leftovers(t, j))
}

// A service in a sandbox is there for the sandbox alone: neither the host nor the networks around it reach it, nor does
// another sandbox, with and without our rules.
func TestNobodyReachesIn(t *testing.T) {
	j := open(t, Options{Inst: "thnh"})
	id, _ := attach(t, j, public)
	_, other := attach(t, j, public)
	in := netip.AddrPortFrom(j.boxes[id].addr, 80).String()
	require.NoError(t, within(j.n.namespace(id), func(netns.NsHandle) error { return serve(in) }))
	w := host(t)
	try := func(when string) {
		for _, from := range []string{w.lan, w.inet, "/proc/self/ns/net"} {
			for _, proto := range []string{"tcp", "udp"} {
				require.NoError(t, within(from, func(netns.NsHandle) error {
					if text, err := (&prober{}).try(ask{Kind: proto, To: in, Wait: 50 * time.Millisecond}); err == nil {
						return fmt.Errorf("%s: %s from %s was answered: %s", when, proto, from, text)
					}
					return nil
				}))
			}
		}
		for _, proto := range []string{"tcp", "udp"} {
			require.NotEqual(t, seenOpen, other.ask(ask{Kind: proto, To: in, Wait: 50 * time.Millisecond}).Seen, when)
		}
	}
	try("with rules")
	require.NoError(t, j.Close())
	nft(t, "flush", "ruleset")
	try("without")
}
