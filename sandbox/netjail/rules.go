package netjail

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sandgate/sandbox/netjail/prefix"
)

// Marks. A packet that a rule of ours let pass bears markPassed; routes to sandboxes are there for such packets only, so
// without our table nothing moves. A connection bears connTag and, below it, the generation of the policy that let it pass.
const (
	markPassed = 0x0800_0000
	connTag    = 0x5347_0000
	connMask   = 0xffff_0000
)

// The words of Denial.Why, beside those of package prefix.
const (
	whyHost      = "host"                 // an address of the host itself
	whyHostNet   = "host network"         // a network that the host is on
	whyNeighbour = "neighbour"            // another sandbox, or the pool that they are in
	whyOff       = "network is off"       // mode none
	whyNotListed = "not on the list"      // mode allow-list
	whyProtocol  = "protocol"             // neither TCP, UDP nor ICMP
	whyTooMany   = "too many connections" // at once
	whyTooFast   = "too fast"             // new connections
	whyRate      = "rate"                 // packets or bytes
	whyForged    = "forged source"        // not the address that the sandbox was given
	whyIPv6      = "ipv6"                 // off inside
	whyRedirect  = "redirected"           // somebody's address translation leads elsewhere
)

// quiet lists what is dropped without an answer.
var quiet = []string{whyForged, whyIPv6, whyRate, prefix.Multicast, prefix.Broadcast}

// schema is the table: its sets are made once, its rules may be written again at any time.
type schema struct {
	o     Options
	n     names
	table *nftables.Table
	group uint16 // of nflog; 0: nobody listens

	pairs, modes, gens, live, off *nftables.Set // of sandboxes
	names, nets                   *nftables.Set // what allow-lists hold: by answers about names, by networks
	refused, forged               *nftables.Set // counters
	except, hostNets, whyOne, why *nftables.Set // shared
	conns, rate, bytes, packets   *nftables.Set // limits
	logRate, forgedRate           *nftables.Set
	questions                     *nftables.Set

	ownTimes bool // connections that ended are forgotten sooner than the host forgets its own
}

func newSchema(o Options, group uint16) *schema {
	t := &nftables.Table{Name: names{o.Inst}.table(), Family: nftables.TableFamilyINet}
	s := &schema{o: o, n: names{o.Inst}, table: t, group: group, ownTimes: true}
	addr, link, port := nftables.TypeIPAddr, nftables.TypeIFName, nftables.TypeInetService
	set := func(name string, types ...nftables.SetDatatype) *nftables.Set {
		out := &nftables.Set{Table: t, Name: name, KeyType: types[0]}
		if len(types) > 1 {
			out.KeyType, out.Concatenation = nftables.MustConcatSetType(types...), true
		}
		return out
	}
	meters := func(name string, key nftables.SetDatatype, timeout time.Duration) *nftables.Set {
		out := set(name, key)
		out.Dynamic, out.Size, out.HasTimeout, out.Timeout = true, 65535, timeout > 0, timeout
		return out
	}
	s.pairs = set("pairs", link, addr)
	s.modes = set("modes", addr)
	s.modes.IsMap, s.modes.DataType = true, nftables.TypeVerdict
	s.gens = set("gens", addr)
	s.gens.IsMap, s.gens.DataType = true, nftables.TypeMark
	s.live, s.off = set("live", addr, nftables.TypeMark), set("off", addr)
	s.names = set("names", addr, addr, port)
	s.names.HasTimeout, s.names.Size = true, maxAdmitted
	s.nets = set("nets", addr, addr, nftables.TypeMark, port)
	s.refused, s.forged = set("refused", addr), set("forged", link)
	s.refused.Counter, s.forged.Counter = true, true
	s.except = set("except", addr, port)
	s.except.Interval = true
	s.hostNets = set("host_nets", addr)
	s.hostNets.Interval = true
	s.whyOne, s.why = set("why_one", addr), set("why", addr)
	s.whyOne.IsMap, s.whyOne.DataType = true, nftables.TypeVerdict
	s.why.IsMap, s.why.DataType, s.why.Interval = true, nftables.TypeVerdict, true
	s.conns = meters("conns", addr, 0) // the kernel forgets those without connections by itself
	s.rate = meters("rate", addr, time.Minute)
	s.bytes = meters("bytes", addr, time.Minute)
	s.packets = meters("packets", addr, time.Minute)
	s.questions = meters("questions", addr, time.Minute)
	s.logRate = meters("log_rate", addr, time.Minute)
	s.forgedRate = meters("forged_rate", link, time.Minute)
	return s
}

