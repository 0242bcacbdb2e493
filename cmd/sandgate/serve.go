package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"sandgate/auth/session"
	"sandgate/handlers"
	"sandgate/handlers/api"
	"sandgate/handlers/mcp"
	"sandgate/internal/webhost"
	"sandgate/sandbox/idle"
	"sandgate/sandbox/image"
	"sandgate/sandbox/runsc"
)

type serveCmd struct {
	place          `embed:""`
	jailFlags      `embed:""`
	Listen         string   `help:"Address to listen on; port 0 picks one." env:"SANDGATE_LISTEN" default:"127.0.0.1:8080" placeholder:"HOST:PORT"`
	PublicURL      string   `help:"URL under which people and sandboxes reach this server, with the path that a proxy serves it under; default: the listener's." env:"SANDGATE_PUBLIC_URL" placeholder:"URL"`
	Hosts          []string `help:"Further host:port names it answers to, comma-separated." env:"SANDGATE_HOSTS" placeholder:"HOST:PORT"`
	TrustedProxies []string `help:"Networks whose X-Forwarded-For is believed, comma-separated." env:"SANDGATE_TRUSTED_PROXIES" placeholder:"CIDR"`
	Mirror         string   `help:"Debian mirror to build images from; default: the host's own." env:"SANDGATE_MIRROR" placeholder:"URL"`
	RateLimit      float64  `help:"Calls a second that one API key may make on average, twice that in a burst; 0: no limit." env:"SANDGATE_RATE_LIMIT" default:"500" placeholder:"N"`
	OpenCalls      int      `help:"Calls that one API key may have open at once, streams and terminals counted; 0: no limit." env:"SANDGATE_OPEN_CALLS" default:"256" placeholder:"N"`
	bounds         `embed:""`
	tellFlags      `embed:""`
	SaveEvery      time.Duration `help:"How often persistent sandboxes are saved while they run; 0: never." env:"SANDGATE_SAVE_EVERY" default:"10m" placeholder:"DURATION"`
	LogJSON        bool          `help:"Log as JSON." env:"SANDGATE_LOG_JSON" name:"log-json"`
}

// Limits of the listener. There is no write limit: terminals, event streams and large files live long.
const (
	headerLimit     = 10 * time.Second
	idleLimit       = 2 * time.Minute
	maxHeaderBytes  = 64 << 10
	stopLimit       = 10 * time.Second
	reconcilePeriod = time.Minute
)

// Run serves until the process is told to stop; sandboxes live on.
func (c *serveCmd) Run(e *env) error {
	logger := c.logger(e)
	if err := c.bounds.check(); err != nil {
		return err
	}
	c.place.bounds = &c.bounds
	js := jailSettings{Pool: c.JailPool, Allow: c.JailAllow, Connections: c.JailConnections, Rate: c.JailRate}
	if err := js.read(); err != nil {
		return err
	}
	var err error
	if js.servers, err = c.servers(); err != nil {
		return err
	}
	dir, err := c.openOrMake()
	if err != nil {
		return err
	}
	release, err := dir.lock(e.ctx, lockPatience)
	if err != nil {
		return err
	}
	defer release()
	if c.place.keep, err = c.keeping(); err != nil {
		return err
	}
	if c.place.hook, err = c.newHook(dir.inst, logger); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer func() { _ = listener.Close() }()
	public, err := c.publicURL(listener.Addr())
	if err != nil {
		return err
	}
	in, err := insideOf(public)
	if err != nil {
		return err
	}
	js.Port = in.port
	ps, err := c.whole(e, logger, &js, in.url())
	if err != nil {
		return err
	}
	defer ps.close()
	if err := ps.keepJail(e.ctx, js); err != nil {
		return err
	}
	inner, err := ps.listenInside(e.ctx, in)
	if err != nil {
		return err
	}
	defer inner.close()
	handler, err := c.handler(e.ctx, ps, public, in, js, listener.Addr(), logger)
	if err != nil {
		return err
	}
	if _, err := ps.audit.CloseOpen(e.ctx); err != nil {
		return err
	}
	if err := ps.manager.Reconcile(e.ctx); err != nil {
		logger.Error("reconcile", "cause", err.Error()) // the rest is served; the next round tries again
	}
	if err := ps.service.ResumeRecordings(e.ctx); err != nil {
		return err
	}
	life, stop := context.WithCancel(e.ctx)
	defer stop()
	background := c.background(life, ps, logger)
	names, err := ps.answerNames(life, inner, in, js, logger)
	if err != nil {
		return err
	}
	control, err := ps.serveControl(life, logger)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: headerLimit, IdleTimeout: idleLimit, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, 2)
	go func() { failed <- server.Serve(listener) }() // ends with Shutdown or Close below
	if inner.platform != nil {
		go func() { failed <- server.Serve(inner.platform) }()
	}
	if err := c.greet(e, ps, public, listener.Addr()); err != nil {
		return err
	}
	notifyReady()
	select {
	case err = <-failed:
	case <-e.ctx.Done():
		logger.Info("stopping; sandboxes live on")
	}
	notifyStopping()
	ps.hub.Shutdown()
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	stop()
	if serr := server.Shutdown(ctx); serr != nil { // streams that do not end by themselves
		_ = server.Close()
	}
	names()
	control()
	background()
	ps.manager.Close()
	ps.lastRecord(logger)
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return err
}

