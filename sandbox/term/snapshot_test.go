package term

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// nothing of these may be left of a replay.
var harmful = map[string]string{
	"ENQ":                      "\x05",
	"bell":                     "\x07",
	"DA1":                      "\x1b[c",
	"DA1 with a number":        "\x1b[0c",
	"DA2":                      "\x1b[>c",
	"DA3":                      "\x1b[=c",
	"DECID":                    "\x1bZ",
	"DECID, 8 bit":             "\u009a",
	"status":                   "\x1b[5n",
	"cursor position":          "\x1b[6n",
	"DEC cursor position":      "\x1b[?6n",
	"colour scheme":            "\x1b[?996n",
	"status, 8 bit":            "\u009b6n",
	"status around a control":  "\x1b[\x0b6n",
	"DECRQM":                   "\x1b[4$p",
	"DECRQM, private":          "\x1b[?2004$p",
	"XTVERSION":                "\x1b[>q",
	"XTVERSION with a number":  "\x1b[>0q",
	"window size":              "\x1b[14t",
	"text area":                "\x1b[18t",
	"title report":             "\x1b[21t",
	"DECREQTPARM":              "\x1b[x",
	"DECRQCRA":                 "\x1b[1;1;1;1;2;2*y",
	"DECRQPSR":                 "\x1b[1$w",
	"DECRQTSR":                 "\x1b[1$u",
	"key settings":             "\x1b[?4m",
	"kitty keyboard":           "\x1b[?u",
	"print":                    "\x1b[5i",
	"DECRQSS":                  "\x1bP$qm\x1b\\",
	"DECRQSS, 8 bit":           "\u0090$qm\u009c",
	"XTGETTCAP":                "\x1bP+q544e\x1b\\",
	"tmux passthrough":         "\x1bPtmux;\x1b\x1b[c\x1b\\",
	"kitty graphics":           "\x1b_Gi=31,a=q;AAAA\x1b\\",
	"PM":                       "\x1b^hello\x1b\\",
	"SOS":                      "\x1bXhello\x1b\\",
	"title":                    "\x1b]0;evil\x07",
	"icon":                     "\x1b]1;evil\x1b\\",
	"title, 8 bit":             "\u009d2;evil\u009c",
	"clipboard":                "\x1b]52;c;aGk=\x07",
	"clipboard query":          "\x1b]52;c;?\x07",
	"clipboard, 9 MB":          "\x1b]52;c;" + strings.Repeat("QUJD", 2_300_000) + "\x07",
	"foreground query":         "\x1b]10;?\x07",
	"background query":         "\x1b]11;?\x1b\\",
	"palette query":            "\x1b]4;1;?\x07",
	"notification":             "\x1b]9;hello\x07",
	"directory":                "\x1b]7;file:///x\x07",
	"abandoned query":          "\x1b[6\x18",
	"OSC ended by a new OSC":   "\x1b]52;c;aGk=\x1b]52;c;aGk=\x07",
	"OSC cut by an 8-bit CSI":  "\x1b]0;x\u009b6n",
	"8-bit CSI by stripping":   "\xc2\x1b[c\x9b6n",
	"query inside a long text": "\x1b]2;" + strings.Repeat("é", 5000) + "\x1b\\",
}

// harmless must come through unchanged.
var harmless = map[string]string{
	"text":           "hello 漢字 \x1b[1mbold\x1b[0m\r\n\ttab\b",
	"accents":        "café Â£ ÂÂ",
	"colour":         "\x1b[38;5;196mred\x1b[48;2;1;2;3m",
	"sub-parameters": "\x1b[4:3m",
	"moves":          "\x1b[H\x1b[2J\x1b[10;5H\x1b[3A\x1b[K\x1b[2S\x1b[u\x1b[s",
	"modes":          "\x1b[?1049h\x1b[?25l\x1b[?2004h\x1b[4h",
	"soft reset":     "\x1b[!p",
	"cursor shape":   "\x1b[5 q",
	"charset":        "\x1b(0qqq\x1b(B\x0e\x0f",
	"bytes":          "\xff\xfe\x80\x9b6n", // a lone 0x9b is no CSI to the browser
	"colour set":     "\x1b]11;#000000\x1b\\",
	"hyperlink":      "\x1b]8;;https://example.org/?a=b\x1b\\link\x1b]8;;\x1b\\",
}

