package e2e

import (
	"testing"

	"sandgate/internal/testenv"
)

// By the buttons: take one, start from it, fork, delete it. A shell goes on in each.
func TestSnapshotsInTheBrowser(t *testing.T) {
	testenv.Browser(t)
	host := newInstallation(t)
	s := host.serve()
	p := newTab(t, s.url)
	p.setUp(s.setup, "ann@example.org", "Research")
	p.open("/w/research/snapshots")
	p.keepAll("none")
	p.open("/w/research/sandboxes/new")
	origin := p.create("churn notebook")
	p.terminal()
	p.line("MARK=kept; echo is-$MARK")
	p.sees(`^is-kept$`)
	p.keepAll("sandbox")

	p.click("a", "Snapshot…")
	p.until("the question", `document.querySelector("dialog[open] form input[name=name]")`)
	p.fill("dialog input[name=name]", "with the data loaded")
	p.keepAll("take")
	p.click("dialog button", "Take it")
	p.until("the list", `location.pathname.endsWith("/snapshots") && document.querySelectorAll("tbody tr").length == 1`)
	p.keepAll("list")
	p.click("a", "Start…")
	p.until("the question", `document.querySelector("dialog[open] form input[name=label]")`)
	p.keepAll("start")
	p.click("dialog button", "Start")
	p.until("another sandbox's page", `/\/sandboxes\/sb[a-z0-9]{20}$/.test(location.pathname) && !location.pathname.endsWith("`+origin+`")`)
	p.terminal()
	p.line("echo in-$MARK")
	p.sees(`^in-kept$`)
	p.keepAll("started")

	started := eval[string](p, "location.pathname")
	p.click("a", "Fork…")
	p.until("the question", `document.querySelector("dialog[open] form")`)
	p.click("dialog button", "Fork it")
	p.until("a third sandbox's page", `/\/sandboxes\/sb[a-z0-9]{20}$/.test(location.pathname) && location.pathname != "`+started+`"`)
	p.terminal()
	p.line("echo fork-$MARK")
	p.sees(`^fork-kept$`)

	// The list is live: what others take and delete shows by itself.
	p.open("/w/research/snapshots")
	p.until("the mark", `document.querySelector("[data-live-mark]").textContent == "live"`)
	api := s.rest(host.key("research", "sandboxes:run"))
	other := api.snapshot(origin)
	p.until("another row", `document.querySelectorAll("tbody tr").length == 2`)
	p.keepAll("live")
	api.ok("DELETE", "/v1/snapshots/"+other, nil, nil)
	p.until("one row", `document.querySelectorAll("tbody tr").length == 1`)
	p.click("a", "Delete…")
	p.until("the question", `document.querySelector("dialog[open] form")`)
	p.click("dialog button", "Delete it")
	p.until("an empty list", `document.querySelectorAll("tbody tr").length == 0 && document.body.textContent.includes("No snapshots yet")`)
}
