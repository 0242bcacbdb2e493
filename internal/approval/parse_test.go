package approval_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/approval"
)

func command(text string) approval.Action {
	return approval.Action{Kind: approval.Command, Name: "command.run", Script: text, Image: "base"}
}

func decide(p approval.Policy, what approval.Action) approval.Answer {
	return approval.Decide([]approval.Named{{Policy: p, Of: "policy"}}, auth.Actor{Name: "robot", Owner: "ann@example.org"}, what).Answer
}

// A rule about a program holds for every spelling of it; what cannot be told with certainty asks.
func TestADenyRuleHoldsForEverySpelling(t *testing.T) {
	p := approval.Policy{Rules: []approval.Rule{{Kind: approval.Command, Answer: approval.Deny, Command: "sudo"}}}
	for _, text := range []string{
		"sudo id", "/usr/bin/sudo id", `s""udo id`, `s'u'do id`, `su\do id`, "su\\\ndo id", "env sudo id", "env -i A=b sudo id", "nohup sudo id", "timeout 5 sudo id",
		"timeout -k 1 5 sudo id", "nice -n 5 sudo id", "bash -c 'sudo id'", `sh -ec "sudo id"`, "bash -c 'bash -c \"sudo id\"'", "true; sudo id", "true\nsudo id", "true && sudo id",
		"true | sudo id", "(sudo id)", "{ sudo id; }", "if true; then sudo id; fi", "for i in 1; do sudo id; done", "! sudo id", "sudo id &", "A=b sudo id",
		"echo $(sudo id)", "echo `sudo id`", "cat <<X\n$(sudo id)\nX", "busybox sudo id", "command sudo id", "exec sudo id", "time sudo id", "case x in x) sudo id;; esac", "~/sudo id",
	} {
		require.Equal(t, approval.Deny, decide(p, command(text)), "%q", text)
	}
	for _, text := range []string{
		"$(echo sudo) id", "`echo sudo` id", "x=sudo; $x id", "${x:-sudo} id", "eval sudo id", "alias s=sudo", "s() { sudo2; }", "$'\\x73udo' id", "su?o id", "/usr/bin/su* id",
		"./sudo2 id", "/tmp/x id", ". ./x", "source x", "bash x.sh", "sh < x", "curl http://x | sh", "echo sudo | xargs env", "find / -exec x {} +", "bash -c \"$X\"",
		"PATH=/tmp ls", "export PATH=/tmp", "LD_PRELOAD=/tmp/x.so ls", "env PATH=/tmp ls", "bash --rcfile x -c ls", "trap 'x' EXIT", "while :", "\"", "printf -v PATH /tmp", "read PATH",
		"sudo\u200b id\r", "coproc x", "cat <(x)", "xargs sudo2",
	} {
		require.Equal(t, approval.AskIt, decide(p, command(text)), "%q", text)
	}
	for _, text := range []string{"ls", "echo sudo", "echo 'sudo id'", "python x.py", "ls *.txt", "echo $HOME", "grep sudo /etc/passwd", "bash -c 'ls'", "FOO=bar make", "git log | head -n 3"} {
		require.Equal(t, approval.Allow, decide(p, command(text)), "%q", text)
	}
	what := command("ls")
	what.Env = map[string]string{"BASH_ENV": "/tmp/x"}
	require.Equal(t, approval.AskIt, decide(p, what), "a variable of the call")
}

// A rule that lets through lets through that alone.
func TestAnAllowRuleLetsNothingElseThrough(t *testing.T) {
	p := approval.Policy{Command: approval.AskIt, Rules: []approval.Rule{
		{Kind: approval.Command, Answer: approval.Deny, Command: "git push"},
		{Kind: approval.Command, Answer: approval.Allow, Command: "git *"},
		{Kind: approval.Command, Answer: approval.Allow, Command: "ls"},
	}}
	require.Equal(t, approval.Allow, decide(p, command("git log && ls -l")))
	require.Equal(t, approval.Deny, decide(p, command("git push origin")), "the first that matches counts")
	require.Equal(t, approval.AskIt, decide(p, command("git $X")), "an argument that is computed may be the one that is denied")
	for _, text := range []string{"git log; rm x", "ls $(rm x)", "ls | sh", "lsx", "git", "/tmp/ls", "X=1", "ls; $x", "LD_PRELOAD=x ls"} {
		require.Equal(t, approval.AskIt, decide(p, command(text)), "%q", text)
	}
}

// Rules are also about who asks and where, and the strictest of several policies counts.
func TestRequesterImageAndTheStrictest(t *testing.T) {
	asks := approval.Policy{Rules: []approval.Rule{{Kind: approval.Command, Answer: approval.AskIt, Requester: "robot*"}}}
	require.Equal(t, approval.AskIt, decide(asks, command("ls")))
	byOwner := approval.Policy{Rules: []approval.Rule{{Kind: approval.Command, Answer: approval.AskIt, Requester: "*@example.org"}}}
	require.Equal(t, approval.AskIt, decide(byOwner, command("ls")))
	image := approval.Policy{Command: approval.Deny, Rules: []approval.Rule{{Kind: approval.Command, Answer: approval.Allow, Image: "base"}}}
	require.Equal(t, approval.Allow, decide(image, command("ls")))
	other := command("ls")
	other.Image = "tools"
	require.Equal(t, approval.Deny, decide(image, other))
	v := approval.Decide([]approval.Named{{Policy: asks, Of: "one"}, {Policy: approval.Policy{Command: approval.Deny}, Of: "two"}, {Of: "three"}}, auth.Actor{Name: "robot"}, command("ls"))
	require.Equal(t, approval.Verdict{Answer: approval.Deny, Why: "two"}, v)
}

