// Package guest owns the agent's inside: the HTTP server that runs commands, terminals and file work within a sandbox.
// It must never serve a network, never import the host's side of Sandgate, and never let one command's output, one
// reader or one directory take memory without a bound.
package guest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"sandgate/sandbox/agent"
)

// Config says where and as what the server works. The zero value is completed by New.
type Config struct {
	Workdir string   // default directory of commands and terminals, made when missing; default agent.Workdir
	Spill   string   // directory for the output that does not fit in memory; default "/"
	Env     []string // environment under the login environment ("K=V"), e.g. the image's
	Version string   // told by Hello
	Ring    int      // bytes of output a terminal keeps; default agent.DefaultRing
	Init    bool     // process 1: one loop reaps every child of this process. Else only our own children are waited for
}

// Server runs what the host asks for. Safe for concurrent use.
type Server struct {
	cfg      Config
	boot     string
	http     *http.Server
	children *children
	starter  string // path of the program that commands are started by; "" when there is none
	login    loginEnv
	users    names
	groups   names
	renames  sync.Mutex    // held from a last look at a file to its replacement
	watchers chan struct{} // tokens of watches on files

	mu       sync.Mutex
	commands map[string]*command
	ended    []*command          // in order of their end, oldest first
	refused  map[string]struct{} // ids that were killed before their start arrived
	ptys     map[string]*terminal
	sessions map[*yamux.Session]struct{}
	closed   bool
	ready    *standby // what the next command is started with; nil: nothing stands by
	readying bool     // one is being made
	standbys int      // how often they were called off
}

// New makes a server; nothing runs yet but, with Config.Init, the reaping of children.
func New(cfg Config) *Server {
	if cfg.Workdir == "" {
		cfg.Workdir = agent.Workdir
	}
	if cfg.Spill == "" {
		cfg.Spill = "/"
	}
	if cfg.Ring <= 0 {
		cfg.Ring = agent.DefaultRing
	}
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails since Go 1.24
	s := &Server{
		cfg: cfg, boot: hex.EncodeToString(id[:]), children: newChildren(cfg.Init), starter: starterPath(),
		commands: map[string]*command{}, refused: map[string]struct{}{}, ptys: map[string]*terminal{}, sessions: map[*yamux.Session]struct{}{},
		watchers: make(chan struct{}, agent.MaxWatchers),
	}
	s.login.base = cfg.Env
	s.users.path, s.groups.path = "/etc/passwd", "/etc/group"
	s.http = &http.Server{
		Handler:        s.routes(),
		MaxHeaderBytes: 64 << 10,
		ErrorLog:       log.New(io.Discard, "", 0), // process 1 has nowhere to log that a person would read
	}
	return s
}

// Serve accepts on both listeners until ctx ends or one of them fails. It closes both.
func (s *Server) Serve(ctx context.Context, mux, bulk net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = mux.Close(); _ = bulk.Close() })
	defer stop()
	errs := make(chan error, 2)
	go func() { errs <- s.accept(mux, false) }()
	go func() { errs <- s.accept(bulk, true) }()
	err := <-errs
	_ = mux.Close()
	_ = bulk.Close()
	<-errs
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (s *Server) accept(l net.Listener, bulk bool) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
				continue
			}
			return err
		}
		go s.ServeConn(conn, bulk)
	}
}

// ServeConn serves one bridge and returns when it has ended: bulk false speaks yamux, true plain HTTP/1.1.
func (s *Server) ServeConn(conn io.ReadWriteCloser, bulk bool) {
	if bulk {
		l := &oneConn{conn: agent.Conn(conn), done: make(chan struct{})}
		_ = s.http.Serve(l)
		return
	}
	cfg := yamux.DefaultConfig()
	cfg.LogOutput = io.Discard
	cfg.EnableKeepAlive = false // the host pings; an idle sandbox stays asleep
	cfg.MaxStreamWindowSize = agent.StreamWindow
	session, err := yamux.Server(agent.Coalesce(conn), cfg)
	if err != nil {
		_ = conn.Close()
		return
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		_ = session.Close()
		return
	}
	s.sessions[session] = struct{}{}
	s.mu.Unlock()
	_ = s.http.Serve(session)
	_ = session.Close()
	s.mu.Lock()
	delete(s.sessions, session)
	s.mu.Unlock()
}

// Close ends every bridge and kills every command and terminal. For tests and embedded use: process 1 never calls it.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	var jobs []*job
	for _, c := range s.commands {
		jobs = append(jobs, &c.job)
	}
	for _, t := range s.ptys {
		jobs = append(jobs, &t.job)
	}
	for session := range s.sessions {
		_ = session.Close()
	}
	s.mu.Unlock()
	s.callOff()
	err := s.http.Close()
	for _, j := range jobs {
		s.killTree(j)
	}
	return err
}

// oneConn is a listener with a single connection: Accept's second call blocks until that one is closed.
type oneConn struct {
	mu   sync.Mutex
	conn net.Conn
	done chan struct{}
	once sync.Once
}

type closeNotify struct {
	net.Conn
	l *oneConn
}

func (c *closeNotify) Close() error { _ = c.l.Close(); return c.Conn.Close() }

func (l *oneConn) Accept() (net.Conn, error) {
	l.mu.Lock()
	conn := l.conn
	l.conn = nil
	l.mu.Unlock()
	if conn != nil {
		return &closeNotify{conn, l}, nil
	}
	<-l.done
	return nil, net.ErrClosed
}

func (l *oneConn) Close() error { l.once.Do(func() { close(l.done) }); return nil }
func (l *oneConn) Addr() net.Addr {
	return &net.UnixAddr{Name: "bridge", Net: "unix"}
}

// now is the wall clock; durations are taken from its monotonic part.
func now() time.Time { return time.Now() }
