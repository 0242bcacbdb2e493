package e2e

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"sandgate/internal/testenv"
)

// screen is what the terminal in front shows, a line each.
const screen = `[...document.querySelectorAll(".xterm")].filter(e => e.getClientRects().length).flatMap(
	e => [...e.querySelectorAll(".xterm-rows > div")].map(r => r.textContent.trimEnd())).join("\n")`

// sees waits until the terminal shows a line that matches.
func (p *tab) sees(pattern string) string {
	p.t.Helper()
	p.until("a terminal line "+pattern, fmt.Sprintf("new RegExp(%q, 'm').test(%s)", pattern, screen))
	return regexp.MustCompile("(?m)" + pattern).FindString(eval[string](p, screen))
}

// line types a line into the terminal in front.
func (p *tab) line(text string) {
	p.t.Helper()
	p.focus(".xterm-helper-textarea")
	p.press(text + "\r") // key by key, as fingers do
}

// setUp follows the first link and ends on the form for a sandbox.
func (p *tab) setUp(link, email, workspace string) {
	p.t.Helper()
	p.open(link)
	p.keepAll("setup")
	p.fill("input[name=email]", email)
	p.fill("input[name=password]", "green umbrella on the 7th floor")
	require.False(p.t, eval[bool](p, `document.querySelector("input[name=run]").checked`), "the box must not be ticked already")
	p.click("label.tick", "run code")
	p.fill("input[name=workspace]", workspace)
	p.click("button", "Create the workspace")
	p.until("the form for a sandbox", `location.pathname.endsWith("/sandboxes/new")`)
}

// create fills that form and ends on the sandbox's page with a terminal.
func (p *tab) create(label string) (id string) {
	p.t.Helper()
	p.fill("input[name=label]", label)
	p.click("button", "Create sandbox")
	p.until("the sandbox's page", `/\/sandboxes\/sb[a-z0-9]{20}$/.test(location.pathname)`)
	id = eval[string](p, `location.pathname.split("/").pop()`)
	p.terminal()
	return id
}

// terminal waits for the prompt in the terminal that opens by itself.
func (p *tab) terminal() {
	p.t.Helper()
	p.sees(`[#$] ?$`)
}

// From the first link to an empty list, as one person does it in one sitting.
func TestFirstHourInTheBrowser(t *testing.T) {
	testenv.Browser(t)
	host := newInstallation(t)
	s := host.serve()
	p := newTab(t, s.url)
	p.setUp(s.setup, "ann@example.org", "Research")
	p.keepAll("new-sandbox")
	id := p.create("churn notebook")
	list := p.beside()
	list.open(strings.TrimSuffix(eval[string](p, "location.pathname"), "/"+id))
	list.until("the sandbox in the list", fmt.Sprintf(`document.querySelector("#row-%s")`, id))

	terminalInTheBrowser(p)
	filesInTheBrowser(p)

	p.line(`mkdir -p notebooks && cp /usr/lib/os-release . && printf 'month,churn\n2026-09,0.031\n2026-10,0.027\n' >churn.csv; clear`)
	p.line("uname -sr; python --version; ls -l; cat churn.csv")
	p.sees(`^Python 3`)
	p.click("button[data-refresh-files]", "")
	p.until("the table among the files", `document.querySelector("#files").innerText.includes("churn.csv")`)
	if path := os.Getenv("SANDGATE_SCREENSHOT"); path != "" {
		require.NoError(t, os.WriteFile(path, p.picture(), 0o644))
	}
	p.keepAll("sandbox")
	list.keepAll("sandboxes")

	killInTheBrowser(s, p, list, id)

	p.click("nav a", "Activity")
	for _, action := range []string{"sandbox.create", "terminal.open", "file.write", "sandbox.kill"} {
		p.until(action+" on record", fmt.Sprintf(`[...document.querySelectorAll("td code")].some(e => e.textContent === %q)`, action))
	}
	require.NotContains(t, eval[string](p, `document.querySelector("main").innerText`), "failed", "in an hour in which nothing failed")
	p.keepAll("activity")
	require.Contains(t, host.run("audit", "verify"), "the chain holds")
}

