package approval

import (
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// script is what a command line is made of.
type script struct {
	Commands []simple // those inside of wrappers beside the wrapper
	Unsure   string   // why it is not certain that these are all; "": they are
	Hidden   []string // doubts for which there may be further ones, that are not among Commands
}

// simple is one command. Words after the certain ones are as they were written.
type simple struct {
	argv    []string
	certain int // how many of its words, from the first, are what the program gets
}

// Bounds of what is taken apart.
const (
	maxScript = 64 << 10 // bytes
	maxNested = 8        // shells in shells
	maxWords  = 4096     // simple commands
)

// parse takes a script apart that bash would run. It never guesses: what is not literal makes it unsure.
func parse(text string, env map[string]string) script {
	p := &parser{}
	for name := range env {
		if changesPrograms(name) {
			p.doubt("the variable " + name + " changes which programs run")
		}
	}
	p.script(text, 0)
	return p.out
}

type parser struct{ out script }

func (p *parser) doubt(why string) {
	p.named(why)
	if len(p.out.Hidden) < maxNested && !slices.Contains(p.out.Hidden, why) {
		p.out.Hidden = append(p.out.Hidden, why)
	}
}

// named is a doubt about a file that the command names: rules ask, and Scripts finds which file it is.
func (p *parser) named(why string) {
	if p.out.Unsure == "" {
		p.out.Unsure = why
	}
}

func (p *parser) script(text string, depth int) {
	switch {
	case len(text) > maxScript:
		p.doubt("it is too long to be taken apart")
		return
	case depth > maxNested:
		p.doubt("shells are nested too deep")
		return
	case strings.ContainsFunc(text, func(r rune) bool { return r == 0 || r == '\r' || r == '\uFFFD' }):
		p.doubt("it holds characters that shells read differently")
	}
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text), "")
	if err != nil {
		p.doubt("it is not a well-formed script")
		return
	}
	syntax.Walk(file, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.CallExpr:
			p.call(n, depth)
		case *syntax.FuncDecl:
			p.doubt("it defines a function")
		case *syntax.DeclClause:
			for _, a := range n.Args {
				p.assign(a)
			}
		case *syntax.ProcSubst:
			p.doubt("it hands output to a program as a file")
		case *syntax.CoprocClause:
			p.doubt("it starts a coprocess")
		}
		return true
	})
}

func (p *parser) assign(a *syntax.Assign) {
	if a.Name == nil || changesPrograms(a.Name.Value) {
		p.doubt("it sets a variable that changes which programs run")
	}
}

// changesPrograms tells variables by which a shell or a loader runs something else than what is named.
func changesPrograms(name string) bool {
	return slices.Contains([]string{
		"PATH", "BASH_ENV", "ENV", "IFS", "SHELLOPTS", "BASHOPTS", "PS4", "PROMPT_COMMAND", "CDPATH", "BASH_LOADABLES_PATH", "HASH_CMDS", "BASH_CMDS",
		"BASH_ALIASES", "PERL5OPT", "PERL5LIB", "RUBYOPT", "NODE_OPTIONS", "PYTHONSTARTUP", "GIT_SSH_COMMAND", "PAGER", "EDITOR", "VISUAL", "HOME", "SHELL",
	}, name) || strings.HasPrefix(name, "LD_") || strings.HasPrefix(name, "BASH_FUNC_") || strings.HasPrefix(name, "PYTHON")
}

func (p *parser) call(c *syntax.CallExpr, depth int) {
	for _, a := range c.Assigns {
		p.assign(a)
	}
	if len(c.Args) == 0 {
		return
	}
	if len(p.out.Commands) >= maxWords {
		p.doubt("it holds too many commands")
		return
	}
	argv := make([]string, 0, len(c.Args))
	literal := 0 // leading words that are certain
	for i, w := range c.Args {
		text, ok := word(w)
		if ok && literal == i {
			literal++
		}
		if !ok {
			text = source(w)
		}
		argv = append(argv, text)
	}
	if literal == 0 {
		p.doubt("the name of a program is computed")
	}
	p.out.Commands = append(p.out.Commands, simple{argv, literal})
	if literal > 0 {
		p.inside(argv, literal, depth)
	}
}

// word gives a word that is certain: text and quotes only, nothing that the shell would replace.
func word(w *syntax.Word) (string, bool) {
	var b strings.Builder
	for _, part := range w.Parts {
		if !literal(&b, part, false) {
			return "", false
		}
	}
	return b.String(), true
}

func literal(b *strings.Builder, part syntax.WordPart, quoted bool) bool {
	switch part := part.(type) {
	case *syntax.Lit:
		return plain(b, part.Value, quoted)
	case *syntax.SglQuoted:
		if part.Dollar { // $'…' has escapes of its own
			return false
		}
		b.WriteString(part.Value)
		return true
	case *syntax.DblQuoted:
		if part.Dollar {
			return false
		}
		for _, inner := range part.Parts {
			if !literal(b, inner, true) {
				return false
			}
		}
		return true
	}
	return false
}

