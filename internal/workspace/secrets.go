package workspace

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

// vault keeps opened secrets of sandboxes in memory, so that a command costs no read of the database. Zero value ready.
type vault struct {
	mu   sync.Mutex
	open map[sandbox.ID]*secretSet
}

// secretSet are one sandbox's secrets. Immutable.
type secretSet struct {
	values map[string]string
	mask   mask
}

// maxOpen bounds the vault: ids of sandboxes without secrets are kept too.
const maxOpen = 10_000

func (v *vault) get(id sandbox.ID) *secretSet {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.open[id]
}

func (v *vault) put(id sandbox.ID, o *secretSet) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.open == nil || len(v.open) >= maxOpen {
		v.open = map[sandbox.ID]*secretSet{}
	}
	v.open[id] = o
}

func (v *vault) drop(id sandbox.ID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.open, id)
}

// keepSecrets seals a new sandbox's secrets before it is made.
func (s *Service) keepSecrets(ctx context.Context, id sandbox.ID, values map[string]string) error {
	if len(values) == 0 {
		s.vault.put(id, &secretSet{})
		return nil
	}
	plain, err := json.Marshal(values)
	if err != nil {
		return err
	}
	if err := s.o.Store.PutSecrets(ctx, id, s.o.Seal.Seal(plain, string(id))); err != nil {
		return err
	}
	s.vault.put(id, &secretSet{values: values, mask: maskOf(values)})
	return nil
}

const forgetLimit = 5 * time.Second

// forgetSecrets removes them when their sandbox is gone.
func (s *Service) forgetSecrets(id sandbox.ID) {
	s.vault.drop(id)
	ctx, cancel := context.WithTimeout(context.Background(), forgetLimit)
	defer cancel()
	if err := s.o.Store.DeleteSecrets(ctx, id); err != nil {
		s.o.Log.Error("forget secrets", "sandbox", string(id), "cause", err.Error())
	}
}

// secrets opens a sandbox's.
func (s *Service) secrets(ctx context.Context, id sandbox.ID) (*secretSet, error) {
	if o := s.vault.get(id); o != nil {
		return o, nil
	}
	if !id.Valid() {
		return &secretSet{}, nil
	}
	sealed, err := s.o.Store.Secrets(context.WithoutCancel(ctx), id)
	if fault.Is(err, fault.NotFound) {
		o := &secretSet{}
		s.vault.put(id, o)
		return o, nil
	}
	if err != nil {
		return nil, err
	}
	if s.o.Seal == nil {
		return nil, errors.New("secrets are sealed and there is no key")
	}
	plain, err := s.o.Seal.Open(sealed, string(id))
	if err != nil {
		return nil, fault.Wrap(err, fault.Conflict, "The sandbox's secrets cannot be read: sealing.key is not the one that they were sealed with.")
	}
	o := &secretSet{}
	if err := json.Unmarshal(plain, &o.values); err != nil {
		return nil, err
	}
	o.mask = maskOf(o.values)
	s.vault.put(id, o)
	return o, nil
}

// addSecrets gives a sandbox's secrets to a process that is about to start. What the call itself named stays.
func (s *Service) addSecrets(ctx context.Context, r sandbox.Record, env map[string]string) error {
	o, err := s.secrets(ctx, r.ID)
	if err != nil {
		return err
	}
	for k, v := range o.values {
		if _, own := env[k]; !own {
			env[k] = v
		}
	}
	return nil
}

// mask replaces known secrets in text. nil hides nothing.
type mask []hiding

// hiding is one form of a secret and what stands in its place.
type hiding struct{ text, name string }

// unreadable hides everything: what cannot be looked for might be there.
var unreadable = mask{{}}

// maskOf makes the mask of secrets: as they are, and as they look in base64, in a URL and in JSON.
func maskOf(values map[string]string) mask {
	var m mask
	for name, v := range values {
		quoted, _ := json.Marshal(v) // text always encodes
		forms := []string{
			v, base64.StdEncoding.EncodeToString([]byte(v)), base64.RawStdEncoding.EncodeToString([]byte(v)),
			base64.URLEncoding.EncodeToString([]byte(v)), base64.RawURLEncoding.EncodeToString([]byte(v)),
			url.QueryEscape(v), url.PathEscape(v), string(quoted[1 : len(quoted)-1]),
		}
		for line := range strings.Lines(v) { // a line of a key is a secret as well
			if line = strings.TrimSpace(line); len(line) >= 16 {
				forms = append(forms, line)
			}
		}
		slices.Sort(forms)
		for _, f := range slices.Compact(forms) {
			m = append(m, hiding{f, "[secret " + name + "]"})
		}
	}
	// The longest first: one secret may be part of another.
	slices.SortFunc(m, func(a, b hiding) int {
		if len(a.text) != len(b.text) {
			return len(b.text) - len(a.text)
		}
		return strings.Compare(a.text+a.name, b.text+b.name)
	})
	return m
}

func (m mask) hide(text string) string {
	if text == "" {
		return text
	}
	for _, h := range m {
		if h.text == "" {
			return "[not shown]"
		}
		text = strings.ReplaceAll(text, h.text, h.name)
	}
	return text
}

// hideCut hides also the beginning of a secret at the end of text that was cut there.
func (m mask) hideCut(text string) string {
	if body, cut := strings.CutSuffix(text, "…"); cut {
		return m.hideEnd(body, true) + "…"
	}
	return m.hide(text)
}

// hideEnd is hide for text that may have been cut in the middle of a secret.
func (m mask) hideEnd(text string, cut bool) string {
	text = m.hide(text)
	if !cut {
		return text
	}
	for _, h := range m {
		for n := min(len(h.text)-1, len(text)); n >= minSecret; n-- {
			if strings.HasSuffix(text, h.text[:n]) {
				return text[:len(text)-n] + h.name
			}
		}
	}
	return text
}

func (m mask) hideError(err error) error {
	if e, ok := errors.AsType[*fault.Error](err); ok && m.hide(e.Public) != e.Public {
		return fault.New(e.Kind, "%s", m.hide(e.Public))
	}
	return err
}

// mask gives what hides a sandbox's secrets; one without any hides nothing.
func (s *Service) mask(ctx context.Context, id string) mask {
	o, err := s.secrets(ctx, sandbox.ID(id))
	if err != nil {
		s.o.Log.Error("read secrets in order to hide them", "sandbox", id, "cause", err.Error())
		return unreadable
	}
	return o.mask
}

func (s *Service) hideCommand(ctx context.Context, id string, c agent.Command) agent.Command {
	m := s.mask(ctx, id)
	c.Command, c.Tag = m.hideCut(c.Command), m.hide(c.Tag)
	return c
}
