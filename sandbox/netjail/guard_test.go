package netjail

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/sandbox"
)

func nft(t testing.TB, args ...string) {
	t.Helper()
	out, err := exec.Command("nft", args...).CombinedOutput()
	require.NoError(t, err, "nft %s: %s", args, out)
}

// Somebody flushes all rules again and again while a sandbox asks for private machines and for the host: no answer ever, not
// a packet gets out, and the public is back at once.
func TestFlushByOthersOpensNothing(t *testing.T) {
	for name, older := range map[string]bool{"owned": false, "a kernel without owners": true} {
		t.Run(name, func(t *testing.T) {
			j := open(t, Options{Inst: "thn3", olderKernel: older, Limits: Limits{PacketsPerSecond: -1}})
			require.Equal(t, !older, func() bool {
				_, p := attach(t, j, public)
				require.Equal(t, seenOpen, p.tcp(publicHost, 80).Seen)
				return j.t.owned
			}())
			require.NoError(t, serveOnce(hostExtra))
			_, lan := attach(t, j, public)
			_, own := attach(t, j, public)
			_, pub := attach(t, j, public)
			before := sniffers[host(t).lan].total()
			answers := make(chan string, 2)
			const long = time.Second
			go func() { answers <- lan.ask(ask{Kind: "flood", To: lanPeer.String() + ":53", Wait: long}).Text }()
			go func() { answers <- own.ask(ask{Kind: "flood", To: hostExtra.String() + ":53", Wait: long}).Text }()
			flushes, worst := 0, time.Duration(0)
			for start := time.Now(); time.Since(start) < long; flushes++ {
				nft(t, "flush", "ruleset")
				flushed := time.Now()
				eventually(t, "the public is back", func() bool {
					return pub.ask(ask{Kind: "tcp", To: publicHost.String() + ":80", Wait: 200 * time.Millisecond}).Seen == seenOpen
				})
				worst = max(worst, time.Since(flushed))
			}
			for range 2 {
				got := <-answers
				t.Log(got)
				require.True(t, strings.HasPrefix(got, "0 answers"), got)
			}
			t.Logf("%d flushes, the public back after %v at most", flushes, worst)
			require.Equal(t, before, sniffers[host(t).lan].total(), "not a packet got out")
		})
	}
}

// While no process of ours runs, a flush takes the rules away: then nothing moves at all, and a new process mends it.
func TestFlushWhileNobodyWatches(t *testing.T) {
	o := Options{Inst: "thn4"}
	j := open(t, o)
	id, p := attach(t, j, public)
	_, flooder := attach(t, j, public)
	require.NoError(t, j.Close())
	require.Equal(t, seenOpen, p.tcp(publicHost, 80).Seen, "rules outlive the process")
	require.Equal(t, seenRefused, p.tcp(lanPeer, 80).Seen)

	nft(t, "flush", "ruleset")
	require.NoError(t, serveOnce(hostExtra))
	before := sniffers[host(t).lan].total()
	for _, to := range []netip.Addr{lanPeer, hostExtra, uplinkHost.Addr(), publicHost, j.GatewayAddr()} {
		got := flooder.ask(ask{Kind: "flood", To: netip.AddrPortFrom(to, 53).String(), Wait: 100 * time.Millisecond})
		require.True(t, strings.HasPrefix(got.Text, "0 answers"), "%s: %s", to, got.Text)
		require.NotEqual(t, seenOpen, p.ask(ask{Kind: "tcp", To: netip.AddrPortFrom(to, 53).String(), Wait: 100 * time.Millisecond}).Seen, to)
		require.NotEqual(t, seenOpen, p.ask(ask{Kind: "icmp", To: to.String(), Wait: 100 * time.Millisecond}).Seen, to)
	}
	inet, forged := sniffers[host(t).inet], netip.MustParseAddr("8.8.8.8")
	was := inet.from(forged)
	for _, to := range []netip.Addr{publicHost, lanPeer, hostExtra} {
		require.Empty(t, p.ask(ask{Kind: "raw", To: netip.AddrPortFrom(to, 53).String(), From: forged.String()}).Text)
	}
	inet.quiet(t)
	require.Equal(t, was, inet.from(forged), "nor did one with a forged source")
	require.Equal(t, before, sniffers[host(t).lan].total(), "not a packet got out")

	again := open(t, o)
	require.NotEqual(t, seenOpen, p.ask(ask{Kind: "tcp", To: publicHost.String() + ":80", Wait: 200 * time.Millisecond}).Seen, "nobody said what it may")
	require.NoError(t, again.Adopt(t.Context(), id, public))
	require.Equal(t, seenOpen, p.tcp(publicHost, 80).Seen)
	require.Equal(t, seenRefused, p.tcp(lanPeer, 80).Seen)
}

