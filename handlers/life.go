package handlers

import (
	"net/http"
	"strings"
	"time"

	"sandgate/auth"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
	"sandgate/views"
)

// whyAlive are the reasons of the idle clock as people say them.
var whyAlive = map[string]string{
	"command": "a command runs", "transfer": "files are read or written", "call": "a call is under way",
	"terminal": "a program runs in a terminal", "cpu": "something inside computes", "keepalive": "somebody asked for more time",
}

// span shows a duration in the largest whole unit: "90 s", "15 min", "24 h".
func span(d time.Duration) string {
	d = d.Round(time.Second)
	switch {
	case d >= 2*time.Hour && d%time.Hour == 0:
		return itoa(int(d.Hours())) + " h"
	case d >= 2*time.Minute && d%time.Minute == 0:
		return itoa(int(d.Minutes())) + " min"
	default:
		return itoa(int(d.Seconds())) + " s"
	}
}

// reasonWords joins what keeps a sandbox alive.
func reasonWords(because []string) string {
	var out []string
	for _, b := range because {
		if w := whyAlive[b]; w != "" {
			b = w
		}
		out = append(out, b)
	}
	return strings.Join(out, ", ")
}

// fate is what the idle clock does to a sandbox, as a verb.
func fate(b workspace.Sandbox) string {
	if b.Idle.Action == workspace.ActionSuspend {
		return "is suspended"
	}
	return "ends"
}

// life says in sentences since when a sandbox is unused, why it lives, and what happens when.
func (v *visit) life(b workspace.Sandbox) []string {
	if b.Status != sandbox.Running {
		return nil
	}
	var out []string
	clock := func(t time.Time) string { return v.s.clock(t).Text + " UTC" }
	switch {
	case b.Idle.At.IsZero():
		out = append(out, "Alive: "+reasonWords(b.Idle.Because)+".", "It "+fate(b)+" when nothing has used it for "+span(b.Life.IdleTimeout)+".")
	default:
		if len(b.Idle.Because) > 0 {
			out = append(out, "Alive: "+reasonWords(b.Idle.Because)+".")
		}
		out = append(out, "Unused since "+clock(b.Idle.Since)+".", "It "+fate(b)+" at "+clock(b.Idle.At)+" unless something uses it.")
	}
	if !b.ExpiresAt.IsZero() {
		out = append(out, "It ends at "+clock(b.ExpiresAt)+" in any case.")
	}
	if !b.Life.KeepWhileBusy {
		out = append(out, "Computing inside does not keep it alive.")
	}
	return out
}

// shortLife is life for a line of a list.
func (v *visit) shortLife(b workspace.Sandbox) string {
	switch {
	case b.Status != sandbox.Running || b.Idle.Action == workspace.ActionNone:
		return ""
	case b.Idle.At.IsZero():
		return reasonWords(b.Idle.Because)
	default:
		return fate(b) + " " + v.s.clock(b.Idle.At).Text
	}
}

// warning is what stands above the page in a sandbox's last minute; the zero value is nothing.
func (v *visit) warning(b workspace.Sandbox) views.SandboxWarning {
	const soon = 61 * time.Second // the service warns a minute before; a page may be a moment early
	now := v.s.o.Now()
	near := func(t time.Time) bool { return !t.IsZero() && t.Sub(now) < soon }
	switch {
	case b.Status != sandbox.Running:
	case near(b.ExpiresAt):
		return views.SandboxWarning{Text: "This sandbox ends at " + v.s.clock(b.ExpiresAt).Text + " UTC: its longest life is over. Fetch what you need now."}
	case near(b.Idle.At) && b.Life.IdleTimeout < 2*time.Minute && b.Idle.At.Sub(now) > b.Life.IdleTimeout/2:
	case near(b.Idle.At):
		w := views.SandboxWarning{Text: "This sandbox " + fate(b) + " at " + v.s.clock(b.Idle.At).Text + " UTC, because nothing has used it since " + v.s.clock(b.Idle.Since).Text + "."}
		if v.actor.May(auth.SandboxesRun) || v.actor.May(auth.SandboxesManage) {
			w.KeepURL = v.base() + "/sandboxes/" + string(b.ID) + "/keepalive"
		}
		return w
	}
	return views.SandboxWarning{}
}

// keepAlive gives a sandbox its idle time anew.
func (s *Server) keepAlive(v *visit) error {
	if _, err := s.o.Service.KeepAlive(v.ctx(), v.actor, v.Param("id"), 0); err != nil {
		return err
	}
	return v.Redirect(http.StatusSeeOther, v.base()+"/sandboxes/"+v.Param("id"))
}
