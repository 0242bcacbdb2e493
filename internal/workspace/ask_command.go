package workspace

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	"sandgate/internal/approval"
	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

// maxKept bounds the content that is kept with a request, in bytes.
const maxKept = 16 << 20

// askCommand tells how a command is put before a person. What an approval binds is read from c and written back to it; the
// sandbox's secrets are not in c yet.
func (s *Service) askCommand(ctx context.Context, r sandbox.Record, c *agent.CommandSpec) (*asking, error) {
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
	q.found = func(_ context.Context, to *approval.Request) error {
		to.Unbound = append(to.Unbound,
			"Programs, libraries and data that the command uses are those that are in the sandbox when it runs.",
			"What it fetches over the network is not known before.")
		return nil
	}
	q.take = func(from *approval.Request) error {
		timeout, err := strconv.ParseInt(from.Params["timeout_ms"], 10, 64)
		if err != nil {
			return fault.Wrap(err, fault.Conflict, "The kept request has no time limit.")
		}
		c.Command, c.Cwd, c.User, c.TimeoutMS = from.Params["command"], from.Params["cwd"], from.Params["user"], timeout
		c.Background, c.KeepStdin, c.Tag = from.Params["background"] == "true", from.Params["keep_stdin"] == "true", from.Params["tag"]
		c.Env, c.Stdin = maps.Clone(from.Env), nil
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
