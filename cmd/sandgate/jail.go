package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"sandgate/auth"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
	"sandgate/sandbox/netjail"
	"sandgate/sandbox/netjail/policy"
	"sandgate/sandbox/netjail/resolver"
)

// jailFlags say what the network of sandboxes is like.
type jailFlags struct {
	JailPool        string   `help:"IPv4 network that sandboxes get their addresses from, or off: then they have no network at all." env:"SANDGATE_JAIL_POOL" placeholder:"CIDR" default:"${jail_pool}"`
	JailAllow       []string `help:"What sandboxes may reach although it is not public, comma-separated; none unless given." env:"SANDGATE_JAIL_ALLOW" placeholder:"CIDR:PORT"`
	JailDNS         []string `help:"Name servers to ask for sandboxes instead of the host's, comma-separated." env:"SANDGATE_JAIL_DNS" name:"jail-dns" placeholder:"ADDRESS"`
	JailConnections int      `help:"Connections that one sandbox may have open to the outside at once." env:"SANDGATE_JAIL_CONNECTIONS" default:"${jail_connections}" placeholder:"N"`
	JailRate        int64    `help:"MiB a second that one sandbox may send outside." env:"SANDGATE_JAIL_RATE" default:"${jail_rate}" placeholder:"MIB"`
}

// servers reads the name servers; none: the host's.
func (f jailFlags) servers() (out []netip.AddrPort, err error) {
	for _, s := range f.JailDNS {
		at, err := netip.ParseAddrPort(s)
		if err != nil {
			addr, aerr := netip.ParseAddr(s)
			if aerr != nil {
				return nil, fmt.Errorf("--jail-dns %q is no address, as in 192.0.2.53 or 192.0.2.53:53", s)
			}
			at = netip.AddrPortFrom(addr, 53)
		}
		out = append(out, at)
	}
	return out, nil
}

// jailOff is the pool of installations whose sandboxes have no network.
const jailOff = "off"

// jailSettings are flags as they were read. A server leaves them in its data directory, so that commands which work while
// it is down find the same jail.
type jailSettings struct {
	Pool  string   `json:"pool"` // a CIDR, or jailOff
	Allow []string `json:"allow"`
	Port  uint16   `json:"port"` // where our own listener is, from inside

	Connections int   `json:"connections,omitempty"` // of one sandbox; 0: the jail's own bound
	Rate        int64 `json:"rate,omitempty"`        // MiB a second of one sandbox; 0: the jail's own bound

	servers    []netip.AddrPort // of the running server alone
	pool       netip.Prefix
	exceptions policy.Exceptions
}

func (s *jailSettings) read() (err error) {
	if s.Pool == jailOff {
		return nil
	}
	if s.Connections < 0 || s.Rate < 0 || s.Rate > 1<<20 {
		return errors.New("--jail-connections and --jail-rate must be 0 or more; 0 is the usual bound")
	}
	if s.pool, err = netip.ParsePrefix(s.Pool); err != nil {
		return fmt.Errorf("--jail-pool %q is no network, as in %s", s.Pool, netjail.DefaultPool)
	}
	if s.exceptions, err = policy.ParseExceptions(s.Allow); err != nil {
		return fmt.Errorf("--jail-allow: %w", err)
	}
	s.Allow = []string{}
	for _, e := range s.exceptions {
		s.Allow = append(s.Allow, e.String())
	}
	return nil
}

func (d *dataDir) jailFile() string { return filepath.Join(d.path, "jail.json") }

// lastJail gives the settings of the last server here; nothing of a jail can be on the host when there was none.
func (d *dataDir) lastJail() (jailSettings, error) {
	s := jailSettings{Pool: netjail.DefaultPool.String()}
	b, err := os.ReadFile(d.jailFile())
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return s, fmt.Errorf("read %s: %w", d.jailFile(), err)
	}
	return s, s.read()
}

// samePool refuses another pool while sandboxes live: they have its addresses, and name its resolver.
func (ps *parts) samePool(ctx context.Context, s jailSettings) error {
	if _, err := os.Stat(ps.dir.jailFile()); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	before, err := ps.dir.lastJail()
	if err != nil || before.Pool == s.Pool {
		return err
	}
	living, err := ps.store.Sandboxes(ctx, sandbox.Filter{})
	if err != nil || len(living) == 0 {
		return err
	}
	return fmt.Errorf("--jail-pool %s: %d sandboxes were made with %s; kill them first, or keep that", s.Pool, len(living), before.Pool)
}

