package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"sandgate/internal/testenv"
)

// schema gives the migrations of this version, over the database of an installation without a server.
func (i *installation) schema() (p *goose.Provider, latest int64) {
	i.t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(i.data, "sandgate.db"))
	require.NoError(i.t, err)
	p, err = goose.NewProvider(goose.DialectSQLite3, db, os.DirFS("../store/migrations"), goose.WithDisableGlobalRegistry(true))
	require.NoError(i.t, err)
	all := p.ListSources()
	return p, all[len(all)-1].Version
}

// downTo makes the database what an older version had.
func (i *installation) downTo(version int64) {
	i.t.Helper()
	p, _ := i.schema()
	_, err := p.DownTo(i.t.Context(), version)
	require.NoError(i.t, err)
	require.NoError(i.t, p.Close())
}

// Of testdata/schema9.tar.gz: a backup that the version with schema 9 made, after a sandbox had lived and gone. The key opens
// nothing but that. There was no record that could be verified before firstRecord.
const (
	olderBackup = "testdata/schema9.tar.gz"
	olderSchema = 9
	olderKey    = "sg_Qj513WOQ_5bdwcFMXwQR4w3LEjuzNx9T6lY5Jw4S8rEuR402Liwr"
	olderBox    = "sbk00yfio4v0pnsnw4d7qk"
	firstRecord = 3
)

// unpackOlder makes an installation's data directory of the backup.
func (i *installation) unpackOlder() {
	i.t.Helper()
	out, err := exec.Command("tar", "-xzf", olderBackup, "-C", i.data).CombinedOutput()
	require.NoError(i.t, err, "%s", out)
	i.inhabited = true
}

// A data directory of each older schema is brought up to date by starting on it: who was there is there, the record holds and
// goes on, and what ran under it would run on.
func TestAServerStartsOnEachOlderSchema(t *testing.T) {
	for version := int64(olderSchema); version >= firstRecord; version-- {
		host := newInstallation(t)
		host.unpackOlder()
		host.downTo(version)
		s := host.serve()
		api := s.rest(olderKey)
		code, body := api.do("GET", "/v1/sandboxes/"+olderBox, nil)
		require.Equal(t, http.StatusNotFound, code, "from schema %d: %s", version, body)
		api.ok("DELETE", "/v1/sandboxes/"+olderBox, nil, nil) // it was here
		id := api.create("new")
		require.Equal(t, "here\n", api.exec(id, "echo here").Stdout, "from schema %d", version)
		require.Contains(t, host.run("audit", "verify"), "the chain holds", "from schema %d", version)
		require.Contains(t, host.run("user", "list"), "ann@example.org")
		api.ok("DELETE", "/v1/sandboxes/"+id, nil, nil)
		s.stop(syscall.SIGTERM)
		p, latest := host.schema()
		have, err := p.GetDBVersion(t.Context())
		require.NoError(t, err)
		require.NoError(t, p.Close())
		require.Equal(t, latest, have)
	}
}

// A backup of an older version is restored by this one. What a newer one has made is refused, in words.
func TestOlderBackupsAreRestoredAndNewerDataIsRefused(t *testing.T) {
	host := newInstallation(t)
	packed, err := os.ReadFile(olderBackup)
	require.NoError(t, err)
	unzipped, err := gzip.NewReader(bytes.NewReader(packed))
	require.NoError(t, err)
	plain, err := io.ReadAll(unzipped)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "older.tar")
	require.NoError(t, os.WriteFile(file, plain, 0o600))
	host.run("restore", file)
	host.inhabited = true
	require.Contains(t, host.run("audit", "verify"), "the chain holds")
	s := host.serve()
	s.rest(olderKey).ok("DELETE", "/v1/sandboxes/"+olderBox, nil, nil)
	s.stop(syscall.SIGTERM)

	db, err := sql.Open("sqlite", filepath.Join(host.data, "sandgate.db"))
	require.NoError(t, err)
	_, err = db.Exec(`INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, 1)`)
	require.NoError(t, err)
	for _, args := range [][]string{{"serve", "--listen", "127.0.0.1:0"}, {"user", "list"}} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		out, err := host.command(ctx, args...).CombinedOutput()
		cancel()
		require.Error(t, err)
		require.Contains(t, string(out), "was used by a newer Sandgate (schema 99999, this one knows ", args)
	}
	_, err = db.Exec(`DELETE FROM goose_db_version WHERE version_id = 99999`)
	require.NoError(t, err)
	require.NoError(t, db.Close())
}

