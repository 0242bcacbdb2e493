package workspace_test

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/audit"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

var (
	readNeeds   = []auth.Permission{auth.SandboxesRead}
	lookNeeds   = []auth.Permission{auth.SandboxesRead, auth.SandboxesManage}
	runNeeds    = []auth.Permission{auth.SandboxesRun}
	memberNeeds = []auth.Permission{auth.MembersManage}
)

const onHost = "a command on the host, where the data directory is the permission"

// adminAccounts are the methods behind commands on the host.
var adminAccounts = map[string]account{
	"AdminCreateUser": {kind: change, why: onHost, call: func(ctx context.Context, w *world, _ auth.Actor, _ any) error {
		_, err := w.AdminCreateUser(ctx, "p"+w.n()+"@example.org", password, false)
		return err
	}},
	"AdminUsers": {kind: read, why: onHost, call: func(ctx context.Context, w *world, _ auth.Actor, _ any) error {
		_, err := w.AdminUsers(ctx)
		return err
	}},
	"AdminDisableUser": {kind: change, why: onHost, call: func(ctx context.Context, w *world, _ auth.Actor, _ any) error {
		return w.AdminDisableUser(ctx, "bob@example.org", true)
	}},
	"AdminSetPassword": {kind: change, why: onHost, call: func(ctx context.Context, w *world, _ auth.Actor, _ any) error {
		return w.AdminSetPassword(ctx, "bob@example.org", "another-river-9")
	}},
	"AdminCreateWorkspace": {kind: change, why: onHost, call: func(ctx context.Context, w *world, _ auth.Actor, _ any) error {
		_, err := w.AdminCreateWorkspace(ctx, "Another")
		return err
	}},
	"AdminWorkspaces": {kind: read, why: onHost, call: func(ctx context.Context, w *world, _ auth.Actor, _ any) error {
		_, err := w.AdminWorkspaces(ctx)
		return err
	}},
	"AdminWorkspace": {kind: read, why: onHost, call: func(ctx context.Context, w *world, _ auth.Actor, _ any) error {
		_, err := w.AdminWorkspace(ctx, "Lab")
		return err
	}},
	"AdminMembers": {kind: read, why: onHost, call: func(ctx context.Context, w *world, _ auth.Actor, _ any) error {
		_, err := w.AdminMembers(ctx, "lab")
		return err
	}},
	"AdminGrant": {kind: change, why: onHost, call: func(ctx context.Context, w *world, _ auth.Actor, _ any) error {
		_, err := w.AdminGrant(ctx, "lab", "bob@example.org", auth.Operator, runNeeds)
		return err
	}},
	"AdminLimits": {kind: read, why: onHost, call: func(ctx context.Context, w *world, _ auth.Actor, _ any) error {
		_, err := w.AdminLimits(ctx, "lab")
		return err
	}},
	"AdminSetLimits": {kind: change, why: onHost, call: func(ctx context.Context, w *world, _ auth.Actor, _ any) error {
		_, err := w.AdminSetLimits(ctx, "lab", workspace.Limits{Sandboxes: 50})
		return err
	}},
	"AdminCreateKey": {kind: change, why: onHost, call: func(ctx context.Context, w *world, _ auth.Actor, _ any) error {
		_, _, err := w.AdminCreateKey(ctx, workspace.AdminKeyForm{Workspace: "lab", Name: "ci", Permissions: runNeeds})
		return err
	}},
	"AdminKeys": {kind: read, why: onHost, call: func(ctx context.Context, w *world, _ auth.Actor, _ any) error {
		_, err := w.AdminKeys(ctx, "lab")
		return err
	}},
	"AdminRevokeKey": {
		kind: change, why: onHost,
		prepare: func(t *testing.T, w *world) any {
			k, _, err := w.AdminCreateKey(context.Background(), workspace.AdminKeyForm{Workspace: "lab", Name: "ci", Permissions: runNeeds})
			require.NoError(t, err)
			return k.Prefix
		},
		call: func(ctx context.Context, w *world, _ auth.Actor, arg any) error {
			_, err := w.AdminRevokeKey(ctx, arg.(string))
			return err
		},
	},
}

