package guest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// A command line of plain words, "python train.py --epochs 3", means the same to bash as to execve: bash would look the
// first word up in PATH and become that program. Starting it without bash saves the shell's own start, which is most of
// what a short command costs in gVisor. Whatever could mean more to bash (a builtin, a quote, an assignment, a program
// that cannot be found or executed) is left to bash, so that its answer and its words are bash's.

// bashWords are builtins and reserved words: bash would not run a program of that name. true and false are missing on
// purpose: their programs do the same.
var bashWords = strings.Fields(`
	. : [ alias bg bind break builtin caller case cd command compgen complete compopt continue coproc declare dirs disown do
	done echo elif else enable esac eval exec exit export fc fg fi for function getopts hash help history if in jobs kill let
	local logout mapfile popd printf pushd pwd read readarray readonly return select set shift shopt source suspend test then
	time times trap type typeset ulimit umask unalias unset until wait while`)

// bashEnv are variables by which bash does more than run the line, or which it would change; so do those that begin with BASH.
var bashEnv = []string{"SHELLOPTS", "ENV", "POSIXLY_CORRECT", "SHLVL", "_"}

// plainProgram gives the program and arguments of a line of plain words, or false where bash has to decide.
func plainProgram(line, dir string, env []string) (path string, argv []string, ok bool) {
	for _, c := range []byte(line) {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte(" \t_-+./,:=@%", c) >= 0) {
			return "", nil, false
		}
	}
	argv = strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' })
	if len(argv) == 0 || strings.ContainsAny(argv[0], "=%+@") || slices.Contains(bashWords, argv[0]) {
		return "", nil, false
	}
	search := ""
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		switch {
		case name == "PATH":
			search = value
		case slices.Contains(bashEnv, name), strings.HasPrefix(name, "BASH"):
			return "", nil, false // bash would do more than run the line
		}
	}
	if strings.Contains(argv[0], "/") {
		path = argv[0]
		return path, argv, executable(dir, path)
	}
	for _, d := range strings.Split(search, ":") {
		if !strings.HasPrefix(d, "/") {
			return "", nil, false
		}
		if path = filepath.Join(d, argv[0]); executable(dir, path) {
			return path, argv, true
		}
	}
	return "", nil, false
}

func executable(dir, path string) bool {
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().IsRegular() && fi.Mode().Perm()&0o111 != 0
}

// program is what a command line is started as.
type program struct {
	path string
	argv []string
	env  []string
	tree bool // executing it does not fail for what is in it, so that the starter may do it
	line bool // it stands for bash: what fails to start is bash's to explain
}

// programOf gives the program itself where the line is plain and bash is the shell, else the shell.
func programOf(line string, attr *syscall.ProcAttr) (p program, otherwise program) {
	shellPath, name := shell()
	// What begins with a dash is a command too, not an option of the shell.
	otherwise = program{path: shellPath, argv: []string{name, "-c", "--", line}, env: attr.Env, tree: true}
	if name == "bash" {
		if path, argv, ok := plainProgram(line, attr.Dir, attr.Env); ok {
			// SHLVL and _ as bash leaves them.
			return program{path: path, argv: argv, env: append(slices.Clip(attr.Env), "SHLVL=0", "_="+path), tree: native(attr.Dir, path), line: true}, otherwise
		}
	}
	return otherwise, otherwise
}

// startProgram starts p with attr's streams.
func (s *Server) startProgram(p, otherwise program, attr *syscall.ProcAttr) (pid int, done <-chan syscall.WaitStatus, err error) {
	start := s.children.start
	if p.tree {
		start = s.startTree
	}
	with := *attr
	with.Env = p.env
	if pid, done, err = start(p.path, p.argv, &with); err == nil || !p.line {
		return pid, done, err
	}
	// No permission, no interpreter, no program format: bash says so in its words, or runs it as a script.
	return s.startTree(otherwise.path, otherwise.argv, attr)
}