func TestReplayAsksNothing(t *testing.T) {
	for name, seq := range harmful {
		t.Run(name, func(t *testing.T) {
			got := string(strip(nil, []byte("before"+seq+"after")))
			got = strings.ReplaceAll(got, "\x0b", "")
			require.Equal(t, "beforeafter", strings.Replace(got, "\x9b6n", "", 1)) // a lone 0x9b is no control

			// The same through a tracker, cut anywhere: whatever a snapshot shows, it asks nothing.
			if len(seq) > 100 {
				return
			}
			all := []byte("before" + seq + "after")
			for cut := range all {
				r, tr := newRing(1<<20), newTracker()
				for _, part := range [][]byte{all[:cut], all[cut:]} {
					r.append(part)
					tr.write(part)
					p, next := tr.snapshot(r)
					body := strings.TrimPrefix(string(p), "\x18\x1bc")
					require.Equal(t, string(strip(nil, []byte(body))), body, "cut at %d", cut)
					require.LessOrEqual(t, next, r.next)
				}
				p, next := tr.snapshot(r)
				require.Equal(t, r.next, next)
				require.Equal(t, "\x18\x1bc"+string(strip(nil, all)), string(p))
			}
		})
	}
}

func TestReplayKeepsTheRest(t *testing.T) {
	for name, seq := range harmless {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, seq, string(strip(nil, []byte(seq))))
		})
	}
}

func TestSnapshotWaitsForTheEndOfASequence(t *testing.T) {
	for _, c := range []struct{ printed, painted, rest string }{
		{"abc\x1b[38;5", "abc", "\x1b[38;5"},
		{"abc\x1b", "abc", "\x1b"},
		{"abc\x1b]8;;http://x", "abc", "\x1b]8;;http://x"},
		{"abc\xc2\x9b1", "abc", "\xc2\x9b1"},
		{"abc\xe6\xbc", "abc", "\xe6\xbc"},
		{"abc\xc2", "abc", "\xc2"},
		{"abc\x1b(", "abc", "\x1b("},
	} {
		r, tr := newRing(1<<20), newTracker()
		for i := range len(c.printed) {
			r.append([]byte{c.printed[i]})
			tr.write([]byte{c.printed[i]})
		}
		p, next := tr.snapshot(r)
		require.Equal(t, "\x18\x1bc"+c.painted, string(p))
		require.EqualValues(t, len(c.printed)-len(c.rest), next)
	}

	// An endless string is swallowed, not shown.
	r, tr := newRing(1<<20), newTracker()
	r.append([]byte("abc\x1b]52;c;" + strings.Repeat("A", 20_000)))
	tr.write([]byte("abc\x1b]52;c;" + strings.Repeat("A", 20_000)))
	p, next := tr.snapshot(r)
	require.Equal(t, "\x18\x1bcabc\x1b]9999;", string(p))
	require.Equal(t, r.next, next)
}

func TestSnapshotOfAFullScreenProgram(t *testing.T) {
	r, tr := newRing(4<<20), newTracker()
	write := func(s string) {
		r.append([]byte(s))
		tr.write([]byte(s))
	}
	write("$ vim\r\n\x1b[?1049h\x1b[?1h\x1b=\x1b[?2004h\x1b[?1000h\x1b[?1002h\x1b[?1006h\x1b[?25l\x1b[2 q\x1b[1;23r\x1b(0\x1b[?1004h\x1b[4h")
	for i := range 60_000 { // far beyond the window: only the tracker knows the modes
		write(fmt.Sprintf("\x1b[%d;%dHx%06d", i%24+1, i%80+1, i))
	}
	p, next := tr.snapshot(r)
	require.Equal(t, r.next, next)
	require.LessOrEqual(t, len(p), maxSnapshot+512)
	head := string(p[:200])
	for _, mode := range []string{"\x18\x1bc", "\x1b[?1049h", "\x1b[?1h", "\x1b=", "\x1b[?2004h", "\x1b[?1002h", "\x1b[?1006h", "\x1b[?25l", "\x1b[2 q", "\x1b[1;23r", "\x1b(0", "\x1b[?1004h", "\x1b[4h"} {
		require.Contains(t, head, mode)
	}
	require.NotContains(t, head, "\x1b[?1000h")
	require.True(t, strings.HasSuffix(string(p), "x059999"))
	require.Contains(t, string(p), "x055000", "the window is used")

	write("\x1b[?1049l\x1b[?1l\x1b>\x1b[?2004l\x1b[?1002l\x1b[?1006l\x1b[?25h\x1b[0 q\x1b[r\x1b(B\x1b[?1004l\x1b[4l$ ")
	write(strings.Repeat("line\r\n", 100_000))
	p, _ = tr.snapshot(r)
	require.Equal(t, "\x18\x1bc\x1b[0 qline\r\n", string(p[:len("\x18\x1bc\x1b[0 qline\r\n")]))
}

