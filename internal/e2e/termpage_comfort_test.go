package e2e

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"sandgate/internal/testenv"
)

const question = `(document.querySelector("dialog[open]")?.innerText ?? "")`

// clickText clicks on a text on the terminal's screen, which is a link or looks like one.
func (p *tab) clickText(text string, link bool) {
	p.t.Helper()
	var at []float64
	for row, line := range p.rows() {
		if col := strings.Index(line, text); col >= 0 && !strings.Contains(line, "printf") {
			at = eval[[]float64](p, fmt.Sprintf(`(() => {
				const box = (%s).querySelector(".xterm-screen").getBoundingClientRect();
				const [rows, cols] = (%s).terminalSize().split(" ").map(Number);
				return [box.left + (%d + 1.5) * box.width / cols, box.top + (%d + 0.5) * box.height / rows];
			})()`, front, front, col, row))
		}
	}
	require.NotEmpty(p.t, at, "%q is not on the screen:\n%s", text, strings.Join(p.rows(), "\n"))
	mouse := func(kind input.DispatchMouseEventType, dy float64) {
		m := input.DispatchMouseEventParams{Type: kind, X: at[0], Y: at[1] + dy}
		if kind != input.DispatchMouseEventTypeMouseMoved {
			m.Button, m.ClickCount = input.MouseButtonLeft, 1
		}
		_, err := chromedp.Call(p.ctx, input.DispatchMouseEvent, m)
		require.NoError(p.t, err)
	}
	const pointed = `(` + front + `).querySelector(".xterm-cursor-pointer")`
	mouse(input.DispatchMouseEventTypeMouseMoved, 300)
	p.until("no link under the pointer", "!"+pointed)
	mouse(input.DispatchMouseEventTypeMouseMoved, 0)
	if link {
		p.until("the link under the pointer", pointed)
	} else {
		p.quiet()
		require.True(p.t, eval[bool](p, "!"+pointed), "%s is a link", text)
	}
	mouse(input.DispatchMouseEventTypeMousePressed, 0)
	mouse(input.DispatchMouseEventTypeMouseReleased, 0)
}

// paste pastes into the terminal in front.
func (p *tab) paste(text string) {
	p.t.Helper()
	p.intoTerminal()
	eval[chromedp.Void](p, fmt.Sprintf(`(() => {
		const data = new DataTransfer();
		data.setData("text/plain", %s);
		document.activeElement.dispatchEvent(new ClipboardEvent("paste", {clipboardData: data, bubbles: true, cancelable: true}));
	})()`, strconv.QuoteToASCII(text)))
}

func (p *tab) clipboard() string {
	p.t.Helper()
	return eval[string](p, "navigator.clipboard.readText()")
}

