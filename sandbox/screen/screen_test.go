package screen

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Nothing of these may be left in a snapshot.
var harmful = []string{
	"\x05", "\x07", "\x1b[c", "\x1b[0c", "\x1b[>c", "\x1b[=c", "\x1bZ", "\u009a", "\x1b[5n", "\x1b[6n", "\x1b[?6n", "\x1b[?996n", "\u009b6n",
	"\x1b[\x0b6n", "\x1b[4$p", "\x1b[?2004$p", "\x1b[>q", "\x1b[>0q", "\x1b[14t", "\x1b[18t", "\x1b[21t", "\x1b[x", "\x1b[1;1;1;1;2;2*y",
	"\x1b[1$w", "\x1b[1$u", "\x1b[?4m", "\x1b[?u", "\x1b[5i", "\x1bP$qm\x1b\\", "\u0090$qm\u009c", "\x1bP+q544e\x1b\\", "\x1bPtmux;\x1b\x1b[c\x1b\\",
	"\x1b_Gi=31,a=q;AAAA\x1b\\", "\x1b^hello\x1b\\", "\x1bXhello\x1b\\", "\x1b]52;c;aGk=\x07", "\x1b]52;c;?\x07",
	"\x1b]52;c;" + strings.Repeat("QUJD", 230_000) + "\x07", "\x1b]10;?\x07", "\x1b]11;?\x1b\\", "\x1b]4;1;?\x07", "\x1b]9;hello\x07",
	"\x1b]7;file:///x\x07", "\x1b[6\x18", "\x1b]52;c;aGk=\x1b]52;c;aGk=\x07", "\x1b]0;x\u009b6n", "\xc2\x1b[c\x9b6n", "\x1b[2026$p",
}

// sequences gives those of output, without their numbers.
func sequences(p []byte) []string {
	var out []string
	var s scanner
	s.scan(p, func(t token, raw []byte, _ int) {
		switch t {
		case tokCSI, tokEsc:
			out = append(out, strings.Map(func(r rune) rune {
				if strings.ContainsRune("0123456789;:", r) && t == tokCSI {
					return -1
				}
				return r
			}, string(raw[1:])))
		case tokOSC:
			number, _, _ := strings.Cut(string(raw[2:]), ";")
			out = append(out, "]"+number)
		case tokString:
			out = append(out, "string")
		case tokC0:
			out = append(out, string(raw))
		}
	})
	return out
}

// harmless is all that a snapshot is made of.
var harmless = strings.Fields("c [C [H [J [K [X [m [r [?h [?l [h [l [g H 7 8 = n o (0 (A (B )0 )A *0 +0 ]8 ]2 ]4 ]10 ]11 ]12 \\")

func TestSnapshotsAskNothing(t *testing.T) {
	for _, seq := range harmful {
		s := New(80, 24)
		s.Write([]byte("before" + seq + "after"))
		for _, got := range sequences(s.Snapshot(192 << 10)) {
			switch got {
			case "\r", "\n", "\x18", "\x0e", "[ q", "[\"q":
			default:
				require.Contains(t, harmless, got, "%q", seq[:min(len(seq), 40)])
			}
		}
		require.Contains(t, string(s.Snapshot(192<<10)), "after")
	}
}

func TestWhatIsOpenGoesOn(t *testing.T) {
	for _, c := range []struct {
		printed string
		pending int
		suffix  string
	}{
		{"abc\x1b[38;5", 0, "\x1b[38;5"},
		{"abc\x1b", 0, "\x1b"},
		{"abc\x1b[1\b", 0, "\x1b[1"},
		{"abc\x1b]8;;http://x", len("\x1b]8;;http://x"), ""},
		{"abc\x1bP$q", len("\x1bP$q"), ""},
		{"abc\xe6\xbc", 2, ""},
		{"abc\xc2", 1, ""},
		{"abc", 0, ""},
		{"abc\x1b]52;c;" + strings.Repeat("A", 20_000), 0, "\x1b]9999;"},
		{"abc\x1b_" + strings.Repeat("A", 20_000), 0, "\x1b_"},
	} {
		s := New(80, 24)
		for i := range len(c.printed) {
			s.Write([]byte{c.printed[i]})
		}
		require.Equal(t, c.pending, s.Pending(), "%.40q", c.printed)
		require.True(t, strings.HasSuffix(string(s.Snapshot(192<<10)), c.suffix), "%.40q", c.printed)
	}
}

func TestAFullScreenProgramIsWholeHoweverLongItRuns(t *testing.T) {
	s := New(80, 24)
	write := func(p string) { s.Write([]byte(p)) }
	write("$ htop\r\n\x1b[?1049h\x1b[?1h\x1b=\x1b[?2004h\x1b[?1000h\x1b[?1002h\x1b[?1006h\x1b[?25l\x1b[2 q\x1b[1;1HTASKS never painted again\x1b[2;23r\x1b[?1004h")
	for i := range 20_000 {
		write(fmt.Sprintf("\x1b[5;%dH%d", i%70+1, i%10))
	}
	p := string(s.Snapshot(192 << 10))
	for _, part := range []string{"$ htop", "TASKS never painted again", "\x1b[?1047h", "\x1b[?1h", "\x1b=", "\x1b[?2004h", "\x1b[?1002h", "\x1b[?1006h", "\x1b[?25l", "\x1b[2 q", "\x1b[2;23r", "\x1b[?1004h"} {
		require.Contains(t, p, part)
	}
	require.NotContains(t, p, "\x1b[?1000h")
	require.Less(t, len(p), 4096)
	write("\x1b[?1049l\x1b[?1l\x1b>\x1b[?2004l\x1b[?1002l\x1b[?1006l\x1b[?25h\x1b[0 q\x1b[?1004l$ ")
	p = string(s.Snapshot(192 << 10))
	require.NotContains(t, p, "TASKS")
	require.NotContains(t, p, "\x1b[?1h")
}

