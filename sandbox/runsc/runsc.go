// Package runsc owns how sandboxes are made on this machine: gVisor's runsc, its configuration, cgroups, bridges and
// traces. It must never take an argument, a path or an annotation from a guest or a request, and never touch anything on
// the host that does not carry this installation's mark.
package runsc

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"time"

	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/image"
)

// Options of New. All paths are absolute after New.
type Options struct {
	Binary      string       // runsc; Check it first
	AgentBinary string       // the agent's static binary; a copy of it, named by its digest, is what sandboxes get
	Images      *image.Store // where root filesystems come from
	DataDir     string       // the data directory; sandboxes live in its "sandboxes"
	Inst        string       // 4 characters of a-z0-9: this installation's mark
	RunDir      string       // for runtime state on a tmpfs; default /run/sandgate
	MaxSaves    int64        // bytes that all saves together may take; 0: only the disk bounds them
	Log         *slog.Logger // default: discards
}

// Runtime implements sandbox.Runtime with runsc. Safe for concurrent use; several processes may hold one for the same
// data directory (the server and a command line).
type Runtime struct {
	o      Options
	boot   string   // the kernel's boot id: state of an earlier boot is never believed
	agent  string   // the installed copy of the agent
	spare  *os.File // … its file, for when somebody takes the copy away
	cg     *cgroups
	watch  *watcher
	parent sync.Mutex // orders making and removing what all sandboxes share
	slots  chan struct{}
	stores sync.Map // sandbox.ID to the /proc path of its writable layer's file

	bridges  bridges
	controls sync.Map // sandbox.ID to control
	readings sync.Map // sandbox.ID to reading
	versions sync.Mutex
	said     string          // what runsc said of its version; "" before it was asked
	features func() []string // of the processor
}

var _ sandbox.Runtime = (*Runtime)(nil)

var instPattern = regexp.MustCompile(`^[a-z0-9]{4}$`)

// Time limits of the calls of runsc. A full machine is slow, a hanging one must not hold a request for ever.
const (
	createLimit = 45 * time.Second
	startLimit  = 30 * time.Second
)

