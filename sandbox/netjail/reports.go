package netjail

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/florianl/go-nflog/v2"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sandgate/sandbox"
)

// The kernel reports denials to a socket of ours, a bounded number each second; they are put together here. Nothing waits
// for anything: what does not fit is dropped here and still counted by the kernel.
const (
	reportEvery  = 5 * time.Second // at most one report of the same thing
	reportQueue  = 1024            // events between the socket and the one who puts them together
	reportKinds  = 4096            // different things at a time, of all sandboxes
	reportKindOf = 64              // of one
)

// ManyDestinations is Denial.Destination where a sandbox tried more than can be told apart.
const ManyDestinations = "many addresses"

type kind struct {
	id    sandbox.ID
	proto string
	to    netip.Addr
	port  uint16
	why   string
}

type event struct {
	link int
	kind
	at   time.Time
	head []byte // of a datagram that is to be answered
}

// reports reads denials off the kernel.
type reports struct {
	log     *nflog.Nflog
	answers *refusals
	in      chan event
	done    chan struct{}
}

// openReports gives no reader and the group 0 where nobody wants to hear, or the kernel cannot tell.
func openReports(ctx context.Context, j *Jail) (*reports, uint16) {
	if j.o.OnDenied == nil {
		return nil, 0
	}
	for try := range uint32(8) {
		group := uint16(1000 + (j.n.number(60_000)+try*7919)%60_000)
		r, err := listenTo(ctx, group, j)
		if err == nil {
			return r, group
		}
		j.o.Log.Warn("no reports about denials by this group of nflog", "group", group, "cause", err)
	}
	j.o.Log.Error("denials of the network are counted but not told: nflog does not work on this host")
	return nil, 0
}

func listenTo(ctx context.Context, group uint16, j *Jail) (*reports, error) {
	// At most 10 ms after the denial, because datagrams are answered by then.
	l, err := nflog.Open(&nflog.Config{Group: group, Copymode: nflog.CopyPacket, Bufsize: 128, QThresh: 16, Timeout: 1})
	if err != nil {
		return nil, fmt.Errorf("open nflog: %w", err)
	}
	r := &reports{log: l, in: make(chan event, reportQueue), done: make(chan struct{})}
	// A flood must not make the socket fail: what overflows is not told.
	_ = l.SetOption(netlink.NoENOBUFS, true)
	err = l.RegisterWithErrorFunc(ctx, func(a nflog.Attribute) int {
		if e, ok := read(a, j.o.Now()); ok {
			select {
			case r.in <- e:
			default:
			}
		}
		return 0
	}, func(error) int {
		if ctx.Err() != nil {
			return 1
		}
		return 0
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen to nflog: %w", err), l.Close())
	}
	if r.answers, err = openRefusals(j.o.gateway()); err != nil {
		j.o.Log.Warn("refused datagrams are answered by the kernel alone, one a second", "cause", err)
	}
	go func() {
		defer close(r.done)
		r.gather(ctx, j)
	}()
	return r, nil
}

func (r *reports) close() error {
	<-r.done
	r.answers.close()
	if err := r.log.Close(); err != nil {
		return fmt.Errorf("close nflog: %w", err)
	}
	return nil
}

// read takes a report apart; the packet in it is a sandbox's, and may be anything.
func read(a nflog.Attribute, now time.Time) (event, bool) {
	if a.InDev == nil || a.Payload == nil || a.Prefix == nil {
		return event{}, false
	}
	e := event{link: int(*a.InDev), at: now}
	e.why = *a.Prefix
	p := *a.Payload
	if len(p) < 20 || p[0]>>4 != 4 {
		e.proto = "ipv6"
		if len(p) >= 40 && p[0]>>4 == 6 {
			e.to = netip.AddrFrom16([16]byte(p[24:40]))
		}
		return e, true
	}
	e.to = netip.AddrFrom4([4]byte(p[16:20]))
	head := int(p[0]&0x0f) * 4
	switch p[9] {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP:
		e.proto = "tcp"
		if p[9] == unix.IPPROTO_UDP {
			e.proto = "udp"
			if answered(e.why) {
				e.head = append([]byte(nil), p[:min(len(p), head+8)]...)
			}
		}
		if head >= 20 && len(p) >= head+4 {
			e.port = binary.BigEndian.Uint16(p[head+2 : head+4])
		}
	case unix.IPPROTO_ICMP:
		e.proto = "icmp"
	default:
		e.proto = strconv.Itoa(int(p[9]))
	}
	return e, true
}

// heap is what was seen of one kind.
type heap struct {
	pending int64
	last    time.Time // seen
	told    time.Time
}

// gather puts events together and tells of them.
func (r *reports) gather(ctx context.Context, j *Jail) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	seen := map[kind]*heap{}
	of := map[sandbox.ID]int{}
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-r.in:
			j.mu.Lock()
			id, ok := j.byLink[e.link]
			var addr netip.Addr
			if b := j.boxes[id]; b != nil {
				addr = b.addr
			}
			j.mu.Unlock()
			if !ok {
				continue
			}
			r.answers.tell(addr, e.head)
			e.id = id
			k := e.kind
			h := seen[k]
			if h == nil {
				if len(seen) >= reportKinds || of[id] >= reportKindOf {
					k = kind{id: id, why: e.why}
					h = seen[k] // one heap for each word is always there
				}
				if h == nil {
					h = &heap{}
					seen[k] = h
					of[id]++
				}
			}
			h.pending++
			h.last = e.at
			if e.at.Sub(h.told) >= reportEvery {
				h.tell(j, k, e.at)
			}
		case <-tick.C:
			now := j.o.Now()
			for k, h := range seen {
				switch {
				case h.pending > 0 && now.Sub(h.told) >= reportEvery:
					h.tell(j, k, now)
				case h.pending == 0 && now.Sub(h.told) >= reportEvery:
					delete(seen, k)
					if of[k.id]--; of[k.id] <= 0 {
						delete(of, k.id)
					}
				}
			}
		}
	}
}

func (h *heap) tell(j *Jail, k kind, now time.Time) {
	d := sandbox.Denial{At: h.last, Protocol: k.proto, Destination: ManyDestinations, Port: k.port, Why: k.why, Count: h.pending}
	if k.to.IsValid() {
		d.Destination = k.to.String()
	}
	h.pending, h.told = 0, now
	j.o.OnDenied(k.id, d)
}
