package guest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

func (s *Server) command(id string) (*command, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.commands[id]; c != nil {
		return c, nil
	}
	return nil, fault.New(fault.NotFound, "There is no such command.")
}

func (s *Server) commandStart(w http.ResponseWriter, r *http.Request) error {
	var spec agent.CommandSpec
	if err := readJSON(w, r, &spec); err != nil {
		return err
	}
	c, err := s.runCommand(spec)
	if err != nil {
		return err
	}
	if r.URL.Query().Get("stream") != "1" {
		return ok(w, c.describe())
	}
	return s.stream(w, r, c, &reader{}, true)
}

func (s *Server) stream(w http.ResponseWriter, r *http.Request, c *command, at *reader, wait bool) error {
	fw := newFrameWriter(w)
	if err := fw.json(agent.FrameInit, map[string]string{"id": c.id}); err != nil {
		return nil //nolint:nilerr // the host is gone; it will ask again
	}
	if wait && !c.spec.Last {
		defer func() { go s.standBy() }() // runs when the answer is out
	}
	err := c.follow(r.Context(), fw, at, wait)
	if e, isFault := errors.AsType[*fault.Error](err); isFault {
		_ = fw.json(agent.FrameError, agent.Failure{Code: string(e.Kind), Detail: e.Public})
	}
	return nil
}

func (s *Server) commandList(w http.ResponseWriter, _ *http.Request) error {
	s.mu.Lock()
	all := make([]*command, 0, len(s.commands))
	for _, c := range s.commands {
		all = append(all, c)
	}
	s.mu.Unlock()
	list := make([]agent.Command, 0, len(all))
	for _, c := range all {
		d := c.describe()
		if len(d.Command) > maxListed {
			d.Command = strings.ToValidUTF8(d.Command[:maxListed], "") + "…"
		}
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b agent.Command) int { return a.StartedAt.Compare(b.StartedAt) })
	return ok(w, list)
}

// maxListed cuts a command's text in lists; asked for alone it is whole.
const maxListed = 4 << 10

func (s *Server) commandGet(w http.ResponseWriter, r *http.Request) error {
	c, err := s.command(r.PathValue("id"))
	if err != nil {
		return err
	}
	return ok(w, c.describe())
}

// places reads the two offsets a follower starts from.
func places(r *http.Request) (*reader, error) {
	var at reader
	for i, name := range []string{"stdout", "stderr"} {
		n, err := offset(r, name, 0)
		if err != nil {
			return nil, err
		}
		at.pos[i] = max(n, 0)
	}
	return &at, nil
}

func (s *Server) commandStream(w http.ResponseWriter, r *http.Request) error {
	return s.replay(w, r, true)
}

func (s *Server) commandLogs(w http.ResponseWriter, r *http.Request) error {
	return s.replay(w, r, false)
}

func (s *Server) replay(w http.ResponseWriter, r *http.Request, wait bool) error {
	c, err := s.command(r.PathValue("id"))
	if err != nil {
		return err
	}
	at, err := places(r)
	if err != nil {
		return err
	}
	return s.stream(w, r, c, at, wait)
}

func (s *Server) commandStdin(w http.ResponseWriter, r *http.Request) error {
	c, err := s.command(r.PathValue("id"))
	if err != nil {
		return err
	}
	c.mu.Lock()
	f := c.stdin
	c.mu.Unlock()
	if f == nil || !c.spec.KeepStdin {
		return fault.New(fault.Conflict, "The command's standard input is closed.")
	}
	_, err = io.Copy(f, http.MaxBytesReader(w, r.Body, agent.MaxStdin))
	if err != nil {
		if errors.Is(err, syscall.EPIPE) || errors.Is(err, os.ErrClosed) {
			return fault.Wrap(err, fault.Conflict, "The command does not read its standard input any more.")
		}
		return err
	}
	if r.URL.Query().Get("eof") == "1" {
		c.closeStdin()
	}
	return ok(w, struct{}{})
}

// signalOf reads "TERM", "SIGTERM" or "term".
func signalOf(name string) (syscall.Signal, error) {
	sig := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(name), "SIG"))
	if sig == 0 {
		return 0, fault.Field("signal", "is not a signal's name")
	}
	return sig, nil
}

func (s *Server) commandKill(w http.ResponseWriter, r *http.Request) error {
	sig, err := signalOf(r.URL.Query().Get("signal"))
	if err != nil {
		return err
	}
	c, err := s.command(r.PathValue("id"))
	if err != nil {
		if sig == syscall.SIGKILL {
			s.refuseStart(r.PathValue("id"))
		}
		return err
	}
	c.mu.Lock() // waits for the start
	done := c.exit != nil
	c.mu.Unlock()
	if sig != syscall.SIGKILL {
		if !c.signalTree(sig) && done {
			return fault.New(fault.Conflict, "The command has ended.")
		}
		return ok(w, struct{}{})
	}
	s.killTree(&c.job)
	// The answer means that nothing is left, and that the command's end can be read.
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
	defer cancel()
	for {
		c.mu.Lock()
		exit, changed := c.exit, c.changed
		c.mu.Unlock()
		if exit != nil {
			return ok(w, struct{}{})
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fault.New(fault.Conflict, "The command was killed but has not ended yet.")
		}
	}
}

// refuseStart notes an id that was killed before its start came, which may still be on its way on another stream.
func (s *Server) refuseStart(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.refused) >= maxRefused {
		clear(s.refused)
	}
	s.refused[id] = struct{}{}
}

const maxRefused = 1024