// New checks the options and the host and installs the agent. It needs root. Of what sandboxes share on the host it makes
// nothing, and takes away what a crash left when there is no sandbox.
func New(o Options) (*Runtime, error) {
	if !instPattern.MatchString(o.Inst) {
		return nil, fmt.Errorf("runsc: installation mark %q: 4 characters of a-z0-9 are needed", o.Inst)
	}
	if os.Geteuid() != 0 {
		return nil, fault.New(fault.Internal, "Running sandboxes needs root: namespaces, cgroups and owners of files are set up for each.")
	}
	if o.Images == nil {
		return nil, errors.New("runsc: no image store")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.RunDir == "" {
		o.RunDir = "/run/sandgate"
	}
	for _, p := range []*string{&o.Binary, &o.AgentBinary, &o.DataDir, &o.RunDir} {
		abs, err := filepath.Abs(*p)
		if err != nil {
			return nil, fmt.Errorf("runsc: %s: %w", *p, err)
		}
		// The paths go into flag values and mount tables, where these characters separate.
		if strings.ContainsAny(abs, ":, \t\n\\") {
			return nil, fault.New(fault.Internal, "The path %s cannot be used: no space, colon, comma or backslash may be in it.", abs)
		}
		*p = abs
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("runsc: boot id: %w", err)
	}
	cg, err := detectCgroups(o.Inst)
	if err != nil {
		return nil, err
	}
	// More creations at once than this only wait for each other on the processors; with fewer, other work on the machine
	// would take their share.
	r := &Runtime{o: o, boot: strings.TrimSpace(string(boot)), cg: cg, slots: make(chan struct{}, max(4, 4*runtime.NumCPU())), features: cpuFeatures}
	if r.agent, err = installAgent(o.AgentBinary, agentsDir(filepath.Dir(o.Images.Dir()))); err != nil {
		return nil, err
	}
	if err := markUsed(r.agent); err != nil {
		return nil, fmt.Errorf("runsc: %w", err)
	}
	if r.spare, err = os.Open(r.agent); err != nil {
		return nil, fmt.Errorf("runsc: %w", err)
	}
	if err := os.MkdirAll(r.boxesDir(), 0o711); err != nil {
		return nil, fmt.Errorf("runsc: %w", err)
	}
	for _, dir := range []string{r.agent, o.Images.Dir()} {
		if err := passable(dir); err != nil {
			return nil, err
		}
	}
	if err := r.leaveHost(); err != nil {
		return nil, fmt.Errorf("runsc: %w", err)
	}
	if r.watch, err = newWatcher(); err != nil {
		return nil, err
	}
	return r, nil
}

// Agent is the copy of the agent that new sandboxes get.
func (r *Runtime) Agent() string { return r.agent }

// Close frees what the Runtime itself holds. Sandboxes live on.
func (r *Runtime) Close() error {
	r.bridges.dropAll()
	return errors.Join(r.watch.close(), r.spare.Close())
}

// keepAgent notes that the copy of the agent is used, and puts it back if another installation with the same cache took it
// for an old one.
func (r *Runtime) keepAgent() error {
	err := markUsed(r.agent)
	if _, serr := os.Stat(r.agent); !errors.Is(serr, fs.ErrNotExist) {
		return errors.Join(err, serr)
	}
	put, err := installAgent(fmt.Sprintf("/proc/self/fd/%d", r.spare.Fd()), filepath.Dir(r.agent))
	if err == nil && put != r.agent {
		err = errors.New("the agent has changed")
	}
	return err
}

// passable reports whether an unprivileged user may pass through every directory above path and into it: a sandbox's file
// server is none of the host's users.
func passable(path string) error {
	for p := path; ; p = filepath.Dir(p) {
		fi, err := os.Stat(p)
		if err != nil {
			return fmt.Errorf("runsc: %w", err)
		}
		if fi.Mode().Perm()&0o001 == 0 {
			return fault.New(fault.Internal, "Sandboxes cannot get at %s, because %s is closed to others: \"chmod o+x %s\", or set SANDGATE_CACHE to another directory.", path, p, p)
		}
		if p == filepath.Dir(p) {
			return nil
		}
	}
}

// installAgent keeps a copy of the agent under its digest, so that a new version never changes a mounted file, and in a
// place that an unprivileged file server may pass through.
func installAgent(src, dir string) (string, error) {
	in, err := os.Open(src)
	if err != nil {
		return "", fault.Wrap(err, fault.Internal, "The agent's program is not at %s: \"make build\" makes it.", src)
	}
	defer func() { _ = in.Close() }()
	sum := sha256.New()
	if _, err := io.Copy(sum, in); err != nil {
		return "", fmt.Errorf("agent %s: %w", src, err)
	}
	dst := filepath.Join(dir, hex.EncodeToString(sum.Sum(nil)[:16]))
	if fi, err := os.Stat(dst); err == nil && fi.Mode().IsRegular() && fi.Mode().Perm() == 0o755 {
		return dst, nil
	}
	// Said twice, because the umask takes from what MkdirAll is told.
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o755)); err != nil {
		return "", fmt.Errorf("install agent: %w", err)
	}
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return "", fmt.Errorf("install agent: %w", err)
	}
	out, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return "", fmt.Errorf("install agent: %w", err)
	}
	defer func() { _ = os.Remove(out.Name()) }()
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Chmod(0o755), out.Sync(), out.Close()); err != nil {
		return "", fmt.Errorf("install agent: %w", err)
	}
	if err := os.Rename(out.Name(), dst); err != nil {
		return "", fmt.Errorf("install agent: %w", err)
	}
	return dst, nil
}

// ---- names and places: all of them in one table, because finding and removing goes by name ----

func (r *Runtime) mark() string                   { return "sg-" + r.o.Inst + "-" }
func (r *Runtime) name(id sandbox.ID) string      { return r.mark() + string(id) }
func (r *Runtime) boxesDir() string               { return filepath.Join(r.o.DataDir, "sandboxes") }
func (r *Runtime) dir(id sandbox.ID) string       { return filepath.Join(r.boxesDir(), r.name(id)) }
func (r *Runtime) bundle(id sandbox.ID) string    { return filepath.Join(r.dir(id), "bundle") }
func (r *Runtime) overlay(id sandbox.ID) string   { return filepath.Join(r.dir(id), "overlay") }
func (r *Runtime) stateFile(id sandbox.ID) string { return filepath.Join(r.dir(id), "state.json") }
func (r *Runtime) instDir() string                { return filepath.Join(r.o.RunDir, r.o.Inst) }
func (r *Runtime) root() string                   { return filepath.Join(r.instDir(), r.boot) }

// idOf takes a name apart again; false for what is not of this installation.
func (r *Runtime) idOf(name string) (sandbox.ID, bool) {
	rest, ok := strings.CutPrefix(name, r.mark())
	id := sandbox.ID(rest)
	return id, ok && id.Valid()
}