// terminalInTheBrowser computes, asks for its device, interrupts, and is resized.
func terminalInTheBrowser(p *tab) {
	t := p.t
	p.line("echo $((6*7))")
	p.sees(`^42$`)
	p.line("tty")
	p.sees(`^/dev/pts/\d+$`)
	p.line("bash -c 'echo now-$((1+1)); exec sleep 1000'")
	p.sees(`^now-2$`) // it has the terminal, so that Ctrl-C is its own
	p.press("c", chromedp.ModifierCtrl)
	p.line("echo ended-$?")
	p.sees(`^ended-130$`)
	p.line("clear; stty size")
	before := p.sees(`^\d+ \d+$`)
	p.size(1100, 700)
	require.Eventually(t, func() bool {
		p.line("clear; stty size")
		now := p.sees(`^\d+ \d+$`)
		var rows, cols int
		_, err := fmt.Sscan(now, &rows, &cols)
		drawn := eval[int](p, `[...document.querySelectorAll(".xterm")].find(e => e.getClientRects().length).querySelectorAll(".xterm-rows > div").length`)
		return err == nil && now != before && rows == drawn
	}, 60*time.Second, 300*time.Millisecond, "the size never follows")
	p.size(1440, 900)
	p.line("pip --version && python -c 'print(\"py\"+\"thon\")'; echo $LANG")
	p.sees(`^python$`)
	p.sees(`^C\.UTF-8$`)
}

// killInTheBrowser kills the sandbox on its page and looks for it everywhere.
func killInTheBrowser(s *server, p, list *tab, id string) {
	t, host := p.t, s.installation
	pageURL := eval[string](p, "location.pathname")
	p.click("a", "Kill…")
	p.until("the question", `document.querySelector("dialog[open] [data-typed]")`)
	p.fill("dialog [data-typed]", eval[string](p, `document.querySelector("dialog [data-typed]").dataset.typed`))
	p.click("dialog button", "Kill")
	p.until("to be elsewhere", fmt.Sprintf("location.pathname !== %q", pageURL))
	gone := fmt.Sprintf(`!document.querySelector("#row-%s")`, id)
	p.until("the list without it", gone)
	list.until("the other tab's list without it", gone)
	require.Equal(t, 404, eval[int](p, fmt.Sprintf("fetch(%q).then(r => r.status)", pageURL)))
	require.NotContains(t, host.run("sandbox", "ls"), id)
	code, _ := s.rest(host.key("research", "sandboxes:run")).do("GET", "/v1/sandboxes/"+id, nil)
	require.Equal(t, http.StatusNotFound, code)
	host.nothingLeft()
}