// sets lists all, in an order in which they can be made.
func (s *schema) sets() []*nftables.Set {
	return []*nftables.Set{
		s.pairs, s.modes, s.gens, s.live, s.off, s.names, s.nets, s.refused, s.forged, s.except, s.hostNets,
		s.whyOne, s.why, s.conns, s.rate, s.bytes, s.packets, s.questions, s.logRate, s.forgedRate,
	}
}

// words lists every word that a denial can have.
func words() []string {
	out := []string{
		whyHost, whyHostNet, whyNeighbour, whyOff, whyNotListed, whyProtocol, whyTooMany, whyTooFast, whyRate, whyForged,
		whyIPv6, whyRedirect,
	}
	for _, e := range prefix.All() {
		if e.Prefix.Addr().Is4() && !slices.Contains(out, e.Why) {
			out = append(out, e.Why)
		}
	}
	return out
}

// no names the chain that denies with a word.
func no(word string) string {
	return "no_" + strings.ReplaceAll(strings.ReplaceAll(word, " ", "_"), "-", "_")
}

// chain is one chain with its rules, in the order in which they stand.
type chain struct {
	c     *nftables.Chain
	rules [][]expr.Any
}

func (c *chain) add(parts ...[]expr.Any) {
	c.rules = append(c.rules, slices.Concat(parts...))
}

func then(e ...expr.Any) []expr.Any { return e }

// Names of chains that others go to.
const (
	chainBox    = "from_box"
	chainMode   = "by_mode"
	chainNone   = "mode_none"
	chainPublic = "mode_public"
	chainList   = "mode_list"
	chainPorts  = "list_ports"
	chainAny    = "list_any_port"
	chainAdmit  = "admit"
	chainPass   = "pass"
	chainRefuse = "refuse"
	chainSilent = "silent"
)

// chains gives all rules. Those that others go to come first.
func (s *schema) chains() []*chain {
	out := s.denying()
	out = append(out, s.passing()...)
	out = append(out, s.judging())
	return append(out, s.hooks()...)
}

func (s *schema) plain(name string) *chain {
	return &chain{c: &nftables.Chain{Name: name, Table: s.table}}
}

func (s *schema) hook(name string, kind nftables.ChainType, at *nftables.ChainHook, priority int) *chain {
	policy := nftables.ChainPolicyAccept // for packets that are none of ours
	return &chain{c: &nftables.Chain{
		Name: name, Table: s.table, Type: kind, Hooknum: at,
		Priority: nftables.ChainPriorityRef(nftables.ChainPriority(priority)), Policy: &policy,
	}}
}

// denying gives the chains that count, report and refuse.
func (s *schema) denying() []*chain {
	refuse, silent := s.plain(chainRefuse), s.plain(chainSilent)
	refuse.add(in(s.refused, false, partSrc)) // counts
	refuse.add(setMark(markPassed))           // for the refusal, which bears it too and finds its way back; the packet ends here
	refuse.add(isProto(unix.IPPROTO_TCP), then(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}))
	refuse.add(isProto(unix.IPPROTO_UDP), then(&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}))
	refuse.add(then(&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}))
	silent.add(in(s.refused, false, partSrc))
	silent.add(then(drop()))
	out := []*chain{refuse, silent}
	for _, w := range words() {
		c := s.plain(no(w))
		end := chainRefuse
		if slices.Contains(quiet, w) {
			end = chainSilent
		}
		by, rate := partSrc, s.logRate
		if w == whyForged || w == whyIPv6 { // the source says nothing: the link does
			by, rate = partLink, s.forgedRate
			c.add(in(s.forged, false, partLink))
		}
		if s.group != 0 {
			c.add(meter(rate, unix.NFT_DYNSET_OP_UPDATE, &expr.Limit{Type: expr.LimitTypePkts, Rate: logsPerSecond, Unit: expr.LimitTimeSecond, Burst: logsPerSecond}, by),
				then(&expr.Log{
					Key:   1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_PREFIX | 1<<unix.NFTA_LOG_SNAPLEN,
					Group: s.group, Snaplen: 64, Data: []byte(w),
				}))
		}
		if by.words == partLink.words {
			c.add(then(drop()))
		} else {
			c.add(then(toChain(end)))
		}
		out = append(out, c)
	}
	return out
}