func check(id sandbox.ID) error {
	if !id.Valid() {
		return fault.New(fault.NotFound, "Sandbox not found")
	}
	return nil
}

// flags are the global flags of every call of runsc.
func (r *Runtime) flags() []string { return []string{"--root=" + r.root()} }

// sandboxFlags shape a new sandbox. They are its posture: docs/security.md.
func (r *Runtime) sandboxFlags(spec sandbox.Spec) []string {
	network := "none"
	if spec.Network.Namespace != "" {
		network = "sandbox" // gVisor's own network stack, on the link that it finds in the namespace
	}
	return append(r.flags(),
		"--platform=systrap",
		"--network="+network,
		"--net-raw=false",  // no raw sockets even for root inside: nothing forged, no ARP of one's own
		"--directfs=false", // the sentry then holds no capability; the gofer opens files for it
		fmt.Sprintf("--overlay2=root:dir=%s,size=%dm", r.overlay(spec.ID), spec.Resources.DiskMB),
		"--host-uds=none",
		"--host-fifo=none",
		"--allow-suid=true", // sudo and su inside; gVisor emulates them, the host's processes gain nothing
		"--fdlimit=20000",
		"--file-access=exclusive", // the image is shared read-only and never changes
		"--watchdog-action=log",
		"--panic-log="+filepath.Join(r.dir(spec.ID), "panic.log"),
		"--host-settings=ignore",
	)
}

// state is what we keep of a started sandbox beside what runsc keeps.
type state struct {
	ID      sandbox.ID `json:"id"`
	Boot    string     `json:"boot"`
	Sentry  proc       `json:"sentry"`
	Gofer   proc       `json:"gofer"`
	Started bool       `json:"started"`
	Paused  bool       `json:"paused,omitempty"` // it was stopped to be suspended, and may have to be let go on
}

// load reads the state; fs.ErrNotExist when there is none, when it is torn (the host lost power), or of an earlier boot.
func (r *Runtime) load(id sandbox.ID) (state, error) {
	var st state
	err := readJSON(r.stateFile(id), &st)
	if _, torn := errors.AsType[*json.SyntaxError](err); torn {
		return state{}, fs.ErrNotExist
	}
	if err != nil {
		return state{}, err
	}
	if st.Boot != r.boot || st.ID != id {
		return state{}, fs.ErrNotExist
	}
	return st, nil
}

// Alive implements sandbox.Runtime.
func (r *Runtime) Alive(ctx context.Context, id sandbox.ID) (bool, error) {
	if err := check(id); err != nil {
		return false, err
	}
	st, err := r.load(id)
	if errors.Is(err, fs.ErrNotExist) {
		return false, ctx.Err()
	}
	if err != nil {
		return false, fmt.Errorf("sandbox %s: %w", id, err)
	}
	return st.Started && st.Sentry.alive() && st.Gofer.alive(), ctx.Err()
}

// Usage implements sandbox.Runtime.
func (r *Runtime) Usage(ctx context.Context, id sandbox.ID) (sandbox.Usage, error) {
	if err := check(id); err != nil {
		return sandbox.Usage{}, err
	}
	cpu, err := r.cg.cpuSeconds(r.name(id))
	var u sandbox.Usage
	if err == nil {
		if kept, ok := r.readings.Load(id); ok && cpu > 0 && kept.(reading).holds(cpu) {
			u = kept.(reading).Usage
			u.CPUSeconds = cpu
			return u, ctx.Err()
		}
		u, err = r.cg.usage(r.name(id))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return sandbox.Usage{}, fault.New(fault.NotFound, "Sandbox not found")
	}
	if err != nil {
		return sandbox.Usage{}, fmt.Errorf("usage of %s: %w", id, err)
	}
	r.trimLogs(id)
	u.CPUSeconds, u.DiskBytes = cpu, -1
	if st, err := r.load(id); err == nil {
		u.DiskBytes = r.filestoreBytes(st)
	}
	if u.DiskBytes >= 0 {
		r.readings.Store(id, reading{u, time.Now()})
	}
	return u, ctx.Err()
}

// Meters are read all the time, of every sandbox, and most of them are asleep. One that used next to nothing of the processor
// since its last full reading has allocated, started and written nothing either: a short command takes several times as much.
const (
	restCPU = 0.004 // seconds
	restFor = time.Minute
)

// reading is the last full one.
type reading struct {
	sandbox.Usage
	at time.Time
}

func (k reading) holds(cpu float64) bool {
	return cpu >= k.CPUSeconds && cpu-k.CPUSeconds < restCPU && time.Since(k.at) < restFor
}
