package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

const commandsPath = "/v1/sandboxes/" + knownID + "/commands"

func allBytes() []byte {
	p := make([]byte, 256)
	for i := range p {
		p[i] = byte(i)
	}
	return p
}

func TestRunCommand(t *testing.T) {
	b := start(t)
	b.f.run = func(_ context.Context, _ agent.CommandSpec, out agent.Output) (agent.Exit, error) {
		_ = out.Stdout([]byte("<h\xc3"))
		_ = out.Stdout([]byte("\xa9>\xff"))
		_ = out.Stderr([]byte("bad"))
		return agent.Exit{Code: 3, Duration: 0.5}, nil
	}
	got := b.do("POST", commandsPath, `{"command":"x"}`)
	assert.Equal(t, 200, got.status)
	id := b.f.started[0].ID
	assert.Regexp(t, commandPattern, id)
	assert.JSONEq(t, `{"stdout":"<hé>\ufffd","stderr":"bad","exit_code":3,"timed_out":false,"truncated":false,"duration":0.5,"id":"`+id+`"}`, got.body)
	assert.EqualValues(t, 60000, b.f.started[0].TimeoutMS)

	got = b.do("POST", commandsPath, `{"command":"cat","timeout":5,"cwd":"/tmp","env":{"A":"b"},"user":"nobody","stdin":"in","tag":"t"}`)
	require.Equal(t, 200, got.status, got.body)
	spec := b.f.started[1]
	spec.ID = ""
	assert.Equal(t, agent.CommandSpec{
		Command: "cat", TimeoutMS: 5000, Cwd: "/tmp", Env: map[string]string{"A": "b"}, User: "nobody",
		Stdin: []byte("in"), Tag: "t",
	}, spec)
}

func TestOutputIsBounded(t *testing.T) {
	b := start(t)
	b.f.run = func(_ context.Context, _ agent.CommandSpec, out agent.Output) (agent.Exit, error) {
		for range 17 {
			_ = out.Stdout(bytes.Repeat([]byte("x"), 1<<20))
		}
		return agent.Exit{}, nil
	}
	got := b.do("POST", commandsPath, `{"command":"x"}`)
	var e executionBody
	require.NoError(t, json.Unmarshal([]byte(got.body), &e))
	assert.Len(t, e.Stdout, agent.MaxOutput)
	assert.True(t, e.Truncated)
}

func TestBadCommands(t *testing.T) {
	b := start(t)
	for body, field := range map[string]string{
		`{}`:                                                 "command",
		`{"command":""}`:                                     "command",
		`{"command":" \n"}`:                                  "command",
		`{"command":null}`:                                   "command",
		`{"command":7}`:                                      "command",
		`{"command":["true"]}`:                               "command",
		`{"command":"a\u0000b"}`:                             "command",
		`{"command":"true","timeout":-1}`:                    "timeout",
		`{"command":"true","timeout":0}`:                     "timeout",
		`{"command":"true","timeout":1e9}`:                   "timeout",
		`{"command":"true","timeout":86401}`:                 "timeout",
		`{"command":"true","timeout":1.5}`:                   "timeout",
		`{"command":"true","timeout":"x"}`:                   "timeout",
		`{"command":"true","timeout":true}`:                  "timeout",
		`{"command":"true","cwd":"work"}`:                    "cwd",
		`{"command":"true","cwd":""}`:                        "cwd",
		`{"command":"true","user":"a\u0000"}`:                "user",
		`{"command":"true","background":"yes"}`:              "background",
		`{"command":"true","stdin":1}`:                       "stdin",
		`{"command":"true","shell":"zsh"}`:                   "shell",
		`{"command":"` + strings.Repeat("x", 128<<10) + `"}`: "command",
	} {
		began := time.Now()
		got := b.do("POST", commandsPath, body)
		assert.Equal(t, 422, got.status, body[:min(len(body), 60)])
		assertError(t, got, "invalid", field)
		assert.Less(t, time.Since(began), 10*time.Second, "it is refused, not run")
	}
	got := b.do("POST", commandsPath, `{"command":"true"}`, "Approval-Id", "apx")
	assert.Equal(t, 422, got.status)
	assertError(t, got, "invalid", "Approval-Id")
	assert.Empty(t, b.f.started)
	got = b.do("POST", commandsPath, `{"command":"true","stdin":"`+strings.Repeat("x", 25<<20)+`"}`)
	assert.Equal(t, 413, got.status)
	got = b.do("POST", commandsPath, `{"command":`)
	assert.Equal(t, 400, got.status)
}

