package handlers

import (
	"fmt"
	"net/http"
	"strings"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/workspace"
	"sandgate/views"
	"sandgate/views/ui"
)

// spareRules are the empty lines below the rules of a policy; a form that is full gets as many again.
const spareRules = 3

// policyKinds say what each kind of action is, in the order of the form.
var policyKinds = []struct {
	kind approval.Kind
	text string
	hint string
}{
	{approval.Command, "Commands", "Run in the foreground or the background, and input to one that runs."},
	{approval.Write, "Files", "Write, move, copy, delete, upload, unpack, change who may use them."},
	{approval.Terminal, "Terminals", "Typing. Where commands are asked about, terminals are for looking only without a yes."},
	{approval.Network, "Network", "What a sandbox may reach is changed."},
	{approval.Port, "Ports", "A port inside is shared."},
}

func answerChoices(on approval.Answer, empty string) []ui.Choice {
	out := []ui.Choice{
		{Value: string(approval.Allow), Text: "Allow"}, {Value: string(approval.AskIt), Text: "Ask a person"}, {Value: string(approval.Deny), Text: "Deny"},
	}
	if empty != "" {
		out = append([]ui.Choice{{Value: "", Text: empty}}, out...)
	}
	for i := range out {
		out[i].Selected = out[i].Value == string(on)
	}
	return out
}

// answerFields are the selects of a policy without rules: of a form with this prefix before their names.
func answerFields(prefix string, p approval.Policy) (out []views.PolicyKind) {
	for _, k := range policyKinds {
		out = append(out, views.PolicyKind{
			Field: ui.Field{Name: prefix + string(k.kind), Label: k.text, Hint: k.hint}, Choices: answerChoices(p.Of(k.kind), ""),
		})
	}
	return out
}

func (v *visit) policyForm(p approval.Policy, mayChange bool) views.PolicyForm {
	f := views.PolicyForm{
		Shell: v.shell("Approval", "approvals"), Heading: "What this workspace asks approval for", Cancel: v.approvalsBase(),
		Words: []string{
			"It holds for everybody in the workspace. A key and a sandbox can have a policy of their own: the strictest of them counts.",
			"Requests that wait become void where what holds for them changes.",
		},
		Kinds: answerFields("", p), Rules: ruleRows(p.Rules),
	}
	if mayChange {
		f.Action = v.base() + "/policy"
	} else {
		f.Words = append(f.Words, "To change it needs members:manage.")
		f.Told = rulesTold(p.Rules)
	}
	return f
}

// ruleRows are the rules with empty ones after them.
func ruleRows(rules []approval.Rule) (out []views.PolicyRule) {
	for i := range len(rules) + spareRules {
		if i >= approval.MaxRules {
			break
		}
		var r approval.Rule
		empty := "No rule"
		if i < len(rules) {
			r, empty = rules[i], "Remove it"
		}
		row := views.PolicyRule{Name: fmt.Sprintf("rule%d", i), Answers: answerChoices(r.Answer, empty)}
		for _, k := range policyKinds {
			row.Kinds = append(row.Kinds, ui.Choice{Value: string(k.kind), Text: k.text, Selected: k.kind == r.Kind})
		}
		row.Command = ui.Field{Name: row.Name + ".command", Label: "Command", Usual: "command: git push *", Value: r.Command}
		row.Path = ui.Field{Name: row.Name + ".path", Label: "Path", Usual: "path: /etc/**", Value: r.Path}
		row.Requester = ui.Field{Name: row.Name + ".requester", Label: "Who asks", Usual: "who: *@example.org", Value: r.Requester}
		row.Image = ui.Field{Name: row.Name + ".image", Label: "Image", Usual: "image: base", Value: r.Image}
		out = append(out, row)
	}
	return out
}

// rulesTold says rules in words, one a line; what they match is text of whoever made them.
func rulesTold(rules []approval.Rule) (out []string) {
	answers := map[approval.Answer]string{approval.Allow: "Allow", approval.AskIt: "Ask a person", approval.Deny: "Deny"}
	for _, r := range rules {
		line := answers[r.Answer]
		for _, k := range policyKinds {
			if k.kind == r.Kind {
				line += ": " + k.text
			}
		}
		for _, f := range []struct{ name, value string }{{"command", r.Command}, {"path", r.Path}, {"who", r.Requester}, {"image", r.Image}} {
			if f.value != "" {
				line += ", " + f.name + " " + display(f.value)
			}
		}
		out = append(out, line)
	}
	return out
}

