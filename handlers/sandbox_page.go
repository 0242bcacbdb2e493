package handlers

import (
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"sandgate/auth"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
	"sandgate/views"
	"sandgate/views/ui"
)

const stripLines = 6

func (s *Server) sandboxPage(v *visit) error {
	b, err := s.o.Service.Sandbox(v.ctx(), v.actor, v.Param("id"))
	if fault.Is(err, fault.NotFound) {
		return err
	}
	if err != nil {
		return err
	}
	at := v.base() + "/sandboxes/" + string(b.ID)
	p := views.Sandbox{
		Shell: v.shell(sandboxName(b), "sandboxes"), Head: v.head(b), URL: at, CanRun: v.actor.May(auth.SandboxesRun), CanKill: v.canKill(b),
		Running: b.Status == sandbox.Running, Side: v.side(b), Warning: v.warning(b), Network: v.network(b), Snippet: snippet(v.publicURL(), "", string(b.ID)),
	}
	p.Asks = v.asksForTerminals(b)
	if p.Files, err = v.folder(b, v.Request().URL.Query()); err != nil {
		return err
	}
	if v.QueryParam("file") != "" || v.QueryParam("file_b64") != "" {
		preview, err := v.preview(b, v.Request().URL.Query())
		if err != nil {
			return err
		}
		p.Preview = &preview
	}
	if p.Running {
		if p.Terminals, err = v.terminalTabs(string(b.ID)); err != nil {
			s.log.Warn("list terminals for the page", "request_id", v.requestID(), "cause", err)
		}
	}
	if p.Activity, err = v.strip(string(b.ID)); err != nil {
		return err
	}
	if v.actor.May(auth.AuditRead) || v.actor.May(auth.SandboxesRead) {
		p.AllURL = v.storyURL(string(b.ID))
		p.RecordingsURL = v.base() + "/recordings?sandbox=" + string(b.ID)
	}
	return v.render(http.StatusOK, p.Page())
}

func (v *visit) head(b workspace.Sandbox) views.SandboxHead {
	h := views.SandboxHead{ID: string(b.ID), Label: display(b.Label), State: state(b.Status), Story: story(b.Record), Calm: b.Status != sandbox.Failed}
	return v.passages(h, b)
}

// publicURL is where clients reach this server.
func (v *visit) publicURL() string {
	if v.s.o.PublicURL != "" {
		return v.s.o.PublicURL
	}
	if v.Request().TLS != nil {
		return "https://" + v.Request().Host
	}
	return "http://" + v.Request().Host
}

// snippet is a program for the SDK: for one sandbox, or for a new one.
func snippet(base, key, id string) string {
	if key == "" {
		key = "sg_…"
	}
	lines := "from noxus_sdk.client import Client\n\nclient = Client(\"" + key + "\", base_url=\"" + base + "\")\n"
	if id != "" {
		return lines + "sb = client.sandboxes.get(\"" + id + "\")\nprint(sb.commands.run(\"uname -a\").stdout)"
	}
	return lines + "with client.sandboxes.create(label=\"from-python\") as sb:\n    print(sb.commands.run(\"uname -a\").stdout)"
}

// side is limits with their use, and details. Use that can't be read shows as limits alone.
func (v *visit) side(b workspace.Sandbox) views.SandboxSide {
	r := b.Resources
	side := views.SandboxSide{Life: v.life(b)}
	if v.actor.May(auth.SandboxesManage) && b.Status == sandbox.Running {
		side.Change = v.base() + "/sandboxes/" + string(b.ID) + "/limits"
	}
	var use sandbox.Usage
	err := error(nil)
	if b.Status == sandbox.Running {
		use, err = v.s.o.Service.Usage(v.ctx(), v.actor, string(b.ID))
	}
	if b.Status != sandbox.Running || err != nil {
		side.Meters = []views.Meter{
			{Text: "CPU: at most " + coreWords(r.CPU), Value: -1},
			{Text: mb(r.MemoryMB) + " memory", Value: -1},
			{Text: mb(r.DiskMB) + " disk", Value: -1},
			{Text: fmt.Sprintf("%d processes", r.PIDs), Value: -1},
		}
	} else {
		side.Meters = v.meters(b, use)
	}
	side.Details = []views.Detail{
		{Name: "Owner", Value: ownerWords(b)},
		{Name: "Image", Value: display(b.Image)},
		{Name: "Created", When: v.s.when(b.CreatedAt)},
		{Name: "Last active", When: v.s.when(b.LastActivity)},
		{Name: "User", Value: display(b.User)},
		{Name: "Starts in", Value: display(b.Cwd)},
	}
	side.Asks = policyWords(b.Approval)
	if b.Persistent {
		side.Details = append(side.Details, views.Detail{Name: "When idle", Value: "kept"})
	}
	switch {
	case sandbox.SaveID(b.Parent).Snapshot():
		side.Details = append(side.Details, views.Detail{Name: "Started from", Value: display(b.Parent), URL: v.base() + "/snapshots#row-" + b.Parent})
	case b.Parent != "":
		side.Details = append(side.Details, views.Detail{Name: "Forked from", Value: display(b.Parent), URL: v.base() + "/sandboxes/" + b.Parent})
	}
	if !b.SavedAt.IsZero() {
		side.Details = append(side.Details, views.Detail{Name: "Last saved", When: v.s.when(b.SavedAt)}, views.Detail{Name: "Save", Value: size(b.SavedBytes)})
	}
	if n := len(b.Env); n > 0 {
		side.Details = append(side.Details, views.Detail{Name: "Environment", Value: plural(n, "variable", "variables")})
	}
	return side
}

