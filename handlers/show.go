package handlers

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"sandgate/sandbox"
	"sandgate/views/ui"
)

// when shows a moment as seen from now.
func (s *Server) when(t time.Time) ui.When {
	if t.IsZero() {
		return ui.When{}
	}
	t = t.UTC()
	return ui.When{ISO: t.Format(time.RFC3339), Text: ago(s.o.Now().Sub(t)), Exact: t.Format("2006-01-02 15:04:05 UTC")}
}

// clock shows a moment by its time of day, with the date when it was not today.
func (s *Server) clock(t time.Time) ui.When {
	w := s.when(t)
	if w.ISO == "" {
		return w
	}
	if now := s.o.Now().UTC(); t.UTC().Format(time.DateOnly) == now.Format(time.DateOnly) {
		w.Text = t.UTC().Format("15:04:05")
	} else {
		w.Text = t.UTC().Format("2006-01-02 15:04")
	}
	return w
}

// ago says how long ago something was, or how long until it is.
func ago(d time.Duration) string {
	words := func(d time.Duration) string {
		switch {
		case d < time.Minute:
			return "1 min"
		case d < time.Hour:
			return fmt.Sprintf("%d min", int(d.Minutes()))
		case d < 48*time.Hour:
			return fmt.Sprintf("%d h", int(d.Hours()))
		default:
			return fmt.Sprintf("%d d", int(d.Hours()/24))
		}
	}
	switch {
	case d >= 0 && d < time.Minute, d < 0 && d > -5*time.Second: // finer would change a live page with every tick
		return "just now"
	case d < 0:
		return "in " + words(-d)
	default:
		return words(d) + " ago"
	}
}

// size shows bytes the way people read them.
func size(n int64) string {
	switch {
	case n < 0:
		return "–"
	case n < 1000:
		return strconv.FormatInt(n, 10) + " B"
	}
	f, unit := float64(n), ""
	for _, u := range []string{"kB", "MB", "GB", "TB", "PB"} {
		f, unit = f/1000, u
		if f < 999.5 {
			break
		}
	}
	if f < 9.95 {
		return strconv.FormatFloat(f, 'f', 1, 64) + " " + unit
	}
	return strconv.FormatFloat(f, 'f', 0, 64) + " " + unit
}

// mb shows MiB, the unit of limits.
func mb(n int64) string {
	if n >= 1024 && n%512 == 0 {
		return strconv.FormatFloat(float64(n)/1024, 'f', -1, 64) + " GB"
	}
	return strconv.FormatInt(n, 10) + " MB"
}

func cores(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }

func coreWords(n float64) string {
	if n == 1 {
		return "1 core"
	}
	return cores(n) + " cores"
}

// state is a status as a pill.
func state(s sandbox.Status) ui.State {
	st := ui.State{Text: string(s)}
	switch s {
	case sandbox.Running:
		st.Tone = ui.Ok
	case sandbox.Creating, sandbox.Resuming:
		st.Tone, st.Busy = ui.Ok, true
	case sandbox.Stopping, sandbox.Suspending:
		st.Tone, st.Busy = ui.Idle, true
	case sandbox.Suspended:
		st.Tone = ui.Idle
	case sandbox.Failed:
		st.Tone = ui.Bad
	}
	return st
}

// story says in words why a sandbox is where it is; "" when there is nothing to say.
func story(r sandbox.Record) string {
	switch r.Status {
	case sandbox.Suspended:
		words := "Suspended: everything in it is kept on disk, and it wakes by itself when it is used."
		if r.Reason == sandbox.ReasonHostRestarted {
			words += " The host was restarted while it ran: what was done after its last save is lost."
		}
		return words
	case sandbox.Running:
		if r.Reason == sandbox.ReasonHostRestarted {
			return "The host was restarted while it ran. It went on from its last save: what was done after that is lost."
		}
		if r.Reason == sandbox.ReasonMemoryLost {
			return "Its memory could not be brought back on this host, so it was started afresh on its files: its processes and terminals, and what was in /tmp, are lost."
		}
		return ""
	case sandbox.Failed, sandbox.Stopping:
	default:
		return ""
	}
	switch r.Reason {
	case "":
		return ""
	case sandbox.ReasonOutOfMemory:
		return "Out of memory: it wanted more than its " + mb(r.Resources.MemoryMB) + ", and everything in it was ended."
	case sandbox.ReasonTooManyProcesses:
		return fmt.Sprintf("Too many processes: more than %d at once, and everything in it was ended.", r.Resources.PIDs)
	case sandbox.ReasonDiskFull:
		return "Disk full: it wrote more than its " + mb(r.Resources.DiskMB) + "."
	case sandbox.ReasonCrash:
		return "It crashed: the sandbox's own kernel ended unexpectedly."
	case sandbox.ReasonKilled:
		return "It is being killed."
	case sandbox.ReasonIdle:
		return "It ends, because nothing used it for " + span(r.Life.IdleTimeout) + "."
	case sandbox.ReasonExpired:
		return "It ends, because its longest life of " + span(r.Life.MaxLifetime) + " is over."
	case sandbox.ReasonStartFailed:
		return "It could not be started. The server's log says why."
	case sandbox.ReasonHostRestarted:
		return "The host was restarted while it ran."
	case sandbox.ReasonSaveLost:
		return "What was kept of it while it was suspended is gone from the host's disk."
	default:
		return display(strings.ReplaceAll(r.Reason, "_", " "))
	}
}

// shortStory is the story for a line of a list.
func shortStory(r sandbox.Record) string {
	if r.Status != sandbox.Failed {
		return ""
	}
	return display(strings.ReplaceAll(r.Reason, "_", " "))
}

// loopback reports whether a Host header names this very machine.
func loopback(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}