// serveOnce answers at an address of the host; a second call finds the first still there.
func serveOnce(a netip.Addr) error {
	err := serve(netip.AddrPortFrom(a, 53).String())
	if err != nil && strings.Contains(err.Error(), "in use") {
		return nil
	}
	return err
}

func TestAdoptKeepsWhatRuns(t *testing.T) {
	o := Options{Inst: "thn5"}
	j := open(t, o)
	list := sandbox.NetworkPolicy{Mode: sandbox.NetworkAllowList, Allow: []string{publicOther.String() + "/32:80"}}
	id, p := attach(t, j, list)
	require.NoError(t, j.Admit(t.Context(), id, []netip.Addr{publicHost, lanPeer}, 80, time.Minute))
	require.Equal(t, seenRefused, p.tcp(lanPeer, 80).Seen, "an answer that is denied lets nothing in")
	require.Equal(t, seenRefused, p.tcp(publicHost, 443).Seen)
	require.Equal(t, seenOpen, p.ask(ask{Kind: "hold", To: publicHost.String() + ":80"}).Seen)
	require.NoError(t, j.Close())

	again := open(t, o)
	require.Equal(t, seenOpen, p.tcp(publicOther, 80).Seen, "what was in force stays so")
	require.Equal(t, seenRefused, p.tcp(publicOther, 443).Seen)
	got, pol, ok := again.IDByAddr(again.boxes[id].addr)
	require.True(t, ok)
	require.Equal(t, id, got)
	require.Equal(t, sandbox.NetworkNone, pol.Mode, "not known before it is adopted")
	require.NoError(t, again.Adopt(t.Context(), id, list))
	require.Equal(t, seenOpen, p.tcp(publicHost, 80).Seen, "an answer lives on")
	require.Equal(t, seenOpen, p.ask(ask{Kind: "held"}).Seen, "so do connections")

	// Adopted with another policy, as if the record had changed meanwhile: the answers go.
	require.NoError(t, again.Adopt(t.Context(), id, public))
	require.NoError(t, again.Change(t.Context(), id, list))
	require.Equal(t, seenRefused, p.tcp(publicHost, 80).Seen)

	_, err := again.Attach(t.Context(), id, list, free)
	require.True(t, fault.Is(err, fault.Conflict))
	require.True(t, fault.Is(again.Adopt(t.Context(), sandbox.NewID(), list), fault.NotFound))
	require.True(t, fault.Is(again.Change(t.Context(), sandbox.NewID(), list), fault.NotFound))
}

func TestChangeEndsWhatIsNotAllowed(t *testing.T) {
	j := open(t, Options{Inst: "thn6"})
	id, p := attach(t, j, public)
	change := func(mode sandbox.NetworkMode, allow ...string) {
		require.NoError(t, j.Change(t.Context(), id, sandbox.NetworkPolicy{Mode: mode, Allow: allow}))
	}
	hold := func() { require.Equal(t, seenOpen, p.ask(ask{Kind: "hold", To: publicHost.String() + ":80"}).Seen) }
	held := func() string { return p.ask(ask{Kind: "held", Wait: time.Second}).Seen }

	hold()
	change(sandbox.NetworkAllowList, publicHost.String()+"/32")
	require.Equal(t, seenOpen, held(), "still allowed")
	require.Equal(t, seenOpen, p.ask(ask{Kind: "icmp", To: publicHost.String()}).Seen, "an entry without a port is for every protocol")
	hold()
	change(sandbox.NetworkAllowList, publicHost.String()+"/32:443")
	require.Equal(t, seenRefused, held(), "another port")
	require.NotEqual(t, seenOpen, p.ask(ask{Kind: "icmp", To: publicHost.String(), Wait: 200 * time.Millisecond}).Seen)
	change(sandbox.NetworkPublic)
	hold()
	change(sandbox.NetworkNone)
	require.Equal(t, seenRefused, held())
	require.Equal(t, seenRefused, p.tcp(publicHost, 80).Seen)
	change(sandbox.NetworkPublic)
	require.Equal(t, seenOpen, p.tcp(publicHost, 80).Seen)
	require.Error(t, j.Change(t.Context(), id, sandbox.NetworkPolicy{Mode: "all"}))
}

