package netjail

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sandgate/sandbox"
	"sandgate/sandbox/netjail/prefix"
)

// collector keeps what a jail told.
type collector struct {
	mu  sync.Mutex
	all map[sandbox.ID][]sandbox.Denial
}

func (c *collector) add(id sandbox.ID, d sandbox.Denial) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = map[sandbox.ID][]sandbox.Denial{}
	}
	c.all[id] = append(c.all[id], d)
}

func (c *collector) of(id sandbox.ID) []sandbox.Denial {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]sandbox.Denial(nil), c.all[id]...)
}

func TestDenialsAreToldAndCounted(t *testing.T) {
	var told collector
	j := open(t, Options{Inst: "thnb", OnDenied: told.add})
	id, p := attach(t, j, public)
	quietOne, _ := attach(t, j, public)
	mine := j.boxes[id].addr
	start := time.Now()
	p.tcp(lanPeer, 80)
	p.udp(lanPeer, 53)
	p.ask(ask{Kind: "icmp", To: lanPeer.String(), Wait: 50 * time.Millisecond})
	p.tcp(hostExtra, 22)
	p.tcp(uplinkOther, 22)
	p.ask(ask{Kind: "raw", To: "239.1.2.3:5353", From: mine.String()})
	p.ask(ask{Kind: "raw", To: publicHost.String() + ":53", From: "8.8.8.8"})
	p.ask(ask{Kind: "raw", To: "[fe80::2]:53", From: "fe80::1"}) // not even judged: the host's end speaks no IPv6
	require.NoError(t, j.Change(t.Context(), id, sandbox.NetworkPolicy{Mode: sandbox.NetworkNone}))
	p.tcp(publicHost, 443)
	want := []sandbox.Denial{
		{Protocol: "tcp", Destination: lanPeer.String(), Port: 80, Why: prefix.Private},
		{Protocol: "udp", Destination: lanPeer.String(), Port: 53, Why: prefix.Private},
		{Protocol: "icmp", Destination: lanPeer.String(), Why: prefix.Private},
		{Protocol: "tcp", Destination: hostExtra.String(), Port: 22, Why: whyHost},
		{Protocol: "tcp", Destination: uplinkOther.String(), Port: 22, Why: whyHostNet},
		{Protocol: "udp", Destination: "239.1.2.3", Port: 5353, Why: prefix.Multicast},
		{Protocol: "udp", Destination: publicHost.String(), Port: 53, Why: whyForged},
		{Protocol: "tcp", Destination: publicHost.String(), Port: 443, Why: whyOff},
	}
	if lanPeer.Is4() {
		want[0].Why, want[1].Why, want[2].Why = whyHostNet, whyHostNet, whyHostNet // the host is on it
	}
	if !assert.Eventually(t, func() bool { return len(told.of(id)) >= len(want) }, 60*time.Second, 10*time.Millisecond) {
		t.Fatalf("told: %+v", told.of(id))
	}
	got := told.of(id)
	for i := range got {
		require.WithinRange(t, got[i].At, start, time.Now())
		require.Equal(t, int64(1), got[i].Count)
		got[i].At, got[i].Count = time.Time{}, 0
	}
	require.ElementsMatch(t, want, got)
	require.Empty(t, told.of(quietOne))
	stats, err := j.Stats(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, uint64(len(want)), stats.Denied, "exactly as many as there were") // all of them were told: they have come
	require.Positive(t, stats.OutPackets)
	require.Positive(t, stats.InBytes)
}

// A flood of denials costs the reader a bounded number of reports, and is counted to the last packet.
func TestFloodOfDenialsIsBounded(t *testing.T) {
	var told collector
	j := open(t, Options{Inst: "thnc", OnDenied: told.add, Limits: Limits{PacketsPerSecond: -1}})
	id, p := attach(t, j, public)
	for i := range 500 { // fewer than a link queues
		a := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		require.NotEqual(t, seenOpen, p.ask(ask{Kind: "raw", To: netip.AddrPortFrom(a, uint16(1+i)).String(), From: j.boxes[id].addr.String()}).Text)
	}
	var before Stats
	eventually(t, "each is counted", func() bool {
		var err error
		before, err = j.Stats(t.Context(), id)
		require.NoError(t, err)
		return before.Denied == before.OutPackets && before.Denied > 50 // a packet that a full queue loses has not been sent
	})
	got := p.ask(ask{Kind: "flood", To: "10.9.9.9:53", Wait: 500 * time.Millisecond})
	var after Stats
	eventually(t, "each is counted", func() bool {
		var err error
		after, err = j.Stats(t.Context(), id)
		require.NoError(t, err)
		return after.Denied == after.OutPackets
	})
	t.Logf("%s, %d denied, %d reports", got.Text, after.Denied, len(told.of(id)))
	require.Greater(t, after.Denied, before.Denied+1000)
	require.LessOrEqual(t, len(told.of(id)), 200)
	require.NotEmpty(t, told.of(id))
}
