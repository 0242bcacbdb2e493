package screen

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// oracle is the browser's own terminal, run by node.
type oracle struct {
	t   *testing.T
	in  io.WriteCloser
	out *bufio.Reader
}

type cut struct {
	At    int    `json:"at"`
	Paint []byte `json:"paint"`
}

func startOracle(t *testing.T) *oracle {
	t.Helper()
	cmd := exec.Command("node", "testdata/oracle.mjs")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start(), "node is needed, as for building the page")
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	return &oracle{t: t, in: in, out: bufio.NewReaderSize(out, 1<<20)}
}

// judge paints snapshots at several places of a program's output and gives what the oracle says about them.
func (o *oracle) judge(cols, rows int, all []byte, places []int) []string {
	o.t.Helper()
	s := New(cols, rows)
	var cuts []cut
	at := 0
	for _, place := range places {
		s.Write(all[at:place])
		at = place
		cuts = append(cuts, cut{place - s.Pending(), s.Snapshot(192 << 10)})
	}
	line, err := json.Marshal(map[string]any{"cols": cols, "rows": rows, "all": all, "cuts": cuts})
	require.NoError(o.t, err)
	_, err = o.in.Write(append(line, '\n'))
	require.NoError(o.t, err)
	answer, err := o.out.ReadBytes('\n')
	require.NoError(o.t, err)
	var said struct{ Faults []string }
	require.NoError(o.t, json.Unmarshal(answer, &said))
	return said.Faults
}

func rounds(usual int) int {
	if n, err := strconv.Atoi(os.Getenv("SANDGATE_SCREEN_ROUNDS")); err == nil && n > 0 {
		return n
	}
	return usual
}

// TestSnapshotsPaintWhatTheBrowserShows lets the browser's own terminal judge: it must show the same behind a snapshot as one that
// saw all output, at the place of the snapshot and at the end of what comes after.
func TestSnapshotsPaintWhatTheBrowserShows(t *testing.T) {
	o := startOracle(t)
	for seed := range rounds(12) {
		rnd := rand.New(rand.NewPCG(uint64(seed), 7))
		cols, rows := 2+rnd.IntN(90), 2+rnd.IntN(30)
		if seed%3 == 0 {
			cols, rows = 80, 24
		}
		all := program(rnd, 200+rnd.IntN(600), cols, rows, seed%5 != 0, seed%4 == 0)
		var places []int
		for range 4 {
			places = append(places, rnd.IntN(len(all)+1))
		}
		sortInts(places)
		if faults := o.judge(cols, rows, all, places); len(faults) > 0 {
			o.report(seed, cols, rows, all, places, faults)
		}
	}
}

// report finds the shortest beginning of the program that is wrong already.
func (o *oracle) report(seed, cols, rows int, all []byte, places []int, faults []string) {
	o.t.Helper()
	wrong := func(end int) []string { return o.judge(cols, rows, all[:end], []int{end}) }
	low, high := 0, len(all)
	for _, step := range []int{512, 64} {
		for i := low + step; i < high; i += step {
			if len(wrong(i)) > 0 {
				low, high = i-step, i
				break
			}
		}
	}
	for end := low + 1; end <= high; end++ {
		if f := wrong(end); len(f) > 0 {
			from := max(0, end-300)
			require.Fail(o.t, "a snapshot is wrong", "seed %d, %d×%d, after %d bytes: …%q\n%s", seed, cols, rows, end, all[from:end], strings.Join(f, "\n"))
		}
	}
	require.Fail(o.t, "a snapshot is wrong", "seed %d, %d×%d, places %v of %d\n%s", seed, cols, rows, places, len(all), strings.Join(faults, "\n"))
}

func sortInts(v []int) {
	for i := range v {
		for j := i; j > 0 && v[j-1] > v[j]; j-- {
			v[j-1], v[j] = v[j], v[j-1]
		}
	}
}

