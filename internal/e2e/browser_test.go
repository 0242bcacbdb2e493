package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"sandgate/internal/testenv"
)

const patience = 20 * time.Second

// tab is one tab of a real browser, with a profile (cookies, storage) that no other tab has unless it is made by beside.
type tab struct {
	t         *testing.T
	ctx       context.Context
	base      string // URL of the server
	downloads string
	plain     bool // it runs no scripts

	mu       sync.Mutex
	troubles []string // uncaught exceptions and violations of the content security policy
}

// newTab starts a browser. When the test ends, whatever went wrong in the page fails it.
func newTab(t *testing.T, base string) *tab {
	t.Helper()
	// Terminals then draw text that a test can read.
	return newTabWith(t, base, chromedp.Flag("disable-3d-apis", true))
}

// newTabWith starts a browser with more flags.
func newTabWith(t *testing.T, base string, more ...chromedp.ExecAllocatorOption) *tab {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(testenv.Browser(t)),
		chromedp.NoSandbox, // tests run as root
		chromedp.Flag("disable-dev-shm-usage", false),
	)
	options = append(options, more...)
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	return (&tab{t: t, ctx: ctx, base: base, downloads: t.TempDir()}).start()
}

// beside opens another tab of the same person.
func (p *tab) beside() *tab {
	p.t.Helper()
	return (&tab{t: p.t, ctx: p.ctx, base: p.base, downloads: p.downloads}).start()
}

func (p *tab) start() *tab {
	p.t.Helper()
	var cancel context.CancelFunc
	p.ctx, cancel = chromedp.NewContext(p.ctx)
	p.t.Cleanup(cancel)
	require.NoError(p.t, chromedp.Listen(p.ctx, p.notice))
	_, err := chromedp.CallBrowser(p.ctx, browser.SetDownloadBehavior, browser.SetDownloadBehaviorParams{
		Behavior: browser.SetDownloadBehaviorBehaviorAllow, DownloadPath: p.downloads,
	})
	require.NoError(p.t, err)
	_, err = chromedp.Call(p.ctx, log.Enable, cdp.Empty{})
	require.NoError(p.t, err)
	p.size(1440, 900)
	p.t.Cleanup(func() {
		if p.t.Failed() {
			p.keep("failed")
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		require.Empty(p.t, p.troubles, "the page's console")
	})
	return p
}

func (p *tab) notice(event any) {
	var trouble string
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		trouble = "exception: " + e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			trouble += " " + e.ExceptionDetails.Exception.Description
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError && e.Entry.Source != log.EntrySourceNetwork {
			trouble = fmt.Sprintf("%s: %s", e.Entry.Source, e.Entry.Text)
		}
	}
	if trouble != "" {
		p.mu.Lock()
		p.troubles = append(p.troubles, trouble)
		p.mu.Unlock()
	}
}

// do runs steps with a time limit.
func (p *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		require.NoError(p.t, err, "at %s", p.where())
	}
}

func (p *tab) where() string {
	ctx, cancel := context.WithTimeout(p.ctx, 5*time.Second)
	defer cancel()
	url, err := chromedp.Run(ctx, chromedp.Location())
	if err != nil {
		return err.Error()
	}
	return url
}

// open goes to a path of the server, or to a whole URL.
func (p *tab) open(path string) {
	p.t.Helper()
	if !strings.HasPrefix(path, "http") {
		path = p.base + path
	}
	p.do(chromedp.Navigate(path))
}

// eval gives the value of an expression in the page.
func eval[T any](p *tab, expression string) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	require.NoError(p.t, err, "%s at %s", expression, p.where())
	return v
}

// until waits for a condition in the page; it survives navigation.
func (p *tab) until(what, condition string) {
	p.t.Helper()
	p.untilWithin(patience, what, condition)
}

func (p *tab) untilWithin(limit time.Duration, what, condition string) {
	p.t.Helper()
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var last error
	for time.Now().Before(deadline) {
		ctx, cancel := context.WithTimeout(p.ctx, 5*time.Second)
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("Boolean("+condition+")"))
		cancel()
		if ok {
			return
		}
		last = err // between two documents there is none to ask
		<-tick.C
	}
	require.Fail(p.t, "the page never shows "+what, "%s\nat %s, last error %v\n%.2000s", condition, p.where(), last, eval[string](p, "document.body ? document.body.innerText : ''"))
}

// mark finds the first visible element that matches css and whose text has the words, once the page is loaded, and gives a
// selector for it alone. A live part that is morphed meanwhile loses what is not in its news: it is marked again then.
func (p *tab) mark(css, words string) string {
	p.t.Helper()
	p.until(css+" with "+strconv.Quote(words), fmt.Sprintf(`(() => {
		if (document.readyState !== "complete") return false;
		if (!window.e2eMark) {
			for (const event of ["live-changed", "htmx:afterSettle"]) document.addEventListener(event, () => window.e2eMark());
		}
		window.e2eMark = () => {
		for (const old of document.querySelectorAll("[data-e2e]")) old.removeAttribute("data-e2e");
		for (const e of document.querySelectorAll(%q)) {
			const text = [e.innerText, e.value, e.getAttribute("aria-label"), e.title].filter(Boolean).join("\n");
			if (e.getClientRects().length && text.includes(%q)) { e.setAttribute("data-e2e", ""); return true; }
		}
		return false;
		};
		return window.e2eMark();
	})()`, css, words))
	return "[data-e2e]"
}