// passing gives the chains that let pass.
func (s *schema) passing() []*chain {
	pass := s.plain(chainPass)
	pass.add(setMark(markPassed), then(accept()))

	admit := s.plain(chainAdmit)
	fresh := ctState(expr.CtStateBitNEW)
	if n := s.o.Limits.NewPerSecond; n > 0 {
		over := &expr.Limit{Type: expr.LimitTypePkts, Rate: uint64(n), Unit: expr.LimitTimeSecond, Burst: uint32(2 * n), Over: true}
		admit.add(fresh, meter(s.rate, unix.NFT_DYNSET_OP_UPDATE, over, partSrc), then(toChain(no(whyTooFast))))
	}
	if n := s.o.Limits.Connections; n > 0 {
		over := &expr.Connlimit{Count: uint32(n), Flags: expr.NFT_CONNLIMIT_F_INV}
		admit.add(fresh, meter(s.conns, unix.NFT_DYNSET_OP_ADD, over, partSrc), then(toChain(no(whyTooMany))))
	}
	if s.ownTimes {
		admit.add(fresh, isProto(unix.IPPROTO_TCP), then(&expr.Objref{Type: int(nftables.ObjTypeCtTimeout), Name: timesName}))
	}
	admit.add(
		key(partSrc),
		then(&expr.Lookup{SourceRegister: regKey, SetName: s.gens.Name, DestRegister: reg1, IsDestRegSet: true}),
		then(&expr.Ct{Key: expr.CtKeyMARK, SourceRegister: true, Register: reg1}))
	admit.add(then(toChain(chainPass)))

	none, public, list := s.plain(chainNone), s.plain(chainPublic), s.plain(chainList)
	none.add(then(toChain(no(whyOff))))
	for _, p := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMP} {
		public.add(isProto(p), then(toChain(chainAdmit)))
	}
	public.add(then(toChain(no(whyProtocol))))
	ports := s.plain(chainPorts)
	for _, p := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		list.add(isProto(p), in(s.names, false, partSrc, partDst, partPort), then(toChain(chainAdmit)))
		list.add(isProto(p), then(toChain(chainPorts)))
	}
	list.add(isProto(unix.IPPROTO_ICMP), then(toChain(chainAny)))
	list.add(then(toChain(no(whyNotListed))))
	// A set of intervals is copied at each change of one sandbox, and with 500 of them that takes long; so each length of
	// networks has a rule that looks for the network itself. Only new connections come here.
	anyPort := s.plain(chainAny)
	anyPort.add(in(s.names, false, partSrc, partDst, partZero), then(toChain(chainAdmit)))
	for bits := 32; bits >= 0; bits-- {
		ports.add(in(s.nets, false, partSrc, partNet(bits), partPort), then(toChain(chainAdmit)))
		anyPort.add(in(s.nets, false, partSrc, partNet(bits), partZero), then(toChain(chainAdmit)))
	}
	ports.add(then(toChain(chainAny)))
	anyPort.add(then(toChain(no(whyNotListed))))

	mode := s.plain(chainMode)
	// Whatever its state: datagrams that nobody answers are new for ever, and they are one connection.
	mode.add(in(s.live, false, partSrc, partCMark), then(toChain(chainPass)))
	mode.add(verdictOf(s.modes, partSrc))
	mode.add(then(drop()))
	return []*chain{pass, admit, none, public, anyPort, ports, list, mode}
}