// plain takes backslashes off unquoted or double-quoted text; false for what the shell would expand.
func plain(b *strings.Builder, text string, quoted bool) bool {
	if !quoted && (strings.HasPrefix(text, "~") || strings.ContainsAny(text, "*?[{")) {
		return false
	}
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' || i+1 == len(text) {
			b.WriteByte(text[i])
			continue
		}
		next := text[i+1]
		switch {
		case next == '\n': // a continued line
			i++
		case quoted && !strings.ContainsRune("$`\"\\", rune(next)):
			b.WriteByte('\\')
		default:
			b.WriteByte(next)
			i++
		}
	}
	return true
}

// source gives a word as it was written.
func source(w *syntax.Word) string {
	var b strings.Builder
	if syntax.NewPrinter().Print(&b, w) != nil {
		return "?"
	}
	return b.String()
}

// Programs that run what their arguments name, with the options that take a value of their own. Anything else that such
// a program is given makes the script unsure.
var wrappers = map[string]string{
	"env": "", "nohup": "", "nice": "n", "ionice": "cn", "time": "", "setsid": "", "stdbuf": "ioe", "command": "", "exec": "a", "builtin": "",
	"sudo": "ugpCTrth", "doas": "uC", "timeout": "ks", "busybox": "", "toybox": "", "chrt": "", "taskset": "", "unshare": "", "chroot": "",
}

var shells = []string{"sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "rbash", "fish", "hush"}

// Words that make a shell do something else than what is written.
var evaluators = []string{
	"eval", "source", ".", "alias", "unalias", "trap", "enable", "hash", "shopt", "set", "bind", "complete", "mapfile", "readarray", "read",
	"xargs", "parallel", "watch", "script", "su", "runuser", "at", "batch", "crontab", "gdb", "strace", "ltrace", "expect", "entr", "flock",
	"ld.so", "ld-linux-x86-64.so.2",
}

// Arguments by which a program runs another, where most uses of it do not.
var executes = map[string][]string{
	"find":   {"-exec", "-execdir", "-ok", "-okdir"},
	"tar":    {"-I", "--to-command", "--checkpoint-action", "--use-compress-program", "-F", "--info-script", "--rsh-command"},
	"printf": {"-v"},
}

// byPath reports whether a program is named by a path outside of where the image keeps programs.
func byPath(name string) bool {
	return strings.Contains(name, "/") && !slices.Contains([]string{"/bin", "/usr/bin", "/usr/local/bin", "/sbin", "/usr/sbin", "/usr/local/sbin"}, path.Dir(name))
}

func (p *parser) inside(argv []string, literal, depth int) {
	name := path.Base(argv[0])
	if byPath(argv[0]) {
		p.named("a program that is run by its path may be another one under that name")
	}
	switch {
	case slices.Contains(shells, name):
		p.shell(argv, literal, depth)
	case name == "source" || name == ".":
		p.named(name + " can run other programs")
	case slices.Contains(evaluators, name):
		p.doubt(name + " can run other programs")
	case executes[name] != nil:
		for _, w := range argv[1:] {
			if slices.ContainsFunc(executes[name], func(option string) bool { return strings.HasPrefix(w, option) }) || strings.ContainsAny(w, "$`") {
				p.doubt(name + " can run other programs")
			}
		}
	default:
		if options, ok := wrappers[name]; ok {
			p.wrapper(name, options, argv, literal, depth)
		}
	}
}

// shell follows -c into its text; a file or standard input cannot be seen from here.
func (p *parser) shell(argv []string, literal, depth int) {
	for i := 1; i < len(argv); i++ {
		if i >= literal {
			break
		}
		w := argv[i]
		if !strings.HasPrefix(w, "-") || strings.HasPrefix(w, "--") {
			break
		}
		if strings.HasSuffix(w, "c") && strings.Trim(w[1:], "ceux") == "" {
			if i+1 < literal {
				p.script(argv[i+1], depth+1)
				return
			}
			break
		}
		if strings.Trim(w[1:], "eux") != "" {
			break
		}
	}
	p.named(path.Base(argv[0]) + " runs a script that is not part of the command")
}

func (p *parser) wrapper(name, valued string, argv []string, literal, depth int) {
	if depth > maxNested {
		p.doubt("programs that run programs are nested too deep")
		return
	}
	i := 1
	for ; i < literal; i++ {
		w := argv[i]
		switch {
		case w == "--":
			i++
		case strings.HasPrefix(w, "-") && len(w) == 2 && strings.Contains(valued, w[1:]):
			i++ // its value
			continue
		case strings.HasPrefix(w, "-") && name != "env" && len(w) == 2:
			continue
		case strings.HasPrefix(w, "-") && len(w) == 2 && strings.Contains("i0v", w[1:]): // of env
			continue
		case strings.HasPrefix(w, "-"):
			p.doubt(name + " has an option that may change what it runs")
			return
		case (name == "env" || name == "sudo") && strings.Contains(w, "="):
			if n, _, _ := strings.Cut(w, "="); changesPrograms(n) {
				p.doubt("it sets a variable that changes which programs run")
			}
			continue
		}
		break
	}
	if name == "timeout" || name == "taskset" || name == "chrt" || name == "chroot" {
		i++ // the time, the mask, the priority, the root
	}
	if i >= literal {
		if i < len(argv) {
			p.doubt("what " + name + " runs is computed")
		}
		return
	}
	if name == "chroot" || name == "unshare" {
		p.doubt(name + " changes where programs are found")
	}
	p.out.Commands = append(p.out.Commands, simple{argv[i:], literal - i})
	p.inside(argv[i:], literal-i, depth+1)
}
