package approval

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"strings"

	"sandgate/internal/fault"
)

// Answer is what a policy says.
type Answer string

// The answers, the mildest first. Unset is allow.
const (
	Unset Answer = ""
	Allow Answer = "allow"
	AskIt Answer = "ask"
	Deny  Answer = "deny"
)

func (a Answer) rank() int {
	switch a {
	case Deny:
		return 2
	case AskIt:
		return 1
	}
	return 0
}

// Stricter gives the stricter of two answers.
func (a Answer) Stricter(b Answer) Answer {
	if b.rank() > a.rank() {
		return b
	}
	if a == Unset {
		return Allow
	}
	return a
}

// Valid reports whether a is an answer or unset.
func (a Answer) Valid() bool { return a == Unset || a == Allow || a == AskIt || a == Deny }

// Policy is what one workspace, key or sandbox asks for: an answer for each kind, and rules before it, of which the first
// that matches counts. The zero value allows everything.
type Policy struct {
	Command  Answer `json:"command,omitempty"`
	Write    Answer `json:"write,omitempty"`
	Terminal Answer `json:"terminal,omitempty"`
	Network  Answer `json:"network,omitempty"`
	Port     Answer `json:"port,omitempty"`
	Rules    []Rule `json:"rules,omitempty"`
}

// Rule answers for what matches all that it names. Patterns are globs: * and ? do not cross a space or a slash, ** crosses
// slashes.
type Rule struct {
	Kind      Kind   `json:"kind"`
	Answer    Answer `json:"answer"`
	Command   string `json:"command,omitempty"`   // words: the program's name or path, then leading arguments
	Path      string `json:"path,omitempty"`      // of a write, absolute
	Requester string `json:"requester,omitempty"` // e-mail of a person or a key's owner, or a key's name
	Image     string `json:"image,omitempty"`
}

// Bounds of a policy.
const (
	MaxRules   = 100
	maxPattern = 512 // bytes
)

// Of gives the answer for a kind where no rule matches.
func (p Policy) Of(k Kind) Answer {
	var a Answer
	switch k {
	case Command:
		a = p.Command
	case Write:
		a = p.Write
	case Terminal:
		a = p.Terminal
	case Network:
		a = p.Network
	case Port:
		a = p.Port
	}
	return a.Stricter(Unset)
}

// Empty reports whether the policy allows everything.
func (p Policy) Empty() bool {
	for _, k := range Kinds {
		if p.Of(k) != Allow {
			return false
		}
	}
	for _, r := range p.Rules {
		if r.Answer != Allow {
			return false
		}
	}
	return true
}

// Whole gives the policy with unset answers written out.
func (p Policy) Whole() Policy {
	p.Command, p.Write, p.Terminal = p.Of(Command), p.Of(Write), p.Of(Terminal)
	p.Network, p.Port = p.Of(Network), p.Of(Port)
	return p
}

// Check refuses what cannot be a policy, with the fields that are wrong below prefix.
func (p Policy) Check(prefix string) error {
	bad := map[string]string{}
	for name, a := range map[string]Answer{"command": p.Command, "write": p.Write, "terminal": p.Terminal, "network": p.Network, "port": p.Port} {
		if !a.Valid() {
			bad[prefix+name] = "must be one of allow, ask, deny"
		}
	}
	if len(p.Rules) > MaxRules {
		bad[prefix+"rules"] = fmt.Sprintf("may be up to %d", MaxRules)
	}
	for i, r := range p.Rules[:min(len(p.Rules), MaxRules)] {
		if msg := r.problem(); msg != "" {
			bad[fmt.Sprintf("%srules[%d]", prefix, i)] = msg
		}
	}
	if len(bad) == 0 {
		return nil
	}
	err := fault.New(fault.Invalid, "The policy is not valid.")
	for name, msg := range bad {
		if len(bad) == 1 {
			err = fault.Field(name, "%s", msg)
		}
	}
	err.Fields = bad
	return err
}

func (r Rule) problem() string {
	known := false
	for _, k := range Kinds {
		known = known || r.Kind == k
	}
	switch {
	case !known:
		return "kind must be one of command, write, terminal, network, port"
	case r.Answer == Unset || !r.Answer.Valid():
		return "answer must be one of allow, ask, deny"
	case r.Command != "" && r.Kind != Command:
		return "command is for rules of the kind command"
	case r.Path != "" && r.Kind != Write:
		return "path is for rules of the kind write"
	case r.Path != "" && r.Path[0] != '/' && !strings.HasPrefix(r.Path, "**"):
		return "path must be absolute, or begin with **"
	case r.Command != "" && strings.TrimSpace(r.Command) == "":
		return "command must hold a word"
	}
	for _, pattern := range []string{r.Command, r.Path, r.Requester, r.Image} {
		if len(pattern) > maxPattern {
			return fmt.Sprintf("a pattern may have up to %d bytes", maxPattern)
		}
		if strings.ContainsFunc(pattern, func(c rune) bool { return c < ' ' || c == 0x7f }) {
			return "a pattern must not hold control characters"
		}
		if _, err := path.Match(pattern, ""); err != nil {
			return "is not a pattern: close its brackets, and let nothing end in a backslash"
		}
	}
	return ""
}

// Holes tells in words what the policy leaves open that its author may not have meant.
func (p Policy) Holes() []string {
	var out []string
	command, write, terminal := p.Of(Command), p.Of(Write), p.Of(Terminal)
	if command == Allow && write != Allow {
		out = append(out, "Commands can write files: as long as commands are allowed, the answer for writes holds only for the file calls.")
	}
	if write == Allow && command != Allow {
		out = append(out, "Files can be written freely: programs and data that an approved command uses may be replaced, unless they are bound to the request.")
	}
	if terminal != Deny && command == Deny {
		out = append(out, "Commands are denied, and so is typing in terminals.")
	}
	return out
}

// Stricter reports whether nothing that p refuses or asks for gets a milder answer by q; rules must all stay, as they are,
// in front, and rules that q adds behind them must not allow.
func (p Policy) Stricter(q Policy) bool {
	for _, k := range Kinds {
		if q.Of(k).rank() < p.Of(k).rank() {
			return false
		}
	}
	// A rule in front would decide instead of those that are there, and one behind only where none of them matches.
	if len(q.Rules) < len(p.Rules) {
		return false
	}
	for i, r := range p.Rules {
		if q.Rules[i] != r {
			return false
		}
	}
	for _, r := range q.Rules[len(p.Rules):] {
		if r.Answer.rank() < q.Of(r.Kind).rank() {
			return false
		}
	}
	return true
}

// Marshal writes the policy as it is kept.
func (p Policy) Marshal() ([]byte, error) { return json.Marshal(p) }

// ReadPolicy reads what Marshal wrote. What this version does not know is refused: it must not be taken for allow.
func ReadPolicy(text []byte) (Policy, error) {
	var p Policy
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&p); err != nil {
		return p, fmt.Errorf("read policy: %w", err)
	}
	return p, p.Check("")
}

// DigestOf is the SHA-256 (hex) of policies in their order.
func DigestOf(policies []Policy) (string, error) {
	h := sha256.New()
	for _, p := range policies {
		text, err := p.Marshal()
		if err != nil {
			return "", err
		}
		field(h, string(text))
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