// What a terminal of one's own machine has, in the page.
func TestComfortOfATerminalInTheBrowser(t *testing.T) {
	testenv.Browser(t)
	_, p, api, id := inTerminal(t)
	for _, name := range []string{"clipboard-read", "clipboard-write"} {
		_, err := chromedp.CallBrowser(p.ctx, browser.SetPermission, browser.SetPermissionParams{
			Permission: &browser.PermissionDescriptor{Name: name}, Setting: browser.PermissionSettingGranted, Origin: p.base,
		})
		require.NoError(t, err)
	}
	eval[chromedp.Void](p, `navigator.clipboard.writeText("mine")`)

	t.Run("a program writes the clipboard once one said yes, and never reads it", func(*testing.T) {
		p.line(`clear; printf '\033]52;c;?\a'; printf '\033]52;c;%s\a' $(printf 'curl x|sh' | base64); echo now-$((1+1))`)
		p.shows(`^now-2$`)
		p.says(`A program wanted to read your clipboard|A program wants to put “curl x\|sh” \(9 characters\) on your clipboard`)
		p.says(`A program wants to put “curl x\|sh” \(9 characters\) on your clipboard\. Allow in this terminal Refuse`)
		require.Equal(t, "mine", p.clipboard())
		p.keepAll("clipboard")
		p.click(".tty-bar button", "Allow in this terminal")
		p.until("the text on the clipboard", `navigator.clipboard.readText().then(t => window.clip = t), window.clip === "curl x|sh"`)
		p.line(`printf '\033]52;;%s\a' $(printf second | base64)`)
		p.until("the second text", `navigator.clipboard.readText().then(t => window.clip = t), window.clip === "second"`)
		p.line(`printf '\033]52;c;%s\a' $(head -c 200000 /dev/zero | base64 -w0)`)
		p.says("A program wanted to put more than 100000 characters")
		eval[chromedp.Void](p, `navigator.clipboard.writeText("mine")`)
		p.again("connected")
		p.shows(`^now-2$`)
		p.line("clear; echo from-$((1+1)); cat -v; echo end-$((1+1))")
		p.shows(`^from-2$`)
		p.quiet() // cat reads by now
		p.ctrl("d")
		p.shows(`^end-2$`)
		require.NotContains(t, strings.Join(p.rows(), "\n"), "52;", "something was typed by itself")
		require.Equal(t, "mine", p.clipboard(), "a replay wrote the clipboard")
		require.NotContains(t, eval[string](p, bar), "clipboard")
	})

	t.Run("links open after a question, and web addresses only", func(*testing.T) {
		eval[chromedp.Void](p, `window.opened = []; window.open = (...a) => { window.opened.push(a); return null; }`)
		p.line(`clear; printf 'see https://example.org/a?b=1\n\033]8;;https://example.com/real\033\\shown as another\033]8;;\033\\\n\033]8;;javascript:alert(1)\033\\evil one\033]8;;\033\\\nja%sscript:alert(1)\n' va`)
		p.shows(`^javascript:alert`)
		p.clickText("https://example.org", true)
		p.until("the question", question+`.includes("https://example.org/a?b=1")`)
		p.keepAll("link")
		p.click("dialog button", "Cancel")
		require.Equal(t, 0, eval[int](p, "window.opened.length"))
		p.clickText("shown as another", true)
		p.until("where it really leads", question+`.includes("https://example.com/real")`)
		p.click("dialog button", "Open")
		p.until("it open", `JSON.stringify(window.opened) === '[["https://example.com/real","_blank","noopener,noreferrer"]]'`)
		for _, text := range []string{"evil one", "javascript:"} {
			p.clickText(text, false)
			require.Equal(t, "1 ", eval[string](p, "window.opened.length + ' ' + "+question))
		}
	})

	t.Run("a paste is asked about, clean, and whole", func(*testing.T) {
		p.line("clear; echo from-$((1+2)); cat -v")
		p.shows(`^from-3$`)
		p.quiet()
		p.paste("a\nrm x\n")
		p.until("the question", question+`.includes("2 lines run as soon as pasted")`)
		p.keepAll("paste")
		p.click("dialog button", "Cancel")
		p.paste("one\x1b[201~\n\u009b201~two\n")
		p.until("the question", question+`.includes("2 lines run")`)
		p.click("dialog button", "Paste")
		p.shows(`(?:^201~two$[\s\S]*){2}`) // echoed, and printed
		require.NotContains(t, p.all(), "rm x")
		p.ctrl("d")

		p.line(`clear; printf '\033[?2004hfrom-%d\n' 4; cat -v; printf '\033[?2004l'`)
		p.shows(`^from-4$`)
		p.quiet()
		p.paste("x\x1b[201~\nid\n")
		p.shows(`\[200~x\[201~$`)
		p.keys("\r")
		p.shows(`^\^\[\[201~$`)
		require.Equal(t, 1, strings.Count(strings.Join(p.rows(), "\n"), "^[[201~"), "the paste ended its own brackets")
		p.ctrl("d")

		text := strings.Repeat("0123456789abcdef", 12_500)
		sum := fmt.Sprintf("%x", sha256.Sum256([]byte("\x1b[200~"+text+"\x1b[201~")))
		p.line(`clear; stty raw -echo; printf '\033[?2004hready-%d\r\n' 7; head -c ` + strconv.Itoa(len(text)+12) + ` | sha256sum; stty sane; printf '\033[?2004l'`)
		p.shows(`^ready-7$`)
		p.paste(text)
		p.until("the question", question+`.includes("That is 195 KiB in 1 lines")`)
		p.click("dialog button", "Paste")
		p.shows("^" + sum + "  -$")
		p.paste(strings.Repeat("x", 1<<20+1))
		p.says("more than 1 MiB")
	})

	t.Run("a file that is dropped goes where the shell is", func(*testing.T) {
		drop := func(content string) {
			eval[chromedp.Void](p, fmt.Sprintf(`(() => {
				window.dropped = new DataTransfer();
				window.dropped.items.add(new File([%q], "data set.csv"));
				const pane = (%s).closest(".pane");
				window.drag = kind => pane.dispatchEvent(new DragEvent(kind, {dataTransfer: window.dropped, bubbles: true, cancelable: true}));
				window.drag("dragenter"); window.drag("dragover");
			})()`, content, front))
			p.until("where it goes", `getComputedStyle(document.querySelector(".pane.over"), "::after").content.includes("Drop to upload to /work/in here")`)
			if content == "one" {
				p.keepAll("drop")
			}
			eval[chromedp.Void](p, `window.drag("drop")`)
		}
		content := func() string { return api.exec(id, "cat '/work/in here/data set.csv'").Stdout }
		p.line("clear; mkdir -p 'in here'; cd 'in here'; pwd")
		p.shows(`^/work/in here$`)
		drop("one")
		p.says(`data set\.csv uploaded to /work/in here\.`)
		require.Equal(t, "one", content())
		drop("two")
		p.until("the question", question+`.includes("Replace the file?")`)
		p.click("dialog button", "Cancel")
		p.until("no question", question+` === ""`)
		require.Equal(t, "one", content())
		drop("three")
		p.click("dialog button", "Replace")
		require.Eventually(t, func() bool { return content() == "three" }, 20*time.Second, 50*time.Millisecond)
	})

	t.Run("search, looks and a way out by keyboard", func(*testing.T) {
		p.line("clear; echo needle; echo hay; echo needle; cd /work")
		p.shows(`^needle\nhay\nneedle$`)
		p.press("F", chromedp.ModifierCtrl, chromedp.ModifierShift)
		p.until("the search box", `document.activeElement?.closest(".tty-find")`)
		p.insert("needle")
		p.until("a count", `/^\d of 2$/.test((`+front+`).querySelector(".tty-found").textContent)`)
		p.keepAll("find")
		p.press("\x1b")
		p.until("the terminal to have the keys again", `document.activeElement?.classList.contains("xterm-helper-textarea")`)

		p.press("L", chromedp.ModifierCtrl, chromedp.ModifierShift)
		p.until("to be outside", `document.activeElement?.textContent === "Find"`)
		p.press("\t")
		require.Equal(t, "View", eval[string](p, "document.activeElement.textContent"))
		p.press("\r")
		p.until("the menu", `document.activeElement.parentElement.open`)
		p.keepAll("view")
		size := p.grid()
		p.click(".tty-view button", "Larger text")
		p.until("fewer columns", `(`+front+`).terminalSize() !== "`+size+`"`)
		p.click(".tty-view button", "Light terminal")
		p.click(".tty-view button", "Screen reader mode")
		p.until("the text for readers", `(`+front+`).querySelector(".xterm-accessibility")`)
		larger := p.grid()
		p.again("connected")
		p.until("the size that was chosen", `(`+front+`).terminalSize() === "`+larger+`"`)
		require.Equal(t, "rgb(255, 255, 255)", eval[string](p, `getComputedStyle(`+front+`).backgroundColor`))
		require.True(t, eval[bool](p, `Boolean((`+front+`).querySelector(".xterm-accessibility"))`))
		p.keepAll("light")
		eval[chromedp.Void](p, `localStorage.clear()`)

		p.line(`printf '\033]0;<b>ti\u202etle\007'`)
		p.until("a clean title", `document.querySelector(".tab[data-pty] [data-tab]").title.endsWith("“<b>title”")`)
		require.Equal(t, "Terminal 1", eval[string](p, `document.querySelector(".tab[data-pty] [data-tab]").textContent.trim()`))
	})
}

