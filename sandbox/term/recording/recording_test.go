package recording

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
)

const testID = "recaaaaaaaaaaaaaaaaaaaa"

var began = time.Date(2026, 5, 1, 12, 0, 0, 123456000, time.UTC)

func shelf(t *testing.T) *Shelf {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "recordings"))
	require.NoError(t, err)
	return s
}

// event is one line of a recording as a player reads it.
type event struct {
	at   float64 // seconds since the start
	code string
	data string
}

// play reads a recording as players do: the header, then the lines that begin with a bracket.
func play(t *testing.T, s *Shelf, id string) (h header, events []event) {
	t.Helper()
	r, err := s.Read(id)
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	all, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Len(t, all, int(r.Size))
	lines := strings.Split(string(all), "\n")
	require.NoError(t, json.Unmarshal([]byte(lines[0]), &h))
	at := 0.0
	for _, line := range lines[1:] {
		if !strings.HasPrefix(line, "[") {
			require.True(t, line == "" || strings.HasPrefix(line, "# "), "%q", line)
			continue
		}
		step, code, data, ok := parseEvent([]byte(line))
		require.True(t, ok, "%q", line)
		at += step.Seconds()
		events = append(events, event{at, code, data})
	}
	return h, events
}

func text(events []event) string {
	var b strings.Builder
	for _, e := range events {
		if e.code == "o" {
			b.WriteString(e.data)
		}
	}
	return b.String()
}

// asText is what of bytes can be in JSON: each one that is no part of a character is U+FFFD.
func asText(p []byte) string {
	var b strings.Builder
	for _, r := range string(p) {
		b.WriteRune(r)
	}
	return b.String()
}

// noise makes output as programs make it, and as they should not.
func noise(r *rand.Rand, n int, valid bool) []byte {
	words := []string{"hello ", "\r\n", "\x1b[31m", "\x1b]0;title\a", "é", "—", "。", "𐀀", "👩‍💻", "<b>&amp;", "\"\\/", "\x00", "\u2028", "\uFFFD", "\t"}
	if !valid {
		words = append(words, "\xff", "\xe2\x80", "\xf0\x9f", "\x80", "\xc3", "\xed\xa0\x80")
	}
	var b bytes.Buffer
	for b.Len() < n {
		b.WriteString(words[r.IntN(len(words))])
	}
	return b.Bytes()
}

// feed writes p in pieces of random sizes.
func feed(t *testing.T, r *rand.Rand, w *Writer, p []byte, from int64, most int) {
	t.Helper()
	for off := from; off < int64(len(p)); {
		n := min(int64(1+r.IntN(most)), int64(len(p))-off)
		require.NoError(t, w.Output(began.Add(time.Duration(off)*time.Millisecond), off, p[off:off+n]))
		if off += n; r.IntN(3) == 0 {
			require.NoError(t, w.Flush())
		}
	}
}

func TestRecordedOutputIsTheOutput(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 1))
		s, valid := shelf(t), seed%2 == 0
		p := noise(r, 1+r.IntN(20_000), valid)
		w, err := s.Create(testID, Start{At: began, Cols: 80, Rows: 24, Title: "box"})
		require.NoError(t, err)
		feed(t, r, w, p, 0, []int{1, 7, 4096}[seed%3])
		require.NoError(t, w.Exit(began.Add(time.Hour), 3))
		require.NoError(t, w.Close())
		h, events := play(t, s, testID)
		require.Equal(t, header{3, headerTerm{80, 24, "xterm-256color"}, began.Unix(), "box"}, h)
		same(t, asText(p), text(events), fmt.Sprint("seed ", seed))
		if valid {
			same(t, string(p), text(events), fmt.Sprint("seed ", seed))
		}
		last := events[len(events)-1]
		require.Equal(t, "x", last.code)
		require.Equal(t, "3", last.data)
		require.InDelta(t, 3600, last.at, 0.001)
		for _, e := range events {
			require.True(t, utf8.ValidString(e.data))
		}
	}
}

var secrets = []Secret{
	{"hunter22", "[secret PASSWORD]"},
	{"er22-long", "[secret OTHER]"},
	{"aaaa", "[secret A]"},
	{"unt", "[secret PART]"},
	{"пароль", "[secret CYRILLIC]"},
	{"line one\nline two", "[secret LINES]"},
}

