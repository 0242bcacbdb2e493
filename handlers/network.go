package handlers

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"

	"sandgate/auth"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
	"sandgate/views"
	"sandgate/views/ui"
)

const (
	deniedOnPage = 8
	maxWhere     = 160 // bytes of a destination that are shown
)

// networkModes say what each mode means, the default first.
var networkModes = []struct {
	mode sandbox.NetworkMode
	text string
}{
	{sandbox.NetworkPublic, "Public internet"},
	{sandbox.NetworkAllowList, "Only what is on the list"},
	{sandbox.NetworkNone, "None"},
}

func modeWords(m sandbox.NetworkMode) string {
	for _, n := range networkModes {
		if n.mode == m {
			return n.text
		}
	}
	return "None"
}

// modeChoices are the entries of a select. Without a jail there is one.
func (v *visit) modeChoices(chosen sandbox.NetworkMode) (out []ui.Choice) {
	for _, n := range networkModes {
		if v.s.o.NoNetwork && n.mode != sandbox.NetworkNone {
			continue
		}
		out = append(out, ui.Choice{Value: string(n.mode), Text: n.text, Selected: n.mode == chosen})
	}
	return out
}

const allowHint = "One a line: example.org, *.example.org or 1.2.3.0/24, with or without a port (:443)."

// whyWords explain a refusal to people; the words themselves are those of the record.
var whyWords = map[string]string{
	"host":                 "an address of the host",
	"host network":         "a network that the host is on",
	"neighbour":            "another sandbox",
	"network is off":       "this sandbox has no network",
	"no network":           "this sandbox has no network",
	"not on the list":      "not on this sandbox's list",
	"private":              "an address of a private network",
	"link-local":           "an address of the local link",
	"metadata":             "a cloud's metadata service",
	"shared":               "a provider's internal network",
	"loopback":             "a loopback address",
	"this network":         "an address that means the sender itself",
	"multicast":            "an address of a group",
	"broadcast":            "an address for everybody on the link",
	"documentation":        "an address set aside for examples",
	"benchmarking":         "an address set aside for measurements",
	"transition":           "an IPv4 address in IPv6 form",
	"reserved":             "an address that is not in public use",
	"protocol":             "neither TCP, UDP nor ICMP",
	"too many connections": "more connections at once than it may have",
	"too fast":             "more new connections a second than it may make",
	"rate":                 "more traffic than it may send",
	"forged source":        "not from the address that it was given",
	"ipv6":                 "IPv6 is off inside",
	"redirected":           "led elsewhere by a rule of the host",
	"local name":           "a name of the local network",
	"unsupported query":    "a question about names that is not answered",
	"too many queries":     "more questions about names than it may ask",
	"could not be opened":  "its addresses could not be opened",
}

// network is what the page of a sandbox tells about it. What cannot be read is left out: the record has it.
func (v *visit) network(b workspace.Sandbox) views.Network {
	n := views.Network{Mode: modeWords(b.Network.Mode)}
	if b.Network.Mode == sandbox.NetworkAllowList {
		for _, a := range b.Network.Allow {
			n.Allow = append(n.Allow, display(a))
		}
	}
	if b.Status == sandbox.Running && v.mayNetwork(b) {
		n.Change = v.base() + "/sandboxes/" + string(b.ID) + "/network"
	}
	list, err := v.s.o.Service.Denials(v.ctx(), v.actor, string(b.ID))
	if err != nil {
		v.s.log.Warn("list refused attempts for the page", "request_id", v.requestID(), "cause", err)
	}
	for i, d := range list {
		if i == deniedOnPage {
			n.More = len(list) - i
			break
		}
		line := views.DeniedLine{Where: display(short(d.Where(), maxWhere)), Why: cmp.Or(whyWords[d.Why], display(d.Why)), Last: v.s.when(d.Last)}
		if d.Count > 1 {
			line.Count = fmt.Sprintf("%d times", d.Count)
		}
		n.Denied = append(n.Denied, line)
	}
	return n
}

// mayNetwork tells whether the form is of any use; the service judges what is asked for.
func (v *visit) mayNetwork(b workspace.Sandbox) bool {
	return v.actor.May(auth.SandboxesManage) || v.actor.May(auth.SandboxesRun) && b.Mine
}

// networkForm asks for another network.
func (s *Server) networkForm(v *visit) error {
	b, err := s.o.Service.Sandbox(v.ctx(), v.actor, v.Param("id"))
	if err != nil {
		return err
	}
	return v.renderForm(http.StatusOK, v.networkPage(b, b.Network))
}

func (v *visit) networkPage(b workspace.Sandbox, p sandbox.NetworkPolicy) views.NetworkForm {
	at := v.base() + "/sandboxes/" + string(b.ID)
	f := views.NetworkForm{
		Shell: v.shell("Network", "sandboxes"), Heading: "Network of “" + sandboxName(b) + "”", Action: at + "/network", Cancel: at,
		Words: []string{"It holds at once; connections that it does not allow end. The host, private addresses and other sandboxes are never reached."},
		Mode:  ui.Field{Name: "mode", Label: "May reach"}, Modes: v.modeChoices(cmp.Or(p.Mode, sandbox.NetworkNone)),
		Allow: ui.Field{Name: "allow", Label: "List of destinations", Value: strings.Join(p.Allow, "\n"), Hint: allowHint},
	}
	if !v.actor.May(auth.SandboxesManage) {
		f.Words = append(f.Words, "You may take from it. To add needs sandboxes:manage.")
	}
	return f
}

func (s *Server) networkChange(v *visit) error {
	b, err := s.o.Service.Sandbox(v.ctx(), v.actor, v.Param("id"))
	if err != nil {
		return err
	}
	p := networkOf(v)
	_, err = s.o.Service.UpdateSandbox(v.ctx(), v.actor, string(b.ID), workspace.SandboxPatch{Network: &p})
	if sentence, fields, ok := wrongIn(err); ok {
		f := v.networkPage(b, p)
		f.Wrong, f.Mode.Wrong, f.Allow.Wrong = sentence, fields["network.mode"], fields["network.allow"]
		f.Allow.Value = v.FormValue("allow")
		return v.renderForm(http.StatusUnprocessableEntity, f)
	}
	if err != nil {
		return err
	}
	return v.goTo(v.base() + "/sandboxes/" + string(b.ID) + "?done=network")
}

// networkOf reads a form. The list may be parted by lines, spaces or commas.
func networkOf(v *visit) sandbox.NetworkPolicy {
	return sandbox.NetworkPolicy{
		Mode:  sandbox.NetworkMode(v.FormValue("mode")),
		Allow: strings.FieldsFunc(v.FormValue("allow"), func(r rune) bool { return strings.ContainsRune(" \t\r\n,;", r) }),
	}
}
