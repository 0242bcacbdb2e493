package guest

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

func (s *Server) pty(id string) (*terminal, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.ptys[id]; t != nil {
		return t, nil
	}
	return nil, fault.New(fault.NotFound, "There is no such terminal.")
}

func (s *Server) ptyOpen(w http.ResponseWriter, r *http.Request) error {
	var spec agent.PTYSpec
	if err := readJSON(w, r, &spec); err != nil {
		return err
	}
	t, err := s.openPTY(spec)
	if err != nil {
		return err
	}
	return ok(w, t.describe())
}

func (s *Server) ptyList(w http.ResponseWriter, _ *http.Request) error {
	s.mu.Lock()
	all := make([]*terminal, 0, len(s.ptys))
	for _, t := range s.ptys {
		all = append(all, t)
	}
	s.mu.Unlock()
	list := make([]agent.PTY, 0, len(all))
	for _, t := range all {
		list = append(list, t.describe())
	}
	slices.SortFunc(list, func(a, b agent.PTY) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return ok(w, list)
}

func (s *Server) ptyGet(w http.ResponseWriter, r *http.Request) error {
	t, err := s.pty(r.PathValue("id"))
	if err != nil {
		return err
	}
	return ok(w, t.describe())
}

func (s *Server) ptyRename(w http.ResponseWriter, r *http.Request) error {
	t, err := s.pty(r.PathValue("id"))
	if err != nil {
		return err
	}
	var to agent.PTYName
	if err := readJSON(w, r, &to); err != nil {
		return err
	}
	if to.Name == "" || len(to.Name) > agent.MaxPTYName {
		return fault.Field("name", "must be 1 to %d bytes long", agent.MaxPTYName)
	}
	t.mu.Lock()
	t.name = to.Name
	t.mu.Unlock()
	return ok(w, t.describe())
}

func (s *Server) ptyClose(w http.ResponseWriter, r *http.Request) error {
	t, err := s.pty(r.PathValue("id"))
	if err != nil {
		return err
	}
	t.hangUp()
	s.mu.Lock()
	delete(s.ptys, t.id)
	s.mu.Unlock()
	return ok(w, struct{}{})
}

func (s *Server) ptyAttach(w http.ResponseWriter, r *http.Request) error {
	t, err := s.pty(r.PathValue("id"))
	if err != nil {
		return err
	}
	since, err := offset(r, "since", -1)
	if err != nil {
		return err
	}
	if r.Header.Get("Upgrade") != agent.PTYUpgrade {
		return fault.New(fault.BadRequest, "A terminal is attached by an upgrade.")
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+agent.PTYUpgrade+"\r\n\r\n")
	if err != nil {
		return nil //nolint:nilerr // hijacked: there is nobody left to tell
	}
	a := &attached{t: t, conn: conn, closed: make(chan struct{})}
	go func() {
		a.read(rw.Reader)
		close(a.closed)
	}()
	a.write(since)
	_ = conn.Close()
	<-a.closed
	return nil
}

// attached is one host's live connection to a terminal.
type attached struct {
	t      *terminal
	conn   net.Conn
	closed chan struct{}
	out    sync.Mutex // writes of whole frames
}

// read takes the host's frames until the connection ends or says something that is no frame.
func (a *attached) read(in *bufio.Reader) {
	var head [5]byte
	var buf []byte
	for {
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return
		}
		n := binary.BigEndian.Uint32(head[1:])
		if n > agent.MaxInput {
			return
		}
		if int(n) > cap(buf) {
			buf = make([]byte, n)
		}
		p := buf[:n]
		if _, err := io.ReadFull(in, p); err != nil {
			return
		}
		if cap(buf) > agent.MaxFrame {
			buf = nil // one large paste is no reason to keep a megabyte
		}
		switch agent.FrameType(head[0]) {
		case agent.PTYInput:
			if !a.t.input(p) && a.frame(agent.PTYRefused, nil) != nil {
				return
			}
		case agent.PTYResize:
			var size agent.Size
			if json.Unmarshal(p, &size) == nil {
				a.t.resize(size.Cols, size.Rows)
			}
		case agent.PTYSignal:
			var msg struct {
				Name string `json:"name"`
			}
			if json.Unmarshal(p, &msg) == nil {
				if sig, err := signalOf(msg.Name); err == nil {
					_ = a.t.signal(sig)
				}
			}
		}
	}
}

func (a *attached) frame(t agent.FrameType, p []byte) error {
	msg := make([]byte, 5, 5+len(p))
	msg[0] = byte(t)
	binary.BigEndian.PutUint32(msg[1:], uint32(len(p)))
	a.out.Lock()
	defer a.out.Unlock()
	_, err := a.conn.Write(append(msg, p...))
	return err
}

// write sends output, sizes and the exit until the connection ends.
func (a *attached) write(since int64) {
	const head = 5 + 8
	buf := make([]byte, head+agent.MaxFrame-8)
	c := cursor{pos: since, size: -1}
	if since < 0 {
		c.pos = 0
	}
	a.t.mu.Lock()
	c.pos = min(c.pos, a.t.ring.next)
	a.t.mu.Unlock()
	for {
		kind, offset, p, wait := a.t.next(&c, buf[head:])
		if wait != nil {
			select {
			case <-wait:
			case <-a.closed:
				return
			}
			continue
		}
		if kind != agent.PTYOutput {
			if a.frame(kind, p) != nil || kind == agent.PTYExit {
				return
			}
			continue
		}
		buf[0] = byte(kind)
		binary.BigEndian.PutUint32(buf[1:], uint32(8+len(p)))
		binary.BigEndian.PutUint64(buf[5:], uint64(offset))
		a.out.Lock()
		_, err := a.conn.Write(buf[:head+len(p)])
		a.out.Unlock()
		if err != nil {
			return
		}
	}
}