// masked is the plain way: every byte of every occurrence of every secret is hidden, and each run shows one name.
func masked(p []byte) string {
	hidden := make([]bool, len(p))
	for _, s := range secrets {
		for i := 0; i+len(s.Text) <= len(p); i++ {
			if string(p[i:i+len(s.Text)]) == s.Text {
				for j := range len(s.Text) {
					hidden[i+j] = true
				}
			}
		}
	}
	var b, plain bytes.Buffer
	flush := func() { b.WriteString(asText(plain.Bytes())); plain.Reset() }
	for i := range p {
		switch {
		case !hidden[i]:
			plain.WriteByte(p[i])
		case i == 0 || !hidden[i-1]:
			flush()
			b.WriteString("[…]")
		}
	}
	flush()
	return b.String()
}

// unnamed makes names alike: which one stands for a run, and whether two of them do, depends on where it was cut.
func unnamed(s string) string {
	for _, x := range secrets {
		s = strings.ReplaceAll(s, x.Shown, "[…]")
	}
	for strings.Contains(s, "[…][…]") {
		s = strings.ReplaceAll(s, "[…][…]", "[…]")
	}
	return s
}

// same compares long texts and shows where they part.
func same(t *testing.T, want, got, about string) {
	t.Helper()
	if want == got {
		return
	}
	i := 0
	for i < min(len(want), len(got)) && want[i] == got[i] {
		i++
	}
	from := max(0, i-40)
	t.Fatalf("%s: they part at %d: want …%q, have …%q", about, i, want[from:min(len(want), i+40)], got[from:min(len(got), i+40)])
}

func noiseWithSecrets(r *rand.Rand, n int) []byte {
	var b bytes.Buffer
	for b.Len() < n {
		switch x := secrets[r.IntN(len(secrets))].Text; r.IntN(5) {
		case 0:
			b.WriteString(x)
		case 1:
			b.WriteString(x[:r.IntN(len(x))])
		case 2:
			b.WriteString(x[r.IntN(len(x)):])
		case 3:
			b.Write(noise(r, 5, false))
		default:
			b.WriteString("hunter22-long")
		}
	}
	return append(b.Bytes(), '.')
}

func TestSecretsAreHiddenWhereverTheOutputIsCut(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 2))
		s := shelf(t)
		p := noiseWithSecrets(r, 1+r.IntN(6000))
		w, err := s.Create(testID, Start{At: began, Cols: 80, Rows: 24, Secrets: secrets})
		require.NoError(t, err)
		feed(t, r, w, p, 0, []int{1, 3, 5000}[seed%3])
		require.NoError(t, w.End(began.Add(time.Hour), ""))
		_, events := play(t, s, testID)
		got := text(events)
		for _, x := range secrets {
			require.False(t, strings.Contains(got, x.Text), "seed %d", seed)
		}
		same(t, masked(p), unnamed(got), fmt.Sprint("seed ", seed))
	}
}

func TestASecretWithoutItsEndIsHiddenAtTheEnd(t *testing.T) {
	s := shelf(t)
	w, err := s.Create(testID, Start{At: began, Cols: 80, Rows: 24, Secrets: secrets, Offset: 0})
	require.NoError(t, err)
	require.NoError(t, w.Output(began, 0, []byte("the password is hunte")))
	require.NoError(t, w.Flush())
	_, events := play(t, s, testID)
	require.NotContains(t, text(events), "hun", "what may be a secret waits")
	require.NoError(t, w.End(began, "over"))
	_, events = play(t, s, testID)
	require.NotContains(t, text(events), "hunte")
}

func TestAnEndlessSecretIsNotHeldForEver(t *testing.T) {
	s := shelf(t)
	w, err := s.Create(testID, Start{At: began, Cols: 80, Rows: 24, Secrets: secrets})
	require.NoError(t, err)
	p := bytes.Repeat([]byte("a"), 4*maxHeld)
	require.NoError(t, w.Output(began, 0, p))
	require.LessOrEqual(t, len(w.out.held), maxHeld+pieceSize)
	require.NoError(t, w.Output(began, int64(len(p)), []byte("bc.")))
	require.NoError(t, w.End(began, ""))
	_, events := play(t, s, testID)
	require.Equal(t, "[secret A]bc.", text(events))
}