// policyOf reads a form.
func policyOf(v *visit) approval.Policy {
	p := answersOf(v, "")
	for i := range approval.MaxRules {
		name := fmt.Sprintf("rule%d.", i)
		value := func(field string) string { return strings.TrimSpace(v.FormValue(name + field)) }
		if value("answer") == "" {
			continue
		}
		p.Rules = append(p.Rules, approval.Rule{
			Answer: approval.Answer(value("answer")), Kind: approval.Kind(value("kind")),
			Command: value("command"), Path: value("path"), Requester: value("requester"), Image: value("image"),
		})
	}
	return p
}

// answersOf reads the selects of a form with a prefix before their names.
func answersOf(v *visit, prefix string) approval.Policy {
	answer := func(k approval.Kind) approval.Answer { return approval.Answer(v.FormValue(prefix + string(k))) }
	return approval.Policy{
		Command: answer(approval.Command), Write: answer(approval.Write), Terminal: answer(approval.Terminal),
		Network: answer(approval.Network), Port: answer(approval.Port),
	}
}

func (s *Server) policyPage(v *visit) error {
	p, err := s.o.Service.Policy(v.ctx(), v.actor)
	if err != nil {
		return err
	}
	return v.renderForm(http.StatusOK, v.policyForm(p, v.actor.May(auth.MembersManage)))
}

func (s *Server) policySet(v *visit) error {
	p := policyOf(v)
	_, err := s.o.Service.SetPolicy(v.ctx(), v.actor, p)
	return v.policyDone(err, v.policyForm(p, true), v.approvalsBase()+"?done=policy")
}

// policyDone leads on, or shows the form again with what is wrong in it.
func (v *visit) policyDone(err error, f views.PolicyForm, to string) error {
	if sentence, fields, ok := wrongIn(err); ok {
		f.Wrong = display(sentence)
		for where, what := range fields {
			f.Wrong += " " + display(where) + " " + display(what) + "."
		}
		return v.renderForm(http.StatusUnprocessableEntity, f)
	}
	if err != nil {
		return err
	}
	return v.goTo(to)
}

func (v *visit) keyPolicyForm(p approval.Policy) views.PolicyForm {
	f := v.policyForm(p, true)
	f.Heading, f.Section, f.Title = "What is asked of this key", "people", "Policy of a key"
	f.Words = []string{"An agent's key may ask where a colleague's does not. The strictest of workspace, key and sandbox counts."}
	f.Action, f.Cancel = v.base()+"/keys/"+v.Param("key")+"/policy", v.base()+"/people"
	return f
}

func (s *Server) keyPolicyPage(v *visit) error {
	p, err := s.o.Service.KeyPolicy(v.ctx(), v.actor, v.Param("key"))
	if err != nil {
		return err
	}
	return v.renderForm(http.StatusOK, v.keyPolicyForm(p))
}

func (s *Server) keyPolicySet(v *visit) error {
	p := policyOf(v)
	_, err := s.o.Service.SetKeyPolicy(v.ctx(), v.actor, v.Param("key"), p)
	return v.policyDone(err, v.keyPolicyForm(p), v.base()+"/people?done=policy")
}

// asksForTerminals reports whether somebody would be asked before a terminal of a sandbox is typed in: then a page opens none
// by itself, because to look is not to ask.
func (v *visit) asksForTerminals(b workspace.Sandbox) bool {
	all, err := v.s.o.Service.Policy(v.ctx(), v.actor)
	if err != nil {
		v.s.log.Warn("read the policy for the page", "request_id", v.requestID(), "cause", err)
	}
	for _, p := range []approval.Policy{all, b.Approval} {
		if p.Of(approval.Terminal) != approval.Allow || p.Of(approval.Command) != approval.Allow {
			return true
		}
	}
	return false
}

// policyWords say in a few words what a sandbox asks for; nil where it asks for nothing.
func policyWords(p approval.Policy) (out []string) {
	for _, k := range policyKinds {
		switch p.Of(k.kind) {
		case approval.AskIt:
			out = append(out, k.text+": a person is asked")
		case approval.Deny:
			out = append(out, k.text+": denied")
		}
	}
	if n := len(p.Rules); n > 0 {
		out = append(out, plural(n, "rule", "rules")+" before that")
	}
	return out
}
