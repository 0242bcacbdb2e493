package netjail

import (
	"testing"

	"github.com/stretchr/testify/require"

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

	require.NoError(t, j.Detach(t.Context(), id))
	require.NoError(t, j.Detach(t.Context(), id), "twice is no error")
	require.Empty(t, leftovers(t, j))
}