func shared(t *testing.T, w *world) any { t.Helper(); return w.sandbox(t) }

func anyFile(t *testing.T, w *world) any {
	t.Helper()
	return part{w.sandbox(t), string(w.file(t))}
}

func endedCommand(t *testing.T, w *world) any {
	t.Helper()
	box := w.sandbox(t)
	id := sandbox.RandomID("cmd")
	_, err := w.RunCommand(context.Background(), w.ann, box, agent.CommandSpec{ID: id, Command: "true"}, nothing{})
	require.NoError(t, err)
	return part{box, id}
}

func anyTerminal(t *testing.T, w *world) any { t.Helper(); return w.terminal(t) }

// onPart makes a call about a command, terminal or file from what prepare gave.
func onPart(f func(ctx context.Context, w *world, a auth.Actor, p part) error) func(context.Context, *world, auth.Actor, any) error {
	return func(ctx context.Context, w *world, a auth.Actor, arg any) error { return f(ctx, w, a, arg.(part)) }
}

// onBox does the same about a sandbox.
func onBox(f func(ctx context.Context, w *world, a auth.Actor, id string) error) func(context.Context, *world, auth.Actor, any) error {
	return func(ctx context.Context, w *world, a auth.Actor, arg any) error { return f(ctx, w, a, arg.(string)) }
}

// hostAccounts are the methods behind commands on the host about sandboxes.
var hostAccounts = map[string]account{
	"AdminKill": {
		kind: change, why: onHost, prepare: func(t *testing.T, w *world) any { return w.newSandbox(t) },
		call: onBox(func(ctx context.Context, w *world, _ auth.Actor, id string) error { return w.AdminKill(ctx, id) }),
	},
	"AdminKillAll": {
		kind: change, why: onHost, prepare: func(t *testing.T, w *world) any { return w.newSandbox(t) },
		call: onBox(func(ctx context.Context, w *world, _ auth.Actor, _ string) error {
			_, err := w.AdminKillAll(ctx)
			return err
		}),
	},
}

