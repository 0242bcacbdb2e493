package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"text/tabwriter"
	"time"

	"sandgate/sandbox"
)

type sandboxCmd struct {
	Ls    sandboxLs    `cmd:"" help:"List sandboxes of every workspace."`
	Kill  sandboxKill  `cmd:"" help:"End sandboxes and leave nothing of them on the host."`
	Prune sandboxPrune `cmd:"" help:"Remove what bears this installation's mark and no record owns."`
}

type sandboxLs struct {
	place `embed:""`
}

// Run lists from the records; the host is not asked.
func (c *sandboxLs) Run(e *env) error {
	ps, err := c.people(e)
	if err != nil {
		return err
	}
	defer ps.close()
	records, err := ps.store.Sandboxes(e.ctx, sandbox.Filter{})
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(e.stdout, 2, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "ID\tSTATUS\tREASON\tOWNER\tIMAGE\tCREATED\tLABEL")
	for _, r := range records {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%q\n", r.ID, r.Status, r.Reason, r.OwnerName, r.Image, r.CreatedAt.UTC().Format(time.RFC3339), r.Label)
	}
	return w.Flush()
}

type sandboxKill struct {
	place `embed:""`
	IDs   []string `arg:"" optional:"" name:"id" help:"Ids to end."`
	All   bool     `help:"End every sandbox of this data directory."`
}

// Run asks the server, or does it itself when none runs.
func (c *sandboxKill) Run(e *env) error {
	if c.All == (len(c.IDs) > 0) {
		return errors.New("name ids, or --all")
	}
	ids := c.IDs
	if ids == nil {
		ids = []string{}
	}
	killed, err := c.viaServer(e, "/kill", ids, func(ps *parts) (int, error) { return ps.kill(e.ctx, ids) })
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(e.stdout, "%d killed\n", killed)
	return err
}

type sandboxPrune struct {
	place `embed:""`
}

// Run reconciles records and host.
func (c *sandboxPrune) Run(e *env) error {
	_, err := c.viaServer(e, "/prune", struct{}{}, func(*parts) (int, error) { return 0, nil }) // reconciling is all
	return err
}

// viaServer lets the server do it; without one, it takes the data directory, reconciles, and does it here.
func (p *place) viaServer(e *env, path string, body any, here func(*parts) (int, error)) (int, error) {
	dir, err := p.open()
	if err != nil {
		return 0, err
	}
	a, err := dir.callControl(e.ctx, path, body)
	if !errors.Is(err, errNoServer) {
		return a.Killed, err
	}
	ps, release, err := p.lockedWhole(e, slog.New(slog.DiscardHandler))
	if errors.Is(err, errBusy) { // starting or stopping right now
		return 0, errors.Join(err, errNoServer)
	}
	if err != nil {
		return 0, err
	}
	defer release()
	defer ps.close()
	defer ps.manager.Close()
	if err := ps.manager.Reconcile(context.WithoutCancel(e.ctx)); err != nil {
		return 0, err
	}
	return here(ps)
}
