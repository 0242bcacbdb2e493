package e2e

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// moreAttacks go over the API, or at the agent.
func moreAttacks() []attack {
	return []attack{
		{name: "disk fill over the API", outside: fillByFiles, survives: true},
		{name: "disk fill by an archive", outside: fillByArchive, survives: true},
		{name: "zip bomb", outside: zipBomb, survives: true},
		{name: "sparse and huge files", command: "truncate -s 1T /work/one /tmp/two; head -c 1M /dev/urandom >/work/true", timeout: 10, outside: readSparse, survives: true},
		{
			name: "kill -9 -1", command: "sleep 100 & kill -9 -1; echo survived; pgrep sleep", timeout: 10, survives: true,
		},
		{name: "the agent killed", command: "kill -9 1; sleep 20", timeout: 25, reason: "crash"},
		{
			name: "the agent stopped", command: "kill -STOP 1; echo still", timeout: 20, survives: true,
			check: func(t *testing.T, e executionJSON, code int) {
				require.Equal(t, 200, code)
				require.Equal(t, "still\n", e.Stdout)
			},
		},
		{name: "the agent's socket filled", command: fillSocket, timeout: 20, survives: true},
	}
}

// upload sends a body and gives the answer.
func (s *siege) upload(id, rest string, body io.Reader) (int, string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, s.url+"/v1/sandboxes/"+id+"/files/"+rest, body)
	require.NoError(s.t, err)
	req.Header.Set("X-API-Key", s.api.key)
	req.Header.Set("Content-Type", "application/octet-stream")
	resp, err := http.DefaultClient.Do(req)
	require.NoError(s.t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	require.NoError(s.t, err)
	return resp.StatusCode, string(text)
}

// nothing gives n zero bytes.
func nothing(n int64) io.Reader { return io.LimitReader(zeroes{}, n) }

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func fillByFiles(s *siege, id string) {
	for i := range 20 {
		code, text := s.upload(id, fmt.Sprintf("raw?path=/work/f%d", i), nothing(8<<20))
		if code == http.StatusOK {
			continue
		}
		require.Equal(s.t, http.StatusConflict, code, text)
		require.Contains(s.t, text, "disk_full")
		return
	}
	require.Fail(s.t, "64 MiB hold 160")
}

func tarOf(write func(*tar.Writer) error) io.Reader {
	r, w := io.Pipe()
	go func() { // ends when it has written all, or nobody reads any more
		out := tar.NewWriter(w)
		err := write(out)
		if err == nil {
			err = out.Close()
		}
		_ = w.CloseWithError(err)
	}()
	return r
}

func fillByArchive(s *siege, id string) {
	code, text := s.upload(id, "archive?path=/work&format=tar", tarOf(func(w *tar.Writer) error {
		for i := range 10 {
			if err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("d/%d", i), Size: 16 << 20, Mode: 0o644}); err != nil {
				return err
			}
			if _, err := io.Copy(w, nothing(16<<20)); err != nil {
				return err
			}
		}
		return nil
	}))
	require.Contains(s.t, []int{http.StatusConflict, http.StatusUnprocessableEntity}, code, text)
	if code == http.StatusConflict {
		require.Contains(s.t, text, "disk_full")
	}
	require.Equal(s.t, "0\n", s.api.exec(id, "ls /work | wc -l").Stdout, "all or nothing")
}

func zipBomb(s *siege, id string) {
	var bomb bytes.Buffer
	w := zip.NewWriter(&bomb)
	for i := range 10 {
		f, err := w.Create(fmt.Sprintf("z%d", i))
		require.NoError(s.t, err)
		_, err = io.Copy(f, nothing(16<<20))
		require.NoError(s.t, err)
	}
	require.NoError(s.t, w.Close())
	code, text := s.upload(id, "archive?path=/work&format=zip", &bomb)
	// Its ratio betrays it, or the disk is full first.
	require.Contains(s.t, []int{http.StatusConflict, http.StatusUnprocessableEntity}, code, text)
	require.Equal(s.t, "0\n", s.api.exec(id, "ls /work | wc -l").Stdout)
}

