package workspace_test

import (
	"context"
	"encoding/base64"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/term"
)

// kept keeps what a command prints.
type kept struct{ out strings.Builder }

func (k *kept) Stdout(p []byte) error { k.out.Write(p); return nil }
func (k *kept) Stderr([]byte) error   { return nil }

// secret is long enough that no other text holds it by chance, and needs escaping everywhere.
const secret = `hunter2-"quoted"/+é secret`

// Processes get a sandbox's secrets; nothing that is kept or told outside of them does.
func TestSecretsReachProcessesAndNothingElse(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.forwardChanges()
	sb, err := w.CreateSandbox(ctx, w.ann, workspace.CreateOptions{
		Label: "with " + secret, Cwd: w.tmp, User: w.user, Env: map[string]string{"PLAIN": "1"},
		Secrets: map[string]string{"TOKEN": secret, "SHORTER": "hunter2-"}, IdempotencyKey: "once",
	})
	require.NoError(t, err)
	id := string(sb.ID)
	run := func(c agent.CommandSpec) string {
		t.Helper()
		var k kept
		c.ID = sandbox.RandomID("cmd")
		_, err := w.RunCommand(ctx, w.ann, id, c, &k)
		require.NoError(t, err)
		return k.out.String()
	}
	require.Equal(t, secret, run(agent.CommandSpec{Command: `printf %s "$TOKEN"`}))
	require.Equal(t, "own", run(agent.CommandSpec{Command: `printf %s "$TOKEN"`, Env: map[string]string{"TOKEN": "own"}}))

	// Named outright, and in the forms that it takes on its way.
	forms := []string{secret, base64.StdEncoding.EncodeToString([]byte(secret)), url.QueryEscape(secret)}
	for _, form := range forms {
		run(agent.CommandSpec{Command: "true '" + form + "'"})
	}
	c, err := w.StartCommand(ctx, w.ann, id, agent.CommandSpec{Command: "true '" + secret + "'", Tag: secret})
	require.NoError(t, err)
	require.Equal(t, "true '[secret TOKEN]'", c.Command)
	require.Equal(t, "[secret TOKEN]", c.Tag)
	run(agent.CommandSpec{Command: "true " + strings.Repeat("x", 4096-15) + " '" + secret + "'"}) // a list cuts it in the middle
	list, err := w.Commands(ctx, w.bob, id)
	require.NoError(t, err)
	require.NotEmpty(t, list)
	for _, c := range list {
		require.NotContains(t, c.Command, "hunter2", c.Command)
	}
	one, err := w.Command(ctx, w.bob, id, c.ID)
	require.NoError(t, err)
	require.NotContains(t, one.Command, "hunter2")
	_, _, one, err = w.CommandLogs(ctx, w.bob, id, c.ID, 0, 0)
	require.NoError(t, err)
	require.NotContains(t, one.Command, "hunter2")
	_, err = w.RunCommand(ctx, w.bob, id, agent.CommandSpec{Command: "steal " + secret}, nothing{})
	wantKind(t, err, fault.Forbidden)
	_, err = w.StatFile(ctx, w.ann, id, []byte("/"+secret))
	wantKind(t, err, fault.NotFound)
	_, err = w.MakeDirectory(ctx, w.ann, id, []byte(w.tmp+"/d-hunter2-"))
	require.NoError(t, err)
	pty, err := w.OpenTerminal(ctx, w.ann, id, agent.PTYSpec{Cols: 80, Rows: 24})
	require.NoError(t, err)
	require.NoError(t, w.CloseTerminal(ctx, w.ann, id, pty.ID))

	for _, e := range w.events(t, audit.Filter{SandboxID: id, Limit: 500}) {
		for _, form := range append(forms, "hunter2") {
			require.NotContains(t, e.Target+e.Detail, form, e.Action)
		}
	}
	for _, what := range w.gate.take() {
		require.NotContains(t, what.Target, "hunter2", what.Name)
	}

	// Another process of the same data directory opens them by the key.
	again := openHouse(t, w.dir, func(o *workspace.Options) {
		o.Sandboxes, o.Terminals, o.Images = w.manager, term.NewHub(workspace.AttachVia(w.manager)), readyImages{}
	})
	var k kept
	_, err = again.RunCommand(ctx, w.ann, id, agent.CommandSpec{Command: `printf %s "$SHORTER"; true ` + "'" + secret + "'"}, &k)
	require.NoError(t, err)
	require.Equal(t, "hunter2-", k.out.String())

	// The label was given by the caller and is theirs; besides that the files of the data directory hold nothing.
	label := "plain"
	_, err = w.UpdateSandbox(ctx, w.ann, id, workspace.SandboxPatch{Label: &label})
	require.NoError(t, err)
	sealed, err := w.store.Secrets(ctx, sb.ID)
	require.NoError(t, err)
	require.NotContains(t, string(sealed), "hunter2")
	require.NoError(t, w.KillSandbox(ctx, w.ann, id))
	require.Eventually(t, func() bool {
		_, err := w.store.Secrets(ctx, sb.ID)
		return fault.Is(err, fault.NotFound)
	}, 60*time.Second, 10*time.Millisecond)
}

// No byte of a secret is in a file of the data directory.
func TestSecretsAreSealedOnDisk(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	sb, err := w.CreateSandbox(ctx, w.ann, workspace.CreateOptions{
		Cwd: w.tmp, User: w.user, Secrets: map[string]string{"TOKEN": secret}, IdempotencyKey: "k",
	})
	require.NoError(t, err)
	_, err = w.RunCommand(ctx, w.ann, string(sb.ID), agent.CommandSpec{Command: "true '" + secret + "'"}, nothing{})
	require.NoError(t, err)
	files, err := filepath.Glob(w.dir + "/sandgate.db*")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		require.NotContains(t, string(text), "hunter2", f)
	}
}

func TestBadSecrets(t *testing.T) {
	w := newWorld(t)
	for name, secrets := range map[string]map[string]string{
		"short": {"A": "abc"}, "name": {"A B": "abcdef"}, "ours": {"SANDGATE_X": "abcdef"}, "nul": {"A": "abc\x00def"}, "twice": {"E": "abcdef"},
		"long": {"A": strings.Repeat("x", 33<<10)},
	} {
		_, err := w.CreateSandbox(context.Background(), w.ann, workspace.CreateOptions{Secrets: secrets, Env: map[string]string{"E": "1"}})
		wantKind(t, err, fault.Invalid)
		require.NotContains(t, fault.Public(err), "abc", name)
	}
}
