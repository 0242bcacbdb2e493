package workspace

import (
	"context"
	"sync"
	"time"

	"sandgate/auth"
)

// keyring keeps keys with their holders in memory. Every request comes with a key, and a stored one is right as long as
// the epoch is the same: whatever can take a right from somebody moves it. Zero value ready.
type keyring struct {
	mu       sync.Mutex
	byPrefix map[string]*heldKey
	byID     map[string]*heldKey
}

type heldKey struct {
	epoch  int64
	holder auth.KeyHolder
}

// maxHeldKeys bounds the keyring; a full one is begun anew.
const maxHeldKeys = 1000

func (k *keyring) get(in map[string]*heldKey, name string, epoch int64) (auth.KeyHolder, bool) {
	if h := in[name]; h != nil && h.epoch == epoch {
		return h.holder, true
	}
	return auth.KeyHolder{}, false
}

func (k *keyring) put(epoch int64, holder auth.KeyHolder) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.byID == nil || len(k.byID) >= maxHeldKeys {
		k.byPrefix, k.byID = map[string]*heldKey{}, map[string]*heldKey{}
	}
	h := &heldKey{epoch, holder}
	k.byPrefix[holder.Prefix], k.byID[holder.ID] = h, h
}

// used notes the last use, which moves no epoch.
func (k *keyring) used(id string, at time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h := k.byID[id]; h != nil {
		h.holder.LastUsedAt = at
	}
}

// keyByPrefix gives a key with its workspace and its owner's place there, as they are now.
func (s *Service) keyByPrefix(ctx context.Context, prefix string) (auth.KeyHolder, error) {
	k := &s.people.keys
	return s.heldKey(ctx, func(epoch int64) (auth.KeyHolder, bool) { return k.get(k.byPrefix, prefix, epoch) },
		func() (auth.KeyHolder, error) { return s.o.Store.KeyByPrefix(ctx, prefix) })
}

// keyByID is keyByPrefix by id.
func (s *Service) keyByID(ctx context.Context, id string) (auth.KeyHolder, error) {
	k := &s.people.keys
	return s.heldKey(ctx, func(epoch int64) (auth.KeyHolder, bool) { return k.get(k.byID, id, epoch) },
		func() (auth.KeyHolder, error) { return s.o.Store.KeyByID(ctx, id) })
}

func (s *Service) heldKey(ctx context.Context, held func(epoch int64) (auth.KeyHolder, bool), read func() (auth.KeyHolder, error)) (auth.KeyHolder, error) {
	// The epoch first: a change after it makes what is kept below stale, never fresher than it says.
	epoch, err := s.o.Store.AuthzEpoch(ctx)
	if err != nil {
		return auth.KeyHolder{}, err
	}
	s.people.keys.mu.Lock()
	holder, ok := held(epoch)
	s.people.keys.mu.Unlock()
	if ok {
		return holder, nil
	}
	// A key of a sandbox dies with it, which moves no epoch.
	if holder, err = read(); err == nil && holder.SandboxID == "" {
		s.people.keys.put(epoch, holder)
	}
	return holder, err
}