// readSparse: a file of a terabyte that holds nothing is neither sent nor packed as a whole.
func readSparse(s *siege, id string) {
	for _, path := range []string{"/work/one", "/tmp/two"} {
		code, body := s.api.do("GET", "/v1/sandboxes/"+id+"/files/raw?path="+path, nil)
		require.Equal(s.t, http.StatusRequestEntityTooLarge, code, "%.300s", body)
		code, body = s.api.do("GET", "/v1/sandboxes/"+id+"/files?path="+path, nil)
		require.Equal(s.t, http.StatusRequestEntityTooLarge, code, "%.300s", body)
	}
	req, err := http.NewRequest(http.MethodGet, s.url+"/v1/sandboxes/"+id+"/files/raw?path=/work/one", nil)
	require.NoError(s.t, err)
	req.Header.Set("X-API-Key", s.api.key)
	req.Header.Set("Range", "bytes=500000000000-500000000999")
	resp, err := http.DefaultClient.Do(req)
	require.NoError(s.t, err)
	part, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	require.NoError(s.t, resp.Body.Close())
	require.Equal(s.t, http.StatusPartialContent, resp.StatusCode)
	require.Len(s.t, part, 1000)
	for _, format := range []string{"tar", "zip"} {
		code, packed := s.api.do("GET", "/v1/sandboxes/"+id+"/files/archive?path=/work&format="+format, nil)
		require.Equal(s.t, http.StatusOK, code)
		require.Less(s.t, len(packed), 2<<20)
		require.Greater(s.t, len(packed), 1<<20, "what is true is in it")
	}
}

// fillSocket leaves no room for a new bridge, and ends the present one, until it is over itself.
const fillSocket = `python3 - <<'EOF'
import os, socket, time
held = []
for path in ("/.sandgate-run/mux", "/.sandgate-run/bulk"):
    for i in range(3000):
        s = socket.socket(socket.AF_UNIX)
        s.setblocking(False)
        try: s.connect(path); held.append(s)
        except OSError: break
print(len(held))
time.sleep(2)
EOF`

// liar takes the places of the agent's sockets and answers with noise.
const liar = `cat >/tmp/liar.py <<'EOF'
import os, socket, threading
def lie(fds):
    try:
        while True: os.write(fds[-1], os.urandom(65536))
    except OSError: pass
def serve(path):
    try: os.remove(path)
    except OSError: pass
    s = socket.socket(socket.AF_UNIX); s.bind(path); s.listen(64)
    while True:
        c, _ = s.accept()
        try: _, fds, _, _ = socket.recv_fds(c, 1, 2)
        except OSError: continue
        if fds: threading.Thread(target=lie, args=(fds,)).start()
for path in ("/.sandgate-run/mux", "/.sandgate-run/bulk"):
    threading.Thread(target=serve, args=(path,)).start()
EOF
setsid python3 /tmp/liar.py >/dev/null 2>&1 </dev/null &
sleep 1`

// An agent that was replaced, and answers everything with noise: whoever asks gets an error in time, the server holds nothing of
// it, the neighbour notices nothing, and the sandbox is killed at once.
func TestALyingAgentHurtsItselfAlone(t *testing.T) {
	s := newSiege(t)
	id := s.api.create("liar")
	var e executionJSON
	s.api.ok("POST", "/v1/sandboxes/"+id+"/commands", map[string]any{"command": liar}, &e)
	s.stop(syscall.SIGKILL) // its bridge went to the agent; the next server's goes to the liar
	s.server = s.serve()
	s.api = s.rest(s.api.key)
	require.NotZero(t, s.visit())
	before := s.rss()
	stop := s.watchNeighbour()
	begin := time.Now()
	var wg sync.WaitGroup
	for _, call := range []struct{ method, path, body string }{
		{"POST", "/commands", `{"command":"echo true","timeout":3}`},
		{"GET", "/files/list?path=/work", ""},
		{"GET", "/files/raw?path=/bin/bash", ""},
		{"GET", "/ptys", ""},
		{"GET", "/files/archive?path=/work", ""},
	} {
		wg.Go(func() {
			code, answer, err := s.callWithin(time.Minute, call.method, "/v1/sandboxes/"+id+call.path, strings.NewReader(call.body))
			if err != nil || code < 400 || len(answer) > 2000 {
				t.Errorf("%s: %d %v %.300q", call.path, code, err, answer)
			}
		})
	}
	wg.Wait()
	took := time.Since(begin)
	visits := stop()
	require.NotContains(t, visits, time.Duration(0))
	require.Less(t, s.rss()-before, int64(64<<20))
	begin = time.Now()
	s.api.ok("DELETE", "/v1/sandboxes/"+id, nil, nil)
	require.Less(t, time.Since(begin), 10*time.Second)
	t.Logf("five calls to the liar ended in %s; neighbour p95 %s, %.1f times quiet", took.Round(time.Millisecond), p95(visits).Round(time.Millisecond), float64(p95(visits))/float64(s.quiet))
}
