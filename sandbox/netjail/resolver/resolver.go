// Package resolver owns the answers to the questions about names that sandboxes ask: it forwards to the host's name servers
// what a sandbox may ask, and hands back what a sandbox may know. It must never answer an address that is not from a
// sandbox, tell one about the names of the host's own network, or let one sandbox's questions hold up another's.
package resolver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"sandgate/sandbox"
	"sandgate/sandbox/netjail/policy"
)

// The words of this package for Denial.Why, beside those of package prefix for an answer that held such addresses.
const (
	WhyNoNetwork   = "no network"          // the sandbox has none
	WhyNotOnList   = "not on the list"     // the name is not on the sandbox's allow-list
	WhyLocalName   = "local name"          // a name of the host's own network
	WhyUnsupported = "unsupported query"   // a kind of question, or of name, that is not answered inside
	WhyTooMany     = "too many queries"    // more than the rate
	WhyNotAdmitted = "could not be opened" // the filter did not take the addresses
)

// Options say what a Resolver works with. Lookup is a must; all functions are called from several goroutines at once.
type Options struct {
	// Upstreams are the name servers to ask, in order. Empty: those of ResolvConf, read again when that changes.
	Upstreams []netip.AddrPort
	// ResolvConf names the host's resolver configuration, /etc/resolv.conf when empty. Its search domains, too, are names
	// that no sandbox is answered.
	ResolvConf string
	// Lookup says which sandbox has an address, and what it may reach now. What it does not know is not answered.
	Lookup func(netip.Addr) (sandbox.ID, sandbox.NetworkPolicy, bool)
	// Admit opens addresses that an allow-listed name was answered with, at one port (0: any), for ttl. It returns when they
	// are open: the answer goes out after that. May be nil when no sandbox has an allow-list.
	Admit func(ctx context.Context, id sandbox.ID, addrs []netip.Addr, port uint16, ttl time.Duration) error
	// Platform are names that are answered with a fixed address, whatever else is said about them: the server's own.
	Platform map[string]netip.Addr
	// Exceptions are addresses that may be in answers although they are not public.
	Exceptions policy.Exceptions
	// OnDenied is told of refusals, several of a kind put together. It is called from one goroutine, which it may hold up.
	OnDenied func(sandbox.ID, sandbox.Denial)
	// Rate and Burst are the questions a second that each sandbox may ask: 50 and 100 when they are 0.
	Rate  float64
	Burst int
	Log   *slog.Logger
}

// Bounds that nobody needs to change.
const (
	maxInFlight   = 32               // questions of one sandbox that wait for a name server
	maxInFlightIn = 2048             // and of all
	maxConns      = 8                // TCP connections of one sandbox
	maxConnsIn    = 512              // and of all
	maxPerConn    = 256              // questions on one connection
	maxQuery      = 4096             // bytes of a question; a sensible one has less than 300
	maxTTL        = time.Hour        // of an answer, as handed on
	minAdmit      = time.Minute      // an admitted address is open at least so long,
	graceAdmit    = 30 * time.Second // and so long after its answer died: programs connect late
	waitAll       = 4 * time.Second  // for an answer from any name server; programs wait 5
	waitOne       = 1500 * time.Millisecond
	idleConn      = 10 * time.Second
	udpSize       = 1232 // what passes every link in one piece
)

// Resolver answers sandboxes. Its methods are safe for concurrent use.
type Resolver struct {
	o        Options
	platform map[string]netip.Addr
	up       *upstreams
	clients  *clients
	denials  *denials
	log      *slog.Logger

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// New makes a Resolver. Close ends it.
func New(o Options) (*Resolver, error) {
	if o.Lookup == nil {
		return nil, errors.New("new resolver: Lookup is missing")
	}
	if o.ResolvConf == "" {
		o.ResolvConf = "/etc/resolv.conf"
	}
	if o.Rate <= 0 {
		o.Rate = 50
	}
	if o.Burst <= 0 {
		o.Burst = 100
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	r := &Resolver{o: o, log: o.Log, platform: map[string]netip.Addr{}}
	for name, addr := range o.Platform {
		name = strings.ToLower(strings.TrimSuffix(name, "."))
		if !policy.Plain(name) || !addr.Is4() {
			return nil, fmt.Errorf("new resolver: %q → %s is no name and IPv4 address", name, addr)
		}
		r.platform[name] = addr
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.up = newUpstreams(o.Upstreams, o.ResolvConf, o.Log)
	r.clients = newClients(o.Rate, o.Burst)
	r.denials = newDenials(o.OnDenied)
	r.work.Go(func() { r.denials.run(r.ctx) })
	return r, nil
}

// Serve answers on pc (UDP) and ln (TCP), of which one may be nil, until ctx or the Resolver ends; then it closes both,
// waits for what is under way, and returns nil. It may be called for several pairs at once.
func (r *Resolver) Serve(ctx context.Context, pc net.PacketConn, ln net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(r.ctx, cancel)
	defer stop()

	var wg sync.WaitGroup
	errs := make(chan error, 2)
	run := func(f func() error) {
		wg.Go(func() {
			if err := f(); err != nil {
				errs <- err
			}
			cancel()
		})
	}
	if pc != nil {
		run(func() error { return r.serveUDP(ctx, pc) })
	}
	if ln != nil {
		run(func() error { return r.serveTCP(ctx, ln) })
	}
	<-ctx.Done()
	if pc != nil {
		_ = pc.Close()
	}
	if ln != nil {
		_ = ln.Close()
	}
	wg.Wait()
	select {
	case err := <-errs:
		return fmt.Errorf("serve names: %w", err)
	default:
		return nil
	}
}

// Close ends every Serve and waits for what is under way. It may be called again.
func (r *Resolver) Close() {
	r.cancel()
	r.work.Wait()
}