// aimed does one thing to the first visible element that matches css and has the words. A document that has just replaced
// another, or a part that was swapped, makes the driver ask for a node that is gone: then it is looked for again.
func (p *tab) aimed(css, words string, act func(selector string) chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	for try := 1; ; try++ {
		sel := p.mark(css, words)
		ctx, cancel := context.WithTimeout(p.ctx, patience)
		err := chromedp.Do(ctx, act(sel))
		cancel()
		if err == nil {
			return
		}
		if try == 5 || !strings.Contains(err.Error(), "Could not find node") {
			require.NoError(p.t, err, "at %s", p.where())
		}
	}
}

// click clicks the first visible element that matches css and whose text, label or title has the words.
func (p *tab) click(css, words string) {
	p.t.Helper()
	p.aimed(css, words, func(sel string) chromedp.Action[chromedp.Void] { return chromedp.Click(chromedp.CSS(sel)) })
}

// focus puts the focus on the first visible element that matches css.
func (p *tab) focus(css string) {
	p.t.Helper()
	p.aimed(css, "", func(sel string) chromedp.Action[chromedp.Void] { return chromedp.Focus(chromedp.CSS(sel)) })
}

// fill puts text into a field as a person would: click, select all, type.
func (p *tab) fill(css, text string) {
	p.t.Helper()
	p.focus(css)
	eval[chromedp.Void](p, `document.querySelector("[data-e2e]").select?.()`)
	p.insert(text)
}

// insert types text where the focus is.
func (p *tab) insert(text string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	_, err := chromedp.Call(ctx, input.InsertText, input.InsertTextParams{Text: text})
	require.NoError(p.t, err)
}

// press sends keys where the focus is.
func (p *tab) press(keys string, modifiers ...chromedp.Modifier) {
	p.t.Helper()
	p.do(chromedp.KeyEvent(keys, chromedp.KeyModifiers(modifiers...)))
}

// upload chooses files in a file field.
func (p *tab) upload(css string, files ...string) {
	p.t.Helper()
	p.do(chromedp.SetUploadFiles(chromedp.CSS(css), files))
}

// downloaded waits for a complete download of this name.
func (p *tab) downloaded(name string) string {
	p.t.Helper()
	path := filepath.Join(p.downloads, name)
	require.Eventually(p.t, func() bool {
		_, err := os.Stat(path)
		partial, _ := filepath.Glob(filepath.Join(p.downloads, "*.crdownload"))
		return err == nil && len(partial) == 0
	}, time.Minute, 50*time.Millisecond, "no download named %s", name)
	return path
}

func (p *tab) size(width, height int64) {
	p.t.Helper()
	p.do(chromedp.EmulateViewport(width, height))
}

// theme makes the browser prefer "light" or "dark".
func (p *tab) theme(name string) {
	p.t.Helper()
	_, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}},
	})
	require.NoError(p.t, err)
}

// picture gives the visible part of the page as PNG, when it has come to rest; a cursor may go on blinking.
func (p *tab) picture() []byte {
	p.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	last := p.shot()
	for range 15 {
		<-tick.C
		next := p.shot()
		if bytes.Equal(last, next) {
			break
		}
		last = next
	}
	return last
}

func (p *tab) shot() []byte {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	shot, err := chromedp.Call(ctx, page.CaptureScreenshot, page.CaptureScreenshotParams{})
	require.NoError(p.t, err)
	return shot.Data
}

// keep writes a picture where somebody can look at it: $SANDGATE_PICTURES, when it is set.
func (p *tab) keep(name string) {
	p.t.Helper()
	dir := os.Getenv("SANDGATE_PICTURES")
	if dir == "" {
		return
	}
	require.NoError(p.t, os.MkdirAll(dir, 0o755))
	name = strings.ReplaceAll(p.t.Name(), "/", "-") + "-" + name + ".png"
	require.NoError(p.t, os.WriteFile(filepath.Join(dir, name), p.picture(), 0o644))
}

// keepAll keeps the page in both themes, wide and narrow, and checks that nothing is wider than the window, and that axe finds
// nothing: once in each theme and once in each width.
func (p *tab) keepAll(name string) {
	p.t.Helper()
	for _, theme := range []string{"light", "dark"} {
		for _, width := range []int64{1440, 390} {
			p.theme(theme)
			p.size(width, 900)
			p.until("no sideways scrolling at "+strconv.Itoa(int(width)), "document.documentElement.scrollWidth <= innerWidth")
			p.keep(fmt.Sprintf("%s-%s-%d", name, theme, width))
			if (theme == "dark") == (width == 390) {
				p.accessible(fmt.Sprintf("%s, %s, %d", name, theme, width))
			}
		}
	}
	p.theme("light")
	p.size(1440, 900)
}