// sandboxAccounts are the methods about sandboxes, commands, files and terminals.
var sandboxAccounts = map[string]account{
	"CreateSandbox": {kind: change, needs: runNeeds, call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		_, err := w.CreateSandbox(ctx, a, workspace.CreateOptions{Label: "new", Cwd: w.tmp, User: w.user})
		return err
	}},
	"Sandboxes": {kind: read, needs: lookNeeds, call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		_, err := w.Sandboxes(ctx, a)
		return err
	}},
	"Sandbox": {kind: read, needs: lookNeeds, prepare: shared, call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
		_, err := w.Sandbox(ctx, a, id)
		return err
	})},
	"KillSandbox": {
		kind: change, needs: []auth.Permission{auth.SandboxesManage, auth.SandboxesRun},
		prepare: func(t *testing.T, w *world) any { return w.newSandbox(t) },
		call:    onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error { return w.KillSandbox(ctx, a, id) }),
	},
	"Usage": {kind: read, needs: lookNeeds, prepare: shared, call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
		_, err := w.Usage(ctx, a, id)
		return err
	})},
	"Denials": {kind: read, needs: lookNeeds, prepare: shared, call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
		_, err := w.Denials(ctx, a, id)
		return err
	})},
	"NetworkDenied": {kind: read, why: "called by the network of sandboxes", call: func(_ context.Context, w *world, _ auth.Actor, _ any) error {
		w.NetworkDenied(sandbox.NewID(), sandbox.Denial{Protocol: "tcp", Destination: "10.0.0.1", Port: 80, Why: "private", Count: 1})
		return nil
	}},
	"Changes": {kind: read, why: "tells that, not what; the stream's Guard holds the permission", call: func(ctx context.Context, w *world, a auth.Actor, _ any) error {
		ctx, cancel := context.WithCancel(ctx)
		ch := w.Changes(ctx, a)
		cancel()
		for range ch { //nolint:revive // until it closes
		}
		return nil
	}},
	"SandboxChanged": {kind: read, why: "called by the manager of sandboxes", call: func(_ context.Context, w *world, a auth.Actor, _ any) error {
		w.SandboxChanged(sandbox.Record{ID: sandbox.NewID(), WorkspaceID: a.Workspace.ID, Status: sandbox.Running})
		return nil
	}},

	"RunCommand": {kind: change, needs: runNeeds, prepare: shared, call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
		_, err := w.RunCommand(ctx, a, id, agent.CommandSpec{Command: "true"}, nothing{})
		return err
	})},
	"StartCommand": {kind: change, needs: runNeeds, prepare: shared, call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
		_, err := w.StartCommand(ctx, a, id, agent.CommandSpec{Command: "true"})
		return err
	})},
	"Commands": {kind: read, needs: readNeeds, prepare: shared, call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
		_, err := w.Commands(ctx, a, id)
		return err
	})},
	"Command": {kind: read, needs: readNeeds, prepare: endedCommand, call: onPart(func(ctx context.Context, w *world, a auth.Actor, p part) error {
		_, err := w.Command(ctx, a, p.box, p.id)
		return err
	})},
	"CommandLogs": {kind: read, needs: readNeeds, prepare: endedCommand, call: onPart(func(ctx context.Context, w *world, a auth.Actor, p part) error {
		_, _, _, err := w.CommandLogs(ctx, a, p.box, p.id, 0, 0)
		return err
	})},
	"FollowCommand": {
		kind: read, needs: readNeeds, prepare: endedCommand,
		// The guard reads ann's rights again: she has them all the time.
		call: onPart(func(ctx context.Context, w *world, a auth.Actor, p part) error {
			_, err := w.FollowCommand(ctx, a, p.box, p.id, 0, 0, nothing{})
			return err
		}),
	},
	"CommandStdin": {
		kind: change, needs: runNeeds,
		prepare: func(t *testing.T, w *world) any { return w.command(t, "cat", true) },
		call: onPart(func(ctx context.Context, w *world, a auth.Actor, p part) error {
			return w.CommandStdin(ctx, a, p.box, p.id, []byte("x"), true)
		}),
	},
	"KillCommand": {
		kind: change, needs: runNeeds,
		prepare: func(t *testing.T, w *world) any { return w.command(t, "cat", true) },
		call: onPart(func(ctx context.Context, w *world, a auth.Actor, p part) error {
			return w.KillCommand(ctx, a, p.box, p.id, "KILL")
		}),
	},

	"StatFile": {kind: read, needs: readNeeds, prepare: anyFile, call: onPart(func(ctx context.Context, w *world, a auth.Actor, p part) error {
		_, err := w.StatFile(ctx, a, p.box, []byte(p.id))
		return err
	})},
	"ListFiles": {kind: read, needs: readNeeds, prepare: anyFile, call: onPart(func(ctx context.Context, w *world, a auth.Actor, p part) error {
		_, err := w.ListFiles(ctx, a, p.box, []byte(w.tmp), "", 10, 1)
		return err
	})},
	"ReadFile": {kind: read, needs: readNeeds, prepare: anyFile, call: onPart(func(ctx context.Context, w *world, a auth.Actor, p part) error {
		_, body, err := w.ReadFile(ctx, a, p.box, []byte(p.id), 0, -1)
		return closed(body, err)
	})},
	"PreviewFile": {kind: read, needs: readNeeds, prepare: anyFile, call: onPart(func(ctx context.Context, w *world, a auth.Actor, p part) error {
		_, err := w.PreviewFile(ctx, a, p.box, []byte(p.id))
		return err
	})},
	"ArchiveFiles": {kind: read, needs: readNeeds, prepare: anyFile, call: onPart(func(ctx context.Context, w *world, a auth.Actor, p part) error {
		body, err := w.ArchiveFiles(ctx, a, p.box, []byte(w.tmp), "tar")
		return closed(body, err)
	})},
	"WriteFile": {kind: change, needs: runNeeds, prepare: shared, call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
		_, err := w.WriteFile(ctx, a, id, []byte(w.tmp+"/w"+w.n()), strings.NewReader("x"), agent.WriteOptions{Size: 1})
		return err
	})},
	"MakeDirectory": {kind: change, needs: runNeeds, prepare: shared, call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
		_, err := w.MakeDirectory(ctx, a, id, []byte(w.tmp+"/d"+w.n()))
		return err
	})},
	"MoveFile": {kind: change, needs: runNeeds, prepare: anyFile, call: onPart(func(ctx context.Context, w *world, a auth.Actor, p part) error {
		_, err := w.MoveFile(ctx, a, p.box, []byte(p.id), []byte(p.id+".moved"))
		return err
	})},
	"DeleteFile": {kind: change, needs: runNeeds, prepare: anyFile, call: onPart(func(ctx context.Context, w *world, a auth.Actor, p part) error {
		return w.DeleteFile(ctx, a, p.box, []byte(p.id), false)
	})},

	"OpenTerminal": {kind: change, needs: runNeeds, prepare: shared, call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
		p, err := w.OpenTerminal(ctx, a, id, agent.PTYSpec{Cols: 80, Rows: 24})
		if err == nil {
			client, cerr := w.manager.Agent(ctx, sandbox.ID(id))
			if cerr == nil {
				cerr = client.ClosePTY(ctx, p.ID)
			}
			return cerr
		}
		return err
	})},
	"Terminals": {kind: read, needs: readNeeds, prepare: shared, call: onBox(func(ctx context.Context, w *world, a auth.Actor, id string) error {
		_, err := w.Terminals(ctx, a, id)
		return err
	})},
	"Terminal": {kind: read, needs: readNeeds, prepare: anyTerminal, call: onPart(func(ctx context.Context, w *world, a auth.Actor, p part) error {
		_, err := w.Terminal(ctx, a, p.box, p.id)
		return err
	})},
	"RenameTerminal": {kind: change, needs: runNeeds, prepare: anyTerminal, call: onPart(func(ctx context.Context, w *world, a auth.Actor, p part) error {
		_, err := w.RenameTerminal(ctx, a, p.box, p.id, "build")
		return err
	})},
	"CloseTerminal": {kind: change, needs: runNeeds, prepare: anyTerminal, call: onPart(func(ctx context.Context, w *world, a auth.Actor, p part) error {
		return w.CloseTerminal(ctx, a, p.box, p.id)
	})},
	"ViewTerminal": {
		kind: change, why: "looking needs read, and is on record like typing, which needs run",
		allowed: func(w *world) auth.Actor { return w.with(runNeeds) },
		refused: func(w *world) auth.Actor { return w.with(auth.Permissions{auth.SandboxesManage}) },
		prepare: anyTerminal,
		call: onPart(func(ctx context.Context, w *world, a auth.Actor, p part) error {
			return w.ViewTerminal(ctx, a, p.box, p.id, -1, newGlance())
		}),
	},
}