func TestInputAndMarkersHideSecretsToo(t *testing.T) {
	s := shelf(t)
	w, err := s.Create(testID, Start{At: began, Cols: 80, Rows: 24, Secrets: secrets})
	require.NoError(t, err)
	for _, c := range "echo hunter22\r" {
		require.NoError(t, w.Input(began, []byte(string(c))))
	}
	require.NoError(t, w.Mark(began, "approved: echo hunter22\r\n\x1b[31m\u202e"+strings.Repeat("x", 500)))
	require.NoError(t, w.End(began, ""))
	_, events := play(t, s, testID)
	typed, mark := "", ""
	for _, e := range events {
		if e.code == "i" {
			typed += e.data
		} else if e.code == "m" {
			mark = e.data
		}
	}
	require.Equal(t, "echo [secret PASSWORD]\r", typed)
	require.True(t, strings.HasPrefix(mark, "approved: echo [secret PASSWORD]   [31mxxx"), "%q", mark)
	require.Less(t, len(mark), 300)
}

// A server that is killed leaves a file that ends anywhere. What comes next begins where the file's last whole line ends.
func TestResumesExactlyWhereverItBroke(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	s := shelf(t)
	p := noiseWithSecrets(r, 1500)
	start := Start{At: began, Cols: 80, Rows: 24, Secrets: secrets}
	w, err := s.Create(testID, start)
	require.NoError(t, err)
	feed(t, r, w, p[:900], 0, 40)
	require.NoError(t, w.Resize(began, 100, 30))
	feed(t, r, w, p, 900, 40)
	require.NoError(t, w.Close())
	path, err := s.path(testID)
	require.NoError(t, err)
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	first := bytes.IndexByte(whole, '\n') + 1
	for cut := first; cut <= len(whole); cut += 1 + r.IntN(25) {
		require.NoError(t, os.WriteFile(path, whole[:cut], 0o600))
		_, before := play(t, s, testID)
		w, err := s.Resume(testID, start)
		require.NoError(t, err)
		next := w.Next()
		require.GreaterOrEqual(t, int64(len(p)), next)
		require.NoError(t, w.Resize(began, 100, 30))
		feed(t, r, w, p, max(0, next-10), 64) // sent again in part, as after a lost bridge
		require.NoError(t, w.Exit(began.Add(time.Hour), 0))
		require.NoError(t, w.Close())
		_, after := play(t, s, testID)
		same(t, masked(p), unnamed(text(after)), fmt.Sprint("cut at ", cut))
		require.GreaterOrEqual(t, len(after), len(before))
		require.Equal(t, "x", after[len(after)-1].code)
		require.InDelta(t, 3600, after[len(after)-1].at, 0.01)
	}
}

func TestAFileThatLostItsHeaderIsNotResumed(t *testing.T) {
	s := shelf(t)
	w, err := s.Create(testID, Start{At: began, Cols: 80, Rows: 24})
	require.NoError(t, err)
	require.NoError(t, w.Close())
	path, err := s.path(testID)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(path, 10))
	_, err = s.Resume(testID, Start{At: began})
	require.ErrorIs(t, err, errNoHeader)
	_, err = s.Resume("recbbbbbbbbbbbbbbbbbbbb", Start{At: began})
	require.True(t, fault.Is(err, fault.NotFound))
	_, err = s.Read("../../etc/passwd")
	require.True(t, fault.Is(err, fault.NotFound))
}

func TestReadingDropsALineThatIsNotWhole(t *testing.T) {
	s := shelf(t)
	w, err := s.Create(testID, Start{At: began, Cols: 80, Rows: 24})
	require.NoError(t, err)
	require.NoError(t, w.Output(began, 0, []byte("one")))
	require.NoError(t, w.Close())
	path, err := s.path(testID)
	require.NoError(t, err)
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString(`[0.1, "o", "tw`)
	require.NoError(t, errors.Join(err, f.Close()))
	_, events := play(t, s, testID)
	require.Equal(t, "one", text(events))
	// After a crash of the host a file may end in zeros, or hold half a line before others.
	w, err = s.Resume(testID, Start{At: began})
	require.NoError(t, err)
	require.EqualValues(t, 3, w.Next())
	require.NoError(t, w.Close())
}

func TestAGapIsTold(t *testing.T) {
	s := shelf(t)
	w, err := s.Create(testID, Start{At: began, Cols: 80, Rows: 24})
	require.NoError(t, err)
	require.NoError(t, w.Output(began, 0, []byte("one")))
	require.NoError(t, w.Output(began, 1000, []byte("two")))
	require.NoError(t, w.Close())
	_, events := play(t, s, testID)
	require.Equal(t, []event{{0, "o", "one"}, {0, "m", "gap: 997 bytes were lost"}, {0, "o", "two"}}, events)
	w, err = s.Resume(testID, Start{At: began})
	require.NoError(t, err)
	require.EqualValues(t, 1003, w.Next())
	require.NoError(t, w.Skip(began, 500, "the sandbox went back"))
	require.NoError(t, w.Close())
	w, err = s.Resume(testID, Start{At: began})
	require.NoError(t, err)
	require.EqualValues(t, 500, w.Next())
	require.NoError(t, w.Close())
}

