package netjail

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Flags of a table that the kernel knows since Linux 6.9 (owner: 5.12). Nobody but the connection that owns a table changes
// it, "nft flush ruleset" passes it by; with persist it stays, ownerless, when that connection ends.
const (
	flagOwner   = 0x2
	flagPersist = 0x4
)

// batchElements is how many elements go into one message: an attribute holds 64 KiB.
const batchElements = 400

// tables is the connection that changes our table. It is not safe for concurrent use: Jail.mu guards it.
type tables struct {
	conn  *nftables.Conn
	raw   *netlink.Conn
	table *nftables.Table
	owned bool // this kernel has both flags, and we are the owner
	tame  bool // tests play an older kernel
}

func openTables(t *nftables.Table, tame bool) (*tables, error) {
	out := &tables{table: t, tame: tame}
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		out.raw = c
		// A whole table with its answers goes through at once; what the kernel does not grant, it does not grant.
		return errors.Join(c.SetWriteBuffer(8<<20), c.SetReadBuffer(8<<20))
	}))
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	out.conn = conn
	return out, nil
}

func (t *tables) close() error { return t.conn.CloseLasting() }

// claim makes the table, or takes over one that a process before us left; google/nftables cannot set these flags.
func (t *tables) claim() error {
	if t.owned {
		if there, err := t.there(); err != nil || there {
			return err
		}
	}
	for _, flags := range []uint32{flagOwner | flagPersist, 0} {
		t.owned = flags != 0
		if t.owned && t.tame {
			continue
		}
		err := t.newTable(flags)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EPERM):
			return fmt.Errorf("nftables table %s belongs to another process: %w", t.table.Name, err)
		case !t.owned:
			return err
		}
	}
	return nil
}

func (t *tables) newTable(flags uint32) error {
	attrs, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_TABLE_NAME, Data: []byte(t.table.Name + "\x00")},
		{Type: unix.NFTA_TABLE_FLAGS, Data: binary.BigEndian.AppendUint32(nil, flags)},
	})
	if err != nil {
		return fmt.Errorf("claim table %s: %w", t.table.Name, err)
	}
	message := func(kind uint16, f netlink.HeaderFlags, family byte, res uint16, data []byte) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request | f},
			Data:   append([]byte{family, unix.NFNETLINK_V0, byte(res >> 8), byte(res)}, data...),
		}
	}
	_, err = t.raw.SendMessages([]netlink.Message{
		message(unix.NFNL_MSG_BATCH_BEGIN, 0, 0, unix.NFNL_SUBSYS_NFTABLES, nil),
		message(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWTABLE, netlink.Acknowledge|netlink.Create, unix.NFPROTO_INET, 0, attrs),
		message(unix.NFNL_MSG_BATCH_END, 0, 0, unix.NFNL_SUBSYS_NFTABLES, nil),
	})
	if err == nil {
		_, err = t.raw.Receive()
	}
	if err != nil {
		t.drain()
		return fmt.Errorf("claim table %s: %w", t.table.Name, err)
	}
	return nil
}

// there says whether the table is.
func (t *tables) there() (bool, error) {
	c, err := nftables.New()
	if err != nil {
		return false, fmt.Errorf("open nftables: %w", err)
	}
	all, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return false, fmt.Errorf("list tables: %w", err)
	}
	for _, x := range all {
		if x.Name == t.table.Name {
			return true, nil
		}
	}
	return false, nil
}

// commit sends what was gathered, all or nothing.
func (t *tables) commit(what string) error {
	if err := t.conn.Flush(); err != nil {
		t.drain()
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// drain reads what a failed batch still has to say, so that the next one does not take it for its own answer.
func (t *tables) drain() {
	for range 1 << 16 {
		if t.raw.SetReadDeadline(time.Now().Add(20*time.Millisecond)) != nil {
			break
		}
		// An answer that says "error" is an answer too; a deadline or a closed socket ends it.
		if _, err := t.raw.Receive(); err != nil {
			if e := (*netlink.OpError)(nil); errors.As(err, &e) && (e.Timeout() || errors.Is(err, fs.ErrClosed)) {
				break
			}
		}
	}
	_ = t.raw.SetReadDeadline(time.Time{}) // a closed socket has none to clear
}

func (t *tables) addElements(s *nftables.Set, elements []nftables.SetElement) error {
	return inBatches(elements, func(part []nftables.SetElement) error { return t.conn.SetAddElements(s, part) })
}

func (t *tables) removeElements(s *nftables.Set, elements []nftables.SetElement) error {
	return inBatches(elements, func(part []nftables.SetElement) error { return t.conn.SetDeleteElements(s, part) })
}

func inBatches(elements []nftables.SetElement, f func([]nftables.SetElement) error) error {
	for len(elements) > 0 {
		n := min(batchElements, len(elements))
		if err := f(elements[:n]); err != nil {
			return fmt.Errorf("pack elements: %w", err)
		}
		elements = elements[n:]
	}
	return nil
}

// elements reads a set; one that is not there is empty.
func (t *tables) elements(s *nftables.Set) ([]nftables.SetElement, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	out, err := c.GetSetElements(s)
	// The library keeps no cause here, only its text.
	if err != nil && !strings.Contains(err.Error(), unix.ENOENT.Error()) {
		return nil, fmt.Errorf("read set %s: %w", s.Name, err)
	}
	return out, nil
}