// program makes random output: text of all widths, moves, erasures, modes, half of it as programs do and half as nobody would.
func program(rnd *rand.Rand, n, cols, rows int, wraps, sets bool) []byte {
	var out strings.Builder
	pick := func(of ...string) string { return of[rnd.IntN(len(of))] }
	number := func() string {
		return pick("", "", "0", "1", "2", "3", strconv.Itoa(rnd.IntN(cols+3)), strconv.Itoa(rnd.IntN(rows+3)), "999")
	}
	words := []string{"hello", "x", "the quick brown fox ", "漢字", "한국어", "é", "e\u0301", "👨‍👩‍👧", "🇨🇭🇩🇪", "☺\ufe0f", "\u0301", "a\u0300\u0301", "ᄀᄀ각ᆨ", "ก็", "😀", "─│┌", "\u200d", "\u00ad", "क्षि", "\xff\xfe", "\ufeff", "~`_qx#"}
	private := "1 6 25 45 66 1000 1002 1006 1004 2004 12 9"
	if !wraps {
		// A character that joins one which found no place at the edge ends up where no output can put it: none of those here.
		private += " 7"
		words = words[:7]
	}
	shifts, cursors, screens := []string{"\x07"}, []string{"\x1b7", "\x1b8", "\x1b[s", "\x1b[u"}, []string{"\x1b[?1049h", "\x1b[?1049l", "\x1b[?1048h", "\x1b[?1048l"}
	lines := "7" // no line below: a restored cursor hides its style, and a link shows it again, where no output can put it
	if sets {
		lines = "4 4:3 21 24 58;5;3 59"
		// A saved cursor brings a character set back that is none of the four: no output can do that without saving one.
		shifts = []string{"\x0e", "\x0f", "\x1b(0", "\x1b(B", "\x1b)0", "\x1b(A", "\x1bn", "\x1b+0"}
		cursors, screens = shifts, []string{"\x1b[?47h", "\x1b[?47l"}
	}
	for range n {
		switch rnd.IntN(22) {
		case 0, 1, 2, 3, 4, 5:
			out.WriteString(pick(words...))
		case 6:
			out.WriteString(strings.Repeat(pick("-", "ab ", "漢"), 1+rnd.IntN(cols)))
		case 7, 8:
			out.WriteString(pick("\r\n", "\r\n", "\n", "\r", "\b", "\t", "\v", "\f", "\x7f", pick(shifts...)))
		case 9, 10:
			out.WriteString("\x1b[" + number() + pick("A", "B", "C", "D", "E", "F", "G", "`", "a", "d", "e", "I", "Z"))
		case 11:
			fmt.Fprintf(&out, "\x1b[%s;%s%s", number(), number(), pick("H", "H", "f", "r"))
		case 12, 13:
			// Not 1J: in the last row at the right edge the browser's terminal stumbles over its own feet.
			out.WriteString("\x1b[" + pick("", "?") + pick("J", "0J", "2J", "K", "0K", "1K", "2K", "1K"))
		case 14:
			out.WriteString("\x1b[" + number() + pick("L", "M", "@", "P", "X", "S", "T", "b", " @", " A", "'}", "'~"))
		case 15, 16:
			out.WriteString("\x1b[" + pick("", "0", "1", "2", "3", pick(strings.Fields(lines)...), pick(strings.Fields(lines)...), "5", "7", "8", "9", "22", "27", "31", "42", "95", "103", "38;5;200", "48;5;17", "38;2;1;2;3", "48:2::9:8:7", "53", "39", "49", "1;31;44", "0;7", "38:5:9") + "m")
		case 17:
			out.WriteString(pick(pick(cursors...), pick(cursors...), pick(shifts...), "\x1bD", "\x1bE", "\x1bM", "\x1bH", "\x1b[g", "\x1b[3g", "\x1b#8", "\x1b[1\"q", "\x1b[\"q", "\u0084", "\u0085"))
		case 18:
			out.WriteString("\x1b[?" + pick(strings.Fields(private)...) + pick("h", "h", "l"))
		case 19:
			out.WriteString(pick(pick(screens...), pick(screens...), "\x1b[?47h", "\x1b[?47l", "\x1b[?1047l", "\x1b[4h", "\x1b[4l", "\x1b[20h", "\x1b[20l", "\x1b=", "\x1b>", "\x1b[3 q", "\x1b[6 q", "\x1b[0 q"))
		case 20:
			out.WriteString(pick("\x1b]8;;https://e.org/\x1b\\", "\x1b]8;id=1;http://x\x07", "\x1b]8;;\x07", "\x1b]2;a title\x07", "\x1b]0;über\x1b\\", "\x1b]11;#102030\x07", "\x1bPx\x1b\\", "\x1b_y\x1b\\", "\x1b]52;c;aGk=\x07", "\x1b[", "\x1b", "\x1b]0;half", "\x1b[3\x18", "\u009b2C", "\x1b[<1h", "\x1b[1?2h", "\x1b[6n", "\x1b[c", "\x1bP$qm\x1b\\"))
		case 21:
			if rnd.IntN(8) == 0 {
				out.WriteString(pick("\x1bc", "\x1b[!p", "\x1b[3J"))
			}
		}
	}
	return []byte(out.String())
}
