package netjail

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/sandbox"
	"sandgate/sandbox/netjail/policy"
)

func TestConnectionsAreLimited(t *testing.T) {
	var told collector
	j := open(t, Options{Inst: "thnd", OnDenied: told.add, Limits: Limits{Connections: 20, NewPerSecond: -1}})
	id, p := attach(t, j, public)
	other, q := attach(t, j, public)
	open, refused := 0, 0
	for range 31 {
		switch p.ask(ask{Kind: "hold", To: publicHost.String() + ":80"}).Seen {
		case seenOpen:
			open++
		case seenRefused:
			refused++
		}
	}
	require.Equal(t, 20, open)
	require.Equal(t, 11, refused)
	require.Equal(t, seenOpen, q.tcp(publicHost, 80).Seen, "another sandbox has its own count")
	eventually(t, "it is told", func() bool {
		for _, d := range told.of(id) {
			if d.Why == whyTooMany {
				return true
			}
		}
		return false
	})
	require.Empty(t, told.of(other))
	require.NoError(t, j.Change(t.Context(), id, sandbox.NetworkPolicy{Mode: sandbox.NetworkNone}))
	require.NoError(t, j.Change(t.Context(), id, public))
	require.Equal(t, seenOpen, p.tcp(publicHost, 80).Seen, "connections that ended do not count")
}

func TestNewConnectionsAndBytesAreLimited(t *testing.T) {
	j := open(t, Options{Inst: "thne", Limits: Limits{NewPerSecond: 10, PacketsPerSecond: 1000, BytesPerSecond: -1}})
	_, p := attach(t, j, public)
	seen := map[string]int{}
	for range 60 {
		seen[p.tcp(publicHost, 80).Seen]++
	}
	require.GreaterOrEqual(t, seen[seenOpen], 20)
	require.Positive(t, seen[seenRefused], "%v", seen)
	_, q := attach(t, j, public)
	before, _ := wentOut(t)
	start := time.Now()
	got := q.ask(ask{Kind: "flood", To: publicHost.String() + ":53", Wait: time.Second})
	after, _ := wentOut(t)
	passed := after - before
	t.Logf("%s; %d passed", got.Text, passed)
	require.LessOrEqual(t, passed, 1000+int(1100*time.Since(start).Seconds()))
}

func TestExceptionsOfTheOperator(t *testing.T) {
	ex, err := policy.ParseExceptions([]string{lanPeer.String() + "/32:8080", uplinkOther.String() + ":80", hostExtra.String() + ":9998"})
	require.NoError(t, err)
	j := open(t, Options{Inst: "thnf", JailAllow: ex})
	require.NoError(t, serve(netip.AddrPortFrom(hostExtra, 9997).String()))
	_, p := attach(t, j, public)
	require.Equal(t, seenOpen, p.tcp(lanPeer, 8080).Seen)
	require.Equal(t, seenRefused, p.tcp(lanPeer, 80).Seen, "that port alone")
	require.Equal(t, seenOpen, p.tcp(uplinkOther, 80).Seen)
	require.Equal(t, seenRefused, p.tcp(hostExtra, 9997).Seen)
	list, q := attach(t, j, sandbox.NetworkPolicy{Mode: sandbox.NetworkAllowList, Allow: []string{publicHost.String()}})
	require.Equal(t, seenRefused, q.tcp(lanPeer, 8080).Seen, "an exception is not on anybody's list by itself")
	require.NoError(t, j.Admit(t.Context(), list, []netip.Addr{lanPeer}, 8080, time.Minute))
	require.Equal(t, seenOpen, q.tcp(lanPeer, 8080).Seen, "but a name may lead there")
	_, err = New(Options{Inst: "thnf", JailAllow: policy.Exceptions{{Prefix: DefaultPool, Port: 80}}})
	require.Error(t, err)
}

// An answer lets in for as long as it lives; connections made meanwhile go on.
func TestAnswersExpire(t *testing.T) {
	j := open(t, Options{Inst: "thng"})
	id, p := attach(t, j, sandbox.NetworkPolicy{Mode: sandbox.NetworkAllowList, Allow: []string{"example.org:80"}})
	require.Equal(t, seenRefused, p.tcp(publicHost, 80).Seen)
	j.mu.Lock()
	err := j.admitAnswer(j.boxes[id], []netip.Addr{publicHost}, 80, 700*time.Millisecond)
	j.mu.Unlock()
	require.NoError(t, err)
	require.Equal(t, seenOpen, p.ask(ask{Kind: "hold", To: publicHost.String() + ":80"}).Seen)
	eventually(t, "the answer ends", func() bool { return p.tcp(publicHost, 80).Seen == seenRefused })
	require.Equal(t, seenOpen, p.ask(ask{Kind: "held"}).Seen)
	for i := range maxAdmittedBy + 1 {
		err = j.Admit(t.Context(), id, []netip.Addr{netip.AddrFrom4([4]byte{20, 1, byte(i >> 8), byte(i)})}, 80, time.Minute)
	}
	require.Error(t, err, "a sandbox that makes its own names does not fill the table")
}
