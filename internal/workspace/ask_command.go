package workspace

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

// maxKept bounds the content that is kept with a request, in bytes.
const maxKept = 16 << 20

// askCommand tells how a command is put before a person. What an approval binds is read from c and written back to it; the
// sandbox's secrets are not in c yet.
func (s *Service) askCommand(ctx context.Context, r sandbox.Record, client *agent.Client, c *agent.CommandSpec) (*asking, error) {
	set, err := s.secrets(ctx, r.ID)
	if err != nil {
		return nil, err
	}
	q := &asking{record: r}
	q.given = func(to *approval.Request) error {
		to.Params = map[string]string{
			"command": c.Command, "cwd": c.Cwd, "user": c.User, "timeout_ms": strconv.FormatInt(c.TimeoutMS, 10),
			"background": strconv.FormatBool(c.Background), "keep_stdin": strconv.FormatBool(c.KeepStdin), "tag": c.Tag,
		}
		to.Env = maps.Clone(c.Env)
		to.Secrets = slices.Sorted(maps.Keys(set.values))
		if len(c.Stdin) > 0 {
			to.Blobs = append(to.Blobs, approval.NewBlob(approval.BlobStdin, c.Stdin, true, true))
		}
		return nil
	}
	q.found = func(ctx context.Context, to *approval.Request) error {
		if err := findScripts(ctx, client, c, to); err != nil {
			return err
		}
		to.Unbound = append(to.Unbound,
			"Programs, libraries and data that the command uses, and what scripts run or import, are those that are in the sandbox when it runs.",
			"What it fetches over the network is not known before.")
		return nil
	}
	q.changed = func(ctx context.Context, kept *approval.Request) (string, error) {
		return scriptChanged(ctx, client, kept)
	}
	q.take = func(from *approval.Request) error {
		timeout, err := strconv.ParseInt(from.Params["timeout_ms"], 10, 64)
		if err != nil {
			return fault.Wrap(err, fault.Conflict, "The kept request has no time limit.")
		}
		c.Command, c.Cwd, c.User, c.TimeoutMS = from.Params["command"], from.Params["cwd"], from.Params["user"], timeout
		c.Background, c.KeepStdin, c.Tag = from.Params["background"] == "true", from.Params["keep_stdin"] == "true", from.Params["tag"]
		c.Env, c.Stdin = maps.Clone(from.Env), nil
		c.Files = scriptsOf(from)
		if b := from.Blob(approval.BlobStdin); b != nil {
			c.Stdin = slices.Clone(b.Data)
		}
		return nil
	}
	return q, nil
}

// askStdin tells how input for a command that runs is put before a person: its bytes are bound, and which command it is.
func askStdin(r sandbox.Record, cmd *string, data *[]byte, eof *bool) *asking {
	q := &asking{record: r}
	q.given = func(to *approval.Request) error {
		to.Params = map[string]string{"id": *cmd, "eof": strconv.FormatBool(*eof)}
		to.Blobs = append(to.Blobs, approval.NewBlob(approval.BlobContent, *data, true, true))
		return nil
	}
	q.take = func(from *approval.Request) error {
		*cmd, *eof = from.Params["id"], from.Params["eof"] == "true"
		b := from.Blob(approval.BlobContent)
		if b == nil {
			return fault.New(fault.Conflict, "The kept request has no content.")
		}
		*data = slices.Clone(b.Data)
		return nil
	}
	return q
}

// askNetwork tells how a change of a sandbox that changes its network is put before a person: all of it.
func askNetwork(r sandbox.Record, p *SandboxPatch) *asking {
	q := &asking{record: r}
	q.given = func(to *approval.Request) error {
		text, err := json.Marshal(p)
		to.Params = map[string]string{"patch": string(text), "network": networkWords(*p.Network), "before": networkWords(r.Network)}
		return err
	}
	q.take = func(from *approval.Request) error {
		var kept SandboxPatch
		if err := json.Unmarshal([]byte(from.Params["patch"]), &kept); err != nil || kept.Network == nil {
			return fault.Wrap(err, fault.Conflict, "The kept request has no network.")
		}
		*p = kept
		return nil
	}
	return q
}

// askTerminal tells how a terminal is put before a person: with it, its requester may type in it for a while.
func (s *Service) askTerminal(ctx context.Context, r sandbox.Record, p *agent.PTYSpec) (*asking, error) {
	set, err := s.secrets(ctx, r.ID)
	if err != nil {
		return nil, err
	}
	q := &asking{record: r}
	q.given = func(to *approval.Request) error {
		to.Params = map[string]string{"cwd": p.Cwd, "user": p.User, "cols": strconv.Itoa(p.Cols), "rows": strconv.Itoa(p.Rows), "minutes": strconv.Itoa(int(approval.GrantFor.Minutes()))}
		to.Env, to.Secrets = maps.Clone(p.Env), slices.Sorted(maps.Keys(set.values))
		return nil
	}
	q.found = func(_ context.Context, to *approval.Request) error {
		to.Unbound = append(to.Unbound, "What is typed in the terminal is not known before. It goes on running what was started in it when the time is over; nobody can type then.")
		return nil
	}
	q.take = func(from *approval.Request) error {
		cols, err1 := strconv.Atoi(from.Params["cols"])
		rows, err2 := strconv.Atoi(from.Params["rows"])
		if err := errors.Join(err1, err2); err != nil {
			return fault.Wrap(err, fault.Conflict, "The kept request has no size.")
		}
		p.Cwd, p.User, p.Cols, p.Rows, p.Env = from.Params["cwd"], from.Params["user"], cols, rows, maps.Clone(from.Env)
		return nil
	}
	q.granted = func() approval.Grant { return approval.Grant{Terminal: p.ID, Until: s.o.Now().Add(approval.GrantFor)} }
	return q, nil
}

// typingIsAsked reports whether terminals of a sandbox are opened by grants.
func (s *Service) typingIsAsked(ctx context.Context, a auth.Actor, r sandbox.Record) (bool, error) {
	list, err := s.policies(ctx, r.WorkspaceID, a.KeyID, string(r.ID))
	if err != nil {
		return false, err
	}
	v := approval.Decide(list, a, approval.Action{Kind: approval.Terminal, Name: "terminal.open", SandboxID: string(r.ID), Image: r.Image})
	return v.Answer == approval.AskIt, nil
}

// mayType tells until when an actor may type in a terminal (zero: no end), or why not: fault.ApprovalNeeded where somebody has to
// approve it first.
func (s *Service) mayType(ctx context.Context, a auth.Actor, r sandbox.Record, pty string) (until time.Time, err error) {
	err = s.o.Gate.Pass(ctx, a, approval.Action{Kind: approval.Terminal, Name: "terminal.attach", SandboxID: string(r.ID), Target: pty, Image: r.Image})
	if _, ask := errors.AsType[*approval.Ask](err); !ask {
		return until, err
	}
	until, err = s.o.Store.GrantOf(ctx, string(r.ID), pty, a.UserID, a.KeyID, s.o.Now())
	if err == nil && until.IsZero() {
		err = fault.New(fault.ApprovalNeeded, "Typing in this terminal has to be approved. Open one, and have that approved.")
	}
	return until, err
}
