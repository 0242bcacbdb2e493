package guest

import (
	"net/http"
	"slices"

	"sandgate/sandbox/agent"
)

// doings: GET /v1/doings tells what runs: commands, and terminals in which more than the shell does.
func (s *Server) doings(w http.ResponseWriter, _ *http.Request) error {
	var d agent.Doings
	shells := map[int]bool{} // by session
	s.mu.Lock()
	commands := make([]*command, 0, len(s.commands))
	for _, c := range s.commands {
		commands = append(commands, c)
	}
	for _, t := range s.ptys {
		select {
		case <-t.gone:
		default:
			shells[t.pid] = false
		}
	}
	s.mu.Unlock()
	for _, c := range commands {
		switch {
		case !c.running():
		case c.spec.Background && len(d.Background) < agent.MaxDoings:
			d.Background = append(d.Background, c.id)
		default:
			d.Foreground++
		}
	}
	if len(shells) > 0 {
		for _, p := range processes() {
			if _, ours := shells[p.session]; ours && p.pid != p.session && p.state != 'T' && p.state != 'Z' && p.state != 'X' {
				shells[p.session] = true
			}
		}
		for _, busy := range shells {
			if busy {
				d.Terminals++
			}
		}
	}
	slices.Sort(d.Background)
	return ok(w, d)
}

func (c *command) running() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.exit == nil
}