func ownerWords(b workspace.Sandbox) string {
	name := display(b.OwnerName)
	if b.OwnerKind == string(auth.KeyUser) {
		name = "key " + name
	}
	if b.Mine {
		name += " (you)"
	}
	return name
}

func (v *visit) meters(b workspace.Sandbox, use sandbox.Usage) []views.Meter {
	r := b.Resources
	cpu := views.Meter{Text: "CPU – of " + coreWords(r.CPU), Value: -1}
	if share, ok := v.s.cpu.share(b.ID, use.CPUSeconds, time.Now()); ok && r.CPU > 0 {
		cpu = views.Meter{Text: fmt.Sprintf("CPU %.2f of %s", share, coreWords(r.CPU)), Value: percent(share, r.CPU)}
	}
	const mib = 1 << 20
	out := []views.Meter{
		cpu,
		{Text: fmt.Sprintf("Memory %s of %s", mb(use.MemoryBytes/mib), mb(r.MemoryMB)), Value: percent(float64(use.MemoryBytes), float64(r.MemoryMB)*mib)},
	}
	disk := views.Meter{Text: mb(r.DiskMB) + " disk", Value: -1}
	if use.DiskBytes >= 0 {
		disk = views.Meter{Text: fmt.Sprintf("Disk %s of %s", mb(use.DiskBytes/mib), mb(r.DiskMB)), Value: percent(float64(use.DiskBytes), float64(r.DiskMB)*mib)}
	}
	return append(out, disk,
		views.Meter{Text: fmt.Sprintf("Processes %d of %d", use.PIDs, r.PIDs), Value: percent(float64(use.PIDs), float64(r.PIDs))})
}

func percent(n, of float64) int {
	if of <= 0 {
		return -1
	}
	return max(0, min(100, int(math.Round(n/of*100))))
}

// cpuReadings remembers the last readings, because a share of CPU needs two. Safe for concurrent use.
type cpuReadings struct {
	mu   sync.Mutex
	last map[sandbox.ID]cpuReading
}

type cpuReading struct {
	seconds float64
	at      time.Time
	share   float64
	known   bool
}

// share gives the cores in use since the reading before, which was at least a second ago.
func (c *cpuReadings) share(id sandbox.ID, seconds float64, now time.Time) (float64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, ok := c.last[id]
	if ok && now.Sub(old.at) < time.Second {
		return old.share, old.known
	}
	if len(c.last) > 5000 {
		c.last = nil // forgotten ones of sandboxes long gone; the next reading begins anew
	}
	if c.last == nil {
		c.last = map[sandbox.ID]cpuReading{}
	}
	next := cpuReading{seconds: seconds, at: now}
	if ok && seconds >= old.seconds && now.Sub(old.at) < time.Minute {
		next.share, next.known = (seconds-old.seconds)/now.Sub(old.at).Seconds(), true
	}
	c.last[id] = next
	return next.share, next.known
}

// strip is the last few events of a sandbox.
func (v *visit) strip(id string) ([]views.ActivityLine, error) {
	list, err := v.s.o.Service.Activity(v.ctx(), v.actor, audit.Filter{WorkspaceID: v.actor.Workspace.ID, SandboxID: id, Limit: stripLines})
	if fault.Is(err, fault.Forbidden) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []views.ActivityLine
	for _, e := range list {
		line := views.ActivityLine{At: v.s.clock(e.At), Text: display(e.Actor) + "  " + display(e.Action)}
		if e.Target != "" {
			line.Text += "  " + display(short(e.Target, 120))
		}
		if e.Outcome == "refused" || e.Outcome == "failed" {
			line.Tone = ui.Bad
			line.Text += " · " + display(e.Outcome)
		}
		if e.Detail != "" {
			line.Text += " · " + display(short(e.Detail, 80))
		}
		out = append(out, line)
	}
	return out, nil
}

func short(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// sandboxEvents streams what changes on the page of a sandbox.
func (s *Server) sandboxEvents(v *visit) error {
	id := v.Param("id")
	return v.stream(func(out *events) error {
		b, err := s.o.Service.Sandbox(v.ctx(), v.actor, id)
		if err != nil {
			return err
		}
		if err := out.fragment("head", v.head(b).Line()); err != nil {
			return err
		}
		if err := out.fragment("story", v.head(b).Why()); err != nil {
			return err
		}
		if err := out.fragment("warning", v.warning(b).Note()); err != nil {
			return err
		}
		if err := out.fragment("side", v.side(b).Body()); err != nil {
			return err
		}
		if err := out.fragment("network", v.network(b).Part()); err != nil {
			return err
		}
		lines, err := v.strip(id)
		if err != nil {
			return err
		}
		if err := out.fragment("activity", views.ActivityStrip(lines)); err != nil {
			return err
		}
		if err := out.value("status", b.Status); err != nil {
			return err
		}
		if asleep(b.Status) {
			return nil // its terminals are still there, and wait
		}
		if b.Status != sandbox.Running {
			return out.value("ptys", []ptyJSON{})
		}
		list, err := v.terminals(id)
		if err != nil {
			return nil // it may be dying right now: the next change tells
		}
		return out.value("ptys", list)
	})
}

func queryEscape(s string) string { return url.QueryEscape(s) }
