package e2e

import (
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/testenv"
)

// progress draws a bar over itself, as the usual Python ones do, and stays at 42 %.
const progress = `import sys, time
for i in range(43):
    sys.stderr.write("\r\x1b[K%3d%%|%s%s| %d/100" % (i, "\u2588" * (i // 4), " " * (25 - i // 4), i))
    sys.stderr.flush()
    time.sleep(0.01)
time.sleep(1000)
`

// volatile are the parts of a screen that a clock or a load average writes.
var volatile = regexp.MustCompile(`\d+(\.\d+)?|[|▁▂▃▄▅▆▇█]+|\s+`)

// What programs paint is the same after the page was loaded anew, at one size and after the window changed to another.
func TestProgramsAndAReloadInTheBrowser(t *testing.T) {
	testenv.Browser(t)
	host := newInstallation(t)
	places := packagePlaces(t)
	var allow []string
	for _, at := range relay(t, places) {
		allow = append(allow, at.String())
	}
	s := host.serve("--jail-allow", strings.Join(allow, ","))
	password := host.person("ann@example.org", "alpha")
	api := s.rest(host.key("alpha", "sandboxes:run"))
	id := api.create("programs")
	if ca, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt"); err == nil {
		code, b := api.do("PUT", "/v1/sandboxes/"+id+"/files/raw?path=/work/ca.crt", ca)
		require.Equal(t, http.StatusOK, code, "%s", b)
	}
	var e executionJSON
	api.ok("POST", "/v1/sandboxes/"+id+"/commands", map[string]any{
		"command": "apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends vim-tiny htop", "timeout": 300,
	}, &e)
	require.Zero(t, e.ExitCode, "%s%s", e.Stdout, e.Stderr)
	for path, content := range map[string]string{
		"/work/bar.py": progress, "/work/poem.txt": strings.Repeat("naïve 漢字 \U0001f469\u200d\U0001f4bb line of text\n", 200),
	} {
		api.ok("POST", "/v1/sandboxes/"+id+"/files", map[string]any{"path": path, "content": content, "encoding": "utf-8"}, nil)
	}
	p := newTab(t, s.url)
	p.signIn("ann@example.org", password)
	p.open("/w/alpha/sandboxes/" + id)
	p.prompt()

	for _, c := range []struct {
		name, command string
		there         string // on the screen when the program has painted it
		leave         []string
		moves         bool // the program repaints figures by itself
	}{
		{"vim", "vim.tiny -u NONE +set\\ laststatus=2 +100 poem.txt", `poem\.txt`, []string{"\x1b", ":q!\r"}, false},
		{"less", "less -N poem.txt", `^ +1 naïve`, []string{"G", "q"}, false},
		{"nano", "nano poem.txt", `\^X`, []string{"ctrl-x"}, false},
		{"tmux", "tmux -u new 'tmux split-window -h nano poem.txt; exec less poem.txt' \\; set -g status-right ''", `\^X`, []string{"ctrl-x", "q"}, false},
		{"htop", "htop -d 100", `F1 ?Help`, []string{"q"}, true},
		{"progress bar", "python3 bar.py", `42%\|█{10}.*42/100`, []string{"ctrl-c"}, false},
	} {
		t.Run(c.name, func(*testing.T) {
			same := func(what string) {
				grid := p.steady()
				before := p.screen(c.moves)
				require.NotEmpty(t, before)
				p.again("connected")
				p.shows(c.there)
				require.Equal(t, grid, p.steady(), "the page gives the terminal another size %s", what)
				require.Equal(t, before, p.screen(c.moves), "%s %s", c.name, what)
			}
			p.size(1440, 900)
			p.line("clear")
			p.steady()
			p.line(c.command)
			p.shows(c.there)
			same("after a reload")
			wide := p.grid()
			p.size(1000, 640)
			p.until("another size", `(`+front+`).terminalSize() !== "`+wide+`"`)
			p.shows(c.there)
			same("after a reload at another size")
			for _, keys := range c.leave {
				if letter, ok := strings.CutPrefix(keys, "ctrl-"); ok {
					p.ctrl(letter)
				} else {
					p.keys(keys)
				}
				if !c.moves {
					p.quiet()
				}
			}
			p.shows(`root@programs:/work# *$`)
			// Leaving gives the shell's own screen back.
			p.line("echo left-$((1+1))")
			p.shows(`^left-2$`)
		})
	}
}

// steady waits until the terminal keeps its size, and gives it.
func (p *tab) steady() string {
	p.t.Helper()
	last, same := p.grid(), 0
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline) && same < 6; {
		<-tick.C
		if now := p.grid(); now != last {
			last, same = now, 0
		} else {
			same++
		}
	}
	return last
}

// screen is the screen at rest. Of a program that moves by itself it is what does not: words, and where they stand in line.
func (p *tab) screen(moves bool) []string {
	p.t.Helper()
	if !moves {
		return p.quiet()
	}
	var still []string
	for _, line := range p.rows() {
		if words := strings.TrimSpace(volatile.ReplaceAllString(line, " ")); strings.HasPrefix(words, "PID") || strings.HasPrefix(words, "F Help") {
			still = append(still, words)
		}
	}
	return still
}
