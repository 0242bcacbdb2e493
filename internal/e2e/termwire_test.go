package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
)

// terminalsOn starts a server with one sandbox.
func terminalsOn(t *testing.T) (s *server, api rest, id string) {
	t.Helper()
	host := newInstallation(t)
	s = host.serve()
	host.person("ann@example.org", "alpha")
	api = s.rest(host.key("alpha", "sandboxes:run"))
	return s, api, api.create("wire")
}

// dialTerm opens a terminal's websocket without reading it.
func (r rest) dialTerm(id, pty, query string) *websocket.Conn {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(r.url, "http")+"/v1/sandboxes/"+id+"/ptys/"+pty+"/ws"+query, &websocket.DialOptions{
		HTTPHeader: http.Header{"X-API-Key": {r.key}}, Subprotocols: []string{"sandgate.term.v1"},
	})
	require.NoError(r.t, err)
	conn.SetReadLimit(1 << 20)
	return conn
}

// Fifty connections that break at random moments, each going on where the one before ended: every byte once, none twice.
func TestFiftyBrokenConnectionsLoseNoByte(t *testing.T) {
	_, api, id := terminalsOn(t)
	pty := api.openPTY(id)
	const lines = 60_000
	first := api.view(id, pty, "")
	first.typeText("PS1=; stty -echo -onlcr; printf 'READ''Y\\n'\n")
	first.sees("READY\n")
	next := first.offset()
	require.NoError(t, first.conn.CloseNow())
	api.view(id, pty, "?since="+strconv.FormatInt(next, 10)).drives().typeText(fmt.Sprintf("seq 1 %d; echo EN''D\n", lines))

	rnd := rand.New(rand.NewPCG(11, 12))
	var all []byte
	breaks := 0
	for !bytes.Contains(all, []byte("END\n")) {
		conn := api.dialTerm(id, pty, "?since="+strconv.FormatInt(next, 10))
		for broken := false; !broken && !bytes.Contains(all[max(0, len(all)-64):], []byte("END\n")); {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			kind, p, err := conn.Read(ctx)
			cancel()
			require.NoError(t, err)
			if kind != websocket.MessageBinary {
				continue
			}
			require.EqualValues(t, 1, p[0], "a snapshot although everything is kept")
			require.EqualValues(t, next, binary.BigEndian.Uint64(p[1:9]), "a gap or a repetition")
			if p = p[9:]; breaks < 50 { // the connection breaks in the middle of what is under way
				p, broken = p[:1+rnd.IntN(min(len(p), 6000))], true
			}
			all = append(all, p...)
			next += int64(len(p))
			ack, _ := json.Marshal(map[string]any{"type": "ack", "offset": next})
			_ = conn.Write(t.Context(), websocket.MessageText, ack)
		}
		_ = conn.CloseNow()
		breaks++
	}
	require.GreaterOrEqual(t, breaks, 50)
	var want bytes.Buffer
	for i := 1; i <= lines; i++ {
		fmt.Fprintln(&want, i)
	}
	want.WriteString("END\n")
	all, _, _ = bytes.Cut(all, []byte("END\n")) // the shell says more
	all = append(all, "END\n"...)
	require.True(t, strings.HasSuffix(string(all), want.String()), "%d bytes, expected %d; ends with %.200q", len(all), want.Len(), all[max(0, len(all)-200):])
}

// ^C during a flood that the viewer's screen is behind of: the prompt does not stand behind what the program has printed ahead.
func TestInterruptIsFeltDuringAFlood(t *testing.T) {
	_, api, id := terminalsOn(t)
	for _, flood := range []string{"yes", "cat /dev/urandom | od -x"} {
		t.Run(flood, func(t *testing.T) {
			pty := api.openPTY(id)
			conn := api.dialTerm(id, pty, "")
			defer func() { _ = conn.CloseNow() }()
			var next int64
			var text []byte // since it was last emptied
			read := func() {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				kind, p, err := conn.Read(ctx)
				require.NoError(t, err)
				if kind == websocket.MessageBinary {
					text, next = append(text, p[9:]...), int64(binary.BigEndian.Uint64(p[1:9]))
					if p[0] == 1 {
						next += int64(len(p) - 9)
					}
				}
			}
			send := func(kind websocket.MessageType, format string, args ...any) {
				t.Helper()
				require.NoError(t, conn.Write(t.Context(), kind, fmt.Appendf(nil, format, args...)))
			}
			ack := func() { send(websocket.MessageText, `{"type":"ack","offset":%d}`, next) }
			send(websocket.MessageBinary, "\x00PS1='rea''dy> '\n")
			for !bytes.Contains(text, []byte("ready> ")) {
				read()
			}
			send(websocket.MessageBinary, "\x00%s\n", flood)
			for start := next; next < start+1<<20; ack() {
				read()
			}
			// The screen takes no more; the program prints on.
			var p struct{ Next int64 }
			require.Eventually(t, func() bool {
				api.ok("GET", "/v1/sandboxes/"+id+"/ptys/"+pty, nil, &p)
				return p.Next > next+1<<20
			}, time.Minute, 20*time.Millisecond)
			text = nil
			seen := next
			send(websocket.MessageBinary, "\x00\x03")
			for !bytes.HasSuffix(text, []byte("ready> ")) && !bytes.Contains(text[max(0, len(text)-200):], []byte("ready> ")) {
				read()
				ack()
			}
			// What it had printed ahead is left out: a snapshot came in its place.
			require.Less(t, int64(len(text)), next-seen, "bytes between ^C and the prompt")
		})
	}
}