func TestAFullRecordingGoesOnInTheNextPart(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	s := shelf(t)
	p := noiseWithSecrets(r, 60_000)
	all, off := "", int64(0)
	parts := 0
	for ; off < int64(len(p)); parts++ {
		id := fmt.Sprintf("rec%020d", parts)
		w, err := s.Create(id, Start{At: began, Cols: 80, Rows: 24, Offset: off, Max: 10_000, Secrets: secrets})
		require.NoError(t, err)
		for err == nil && off < int64(len(p)) {
			n := min(512, int64(len(p))-off)
			err = w.Output(began, off, p[off:off+n])
			off += n
		}
		if err != nil {
			require.ErrorIs(t, err, ErrFull)
			off = w.Next()
		}
		require.NoError(t, w.End(began, "limit"))
		require.Less(t, w.Size(), int64(12_000))
		_, events := play(t, s, id)
		all += text(events)
	}
	require.Greater(t, parts, 5)
	same(t, masked(p), unnamed(all), "all parts")
}

func TestWhatCannotBeWrittenLeavesWholeLines(t *testing.T) {
	s := shelf(t)
	w, err := s.Create(testID, Start{At: began, Cols: 80, Rows: 24})
	require.NoError(t, err)
	require.NoError(t, w.Output(began, 0, []byte("one")))
	require.NoError(t, w.Flush())
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	require.NoError(t, err)
	f := w.f
	w.f = full
	require.NoError(t, w.Output(began, 3, []byte("two")))
	require.Error(t, w.Flush())
	require.NoError(t, errors.Join(f.Close(), full.Close()))
	_, events := play(t, s, testID)
	require.Equal(t, "one", text(events))
}

func TestTimesNeverGoBackAndDoNotDrift(t *testing.T) {
	s := shelf(t)
	w, err := s.Create(testID, Start{At: began, Cols: 80, Rows: 24})
	require.NoError(t, err)
	at := began
	for i := range 1000 {
		at = at.Add(1234567 * time.Nanosecond)
		require.NoError(t, w.Output(at, int64(i), []byte("x")))
		require.NoError(t, w.Mark(at.Add(-time.Second), "earlier"))
	}
	require.NoError(t, w.Close())
	_, events := play(t, s, testID)
	require.InDelta(t, at.Sub(began).Seconds(), events[len(events)-1].at, 0.00001)
}

func TestTooManySecretsCannotBeRecorded(t *testing.T) {
	s := shelf(t)
	_, err := s.Create(testID, Start{At: began, Secrets: []Secret{{strings.Repeat("x", maxSecrets+1), "y"}}})
	require.ErrorIs(t, err, errSecrets)
	ids, err := s.IDs()
	require.NoError(t, err)
	require.Empty(t, ids)
}

func TestTheShelfIsForItsOwnerAlone(t *testing.T) {
	s := shelf(t)
	w, err := s.Create(testID, Start{At: began, Cols: 80, Rows: 24})
	require.NoError(t, err)
	require.NoError(t, w.Close())
	info, err := os.Stat(s.dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	path, err := s.path(testID)
	require.NoError(t, err)
	info, err = os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	ids, err := s.IDs()
	require.NoError(t, err)
	require.Equal(t, []string{testID}, ids)
	require.NoError(t, s.Remove(testID))
	require.NoError(t, s.Remove(testID))
}

func TestPolicies(t *testing.T) {
	require.NoError(t, DefaultPolicy().Check())
	for _, p := range []Policy{
		{"sometimes", false, 1, 1, 1},
		{Off, false, 0, 1, 1},
		{On, false, 1, 0, 1},
		{Always, false, 2, 1, 1},
		{On, false, 1, 1, 0},
		{On, false, MostMB + 1, MostTotal, 1},
		{On, false, 1, MostTotal + 1, 1},
		{On, false, 1, 1, MostDays + 1},
	} {
		require.True(t, fault.Is(p.Check(), fault.Invalid), "%v", p)
	}
}
