package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

type recordingJSON struct {
	ID      string
	PTY     string
	EndedAt *string `json:"ended_at"`
	End     string
	Bytes   int64
}

// cast is a recording as a player reads it: what of each kind it holds, and its length in seconds.
func (r rest) cast(id string) (parts map[string]string, length float64) {
	r.t.Helper()
	code, body := r.do("GET", "/v1/recordings/"+id+"/cast", nil)
	require.Equal(r.t, 200, code, "%s", body)
	lines := strings.Split(strings.TrimSuffix(string(body), "\n"), "\n")
	var head struct{ Version int }
	require.NoError(r.t, json.Unmarshal([]byte(lines[0]), &head))
	require.Equal(r.t, 3, head.Version)
	parts = map[string]string{}
	for _, line := range lines[1:] {
		if strings.HasPrefix(line, "#") {
			continue
		}
		var e [3]any
		require.NoError(r.t, json.Unmarshal([]byte(line), &e), "%q", line)
		length += e[0].(float64)
		parts[e[1].(string)] += e[2].(string)
	}
	return parts, length
}

// The server is killed while a terminal prints and nobody looks; the next server goes on with the recording exactly there.
func TestARecordingOutlivesACrashOfTheServer(t *testing.T) {
	host := newInstallation(t)
	s := host.serve()
	password := host.person("ann@example.org", "alpha")
	key := host.key("alpha", "sandboxes:run", "sandboxes:manage", "members:manage", "audit:read")
	api := s.rest(key)
	api.ok("PUT", "/v1/recording-policy", map[string]any{"mode": "always"}, nil)

	var sb sandboxJSON
	api.ok("POST", "/v1/sandboxes", map[string]any{"label": "recorded", "secrets": map[string]string{"TOKEN": "correct-horse-42"}}, &sb)
	var list struct{ Items []recordingJSON }
	pty := api.openPTY(sb.ID)
	api.ok("GET", "/v1/recordings?sandbox_id="+sb.ID, nil, &list)
	require.Len(t, list.Items, 1)
	require.Equal(t, pty, list.Items[0].PTY)
	id := list.Items[0].ID

	const last = 60_000
	term := api.view(sb.ID, pty, "")
	term.typeText(fmt.Sprintf("echo $TOKEN; for i in $(seq 1 %d); do echo line-$i; [ $((i %% 500)) -gt 0 ] || sleep 0.02; done\n", last))
	term.sees("line-3000\r\n")
	file := filepath.Join(host.data, "recordings", id+".cast")
	require.Eventually(t, func() bool { // within a second or so it is on disk
		b, err := os.ReadFile(file)
		return err == nil && bytes.Contains(b, []byte("line-1000"))
	}, time.Minute, 10*time.Millisecond)
	s.stop(syscall.SIGKILL)

	// What is on disk is whole but for its last line.
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NotContains(t, string(b), "correct-horse-42")
	s = host.serve()
	api = s.rest(key)
	var parts map[string]string
	require.Eventually(t, func() bool {
		parts, _ = api.cast(id)
		return strings.Contains(parts["o"], "line-"+strconv.Itoa(last)+"\r\n")
	}, 2*time.Minute, 200*time.Millisecond, "the recording does not go on")
	var want strings.Builder
	for i := 1; i <= last; i++ {
		want.WriteString("line-" + strconv.Itoa(i) + "\r\n")
	}
	require.True(t, strings.Contains(parts["o"], want.String()), "every line once, in order; markers: %q", parts["m"])
	require.NotContains(t, parts["m"], "gap")
	require.Contains(t, parts["o"], "[secret TOKEN]\r\n")
	require.NotContains(t, parts["o"], "correct-horse-42")

	// What is asked about meanwhile is marked in it.
	api.ok("PATCH", "/v1/sandboxes/"+sb.ID, map[string]any{"approval": map[string]any{"write": "ask"}}, nil)
	var asked struct {
		ID string `json:"approval_id"`
	}
	api.with("Prefer", "respond-async").ok("POST", "/v1/sandboxes/"+sb.ID+"/files", map[string]any{"path": "/work/x", "content": "x"}, &asked)
	require.NotEmpty(t, asked.ID)

	again := api.view(sb.ID, pty, "")
	again.typeText("exit 7\n")
	require.EqualValues(t, 1000, again.closedWith())
	require.Eventually(t, func() bool {
		var r recordingJSON
		api.ok("GET", "/v1/recordings/"+id, nil, &r)
		return r.End == "exited"
	}, 2*time.Minute, 50*time.Millisecond)
	parts, length := api.cast(id)
	require.Equal(t, "7", parts["x"])
	require.Contains(t, parts["m"], "asked: "+asked.ID)
	require.Greater(t, length, 1.0)

	// It outlives its sandbox, and plays in a browser.
	api.ok("DELETE", "/v1/sandboxes/"+sb.ID, nil, nil)
	p := newTab(t, s.url)
	p.signIn("ann@example.org", password)
	p.open("/w/alpha/recordings?sandbox=" + sb.ID)
	p.keepAll("recordings")
	p.click("main td a", "recorded")
	p.until("the player", `!!document.querySelector(".ap-player")`)
	p.open("/w/alpha/recordings/" + id + "#t=" + strconv.Itoa(int(length)+1))
	p.untilWithin(time.Minute, "what was printed last", `(document.querySelector(".ap-term")?.textContent ?? "").includes("line-60000")`)
	p.until("a marker that leads to the request", `[...document.querySelectorAll("[data-markers] li")].some(e =>
		e.textContent.includes("asked: `+asked.ID+`") && e.querySelector("a").pathname === "/w/alpha/approvals/`+asked.ID+`")`)
	p.keepAll("recording")

	// From the keyboard alone: to a marker, and the player plays and stops.
	p.focus(`[data-markers] li button`)
	p.press("\r")
	p.until("an earlier moment", `!(document.querySelector(".ap-term")?.textContent ?? "").includes("line-60000")`)
	const button = `document.activeElement?.classList.contains("ap-playback-button")`
	for range 20 {
		if eval[bool](p, button) {
			break
		}
		p.press("\t", chromedp.ModifierShift)
	}
	p.until("the player's button, by Tab", button)
	p.press("\r")
	p.until("that it plays", button+` && document.activeElement.getAttribute("aria-label") === "Pause"`)
	p.press("\r")
	p.until("that it stands", button+` && document.activeElement.getAttribute("aria-label") === "Play"`)

	p.open("/w/alpha/activity?q=" + asked.ID)
	p.until("an event that leads to the request", `document.querySelector('#rows a[href="/w/alpha/approvals/`+asked.ID+`"]')`)
	p.open("/w/alpha/activity?action=terminal.open")
	p.click("#rows a", "Recording")
	p.until("the recording", `location.pathname.endsWith("/recordings/`+id+`")`)

	api.ok("DELETE", "/v1/recordings/"+id, nil, nil)
	code, _ := api.do("GET", "/v1/recordings/"+id+"/cast", nil)
	require.Equal(t, 404, code)
	require.NoFileExists(t, filepath.Join(host.data, "recordings", id+".cast"))
}