func (c *serveCmd) logger(e *env) *slog.Logger {
	if c.LogJSON {
		return slog.New(slog.NewJSONHandler(e.stderr, nil))
	}
	return slog.New(slog.NewTextHandler(e.stderr, nil))
}

// lockedWhole wires everything under the data directory's lock, for commands.
func (p *place) lockedWhole(e *env, logger *slog.Logger) (*parts, func(), error) {
	dir, err := p.open()
	if err != nil {
		return nil, nil, err
	}
	release, err := dir.lock(e.ctx, lockPatience)
	if err != nil {
		return nil, nil, err
	}
	ps, err := p.whole(e, logger, nil, "")
	if err != nil {
		release()
		return nil, nil, err
	}
	return ps, release, nil
}

// publicPath is what may stand in front of every address: nothing that would have to be escaped in a page.
var publicPath = regexp.MustCompile(`^(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*$`)

// publicURL is the one given, or the listener's.
func (c *serveCmd) publicURL(addr net.Addr) (*url.URL, error) {
	if c.PublicURL == "" {
		return &url.URL{Scheme: "http", Host: addr.String()}, nil
	}
	u, err := url.Parse(c.PublicURL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("--public-url %q is not a http or https URL", c.PublicURL)
	}
	u.Path, u.RawPath = strings.TrimRight(u.Path, "/"), ""
	if !publicPath.MatchString(u.Path) {
		return nil, fmt.Errorf("--public-url %q: its path may have letters, digits and ._~- between its slashes", c.PublicURL)
	}
	return u, nil
}

func (c *serveCmd) handler(life context.Context, ps *parts, public *url.URL, in inside, js jailSettings, addr net.Addr, logger *slog.Logger) (http.Handler, error) {
	hosts := c.Hosts
	if ps.jail != nil {
		hosts = append([]string{in.host()}, hosts...)
	}
	names, err := webhost.New(webhost.Options{Listen: addr.String(), PublicURL: public.String(), Hosts: hosts})
	if err != nil {
		return nil, err
	}
	proxies := make([]netip.Prefix, len(c.TrustedProxies))
	for i, p := range c.TrustedProxies {
		if proxies[i], err = netip.ParsePrefix(p); err != nil {
			return nil, fmt.Errorf("--trusted-proxies: %w", err)
		}
		if js.pool.IsValid() && proxies[i].Overlaps(js.pool) {
			return nil, fmt.Errorf("--trusted-proxies: %s holds addresses of sandboxes (%s), which may not be believed; choose another --jail-pool", p, js.pool)
		}
	}
	if c.RateLimit < 0 || c.RateLimit > 0 && c.RateLimit < 0.1 || c.OpenCalls < 0 {
		return nil, errors.New("--rate-limit must be 0 or at least 0.1, and --open-calls 0 or more")
	}
	limits := api.NewLimits(c.RateLimit, c.OpenCalls)
	rest, err := api.New(api.Options{
		Service: ps.service, Names: names, Log: logger, Life: life, ClientIP: handlers.ClientIP, Limits: limits,
		SpoolDir: ps.dir.path,
	})
	if err != nil {
		return nil, err
	}
	models, err := mcp.New(mcp.Options{
		Service: ps.service, Names: names, Log: logger, Version: version, ClientIP: handlers.ClientIP, Limits: limits,
	})
	if err != nil {
		return nil, err
	}
	web, err := handlers.New(handlers.Options{
		Service: ps.service, Images: imageStates{ps.images}, Names: names, Log: logger, API: rest, MCP: models,
		Sessions:  session.New(session.Options{Records: ps.store, Secure: public.Scheme == "https", Address: handlers.ClientIP}),
		PublicURL: public.String(), TrustedProxies: proxies, NoNetwork: ps.jail == nil,
	})
	if err != nil {
		return nil, err
	}
	return web.Handler(), nil
}

