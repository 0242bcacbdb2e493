package agent_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/hashicorp/yamux"
	"github.com/stretchr/testify/require"

	"sandgate/sandbox/agent"
)

// writes keeps each write apart.
type writes struct {
	io.ReadCloser
	all [][]byte
}

func (w *writes) Write(p []byte) (int, error) {
	w.all = append(w.all, bytes.Clone(p))
	return len(p), nil
}

func TestHeaderAndBodyGoOutTogether(t *testing.T) {
	data := func(n byte) []byte { return []byte{0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, n} }
	window := []byte{0, 1, 0, 1, 0, 0, 0, 3, 0, 0, 1, 0}
	looksLikeOne := data(5) // a body that looks like a header is a body
	long := []byte{0, 0, 0, 0, 0, 0, 0, 3, 0, 2, 0, 0}

	var w writes
	c := agent.Coalesce(&w)
	for _, p := range [][]byte{window, data(2), []byte("hi"), data(12), looksLikeOne, data(0), window, long, bytes.Repeat([]byte("x"), 0x20000)} {
		n, err := c.Write(p)
		require.NoError(t, err)
		require.Equal(t, len(p), n)
	}
	require.Equal(t, [][]byte{
		window, append(data(2), "hi"...), append(data(12), looksLikeOne...), data(0), window, long, bytes.Repeat([]byte("x"), 0x20000),
	}, w.all)
}

// Both sides of a session over it understand one another, in small and in large.
func TestCoalescedSession(t *testing.T) {
	aIn, bOut := io.Pipe()
	bIn, aOut := io.Pipe()
	type pair struct {
		io.Reader
		io.WriteCloser
	}
	cfg := yamux.DefaultConfig()
	cfg.LogOutput = io.Discard
	server, err := yamux.Server(agent.Coalesce(pair{bIn, bOut}), cfg)
	require.NoError(t, err)
	client, err := yamux.Client(agent.Coalesce(pair{aIn, aOut}), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = client.Close(), server.Close() })
	go func() {
		s, err := server.Accept()
		if err == nil {
			_, _ = io.Copy(s, s)
		}
	}()
	s, err := client.Open()
	require.NoError(t, err)
	for _, n := range []int{1, 12, 4096, 16 << 10, 100_000} {
		sent := bytes.Repeat([]byte{0}, n)
		go func() { _, _ = s.Write(sent) }()
		got := make([]byte, n)
		_, err := io.ReadFull(s, got)
		require.NoError(t, err)
		require.Equal(t, sent, got)
	}
}
