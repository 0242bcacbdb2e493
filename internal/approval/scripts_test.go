package approval

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Files that a command names to be run are found, where they are; what is computed is said to be.
func TestScriptsThatACommandNames(t *testing.T) {
	for _, c := range []struct {
		command string
		paths   []string
		unsure  []string // a part of each sentence
	}{
		{"python train.py --lr 0.1", []string{"/work/train.py"}, nil},
		{"python3.13 -u -W ignore -Xdev ./a/train.py", []string{"/work/a/train.py"}, nil},
		{"python -c 'print(1)' x.py; python -m http.server", nil, []string{"option -m"}},
		{"python -uc 'print(1)'", nil, nil},
		{"bash x.sh; sh -eux /opt/y.sh; bash -o pipefail z.sh", []string{"/work/x.sh", "/opt/y.sh", "/work/z.sh"}, nil},
		{"bash -c 'python in.py' x.sh", []string{"/work/in.py"}, nil},
		{"./run.sh a b && /work/bin/tool", []string{"/work/run.sh", "/work/bin/tool"}, nil},
		{"/usr/bin/python3 x.py && /work/venv/bin/python y.py", []string{"/work/x.py", "/work/venv/bin/python", "/work/y.py"}, nil},
		{"sudo -u nobody timeout 5 python x.py", []string{"/work/x.py"}, nil},
		{`python "a b.py"; python "$X"; $Y z.py`, []string{"/work/a b.py"}, []string{"python runs cannot be told: the name is computed", "name of a program is computed"}},
		{"curl http://x.example | sh", nil, []string{"standard input"}},
		{"cat x.sh | bash -s a", nil, []string{"option -s"}},
		{"cd sub && python x.py", []string{"/work/sub/x.py"}, nil},
		{"cd /srv/app && make && python x.py | tee log", []string{"/srv/app/x.py"}, nil},
		{"cd sub; python x.py; python /abs.py", []string{"/abs.py"}, []string{"x.py is depends on the directory"}},
		{"cd a || cd b && python x.py", nil, []string{"depends on the directory"}},
		{"(cd a && true) && python x.py", nil, []string{"depends on the directory"}},
		{"! cd a && python x.py", nil, []string{"depends on the directory"}},
		{"cd a && true || python x.py", nil, []string{"depends on the directory"}},
		{"cd $X && python x.py", nil, []string{"depends on the directory"}},
		{"sudo -i python x.py", nil, []string{"depends on the directory"}},
		{"python ../x.py", nil, []string{"cannot be told with certainty"}},
		{"source env.sh; . ./more.sh", []string{"/work/more.sh"}, []string{"in PATH first"}},
		{"ls | xargs python", nil, []string{"xargs can run other programs"}},
		{"perl -we 'print 1'; perl x.pl; ruby -rjson y.rb; node z.js; node --import q z.js; php -f w.php; Rscript v.R", []string{"/work/x.pl", "/work/z.js", "/work/v.R"}, []string{"option -rjson", "option --import", "option -f"}},
		{"python x.py; python ./x.py", []string{"/work/x.py"}, nil},
		{"echo 'unfinished", nil, []string{"not a well-formed script"}},
		{"PATH=/work/bin python x.py", []string{"/work/x.py"}, []string{"changes which programs run"}},
		{"echo hi > x; rm -rf /work/y", nil, nil},
		{
			"python a.py; python b.py; python c.py; python d.py; python e.py; python f.py; python g.py; python h.py; python i.py",
			[]string{"/work/a.py", "/work/b.py", "/work/c.py", "/work/d.py", "/work/e.py", "/work/f.py", "/work/g.py", "/work/h.py"},
			[]string{"more files"},
		},
	} {
		list, unsure := Scripts(c.command, "/work", nil)
		var paths []string
		for _, s := range list {
			paths = append(paths, s.Path)
		}
		require.Equal(t, c.paths, paths, c.command)
		require.Len(t, unsure, len(c.unsure), "%s: %q", c.command, unsure)
		for _, part := range c.unsure {
			require.True(t, containsPart(unsure, part), "%s: %q has no %q", c.command, unsure, part)
		}
	}
}

func containsPart(list []string, part string) bool {
	return slices.ContainsFunc(list, func(s string) bool { return strings.Contains(s, part) })
}
