package workspace

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/idle"
)

// RunCommand runs one in the foreground and streams it to out. c.ID is chosen by the caller (sandbox.RandomID("cmd")).
// Needs run. When ctx ends first the command's whole tree is killed.
func (s *Service) RunCommand(ctx context.Context, a auth.Actor, id string, c agent.CommandSpec, out agent.Output) (agent.Exit, error) {
	var exit agent.Exit
	err := s.command(ctx, a, id, &c, "command.run", func(ctx context.Context, _ sandbox.Record, client *agent.Client, done func()) (string, error) {
		defer done()
		seen := &printed{out: out}
		findingsOf(ctx).printed = seen
		var err error
		exit, err = client.Run(ctx, c, seen)
		return exitWords(exit), err
	})
	return exit, err
}

// StartCommand starts one in the background. Needs run.
func (s *Service) StartCommand(ctx context.Context, a auth.Actor, id string, c agent.CommandSpec) (agent.Command, error) {
	var started agent.Command
	c.Background = true
	err := s.command(ctx, a, id, &c, "command.start", func(ctx context.Context, r sandbox.Record, client *agent.Client, done func()) (string, error) {
		var err error
		if started, err = client.Start(ctx, c); err != nil {
			done()
			return started.ID, err
		}
		s.await(r, client, started.ID, done) // it keeps the sandbox alive until it ends
		return started.ID, nil
	})
	return s.hideCommand(ctx, id, started), err
}

// command is what starting one of either kind shares. do has to see to it that done is called when the command has ended.
func (s *Service) command(ctx context.Context, a auth.Actor, id string, c *agent.CommandSpec, name string,
	do func(ctx context.Context, r sandbox.Record, client *agent.Client, done func()) (string, error),
) error {
	what := approval.Action{Kind: approval.Command, Name: name, SandboxID: id, Target: c.Command, Script: c.Command}
	r, client, done, err := s.use(ctx, a, what, auth.SandboxesRun, idle.Command)
	if err != nil {
		return err
	}
	begun := false
	defer func() {
		if !begun {
			done()
		}
	}()
	if err := commandCheck(c, r); err != nil {
		return err
	}
	if c.ID == "" {
		c.ID = sandbox.RandomID("cmd")
	}
	what.Digest, what.Env = commandDigest(*c), c.Env
	q, err := s.askCommand(ctx, r, client, c)
	if err != nil {
		return err
	}
	return s.changeAsking(ctx, a, what, q, func(ctx context.Context) (string, error) {
		if err := s.addSecrets(ctx, r, c.Env); err != nil {
			return "", err
		}
		begun = true
		detail, err := do(ctx, r, client, done)
		return detail, s.explain(ctx, r, err)
	})
}

// commandDigest is the SHA-256 of everything that decides what runs; map keys are sorted by encoding/json.
func commandDigest(c agent.CommandSpec) string {
	c.ID, c.Tag = "", ""
	canonical, err := json.Marshal(c)
	if err != nil { // plain strings and numbers always encode
		return ""
	}
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:])
}

func exitWords(e agent.Exit) string {
	switch {
	case e.TimedOut:
		return "timed out"
	case e.Signal != "":
		return "killed by " + e.Signal
	default:
		return fmt.Sprintf("exit %d", e.Code)
	}
}

// Commands lists those that the agent remembers. Needs read.
func (s *Service) Commands(ctx context.Context, a auth.Actor, id string) ([]agent.Command, error) {
	r, client, err := s.reach(ctx, a, approval.Action{Name: "command.list", SandboxID: id}, auth.SandboxesRead)
	if err != nil {
		return nil, err
	}
	out, err := client.Commands(ctx)
	for i := range out {
		out[i] = s.hideCommand(ctx, id, out[i])
	}
	return out, s.explain(ctx, r, err)
}

// Command gives one. Needs read.
func (s *Service) Command(ctx context.Context, a auth.Actor, id, cmd string) (agent.Command, error) {
	r, client, err := s.reachPart(ctx, a, "command.read", id, cmd, auth.SandboxesRead)
	if err != nil {
		return agent.Command{}, err
	}
	out, err := client.Command(ctx, cmd)
	return s.hideCommand(ctx, id, out), s.explain(ctx, r, err)
}