func TestJoiningAStreamBeginsAtALine(t *testing.T) {
	s := New(20, 3)
	s.Join()
	s.Write([]byte("8;5;196mERR"))
	s.Write([]byte("OR\r\nwhole\r\n"))
	require.NotContains(t, string(s.Snapshot(192<<10)), "ERR")
	require.Contains(t, string(s.Snapshot(192<<10)), "whole")
}

func TestResizeKeepsText(t *testing.T) {
	s := New(20, 5)
	for i := range 9 {
		fmt.Fprintf(writer{s}, "line %d\r\n", i)
	}
	s.Write([]byte("a long line that goes over the edge\r\n$ "))
	s.Resize(60, 10)
	p := string(s.Snapshot(192 << 10))
	require.Contains(t, p, "a long line that goes over the edge\r\n$ ")
	require.Contains(t, p, "line 0\r\nline 1\r\n")
	s.Resize(10, 4)
	s.Resize(2, 1)
	s.Resize(80, 24)
	p = string(s.Snapshot(192 << 10))
	require.Contains(t, p, "line 3\r\nline 4\r\n")
}

type writer struct{ s *Screen }

func (w writer) Write(p []byte) (int, error) {
	w.s.Write(p)
	return len(p), nil
}

// The worst that a program can print stays within the limit, and within memory.
func TestSnapshotsAreBounded(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	s := New(500, 300)
	for y := range 320 {
		for x := range 500 {
			fmt.Fprintf(writer{s}, "\x1b[38;2;%d;%d;%d;48;2;1;2;%dm漢\u0301%c", rnd.IntN(256), y%256, x%256, x%256, 'a'+rune(x%26))
		}
	}
	require.LessOrEqual(t, len(s.Snapshot(192<<10)), 192<<10)
	require.LessOrEqual(t, len(s.history.text), 2*maxHistoryBytes+64<<10)
	for i := range 20_000 {
		fmt.Fprintf(writer{s}, "\x1b]8;;http://x/%d\x07x\x1b]4;%d;#123456\x07%c%c%c", i, i, 'a'+rune(i%26), 0x300+rune(i%100), 0x300+rune(i/100%100))
	}
	require.LessOrEqual(t, len(s.links.text), maxLinks)
	require.LessOrEqual(t, len(s.clusters.text), maxClusters)
	require.LessOrEqual(t, len(s.colours), maxColours)
	require.LessOrEqual(t, len(s.Snapshot(192<<10)), 192<<10)
}

func FuzzScreen(f *testing.F) {
	for seed := range 20 {
		f.Add(program(rand.New(rand.NewPCG(uint64(seed), 1)), 100, 40, 10, true, seed%2 == 0), uint8(seed))
	}
	for _, s := range harmful {
		if len(s) < 1000 {
			f.Add([]byte(s), uint8(1))
		}
	}
	f.Fuzz(func(t *testing.T, p []byte, at uint8) {
		s := New(20, 6)
		half := int(at) * len(p) / 256
		s.Write(p[:half])
		first := s.Snapshot(64 << 10)
		s.Resize(2+int(at)%50, 1+int(at)%9)
		s.Write(p[half:])
		s.Resize(20, 6)
		last := s.Snapshot(64 << 10)
		for _, snap := range [][]byte{first, last} {
			if len(snap) > 64<<10 {
				t.Fatalf("%d bytes", len(snap))
			}
			again := New(20, 6)
			again.Write(snap)
			if a, b := again.on.y, again.on.x; a < 0 || a >= 6 || b < 0 || b > 20 {
				t.Fatalf("the cursor is at %d,%d", b, a)
			}
			for _, q := range sequences(snap) {
				if strings.HasSuffix(q, "n") && q != "n" || strings.HasSuffix(q, "$p") || q == "string" || q == "[c" || q == "]52" {
					t.Fatalf("%q in %q", q, snap)
				}
			}
		}
	})
}

func BenchmarkScreen(b *testing.B) {
	for name, text := range map[string]string{
		"listing": strings.Repeat("\x1b[01;34mdir\x1b[0m  -rw-r--r-- 1 root root 4096 file name.txt\r\n", 64),
		"yes":     strings.Repeat("y\r\n", 1000),
		"lines":   strings.Repeat(strings.Repeat("0123456789", 7)+"\r\n", 64),
	} {
		b.Run(name, func(b *testing.B) {
			s := New(80, 24)
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				s.Write([]byte(text))
			}
		})
	}
	b.Run("snapshot", func(b *testing.B) {
		s := New(80, 24)
		s.Write([]byte(strings.Repeat("\x1b[01;34mdir\x1b[0m  -rw-r--r-- 1 root root 4096 file name.txt\r\n", 6000)))
		b.ReportAllocs()
		for b.Loop() {
			s.Snapshot(192 << 10)
		}
	})
}
