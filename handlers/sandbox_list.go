package handlers

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"sandgate/auth"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
	"sandgate/views"
	"sandgate/views/ui"
)

// listFilter is what the list's address says.
type listFilter struct {
	find   string
	status string
	mine   bool
}

func filterOf(v *visit) listFilter {
	f := listFilter{find: strings.TrimSpace(v.QueryParam("q")), status: v.QueryParam("status"), mine: v.QueryParam("mine") == "1"}
	if len(f.find) > 200 {
		f.find = f.find[:200]
	}
	if f.status != "" && !slices.Contains(shownStatuses, sandbox.Status(f.status)) {
		f.status = ""
	}
	return f
}

var shownStatuses = []sandbox.Status{sandbox.Creating, sandbox.Running, sandbox.Suspended, sandbox.Stopping, sandbox.Failed}

// query is the filter as an address carries it.
func (f listFilter) query() string {
	q := url.Values{}
	if f.find != "" {
		q.Set("q", f.find)
	}
	if f.status != "" {
		q.Set("status", f.status)
	}
	if f.mine {
		q.Set("mine", "1")
	}
	if len(q) == 0 {
		return ""
	}
	return "?" + q.Encode()
}

func (f listFilter) fits(b workspace.Sandbox) bool {
	if f.status != "" && string(b.Status) != f.status || f.mine && !b.Mine {
		return false
	}
	if f.find == "" {
		return true
	}
	find := strings.ToLower(f.find)
	for _, text := range []string{b.Label, b.OwnerName, string(b.ID), b.Image} {
		if strings.Contains(strings.ToLower(text), find) {
			return true
		}
	}
	return false
}

func (s *Server) sandboxList(v *visit) error {
	all, err := s.o.Service.Sandboxes(v.ctx(), v.actor)
	if err != nil {
		return err
	}
	if v.cookieValue(lastCookie) != v.actor.Workspace.Slug {
		v.keep(lastCookie, v.actor.Workspace.Slug)
	}
	f := filterOf(v)
	p := views.SandboxList{
		Shell: v.shell("Sandboxes", "sandboxes"), Find: f.find, Status: f.status, Mine: f.mine, CanRun: v.actor.May(auth.SandboxesRun),
		Chips: v.chips(f, all), Rows: v.rows(f, all), Events: v.base() + "/sandboxes/events" + f.query(),
	}
	return v.render(http.StatusOK, p.Page())
}

// chips are the filters by one click, with how many there are of each.
func (v *visit) chips(f listFilter, all []workspace.Sandbox) []ui.Link {
	chip := func(name string, g listFilter) ui.Link {
		g.find = f.find
		n := 0
		count := g
		count.find = ""
		for _, b := range all {
			if count.fits(b) {
				n++
			}
		}
		return ui.Link{Text: name + " " + itoa(n), URL: v.base() + "/sandboxes" + g.query(), On: g == f}
	}
	chips := []ui.Link{chip("All", listFilter{}), chip("Mine", listFilter{mine: true}), chip("Running", listFilter{status: string(sandbox.Running)})}
	for _, c := range []ui.Link{chip("Suspended", listFilter{status: string(sandbox.Suspended)}), chip("Failed", listFilter{status: string(sandbox.Failed)})} {
		if c.On || !strings.HasSuffix(c.Text, " 0") {
			chips = append(chips, c)
		}
	}
	return chips
}

// rows is the table for a filter.
func (v *visit) rows(f listFilter, all []workspace.Sandbox) views.SandboxRows {
	t := views.SandboxRows{
		Total: len(all), CanRun: v.actor.May(auth.SandboxesRun), NewURL: v.base() + "/sandboxes/new", AllURL: v.base() + "/sandboxes",
	}
	for _, b := range all {
		if !f.fits(b) {
			continue
		}
		r := v.row(b)
		if b.Waiting > 0 {
			r.Waiting, r.WaitingURL = plural(b.Waiting, "waits for a yes", "wait for a yes"), v.approvalsBase()
		}
		t.CanKill = t.CanKill || r.CanKill
		t.Rows = append(t.Rows, r)
	}
	return t
}

func (v *visit) row(b workspace.Sandbox) views.SandboxRow {
	owner := display(b.OwnerName)
	if b.OwnerKind == string(auth.KeyUser) {
		owner = "key " + owner
	}
	return views.SandboxRow{
		ID: string(b.ID), URL: v.base() + "/sandboxes/" + string(b.ID), Label: display(b.Label), State: state(b.Status), Owner: owner,
		Image: display(b.Image), Created: v.s.when(b.CreatedAt), Active: v.s.when(b.LastActivity), Story: shortStory(b.Record), Life: v.shortLife(b),
		Limits: cores(b.Resources.CPU) + " CPU · " + mb(b.Resources.MemoryMB), CanKill: v.canKill(b),
	}
}

// canKill mirrors the service's rule, so that no button is shown that would be refused.
func (v *visit) canKill(b workspace.Sandbox) bool {
	if b.Status == sandbox.Stopping {
		return false
	}
	return v.actor.May(auth.SandboxesManage) || b.Mine && v.actor.May(auth.SandboxesRun)
}

// sandboxListEvents streams the table, with the same filter as the page, whenever it changed.
func (s *Server) sandboxListEvents(v *visit) error {
	f := filterOf(v)
	return v.stream(func(out *events) error {
		all, err := s.o.Service.Sandboxes(v.ctx(), v.actor)
		if err != nil {
			return err
		}
		return out.fragment("rows", v.rows(f, all).Table())
	})
}
