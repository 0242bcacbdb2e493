package agent_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

// liar is a client whose agent is h; raw instead answers on the bare bridge.
func liar(t *testing.T, h http.HandlerFunc, raw func(net.Conn)) *agent.Client {
	t.Helper()
	client := agent.NewClient(func(_ context.Context, bulk bool) (io.ReadWriteCloser, error) {
		host, guest := net.Pipe()
		t.Cleanup(func() { _ = guest.Close() })
		if raw != nil {
			go raw(guest)
			return host, nil
		}
		if bulk {
			go func() { _ = http.Serve(&single{conn: guest}, h) }()
			return host, nil
		}
		cfg := yamux.DefaultConfig()
		cfg.LogOutput = io.Discard
		session, err := yamux.Server(guest, cfg)
		if err != nil {
			return nil, err
		}
		go func() { _ = http.Serve(session, h) }()
		return host, nil
	})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

type single struct{ conn net.Conn }

func (s *single) Accept() (net.Conn, error) {
	if s.conn == nil {
		select {}
	}
	c := s.conn
	s.conn = nil
	return c, nil
}
func (s *single) Close() error   { return nil }
func (s *single) Addr() net.Addr { return &net.UnixAddr{} }

type sink struct{ n int }

func (s *sink) Stdout(p []byte) error { s.n += len(p); return nil }
func (s *sink) Stderr(p []byte) error { s.n += len(p); return nil }

// everything calls all that a host asks of an agent; each call has to come back with an error.
func everything(t *testing.T, c *agent.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	p := []byte("/f")
	for name, f := range map[string]func() error{
		"hello":    func() error { _, err := c.Hello(ctx); return err },
		"run":      func() error { _, err := c.Run(ctx, agent.CommandSpec{ID: "cmd1", Command: "x"}, &sink{}); return err },
		"follow":   func() error { _, err := c.Follow(ctx, "cmd1", 0, 0, &sink{}); return err },
		"start":    func() error { _, err := c.Start(ctx, agent.CommandSpec{ID: "cmd1", Command: "x"}); return err },
		"commands": func() error { _, err := c.Commands(ctx); return err },
		"logs":     func() error { _, _, _, err := c.Logs(ctx, "cmd1", 0, 0); return err },
		"pty":      func() error { _, err := c.OpenPTY(ctx, agent.PTYSpec{ID: "pty1"}); return err },
		"ptys":     func() error { _, err := c.PTYs(ctx); return err },
		"attach": func() error {
			a, err := c.Attach(ctx, "pty1", 0)
			for err == nil {
				_, err = a.Next()
			}
			return err
		},
		"stat": func() error { _, err := c.Stat(ctx, p); return err },
		"list": func() error { _, err := c.List(ctx, p, "", 10, 1); return err },
		"read": func() error {
			_, r, err := c.ReadFile(ctx, p, 0, 100)
			if err != nil {
				return err
			}
			defer r.Close()
			_, err = io.ReadAll(r)
			return err
		},
		"write": func() error {
			_, err := c.WriteFile(ctx, p, strings.NewReader("x"), agent.WriteOptions{Size: 1})
			return err
		},
		"search": func() error { _, err := c.Search(ctx, p, agent.SearchQuery{Name: "x", Limit: 10}); return err },
		"watch":  func() error { return c.Watch(ctx, p, true, func(agent.FileChange) error { return nil }) },
		"copy":   func() error { _, err := c.Copy(ctx, p, []byte("/g")); return err },
		"chmod":  func() error { _, err := c.Chmod(ctx, p, 0o600); return err },
		"unpack": func() error { _, err := c.Unpack(ctx, p, "tar", strings.NewReader("x"), 1); return err },
	} {
		require.Error(t, f(), name)
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.HeapSys, before.HeapSys+(256<<20))
	require.NoError(t, ctx.Err(), "it took too long")
}

func TestHostileBridges(t *testing.T) {
	for name, raw := range map[string]func(net.Conn){
		"garbage": func(c net.Conn) {
			for {
				if _, err := c.Write(bytes.Repeat([]byte{0xff, 0, 'x'}, 1000)); err != nil {
					return
				}
			}
		},
		"closed": func(c net.Conn) { _ = c.Close() },
		"opens streams": func(c net.Conn) {
			cfg := yamux.DefaultConfig()
			cfg.LogOutput = io.Discard
			s, err := yamux.Server(c, cfg)
			for err == nil {
				_, err = s.Open()
			}
		},
	} {
		t.Run(name, func(t *testing.T) { everything(t, liar(t, nil, raw)) })
	}
}

func frame(t byte, size int, p string) []byte {
	return append([]byte{t, byte(size >> 24), byte(size >> 16), byte(size >> 8), byte(size)}, p...)
}

// hijacked answers with bytes instead of HTTP.
func hijacked(write func(io.Writer)) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		write(conn)
	}
}

