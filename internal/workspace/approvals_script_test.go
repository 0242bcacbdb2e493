package workspace_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/approval"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox/agent"
)

// atClaim does something right after a request is claimed: after the last look from the host, before the agent's.
type atClaim struct {
	workspace.Store
	do func()
}

func (s *atClaim) ClaimApproval(ctx context.Context, id, digest string, at time.Time) (bool, error) {
	ok, err := s.Store.ClaimApproval(ctx, id, digest, at)
	if s.do != nil {
		s.do()
	}
	return ok, err
}

// A script that a command names is shown, and one that is another when the command is about to start is not run: however it
// was replaced, and in the last moment too.
func TestAScriptThatWasReplacedDoesNotRun(t *testing.T) {
	late := &atClaim{}
	c := &court{}
	c.world = newWorldWith(t, func(o *workspace.Options) {
		policies, ok := o.Store.(approval.Policies)
		require.True(t, ok)
		o.Gate = approval.NewGate(policies)
		late.Store = o.Store
		o.Store = late
	})
	c.judy = c.join(t, c.ann, "judy@example.org", "approver", false)
	ctx := t.Context()
	box := c.asks(t, asksCommands)
	dir, ran := filepath.Join(c.tmp, "dir"), filepath.Join(c.tmp, "ran")
	script := filepath.Join(dir, "x.sh")
	text := func(word string) []byte { return []byte("echo " + word + " >> " + ran + "\n") }
	put := func(t *testing.T, path string, word string) {
		t.Helper()
		require.NoError(t, os.WriteFile(path, text(word), 0o600))
	}
	for _, d := range []string{dir, filepath.Join(c.tmp, "other")} {
		require.NoError(t, os.Mkdir(d, 0o700))
	}
	put(t, filepath.Join(c.tmp, "other", "x.sh"), "evil")
	put(t, script, "good")
	command := "sh dir/x.sh; python missing.py"

	_, err := c.run(ctx, c.ann, box, command)
	id := waits(t, err)
	v, err := c.Approval(ctx, c.judy, id)
	require.NoError(t, err)
	blob := v.Request.Blob("script0")
	require.NotNil(t, blob)
	require.Equal(t, script, blob.Path)
	require.True(t, blob.Compared())
	require.False(t, blob.Bound, "what is compared is not claimed to be bound")
	shown, err := c.ApprovalContent(ctx, c.judy, id, "script0")
	require.NoError(t, err)
	require.Equal(t, string(text("good")), string(shown))
	words := strings.Join(v.Request.Unbound, "\n")
	require.Contains(t, words, "missing.py is not there yet")
	require.Contains(t, words, "is not seen", "what remains is said")
	c.approve(t, id)
	_, err = c.run(named(ctx, id), c.ann, box, command)
	require.NoError(t, err)
	holds(t, ran, "good\n")

	replaced := map[string]func(t *testing.T){
		"written over": func(t *testing.T) { put(t, script, "evil") },
		"written over, with size and times as before": func(t *testing.T) {
			fi, err := os.Stat(script)
			require.NoError(t, err)
			put(t, script, "g00d")
			require.NoError(t, os.Chtimes(script, fi.ModTime(), fi.ModTime()))
		},
		"renamed over": func(t *testing.T) {
			put(t, script+"2", "evil")
			require.NoError(t, os.Rename(script+"2", script))
		},
		"a link": func(t *testing.T) {
			require.NoError(t, os.Remove(script))
			require.NoError(t, os.Symlink("../other/x.sh", script))
		},
		"a link to the same bytes elsewhere": func(t *testing.T) {
			require.NoError(t, os.Rename(script, script+"2"))
			require.NoError(t, os.Symlink("x.sh2", script))
		},
		"another directory": func(t *testing.T) {
			require.NoError(t, os.Rename(dir, dir+"2"))
			require.NoError(t, os.Symlink("other", dir))
		},
		"deleted":     func(t *testing.T) { require.NoError(t, os.Remove(script)) },
		"a directory": func(t *testing.T) { require.NoError(t, os.Remove(script)); require.NoError(t, os.Mkdir(script, 0o700)) },
		"grown":       func(t *testing.T) { put(t, script, "good; echo evil") },
	}
	for name, swap := range replaced {
		for _, last := range []bool{false, true} {
			t.Run(name+map[bool]string{false: " before the use", true: " in the last moment"}[last], func(t *testing.T) {
				require.NoError(t, os.RemoveAll(dir))
				require.NoError(t, os.RemoveAll(dir+"2"))
				require.NoError(t, os.Mkdir(dir, 0o700))
				put(t, script, "good")
				_, err := c.run(ctx, c.ann, box, command)
				id := waits(t, err)
				c.approve(t, id)
				late.do = nil
				if last {
					late.do = func() { swap(t) }
				} else {
					swap(t)
				}
				_, err = c.run(named(ctx, id), c.ann, box, command)
				late.do = nil
				wantKind(t, err, fault.Conflict)
				holds(t, ran, "good\n")
				v, err := c.Approval(ctx, c.judy, id)
				require.NoError(t, err)
				if last {
					require.Equal(t, approval.Used, v.Status)
					require.NotEqual(t, audit.OK, v.Outcome)
				} else {
					require.Equal(t, approval.Void, v.Status)
					require.Contains(t, v.Why, "has changed")
				}
				_, err = c.run(named(ctx, id), c.ann, box, command)
				wantKind(t, err, fault.Conflict)
				holds(t, ran, "good\n")
			})
		}
	}
}

// What cannot be looked at is said, and hinders nobody from asking.
func TestScriptsThatCannotBeKeptAreSaid(t *testing.T) {
	c := newCourt(t)
	ctx := t.Context()
	box := c.asks(t, asksCommands)
	at := func(name string) string { return filepath.Join(c.tmp, name) }
	require.NoError(t, os.WriteFile(at("large"), make([]byte, 3<<20), 0o700))
	require.NoError(t, os.Symlink("loop", at("loop")))
	require.NoError(t, os.WriteFile(at("hostile\n\x1b[2J.sh"), []byte("true"), 0o600))
	_, err := c.RunCommand(ctx, c.ann, box, agent.CommandSpec{
		Command: "./large; sh loop; bash /dev/stdin; bash /proc/self/status; python .; sh $'x'; sh 'hostile\n\x1b[2J.sh'",
	}, nothing{})
	v, err := c.Approval(ctx, c.judy, waits(t, err))
	require.NoError(t, err)
	words := strings.Join(v.Request.Unbound, "\n")
	for _, want := range []string{"/large is larger than 2 MiB", "/loop cannot be looked at", "/dev/stdin is no regular file", "/proc/self/status has no content of its own", c.tmp + " is no regular file", "the name is computed"} {
		require.Contains(t, words, want)
	}
	require.Len(t, v.Request.Blobs, 1)
	require.Equal(t, at("hostile\n\x1b[2J.sh"), v.Request.Blobs[0].Path)
}
