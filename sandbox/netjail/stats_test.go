package netjail

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sandgate/sandbox"
)

// Stats are counters of one sandbox since it was attached, seen from the sandbox: Out is what it sent.
type Stats struct {
	InBytes, InPackets   uint64
	OutBytes, OutPackets uint64
	Denied               uint64 // packets that were denied, each of them
}

// Stats reads the counters of one sandbox: one question about its link and two about elements of sets.
func (j *Jail) Stats(ctx context.Context, id sandbox.ID) (Stats, error) {
	if err := ctx.Err(); err != nil {
		return Stats{}, err
	}
	j.mu.Lock()
	b := j.boxes[id]
	if b == nil || b.index == 0 {
		j.mu.Unlock()
		return Stats{}, notAttached()
	}
	index, addr, name := b.index, b.addr, b.link
	j.mu.Unlock()
	link, err := j.host.LinkByIndex(index)
	if err != nil {
		return Stats{}, fmt.Errorf("read counters of %s: %w", id, err)
	}
	out := Stats{}
	if s := link.Attrs().Statistics; s != nil { // the host's end receives what the sandbox sends
		out.OutBytes, out.OutPackets, out.InBytes, out.InPackets = s.RxBytes, s.RxPackets, s.TxBytes, s.TxPackets
	}
	for _, c := range []struct {
		s   *nftables.Set
		key []byte
	}{{j.s.refused, four(addr)}, {j.s.forged, linkKey(name)}} {
		n, err := readCounter(c.s, c.key)
		if err != nil {
			return Stats{}, fmt.Errorf("read counters of %s: %w", id, err)
		}
		out.Denied += n
	}
	return out, nil
}

// readCounter asks for one element of a set and gives the packets that it counted; google/nftables reads whole sets only.
func readCounter(s *nftables.Set, key []byte) (uint64, error) {
	e := netlink.NewAttributeEncoder()
	e.String(unix.NFTA_SET_ELEM_LIST_TABLE, s.Table.Name)
	e.String(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
	e.Nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(e *netlink.AttributeEncoder) error {
		e.Nested(unix.NFTA_LIST_ELEM, func(e *netlink.AttributeEncoder) error {
			e.Nested(unix.NFTA_SET_ELEM_KEY, func(e *netlink.AttributeEncoder) error {
				e.Bytes(unix.NFTA_DATA_VALUE, key)
				return nil
			})
			return nil
		})
		return nil
	})
	data, err := e.Encode()
	if err != nil {
		return 0, fmt.Errorf("ask for a counter: %w", err)
	}
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return 0, fmt.Errorf("open nftables: %w", err)
	}
	defer func() { _ = c.Close() }()
	answers, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETSETELEM, Flags: netlink.Request},
		Data:   append([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, data...),
	})
	if errors.Is(err, unix.ENOENT) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("ask for a counter: %w", err)
	}
	var n uint64
	for _, m := range answers {
		if len(m.Data) > 4 {
			n += packetsIn(m.Data[4:], unix.NFTA_SET_ELEM_LIST_ELEMENTS, unix.NFTA_LIST_ELEM, unix.NFTA_SET_ELEM_EXPR, unix.NFTA_EXPR_DATA)
		}
	}
	return n, nil
}

// packetsIn goes down a path of nested attributes and reads the counter at its end; 0 where there is none.
func packetsIn(data []byte, path ...uint16) uint64 {
	ad, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return 0
	}
	for ad.Next() {
		switch {
		case len(path) > 0 && ad.Type() == path[0]:
			return packetsIn(ad.Bytes(), path[1:]...)
		case len(path) == 0 && ad.Type() == unix.NFTA_COUNTER_PACKETS && len(ad.Bytes()) == 8:
			return binary.BigEndian.Uint64(ad.Bytes())
		}
	}
	return 0
}