// background does what goes on beside the requests until ctx ends. The function returned waits for all of it.
func (c *serveCmd) background(ctx context.Context, ps *parts, logger *slog.Logger) (wait func()) {
	var all sync.WaitGroup
	all.Go(func() { c.keepImage(ctx, ps, logger) })
	all.Go(func() { keepReconciled(ctx, ps, logger) })
	all.Go(func() { ps.manager.KeepPool(ctx) })
	all.Go(func() { ps.service.SweepIdle(ctx, idle.SystemClock()) })
	all.Go(func() { ps.service.SweepSnapshots(ctx) })
	all.Go(func() { ps.service.SweepRecordings(ctx) })
	all.Go(func() { ps.service.SweepApprovals(ctx) })
	all.Go(func() { ps.service.SampleMetrics(ctx) })
	all.Go(func() { ps.audit.Tend(ctx) })
	all.Go(func() { ps.hook.Run(ctx) })
	all.Go(func() { ps.audit.Publish(ctx, c.HeadEvery, ps.tellHead) })
	if c.SaveEvery > 0 {
		all.Go(func() { ps.manager.KeepSaved(ctx, c.SaveEvery) })
	}
	all.Go(func() {
		feedWatchdog(ctx, func(ctx context.Context) error {
			_, err := ps.service.SetupNeeded(ctx)
			return err
		}, logger)
	})
	return all.Wait
}

// keepReconciled compares records and host every minute.
func keepReconciled(ctx context.Context, ps *parts, logger *slog.Logger) {
	tick := time.NewTicker(reconcilePeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := ps.manager.Reconcile(ctx); err != nil && ctx.Err() == nil {
				logger.Error("reconcile", "cause", err.Error())
			}
		}
	}
}

// keepImage builds the base image where it is missing or outdated, and removes replaced ones, and agents, that nothing stands on.
func (c *serveCmd) keepImage(ctx context.Context, ps *parts, logger *slog.Logger) {
	if st := ps.images.State("base"); st.Status != image.Ready || st.Outdated {
		logger.Info("building the image", "image", "base")
		if _, err := ps.images.Build(ctx, "base", image.Options{Mirror: c.Mirror}); err != nil {
			if ctx.Err() == nil {
				logger.Error("build the image", "image", "base", "cause", err.Error())
			}
			return
		}
		logger.Info("image ready", "image", "base")
	}
	if err := ps.images.Prune(ctx, runsc.UsesImage); err != nil && ctx.Err() == nil {
		logger.Warn("prune images", "cause", err.Error())
	}
	if err := runsc.PruneAgents(c.Cache, ps.agent, time.Now()); err != nil {
		logger.Warn("prune agents", "cause", err.Error())
	}
}

// greet prints where the server is, and the first sign-in link until somebody used it.
func (c *serveCmd) greet(e *env, ps *parts, public *url.URL, addr net.Addr) error {
	if _, err := fmt.Fprintf(e.stdout, "listening on http://%s\n", addr); err != nil {
		return err
	}
	if public.Host != addr.String() {
		_, _ = fmt.Fprintf(e.stdout, "open %s\n", public)
	}
	needed, err := ps.service.SetupNeeded(e.ctx)
	if err != nil || !needed {
		return err
	}
	token, err := ps.service.NewSetupToken(e.ctx)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(e.stdout, "first sign-in: %s/setup?token=%s\n", public, url.QueryEscape(token))
	return err
}

// imageStates shows the image store to the service.
type imageStates struct{ s *image.Store }

func (i imageStates) ImageState(name string) (state string, percent int, detail string) {
	st := i.s.State(name)
	return string(st.Status), st.Percent, strings.TrimSpace(st.Phase + "\n" + st.Error + "\n" + st.LogTail)
}

func (i imageStates) ImageNames() []string { return image.Names() }