func TestHostileAnswers(t *testing.T) {
	big := strings.Repeat("x", 1<<20)
	endless := func(w io.Writer, p string) {
		p = strings.Repeat(p, 1+(8<<10)/len(p))
		for {
			if _, err := io.WriteString(w, p); err != nil {
				return
			}
		}
	}
	for name, h := range map[string]http.HandlerFunc{
		"not http":        hijacked(func(w io.Writer) { _, _ = io.WriteString(w, "what?\r\n\r\n") }),
		"endless headers": hijacked(func(w io.Writer) { _, _ = io.WriteString(w, "HTTP/1.1 200 OK\r\n"); endless(w, "A: b\r\n") }),
		"endless line":    hijacked(func(w io.Writer) { endless(w, "HTTP/1.1 200 ") }),
		"informational":   hijacked(func(w io.Writer) { endless(w, "HTTP/1.1 103 Early\r\nA: b\r\n\r\n") }),
		"not json":        func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") },
		"endless body":    func(w http.ResponseWriter, _ *http.Request) { endless(w, big) },
		"endless refusal": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404); endless(w, big) },
		"wrong types": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"id":7,"version":[],"entries":1}`)
		},
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		},
		"giant frame":   func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(frame('o', 1<<31, "")) },
		"unknown frame": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(frame('?', 0, "")) },
		"endless output": func(w http.ResponseWriter, _ *http.Request) {
			endless(w, string(frame('o', agent.MaxFrame, strings.Repeat("x", agent.MaxFrame))))
		},
		"impossible exit": func(w http.ResponseWriter, _ *http.Request) {
			p := `{"exit_code":-5,"duration":1e300}`
			_, _ = w.Write(frame('x', len(p), p))
		},
	} {
		t.Run(name, func(t *testing.T) { everything(t, liar(t, h, nil)) })
	}
}

func TestHostileTerminal(t *testing.T) {
	output := func(at int64, p string) []byte {
		b := frame('o', 8+len(p), "")
		for i := 7; i >= 0; i-- {
			b = append(b, byte(at>>(8*i)))
		}
		return append(b, p...)
	}
	for name, p := range map[string][]byte{
		"backwards":       append(output(100, "abc"), output(50, "abc")...),
		"negative":        output(-1, "abc"),
		"empty":           output(0, ""),
		"short":           frame('o', 3, "abc"),
		"giant":           frame('o', 1<<30, ""),
		"impossible size": frame('z', 22, `{"cols":70000,"rows":0}`[:22]),
		"unknown":         frame('?', 0, ""),
	} {
		client := liar(t, func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: sandgate-pty\r\n\r\n")
			_, _ = conn.Write(p)
			_, _ = bufio.NewReader(conn).ReadByte()
		}, nil)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		a, err := client.Attach(ctx, "pty1", 0)
		require.NoError(t, err)
		for err == nil {
			_, err = a.Next()
		}
		require.NotErrorIs(t, err, agent.ErrBridge, name)
		require.NoError(t, ctx.Err(), name)
		_ = a.Close()
		cancel()
	}
}

func TestHostileFiles(t *testing.T) {
	for name, info := range map[string]string{
		"slash in a name": `{"name_b64":"YS9i","path_b64":"L2E=","type":"file"}`,
		"negative size":   `{"name_b64":"YQ==","path_b64":"L2E=","type":"file","size":-1}`,
		"unknown type":    `{"name_b64":"YQ==","path_b64":"L2E=","type":"door"}`,
		"relative path":   `{"name_b64":"YQ==","path_b64":"YQ==","type":"file"}`,
		"etag with break": `{"name_b64":"YQ==","path_b64":"L2E=","type":"file","etag":"a\r\nb"}`,
	} {
		client := liar(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(agent.FileHeader, base64.RawURLEncoding.EncodeToString([]byte(info)))
			_, _ = io.WriteString(w, info)
		}, nil)
		_, err := client.Stat(context.Background(), []byte("/a"))
		require.Error(t, err, name)
		_, _, err = client.ReadFile(context.Background(), []byte("/a"), 0, -1)
		require.Error(t, err, name)
	}
	client := liar(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"entries":[`+strings.TrimSuffix(strings.Repeat(`{"name_b64":"YQ==","path_b64":"L2E=","type":"file"},`, 11), ",")+`],"total":11}`)
	}, nil)
	_, err := client.List(context.Background(), []byte("/"), "", 10, 1)
	require.Error(t, err, "more entries than asked for")
}

// TestCutTransfer: a body that ends early is an error at the reader.
func TestCutTransfer(t *testing.T) {
	info := base64.RawURLEncoding.EncodeToString([]byte(`{"name_b64":"YQ==","path_b64":"L2E=","type":"file","size":1000000}`))
	client := liar(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(agent.FileHeader, info)
		if r.URL.Query().Get("inline") != "" {
			w.Header().Set(agent.NotInline, "1")
			return
		}
		if strings.HasSuffix(r.URL.Path, "raw") {
			w.Header().Set("Content-Length", "1000000")
		}
		_, _ = w.Write(make([]byte, 1000))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}, nil)
	_, r, err := client.ReadFile(context.Background(), []byte("/a"), 0, -1)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, r)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	_ = r.Close()
	r, err = client.Archive(context.Background(), []byte("/a"), "tar")
	if err == nil {
		_, err = io.Copy(io.Discard, r)
		_ = r.Close()
	}
	require.Error(t, err)
}

func TestRefusalsAreCleaned(t *testing.T) {
	client := liar(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusConflict)
		_, _ = fmt.Fprintf(w, `{"code":"conflict","detail":"a\u202e\u001b[31mb%s","reason":"<script>"}`, strings.Repeat("x", 1000))
	}, nil)
	_, err := client.Stat(context.Background(), []byte("/a"))
	require.Equal(t, fault.Conflict, fault.KindOf(err))
	public := fault.Public(err)
	require.True(t, strings.HasPrefix(public, "a[31mbxxx"), public)
	require.Less(t, len(public), 400)
	var e *fault.Error
	require.ErrorAs(t, err, &e)
	require.Empty(t, e.Extra)
	// What only the host may say is not taken from an agent.
	client = liar(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"code":"approval_denied","detail":"x"}`)
	}, nil)
	_, err = client.Stat(context.Background(), []byte("/a"))
	require.Equal(t, fault.Internal, fault.KindOf(err))
}

func TestSilentAgentIsGivenUp(t *testing.T) {
	client := liar(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, nil)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err := client.Hello(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}
