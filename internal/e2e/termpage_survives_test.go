package e2e

import (
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"sandgate/internal/testenv"
)

var shownTick = regexp.MustCompile(`(?m)^tick ([0-9]+)$`)

// shownTicks gives the last number on the page; they must have no gap and no repeat.
func (p *tab) shownTicks() int {
	p.t.Helper()
	last := 0
	for _, m := range shownTick.FindAllStringSubmatch(p.all(), -1) {
		n, err := strconv.Atoi(m[1])
		require.NoError(p.t, err)
		if last > 0 {
			require.Equal(p.t, last+1, n, "a gap or a repeat on the page:\n%s", p.all())
		}
		last = n
	}
	return last
}

func (p *tab) moreTicks() {
	p.t.Helper()
	p.shows("^tick " + strconv.Itoa(p.shownTicks()+3) + "$")
	p.shownTicks()
}

// A lost network, a server that is started again, and a sandbox that sleeps: the page says what is the matter, comes back by
// itself, and shows every line once.
func TestTheTerminalSurvivesInTheBrowser(t *testing.T) {
	testenv.Browser(t)
	host := newInstallation(t)
	line := newWire(t)
	s := host.serve("--hosts", line.at)
	line.leadTo(s.url)
	password := host.person("ann@example.org", "alpha")
	key := host.key("alpha", "sandboxes:run")
	api := s.rest(key)
	id := api.createPersistent("steady")
	p := newTab(t, "http://"+line.at)
	p.signIn("ann@example.org", password)
	p.open("/w/alpha/sandboxes/" + id)
	p.prompt()
	p.line(strings.TrimSpace(ticking))
	p.shows("^tick 3$")

	// The network goes away.
	line.sever(true)
	p.says(`The connection is lost\.( The last keys may not have arrived\.)? Trying again in \d+ s Try now`)
	require.Equal(t, "reconnecting", eval[string](p, "("+front+").dataset.state"))
	p.keepAll("lost")
	p.keys("x")
	p.says("Not connected: keys are not sent")
	line.sever(false)
	p.click(".tty-bar button", "Try now")
	p.state("connected")
	p.moreTicks()
	p.role("driver")

	// It swallows everything without a word. A key that nobody took is told of, not typed later.
	line.swallow(true)
	p.keys("z")
	p.state("reconnecting") // first: the bar may still say so of the time before
	p.says("The last keys may not have arrived")
	line.swallow(false)
	p.state("connected")
	p.moreTicks()
	require.NotContains(t, p.all(), "z")

	// The server is started anew, at another address behind the same wire.
	s.stop(syscall.SIGTERM)
	p.says(`The server is restarting\.|The connection is lost\.`)
	s = host.serve("--hosts", line.at)
	line.leadTo(s.url)
	api = s.rest(key)
	p.state("connected")
	p.moreTicks()

	// The sandbox sleeps, and wakes by a key.
	api.ok("POST", "/v1/sandboxes/"+id+"/suspend", nil, nil)
	p.says("The sandbox is suspended. It wakes by itself when you type")
	p.keepAll("suspended")
	seen := p.shownTicks()
	p.ctrl("z")
	p.shows(`Stopped`)
	p.until("a bar that says nothing of sleep", "!("+bar+").includes(\"suspended\")")
	require.GreaterOrEqual(t, p.shownTicks(), seen)
	require.Equal(t, "running", api.status(id))
}

// How a shell ends is said, and a new one comes only when somebody wants it.
func TestAnEndedShellInTheBrowser(t *testing.T) {
	testenv.Browser(t)
	s, p, api, id := inTerminal(t)
	terminals := func() int {
		var list []struct{ ID string }
		api.ok("GET", "/v1/sandboxes/"+id+"/ptys", nil, &list)
		return len(list)
	}
	// Modes that a program leaves behind must not be the next shell's.
	p.line(`printf '\033[?1000h\033[?1006h\033[?2004h\033[?1h\033[?25l'; exit 3`)
	p.state("exited")
	p.says(`The shell has exited with code 3\. New shell`)
	p.keepAll("exited")
	p.keys("\r\rls\r")
	require.Equal(t, 1, terminals(), "a shell started by itself")

	p.click(".tty-bar button", "New shell")
	p.prompt()
	require.Equal(t, 2, terminals())
	require.Equal(t, []string{"Terminal 1", "Terminal 2"}, eval[[]string](p, `[...document.querySelectorAll(".tab[data-pty] [data-tab]")].map(e => e.firstChild.textContent.trim())`))
	p.do(chromedp.Click(chromedp.CSS(".pane.term:not([hidden]) .xterm-screen"), chromedp.NodeVisible))
	p.line("echo $((6*7))")
	p.shows(`^42$`)
	require.NotRegexp(t, `\[<0|;\d+M`, p.all(), "mouse reports of the old modes")

	p.line(`kill -9 $$`)
	p.state("exited")
	p.says(`The shell was ended by KILL \(137\)\. New shell`)

	// After a reload the ended ones are there, told apart, and none has come by itself.
	p.again("exited")
	require.Equal(t, 2, terminals())
	require.Equal(t, 2, eval[int](p, `document.querySelectorAll(".tab[data-ended]").length`))
	p.click(".tab[data-ended] .x", "Close Terminal 2")
	p.until("one tab", `document.querySelectorAll(".tab[data-pty]").length === 1`)

	// One that runs is asked about.
	p.click("[data-new-pty]", "")
	p.prompt()
	p.click(".tab:not([data-ended]) .x", "Close Terminal 2")
	p.until("the question", `document.querySelector("dialog[open]")?.innerText.includes("Close Terminal 2?")`)
	p.click("dialog button", "Cancel")
	p.line("echo still-$((1+1))")
	p.shows(`^still-2$`)
	p.click(".tab:not([data-ended]) .x", "Close Terminal 2")
	p.click("dialog button", "Close it")
	p.until("the tab gone", `document.querySelectorAll(".tab[data-pty]").length === 1`)
	require.Eventually(t, func() bool { return terminals() == 1 }, 20*time.Second, 50*time.Millisecond)

	// Killed: said within two seconds.
	p.click("[data-new-pty]", "")
	p.prompt()
	s.run("sandbox", "kill", id)
	p.untilWithin(3*time.Second, "to be told", `!location.pathname.endsWith("`+id+`") || /gone/.test(`+bar+`)`)
}
