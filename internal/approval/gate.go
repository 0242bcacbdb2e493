package approval

import (
	"context"
	"strings"
	"sync"

	"sandgate/auth"
	"sandgate/internal/fault"
)

// Rules is the gate that policies decide at: of the workspace, of the key, of the sandbox. Safe for concurrent use.
type Rules struct {
	policies Policies

	mu    sync.Mutex
	epoch int64
	held  map[string]heldPolicy // of the epoch
}

type heldPolicy struct {
	Policy
	empty bool
}

// maxHeld bounds the policies that are kept in memory; a full set is begun anew.
const maxHeld = 10_000

// NewGate makes the gate of kept policies.
func NewGate(p Policies) *Rules { return &Rules{policies: p} }

// Pass decides: nil, *Ask, or fault.ApprovalDenied. Policies that cannot be read refuse.
func (g *Rules) Pass(ctx context.Context, who auth.Actor, what Action) error {
	if what.Kind == Other || who.Kind == auth.System {
		return nil
	}
	list, err := g.Of(ctx, who.Workspace.ID, who.KeyID, what.SandboxID)
	if err != nil {
		return err
	}
	v := Decide(list, who, what)
	switch v.Answer {
	case Deny:
		return fault.New(fault.ApprovalDenied, "The %s does not allow this.", v.Why).With("reason", "policy")
	case AskIt:
		policies := make([]Policy, len(list))
		for i, l := range list {
			policies[i] = l.Policy
		}
		digest, err := DigestOf(policies)
		if err != nil {
			return err
		}
		return &Ask{Why: v.Why, Policy: digest}
	}
	return nil
}

// Named is a policy with what it is of, in words.
type Named struct {
	Policy
	Of string // "policy of the workspace", …
}

// Of gives the policies that hold for a key (or "") in a sandbox (or "") of a workspace; none that allows everything.
func (g *Rules) Of(ctx context.Context, workspaceID, keyID, sandboxID string) ([]Named, error) {
	epoch, err := g.policies.AuthzEpoch(ctx)
	if err != nil {
		return nil, err
	}
	var out []Named
	for _, s := range []struct{ subject, of string }{
		{workspaceID, "policy of the workspace"}, {keyID, "policy of the key"}, {sandboxID, "policy of the sandbox"},
	} {
		if s.subject == "" {
			continue
		}
		h, err := g.one(ctx, epoch, s.subject)
		if err != nil {
			return nil, err
		}
		if !h.empty {
			out = append(out, Named{h.Policy, s.of})
		}
	}
	return out, nil
}

func (g *Rules) one(ctx context.Context, epoch int64, subject string) (heldPolicy, error) {
	g.mu.Lock()
	if g.epoch != epoch || len(g.held) >= maxHeld {
		g.epoch, g.held = epoch, map[string]heldPolicy{}
	}
	h, ok := g.held[subject]
	g.mu.Unlock()
	if ok {
		return h, nil
	}
	p, err := g.policies.PolicyOf(ctx, subject)
	if err != nil {
		return h, err
	}
	h = heldPolicy{p, p.Empty()}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.epoch == epoch { // read after the epoch was: what is kept is never older than it says
		g.held[subject] = h
	}
	return h, nil
}

// NeedsPaths reports whether any of the policies has a rule about paths.
func NeedsPaths(list []Named) bool {
	for _, p := range list {
		for _, r := range p.Rules {
			if r.Path != "" {
				return true
			}
		}
	}
	return false
}

// Verdict is an answer with the policy that gave it.
type Verdict struct {
	Answer Answer
	Why    string
}

// Decide gives the strictest answer of the policies: within each, the first rule that matches counts.
func Decide(list []Named, who auth.Actor, what Action) Verdict {
	out := Verdict{Answer: Allow}
	for _, p := range list {
		a, why := p.decide(who, what)
		if a.rank() > out.Answer.rank() {
			out = Verdict{a, p.Of}
			if why != "" {
				out.Why += " (" + why + ")"
			}
		}
	}
	return out
}

func (p Policy) decide(who auth.Actor, what Action) (Answer, string) {
	switch what.Kind {
	case Command:
		if what.Name == "command.stdin" { // what goes to a program that runs is no command line
			return p.first(what.Kind, func(r Rule) bool { return r.Command == "" && r.fits(who, what) })
		}
		return p.command(who, what)
	case Write:
		return p.write(who, what)
	case Terminal:
		a, why := p.first(what.Kind, func(r Rule) bool { return r.fits(who, what) })
		// Who types runs commands, and no rule about commands sees what is typed.
		if c := p.typing(who, what); c.rank() > a.rank() {
			return c, "commands are typed in terminals, too"
		}
		return a, why
	}
	return p.first(what.Kind, func(r Rule) bool { return r.fits(who, what) })
}