func closed(body io.ReadCloser, err error) error {
	if err != nil {
		return err
	}
	return body.Close()
}

// Who watched a terminal is on record.
func TestLookingOnATerminalIsOnRecord(t *testing.T) {
	w := newWorld(t)
	p := w.terminal(t)
	before := w.mark(t)
	require.NoError(t, w.ViewTerminal(context.Background(), w.with(readNeeds), p.box, p.id, -1, newGlance()))
	traces := w.since(t, before)
	require.Len(t, traces, 2)
	for _, e := range traces {
		require.Equal(t, "terminal.view", e.Action)
		require.Equal(t, p.id, e.Target)
	}
}

// Of one sandbox whoever may read it sees the story, and no other story.
func TestActivityOfOneSandbox(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	box := w.sandbox(t)
	events, err := w.Activity(ctx, w.bob, audit.Filter{SandboxID: box})
	require.NoError(t, err)
	require.NotEmpty(t, events)
	for _, e := range events {
		require.Equal(t, box, e.SandboxID)
	}
	_, err = w.Activity(ctx, w.bob, audit.Filter{})
	require.Error(t, err)
	other, err := w.AdminCreateWorkspace(ctx, "Other")
	require.NoError(t, err)
	stranger := w.ann
	stranger.Workspace = other
	events, err = w.Activity(ctx, stranger, audit.Filter{SandboxID: box, WorkspaceID: w.ann.Workspace.ID})
	require.NoError(t, err)
	require.Empty(t, events)
}