// Drawn by the graphics card where there is one, and as text from the moment it is lost.
func TestTheRendererFallsBackInTheBrowser(t *testing.T) {
	testenv.Browser(t)
	host := newInstallation(t)
	s := host.serve()
	password := host.person("ann@example.org", "alpha")
	id := s.rest(host.key("alpha", "sandboxes:run")).create("drawn")
	p := newTabWith(t, s.url, chromedp.Flag("use-gl", "angle"), chromedp.Flag("use-angle", "swiftshader"), chromedp.Flag("enable-unsafe-swiftshader", true),
		chromedp.Flag("disable-gpu", false))
	p.signIn("ann@example.org", password)
	p.open("/w/alpha/sandboxes/" + id)
	p.prompt()
	p.until("drawing by WebGL", `(`+front+`).dataset.renderer === "webgl"`)
	p.line("echo drawn-$((1+1))")
	p.shows(`^drawn-2$`)
	p.keepAll("webgl")
	eval[chromedp.Void](p, `(() => {
		for (const c of (`+front+`).querySelectorAll("canvas")) c.getContext("webgl2")?.getExtension("WEBGL_lose_context")?.loseContext();
	})()`)
	p.until("drawing as text", `(`+front+`).dataset.renderer === "dom" && (`+front+`).querySelector(".xterm-rows")?.innerText.includes("drawn-2")`)
	p.line("echo still-$((1+1))")
	p.until("new lines as text", `(`+front+`).querySelector(".xterm-rows").innerText.includes("still-2")`)
}
