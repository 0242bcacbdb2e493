package api

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sandgate/sandbox/agent"
)

func TestSpoolGivesTheSameJSONHoweverItCame(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	long := make([]byte, 3*spoolMemory)
	for i := range long {
		long[i] = byte(random.Uint32())
	}
	texts := [][]byte{
		nil, []byte("a"), allBytes(), []byte("h\xc3"), []byte("\xe6\xbc\xa2字\U0001F600<&>\u2028\""), []byte("\xf0\x9f\x98"), []byte("\x80"), long,
		[]byte(strings.Repeat("漢", spoolMemory)), []byte("x" + strings.Repeat("\U0001F600", spoolMemory/2)), bytes.Repeat([]byte("\x00"), textChunk),
	}
	for n, text := range texts {
		for _, most := range []int{1, 2, 3, 7, 4096, 1 << 20} {
			if most < 7 && len(text) > textChunk {
				continue
			}
			s := &spool{dir: t.TempDir(), limit: 1 << 30}
			for rest := text; len(rest) > 0; {
				p := rest[:min(len(rest), 1+random.IntN(most))]
				_, err := s.Write(p)
				require.NoError(t, err)
				rest = rest[len(p):]
			}
			assert.Equal(t, utf8.Valid(text), s.text(), "text %d in pieces of %d", n, most)
			var got bytes.Buffer
			require.NoError(t, writeLong(&got, []longText{{name: "t", from: s}, {name: "b", from: s, base64: true}}, struct {
				X int `json:"x"`
			}{1}))
			var want bytes.Buffer
			enc := json.NewEncoder(&want)
			enc.SetEscapeHTML(false)
			require.NoError(t, enc.Encode(struct {
				T string `json:"t"`
				B []byte `json:"b"`
				X int    `json:"x"`
			}{string(text), append([]byte{}, text...), 1}))
			assert.True(t, bytes.Equal(want.Bytes(), got.Bytes()), "text %d in pieces of %d", n, most)
			s.close()
		}
	}
}

func TestSpoolIsBoundedAndLeavesNoFile(t *testing.T) {
	dir := t.TempDir()
	s := &spool{dir: dir, limit: spoolMemory + 10}
	for range 3 {
		_, err := s.Write(bytes.Repeat([]byte("x"), spoolMemory))
		require.NoError(t, err)
	}
	assert.True(t, s.cut)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, entries, "the file has no name")
	p, err := io.ReadAll(s.reader())
	require.NoError(t, err)
	assert.Len(t, p, spoolMemory+10)
	s.close()

	s = &spool{dir: dir + "/missing", limit: 1 << 20}
	_, err = s.Write(bytes.Repeat([]byte("x"), 2*spoolMemory))
	require.NoError(t, err, "a command does not fail for the host's disk")
	assert.True(t, s.cut)
}

// A command's whole output, escaped six times its length, once took half a gigabyte of the server for each call.
func TestLongOutputTakesLittleMemory(t *testing.T) {
	s := &server{spoolDir: t.TempDir()}
	piece := make([]byte, agent.MaxFrame)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	out := s.collector()
	defer out.close()
	for range 16 << 20 / len(piece) {
		require.NoError(t, out.Stdout(piece))
		require.NoError(t, out.Stderr(piece))
	}
	require.NoError(t, writeLong(io.Discard, out.texts(), execution{}))
	runtime.ReadMemStats(&after)
	assert.Less(t, (after.TotalAlloc-before.TotalAlloc)>>20, uint64(96), "MiB in all, garbage counted")
	assert.EqualValues(t, 16<<20, out.stdout.size)
}
