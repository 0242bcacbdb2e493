package e2e

import (
	"os"
	"path/filepath"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sandgate/internal/testenv"
)

// findings are the faults against WCAG 2.2 AA, and against axe's own good practice, that axe sees in the page. What programs print
// in a terminal has the colours that they chose.
const findings = `axe.run({exclude: [[".xterm-rows"], [".ap-term"]]}, {preload: false, resultTypes: ["violations"]}).then(r =>
	r.violations.flatMap(v => v.nodes.map(n => v.id + " at " + n.target.join(" ") + ": " + n.failureSummary.replace(/\s+/g, " ") + " " + n.html.slice(0, 200))))`

// accessible requires that axe finds nothing in the page as it is. Parts may be on their way still: it looks a few times.
func (p *tab) accessible(what string) {
	p.t.Helper()
	if p.plain {
		return
	}
	source, err := os.ReadFile(filepath.Join(testenv.Top(p.t), "node_modules/axe-core/axe.min.js"))
	require.NoError(p.t, err)
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	var found []string
	for range 6 {
		if !eval[bool](p, `typeof axe === "object"`) {
			eval[chromedp.Void](p, string(source)+"\n;undefined")
		}
		if found = eval[[]string](p, findings); len(found) == 0 {
			return
		}
		<-tick.C
	}
	assert.Empty(p.t, found, "axe on %s", what)
}
