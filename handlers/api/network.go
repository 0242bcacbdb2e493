package api

import "sandgate/sandbox"

// Bounds of what is read; which entries are good is the service's word.
const (
	maxAllow      = 64
	maxAllowEntry = 300 // bytes
)

func toNetwork(p sandbox.NetworkPolicy) networkBody {
	b := networkBody{Mode: string(p.Mode), Allow: p.Allow}
	if b.Mode == "" {
		b.Mode = string(sandbox.NetworkNone)
	}
	if b.Allow == nil {
		b.Allow = []string{}
	}
	return b
}

// network gives what a sandbox shall reach; the zero value when nothing is said.
func (o *object) network(name string) sandbox.NetworkPolicy {
	n := o.nested(name)
	if n == nil {
		return sandbox.NetworkPolicy{}
	}
	modes := []string{string(sandbox.NetworkNone), string(sandbox.NetworkPublic), string(sandbox.NetworkAllowList)}
	return sandbox.NetworkPolicy{
		Mode:  sandbox.NetworkMode(n.oneOf("mode", "", modes...)),
		Allow: n.words("allow", maxAllow, maxAllowEntry),
	}
}

// newNetwork gives what takes the place of a sandbox's network, whole; nil when the field is absent.
func (o *object) newNetwork(name string) *sandbox.NetworkPolicy {
	if _, there := o.raw[name]; !there {
		o.known[name] = true
		return nil
	}
	p := o.network(name)
	if p.Mode == "" {
		o.fail(name+".mode", "must be given: the network is replaced whole")
	}
	return &p
}
