package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"sandgate/internal/approval"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/internal/seal"
	"sandgate/internal/store"
	"sandgate/internal/webhook"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
	"sandgate/sandbox/image"
	"sandgate/sandbox/netjail"
	"sandgate/sandbox/netjail/policy"
	"sandgate/sandbox/runsc"
	"sandgate/sandbox/term"
	"sandgate/sandbox/term/recording"
)

// place are the flags that say where things are on this host; server-side commands share them.
type place struct {
	Data  string `help:"Data directory: database, keys, sandboxes; default: /var/lib/sandgate for root, ~/.local/share/sandgate for others." env:"SANDGATE_DATA" placeholder:"DIR"`
	Cache string `help:"Cache: runsc and images; can be made again." env:"SANDGATE_CACHE" default:"/var/cache/sandgate" placeholder:"DIR"`
	Runsc string `help:"Use this runsc instead of the one in the cache." env:"SANDGATE_RUNSC" placeholder:"PATH"`
	Agent string `help:"The agent's binary; default: sandgate-agent beside this program." env:"SANDGATE_AGENT" placeholder:"PATH"`
	// SavedMB bounds what is kept of sandboxes.
	SavedMB int64 `help:"MiB of the disk that suspended sandboxes and snapshots may take together; 0: all but a reserve." env:"SANDGATE_SAVED_MB" name:"saved-mb" default:"0" placeholder:"MB"`

	bounds *bounds // of a server; nil: nothing is created
	keep   audit.Keeping
	hook   *webhook.Hook // of a server; nil: nobody is told
}

// dataDir is an opened data directory.
type dataDir struct {
	path string
	inst string // 4 characters of a-z0-9, made once: every name on the host carries it
	key  []byte // 32 bytes: seals the record
	seal []byte // 32 bytes: encrypts the secrets of sandboxes
}

// instFile holds the installation's mark. It is made first: where it is, there is a data directory.
const instFile = "inst"

// errBusy says that a server holds the data directory.
var errBusy = errors.New("another Sandgate server uses this data directory")

// path gives the data directory, whether it is there or not.
func (p *place) path() (string, error) {
	path := p.Data
	if path == "" {
		path = "/var/lib/sandgate"
		if os.Geteuid() != 0 {
			base, err := os.UserHomeDir()
			if err != nil {
				return "", errors.New("name a data directory: --data DIR")
			}
			path = filepath.Join(base, ".local", "share", "sandgate")
		}
	}
	return filepath.Abs(path)
}

// open opens a data directory that is there. One that is named wrongly must not look like one in which nothing happened.
func (p *place) open() (*dataDir, error) {
	path, err := p.path()
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(path, instFile)); errors.Is(err, os.ErrNotExist) {
		if _, err := os.Stat(filepath.Join(path, databaseFile)); err == nil {
			return nil, damaged(path)
		}
		return nil, fault.New(fault.NotFound, "There is no data directory of Sandgate in %s. Name the right one with --data DIR or $SANDGATE_DATA; a new one is made by \"sandgate serve\" and \"sandgate user create\".", path)
	} else if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	return p.openOrMake()
}

