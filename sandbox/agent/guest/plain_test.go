package guest_test

import (
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/sandbox/agent"
)

// TestPlainLinesMeanWhatBashMeans runs each line as it is and with its first word quoted, which makes it bash's to decide.
func TestPlainLinesMeanWhatBashMeans(t *testing.T) {
	client, dir := newAgent(t)
	for name, text := range map[string]string{
		"greet":   "#!/bin/sh\necho script \"$@\"\nexit 3\n",
		"lines":   "echo no interpreter named\nexit 4\n",
		"nothing": "#!/no/such/interpreter\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "data"), []byte("#!/bin/sh\n"), 0o644))
	run := func(line string, env map[string]string) (agent.Exit, *output) {
		var out output
		exit, err := client.Run(within(t, 20*time.Second), agent.CommandSpec{ID: newID(), Command: line, Cwd: dir, Env: env}, &out)
		require.NoError(t, err, line)
		return exit, &out
	}
	for _, c := range []struct {
		line string
		env  map[string]string
	}{
		{"true", nil},
		{"false", nil},
		{"env", nil},
		{"\tenv  ", nil},
		{"env", map[string]string{"A": "b", "SHLVL": "7"}},
		{"ls -la", nil},
		{"basename a/b.c .c", nil},
		{"dd if=/dev/null of=/dev/null status=none", nil},
		{"./greet one two", nil},
		{"./lines", nil},
		{"./nothing", nil},
		{"./data", nil},
		{dir, nil},
		{"greet", map[string]string{"PATH": dir}},
		{"greet", map[string]string{"PATH": "."}},
		{"greet", nil},
		{"no-such-program-at-all -x", nil},
		{"-n", nil}, // no options of the shell
		{"-c true", nil},
		{"--version", nil},
		{"printenv PWD", nil},
		{"printenv _", nil},
		{"true", map[string]string{"BASH_ENV": filepath.Join(dir, "lines")}},
		{"true", map[string]string{"BASH_FUNC_true%%": "() { echo mine; }"}},
	} {
		line := strings.TrimLeft(c.line, "\t")
		first, rest, _ := strings.Cut(line, " ")
		plain, have := run(c.line, c.env)
		bash, want := run(`"`+first+`" `+rest, c.env)
		require.Equal(t, bash.Code, plain.Code, c.line)
		require.Equal(t, sorted(string(want.out)), sorted(string(have.out)), c.line)
		require.Equal(t, string(want.err), string(have.err), c.line)
	}
}

// sorted ignores the order of lines and the one variable that differs from call to call.
func sorted(s string) []string {
	var out []string
	for _, line := range strings.Split(s, "\n") {
		if !strings.HasPrefix(line, "SANDGATE_CMD=") {
			out = append(out, line)
		}
	}
	sort.Strings(out)
	return out
}
