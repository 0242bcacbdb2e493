package api

import (
	"context"
	"io"
	"time"

	"sandgate/auth"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

func (f *fake) SearchFiles(_ context.Context, _ auth.Actor, id string, path []byte, q agent.SearchQuery) (agent.SearchPage, error) {
	f.query = q
	info, err := f.info(path)
	if err == nil {
		err = f.saw("SearchFiles", id)
	}
	return agent.SearchPage{Hits: []agent.SearchHit{{FileInfo: info, Line: 2, Text: []byte("here")}}, Cursor: "c", Stopped: "limit"}, err
}

func (f *fake) WatchFiles(ctx context.Context, _ auth.Actor, id string, path []byte, recursive bool, out func(agent.FileChange) error) error {
	if err := f.saw("WatchFiles", id); err != nil {
		return err
	}
	for _, c := range []agent.FileChange{
		{Type: "ready", PathB64: path, Directory: recursive},
		{Type: "rename", PathB64: []byte("/work/\xff"), ToB64: []byte("/work/b")},
		{Type: "overflow"},
	} {
		if err := out(c); err != nil {
			return err
		}
	}
	return f.late
}

func (f *fake) CopyFile(_ context.Context, _ auth.Actor, id string, _, destination []byte) (agent.FileInfo, error) {
	return agent.FileInfo{PathB64: destination, Type: "file"}, f.saw("CopyFile", id)
}

func (f *fake) ChmodFile(_ context.Context, _ auth.Actor, id string, path []byte, mode uint32) (agent.FileInfo, error) {
	return agent.FileInfo{PathB64: path, Type: "file", Mode: mode}, f.saw("ChmodFile", id)
}

func (f *fake) UnpackFiles(_ context.Context, _ auth.Actor, id string, _ []byte, format string, body io.Reader, size int64) (agent.Unpacked, error) {
	if err := f.saw("UnpackFiles "+format, id); err != nil {
		return agent.Unpacked{}, err
	}
	p, err := io.ReadAll(body)
	return agent.Unpacked{Files: size, Bytes: int64(len(p))}, err
}

func (f *fake) SuspendSandbox(_ context.Context, _ auth.Actor, id string) (workspace.Sandbox, error) {
	return record(workspace.CreateOptions{Persistent: true}), f.saw("SuspendSandbox", id)
}

func (f *fake) ForkSandbox(_ context.Context, _ auth.Actor, id string) (workspace.Sandbox, error) {
	return record(workspace.CreateOptions{Persistent: true}), f.saw("ForkSandbox", id)
}

func aSnapshot(name string) workspace.Snapshot {
	return workspace.Snapshot{Snapshot: sandbox.Snapshot{
		ID: knownSnapshot, Name: name, Image: "base", SandboxID: knownID, OwnerKind: "key", OwnerName: "robot", Bytes: 7, CreatedAt: time.Unix(100, 0), UsedAt: time.Unix(100, 0),
	}}
}

func (f *fake) TakeSnapshot(_ context.Context, _ auth.Actor, id, name string) (workspace.Snapshot, error) {
	return aSnapshot(name), f.saw("TakeSnapshot", id)
}

func (f *fake) Snapshots(context.Context, auth.Actor) ([]workspace.Snapshot, error) {
	return []workspace.Snapshot{aSnapshot("one")}, f.saw("Snapshots", "")
}

func (f *fake) DeleteSnapshot(_ context.Context, _ auth.Actor, id string) error {
	if id != knownSnapshot {
		return fault.New(fault.NotFound, "Snapshot not found")
	}
	return f.saw("DeleteSnapshot", "")
}

func (f *fake) ResumeSandbox(_ context.Context, _ auth.Actor, id string) (workspace.Sandbox, error) {
	return record(workspace.CreateOptions{Persistent: true}), f.saw("ResumeSandbox", id)
}

func (f *fake) KeepAlive(_ context.Context, _ auth.Actor, id string, d time.Duration) (workspace.Sandbox, error) {
	f.kept = d
	return record(workspace.CreateOptions{}), f.saw("KeepAlive", id)
}

func (f *fake) UpdateSandbox(_ context.Context, _ auth.Actor, id string, p workspace.SandboxPatch) (workspace.Sandbox, error) {
	f.patch = p
	o := workspace.CreateOptions{Metadata: p.Metadata}
	if p.Label != nil {
		o.Label = *p.Label
	}
	return record(o), f.saw("UpdateSandbox", id)
}

func (f *fake) WorkspaceLimits(context.Context, auth.Actor) (workspace.WorkspaceLimits, error) {
	return workspace.WorkspaceLimits{Own: f.limits, Ceiling: workspace.Limits{Sandboxes: 100}, InForce: f.limits, InUse: 3}, f.saw("WorkspaceLimits", "")
}

func (f *fake) SetWorkspaceLimits(ctx context.Context, a auth.Actor, own workspace.Limits) (workspace.WorkspaceLimits, error) {
	f.limits = own
	if err := f.saw("SetWorkspaceLimits", ""); err != nil {
		return workspace.WorkspaceLimits{}, err
	}
	return f.WorkspaceLimits(ctx, a)
}

func sample(cpu float64) workspace.Sample {
	return workspace.Sample{At: time.Unix(100, 0), Usage: sandbox.Usage{CPUSeconds: cpu, MemoryBytes: 7, PIDs: 3, DiskBytes: -1}, Cores: -1}
}

func (f *fake) Metrics(_ context.Context, _ auth.Actor, id string) (workspace.Sample, error) {
	if f.sampled != nil {
		defer f.sampled()
	}
	return sample(1), f.saw("Metrics", id)
}

func (f *fake) MetricsHistory(_ context.Context, _ auth.Actor, id string, since time.Time) ([]workspace.Sample, error) {
	one := sample(2)
	one.At, one.Cores, one.DiskBytes = since, 0.25, 9
	return []workspace.Sample{one}, f.saw("MetricsHistory", id)
}

func (f *fake) WatchEvents(_ context.Context, _ auth.Actor, id string, out func(workspace.Event) error) error {
	if err := f.saw("WatchEvents", id); err != nil {
		return err
	}
	for _, e := range []workspace.Event{
		{Type: "ready"},
		{Type: "sandbox.status", SandboxID: knownID, Status: "gone", Reason: "killed"},
		{Type: "command.run", SandboxID: knownID, Actor: "robot", Target: "true", Outcome: "ok", Detail: "exit 0"},
	} {
		if err := out(e); err != nil {
			return err
		}
	}
	return f.late
}

func (f *fake) Activity(_ context.Context, _ auth.Actor, fl audit.Filter) ([]audit.Event, error) {
	f.asked = fl
	at := time.Date(2026, 11, 30, 12, 0, 0, 123456000, time.UTC)
	return []audit.Event{
		{Seq: 9, At: at, ActorKind: auth.Person, Actor: "ann@example.org", Action: "command.run", Outcome: audit.Started},
		{
			Seq: 7, At: at, EndSeq: 8, Ended: at.Add(time.Second), ActorKind: auth.KeyUser, Actor: "nightly", Owner: "ann@example.org", Address: "192.0.2.1",
			SandboxID: "sbaaaaaaaaaaaaaaaaaaaa", Action: "file.write", Target: "/work/\u202ea", Outcome: audit.OK, Duration: 1, Facts: audit.Facts{OldDigest: "none", NewDigest: "n"},
		},
		{Seq: 5, EndSeq: 5, At: at, Ended: at, Actor: "eve", Action: "sandbox.create", Outcome: audit.Refused},
	}, f.saw("Activity", fl.SandboxID)
}