// first gives the answer of the first rule of the kind that matches, else that of the kind.
func (p Policy) first(k Kind, match func(Rule) bool) (Answer, string) {
	for _, r := range p.Rules {
		if r.Kind == k && match(r) {
			return r.Answer, r.words()
		}
	}
	return p.Of(k), ""
}

func (r Rule) words() string {
	var out []string
	for _, w := range []struct{ name, value string }{{"command", r.Command}, {"path", r.Path}, {"requester", r.Requester}, {"image", r.Image}} {
		if w.value != "" {
			out = append(out, w.name+" "+w.value)
		}
	}
	if out == nil {
		return "rule " + string(r.Kind)
	}
	return "rule " + strings.Join(out, ", ")
}

// fits reports whether who asks, and where, is what the rule is about.
func (r Rule) fits(who auth.Actor, what Action) bool {
	return (r.Image == "" || glob(r.Image, what.Image)) && (r.Requester == "" || glob(r.Requester, who.Name) || glob(r.Requester, who.Owner))
}

// typing is the strictest answer that a command could get: a rule may ask for one that is typed.
func (p Policy) typing(who auth.Actor, what Action) Answer {
	a := p.Of(Command)
	for _, r := range p.Rules {
		if r.Kind == Command && r.Answer.rank() > 0 && r.fits(who, what) {
			a = a.Stricter(AskIt)
		}
	}
	return a
}

// write judges each path by itself; the strictest answer counts. Paths that are not known cannot be let through by a rule.
func (p Policy) write(who auth.Actor, what Action) (Answer, string) {
	about := false
	for _, r := range p.Rules {
		about = about || r.Kind == Write && r.Path != ""
	}
	if !about || len(what.Paths) == 0 {
		return p.first(Write, func(r Rule) bool { return r.Path == "" && r.fits(who, what) })
	}
	out, why := Allow, ""
	for _, path := range what.Paths {
		a, w := p.first(Write, func(r Rule) bool { return r.fits(who, what) && (r.Path == "" || r.reaches(string(path), what.Below)) })
		if a.rank() > out.rank() {
			out, why = a, w
		}
	}
	return out, why
}

// reaches reports whether a rule is about a path. Where more than the path is touched, a rule that lets through must be about
// all of it, and any other about some of it.
func (r Rule) reaches(path string, below bool) bool {
	switch {
	case !below:
		return globPath(r.Path, path)
	case r.Answer == Allow:
		return strings.HasSuffix(r.Path, "/**") && globPath(r.Path, path)
	}
	return globPath(r.Path, path) || mayMeet(r.Path, path)
}

// command judges each simple command of a script by itself; the strictest answer counts. Where there are rules about
// commands, what cannot be taken apart with certainty asks at least.
func (p Policy) command(who auth.Actor, what Action) (Answer, string) {
	about := false
	for _, r := range p.Rules {
		about = about || r.Kind == Command && r.Command != "" && r.fits(who, what)
	}
	if !about {
		return p.first(Command, func(r Rule) bool { return r.Command == "" && r.fits(who, what) })
	}
	script := parse(what.Script, what.Env)
	out, why := Allow, ""
	if script.Unsure != "" {
		out, why = AskIt, "it cannot be told with certainty what runs: "+script.Unsure
	}
	for _, c := range script.Commands {
		unsure := false
		a, w := p.first(Command, func(r Rule) bool {
			if !r.fits(who, what) || r.Command == "" {
				return r.fits(who, what)
			}
			// A word that the shell computes may become the one that the rule is about.
			unsure = unsure || r.Answer != Allow && c.certain < len(c.argv) && mayMatch(r.Command, c)
			return globWords(r.Command, c.argv)
		})
		if unsure && a.rank() == 0 {
			a, w = AskIt, "an argument is computed that a rule is about"
		}
		if a.rank() > out.rank() {
			out, why = a, w
		}
	}
	if len(script.Commands) == 0 { // nothing that a rule could be about
		a, w := p.first(Command, func(r Rule) bool { return r.Command == "" && r.fits(who, what) })
		if a.rank() > out.rank() {
			out, why = a, w
		}
	}
	return out, why
}
