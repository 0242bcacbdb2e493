package workspace_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox/agent"
)

func hexSum(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// ran runs a command and gives its event with the copy of what it printed.
func ran(t *testing.T, w *world, box, command string) (audit.Event, *audit.Output) {
	t.Helper()
	ctx := context.Background()
	_, err := w.RunCommand(ctx, w.ann, box, agent.CommandSpec{Command: command, Cwd: w.tmp}, nothing{})
	require.NoError(t, err)
	e, o, err := w.ActivityEvent(ctx, w.ann, w.events(t, audit.Filter{SandboxID: box, Action: "command.run"})[0].Seq)
	require.NoError(t, err)
	return e, o
}

func TestWhatACommandPrintedIsKept(t *testing.T) {
	w := newWorld(t)
	box := w.newSandbox(t)
	e, o := ran(t, w, box, "echo out; echo err >&2; exit 3")
	require.Equal(t, "out\n|err\n", string(o.Stdout)+"|"+string(o.Stderr))
	require.Equal(t, o.Digest(), e.OutputDigest)
	require.Equal(t, "exit 3", e.Detail)
	require.False(t, o.Cut)

	_, o = ran(t, w, box, "true")
	require.Nil(t, o, "where nothing is printed nothing is kept")

	e, o = ran(t, w, box, "head -c 200000 /dev/zero | tr '\\0' x; echo y >&2")
	require.LessOrEqual(t, len(o.Stdout)+len(o.Stderr), audit.MaxOutput)
	require.GreaterOrEqual(t, len(o.Stdout), audit.MaxOutput-2)
	require.True(t, o.Cut)
	require.EqualValues(t, 200000, o.StdoutTotal)
	require.NoError(t, w.log.Flush(context.Background()))
	v, err := w.log.Verify(context.Background())
	require.NoError(t, err)
	require.True(t, v.Holds(), v.Contrary)
	require.NotEmpty(t, e.OutputDigest)

	// Who may only manage sees that, not what.
	_, o, err = w.ActivityEvent(context.Background(), w.with(auth.Permissions{auth.SandboxesManage}), e.Seq)
	require.NoError(t, err)
	require.Nil(t, o)
}

// Secrets of a sandbox are in no copy, also where the copy ends in the middle of one.
func TestCopiesHoldNoSecret(t *testing.T) {
	w := newWorld(t)
	secret := "correct-horse-battery-staple"
	made, err := w.CreateSandbox(context.Background(), w.ann, workspace.CreateOptions{Cwd: w.tmp, User: w.user, Secrets: map[string]string{"TOKEN": secret}})
	require.NoError(t, err)
	box := string(made.ID)
	_, o := ran(t, w, box, `echo "$TOKEN"; echo "$TOKEN" | base64 >&2`)
	require.Equal(t, "[secret TOKEN]\n", string(o.Stdout))
	require.NotContains(t, string(o.Stderr), "Y29ycmVjd")
	for _, before := range []int{audit.MaxOutput - 5, audit.MaxOutput - 20, audit.MaxOutput - len(secret), 0} {
		_, o = ran(t, w, box, `head -c `+strconv.Itoa(before)+` /dev/zero | tr '\0' x; for i in 1 2 3 4; do echo "$TOKEN$TOKEN"; done; head -c 70000 /dev/zero`)
		kept := string(o.Stdout)
		require.LessOrEqual(t, len(kept), audit.MaxOutput)
		require.NotContains(t, kept, secret[:8], "%d", before)
	}
}

func TestWritesTellBeforeAndAfter(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	box := w.newSandbox(t)
	path := []byte(w.tmp + "/told.txt")
	last := func(text string) audit.Event {
		t.Helper()
		_, err := w.WriteFile(ctx, w.ann, box, path, strings.NewReader(text), agent.WriteOptions{Size: -1})
		require.NoError(t, err)
		return w.events(t, audit.Filter{SandboxID: box, Action: "file.write"})[0]
	}
	e := last("one")
	require.Equal(t, []string{"none", hexSum("one")}, []string{e.OldDigest, e.NewDigest})
	e = last("two")
	require.Equal(t, []string{hexSum("one"), hexSum("two")}, []string{e.OldDigest, e.NewDigest})
	last(string(make([]byte, agent.MaxReplaced+1)))
	e = last("three")
	require.Equal(t, []string{agent.ReplacedLarge, hexSum("three")}, []string{e.OldDigest, e.NewDigest})
	require.NoError(t, w.DeleteFile(ctx, w.ann, box, path, false))
	e = w.events(t, audit.Filter{SandboxID: box, Action: "file.delete"})[0]
	require.Equal(t, []string{hexSum("three"), ""}, []string{e.OldDigest, e.NewDigest})
}

func TestKeysAreToldWithTheirOwner(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	key, _, _ := w.key(t, w.ann, workspace.KeyForm{Name: "laptop", ForMe: true, Permissions: auth.Permissions{auth.SandboxesRun}})
	box := w.newSandbox(t)
	_, err := w.RunCommand(ctx, key, box, agent.CommandSpec{Command: "true"}, nothing{})
	require.NoError(t, err)
	e := w.events(t, audit.Filter{SandboxID: box, Action: "command.run"})[0]
	require.Equal(t, []string{"laptop", w.ann.Name}, []string{e.Actor, e.Owner})
	require.NotEmpty(t, w.events(t, audit.Filter{Actor: w.ann.Name, Action: "command.run"}), "a person's keys are found by the person")
}

// A foreign event is one that is not there, and so is one of no sandbox for who may read sandboxes alone.
func TestEventsOfOthersAreNotFound(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	box := w.newSandbox(t)
	e, _ := ran(t, w, box, "true")
	other, err := w.AdminCreateWorkspace(ctx, "Other")
	require.NoError(t, err)
	_, err = w.AdminGrant(ctx, other.Slug, w.ann.Name, auth.Admin, nil)
	require.NoError(t, err)
	stranger := w.ann
	stranger.Workspace = other
	_, _, foreign := w.ActivityEvent(ctx, stranger, e.Seq)
	_, _, unknown := w.ActivityEvent(ctx, stranger, 1<<60)
	wantKind(t, foreign, fault.NotFound)
	require.Equal(t, fault.Public(unknown), fault.Public(foreign))
	_, err = w.SandboxStory(ctx, stranger, box)
	wantKind(t, err, fault.NotFound)
	_, _, err = w.ActivityEvent(ctx, w.with(readNeeds), e.Seq)
	require.NoError(t, err)
	_, err = w.Invite(ctx, w.ann, "x@example.org", auth.Viewer, false)
	require.NoError(t, err)
	_, _, err = w.ActivityEvent(ctx, w.with(readNeeds), w.events(t, audit.Filter{Action: "member.invite"})[0].Seq)
	wantKind(t, err, fault.NotFound)

	var b bytes.Buffer
	wantKind(t, w.ExportActivity(ctx, w.ann, audit.Filter{}, "xml", &b), fault.Invalid)
	require.NoError(t, w.ExportActivity(ctx, stranger, audit.Filter{WorkspaceID: w.ann.Workspace.ID}, audit.NDJSON, &b))
	require.NotContains(t, b.String(), box)
	require.NoError(t, w.ExportActivity(ctx, w.with(readNeeds), audit.Filter{SandboxID: box}, audit.NDJSON, &b))
	require.Contains(t, b.String(), box)

	// The story of a sandbox stays when it is gone.
	require.NoError(t, w.KillSandbox(ctx, w.ann, box))
	r, err := w.SandboxStory(ctx, w.ann, box)
	require.NoError(t, err)
	require.EqualValues(t, "gone", r.Status)
	require.Equal(t, "sandbox.kill", w.events(t, audit.Filter{SandboxID: box})[0].Action)
}

// A background command is on record twice: when it is started, by whom, and when it ends, with what it printed.
func TestEndsOfBackgroundCommands(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	box := w.newSandbox(t)
	for _, command := range []string{"echo in-the-background; exit 4", "head -c 300000 /dev/zero"} {
		c, err := w.StartCommand(ctx, w.ann, box, agent.CommandSpec{Command: command, Cwd: w.tmp})
		require.NoError(t, err)
		var end audit.Event
		require.Eventually(t, func() bool {
			list := w.events(t, audit.Filter{SandboxID: box, Action: "command.end", Q: c.ID})
			if len(list) == 1 {
				end = list[0]
			}
			return len(list) == 1
		}, time.Minute, 10*time.Millisecond)
		require.Equal(t, []string{command, "system", audit.OK}, []string{end.Target, end.Actor, end.Outcome})
		_, o, err := w.ActivityEvent(ctx, w.ann, end.Seq)
		require.NoError(t, err)
		if strings.HasPrefix(command, "echo") {
			require.Equal(t, c.ID+": exit 4", end.Detail)
			require.Equal(t, "in-the-background\n", string(o.Stdout))
		} else {
			require.True(t, o.Cut)
			require.Len(t, o.Stdout, audit.MaxOutput)
		}
	}
}
