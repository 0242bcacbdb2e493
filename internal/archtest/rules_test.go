package archtest

import (
	"bytes"
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestOnePackageComment(t *testing.T) {
	docs := map[string][]string{}
	for _, f := range goFiles(t) {
		if strings.HasSuffix(f.ast.Name.Name, "_test") || f.test {
			continue
		}
		if _, seen := docs[f.pkg]; !seen {
			docs[f.pkg] = nil
		}
		if f.ast.Doc == nil {
			continue
		}
		docs[f.pkg] = append(docs[f.pkg], f.path)
		text := f.ast.Doc.Text()
		if !strings.Contains(text, "own") || !strings.Contains(text, "must") {
			t.Errorf("%s: the package comment says neither what the package owns nor what it must not do", f.path)
		}
	}
	for pkg, where := range docs {
		if len(where) != 1 {
			t.Errorf("package %s has %d package comments, not one: %v", pkg, len(where), where)
		}
	}
}

func TestTestsDoNotSleepOrSkip(t *testing.T) {
	for _, f := range goFiles(t) {
		for _, u := range f.qualified() {
			if f.test && u.importPath == "time" && u.name == "Sleep" {
				t.Errorf("%s:%d: a test waits for a condition with a deadline; it does not sleep", f.path, u.line)
			}
		}
		if f.pkg == "internal/testenv" {
			continue // the one place that knows which privileges are missing, and that fails instead where they are required
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, sel.Sel.Name) {
				if id, ok := sel.X.(*ast.Ident); ok && slices.Contains([]string{"t", "b", "tb", "f"}, id.Name) {
					t.Errorf("%s:%d: skipping is for internal/testenv, which fails instead in CI", f.path, f.fset.Position(call.Pos()).Line)
				}
			}
			return true
		})
	}
}

// A log is searched by its keys: an error stands under one of them.
func TestErrorsAreLoggedAsCause(t *testing.T) {
	makers := []string{"Debug", "Info", "Warn", "Error", "With", "String", "Any"}
	for _, f := range goFiles(t) {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !slices.Contains(makers, sel.Sel.Name) {
				return true
			}
			for _, arg := range call.Args {
				if lit, ok := arg.(*ast.BasicLit); ok && (lit.Value == `"err"` || lit.Value == `"error"`) {
					t.Errorf("%s:%d: an error is logged under %q, not %s", f.path, f.fset.Position(lit.Pos()).Line, "cause", lit.Value)
				}
			}
			return true
		})
	}
}

// longFiles may be longer than 500 lines, each for its reason.
var longFiles = map[string]string{}

func TestFilesAreShort(t *testing.T) {
	const most = 500
	for _, f := range goFiles(t) {
		if !f.generated && f.lines > most && longFiles[f.path] == "" {
			t.Errorf("%s has %d lines, over %d", f.path, f.lines, most)
		}
	}
	for _, name := range allFiles(t) {
		ext := path.Ext(name)
		if ext != ".ts" && ext != ".templ" && ext != ".css" && ext != ".sh" {
			continue
		}
		if n := bytes.Count(read(t, name), []byte("\n")); n > most && longFiles[name] == "" {
			t.Errorf("%s has %d lines, over %d", name, n, most)
		}
	}
	for name := range longFiles {
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			t.Errorf("%s is excepted from the length rule but is not there", name)
		}
	}
}

// forbidden text: unfinished work, and what only the machine of its author knows. Each is looked for as the plain words first,
// which is quick, and then as the pattern. Written in pieces, for this file is read too.
var forbidden = []struct {
	words   []string
	pattern *regexp.Regexp
}{
	{[]string{"TO" + "DO", "FIX" + "ME", "X" + "XX"}, regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|X` + `XX)\b`)},
	{[]string{"/work/" + "main", "/work/" + "shared"}, regexp.MustCompile(`/work/` + `(main|shared)\b`)},
	{[]string{"t.md", "n.md", "s.md", "r.md"}, regexp.MustCompile(`\b(contract|design|threats|gvisor|style|deps|terminal-files)` + `\.md\b`)},
	{[]string{".org"}, regexp.MustCompile(`proxy\.golang` + `\.org|registry\.npmjs` + `\.org|pypi` + `\.org|deb\.debian` + `\.org`)},
}

func TestNothingForbiddenIsWritten(t *testing.T) {
	binary := []string{".png", ".woff2", ".ico", ".gz", ".sum", ".json"}
	for _, name := range allFiles(t) {
		if slices.Contains(binary, path.Ext(name)) {
			continue
		}
		text := read(t, name)
		for _, f := range forbidden {
			if !slices.ContainsFunc(f.words, func(w string) bool { return bytes.Contains(text, []byte(w)) }) {
				continue
			}
			for _, at := range f.pattern.FindAllIndex(text, -1) {
				line := bytes.Count(text[:at[0]], []byte("\n")) + 1
				t.Errorf("%s:%d: %q may not stand in the tree", name, line, text[at[0]:at[1]])
			}
		}
	}
}

func TestMigrationsAreNumberedWithoutGaps(t *testing.T) {
	numbered := regexp.MustCompile(`^internal/store/migrations/(\d+)_[a-z0-9_]+\.sql$`)
	var seen []int
	for _, name := range allFiles(t) {
		if !strings.HasPrefix(name, "internal/store/migrations/") || path.Ext(name) != ".sql" {
			continue
		}
		m := numbered.FindStringSubmatch(name)
		if m == nil {
			t.Errorf("%s: a migration is called NNNN_what_it_does.sql", name)
			continue
		}
		n, err := strconv.Atoi(m[1])
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		seen = append(seen, n)
	}
	slices.Sort(seen)
	for i, n := range seen {
		if n != i+1 {
			t.Fatalf("migrations are numbered %v: gap or duplicate at %d", seen, i+1)
		}
	}
}

func TestModulesReplaceNothing(t *testing.T) {
	for _, name := range allFiles(t) {
		if path.Base(name) == "go.mod" && regexp.MustCompile(`(?m)^\s*replace\b`).Match(read(t, name)) {
			t.Errorf("%s has a replace directive: whoever builds from it would build something else", name)
		}
	}
}

func TestScriptsAreStrict(t *testing.T) {
	for _, name := range allFiles(t) {
		if path.Ext(name) != ".sh" && name != ".ci/run" {
			continue
		}
		if !bytes.Contains(read(t, name), []byte("set -euo pipefail")) {
			t.Errorf("%s: a script stops at the first failure (set -euo pipefail)", name)
		}
	}
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}
