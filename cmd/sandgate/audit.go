package main

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"sandgate/internal/audit"
)

type auditCmd struct {
	Verify auditVerify `cmd:"" help:"Walk the hash chain and the copies beside it; exit 1 when anything is not as it was recorded."`
	Export auditExport `cmd:"" help:"Write the record to standard output."`
}

type auditVerify struct {
	place `embed:""`
	Head  []string `help:"A head as it was published, which the chain has to hold too; may be repeated." env:"SANDGATE_HEAD" placeholder:"SEQ:HASH"`
}

// Run verifies.
func (c *auditVerify) Run(e *env) error {
	heads := make([]audit.Head, len(c.Head))
	for i, text := range c.Head {
		var err error
		if heads[i], err = parseHead(text); err != nil {
			return err
		}
	}
	return c.with(e, func(ps *parts) error {
		v, err := ps.audit.Verify(e.ctx, heads...)
		if err != nil {
			return err
		}
		if !v.Holds() {
			bad := v.Bad
			if bad == 0 {
				bad = v.BadCopy
			}
			_, _ = fmt.Fprintf(e.stderr, "the record is broken at %d: %s (%d events checked)\n", bad, audit.Visible(v.Contrary), v.Checked)
			return exitError(1)
		}
		_, err = fmt.Fprintf(e.stdout, "%d events, the chain holds; %d copies of output are as recorded\nhead %d:%x\n", v.Checked, v.Copies, v.Head.Seq, v.Head.Hash)
		return err
	})
}

// parseHead reads SEQ:HASH as it is published.
func parseHead(text string) (h audit.Head, err error) {
	seq, hash, ok := strings.Cut(text, ":")
	if ok {
		h.Seq, err = strconv.ParseInt(seq, 10, 64)
	}
	if ok && err == nil {
		h.Hash, err = hex.DecodeString(hash)
	}
	if !ok || err != nil || h.Seq < 1 || len(h.Hash) != 32 {
		return h, fmt.Errorf("--head %q is not SEQ:HASH as it was published", text)
	}
	return h, nil
}

type auditExport struct {
	place     `embed:""`
	Format    string `help:"ndjson, csv, or chain: every row as it is stored, with its hashes." env:"SANDGATE_EXPORT_FORMAT" enum:"ndjson,csv,chain" default:"ndjson"`
	Workspace string `help:"Only of this workspace (slug or name)." env:"SANDGATE_WORKSPACE"`
	SandboxID string `help:"Only of this sandbox." name:"sandbox" env:"SANDGATE_EXPORT_SANDBOX" placeholder:"ID"`
	Actor     string `help:"Only by this person or key, or by keys of this person." env:"SANDGATE_EXPORT_ACTOR"`
	Action    string `help:"Only this action, such as command.run, or command. for all about commands." env:"SANDGATE_EXPORT_ACTION"`
	Outcome   string `help:"Only with this outcome." env:"SANDGATE_EXPORT_OUTCOME"`
	Find      string `help:"Only with these words." name:"find" env:"SANDGATE_EXPORT_FIND"`
	From      string `help:"Only from then on (2026-11-30 or RFC 3339)." env:"SANDGATE_EXPORT_FROM" placeholder:"TIME"`
	To        string `help:"Only from before then." env:"SANDGATE_EXPORT_TO" placeholder:"TIME"`
}

// Run exports, oldest first.
func (c *auditExport) Run(e *env) error {
	return c.with(e, func(ps *parts) error {
		if c.Format == "chain" {
			return ps.audit.ExportChain(e.ctx, e.stdout)
		}
		f := audit.Filter{SandboxID: c.SandboxID, Actor: c.Actor, Action: c.Action, Outcome: c.Outcome, Q: c.Find}
		var err error
		if f.From, err = exportTime("--from", c.From); err != nil {
			return err
		}
		if f.To, err = exportTime("--to", c.To); err != nil {
			return err
		}
		if c.Workspace != "" {
			w, err := ps.service.AdminWorkspace(e.ctx, c.Workspace)
			if err != nil {
				return err
			}
			f.WorkspaceID = w.ID
		}
		return ps.audit.Export(e.ctx, f, c.Format, e.stdout)
	})
}

func exportTime(flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%s: %q is neither a date nor RFC 3339", flag, text)
}