// judging gives the chain that every packet of every sandbox goes through.
func (s *schema) judging() *chain {
	c := s.plain(chainBox)
	c.add(isFamily(expr.CmpOpNeq, unix.NFPROTO_IPV4), then(toChain(no(whyIPv6))))
	c.add(in(s.pairs, true, partLink, partSrc), then(toChain(no(whyForged))))
	if n := s.o.Limits.PacketsPerSecond; n > 0 {
		over := &expr.Limit{Type: expr.LimitTypePkts, Rate: uint64(n), Unit: expr.LimitTimeSecond, Burst: uint32(n), Over: true}
		c.add(meter(s.packets, unix.NFT_DYNSET_OP_UPDATE, over, partSrc), then(toChain(no(whyRate))))
	}
	if n := s.o.Limits.BytesPerSecond; n > 0 {
		over := &expr.Limit{Type: expr.LimitTypePktBytes, Rate: uint64(n), Unit: expr.LimitTimeSecond, Burst: uint32(max(n/4, 1<<20)), Over: true}
		c.add(meter(s.bytes, unix.NFT_DYNSET_OP_UPDATE, over, partSrc), then(toChain(no(whyRate))))
	}
	c.add(addrType(unix.RTN_BROADCAST), then(toChain(no(prefix.Broadcast))))
	c.add(isDst(netip.AddrFrom4([4]byte{255, 255, 255, 255})), then(toChain(no(prefix.Broadcast))))
	c.add(inPrefix(16, netip.MustParsePrefix("224.0.0.0/4"), false), then(toChain(no(prefix.Multicast))))
	c.add(ctState(expr.CtStateBitINVALID), then(drop())) // belongs to nothing: what it would answer is not there
	for _, p := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		next := chainAdmit
		if p == unix.IPPROTO_UDP {
			next = chainPass // not tracked: see hooks
			// One socket answers all sandboxes: who floods it would crowd out the others' questions.
			over := &expr.Limit{Type: expr.LimitTypePkts, Rate: questionsPerSecond, Unit: expr.LimitTimeSecond, Burst: questionsPerSecond, Over: true}
			c.add(isDst(s.o.gateway()), isProto(p), isPort(2, 53),
				meter(s.questions, unix.NFT_DYNSET_OP_UPDATE, over, partSrc), then(toChain(no(whyRate))))
		}
		c.add(isDst(s.o.gateway()), isProto(p), isPort(2, 53), then(toChain(next)))
	}
	if s.o.PlatformPort != 0 {
		c.add(isDst(s.o.platform()), isProto(unix.IPPROTO_TCP), isPort(2, s.o.PlatformPort), in(s.off, false, partSrc), then(toChain(no(whyOff))))
		c.add(isDst(s.o.platform()), isProto(unix.IPPROTO_TCP), isPort(2, s.o.PlatformPort), then(toChain(chainAdmit)))
	}
	for _, p := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		c.add(isProto(p), in(s.except, false, partDst, partPort), then(toChain(chainMode)))
	}
	c.add(inPrefix(16, s.o.Pool, false), then(toChain(no(whyNeighbour))))
	c.add(addrType(unix.RTN_LOCAL), then(toChain(no(whyHost))))
	c.add(addrType(unix.RTN_ANYCAST), then(toChain(no(whyHost))))
	c.add(in(s.hostNets, false, partDst), then(toChain(no(whyHostNet))))
	c.add(verdictOf(s.whyOne, partDst))
	c.add(verdictOf(s.why, partDst))
	c.add(then(toChain(chainMode)))
	return c
}