// filesInTheBrowser uploads, looks, downloads, renames and deletes on the page of a sandbox.
func filesInTheBrowser(p *tab) {
	t := p.t
	entry := func(name string) string {
		return fmt.Sprintf(`[...document.querySelectorAll("#files li.entry")].some(e => e.querySelector("bdi").textContent.trim() === %q)`, name)
	}
	menu := func(name, item string) {
		summary := fmt.Sprintf(`#files summary[aria-label=%q]`, "Actions for "+name)
		if !eval[bool](p, fmt.Sprintf("document.querySelector(%q).parentElement.open", summary)) {
			p.click(summary, "")
		}
		p.click("#files details[open] .menu a", item)
	}

	big := filepath.Join(t.TempDir(), "big.bin")
	sum := randomFile(t, big, 50<<20)
	p.upload("input[data-upload]", big)
	p.untilWithin(time.Minute, "the uploaded file", entry("big.bin"))
	p.line("clear; sha256sum big.bin")
	p.sees("^" + sum + "  big\\.bin$")
	menu("big.bin", "Download")
	require.Equal(t, sum, fileSum(t, p.downloaded("big.bin")))

	menu("big.bin", "Rename")
	p.until("the dialog", `document.querySelector("dialog[open] input.in")`)
	p.fill("dialog input.in", "renamed ☃.bin")
	p.click("dialog button", "Rename")
	p.until("the new name", entry("renamed ☃.bin")+" && !"+entry("big.bin"))

	menu("renamed ☃.bin", "Delete")
	p.until("the question", `document.querySelector("dialog[open] form")`)
	p.click("dialog button", "Delete")
	p.until("the file gone", "!"+entry("renamed ☃.bin"))

	p.click(`#files a[aria-label="New folder"]`, "")
	p.until("the dialog", `document.querySelector("dialog[open] input.in")`)
	p.fill("dialog input.in", "data")
	p.click("dialog button", "Create")
	p.until("the folder", entry("data"))
	p.click("#files li.entry a", "data")
	p.until("the folder open", `[...document.querySelectorAll("#files .crumbs a")].at(-1).textContent.trim() === "data"`)
	table := filepath.Join(t.TempDir(), "people.csv")
	require.NoError(t, os.WriteFile(table, []byte("name,age\nAnn,41\n<b>Bob</b>,7\n"), 0o600))
	p.upload("input[data-upload]", table)
	p.until("the table", entry("people.csv"))
	p.click("#files li.entry a", "people.csv")
	p.until("the table's head", `[...document.querySelectorAll("#preview th, #preview td")].some(e => e.textContent.trim() === "<b>Bob</b>")`)
	p.keep("preview")
	p.click(`#files a[aria-label^="Download this folder"]`, "")
	p.downloaded("data.zip")
	p.click("a[data-close-preview]", "")
	p.click(`#files .crumbs a:nth-last-of-type(2)`, "")
	p.until("the folder above", entry("data"))
}

func randomFile(t *testing.T, path string, size int64) string {
	t.Helper()
	f, err := os.Create(path)
	require.NoError(t, err)
	_, err = io.CopyN(f, rand.Reader, size)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	return fileSum(t, path)
}

func fileSum(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	h := sha256.New()
	_, err = io.Copy(h, f)
	require.NoError(t, err)
	return fmt.Sprintf("%x", h.Sum(nil))
}

// Losing a right closes what needed it within two seconds.
func TestLosingARightInTheBrowser(t *testing.T) {
	testenv.Browser(t)
	host := newInstallation(t)
	s := host.serve()
	p := newTab(t, s.url)
	p.setUp(s.setup, "ann@example.org", "Research")
	id := p.create("short")
	p.line("echo $((40+2))")
	p.sees(`^42$`)
	const limit = 3 * time.Second // two, and what the test itself takes

	// An administrator may always be one, and may yet not run code: the right is taken on People & keys, in another tab.
	people := p.beside()
	people.open("/w/research/people")
	people.keepAll("people")
	people.click("a", "Take it back")
	people.until("the question", `document.querySelector("dialog[open] form")`)
	people.click("dialog button", "Take")
	p.untilWithin(limit, "that the terminal is closed", `/You lost the permission to use this terminal/.test(document.querySelector("section.work").innerText)`)
	p.line("touch /work/typed")
	code := eval[int](p, `fetch(location.pathname + "/ptys", {method: "POST"}).then(r => r.status)`)
	require.Equal(t, http.StatusForbidden, code)
	p.keep("right-lost")

	// Signed out elsewhere: the page that is still open says so.
	people.open("/account")
	people.click("button", "Sign out")
	p.untilWithin(limit, "that nobody is signed in", `/signed out|sign in/i.test(document.body.innerText)`)
	p.keep("signed-out")
	p.open("/w/research/sandboxes/" + id)
	p.until("the sign-in page", `document.querySelector("input[name=password]")`)
	p.keepAll("sign-in")

	api := s.rest(host.key("research", "sandboxes:run"))
	code, _ = api.do("GET", "/v1/sandboxes/"+id+"/files/stat?path=/work/typed", nil)
	require.Equal(t, http.StatusNotFound, code, "somebody without the right typed")
}