// A step that fails, and a process that died after any step, leave nothing that is not found and removed.
func TestHalfMadeNetworksAreFoundAndRemoved(t *testing.T) {
	o := Options{Inst: "thn7"}
	j := open(t, o)
	boom := errors.New("boom")
	var steps []string
	_, err := j.Attach(t.Context(), sandbox.NewID(), public, func(s string) error { steps = append(steps, s); return nil })
	require.NoError(t, err)
	for i, step := range steps {
		id := sandbox.NewID()
		_, err := j.Attach(t.Context(), id, public, func(s string) error {
			if s == step {
				return boom
			}
			return nil
		})
		require.ErrorIs(t, err, boom)
		found, err := j.Found(t.Context())
		require.NoError(t, err)
		require.NotContains(t, found, id, step)

		// The same without an undo: as if the process had died there.
		dead := &box{id: sandbox.NewID(), addr: j.boxes[found[0]].addr.Next().Next().Next()}
		for k, do := range []func() error{
			func() error { return makeNamespace(j.n.namespace(dead.id)) },
			func() error { return j.makePair(dead) },
			func() error { return j.harden(dead.link) },
			func() error { return j.furnish(dead) },
		} {
			if k < i {
				require.NoError(t, do())
			}
		}
		found, err = j.Found(t.Context())
		require.NoError(t, err)
		if i > 0 {
			require.Contains(t, found, dead.id, step)
		}
		require.NoError(t, j.Detach(t.Context(), dead.id))
		found, err = j.Found(t.Context())
		require.NoError(t, err)
		require.Len(t, found, 1, step)
	}
}

// The real thing: a process that owns the table is killed by signal 9. Rules stay, nothing opens, the next one takes over.
func TestKilledOwner(t *testing.T) {
	host(t)
	o := Options{Inst: killedInst}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envRole+"=owner")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	id := sandbox.ID(strings.TrimSpace(line))
	p := probeIn(t, names{killedInst}.namespace(id))
	require.Equal(t, seenOpen, p.ask(ask{Kind: "hold", To: publicHost.String() + ":80"}).Seen)
	nft(t, "flush", "ruleset")
	require.Equal(t, seenRefused, p.tcp(lanPeer, 80).Seen, "the owner's table is passed by")
	require.Error(t, exec.Command("nft", "delete", "table", "inet", names{killedInst}.table()).Run())
	_, err = New(o)
	require.ErrorContains(t, err, "belongs to another process")
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()

	require.Equal(t, seenOpen, p.tcp(publicHost, 80).Seen)
	require.Equal(t, seenRefused, p.tcp(lanPeer, 80).Seen)
	j := open(t, o)
	require.True(t, j.t.owned)
	require.NoError(t, j.Adopt(t.Context(), id, public))
	require.Equal(t, seenOpen, p.ask(ask{Kind: "held"}).Seen)
	require.Equal(t, seenRefused, p.tcp(lanPeer, 80).Seen)
	require.NoError(t, j.Detach(t.Context(), id))
	require.Empty(t, leftovers(t, j))
}

const killedInst = "thnk"

// own plays a server that is going to be killed.
func own() int {
	j, err := New(Options{Inst: killedInst})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	id := sandbox.NewID()
	if _, err := j.Attach(context.Background(), id, public, free); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(id)
	select {}
}

func TestPoolMustBeFree(t *testing.T) {
	host(t)
	for pool, names := range map[string]string{
		"192.168.0.0/16": "192.168.77.", "9.8.0.0/16": "9.8.7.", "44.1.0.0/16": "44.1.2.3",
	} {
		_, err := New(Options{Inst: "thn8", Pool: netip.MustParsePrefix(pool)})
		require.True(t, fault.Is(err, fault.Conflict), "%s: %v", pool, err)
		require.Contains(t, fault.Public(err), names)
	}
}

// A process that was killed after it made a sandbox's rules and before it made anything else leaves a counter that no name
// leads to. The next one clears it away; what others have counted stays.
func TestCountersOfNobodyGo(t *testing.T) {
	host(t)
	o := Options{Inst: "thnc"}
	j := open(t, o)
	id := sandbox.NewID()
	_, err := j.Attach(t.Context(), id, public, free)
	require.NoError(t, err)
	p := probeIn(t, j.n.namespace(id))
	require.Equal(t, seenRefused, p.tcp(lanPeer, 80).Seen)
	ghost := &box{id: sandbox.NewID(), addr: last(j.o.Pool).Prev(), policy: public, known: true, link: "sgthncghost"}
	require.NoError(t, j.locked(func() error {
		return j.change("a test", func() error { return j.put(j.s.judgement(ghost), j.s.counter(ghost), j.s.pairing(ghost)) })
	}))
	require.NoError(t, j.Close())

	j = open(t, o)
	require.NoError(t, j.Adopt(t.Context(), id, public))
	for _, s := range []*nftables.Set{j.s.refused, j.s.forged, j.s.pairs, j.s.modes} {
		all, err := j.t.elements(s)
		require.NoError(t, err)
		require.Len(t, all, 1, s.Name)
		if s == j.s.refused {
			require.Positive(t, all[0].Counter.Packets)
		}
	}
	require.NoError(t, j.Detach(t.Context(), id))
	require.Empty(t, leftovers(t, j))
}