func TestModesFollowResets(t *testing.T) {
	for printed, want := range map[string]string{
		"\x1b[?25l\x1bc":                        "",
		"\x1b[?1h\x1b[!p":                       "",
		"\x1b[?1049h\x1b[?1000h\x1b[?7l\x1b[!p": "\x1b[?1049h\x1b[?1000h",
		"\x1b[1;4m\x1b[31m":                     "\x1b[1;4m\x1b[31m",
		"\x1b[1;4m\x1b[m":                       "",
		"\x1b[1m\x1b[0m":                        "",
		"\x1b[1m\x1b[0;31m":                     "\x1b[0;31m",
		"\x1b[?7l":                              "\x1b[?7l",
		"\x1b[?1;25;2004h\x1b[?25l":             "\x1b[?1h\x1b[?25l\x1b[?2004h",
		"\x1b[20h\x0e":                          "\x1b[20h\x0e",
		"\x1b[?1000h\x1b[?1002h\x1b[?1002l":     "",
	} {
		tr := newTracker()
		tr.write([]byte(printed))
		require.Equal(t, want, string(tr.modes.restore(nil)), "%q", printed)
	}
	tr := newTracker()
	for i := range 1000 {
		tr.write(fmt.Appendf(nil, "\x1b[38;5;%dm", i%256))
	}
	require.LessOrEqual(t, len(tr.modes.style), maxStyle)
	require.True(t, strings.HasPrefix(tr.modes.style, "\x1b[38;5;"))
}

// A snapshot plus the output from its offset on must show what an uninterrupted reader saw, wherever it is taken.
func TestSnapshotStartsOnlyAtSafePlaces(t *testing.T) {
	r, tr := newRing(64<<10), newTracker()
	var line strings.Builder
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range 6_000 {
		line.Reset()
		fmt.Fprintf(&line, "\x1b[38;5;%dm漢字%d\x1b[0m\r\n", i%256, i)
		text := line.String()
		for len(text) > 0 {
			n := min(len(text), 1+rnd.IntN(9))
			r.append([]byte(text[:n]))
			tr.write([]byte(text[:n]))
			text = text[n:]
		}
		if i%100 != 0 {
			continue
		}
		p, next := tr.snapshot(r)
		body := strings.TrimPrefix(string(p), "\x18\x1bc")
		require.True(t, strings.HasPrefix(body, "\x1b[38;5;"), "%q", body[:min(20, len(body))])
		require.True(t, strings.HasSuffix(body, fmt.Sprintf("%d\x1b[0m\r\n", i)))
		require.Equal(t, r.next, next)
	}
}

func TestRingKeepsTheNewest(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for _, limit := range []int{1, 7, 1000, ringStart + 5} {
		r := newRing(limit)
		var all []byte
		for range 500 {
			p := make([]byte, rnd.IntN(limit/3+2))
			for i := range p {
				p[i] = byte(rnd.Uint32())
			}
			r.append(p)
			all = append(all, p...)
			require.EqualValues(t, len(all), r.next)
			require.EqualValues(t, max(0, len(all)-limit), r.oldest())
			got := make([]byte, limit)
			n := r.copyAt(got, r.oldest())
			require.Equal(t, string(all[r.oldest():]), string(got[:n]))
		}
	}
}

func TestPartialTail(t *testing.T) {
	for s, want := range map[string]int{
		"": 0, "a": 0, "é": 0, "\xc3": 1, "a\xe2\x80": 2, "\xf0\x9f\x98": 3, "😀": 0, "\xff": 0, "\x80": 0,
		"\x80\x80\x80\x80": 0, "\xe2\xff": 0, "\xe0\x80": 0, "\xed\xa0": 0, "\xf5\x80": 0, "\xc3\x28": 0,
	} {
		require.Equal(t, want, partialTail([]byte(s)), "%q", s)
	}
}

func FuzzStrip(f *testing.F) {
	for _, seqs := range []map[string]string{harmful, harmless} {
		for _, s := range seqs {
			if len(s) < 1000 {
				f.Add([]byte(s))
			}
		}
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		once := strip(nil, p)
		if twice := strip(nil, once); string(once) != string(twice) {
			t.Fatalf("a second pass changes %q to %q", once, twice)
		}
	})
}

func BenchmarkTracker(b *testing.B) {
	block := []byte(strings.Repeat("\x1b[01;34mdir\x1b[0m  -rw-r--r-- 1 root root 4096 file name.txt\r\n", 64))
	tr := newTracker()
	b.SetBytes(int64(len(block)))
	for b.Loop() {
		tr.write(block)
	}
}