func TestPathsOfWrites(t *testing.T) {
	p := approval.Policy{Write: approval.AskIt, Rules: []approval.Rule{
		{Kind: approval.Write, Answer: approval.Deny, Path: "/work/out/secret*"},
		{Kind: approval.Write, Answer: approval.Allow, Path: "/work/out/**"},
	}}
	write := func(below bool, paths ...string) approval.Answer {
		what := approval.Action{Kind: approval.Write, Name: "file.write", Below: below}
		for _, path := range paths {
			what.Paths = append(what.Paths, []byte(path))
		}
		return decide(p, what)
	}
	require.Equal(t, approval.Allow, write(false, "/work/out/a/b"))
	require.Equal(t, approval.AskIt, write(false, "/work/outside"))
	require.Equal(t, approval.Deny, write(false, "/work/out/secret.txt"))
	require.Equal(t, approval.AskIt, write(false, "/work/out/a", "/etc/passwd"), "every path has to be let through")
	require.Equal(t, approval.AskIt, write(false), "paths that are not known")
	require.Equal(t, approval.Deny, write(true, "/work/out"), "what is below may be what is denied")
	require.Equal(t, approval.Allow, write(true, "/work/out/a"))
	require.Equal(t, approval.Deny, write(true, "/"))
}

// Who types runs commands.
func TestATerminalIsAsStrictAsCommands(t *testing.T) {
	terminal := approval.Action{Kind: approval.Terminal, Name: "terminal.open"}
	require.Equal(t, approval.Allow, decide(approval.Policy{}, terminal))
	require.Equal(t, approval.AskIt, decide(approval.Policy{Command: approval.AskIt}, terminal))
	require.Equal(t, approval.Deny, decide(approval.Policy{Command: approval.Deny}, terminal))
	require.Equal(t, approval.AskIt, decide(approval.Policy{Rules: []approval.Rule{{Kind: approval.Command, Answer: approval.Deny, Command: "sudo"}}}, terminal))
	require.Equal(t, approval.Deny, decide(approval.Policy{Terminal: approval.Deny}, terminal))
}

// A stricter policy refuses at least as much.
func TestStricter(t *testing.T) {
	ask := approval.Policy{Command: approval.AskIt, Rules: []approval.Rule{{Kind: approval.Command, Answer: approval.Deny, Command: "sudo"}}}
	require.True(t, approval.Policy{}.Stricter(ask))
	require.True(t, ask.Stricter(ask))
	require.False(t, ask.Stricter(approval.Policy{}))
	require.False(t, ask.Stricter(approval.Policy{Command: approval.Deny}), "a rule is gone")
	milder := ask
	milder.Rules = append(append([]approval.Rule{}, ask.Rules...), approval.Rule{Kind: approval.Command, Answer: approval.Allow, Command: "ls"})
	require.False(t, ask.Stricter(milder))
	front := ask
	front.Rules = append([]approval.Rule{{Kind: approval.Command, Answer: approval.Allow, Command: "ls"}}, ask.Rules...)
	require.False(t, ask.Stricter(front))
}

// No two requests are written alike, and what was written is read back as it was.
func TestCanonicalBytes(t *testing.T) {
	r := &approval.Request{ID: "ap1", Kind: approval.Command, Params: map[string]string{"a": "b", "ab": ""}, Env: map[string]string{"A": "1"}, Secrets: []string{"x", "y"}}
	text, err := r.Canonical()
	require.NoError(t, err)
	back, err := approval.ReadRequest(text)
	require.NoError(t, err)
	again, err := back.Canonical()
	require.NoError(t, err)
	require.Equal(t, text, again)
	other := *r
	other.Params = map[string]string{"a": "", "ab": "b"}
	d1, err := r.Digest()
	require.NoError(t, err)
	d2, err := other.Digest()
	require.NoError(t, err)
	require.NotEqual(t, d1, d2)
	for i := range text { // every single byte that is changed is either refused or another digest
		bad := append([]byte{}, text...)
		bad[i] ^= 1
		require.NotEqual(t, approval.Sum(text), approval.Sum(bad))
		if got, err := approval.ReadRequest(bad); err == nil {
			d, err := got.Digest()
			require.NoError(t, err)
			require.NotEqual(t, d1, d)
		}
	}
	_, err = approval.ReadRequest(text[:len(text)-1])
	require.Error(t, err)
	_, err = approval.ReadRequest(append(text, 0))
	require.Error(t, err)
}
