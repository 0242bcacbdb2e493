// Package netjail owns the network of sandboxes on this host: a namespace and a pair of links each, and one nftables table
// that judges every packet that comes out of them. It must never let a packet pass that a rule of its table did not let
// pass, whatever fails, and must never touch what does not bear the installation's mark.
//
// What a runtime finds in the namespace of an Attachment: eth0, up, with one address of 32 bits, a route to the gateway on
// the link, a default route through it, and the gateway as a permanent neighbour, for nothing on the host answers ARP. A
// runtime that takes them over (and takes the address off the link) needs nothing else. The namespace serves one start:
// whoever starts the sandbox again detaches and attaches first.
package netjail

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/netjail/policy"
)

// DefaultPool is where sandboxes get their addresses from when Options names no other.
var DefaultPool = netip.MustParsePrefix("10.213.0.0/16")

// Limits bound what one sandbox does to the outside; 0 takes the default, less than 0 is no limit.
type Limits struct {
	Connections      int   // at once
	NewPerSecond     int   // new connections; twice as many at once
	PacketsPerSecond int   // outwards
	BytesPerSecond   int64 // outwards
}

// DefaultLimits are what a busy program does not reach and a flood does.
var DefaultLimits = Limits{Connections: 512, NewPerSecond: 200, PacketsPerSecond: 100_000, BytesPerSecond: 128 << 20}

// Bounds that nobody needs to set.
const (
	maxAdmitted   = 65_536 // addresses that answers about names let in, of all sandboxes
	maxAdmittedBy = 1_024  // of one
	logsPerSecond = 20     // reports about denials of one sandbox that the kernel makes
	recheck       = 5 * time.Second
	// Packets with questions about names that one sandbox gets through to the resolver, which answers far fewer and lets the
	// rest know that they are too many.
	questionsPerSecond = 500
	// How many seconds the host remembers a sandbox's connection that ended in order.
	endedFor = 5
)

// Options say what a Jail is for. It works in the network namespace that its process is in.
type Options struct {
	Inst         string       // the installation's mark
	Pool         netip.Prefix // IPv4, 12 to 28 bits; default DefaultPool
	JailAllow    policy.Exceptions
	PlatformPort uint16 // where our own listener is at PlatformAddr; 0: nowhere
	Limits       Limits
	Log          *slog.Logger
	Now          func() time.Time
	// OnDenied is told what sandboxes were denied, at most once in 5 s for the same thing; it must not block for long.
	OnDenied func(sandbox.ID, sandbox.Denial)

	olderKernel bool // tests: as if tables had no owner
}

func (o Options) gateway() netip.Addr  { return gatewayOf(o.Pool) }
func (o Options) platform() netip.Addr { return platformOf(o.Pool) }

func (o *Options) fill() error {
	if !instPattern.MatchString(o.Inst) {
		return fmt.Errorf("open the jail: inst %q is not 4 of a-z0-9", o.Inst)
	}
	if !o.Pool.IsValid() {
		o.Pool = DefaultPool
	}
	o.Pool = o.Pool.Masked()
	if !o.Pool.Addr().Is4() || o.Pool.Bits() < 12 || o.Pool.Bits() > 28 {
		return fault.New(fault.Invalid, "The pool of addresses %s must be an IPv4 network of 12 to 28 bits.", o.Pool)
	}
	for _, e := range o.JailAllow {
		if e.Prefix.Overlaps(o.Pool) {
			return fault.New(fault.Invalid, "The exception %s lies in %s, the sandboxes' own addresses: it would join them.", e, o.Pool)
		}
	}
	d := DefaultLimits
	fill(&o.Limits.Connections, d.Connections)
	fill(&o.Limits.NewPerSecond, d.NewPerSecond)
	fill(&o.Limits.PacketsPerSecond, d.PacketsPerSecond)
	fill(&o.Limits.BytesPerSecond, d.BytesPerSecond)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return nil
}

func fill[T int | int64](v *T, standard T) {
	if *v == 0 {
		*v = standard
	}
}

