package approval

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"
)

// Script is a file that a command names to be run.
type Script struct {
	Program string // that runs it; "" for a program that is named by its path
	Path    string // absolute, as it is named, links not followed
}

// Bounds of what Scripts tells.
const (
	MaxScripts = 8
	maxUnsure  = 10
)

// Scripts gives the files that a command line names to be run: "python train.py", "bash x.sh", "./run.sh". cwd is where it
// starts. unsure says in words what it may run beside those, as far as the line shows that. It never guesses: what is computed
// is in no list of files.
func Scripts(command, cwd string, env map[string]string) (list []Script, unsure []string) {
	f := &finder{}
	parsed := parse(command, env)
	dir, known := workdir(parsed, command, cwd, env)
	for _, c := range parsed.Commands {
		for _, n := range f.named(c) {
			f.add(n, dir, known)
		}
	}
	for _, why := range parsed.Hidden {
		f.unsure("That it runs no other files is not certain: " + why + ".")
	}
	return f.list, f.words
}

// named is a file as a command names it.
type named struct{ program, name string }

type finder struct {
	list  []Script
	words []string
}

func (f *finder) unsure(words string) {
	if len(f.words) < maxUnsure && !slices.Contains(f.words, words) {
		f.words = append(f.words, words)
	}
}

func (f *finder) add(n named, dir string, known bool) {
	at := n.name
	switch {
	case at == "" || !utf8.ValidString(at) || slices.Contains(strings.Split(at, "/"), ".."):
		f.unsure("Which file " + brief(n.name) + " is cannot be told with certainty.")
		return
	case !strings.HasPrefix(at, "/") && !known:
		f.unsure("Which file " + brief(n.name) + " is depends on the directory, which the command changes.")
		return
	case !strings.HasPrefix(at, "/"):
		at = dir + "/" + at
	}
	s := Script{n.program, path.Clean(at)}
	switch {
	case slices.ContainsFunc(f.list, func(have Script) bool { return have.Path == s.Path }):
	case len(f.list) == MaxScripts:
		f.unsure("It runs more files than are looked at.")
	default:
		f.list = append(f.list, s)
	}
}

// brief shortens a word of a command line for a sentence.
func brief(s string) string {
	const most = 60
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}

var python = regexp.MustCompile(`^(python|pypy)[23]?(\.\d+)?$`)

// named gives the files that one simple command names to be run.
func (f *finder) named(c simple) (out []named) {
	if c.certain == 0 {
		return nil // a doubt of the parser's
	}
	base := path.Base(c.argv[0])
	if byPath(c.argv[0]) {
		out = append(out, named{"", c.argv[0]})
	}
	what, why := argument{}, ""
	switch {
	case slices.Contains(shells, base):
		what, why = optioned(c, "oO", "c", "s")
	case python.MatchString(base):
		what, why = optioned(c, "WX", "c", "m")
	case base == "perl":
		what, why = optioned(c, "", "eE", "nplaiFIMmsSxd")
	case base == "ruby":
		what, why = optioned(c, "", "e", "nplaiFIrSxCX")
	case base == "php":
		what, why = optioned(c, "", "r", "fFBERSatz")
	case base == "node" || base == "nodejs":
		what, why = optioned(c, "", "ep", "rC")
	case base == "Rscript":
		what, why = optioned(c, "", "e", "")
	case base == "source" || base == ".":
		what, why = optioned(c, "", "", "")
		if what.word != "" && !strings.Contains(what.word, "/") {
			what, why = argument{}, "without a slash it is looked for in PATH first"
		}
	default:
		return out
	}
	if why != "" {
		f.unsure("Which file " + brief(base) + " runs cannot be told: " + why + ".")
	} else if what.word != "" {
		out = append(out, named{base, what.word})
	}
	return out
}

// argument is the first word that is no option; "": the text that is run is part of the command.
type argument struct{ word string }

// optioned goes over the options of an interpreter: those with values, those whose value is the text that is run, and
// those that make it run something else. Long ones are not known.
func optioned(c simple, valued, text, other string) (argument, string) {
	for i := 1; ; i++ {
		switch {
		case i >= len(c.argv):
			return argument{}, "it reads what it runs from its standard input"
		case i >= c.certain:
			return argument{}, "the name is computed"
		}
		w := c.argv[i]
		switch {
		case w == "-":
			return argument{}, "it reads what it runs from its standard input"
		case w == "--" && i+1 < c.certain:
			return argument{c.argv[i+1]}, ""
		case w == "--":
			return argument{}, "the name is computed"
		case strings.HasPrefix(w, "--"):
			return argument{}, "it has the option " + brief(w)
		case !strings.HasPrefix(w, "-") && (!strings.HasPrefix(w, "+") || len(w) == 1):
			return argument{w}, ""
		}
		for j, letter := range w[1:] {
			switch {
			case strings.ContainsRune(text, letter):
				return argument{}, ""
			case strings.ContainsRune(other, letter):
				return argument{}, "it has the option " + brief(w)
			case strings.ContainsRune(valued, letter):
				if j+2 == len(w) {
					i++ // its value
				}
			default:
				continue
			}
			break
		}
	}
}

// workdir tells in which directory relative names are: where the command starts, or where "cd there && …" at its very
// beginning goes; known is false where that is not certain.
func workdir(parsed script, command, cwd string, env map[string]string) (dir string, known bool) {
	moves := 0
	for _, c := range parsed.Commands {
		if c.certain == 0 {
			continue
		}
		switch path.Base(c.argv[0]) {
		case "cd", "pushd", "popd", "chroot", "unshare":
			moves++
		case "sudo", "doas":
			if slices.Contains(c.argv, "-i") || slices.Contains(c.argv, "-D") {
				return "", false
			}
		}
	}
	if moves == 0 {
		return cwd, true
	}
	first := parsed.Commands[0]
	if moves > 1 || env["CDPATH"] != "" || len(first.argv) != 2 || first.certain != 2 || first.argv[0] != "cd" || !beginsWithAnd(command) {
		return "", false
	}
	to := first.argv[1]
	switch {
	case to == "" || strings.HasPrefix(to, "-") || slices.Contains(strings.Split(to, "/"), ".."):
		return "", false
	case strings.HasPrefix(to, "/"):
		return to, true
	}
	return cwd + "/" + to, true
}

// beginsWithAnd reports whether a line is one chain "first && …" in which nothing runs when the first fails.
func beginsWithAnd(command string) bool {
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(command), "")
	if err != nil || len(file.Stmts) != 1 {
		return false
	}
	stmt := file.Stmts[0]
	for {
		if stmt.Negated {
			return false
		}
		switch c := stmt.Cmd.(type) {
		case *syntax.BinaryCmd:
			if c.Op != syntax.AndStmt {
				return false
			}
			stmt = c.X
		case *syntax.CallExpr:
			return stmt != file.Stmts[0] && !stmt.Background
		default:
			return false
		}
	}
}