// olderAgent builds the agent as another version, and forgets the copy of it that servers make in the end.
func olderAgent(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sandgate-old-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	path := filepath.Join(dir, "sandgate-agent")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X main.version=older", "-o", path, "sandgate/cmd/sandgate-agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	digest := sha256.Sum256(b)
	t.Cleanup(func() {
		for _, name := range []string{"", ".used"} {
			require.NoError(t, os.Remove(filepath.Join(testenv.CacheDir(), "agents", hex.EncodeToString(digest[:16])+name)))
		}
	})
	return path
}

// A newer server with a newer agent takes up what an older one left running, asleep and kept; all of it goes on with the agent
// that it has, and what is made from then on has the newer one.
func TestSandboxesOutliveAnUpgrade(t *testing.T) {
	agent := olderAgent(t)
	host := newInstallation(t)
	s := host.serve("--agent", agent)
	host.person("ann@example.org", "alpha")
	key := host.key("alpha", "sandboxes:run")
	api := s.rest(key)
	runs, sleeps := api.createPersistent("runs"), api.createPersistent("sleeps")
	who := map[string]string{}
	for _, id := range []string{runs, sleeps} {
		api.startCounting(id)
		who[id], _ = api.count(id)
	}
	const agentOf = "sha256sum </.sandgate/agent"
	old := api.exec(runs, agentOf).Stdout
	pty := api.openPTY(runs)
	term := api.view(runs, pty, "")
	term.typeText("MARK=kept; " + ticking)
	term.sees("tick 2\r\n")
	snap := api.snapshot(runs)
	api.ok("POST", "/v1/sandboxes/"+sleeps+"/suspend", nil, nil)
	s.stop(syscall.SIGTERM)

	s = host.serve()
	api = s.rest(key)
	require.Equal(t, "running", api.status(runs))
	require.Equal(t, "suspended", api.status(sleeps))
	goesOn := func(id, as, agent string) {
		t.Helper()
		again, n := api.count(id)
		require.Equal(t, as, again, "the same process, with the same memory")
		require.Eventually(t, func() bool { _, more := api.count(id); return more > n }, 20*time.Second, 50*time.Millisecond)
		require.Equal(t, agent, api.exec(id, agentOf).Stdout)
	}
	goesOn(runs, who[runs], old)
	goesOn(sleeps, who[sleeps], old)
	late := api.view(runs, pty, "")
	late.until("scrollback", func() bool { return strings.Contains(string(late.snapshot), "tick 2\r\n") })
	late.forget()
	late.interrupt("root@")
	late.typeText("echo still-$MARK\n")
	late.sees("still-kept\r\n")

	fresh := api.create("fresh")
	require.NotEqual(t, old, api.exec(fresh, agentOf).Stdout)
	api.ok("POST", "/v1/sandboxes/"+runs+"/suspend", nil, nil)
	goesOn(runs, who[runs], old)
	var fork, started struct{ ID string }
	api.ok("POST", "/v1/sandboxes/"+runs+"/fork", nil, &fork)
	goesOn(fork.ID, who[runs], old)
	api.ok("POST", "/v1/sandboxes", map[string]any{"snapshot_id": snap}, &started)
	goesOn(started.ID, who[runs], old)
	api.ok("DELETE", "/v1/snapshots/"+snap, nil, nil)
	host.run("sandbox", "kill", "--all")
	host.noSaves()
}