// Jail implements sandbox.Network.
type Jail struct {
	o    Options
	n    names
	host *netlink.Handle // in the namespace that the process was in
	stop context.CancelFunc
	wg   sync.WaitGroup
	// Somebody changed something on the host: rules, or addresses and rules of routing.
	poke, pokeHost chan struct{}

	reports *reports

	mu       sync.Mutex // guards what follows, the table and the links
	s        *schema
	t        *tables
	boxes    map[sandbox.ID]*box
	half     map[sandbox.ID]bool // being attached or detached
	byLink   map[int]sandbox.ID  // index of host end
	byAddr   map[netip.Addr]sandbox.ID
	next     netip.Addr // of the pool, to try first
	released map[netip.Addr]time.Time
	hostNets []netip.Prefix
	ready    bool // table and routes are there
	print    string
	closed   bool
}

// box is one sandbox's network.
type box struct {
	id       sandbox.ID
	link     string // host end
	index    int
	addr     netip.Addr
	policy   sandbox.NetworkPolicy
	known    bool     // policy is what our caller said
	kept     elements // otherwise: what the table held before this process
	up       bool     // the host end is to be up
	gen      uint16
	admitted map[netip.AddrPort]time.Time // until when
}

var _ sandbox.Network = (*Jail)(nil)

// New takes up what the host has of this installation, and makes what sandboxes share when there is any. It fails with a
// fault when the pool is in use by others.
func New(o Options) (*Jail, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	host, err := netlink.NewHandle()
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	j := &Jail{
		o: o, n: names{o.Inst}, host: host, stop: cancel, poke: make(chan struct{}, 1), pokeHost: make(chan struct{}, 1),
		boxes: map[sandbox.ID]*box{}, half: map[sandbox.ID]bool{}, byLink: map[int]sandbox.ID{},
		byAddr: map[netip.Addr]sandbox.ID{}, released: map[netip.Addr]time.Time{},
	}
	if err := j.open(ctx); err != nil {
		return nil, errors.Join(err, j.Close())
	}
	return j, nil
}

func (j *Jail) open(ctx context.Context) error {
	if err := j.poolIsFree(); err != nil {
		return err
	}
	reports, group := openReports(ctx, j)
	j.reports = reports
	j.s = newSchema(j.o, group)
	t, err := openTables(j.s.table, j.o.olderKernel)
	if err != nil {
		return err
	}
	j.t = t
	j.next = j.somewhere()
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.rediscover(); err != nil {
		return err
	}
	if err := j.takeUp(); err != nil {
		return err
	}
	return j.watch(ctx)
}

// takeUp makes what sandboxes share where there are any, and takes it away where an earlier process could not.
func (j *Jail) takeUp() error {
	if len(j.boxes) > 0 {
		return j.prepare()
	}
	traces, err := j.traces()
	if err != nil || len(traces) > 0 {
		return err
	}
	there, err := j.t.there()
	if err != nil {
		return err
	}
	rules, err := j.rulesThere()
	if err != nil || !there && len(rules) == 0 {
		return err
	}
	if err := j.t.claim(); err != nil {
		return err
	}
	return j.dismantle()
}

// Close ends what this process does about the jail. Sandboxes, their rules and their routes stay as they are.
func (j *Jail) Close() error {
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	j.stop()
	var errs []error
	if j.reports != nil {
		errs = append(errs, j.reports.close())
	}
	j.wg.Wait()
	if j.t != nil {
		errs = append(errs, j.t.close())
	}
	j.host.Close()
	return errors.Join(errs...)
}

// GatewayAddr is where names are answered, and what a sandbox's packets go through; the same for every sandbox.
func (j *Jail) GatewayAddr() netip.Addr { return j.o.gateway() }

// PlatformAddr is where our own listener can be reached from inside, at Options.PlatformPort alone.
func (j *Jail) PlatformAddr() netip.Addr { return j.o.platform() }

// IDByAddr says which sandbox has an address, and its policy.
func (j *Jail) IDByAddr(addr netip.Addr) (sandbox.ID, sandbox.NetworkPolicy, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	id, ok := j.byAddr[addr.Unmap()]
	if !ok {
		return "", sandbox.NetworkPolicy{}, false
	}
	b := j.boxes[id]
	if !b.known { // not adopted yet
		return id, sandbox.NetworkPolicy{Mode: sandbox.NetworkNone}, true
	}
	return id, b.policy, true
}

// Found implements sandbox.Network.
func (j *Jail) Found(ctx context.Context) ([]sandbox.ID, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return j.traces()
}

func notAttached() error {
	return fault.New(fault.NotFound, "This sandbox has no network.")
}

func check(id sandbox.ID) error {
	if !id.Valid() {
		return fault.New(fault.NotFound, "Sandbox not found")
	}
	return nil
}