// hooks gives the base chains.
func (s *schema) hooks() []*chain {
	mark := s.n.linkMark()
	fromBox := linkStarts(expr.MetaKeyIIFNAME, mark, false)
	toBox := linkStarts(expr.MetaKeyOIFNAME, mark, false)

	// Questions about names are many and short: they would fill the count of connections.
	rawIn := s.hook("untracked_in", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, -300)
	rawIn.add(fromBox, isFamily(expr.CmpOpEq, unix.NFPROTO_IPV4), isDst(s.o.gateway()), isProto(unix.IPPROTO_UDP), isPort(2, 53), then(&expr.Notrack{}))
	rawOut := s.hook("untracked_out", nftables.ChainTypeFilter, nftables.ChainHookOutput, -300)
	rawOut.add(toBox, isFamily(expr.CmpOpEq, unix.NFPROTO_IPV4), isSrc(s.o.gateway()), isProto(unix.IPPROTO_UDP), isPort(0, 53), then(&expr.Notrack{}))

	// After connections are known (-200), before anybody changes a destination (-100).
	pre := s.hook("prerouting", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, -140)
	pre.add(fromBox, then(toChain(chainBox)))
	pre.add(masked(&expr.Ct{Key: expr.CtKeyMARK, Register: reg1}, expr.CmpOpEq, connMask, connTag),
		ctState(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), setMark(markPassed)) // an answer: may find the way back

	input := s.hook("input", nftables.ChainTypeFilter, nftables.ChainHookInput, 0)
	boxIn := s.plain("input_box")
	input.add(fromBox, then(toChain("input_box")))
	boxIn.add(hasMark(expr.CmpOpNeq, markPassed), then(drop()))
	for _, p := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		boxIn.add(isDst(s.o.gateway()), isProto(p), isPort(2, 53), then(accept()))
	}
	if s.o.PlatformPort != 0 {
		boxIn.add(isDst(s.o.platform()), isProto(unix.IPPROTO_TCP), isPort(2, s.o.PlatformPort), then(accept()))
	}
	for _, p := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		boxIn.add(isProto(p), in(s.except, false, partDst, partPort), then(accept()))
	}
	boxIn.add(then(drop()))

	forward := s.hook("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, 0)
	boxOut, boxBack := s.plain("forward_out"), s.plain("forward_back")
	forward.add(fromBox, then(toChain("forward_out")))
	forward.add(toBox, then(toChain("forward_back")))
	boxOut.add(toBox, then(drop()))
	boxOut.add(hasMark(expr.CmpOpNeq, markPassed), then(drop()))
	boxOut.add(masked(&expr.Ct{Key: expr.CtKeySTATUS, Register: reg1}, expr.CmpOpNeq, ctStatusDNAT, 0), then(toChain(no(whyRedirect))))
	boxOut.add(then(accept()))
	boxBack.add(ctState(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED),
		masked(&expr.Ct{Key: expr.CtKeyMARK, Register: reg1}, expr.CmpOpEq, connMask, connTag), then(accept()))
	boxBack.add(then(drop()))

	nat := s.hook("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, 100)
	nat.add(isFamily(expr.CmpOpEq, unix.NFPROTO_IPV4), inPrefix(12, s.o.Pool, false), inPrefix(16, s.o.Pool, true),
		linkStarts(expr.MetaKeyOIFNAME, mark, true), then(&expr.Masq{}))
	return []*chain{boxIn, boxOut, boxBack, rawIn, rawOut, pre, input, forward, nat}
}

// timesName is the object that says when connections of sandboxes are forgotten.
const timesName = "times"

// times shortens what the limit of connections does not count: those that ended are in the host's table for another while,
// two minutes by its defaults, and at the rate of new ones a sandbox would fill it.
func (s *schema) times() *nftables.NamedObj {
	return &nftables.NamedObj{Table: s.table, Name: timesName, Type: nftables.ObjTypeCtTimeout, Obj: &expr.CtTimeout{
		L3Proto: unix.NFPROTO_IPV4, L4Proto: unix.IPPROTO_TCP,
		Policy: expr.CtStatePolicyTimeout{expr.CtStateTCPTIMEWAIT: endedFor, expr.CtStateTCPCLOSE: 1},
	}}
}

// ctStatusDNAT is set once a connection's destination was changed.
const ctStatusDNAT = 1 << 5

// shared gives the elements of the sets that belong to nobody in particular.
func (s *schema) shared(hostNets []netip.Prefix) map[*nftables.Set][]nftables.SetElement {
	out := map[*nftables.Set][]nftables.SetElement{s.hostNets: intervals(hostNets)}
	for _, e := range s.o.JailAllow {
		if e.Prefix.Addr().Is4() {
			out[s.except] = append(out[s.except], span(e.Prefix, e.Port))
		}
	}
	for _, e := range prefix.All() {
		if e.Prefix.Addr().Is4() && e.Prefix.IsSingleIP() {
			b := e.Prefix.Addr().As4()
			out[s.whyOne] = append(out[s.whyOne], nftables.SetElement{Key: b[:], VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: no(e.Why)}})
		}
	}
	for _, e := range prefix.Outer() {
		if e.Prefix.Addr().Is4() {
			for _, x := range intervals([]netip.Prefix{e.Prefix}) {
				if !x.IntervalEnd {
					x.VerdictData = &expr.Verdict{Kind: expr.VerdictGoto, Chain: no(e.Why)}
				}
				out[s.why] = append(out[s.why], x)
			}
		}
	}
	return out
}
