package resolver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// upstreams knows the host's name servers and search domains.
type upstreams struct {
	fixed []netip.AddrPort
	path  string
	log   *slog.Logger
	one   func(ctx context.Context, network string, q *dns.Msg, server string) (*dns.Msg, error) // a seam for tests

	mu      sync.Mutex
	checked time.Time
	stamp   string // what the file looked like when it was read
	servers []string
	search  []string
	first   int // the server that answered last: it is asked first
}

const (
	checkEvery     = time.Second
	maxResolvConf  = 64 << 10
	maxUpstreams   = 8
	maxSearch      = 64
	noServersSaid  = "no name server is configured on the host: names are not answered inside sandboxes"
	unreadableSaid = "the host's resolver configuration cannot be read; what it said before holds"
)

func newUpstreams(fixed []netip.AddrPort, path string, log *slog.Logger) *upstreams {
	return &upstreams{fixed: fixed, path: path, log: log, one: exchangeOne}
}

// now gives servers, search domains and which server to begin with; it reads the file when that changed.
func (u *upstreams) now() (servers, search []string, first int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if t := time.Now(); u.checked.IsZero() || t.Sub(u.checked) > checkEvery {
		u.checked = t
		u.reread()
	}
	return u.servers, u.search, u.first
}

// reread is called with mu held.
func (u *upstreams) reread() {
	stamp := "missing"
	if info, err := os.Stat(u.path); err == nil {
		stamp = fmt.Sprint(info.ModTime().UnixNano(), info.Size(), fileID(info))
	}
	if stamp == u.stamp {
		return
	}
	u.stamp = stamp
	c, err := readConfig(u.path)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) || len(u.servers) > 0 {
			u.log.Warn(unreadableSaid, "cause", err)
		}
		if c == nil && u.servers == nil { // nothing is known: at least what was given
			c = &dns.ClientConfig{}
		} else {
			return
		}
	}
	servers := []string{}
	for _, s := range u.fixed {
		servers = append(servers, s.String())
	}
	if len(u.fixed) == 0 {
		for _, s := range c.Servers {
			if len(servers) < maxUpstreams {
				servers = append(servers, net.JoinHostPort(s, c.Port))
			}
		}
	}
	var search []string
	for _, s := range c.Search {
		if s = strings.ToLower(strings.Trim(s, ".")); s != "" && len(search) < maxSearch {
			search = append(search, s)
		}
	}
	u.servers, u.search, u.first = servers, search, 0
	if len(servers) == 0 {
		u.log.Warn(noServersSaid)
	}
}

func readConfig(path string) (*dns.ClientConfig, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	return dns.ClientConfigFromReader(io.LimitReader(f, maxResolvConf))
}

var errNoServer = errors.New("no name server answered")

// exchange asks one server after the other until one has an answer: a message that fits q, with data, without, or with the
// word that there is no such name.
func (u *upstreams) exchange(ctx context.Context, q *dns.Msg) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, waitAll)
	defer cancel()
	servers, _, first := u.now()
	err := errNoServer
	for i := range servers {
		at := (first + i) % len(servers)
		var m *dns.Msg
		if m, err = u.ask(ctx, q, servers[at]); err == nil {
			if i > 0 {
				u.prefer(servers[at])
			}
			return m, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, err
}

func (u *upstreams) prefer(server string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i, s := range u.servers {
		if s == server {
			u.first = i
		}
	}
}

func (u *upstreams) ask(ctx context.Context, q *dns.Msg, server string) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, waitOne)
	defer cancel()
	m, err := u.one(ctx, "udp", q, server)
	if err == nil {
		err = fits(q, m)
	}
	if err == nil && m.Truncated {
		if m, err = u.one(ctx, "tcp", q, server); err == nil {
			err = fits(q, m)
		}
	}
	if err != nil {
		return nil, err
	}
	if m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError {
		return nil, fmt.Errorf("name server answered %s", dns.RcodeToString[m.Rcode])
	}
	return m, nil
}

// fits says whether m answers q and nothing else.
func fits(q, m *dns.Msg) error {
	switch {
	case m == nil || !m.Response || m.Id != q.Id || m.Opcode != q.Opcode || len(m.Question) != 1:
		return errors.New("not an answer to the question")
	case !strings.EqualFold(m.Question[0].Name, q.Question[0].Name),
		m.Question[0].Qtype != q.Question[0].Qtype, m.Question[0].Qclass != q.Question[0].Qclass:
		return errors.New("an answer to another question")
	}
	return nil
}

// exchangeOne asks over a socket of its own: its port is part of what a forger would have to guess.
func exchangeOne(ctx context.Context, network string, q *dns.Msg, server string) (*dns.Msg, error) {
	c := dns.Client{Net: network, Timeout: waitOne}
	conn, err := c.DialContext(ctx, server)
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // nothing to lose
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	m, _, err := c.ExchangeWithConnContext(ctx, q, conn)
	return m, err
}
