// Package webhost owns which host names and which browser origins this server answers to. It must never trust a name that
// only the request brings: a name that was made to point here by somebody else's DNS is refused.
package webhost

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// Options are where the names come from.
type Options struct {
	Listen    string   // the listener's address as it is bound, "127.0.0.1:8080"; loopback names with its port are allowed
	PublicURL string   // "https://sandgate.example.org"; may be empty
	Hosts     []string // further "host" or "host:port" names, or whole origins "https://host"
}

// Names is the allow-list. Immutable, so safe for concurrent use.
type Names struct {
	hosts    map[string]bool // lower case, with port where one is not the scheme's own
	origins  map[string]bool // exact origins, scheme and all
	wildcard string          // port of a listener on all addresses; then a request to the very address it came in on is allowed
}

// New reads the options; a name that is none is an error.
func New(o Options) (*Names, error) {
	n := &Names{hosts: map[string]bool{}, origins: map[string]bool{}}
	if o.Listen != "" {
		if err := n.addListener(o.Listen); err != nil {
			return nil, err
		}
	}
	if o.PublicURL != "" {
		if err := n.addOrigin(o.PublicURL); err != nil {
			return nil, fmt.Errorf("public URL %q: %w", o.PublicURL, err)
		}
	}
	for _, h := range o.Hosts {
		if h = strings.TrimSpace(h); h == "" {
			continue
		}
		if strings.Contains(h, "://") {
			if err := n.addOrigin(h); err != nil {
				return nil, fmt.Errorf("host %q: %w", h, err)
			}
			continue
		}
		if strings.ContainsAny(h, "/?#@*, ") {
			return nil, fmt.Errorf("host %q: give host or host:port", h)
		}
		n.hosts[strings.ToLower(h)] = true
	}
	return n, nil
}

func (n *Names) addListener(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("listen address %q: %w", addr, err)
	}
	for _, h := range []string{"127.0.0.1", "localhost", "::1"} {
		n.addHost(h, port)
	}
	ip, err := netip.ParseAddr(host)
	if host == "" || err == nil && ip.IsUnspecified() {
		n.wildcard = port
		return nil
	}
	n.addHost(host, port)
	return nil
}

func (n *Names) addHost(host, port string) {
	n.hosts[strings.ToLower(net.JoinHostPort(host, port))] = true
	if port == "80" || port == "443" { // browsers leave the scheme's own port out
		if strings.Contains(host, ":") {
			host = "[" + host + "]"
		}
		n.hosts[strings.ToLower(host)] = true
	}
}

func (n *Names) addOrigin(s string) error {
	u, err := url.Parse(s)
	if err != nil {
		return err
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return fmt.Errorf("want http://host or https://host")
	}
	host := strings.ToLower(u.Host)
	host = strings.TrimSuffix(host, map[string]string{"http": ":80", "https": ":443"}[u.Scheme])
	n.hosts[host] = true
	n.origins[u.Scheme+"://"+host] = true
	return nil
}

// Origins lists the origins that are allowed whatever name the request came to: the public URL's and those given whole.
func (n *Names) Origins() []string {
	var out []string
	for o := range n.origins {
		out = append(out, o)
	}
	return out
}

// HostAllowed reports whether the request's Host is a name of this server.
func (n *Names) HostAllowed(r *http.Request) bool {
	host := strings.ToLower(r.Host)
	if n.hosts[host] {
		return true
	}
	if n.wildcard == "" {
		return false
	}
	// A literal address can't be rebound by DNS; it must be the one that this connection came in on.
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	at, err := netip.ParseAddrPort(local.String())
	if err != nil {
		return false
	}
	at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	if ap, err := netip.ParseAddrPort(host); err == nil {
		return ap == at
	}
	a, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && a == at.Addr() && (n.wildcard == "80" || n.wildcard == "443")
}

// OriginAllowed reports whether the request's Origin header is a page of this server: one of Origins, or exactly the scheme
// and host that the request itself came to (whose host must be allowed too). A missing Origin is not allowed here.
func (n *Names) OriginAllowed(r *http.Request) bool {
	values := r.Header.Values("Origin")
	if len(values) != 1 || !n.HostAllowed(r) {
		return false
	}
	origin := strings.ToLower(values[0])
	if n.origins[origin] {
		return true
	}
	host := strings.ToLower(r.Host)
	if n.origins["https://"+host] || n.origins["http://"+host] {
		return false // this name was given with its scheme: the other one is not it
	}
	scheme := "http://"
	if r.TLS != nil {
		scheme = "https://"
	}
	return origin == scheme+host
}
