package netjail

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	mdl "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Somebody else's "nft flush ruleset", a reload of firewalld, a restart of Docker: where the kernel knows owners of tables
// ours is passed by. Where it does not, and while no process of ours runs, the routes keep everything closed that no rule
// let pass (shared.go); here it is noticed, and mended: links down, rules, links up.

// watch starts what notices changes on the host.
func (j *Jail) watch(ctx context.Context) error {
	tables, err := mdl.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("watch nftables: %w", err)
	}
	if err := errors.Join(tables.SetReadBuffer(1<<20), tables.JoinGroup(unix.NFNLGRP_NFTABLES)); err != nil {
		return errors.Join(fmt.Errorf("watch nftables: %w", err), tables.Close())
	}
	routes, err := mdl.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return errors.Join(fmt.Errorf("watch addresses: %w", err), tables.Close())
	}
	for _, g := range []uint32{unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_RULE} {
		if err := routes.JoinGroup(g); err != nil {
			return errors.Join(fmt.Errorf("watch addresses: %w", err), tables.Close(), routes.Close())
		}
	}
	for _, c := range []*mdl.Conn{tables, routes} {
		j.wg.Go(func() { j.listen(ctx, c, c == tables) })
		j.wg.Go(func() {
			<-ctx.Done()
			_ = c.Close() // ends listen
		})
	}
	j.wg.Go(func() { j.guard(ctx) })
	return nil
}

// listen pokes the guard for what others did; when too much was said to be heard, that is a reason too.
func (j *Jail) listen(ctx context.Context, c *mdl.Conn, tables bool) {
	for ctx.Err() == nil {
		news, err := c.Receive()
		if err == nil && tables && !slices.ContainsFunc(news, byOthers) {
			continue
		}
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			if ctx.Err() == nil {
				j.o.Log.Warn("the jail hears no news of the host any more: it looks by the clock alone", "cause", err)
			}
			return
		}
		poke := j.pokeHost
		if tables {
			poke = j.poke
		}
		select {
		case poke <- struct{}{}:
		default:
		}
	}
}

// byOthers says whether news of nftables end a change that another process made: the last word on each names its maker. In
// a namespace of processes nobody's number is ours, and everything counts as others'.
func byOthers(m mdl.Message) bool {
	if m.Header.Type != unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN || len(m.Data) < 4 {
		return false
	}
	ad, err := mdl.NewAttributeDecoder(m.Data[4:])
	if err != nil {
		return true
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		if ad.Type() == unix.NFTA_GEN_PROC_PID {
			_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", ad.Uint32())) // it is a thread's number
			return err != nil
		}
	}
	return true
}

// guard looks after each poke, and every few seconds without one.
func (j *Jail) guard(ctx context.Context) {
	tick := time.NewTicker(recheck)
	defer tick.Stop()
	for {
		host := false
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			host = true
		case <-j.pokeHost:
			host = true
		case <-j.poke:
		}
		if err := j.look(ctx, host); err != nil && ctx.Err() == nil {
			j.o.Log.Error("the jail could not be mended: sandboxes stay without a network", "cause", err)
		}
	}
}

// Check compares the host with what should be there and mends it. It runs by itself; a test or an operator may call it.
func (j *Jail) Check(ctx context.Context) error { return j.look(ctx, true) }

// look leaves out what takes long where there are many links, unless it is about the host's addresses.
func (j *Jail) look(ctx context.Context, host bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed || !j.ready {
		return nil
	}
	whole, err := j.intact()
	if err != nil || !whole {
		return errors.Join(err, j.mend())
	}
	if !host {
		return nil
	}
	return j.followHost()
}

// mend closes first, and opens when everything is in place again.
func (j *Jail) mend() error {
	start := time.Now()
	if err := j.lower(); err != nil {
		j.o.Log.Error("links of sandboxes could not be set down", "cause", err)
	}
	if err := j.share(); err != nil {
		return err
	}
	if err := j.rewrite(); err != nil {
		return err
	}
	var errs []error
	for _, b := range j.boxes {
		if b.up {
			errs = append(errs, j.raise(b))
		}
	}
	j.o.Log.Warn("somebody changed the rules of the jail: it was closed and made anew", "sandboxes", len(j.boxes), "took", time.Since(start))
	return errors.Join(errs...)
}

// intact says whether rules and routes are as we made them.
func (j *Jail) intact() (bool, error) {
	rules, err := j.rulesThere()
	if err != nil {
		return false, err
	}
	for _, r := range j.sharedRules() {
		if !rules[r.Priority] {
			return false, nil
		}
	}
	there, err := j.t.there()
	if err != nil || !there {
		return false, err
	}
	if j.t.owned {
		return true, nil // nobody else can have changed it
	}
	print, err := j.fingerprint()
	if err != nil {
		return false, err
	}
	return print == j.print, nil
}

// remember keeps what the table looks like, to notice that somebody changed it.
func (j *Jail) remember() error {
	if j.t.owned {
		return nil
	}
	print, err := j.fingerprint()
	if err != nil {
		return err
	}
	j.print = print
	return nil
}

// fingerprint tells one state of chains, rules and fixed sets from every other: the kernel gives a new rule a new number.
func (j *Jail) fingerprint() (string, error) {
	h := sha256.New()
	chains, err := j.t.chains()
	if err != nil {
		return "", err
	}
	c, err := nftables.New()
	if err != nil {
		return "", fmt.Errorf("open nftables: %w", err)
	}
	slices.SortFunc(chains, func(a, b *nftables.Chain) int { return strings.Compare(a.Name, b.Name) })
	for _, ch := range chains {
		fmt.Fprintf(h, "%s %v\n", ch.Name, ch.Policy != nil && *ch.Policy == nftables.ChainPolicyAccept)
		rules, err := c.GetRules(j.t.table, ch)
		if err != nil {
			return "", fmt.Errorf("read rules: %w", err)
		}
		for _, r := range rules {
			fmt.Fprintln(h, r.Handle)
		}
	}
	for _, s := range j.s.fixed() {
		have, err := j.t.elements(s)
		if err != nil {
			return "", err
		}
		lines := make([]string, 0, len(have))
		for _, e := range have {
			lines = append(lines, fmt.Sprintf("%s %x %x %v %x", s.Name, e.Key, e.KeyEnd, e.IntervalEnd, e.Val))
		}
		slices.Sort(lines)
		fmt.Fprintln(h, strings.Join(lines, "\n"))
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func (t *tables) chains() ([]*nftables.Chain, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	all, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	return slices.DeleteFunc(all, func(c *nftables.Chain) bool { return c.Table.Name != t.table.Name }), nil
}

// followHost denies the networks that the host is on, as they come and go.
func (j *Jail) followHost() error {
	lo, err := j.host.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find the loopback: %w", err)
	}
	mine, err := retried(func() ([]netlink.Addr, error) { return j.host.AddrList(lo, netlink.FAMILY_V4) })
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range []netip.Addr{j.o.gateway(), j.o.platform()} {
		if !slices.ContainsFunc(mine, func(x netlink.Addr) bool { got, ok := addrOf(x.IP); return ok && got == a }) {
			return j.mend() // routes with that source went as well
		}
	}
	nets, err := j.networksOfHost()
	if err != nil {
		return err
	}
	if slices.Equal(nets, j.hostNets) {
		return nil
	}
	old := j.hostNets
	j.hostNets = nets
	err = j.change("networks of the host", func() error {
		j.t.conn.FlushSet(j.s.hostNets)
		return j.put(elements{j.s.hostNets: intervals(nets)})
	})
	if err != nil {
		j.hostNets = old
	}
	return err
}
