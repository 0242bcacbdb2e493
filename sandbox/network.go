package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// NetworkMode says what a sandbox reaches.
type NetworkMode string

// The modes. No mode reaches the host, another sandbox, or an address that is not public.
const (
	NetworkNone      NetworkMode = "none"       // nothing, no name is answered
	NetworkPublic    NetworkMode = "public"     // every public address
	NetworkAllowList NetworkMode = "allow-list" // what NetworkPolicy.Allow names, as far as it is public
)

// NetworkPolicy is what one sandbox may reach. It may change while the sandbox runs.
type NetworkPolicy struct {
	Mode NetworkMode `json:"mode"`
	// Allow is used by NetworkAllowList alone: names ("example.org", "*.example.org") and networks ("1.2.3.0/24",
	// "1.2.3.4"), each with an optional port (":443"). A name admits the addresses that it was answered with, for as long as
	// the answer lives.
	Allow []string `json:"allow"`
}

// Attachment is a network that is ready for a sandbox to start in.
type Attachment struct {
	// Namespace is understood by the Network that made it and the Runtime that uses it, and by nobody else.
	Namespace string
	// Resolver answers names inside; the same for every sandbox of an installation, so that a copy of one needs no change.
	Resolver netip.Addr
	// Ready waits until the network is complete, and tells why it will not be: what was done of it is undone then. Nothing may
	// run inside before. nil: it is complete.
	Ready func() error
}

// Wait waits until nothing is missing of the network any more.
func (a Attachment) Wait() error {
	if a.Ready == nil {
		return nil
	}
	return a.Ready()
}

// Denial is one or more attempts of a sandbox to reach what it may not, of the same kind, put together.
type Denial struct {
	At          time.Time // of the last one
	Protocol    string    // "tcp", "udp", "icmp", "dns" or the protocol's number
	Destination string    // an address, or for dns the name that was asked for: hostile text
	Port        uint16    // 0 where there is none
	Why         string    // one of the words that the Network documents, e.g. "private", "host", "neighbour", "not on the list"
	Count       int64     // how many this stands for, at least 1
}

// Network gives every sandbox a network of its own and holds it to its policy, from before its first packet until after
// its last. Rules stay in force while no process of Sandgate runs. All methods are safe for concurrent use and take only
// ids that are Valid. Implemented by sandbox/netjail, and for unit tests by sandbox/sandboxtest.
type Network interface {
	// Attach makes the network of one sandbox, rules first; journal is called before each step. When it fails or ctx ends,
	// every step done so far is undone. One that is attached already: fault.Conflict.
	Attach(ctx context.Context, id ID, p NetworkPolicy, journal Journal) (Attachment, error)
	// Begin is Attach that returns when there is a namespace to make a sandbox in. The rest is done meanwhile, journal called
	// from another goroutine; whoever began has to wait for the attachment to be ready, or not, before anything else is done
	// to this network.
	Begin(ctx context.Context, id ID, p NetworkPolicy, journal Journal) (Attachment, error)
	// Change replaces the policy at once; connections that it does not allow any more end. Not attached: fault.NotFound.
	Change(ctx context.Context, id ID, p NetworkPolicy) error
	// Adopt takes up what an earlier process attached: it is compared with what should be and mended, never opened. Not
	// attached, or beyond mending: fault.NotFound.
	Adopt(ctx context.Context, id ID, p NetworkPolicy) error
	// Detach takes everything of one sandbox's network off the host. It is idempotent, tries every step, joins the errors.
	Detach(ctx context.Context, id ID) error
	// Found lists the ids of which any trace of a network that bears our INST is on the host, whatever records say.
	Found(ctx context.Context) ([]ID, error)
}

// attach begins the network of a sandbox that is about to be made. Its end has to be waited for whatever comes.
func (m *Manager) attach(ctx context.Context, r Record, journal Journal) (Attachment, error) {
	if m.o.Network == nil {
		return Attachment{}, nil
	}
	a, err := m.o.Network.Begin(ctx, r.ID, r.Network, journal)
	if err != nil {
		return Attachment{}, fmt.Errorf("network of %s: %w", r.ID, err)
	}
	return a, nil
}

// sweep takes one sandbox off the host: what runs first, then the network that holds it, whatever became of the former.
func (m *Manager) sweep(ctx context.Context, id ID) error {
	err := m.o.Runtime.Remove(ctx, id)
	if m.o.Network != nil {
		err = errors.Join(err, m.o.Network.Detach(ctx, id))
	}
	return err
}

// traces lists the ids of which there is anything on the host.
func (m *Manager) traces(ctx context.Context) (map[ID]bool, error) {
	found, err := m.o.Runtime.Found(ctx)
	if err != nil {
		return nil, err
	}
	if m.o.Network != nil {
		more, err := m.o.Network.Found(ctx)
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	out := make(map[ID]bool, len(found))
	for _, id := range found {
		out[id] = true
	}
	return out, nil
}

// ChangeNetwork gives a sandbox another policy: on record first, then in force. One that does not run takes it when it does.
func (m *Manager) ChangeNetwork(ctx context.Context, id ID, p NetworkPolicy) error {
	b := m.boxOf(id)
	r, err := m.o.Records.SandboxByID(ctx, id)
	if err != nil {
		return err
	}
	if r.Status == Suspended && b == nil {
		if err := m.o.Records.SetNetwork(ctx, id, p); err != nil {
			return err
		}
		m.tell(ctx, id)
		return nil
	}
	if b == nil || r.Status != Running {
		return notRunning(r)
	}
	b.host.Lock()
	defer b.host.Unlock()
	if err := m.o.Records.SetNetwork(ctx, id, p); err != nil {
		return err
	}
	if m.o.Network == nil {
		return nil
	}
	if err := m.o.Network.Change(ctx, id, p); err != nil {
		// What is on record must be what is in force.
		return errors.Join(fmt.Errorf("change network of %s: %w", id, err), m.o.Records.SetNetwork(context.WithoutCancel(ctx), id, r.Network))
	}
	m.tell(ctx, id)
	return nil
}