// keepJail leaves the settings for commands, and puts changed exceptions on record.
func (ps *parts) keepJail(ctx context.Context, s jailSettings) error {
	before, err := ps.dir.lastJail()
	if err != nil {
		return err
	}
	if len(s.exceptions) > 0 || len(before.exceptions) > 0 {
		words := strings.Join(s.Allow, " ")
		if words == "" {
			words = "none"
		}
		detail := ""
		if !slices.Equal(s.Allow, before.Allow) {
			detail = "changed"
		}
		err := ps.audit.Note(ctx, audit.Event{
			ActorKind: auth.System, Actor: "operator", Action: "network.exceptions", Target: words, Outcome: audit.OK, Detail: detail,
		})
		if err != nil {
			return err
		}
	}
	return ps.dir.writeJail(s)
}

func (d *dataDir) writeJail(s jailSettings) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	tmp := d.jailFile() + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, d.jailFile())
}

// openJail takes up the network of sandboxes; nil when it is off. What it tells goes to the service once that is there.
func (ps *parts) openJail(s jailSettings, service *atomic.Pointer[workspace.Service], logger *slog.Logger) (*netjail.Jail, error) {
	if s.Pool == jailOff {
		return nil, nil
	}
	jail, err := netjail.New(netjail.Options{
		Inst: ps.dir.inst, Pool: s.pool, JailAllow: s.exceptions, PlatformPort: s.Port, Log: logger,
		Limits: netjail.Limits{Connections: s.Connections, BytesPerSecond: s.Rate << 20},
		OnDenied: func(id sandbox.ID, d sandbox.Denial) {
			if svc := service.Load(); svc != nil {
				svc.NetworkDenied(id, d)
			}
		},
	})
	if fault.Is(err, fault.Internal) {
		return nil, fmt.Errorf("%w (without any network for sandboxes: --jail-pool off)", err)
	}
	return jail, err
}

// inside is how sandboxes reach this server: by a name of its own, over plain http, because the bytes stay on the host.
type inside struct {
	name string
	port uint16
}

// insideName stands for a public URL whose host is an address or a name that means something else inside.
const insideName = "sandgate.internal"

func insideOf(public *url.URL) (inside, error) {
	in := inside{name: strings.ToLower(strings.TrimSuffix(public.Hostname(), ".")), port: 80}
	if _, err := netip.ParseAddr(in.name); err == nil || !policy.Plain(in.name) || !strings.Contains(in.name, ".") {
		in.name = insideName
	}
	if p := public.Port(); p != "" && public.Scheme == "http" {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return in, fmt.Errorf("--public-url: %q is no port", p)
		}
		in.port = uint16(n)
	}
	return in, nil
}

// host is what a request from inside names.
func (in inside) host() string {
	if in.port == 80 {
		return in.name
	}
	return net.JoinHostPort(in.name, strconv.Itoa(int(in.port)))
}

func (in inside) url() string { return "http://" + in.host() }

// jailListeners are what serves sandboxes, bound before any of them runs.
type jailListeners struct {
	platform net.Listener
	names    net.PacketConn
	namesTCP net.Listener
}

func (ps *parts) listenInside(ctx context.Context, in inside) (l jailListeners, err error) {
	if ps.jail == nil {
		return l, nil
	}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	lc := net.ListenConfig{Control: netjail.ListenControl}
	names := netip.AddrPortFrom(ps.jail.GatewayAddr(), 53).String()
	if l.platform, err = lc.Listen(ctx, "tcp4", netip.AddrPortFrom(ps.jail.PlatformAddr(), in.port).String()); err != nil {
		return l, fmt.Errorf("listen for sandboxes: %w", err)
	}
	if l.names, err = lc.ListenPacket(ctx, "udp4", names); err != nil {
		return l, fmt.Errorf("listen for questions of sandboxes about names: %w", err)
	}
	if l.namesTCP, err = lc.Listen(ctx, "tcp4", names); err != nil {
		return l, fmt.Errorf("listen for questions of sandboxes about names: %w", err)
	}
	return l, nil
}

func (l jailListeners) close() {
	if l.platform != nil {
		_ = l.platform.Close()
	}
	if l.names != nil {
		_ = l.names.Close()
	}
	if l.namesTCP != nil {
		_ = l.namesTCP.Close()
	}
}

// answerNames serves names until ctx ends; the function returned waits for that.
func (ps *parts) answerNames(ctx context.Context, l jailListeners, in inside, s jailSettings, logger *slog.Logger) (wait func(), err error) {
	if ps.jail == nil {
		return func() {}, nil
	}
	r, err := resolver.New(resolver.Options{
		Upstreams: s.servers, Lookup: ps.jail.IDByAddr, Admit: ps.jail.Admit, Platform: map[string]netip.Addr{in.name: ps.jail.PlatformAddr()},
		Exceptions: s.exceptions, OnDenied: ps.service.NetworkDenied, Log: logger,
	})
	if err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Serve(ctx, l.names, l.namesTCP); err != nil {
			logger.Error("answer names for sandboxes", "cause", err.Error())
		}
	}()
	return func() { r.Close(); <-done }, nil
}
