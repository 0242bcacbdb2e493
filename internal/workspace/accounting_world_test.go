package workspace_test

import (
	"context"
	"errors"
	"io"
	"os/user"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/netjail/policy"
	"sandgate/sandbox/sandboxtest"
	"sandgate/sandbox/term"
	"sandgate/sandbox/term/recording"
)

// world is a house with sandboxes: a real manager on the fake runtime, whose agents work in this process on the host.
// What runs in it must be harmless.
type world struct {
	*house
	manager *sandbox.Manager
	network *sandboxtest.FakeNetwork
	ann     auth.Actor // the first administrator; has all rights
	bob     auth.Actor // a viewer, no administrator of the installation
	tmp     string
	user    string

	hub      *term.Hub
	options  workspace.Options
	shelf    *recording.Shelf
	shelfDir string

	forward atomic.Bool // changes of status reach the service, as they do in the product

	count int
	box   string
}

type readyImages struct{}

func (readyImages) ImageState(string) (string, int, string) { return "ready", 100, "" }
func (readyImages) ImageNames() []string                    { return []string{"base"} }

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldWith(t, func(*workspace.Options) {})
}

// newWorldWith has further options.
func newWorldWith(t *testing.T, more func(*workspace.Options)) *world {
	t.Helper()
	w := &world{tmp: t.TempDir(), network: &sandboxtest.FakeNetwork{}}
	me, err := user.Current()
	require.NoError(t, err)
	w.user = me.Username
	w.house = buildHouse(t, func(o *workspace.Options) {
		fake := sandboxtest.NewFake(sandboxtest.FakeOptions{Dir: t.TempDir()})
		records, ok := o.Store.(sandbox.Records)
		snapshots, _ := o.Store.(sandbox.Snapshots)
		require.True(t, ok)
		deadlines, ok := o.Store.(sandbox.Deadlines)
		require.True(t, ok)
		var err error
		w.manager, err = sandbox.New(sandbox.Options{Runtime: fake, Records: records, Deadlines: deadlines, Snapshots: snapshots, Network: w.network, Now: o.Now, OnChange: w.changed})
		require.NoError(t, err)
		w.hub = term.NewHub(workspace.AttachVia(w.manager))
		o.Sandboxes, o.Deadlines, o.Terminals, o.Images = w.manager, deadlines, w.hub, readyImages{}
		w.shelfDir = filepath.Join(t.TempDir(), "recordings")
		w.shelf, err = recording.Open(w.shelfDir)
		require.NoError(t, err)
		o.Recordings = w.shelf
		o.PlatformURL = "http://sandgate.internal"
		o.CheckNetwork = func(p sandbox.NetworkPolicy) (sandbox.NetworkPolicy, error) { return policy.Check(p, nil) }
		more(o)
		w.options = *o
	})
	w.ann = w.setup(t, true)
	w.ann.Permissions = auth.AllPermissions
	w.bob = w.join(t, w.ann, "bob@example.org", auth.Viewer, false)
	t.Cleanup(func() {
		all, err := w.manager.Records(context.Background(), sandbox.Filter{})
		require.NoError(t, err)
		for _, r := range all {
			require.NoError(t, w.manager.Kill(context.Background(), r.ID, sandbox.ReasonKilled))
		}
		w.hub.Shutdown()
		w.manager.Close()
	})
	return w
}

func (w *world) changed(r sandbox.Record) {
	if w.forward.Load() {
		w.SandboxChanged(r)
	}
}

func (w *world) forwardChanges() { w.forward.Store(true) }

// newSandbox makes one of ann's.
func (w *world) newSandbox(t *testing.T) string {
	t.Helper()
	made, err := w.CreateSandbox(context.Background(), w.ann, workspace.CreateOptions{Label: "box", Cwd: w.tmp, User: w.user})
	require.NoError(t, err)
	return string(made.ID)
}

// newPersistent makes one that can be suspended, owned by ann.
func (w *world) newPersistent(t *testing.T) string {
	t.Helper()
	made, err := w.CreateSandbox(context.Background(), w.ann, workspace.CreateOptions{Label: "box", Cwd: w.tmp, User: w.user, Persistent: true})
	require.NoError(t, err)
	return string(made.ID)
}

// sandbox gives one that is shared by all calls of a method.
func (w *world) sandbox(t *testing.T) string {
	t.Helper()
	if w.box == "" {
		w.box = w.newSandbox(t)
	}
	return w.box
}

// part is a command or terminal in a sandbox.
type part struct{ box, id string }

func (w *world) command(t *testing.T, script string, keepStdin bool) part {
	t.Helper()
	box := w.sandbox(t)
	c, err := w.StartCommand(context.Background(), w.ann, box, agent.CommandSpec{Command: script, KeepStdin: keepStdin})
	require.NoError(t, err)
	return part{box, c.ID}
}

func (w *world) terminal(t *testing.T) part {
	t.Helper()
	box := w.sandbox(t)
	p, err := w.OpenTerminal(context.Background(), w.ann, box, agent.PTYSpec{Cols: 80, Rows: 24})
	require.NoError(t, err)
	t.Cleanup(func() { _ = w.CloseTerminal(context.Background(), w.ann, box, p.ID) })
	return part{box, p.ID}
}

// file writes one and gives its path.
func (w *world) file(t *testing.T) []byte {
	t.Helper()
	path := []byte(w.tmp + "/f" + w.n())
	_, err := w.WriteFile(context.Background(), w.ann, w.sandbox(t), path, &io.LimitedReader{}, agent.WriteOptions{})
	require.NoError(t, err)
	return path
}

// nothing takes output and drops it.
type nothing struct{}

func (nothing) Stdout([]byte) error { return nil }
func (nothing) Stderr([]byte) error { return nil }

// glance is a viewer's connection that leaves after the first message.
type glance struct {
	once sync.Once
	seen chan struct{}
	code int
}

func newGlance() *glance { return &glance{seen: make(chan struct{})} }

func (g *glance) Read(ctx context.Context) (bool, []byte, error) {
	select {
	case <-g.seen:
		return false, nil, io.EOF
	case <-ctx.Done():
		return false, nil, ctx.Err()
	case <-time.After(10 * time.Second):
		return false, nil, errors.New("nothing came")
	}
}

func (g *glance) Write(context.Context, bool, []byte) error {
	g.once.Do(func() { close(g.seen) })
	return nil
}

func (g *glance) Close(code int, _ string) error {
	g.code = code
	g.once.Do(func() { close(g.seen) })
	return nil
}
