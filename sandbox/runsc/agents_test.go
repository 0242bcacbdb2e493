package runsc

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/sandbox/agent"
)

// Old copies of the agent go, but not those that something stands on, here or in another installation, or that are new.
func TestAgentsThatNothingUsesArePruned(t *testing.T) {
	cache, save := t.TempDir(), t.TempDir()
	now := time.Now()
	path := func(name string) string { return filepath.Join(agentsDir(cache), name) }
	put := func(at, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
		require.NoError(t, os.WriteFile(at, []byte(text), 0o644))
	}
	old := now.Add(-agentRest - time.Minute)
	for _, name := range []string{"current", "saved", "unused", "fresh"} {
		put(path(name), name)
		require.NoError(t, os.Chtimes(path(name), old, old))
	}
	require.NoError(t, markUsed(path("fresh")))
	note := filepath.Join(cache, "images", "base", "0123", holdsName, "sg-abcd-sbaaaaaaaaaaaaaaaaaaaa")
	put(note, save)
	conf := filepath.Join(save, "save", configName)
	put(conf, `{"mounts":[{"destination":"/work","source":"/x"},{"destination":"`+agent.GuestPath+`","source":"`+path("saved")+`"}]}`)
	// Sandboxes of others on this host come and go, and one that goes cannot be judged: then everything stays for this time.
	pruned := func(name string) {
		t.Helper()
		require.Eventually(t, func() bool {
			require.NoError(t, PruneAgents(cache, path("current"), now))
			_, err := os.Stat(path(name))
			return os.IsNotExist(err)
		}, time.Minute, 10*time.Millisecond)
	}
	pruned("unused")
	for _, name := range []string{"current", "saved", "fresh"} {
		require.FileExists(t, path(name))
	}

	put(path("unused"), "x")
	require.NoError(t, os.Chtimes(path("unused"), old, old))
	put(conf, "torn")
	require.NoError(t, PruneAgents(cache, path("current"), now))
	require.FileExists(t, path("unused"), "a save that cannot be read may stand on it")

	require.NoError(t, os.RemoveAll(filepath.Join(save, "save")))
	pruned("unused")
	pruned("saved")
	require.FileExists(t, path("current"))
	now = now.Add(2 * agentRest)
	pruned("fresh")
	require.NoFileExists(t, path("fresh")+usedMark)
}

// An agent whose copy somebody has taken away is put back for the next sandbox.
func TestAnAgentThatIsGoneIsPutBack(t *testing.T) {
	o := options(t)
	r := open(t, o)
	r.agent = filepath.Join(t.TempDir(), filepath.Base(r.agent))
	require.NoError(t, r.keepAgent())
	require.FileExists(t, r.agent)
	fi, err := os.Stat(r.agent)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o755), fi.Mode().Perm())
	require.NoError(t, r.keepAgent())
}
