package api

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"sandgate/internal/approval"
)

// policyBody is what is asked for.
type policyBody struct {
	Command  string     `json:"command"`
	Write    string     `json:"write"`
	Terminal string     `json:"terminal"`
	Network  string     `json:"network"`
	Port     string     `json:"port"`
	Rules    []ruleBody `json:"rules"`
	Holes    []string   `json:"holes,omitempty" doc:"What the policy leaves open that may not be meant, in words."`
}

type ruleBody struct {
	Kind      string `json:"kind" enum:"command,write,terminal,network,port"`
	Answer    string `json:"answer" enum:"allow,ask,deny"`
	Command   string `json:"command,omitempty" maxLength:"512" doc:"Words: a program's name or path, then leading arguments; globs."`
	Path      string `json:"path,omitempty" maxLength:"512" doc:"Of a write: a glob over the path as it is resolved inside; ** crosses slashes."`
	Requester string `json:"requester,omitempty" maxLength:"512" doc:"E-mail of a person or of a key's owner, or a key's name; a glob."`
	Image     string `json:"image,omitempty" maxLength:"512"`
}

func toPolicy(p approval.Policy, holes bool) policyBody {
	p = p.Whole()
	b := policyBody{string(p.Command), string(p.Write), string(p.Terminal), string(p.Network), string(p.Port), []ruleBody{}, nil}
	for _, r := range p.Rules {
		b.Rules = append(b.Rules, ruleBody{string(r.Kind), string(r.Answer), r.Command, r.Path, r.Requester, r.Image})
	}
	if holes {
		b.Holes = p.Holes()
	}
	return b
}

// policy takes an object that is a policy apart. What its words may be is the service's to judge, but for their bounds.
func (o *object) policy() approval.Policy {
	answer := func(n *object, name string) approval.Answer {
		return approval.Answer(n.oneOf(name, "", "allow", "ask", "deny"))
	}
	p := approval.Policy{
		Command: answer(o, "command"), Write: answer(o, "write"), Terminal: answer(o, "terminal"), Network: answer(o, "network"), Port: answer(o, "port"),
	}
	raw, ok := o.get("rules")
	if !ok {
		return p
	}
	var list []map[string]json.RawMessage
	if json.Unmarshal(raw, &list) != nil || len(list) > approval.MaxRules {
		o.fail("rules", "must be a list of up to "+strconv.Itoa(approval.MaxRules)+" objects")
		return p
	}
	for i, m := range list {
		n := newObject(o.prefix+"rules["+strconv.Itoa(i)+"].", m)
		n.bad = o.bad
		o.inner = append(o.inner, n)
		for _, name := range []string{"kind", "answer"} {
			if !n.has(name) {
				n.fail(name, "must be given")
			}
		}
		p.Rules = append(p.Rules, approval.Rule{
			Kind: approval.Kind(n.oneOf("kind", "", "command", "write", "terminal", "network", "port")), Answer: answer(n, "answer"),
			Command: n.line("command", 512), Path: n.line("path", 512), Requester: n.line("requester", 512), Image: n.line("image", 512),
		})
	}
	return p
}

// approvalOf gives the approval of a sandbox that is made or changed; nil: not named.
func (o *object) approvalOf(name string) *approval.Policy {
	n := o.nested(name)
	if n == nil {
		return nil
	}
	p := n.policy()
	return &p
}

// getPolicy: GET /v1/policy.
func (s *server) getPolicy(c echo.Context) error {
	return answerPolicy(c)(s.svc.Policy(c.Request().Context(), actor(c)))
}

// putPolicy: PUT /v1/policy. What is absent is allow.
func (s *server) putPolicy(c echo.Context) error {
	p, err := readPolicy(c)
	if err != nil {
		return err
	}
	return answerPolicy(c)(s.svc.SetPolicy(c.Request().Context(), actor(c), p))
}

// getKeyPolicy: GET /v1/admin/system-keys/{key}/policy.
func (s *server) getKeyPolicy(c echo.Context) error {
	return answerPolicy(c)(s.svc.KeyPolicy(c.Request().Context(), actor(c), c.Param("key")))
}

// putKeyPolicy: PUT /v1/admin/system-keys/{key}/policy.
func (s *server) putKeyPolicy(c echo.Context) error {
	p, err := readPolicy(c)
	if err != nil {
		return err
	}
	return answerPolicy(c)(s.svc.SetKeyPolicy(c.Request().Context(), actor(c), c.Param("key"), p))
}

func readPolicy(c echo.Context) (approval.Policy, error) {
	o, err := readObject(c, smallBody)
	if err != nil {
		return approval.Policy{}, err
	}
	p := o.policy()
	return p, o.check()
}

func answerPolicy(c echo.Context) func(approval.Policy, error) error {
	return func(p approval.Policy, err error) error {
		if err != nil {
			return err
		}
		return writeJSON(c, http.StatusOK, toPolicy(p, true))
	}
}
