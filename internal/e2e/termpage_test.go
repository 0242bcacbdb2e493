package e2e

import (
	"fmt"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// front is the terminal that is seen.
const front = `[...document.querySelectorAll(".tty")].find(e => e.getClientRects().length)`

// bar is what the bar below it says, with what it offers.
const bar = `(() => { const b = (` + front + `)?.querySelector(".tty-bar"); return b ? b.innerText.replace(/\s+/g, " ") : ""; })()`

// inTerminal starts a server with one person and one sandbox, and opens its page on a terminal.
func inTerminal(t *testing.T, flags ...string) (*server, *tab, rest, string) {
	t.Helper()
	host := newInstallation(t)
	s := host.serve(flags...)
	password := host.person("ann@example.org", "alpha")
	api := s.rest(host.key("alpha", "sandboxes:run"))
	id := api.create("page")
	p := newTab(t, s.url)
	p.signIn("ann@example.org", password)
	p.open("/w/alpha/sandboxes/" + id)
	p.prompt()
	return s, p, api, id
}

// colleague makes another member of the workspace.
func (i *installation) colleague(email, workspace, role string, permissions ...string) (password string) {
	i.t.Helper()
	password = "correct horse battery " + email
	i.runWith(password+"\n", "user", "create", "--email", email, "--password-stdin")
	args := []string{"workspace", "grant", "--workspace", workspace, "--email", email, "--role", role}
	for _, p := range permissions {
		args = append(args, "--permission", p)
	}
	i.run(args...)
	return password
}

func (p *tab) signIn(email, password string) {
	p.t.Helper()
	p.open("/sign-in")
	p.fill("input[name=email]", email)
	p.fill("input[name=password]", password)
	p.click("main button, .lone button", "Sign in")
	p.until("to be signed in", `!location.pathname.startsWith("/sign-in")`)
}

// prompt waits for a shell that is ready, in the terminal in front.
func (p *tab) prompt() {
	p.t.Helper()
	p.state("connected")
	p.shows(`[#$] *$`)
}

// state waits for the terminal in front to be in a state.
func (p *tab) state(name string) {
	p.t.Helper()
	p.untilWithin(time.Minute, "a terminal that is "+name, fmt.Sprintf(`(%s)?.dataset.state === %q`, front, name))
}

func (p *tab) role(name string) {
	p.t.Helper()
	p.untilWithin(time.Minute, "a terminal as "+name, fmt.Sprintf(`(%s)?.dataset.role === %q`, front, name))
}

// rows is the screen of the terminal in front, a line each, read from xterm's buffer: without what was scrolled away.
func (p *tab) rows() []string {
	p.t.Helper()
	return eval[[]string](p, `(`+front+`)?.terminalScreen?.() ?? []`)
}

// all is the screen with all that was scrolled away.
func (p *tab) all() string {
	p.t.Helper()
	return eval[string](p, `(`+front+`)?.terminalText?.() ?? ""`)
}

// shows waits until the whole text of the terminal in front matches.
func (p *tab) shows(pattern string) string {
	p.t.Helper()
	p.untilWithin(time.Minute, "a terminal that shows "+pattern,
		fmt.Sprintf(`new RegExp(%q, "m").test(((%s)?.terminalText?.() ?? "").trimEnd())`, pattern, front))
	return regexp.MustCompile("(?m)" + pattern).FindString(strings.TrimRight(p.all(), "\n"))
}

// says waits until the bar matches.
func (p *tab) says(pattern string) {
	p.t.Helper()
	p.untilWithin(time.Minute, "a bar that says "+pattern, fmt.Sprintf(`new RegExp(%q).test(%s)`, pattern, bar))
}

// keys types into the terminal in front, key by key, without Enter.
func (p *tab) keys(text string) {
	p.t.Helper()
	p.intoTerminal()
	p.press(text)
}

func (p *tab) intoTerminal() {
	p.t.Helper()
	p.focus(".xterm-helper-textarea")
}

// ctrl presses Ctrl and a letter in the terminal in front.
func (p *tab) ctrl(letter string) {
	p.t.Helper()
	p.intoTerminal()
	p.press(letter, chromedp.ModifierCtrl)
}

// quiet waits until the screen has stayed the same for a while, and gives it.
func (p *tab) quiet() []string {
	p.t.Helper()
	tick := time.NewTicker(150 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(time.Minute)
	last, same := p.rows(), 0
	for time.Now().Before(deadline) {
		<-tick.C
		now := p.rows()
		if strings.Join(now, "\n") == strings.Join(last, "\n") {
			if same++; same == 3 {
				return now
			}
			continue
		}
		last, same = now, 0
	}
	require.Fail(p.t, "the screen never comes to rest", "%s", strings.Join(last, "\n"))
	return nil
}

// again loads the page anew and waits for its terminal to be in a state.
func (p *tab) again(state string) {
	p.t.Helper()
	eval[chromedp.Void](p, `window.old = true; location.reload()`)
	p.until("another document", `!window.old && document.readyState === "complete"`)
	p.state(state)
}

// wire is a way to the server that can be cut, and that can swallow what is sent.
type wire struct {
	at string // host:port

	mu    sync.Mutex
	to    string
	cut   bool
	holes chan struct{} // not nil: nothing passes until it is closed
	conns map[net.Conn]bool
}

func newWire(t *testing.T) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &wire{at: l.Addr().String(), conns: map[net.Conn]bool{}}
	var carriers sync.WaitGroup
	carriers.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			carriers.Go(func() { w.carry(in) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		w.swallow(false)
		w.sever(true)
		carriers.Wait()
	})
	return w
}

func (w *wire) leadTo(url string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.to = strings.TrimPrefix(url, "http://")
}

// sever cuts every connection and lets no new one pass, until it is called with false.
func (w *wire) sever(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
	if cut {
		for c := range w.conns {
			_ = c.Close()
		}
	}
}

// swallow lets nothing through any more, and says nothing about it.
func (w *wire) swallow(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case on && w.holes == nil:
		w.holes = make(chan struct{})
	case !on && w.holes != nil:
		close(w.holes)
		w.holes = nil
	}
}

func (w *wire) carry(in net.Conn) {
	defer func() { _ = in.Close() }()
	w.mu.Lock()
	to, cut := w.to, w.cut
	w.mu.Unlock()
	if cut {
		return
	}
	out, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer func() { _ = out.Close() }()
	w.mu.Lock()
	w.conns[in], w.conns[out] = true, true
	if w.cut {
		_ = in.Close()
	}
	w.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { w.pass(out, in) })
	both.Go(func() { w.pass(in, out) })
	both.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, in)
	delete(w.conns, out)
}

func (w *wire) pass(to, from net.Conn) {
	defer func() { _ = to.Close(); _ = from.Close() }()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		w.mu.Lock()
		hole := w.holes
		w.mu.Unlock()
		if hole != nil {
			<-hole
			return // what was swallowed never arrives
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