func TestASilentCommandKeepsItsClientWaiting(t *testing.T) {
	b := start(t, func(o *Options) { o.KeepAlive = 5 * time.Millisecond })
	release := make(chan error)
	b.f.run = func(_ context.Context, _ agent.CommandSpec, out agent.Output) (agent.Exit, error) {
		_ = out.Stdout([]byte("part"))
		return agent.Exit{Code: 1}, <-release
	}
	for _, end := range []error{nil, fault.New(fault.SandboxDied, "It died.")} {
		r, err := http.NewRequest("POST", b.url+commandsPath, strings.NewReader(`{"command":"x"}`))
		require.NoError(t, err)
		r.Header.Set("X-API-Key", fullKey)
		resp, err := http.DefaultClient.Do(r) // returns once the status is there, long before the command's end
		require.NoError(t, err)
		assert.Equal(t, 200, resp.StatusCode)
		body := bufio.NewReader(resp.Body)
		for range 3 {
			c, err := body.ReadByte()
			require.NoError(t, err)
			assert.Equal(t, byte(' '), c)
		}
		release <- end
		var e executionBody
		require.NoError(t, json.NewDecoder(body).Decode(&e))
		assert.Equal(t, "part", e.Stdout)
		if end == nil {
			assert.Equal(t, 1, e.ExitCode)
			assert.Empty(t, e.Code)
		} else {
			assert.Equal(t, 137, e.ExitCode)
			assert.Equal(t, "sandbox_died", e.Code)
			assert.Equal(t, "It died.", e.Detail)
		}
		require.NoError(t, resp.Body.Close())
	}
}

func TestHangingUpEndsTheCommand(t *testing.T) {
	for _, accept := range []string{"application/json", "text/event-stream"} {
		b := start(t)
		running, ended := make(chan struct{}), make(chan struct{})
		b.f.run = func(ctx context.Context, _ agent.CommandSpec, _ agent.Output) (agent.Exit, error) {
			close(running)
			<-ctx.Done()
			close(ended)
			return agent.Exit{}, ctx.Err()
		}
		ctx, hangUp := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, "POST", b.url+commandsPath, strings.NewReader(`{"command":"x"}`))
		require.NoError(t, err)
		r.Header.Set("X-API-Key", fullKey)
		r.Header.Set("Accept", accept)
		go func() {
			if resp, err := http.DefaultClient.Do(r); err == nil {
				_ = resp.Body.Close()
			}
		}()
		<-running
		hangUp()
		select {
		case <-ended:
		case <-time.After(5 * time.Second):
			t.Fatal("the command goes on")
		}
	}
}

func TestLosingThePermissionEndsTheCommand(t *testing.T) {
	b := start(t)
	b.f.run = func(ctx context.Context, _ agent.CommandSpec, _ agent.Output) (agent.Exit, error) {
		b.f.revoke()
		<-ctx.Done()
		return agent.Exit{}, ctx.Err()
	}
	got := b.do("POST", commandsPath, `{"command":"x"}`)
	assert.Equal(t, 403, got.status)
	assertError(t, got, "forbidden", "")
	got = b.do("POST", commandsPath, `{"command":"x"}`, "Accept", "text/event-stream")
	assert.Equal(t, 403, got.status)
}

func TestEvents(t *testing.T) {
	b := start(t)
	b.f.run = func(_ context.Context, _ agent.CommandSpec, out agent.Output) (agent.Exit, error) {
		_ = out.Stdout([]byte("h\xc3"))
		_ = out.Stderr([]byte("e"))
		_ = out.Stdout([]byte("\xa9"))
		_ = out.Stdout(allBytes())
		_ = out.Stdout([]byte("\xe2\x82"))
		return agent.Exit{Code: 124, TimedOut: true}, nil
	}
	got := b.do("POST", commandsPath, `{"command":"x"}`, "Accept", "text/event-stream")
	assert.Equal(t, 200, got.status)
	assert.Equal(t, "text/event-stream", got.header.Get("Content-Type"))
	assert.Equal(t, []string{
		`{"type":"init","id":"` + b.f.started[0].ID + `"}`,
		`{"type":"stdout","text":"h"}`,
		`{"type":"stderr","text":"e"}`,
		`{"type":"stdout","text":"é"}`,
		`{"type":"stdout","data_b64":"` + base64.StdEncoding.EncodeToString(allBytes()) + `"}`,
		`{"type":"stdout","data_b64":"4oI="}`,
		`{"type":"exit","exit_code":124,"timed_out":true}`,
	}, eventsOf(t, got.body))

	b.f.run = func(_ context.Context, _ agent.CommandSpec, out agent.Output) (agent.Exit, error) {
		_ = out.Stdout([]byte("x"))
		return agent.Exit{}, fault.New(fault.SandboxDied, "It died.")
	}
	got = b.do("GET", commandsPath+"/"+knownCmd+"/stream", "")
	assert.Equal(t, []string{
		`{"type":"init","id":"` + knownCmd + `"}`, `{"type":"stdout","text":"x"}`, `{"type":"error","code":"sandbox_died","detail":"It died."}`,
	}, eventsOf(t, got.body))

	b.f.run = nil
	b.f.err = fault.New(fault.Conflict, "No.")
	got = b.do("POST", commandsPath, `{"command":"x"}`, "Accept", "text/event-stream")
	assert.Equal(t, 409, got.status, "an error that comes first has its own status")
	assertError(t, got, "conflict", "")
}

func eventsOf(t *testing.T, body string) []string {
	t.Helper()
	var out []string
	for block := range strings.SplitSeq(strings.TrimSuffix(body, "\n\n"), "\n\n") {
		data, ok := strings.CutPrefix(block, "data: ")
		require.True(t, ok, block)
		require.True(t, json.Valid([]byte(data)), data)
		out = append(out, data)
	}
	return out
}

