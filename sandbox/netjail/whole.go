package netjail

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// prepare makes what sandboxes share, unless it is there.
func (j *Jail) prepare() error {
	if j.ready {
		return nil
	}
	nets, err := j.networksOfHost()
	if err != nil {
		return err
	}
	j.hostNets = nets
	if err := j.share(); err != nil {
		return fmt.Errorf("prepare the network of sandboxes: %w", err)
	}
	if err := j.rewrite(); err != nil {
		return fmt.Errorf("prepare the network of sandboxes: %w", err)
	}
	j.ready = true
	return nil
}

// dismantle takes what sandboxes share off the host.
func (j *Jail) dismantle() error {
	j.ready = false
	var errs []error
	if there, err := j.t.there(); err != nil {
		errs = append(errs, err)
	} else if there {
		j.t.conn.DelTable(j.t.table)
		errs = append(errs, j.t.commit("remove the table"))
	}
	return errors.Join(append(errs, j.unshare())...)
}

// rewrite makes the whole table from memory in one transaction: there is no moment with half of it.
func (j *Jail) rewrite() error {
	if err := j.t.claim(); err != nil {
		return err
	}
	strange, err := j.strangers()
	if err != nil {
		return err
	}
	if !strange {
		if err = j.writeAll(); err == nil {
			return j.remember()
		}
		j.o.Log.Warn("the table of the packet filter is another version's: it is made anew", "cause", err)
	}
	// For this moment routes alone keep everything closed.
	j.t.conn.DelTable(j.t.table)
	if err := j.t.commit("remove the table"); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	if err := j.t.claim(); err != nil {
		return err
	}
	err = j.writeAll()
	if err != nil && j.s.ownTimes {
		j.o.Log.Warn("connections of sandboxes that ended stay in the host's table as long as its own do", "cause", err)
		j.s.ownTimes = false
		err = j.writeAll()
	}
	if err != nil {
		return err
	}
	return j.remember()
}

// strangers says whether the table has chains that are none of ours.
func (j *Jail) strangers() (bool, error) {
	have, err := j.t.chains()
	if err != nil {
		return false, err
	}
	want := map[string]bool{}
	for _, c := range j.s.chains() {
		want[c.c.Name] = true
	}
	return slices.ContainsFunc(have, func(c *nftables.Chain) bool { return !want[c.Name] }), nil
}

func (j *Jail) writeAll() error {
	strays, err := j.strayCounters()
	if err != nil {
		return err
	}
	c := j.t.conn
	for _, s := range j.s.sets() {
		if err := c.AddSet(s, nil); err != nil {
			return fmt.Errorf("pack set %s: %w", s.Name, err)
		}
	}
	if j.s.ownTimes {
		c.AddObj(j.s.times())
	}
	all := j.s.chains()
	for _, ch := range all {
		c.AddChain(ch.c)
	}
	c.FlushTable(j.t.table) // of its rules
	for _, ch := range all {
		for _, r := range ch.rules {
			c.AddRule(&nftables.Rule{Table: j.t.table, Chain: ch.c, Exprs: r})
		}
	}
	for _, s := range j.s.fixed() {
		c.FlushSet(s)
	}
	c.FlushSet(j.s.names)
	err = errors.Join(j.take(strays), j.put(j.s.shared(j.hostNets)))
	now := j.o.Now()
	for _, b := range j.boxes {
		err = errors.Join(err, j.put(j.s.judgement(b), j.s.answers(b, now), j.s.counter(b)))
		if b.index != 0 {
			err = errors.Join(err, j.put(j.s.pairing(b)))
		}
	}
	if err != nil {
		return err
	}
	return j.t.commit("write the table")
}

// strayCounters are those of sandboxes of which there is nothing else: an earlier process ended while it made them. All
// others stay, because they have counted.
func (j *Jail) strayCounters() (elements, error) {
	addrs, links := map[string]bool{}, map[string]bool{}
	for _, b := range j.boxes {
		addrs[string(four(b.addr))] = true
		links[string(linkKey(b.link))] = true
	}
	out := elements{}
	for s, ours := range map[*nftables.Set]map[string]bool{j.s.refused: addrs, j.s.forged: links} {
		all, err := j.t.elements(s)
		if err != nil {
			return nil, err
		}
		for _, e := range all {
			if !ours[string(e.Key)] {
				out.add(s, nftables.SetElement{Key: e.Key})
			}
		}
	}
	return out, nil
}

// fixed lists the sets whose elements are known exactly: not counters, not meters, and not answers, which go by themselves.
func (s *schema) fixed() []*nftables.Set {
	return []*nftables.Set{s.pairs, s.modes, s.gens, s.live, s.off, s.nets, s.except, s.hostNets, s.whyOne, s.why}
}
