package approval

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// Mark is the meaning of a run of bytes of a command, for the eye. It decides nothing.
type Mark struct {
	From, To int
	Class    string // prog, str, op, var, note or bad
	Why      string // of a bad one: what it may do
}

// Classes of marks.
const (
	MarkProgram  = "prog"
	MarkString   = "str"
	MarkOperator = "op"
	MarkVariable = "var"
	MarkComment  = "note"
	MarkBad      = "bad"
)

// risky tells programs that deserve a second look, with what they may do.
var risky = map[string]string{
	"rm": "deletes files", "shred": "destroys files", "dd": "writes raw bytes over files and devices", "truncate": "cuts files", "mkfs": "destroys a file system",
	"find": "", "xargs": "", "sudo": "runs something as another user", "su": "runs something as another user", "doas": "runs something as another user",
	"chmod": "changes who may use files", "chown": "changes who owns files", "setcap": "gives programs more rights", "eval": "runs text as a command",
	"curl": "talks to the network", "wget": "talks to the network", "nc": "talks to the network", "ncat": "talks to the network", "socat": "talks to the network",
	"ssh": "talks to the network", "scp": "sends files away", "rsync": "copies files, maybe away", "telnet": "talks to the network",
	"git": "", "pip": "installs code of others", "pip3": "installs code of others", "npm": "installs code of others", "npx": "runs code of others",
	"apt": "installs packages", "apt-get": "installs packages", "dpkg": "installs packages", "crontab": "runs something later", "at": "runs something later",
	"nohup": "goes on after the command", "setsid": "goes on after the command", "disown": "goes on after the command", "kill": "ends processes", "pkill": "ends processes", "killall": "ends processes",
	"base64": "", "source": "runs a file in this shell", ".": "runs a file in this shell", "exec": "replaces the shell", "mv": "moves files over others", "mount": "changes what directories show", "iptables": "changes the network", "nft": "changes the network",
}

// runsText are programs that run text which comes to them.
var runsText = []string{"sh", "bash", "dash", "zsh", "ksh", "fish", "python", "python3", "perl", "ruby", "node", "php"}

// Marks takes a command apart for the eye: in order, without overlaps. What cannot be parsed has none.
func Marks(command string) []Mark {
	if len(command) > maxScript {
		return nil
	}
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash), syntax.KeepComments(true)).Parse(strings.NewReader(command), "")
	if err != nil {
		return nil
	}
	m := &marker{}
	syntax.Walk(file, m.visit)
	return m.sorted(len(command))
}

type marker struct{ out []Mark }

func (m *marker) add(from, to syntax.Pos, class, why string) {
	if from.IsValid() && to.IsValid() {
		m.out = append(m.out, Mark{int(from.Offset()), int(to.Offset()), class, why})
	}
}

func (m *marker) visit(n syntax.Node) bool {
	switch n := n.(type) {
	case *syntax.Comment:
		m.add(n.Pos(), n.End(), MarkComment, "")
	case *syntax.SglQuoted:
		m.add(n.Pos(), n.End(), MarkString, "")
	case *syntax.DblQuoted:
		m.add(n.Pos(), n.End(), MarkString, "")
	case *syntax.ParamExp:
		m.add(n.Pos(), n.End(), MarkVariable, "")
	case *syntax.BinaryCmd:
		m.binary(n)
	case *syntax.Stmt:
		if n.Background {
			m.out = append(m.out, Mark{int(n.Semicolon.Offset()), int(n.Semicolon.Offset()) + 1, MarkBad, "goes on in the background"})
		}
	case *syntax.Redirect:
		m.redirect(n)
	case *syntax.CallExpr:
		m.program(n)
	}
	return true
}

func (m *marker) binary(n *syntax.BinaryCmd) {
	from := int(n.OpPos.Offset())
	op := Mark{from, from + len(n.Op.String()), MarkOperator, ""}
	if (n.Op == syntax.Pipe || n.Op == syntax.PipeAll) && slices.Contains(runsText, programOf(n.Y)) {
		op.Class, op.Why = MarkBad, "what comes out of the left is run as a program"
	}
	m.out = append(m.out, op)
}

func programOf(s *syntax.Stmt) string {
	c, ok := s.Cmd.(*syntax.CallExpr)
	if !ok || len(c.Args) == 0 {
		return ""
	}
	name, _ := word(c.Args[0])
	return path.Base(name)
}

func (m *marker) redirect(n *syntax.Redirect) {
	from := int(n.OpPos.Offset())
	mark := Mark{from, from + len(n.Op.String()), MarkOperator, ""}
	target := ""
	if n.Word != nil {
		target, _ = word(n.Word)
	}
	writes := n.Op == syntax.RdrOut || n.Op == syntax.RdrClob || n.Op == syntax.RdrAll || n.Op == syntax.RdrInOut
	if writes && target != "/dev/null" {
		mark.Class, mark.Why = MarkBad, "writes over a file"
	}
	m.out = append(m.out, mark)
}

func (m *marker) program(n *syntax.CallExpr) {
	if len(n.Args) == 0 {
		return
	}
	name, certain := word(n.Args[0])
	base := path.Base(name)
	why, bad := risky[base]
	why, bad = m.argued(n, base, why, bad)
	switch {
	case !certain:
		m.add(n.Args[0].Pos(), n.Args[0].End(), MarkBad, "which program it is is computed")
	case bad && why != "":
		m.add(n.Args[0].Pos(), n.Args[0].End(), MarkBad, why)
	default:
		m.add(n.Args[0].Pos(), n.Args[0].End(), MarkProgram, "")
	}
}

// argued looks at arguments that make a program risky, and marks them.
func (m *marker) argued(n *syntax.CallExpr, base, why string, bad bool) (string, bool) {
	for i, w := range n.Args[1:] {
		arg, ok := word(w)
		if !ok {
			continue
		}
		switch {
		case base == "rm" && strings.HasPrefix(arg, "-") && !strings.HasPrefix(arg, "--") && strings.ContainsAny(arg, "rRf"),
			base == "find" && (arg == "-delete" || strings.HasPrefix(arg, "-exec")),
			base == "git" && i == 0 && slices.Contains([]string{"push", "clean", "reset", "checkout", "clone", "pull", "fetch"}, arg),
			base == "base64" && (arg == "-d" || arg == "--decode" || arg == "-D"),
			slices.Contains(runsText, base) && (arg == "-c" || arg == "-e"):
			m.add(w.Pos(), w.End(), MarkBad, map[string]string{
				"rm": "deletes without asking, whole directories too", "find": "does something to everything that it finds",
				"git": "changes files, or talks to the network", "base64": "what is run or written cannot be read here",
			}[base])
			if last := &m.out[len(m.out)-1]; last.Why == "" {
				last.Why = "runs the text that follows"
			}
		}
	}
	return why, bad
}

// sorted puts marks in order and drops what lies in another: of two that begin together the bad one, then the longer, stays.
func (m *marker) sorted(size int) []Mark {
	slices.SortStableFunc(m.out, func(a, b Mark) int {
		bad := func(x Mark) int {
			if x.Class == MarkBad {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(bad(a), bad(b)), cmp.Compare(b.To, a.To))
	})
	var out []Mark
	end := 0
	for _, k := range m.out {
		if k.From < end || k.To > size || k.From >= k.To {
			continue
		}
		out = append(out, k)
		end = k.To
	}
	return out
}
