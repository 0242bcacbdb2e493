package e2e

import (
	"testing"

	"sandgate/internal/testenv"
)

// What a sandbox may reach is changed on its page while it runs, a wrong list is not lost, and what was refused shows there
// by itself.
func TestTheNetworkFormInTheBrowser(t *testing.T) {
	testenv.Browser(t)
	host := newInstallation(t)
	s := host.serve()
	p := newTab(t, s.url)
	p.setUp(s.setup, "ann@example.org", "Research")
	p.open("/w/research/sandboxes/new")
	p.create("crawler")
	p.terminal()
	section := `document.querySelector("#network").innerText`
	p.until("the usual network", section+`.includes("Public internet")`)

	p.click("#network a", "Change…")
	p.until("the form", `document.querySelector("dialog[open] select[name=mode]")`)
	eval[bool](p, `(document.querySelector("dialog[open] select[name=mode]").value = "allow-list", true)`)
	p.fill("dialog textarea[name=allow]", "example.org:443\nnot/a/network")
	p.click("dialog button", "Change")
	p.until("what is wrong, beside what was typed",
		`document.querySelector("dialog[open] form [aria-invalid=true]")?.value.includes("not/a/network")`)
	p.keepAll("network-wrong")
	p.fill("dialog textarea[name=allow]", "example.org:443")
	p.click("dialog button", "Change")
	p.until("the list on the page", `!document.querySelector("dialog[open]") && `+section+`.includes("example.org:443")`)

	p.terminal()
	p.line("curl -sS -m 5 http://10.1.2.3:8443/; echo curl-$?")
	p.sees(`^curl-7$`) // refused at once, no time-out
	p.until("the refused attempt", section+`.includes("10.1.2.3:8443")`)
	p.keepAll("network-refused")
}