// A driver who stops reading holds the program up only for a moment, and nobody else at all.
func TestADriverWhoStallsStopsNobody(t *testing.T) {
	_, api, id := terminalsOn(t)
	pty := api.openPTY(id)
	stalled := api.dialTerm(id, pty, "") // drives, reads no output, acknowledges nothing
	defer func() { _ = stalled.CloseNow() }()
	_, hello, err := stalled.Read(t.Context()) // by now it has the seat, whoever comes next
	require.NoError(t, err)
	require.Contains(t, string(hello), `"role":"driver"`)
	watcher := api.view(id, pty, "")
	require.NoError(t, stalled.Write(t.Context(), websocket.MessageBinary, []byte("\x00seq 1 1000000 | tail -c 6000000; echo rea''ched; touch /work/done\n")))
	watcher.until("the end of it", func() bool { return bytes.Contains(watcher.out[max(0, len(watcher.out)-300<<10):], []byte("reached")) })
	require.Zero(t, api.exec(id, "for i in $(seq 200); do test -e /work/done && exit 0; sleep 0.1; done; exit 1").ExitCode)
}

// state is what the server and the sandbox hold.
type state struct{ fds, rss, processes, ptys int }

func (s *server) state(api rest, id string) (st state) {
	s.t.Helper()
	dir := fmt.Sprintf("/proc/%d", s.cmd.Process.Pid)
	fds, err := os.ReadDir(dir + "/fd")
	require.NoError(s.t, err)
	st.fds = len(fds)
	text, err := os.ReadFile(dir + "/status")
	require.NoError(s.t, err)
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "VmRSS:" {
			st.rss, _ = strconv.Atoi(f[1])
		}
	}
	_, err = fmt.Sscan(api.exec(id, "ls -d /proc/[0-9]* | wc -l; ls /dev/pts | wc -l").Stdout, &st.processes, &st.ptys)
	require.NoError(s.t, err)
	return st
}

// openAndClose opens terminals and leaves them in every way there is: refused, dropped before anything was said, closed while a program runs.
func openAndClose(t *testing.T, times int) {
	s, api, id := terminalsOn(t)
	one := func(n int) {
		pty := api.openPTY(id)
		switch n % 4 {
		case 0:
			_ = api.dialTerm(id, pty, "").CloseNow()
		case 1:
			v := api.view(id, pty, "")
			v.typeText("sleep 1000\n")
			v.sees("sleep")
			_ = v.conn.CloseNow()
		case 2:
			v := api.view(id, pty, "")
			v.typeText("exit 3\n")
			require.EqualValues(t, 1000, v.closedWith())
		}
		api.ok("DELETE", "/v1/sandboxes/"+id+"/ptys/"+pty, nil, nil)
		require.EqualValues(t, 4004, websocket.CloseStatus(func() error {
			conn := api.dialTerm(id, pty, "")
			defer func() { _ = conn.CloseNow() }()
			_, _, err := conn.Read(t.Context())
			return err
		}()))
	}
	for n := range 20 {
		one(n)
	}
	before := s.state(api, id)
	for n := range times {
		one(n)
	}
	var after state
	require.Eventually(t, func() bool {
		after = s.state(api, id)
		return after.fds <= before.fds+4 && after.processes <= before.processes && after.ptys <= before.ptys
	}, 2*time.Minute, time.Second, "before %+v", before)
	t.Logf("before %+v, after %+v", before, after)
	require.LessOrEqual(t, after.rss, before.rss+32<<10, "KiB of the server")
	s.stop(syscall.SIGQUIT) // writes the stack of every goroutine into the log, and ends
	log, err := os.ReadFile(filepath.Join(s.data, "server.log"))
	require.NoError(t, err)
	require.Positive(t, bytes.Count(log, []byte("\ngoroutine ")))
	require.Less(t, bytes.Count(log, []byte("\ngoroutine ")), 80, "goroutines of a server without viewers")
}

func TestOpeningAndClosingTerminalsLeavesNothing(t *testing.T) { openAndClose(t, 100) }