// CommandLogs gives kept output from byte offsets on, without waiting. Needs read.
func (s *Service) CommandLogs(ctx context.Context, a auth.Actor, id, cmd string, stdoutFrom, stderrFrom int64) (stdout, stderr []byte, c agent.Command, err error) {
	r, client, err := s.reachPart(ctx, a, "command.read", id, cmd, auth.SandboxesRead)
	if err != nil {
		return nil, nil, c, err
	}
	stdout, stderr, c, err = client.Logs(ctx, cmd, stdoutFrom, stderrFrom)
	return stdout, stderr, s.hideCommand(ctx, id, c), s.explain(ctx, r, err)
}

// FollowCommand streams a command from byte offsets on to its end. Needs read, all the time.
func (s *Service) FollowCommand(ctx context.Context, a auth.Actor, id, cmd string, stdoutFrom, stderrFrom int64, out agent.Output) (agent.Exit, error) {
	r, client, err := s.reachPart(ctx, a, "command.read", id, cmd, auth.SandboxesRead)
	if err != nil {
		return agent.Exit{}, err
	}
	ctx, cancel := s.Guard(ctx, a, auth.SandboxesRead)
	defer cancel()
	exit, err := client.Follow(ctx, cmd, stdoutFrom, stderrFrom, out)
	if err != nil && ctx.Err() != nil {
		return exit, context.Cause(ctx)
	}
	return exit, s.explain(ctx, r, err)
}

// CommandStdin writes to one that was started with its stdin kept open. Needs run.
func (s *Service) CommandStdin(ctx context.Context, a auth.Actor, id, cmd string, data []byte, eof bool) error {
	r, client, done, err := s.usePart(ctx, a, "command.stdin", id, cmd)
	if err != nil {
		return err
	}
	defer done()
	sum := sha256.Sum256(data)
	what := approval.Action{Kind: approval.Command, Name: "command.stdin", SandboxID: id, Target: cmd, Digest: hex.EncodeToString(sum[:])}
	return s.changeAsking(ctx, a, what, askStdin(r, &cmd, &data, &eof), func(ctx context.Context) (string, error) {
		return fmt.Sprintf("%d bytes", len(data)), s.explain(ctx, r, client.Stdin(ctx, cmd, data, eof))
	})
}

// KillCommand signals one's whole tree. Needs run.
func (s *Service) KillCommand(ctx context.Context, a auth.Actor, id, cmd, signal string) error {
	r, client, done, err := s.usePart(ctx, a, "command.kill", id, cmd)
	if err != nil {
		return err
	}
	defer done()
	what := approval.Action{Kind: approval.Other, Name: "command.kill", SandboxID: id, Target: cmd}
	return s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		return signal, s.explain(ctx, r, client.Kill(ctx, cmd, signal))
	})
}

// reachPart is reach for a command or terminal of a sandbox; its id is checked for shape before it goes anywhere.
func (s *Service) reachPart(ctx context.Context, a auth.Actor, name, id, part string, need auth.Permission) (sandbox.Record, *agent.Client, error) {
	r, client, err := s.reach(ctx, a, approval.Action{Name: name, SandboxID: id, Target: part}, need)
	if err == nil && !partID.MatchString(part) {
		err = fault.New(fault.NotFound, "Not found in this sandbox")
	}
	return r, client, err
}

// usePart is reachPart for a call that changes something and counts as use while it lasts. Needs run.
func (s *Service) usePart(ctx context.Context, a auth.Actor, name, id, part string) (r sandbox.Record, client *agent.Client, done func(), err error) {
	if r, client, err = s.reachPart(ctx, a, name, id, part, auth.SandboxesRun); err != nil {
		return r, nil, nil, err
	}
	if done, err = s.o.Sandboxes.Use(ctx, r.ID, idle.Call); err != nil {
		return r, nil, nil, err
	}
	return r, client, done, nil
}
