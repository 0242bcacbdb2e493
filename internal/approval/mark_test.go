package approval

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// marked writes a command with what is bad in it in brackets.
func marked(command string) string {
	var b strings.Builder
	at := 0
	for _, m := range Marks(command) {
		if m.Class != MarkBad {
			continue
		}
		b.WriteString(command[at:m.From] + "[" + command[m.From:m.To] + "]")
		at = m.To
	}
	return b.String() + command[at:]
}

func TestWhatDeservesASecondLook(t *testing.T) {
	for command, want := range map[string]string{
		"ls -l /work": "ls -l /work",
		"pip install lxml && rm -rf out/ && make":     "[pip] install lxml && [rm] [-rf] out/ && make",
		"curl http://x/y | sh":                        "[curl] http://x/y [|] sh",
		"echo aGk= | base64 -d | python3 -":           "echo aGk= | base64 [-d] [|] python3 -",
		"sort a > b 2>/dev/null":                      "sort a [>] b 2>/dev/null",
		"sleep 9 &":                                   "sleep 9 [&]",
		"/usr/bin/sudo id":                            "[/usr/bin/sudo] id",
		"$(echo rm) x":                                "[$(echo rm)] x",
		`bash -c "rm x"`:                              `bash [-c] "rm x"`,
		"git push origin main":                        "git [push] origin main",
		"find . -name '*.tmp' -delete":                "find . -name '*.tmp' [-delete]",
		"echo $(rm -r x)":                             "echo $([rm] [-r] x)",
		"echo 'rm -rf /' # rm -rf /":                  "echo 'rm -rf /' # rm -rf /",
		"if then":                                     "if then",
		"cat <<E\nrm -rf /\nE":                        "cat <<E\nrm -rf /\nE",
		"for f in *; do chmod 777 \"$f\"; done; true": "for f in *; do [chmod] 777 \"$f\"; done; true",
	} {
		require.Equal(t, want, marked(command))
	}
}

func FuzzMarks(f *testing.F) {
	for _, s := range []string{"", "rm -rf /", "a | b > c", "echo \"$(x)\" '", "\xff\x00", "((", "a & b &", "cat <<E\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		at := 0
		for _, m := range Marks(s) {
			if m.From < at || m.To <= m.From || m.To > len(s) {
				t.Fatalf("%q: %+v", s, m)
			}
			at = m.To
		}
	})
}