// openOrMake opens a data directory, making what of it is not there.
func (p *place) openOrMake() (*dataDir, error) {
	path, err := p.path()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if err := os.Chmod(path, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if _, err := os.Stat(filepath.Join(path, databaseFile)); err == nil { // a new mark would disown what is on the host, a new key the record
		for _, name := range []string{instFile, "secret.key", "sealing.key"} {
			if _, err := os.Stat(filepath.Join(path, name)); errors.Is(err, os.ErrNotExist) {
				return nil, damaged(path)
			}
		}
	}
	inst, err := onceFile(filepath.Join(path, instFile), func() []byte { return []byte(sandbox.RandomID("")[:4]) })
	if err != nil {
		return nil, err
	}
	key, err := onceFile(filepath.Join(path, "secret.key"), randomKey)
	if err != nil {
		return nil, err
	}
	sealing, err := onceFile(filepath.Join(path, "sealing.key"), randomKey)
	if err != nil {
		return nil, err
	}
	if len(inst) != 4 || len(key) != 32 || len(sealing) != seal.KeyLen {
		return nil, damaged(path)
	}
	return &dataDir{path: path, inst: string(inst), key: key, seal: sealing}, nil
}

func damaged(path string) error {
	return fmt.Errorf("%s: inst, secret.key or sealing.key is damaged; restore them from a backup", path)
}

func randomKey() []byte {
	k := make([]byte, 32)
	_, _ = rand.Read(k) // never fails since Go 1.24
	return k
}

// onceFile reads a small file, making it first where it is missing; two processes that make it at once agree on one.
func onceFile(path string, make func() []byte) ([]byte, error) {
	b, err := os.ReadFile(path)
	if !errors.Is(err, os.ErrNotExist) {
		return b, err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-*") // 0600
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	_, werr := tmp.Write(make())
	if err := errors.Join(werr, tmp.Sync(), tmp.Close()); err != nil {
		return nil, err
	}
	if err := os.Link(tmp.Name(), path); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	return os.ReadFile(path)
}

// lockPatience is how long a server or command waits for the data directory. What a killed server was just starting holds its
// files, the lock among them, until it has become the other program: on a busy host that takes a while.
const lockPatience = 5 * time.Second

// lock takes the data directory for a server, or for a command that changes the host. Released by the process's end too.
func (d *dataDir) lock(ctx context.Context, patience time.Duration) (release func(), err error) {
	f, err := os.OpenFile(filepath.Join(d.path, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(patience); ; {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-late:
			err = errBusy
		case <-tick.C:
			continue
		}
		_ = f.Close()
		return nil, err
	}
}

func (d *dataDir) controlSocket() string { return filepath.Join(d.path, "control.sock") }

// parts is everything below the handlers, wired.
type parts struct {
	dir     *dataDir
	store   *store.Store
	audit   *audit.Log
	hook    *webhook.Hook
	images  *image.Store
	jail    *netjail.Jail    // nil where sandboxes have no network
	manager *sandbox.Manager // nil without a runtime
	agent   string           // the copy of the agent that new sandboxes get
	hub     *term.Hub
	service *workspace.Service
	close   func()
}

// people wires what commands on people, keys and the record need; no runtime, no lock.
func (p *place) people(e *env) (*parts, error) {
	return p.peopleLogged(e, slog.New(slog.DiscardHandler))
}

func (p *place) peopleLogged(e *env, logger *slog.Logger) (*parts, error) {
	dir, err := p.open()
	if err != nil {
		return nil, err
	}
	st, err := store.Open(e.ctx, filepath.Join(dir.path, "sandgate.db"))
	if err != nil {
		return nil, err
	}
	log, err := audit.New(audit.Options{Store: st, Key: dir.key, HeadFile: filepath.Join(dir.path, "audit.head"), Keep: p.keep, Log: logger, Now: time.Now})
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	ps := &parts{dir: dir, store: st, audit: log, hook: p.hook, close: func() { _ = st.Close() }}
	ps.service, err = workspace.New(workspace.Options{Store: st, Audit: log, Gate: approval.Open{}, Log: logger, Now: time.Now})
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	return ps, nil
}

// whole wires everything; the caller holds the lock. Without settings of a jail those of the last server hold.
func (p *place) whole(e *env, logger *slog.Logger, js *jailSettings, platformURL string) (_ *parts, err error) {
	ps, err := p.peopleLogged(e, logger)
	if err != nil {
		return nil, err
	}
	if js == nil {
		last, err := ps.dir.lastJail()
		if err != nil {
			ps.close()
			return nil, err
		}
		js = &last
	} else if err := ps.samePool(e.ctx, *js); err != nil {
		ps.close()
		return nil, err
	}
	if ps.images, err = image.Open(p.Cache); err != nil {
		ps.close()
		return nil, err
	}
	runtime, err := p.runtime(e, ps, logger)
	if err != nil {
		ps.close()
		return nil, err
	}
	ps.agent = runtime.Agent()
	var host sandbox.Host // asked only by who creates
	if p.bounds == nil {
		p.bounds = &bounds{}
	} else {
		host = runtime
	}
	var told atomic.Pointer[workspace.Service] // what network and manager tell before there is a service is nobody's yet
	if ps.jail, err = ps.openJail(*js, &told, logger); err != nil {
		ps.close()
		return nil, err
	}
	closeStore := ps.close
	ps.close = func() {
		if ps.jail != nil {
			if err := ps.jail.Close(); err != nil {
				logger.Warn("close the jail", "cause", err.Error())
			}
		}
		closeStore()
	}
	box, err := seal.New(ps.dir.seal)
	if err != nil {
		ps.close()
		return nil, err
	}
	so := sandbox.Options{
		Runtime: runtime, Records: ps.store, Deadlines: ps.store, Snapshots: ps.store, Log: logger, Now: time.Now, Host: host, Reserve: p.bounds.reserve(),
		Pool: sandbox.PoolOptions{Max: p.bounds.Pool, Image: "base", State: ps.imageTree},
		OnChange: func(r sandbox.Record) {
			if svc := told.Load(); svc != nil {
				svc.SandboxChanged(r)
			}
		},
	}
	wo := workspace.Options{
		Store: ps.store, Deadlines: ps.store, Audit: ps.audit, Gate: approval.NewGate(ps.store), Images: imageStates{ps.images}, Seal: box, Log: logger, Now: time.Now,
		Hook: p.hook, Ceilings: p.bounds.ceilings(), MaxSandboxes: p.bounds.MaxSandboxes, Snapshots: p.bounds.snapshots(),
	}
	if ps.jail != nil {
		so.Network = ps.jail
		wo.PlatformURL = platformURL
		wo.CheckNetwork = func(p sandbox.NetworkPolicy) (sandbox.NetworkPolicy, error) { return policy.Check(p, js.exceptions) }
	}
	if ps.manager, err = sandbox.New(so); err != nil {
		ps.close()
		return nil, err
	}
	ps.hub = term.NewHub(workspace.AttachVia(ps.manager))
	ps.hub.WakeBy(func(ctx context.Context, id sandbox.ID) error {
		_, err := ps.manager.Resume(ctx, id)
		return err
	})
	wo.Sandboxes, wo.Terminals = ps.manager, ps.hub
	if wo.Recordings, err = recording.Open(filepath.Join(ps.dir.path, "recordings")); err != nil {
		ps.close()
		return nil, err
	}
	if ps.service, err = workspace.New(wo); err != nil {
		ps.close()
		return nil, err
	}
	told.Store(ps.service)
	return ps, nil
}

// imageTree names what an image is now; "" while it cannot be used.
func (ps *parts) imageTree(name string) string {
	img, err := ps.images.Get(name)
	if err != nil {
		return ""
	}
	return img.Digest
}

// runtime finds runsc and the agent and refuses what cannot work, saying what to do.
func (p *place) runtime(e *env, ps *parts, logger *slog.Logger) (*runsc.Runtime, error) {
	binary, err := p.findRunsc(e)
	if err != nil {
		return nil, err
	}
	agentPath, err := p.findAgent()
	if err != nil {
		return nil, err
	}
	return runsc.New(runsc.Options{
		Binary: binary, AgentBinary: agentPath, Images: ps.images, DataDir: ps.dir.path, Inst: ps.dir.inst, Log: logger,
		MaxSaves: p.SavedMB << 20,
	})
}

func (p *place) findAgent() (string, error) {
	path := p.Agent
	if path == "" {
		self, err := os.Executable()
		if err != nil {
			return "", err
		}
		path = filepath.Join(filepath.Dir(self), "sandgate-agent")
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("the agent's binary is missing (%s): run `make build`, or name it by --agent", strings.TrimSuffix(path, "\n"))
	}
	return filepath.Abs(path)
}
