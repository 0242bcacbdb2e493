package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"sandgate/internal/testenv"
)

// Lists, forms, files and downloads work in a browser that runs no scripts.
func TestWithoutJavaScriptInTheBrowser(t *testing.T) {
	testenv.Browser(t)
	host := newInstallation(t)
	s := host.serve()
	p := newTab(t, s.url)
	_, err := chromedp.Call(p.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	require.NoError(t, err)
	p.plain = true
	p.setUp(s.setup, "ann@example.org", "Research")
	p.fill("input[name=label]", "plain")
	p.click("button", "Create sandbox")
	p.until("the sandbox's page", `/\/sandboxes\/sb[a-z0-9]{20}$/.test(location.pathname)`)
	id := eval[string](p, `location.pathname.split("/").pop()`)
	p.keep("sandbox")

	file := filepath.Join(t.TempDir(), "notes.txt")
	require.NoError(t, os.WriteFile(file, []byte("first line\n"), 0o600))
	p.upload("input[type=file][name=file]", file)
	p.click("button", "Upload")
	has := func(name string) string {
		return fmt.Sprintf(`[...document.querySelectorAll("#files li.entry bdi")].some(e => e.textContent.trim() === %q)`, name)
	}
	p.until("the file", has("notes.txt"))
	p.click("#files li.entry a", "notes.txt")
	p.until("its preview", `document.querySelector("#preview")?.innerText.includes("first line")`)
	p.click("a[data-close-preview]", "")

	p.click(`#files summary[aria-label="Actions for notes.txt"]`, "")
	p.click("#files details[open] .menu a", "Rename")
	p.fill("main input.in", "renamed.txt")
	p.click("main button", "Rename")
	p.until("the new name", has("renamed.txt"))
	p.click(`#files summary[aria-label="Actions for renamed.txt"]`, "")
	p.click("#files details[open] .menu a", "Download")
	b, err := os.ReadFile(p.downloaded("renamed.txt"))
	require.NoError(t, err)
	require.Equal(t, "first line\n", string(b))

	p.open("/w/research/sandboxes?q=plain")
	p.until("it in the list", fmt.Sprintf(`document.querySelector("#row-%s")`, id))
	p.open("/w/research/sandboxes?q=nothing-like-it")
	p.until("an empty search", fmt.Sprintf(`!document.querySelector("#row-%s")`, id))
	p.open("/w/research/sandboxes/" + id)
	p.click("a", "Kill…")
	p.until("the question", `document.querySelector("main [data-typed]")`)
	p.fill("main [data-typed]", eval[string](p, `document.querySelector("main [data-typed]").dataset.typed`))
	p.click("main button", "Kill")
	p.until("the list without it", fmt.Sprintf(`location.pathname.endsWith("/sandboxes") && !document.querySelector("#row-%s")`, id))
	host.nothingLeft()
}
