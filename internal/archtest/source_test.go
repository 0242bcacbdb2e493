package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const root = "../.."

// notOurs are directories that hold no source of this module.
var notOurs = []string{".git", "node_modules", "bin", "dist", "testdata"}

// file is one parsed Go file of the module.
type file struct {
	path      string // slash-separated, from the top of the tree
	pkg       string // directory, from the top of the tree
	test      bool
	generated bool
	lines     int
	fset      *token.FileSet
	ast       *ast.File
}

type located struct {
	text string
	line int
}

type use struct {
	importPath, name string
	line             int
}

// tree lists every file of the tree by its slash-separated path, without the directories that are not ours.
var tree = sync.OnceValues(func() ([]string, error) {
	var out []string
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains(notOurs, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		if d.Type().IsRegular() && rel != ".git" { // a file in a worktree of git
			out = append(out, filepath.ToSlash(rel))
		}
		return nil
	})
	return out, err
})

func allFiles(t *testing.T) []string {
	t.Helper()
	files, err := tree()
	if err != nil {
		t.Fatal(err)
	}
	return files
}

var parsed = sync.OnceValues(func() ([]file, error) {
	names, err := tree()
	if err != nil {
		return nil, err
	}
	var out []file
	for _, name := range names {
		// tools holds modules of their own.
		if path.Ext(name) != ".go" || strings.HasPrefix(name, "tools/") {
			continue
		}
		src, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return nil, err
		}
		fset := token.NewFileSet()
		tree, err := parser.ParseFile(fset, name, src, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		out = append(out, file{
			path: name, pkg: path.Dir(name), test: strings.HasSuffix(name, "_test.go"),
			generated: ast.IsGenerated(tree), lines: strings.Count(string(src), "\n"), fset: fset, ast: tree,
		})
	}
	return out, nil
})

func goFiles(t *testing.T) []file {
	t.Helper()
	files, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 10 {
		t.Fatalf("only %d Go files found from %s: the rules would hold for nothing", len(files), root)
	}
	return files
}

func (f file) imports() []string {
	var out []string
	for _, spec := range f.ast.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// qualified lists the uses pkg.Name of imported packages.
func (f file) qualified() []use {
	names := map[string]string{}
	for _, spec := range f.ast.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		name := path.Base(p)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = p
	}
	var out []use
	ast.Inspect(f.ast, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if id, ok := sel.X.(*ast.Ident); ok && names[id.Name] != "" {
			out = append(out, use{names[id.Name], sel.Sel.Name, f.fset.Position(sel.Pos()).Line})
		}
		return true
	})
	return out
}

// strings lists string literals, import paths excepted.
func (f file) strings() []located {
	var out []located
	for _, decl := range f.ast.Decls {
		if g, ok := decl.(*ast.GenDecl); ok && g.Tok == token.IMPORT {
			continue
		}
		ast.Inspect(decl, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				out = append(out, located{lit.Value, f.fset.Position(lit.Pos()).Line})
			}
			return true
		})
	}
	return out
}