func TestAStreamBeginsBeforeThereIsOutput(t *testing.T) {
	b := start(t)
	release := make(chan struct{})
	b.f.run = func(context.Context, agent.CommandSpec, agent.Output) (agent.Exit, error) {
		<-release
		return agent.Exit{}, nil
	}
	r, err := http.NewRequest("POST", b.url+commandsPath, strings.NewReader(`{"command":"x"}`))
	require.NoError(t, err)
	r.Header.Set("X-API-Key", fullKey)
	r.Header.Set("Accept", "text/event-stream")
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	require.NoError(t, err)
	assert.Contains(t, line, `"type":"init"`)
	close(release)
	require.NoError(t, resp.Body.Close())
}

func TestBackgroundCommands(t *testing.T) {
	b := start(t)
	got := b.do("POST", commandsPath, `{"command":"x","background":true,"tag":"t"}`)
	assert.Equal(t, 202, got.status)
	spec := b.f.started[0]
	assert.True(t, spec.Background)
	assert.True(t, spec.KeepStdin)
	assert.Zero(t, spec.TimeoutMS, "no limit unless one is asked for")
	assert.Contains(t, got.body, `"status":"running"`)
	assert.Contains(t, got.body, spec.ID)
	b.do("POST", commandsPath, `{"command":"x","background":true,"stdin":""}`)
	assert.False(t, b.f.started[1].KeepStdin)

	assert.True(t, strings.HasPrefix(b.do("GET", commandsPath, "").body, "["))
	got = b.do("GET", commandsPath+"/"+knownCmd, "")
	assert.JSONEq(t, `{"id":"`+knownCmd+`","status":"exited","command":"","background":false,"tag":null,"started_at":"1970-01-01T00:00:03.000000Z",
		"ended_at":"1970-01-01T00:00:05.000000Z","exit_code":137,"signal":"KILL","timed_out":false,"truncated":false,"duration":2}`, got.body)
	for _, path := range []string{"", "/logs", "/stream"} {
		assert.Equal(t, 404, b.do("GET", commandsPath+"/cmdx"+path, "").status)
	}

	got = b.do("POST", commandsPath+"/"+knownCmd+"/stdin", `{"data":"AP8=","encoding":"base64","eof":true}`)
	assert.JSONEq(t, `{"success":true}`, got.body)
	assert.Equal(t, []byte{0, 255}, b.f.stdin)
	assert.True(t, b.f.eof)
	for body, field := range map[string]string{`{"data":"?","encoding":"base64"}`: "data", `{"data":"x","encoding":"hex"}`: "encoding", `{"eof":1}`: "eof"} {
		assertError(t, b.do("POST", commandsPath+"/"+knownCmd+"/stdin", body), "invalid", field)
	}

	for body, signal := range map[string]string{`{}`: "KILL", `{"signal":"TERM"}`: "TERM", `{"signal":"sigint"}`: "INT"} {
		assert.Equal(t, 200, b.do("POST", commandsPath+"/"+knownCmd+"/kill", body).status)
		assert.Equal(t, signal, b.f.signal)
	}
	for _, body := range []string{`{"signal":"NO"}`, `{"signal":9}`, `{"signal":""}`} {
		assertError(t, b.do("POST", commandsPath+"/"+knownCmd+"/kill", body), "invalid", "signal")
	}
}

func TestLogsByCursor(t *testing.T) {
	b := start(t)
	logs := func(cursor string) logsBody {
		got := b.do("GET", commandsPath+"/"+knownCmd+"/logs?cursor="+cursor, "")
		require.Equal(t, 200, got.status, got.body)
		var l logsBody
		require.NoError(t, json.Unmarshal([]byte(got.body), &l))
		return l
	}
	b.f.stdout = []byte("h\xc3")
	l := logs("")
	assert.Equal(t, "h", l.Stdout, "half a character waits for its other half")
	b.f.stdout = []byte("h\xc3\xa9\xc3")
	l = logs(l.Cursor)
	assert.Equal(t, "é", l.Stdout)
	assert.Equal(t, "3.0", l.Cursor)
	b.f.exitLogs = &agent.Exit{}
	l = logs(l.Cursor)
	assert.Equal(t, "\ufffd", l.Stdout)
	assert.Equal(t, []byte{0xc3}, l.StdoutB64)
	assert.Equal(t, "4.0", l.Cursor)
	for _, c := range []string{"x", "1", "-1.0", "1.2.3", "99999999999999999999.0"} {
		assertError(t, b.do("GET", commandsPath+"/"+knownCmd+"/logs?cursor="+c, ""), "invalid", "cursor")
	}
}

func TestOpenTail(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "a": 0, "é": 0, "\xc3": 1, "a\xe2\x82": 2, "\xf0\x9f\x98": 3, "😀": 0, "\xff": 0, "\x80": 0, "\xe2\x82\xac": 0, "\x80\x80\x80\x80": 0,
	} {
		assert.Equal(t, want, openTail([]byte(text)), "%q", text)
	}
}
