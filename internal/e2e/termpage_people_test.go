package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"sandgate/internal/testenv"
)

// grid is the size of the terminal in front, as "ROWS COLS".
func (p *tab) grid() string {
	p.t.Helper()
	return eval[string](p, `(`+front+`).terminalSize()`)
}

// shellSize asks the shell in front for the size of its terminal. n tells one answer from the one before.
func (p *tab) shellSize(n int) string {
	p.t.Helper()
	p.line(fmt.Sprintf("clear; echo $(stty size) at %d", n))
	return strings.TrimSuffix(p.shows(fmt.Sprintf(`^\d+ \d+ at %d$`, n)), fmt.Sprintf(" at %d", n))
}

// stty asks the shell in front for the size of its terminal until it is want.
func (p *tab) stty(want func() string) {
	p.t.Helper()
	last := ""
	for n, deadline := 1, time.Now().Add(time.Minute); time.Now().Before(deadline); n++ {
		if last = p.shellSize(n); last == want() {
			return
		}
	}
	require.Fail(p.t, "the size of the terminal is not the driver's", "it is %s, the page says %s, wanted %s\n%s\n%s",
		last, p.grid(), want(), eval[string](p, bar), p.all())
}

// Two people and a key at one terminal: who is there is seen, one types, and the keyboard is asked for, handed over and taken.
func TestSeveralAtOneTerminalInTheBrowser(t *testing.T) {
	testenv.Browser(t)
	s, ann, api, id := inTerminal(t)
	const annName, bobName = "ann@example.org", "bob@example.org"
	password := s.colleague(bobName, "alpha", "analyst", "sandboxes:run")
	bob := newTab(t, s.url)
	bob.signIn(bobName, password)
	bob.open("/w/alpha/sandboxes/" + id)
	bob.role("viewer")
	bob.says(`Watching — ` + annName + ` types.* Ask to type Take over`)
	ann.says(`You type — watching: ` + bobName)
	ann.until("the name in the list of terminals", `document.querySelector(".tab .who")?.textContent === "`+bobName+`"`)

	// Whoever may type names a terminal, from the keyboard too; everybody sees it at once, as text.
	const name = "build <i>7</i> ☃"
	ann.focus(".tab[data-pty] [data-tab]")
	ann.press("\u0802") // F2
	ann.until("the question", `document.querySelector("dialog[open] input[name=name]")?.value === "Terminal 1"`)
	ann.keepAll("rename")
	ann.fill("dialog input[name=name]", name)
	ann.press("\r")
	for _, p := range []*tab{ann, bob} {
		p.until("the new name", fmt.Sprintf(`document.querySelector(".tab[data-pty] [data-tab]").firstChild.data.trim() === %q && !document.querySelector("dialog[open]")`, name))
	}
	require.Contains(t, eval[string](bob, `document.querySelector(".xterm-helper-textarea").getAttribute("aria-label")`), name)

	// A viewer sees all and changes nothing.
	ann.line("echo $((40+2))")
	bob.shows(`^42$`)
	before := ann.grid()
	bob.size(900, 600)
	bob.keys("x")
	bob.says("You are watching. Ask to type, or take over")
	bob.keepAll("viewer")
	ann.stty(func() string { return before })
	require.Equal(t, before, bob.grid(), "a viewer's terminal has the driver's size")

	// Asked and handed over: the other one types, and its window counts.
	bob.click(".tty-bar button", "Ask to type")
	bob.says("Stop asking")
	ann.says(bobName + ` asks to type here\. Hand over Decline`)
	ann.keepAll("asked")
	ann.click(".tty-bar button", "Hand over")
	bob.role("driver")
	ann.role("viewer")
	bob.size(1000, 700)
	bob.stty(bob.grid)
	require.NotEqual(t, before, bob.grid())

	// Asked and declined.
	ann.click(".tty-bar button", "Ask to type")
	bob.says(annName + " asks to type here")
	bob.click(".tty-bar button", "Decline")
	ann.says(bobName + " keeps the keyboard for now")
	ann.role("viewer")

	// Taken by right; a key that may only look is never offered the keyboard.
	ann.click(".tty-bar button", "Take over")
	ann.role("driver")
	bob.says(annName + " types now; you watch")
	reader := s.rest(s.key("alpha", "sandboxes:read"))
	var list []struct{ ID string }
	api.ok("GET", "/v1/sandboxes/"+id+"/ptys", nil, &list)
	reader.view(id, list[0].ID, "")
	ann.click(".tty-people summary", "3 here")
	ann.until("the list of people", `[...document.querySelectorAll(".tty-people li")].filter(e => e.getClientRects().length).length === 3`)
	ann.keepAll("people")
	lines := eval[[]string](ann, `[...document.querySelectorAll(".tty-people li")].map(e => e.innerText.replace(/\s+/g, " ").trim())`)
	require.ElementsMatch(t, []string{annName + " (you) types", bobName + " watches Hand over", "e2e may only watch"}, lines)
	ann.click(".tty-people button", "Hand over")
	bob.role("driver")

	// Another window of one's own gives way to the first key, and the key is not lost.
	second := bob.beside()
	second.open("/w/alpha/sandboxes/" + id)
	second.role("viewer")
	second.says("you type in another window")
	second.line("echo own-$((1+1))")
	second.shows(`^own-2$`)
	second.role("driver")
	bob.role("viewer")

	// A reload finds the seat again, although somebody who may type was there meanwhile.
	second.again("connected")
	second.role("driver")

	// A window that nobody sees does not size the terminal.
	hide := `Object.defineProperty(document, "visibilityState", {configurable: true, get: () => %q}); document.dispatchEvent(new Event("visibilitychange"))`
	eval[chromedp.Void](second, fmt.Sprintf(hide, "hidden"))
	size := second.shellSize(0) // what was on its way when it was hidden has come before this is typed
	second.size(700, 500)
	second.stty(func() string { return size })
	eval[chromedp.Void](second, fmt.Sprintf(hide, "visible"))
	second.stty(func() string {
		if now := second.grid(); now != size {
			return now
		}
		return "another size"
	})

	// Signed out: everything of theirs closes within two seconds.
	second.open("/account")
	second.click("button", "Sign out")
	bob.untilWithin(3*time.Second, "the sign-in page", `location.pathname.startsWith("/sign-in")`)
	require.Contains(t, eval[string](bob, "location.search"), "next=")
	ann.role("driver")
	ann.until("nobody else in the list of terminals but the key", `document.querySelector(".tab .who")?.textContent === "e2e"`)
}
