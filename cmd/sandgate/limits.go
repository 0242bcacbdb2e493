package main

import (
	"errors"
	"fmt"
	"strconv"
	"text/tabwriter"
	"time"

	"sandgate/internal/workspace"
	"sandgate/sandbox"
)

// bounds are the flags that say how much of this host sandboxes may take.
type bounds struct {
	Pool                  int     `help:"Sandboxes kept ready at most, so that creating one takes no time; they cost their memory, about 25 MiB each. 0: none." env:"SANDGATE_POOL" default:"2" placeholder:"N"`
	MaxSandboxes          int     `help:"Sandboxes that may be alive on this installation; 0: no limit." env:"SANDGATE_MAX_SANDBOXES" default:"250" placeholder:"N"`
	MaxWorkspaceSandboxes int     `help:"Sandboxes that may be alive in one workspace; 0: no limit." env:"SANDGATE_MAX_WORKSPACE_SANDBOXES" default:"100" placeholder:"N"`
	MaxCPU                float64 `help:"Cores that one sandbox may have; 0: all of the host's." env:"SANDGATE_MAX_CPU" default:"0" placeholder:"CORES"`
	MaxMemory             int64   `help:"MiB of memory that one sandbox may have; 0: no limit." env:"SANDGATE_MAX_MEMORY" default:"8192" placeholder:"MIB"`
	MaxDisk               int64   `help:"MiB of disk that one sandbox may have; 0: no limit." env:"SANDGATE_MAX_DISK" default:"32768" placeholder:"MIB"`
	MaxPIDs               int64   `help:"Host tasks that one sandbox may have; 0: no limit." name:"max-pids" env:"SANDGATE_MAX_PIDS" default:"8192" placeholder:"N"`
	MaxSnapshots          int     `help:"Snapshots that a workspace may keep; 0: no limit." env:"SANDGATE_MAX_SNAPSHOTS" default:"20" placeholder:"N"`
	MaxSnapshotsMB        int64   `help:"MiB of disk that a workspace's snapshots may take; 0: no limit." name:"max-snapshots-mb" env:"SANDGATE_MAX_SNAPSHOTS_MB" default:"20480" placeholder:"MIB"`
	SnapshotDays          int     `help:"Days after which a snapshot is deleted from which nothing was started; 0: never." env:"SANDGATE_SNAPSHOT_DAYS" default:"30" placeholder:"DAYS"`
	ReserveMemory         int64   `help:"MiB of memory that must stay free on the host; below, no sandbox is created." env:"SANDGATE_RESERVE_MEMORY" default:"1024" placeholder:"MIB"`
	ReserveDisk           float64 `help:"Per cent of the data directory's disk that must stay free; below, no sandbox is created." env:"SANDGATE_RESERVE_DISK" default:"10" placeholder:"PERCENT"`
}

func (b *bounds) check() error {
	if b.MaxSandboxes < 0 || b.MaxWorkspaceSandboxes < 0 || !(b.MaxCPU >= 0) || b.MaxMemory < 0 || b.MaxDisk < 0 || b.MaxPIDs < 0 {
		return errors.New("the --max flags must be 0 or more")
	}
	if b.MaxSnapshots < 0 || b.MaxSnapshotsMB < 0 || b.MaxSnapshotsMB > 1<<40 || b.SnapshotDays < 0 || b.SnapshotDays > 36500 {
		return errors.New("--max-snapshots, --max-snapshots-mb and --snapshot-days must be 0 or more, and not absurdly many")
	}
	if b.Pool < 0 {
		return errors.New("--pool must be 0 or more")
	}
	if b.ReserveMemory < 0 || !(b.ReserveDisk >= 0 && b.ReserveDisk < 100) {
		return errors.New("--reserve-memory must be 0 or more, and --reserve-disk from 0 to 99")
	}
	return nil
}

func (b *bounds) ceilings() workspace.Limits {
	return workspace.Limits{Most: sandbox.Resources{CPU: b.MaxCPU, MemoryMB: b.MaxMemory, DiskMB: b.MaxDisk, PIDs: b.MaxPIDs}, Sandboxes: b.MaxWorkspaceSandboxes}
}

func (b *bounds) snapshots() workspace.SnapshotRules {
	return workspace.SnapshotRules{
		Quota: sandbox.SnapshotQuota{Count: b.MaxSnapshots, Bytes: b.MaxSnapshotsMB << 20}, Unused: time.Duration(b.SnapshotDays) * 24 * time.Hour,
	}
}

func (b *bounds) reserve() sandbox.Reserve {
	return sandbox.Reserve{Memory: b.ReserveMemory << 20, DiskPercent: b.ReserveDisk}
}

type workspaceLimits struct {
	place     `embed:""`
	Workspace string   `required:"" help:"Slug or name." env:"SANDGATE_WORKSPACE"`
	CPU       *float64 `name:"cpu" help:"Cores of one sandbox; 0: not set any more." env:"SANDGATE_LIMIT_CPU" placeholder:"CORES"`
	Memory    *int64   `help:"MiB of memory of one sandbox; 0: not set any more." env:"SANDGATE_LIMIT_MEMORY" placeholder:"MIB"`
	Disk      *int64   `help:"MiB of disk of one sandbox; 0: not set any more." env:"SANDGATE_LIMIT_DISK" placeholder:"MIB"`
	PIDs      *int64   `name:"pids" help:"Host tasks of one sandbox; 0: not set any more." env:"SANDGATE_LIMIT_PIDS" placeholder:"N"`
	Sandboxes *int     `help:"Sandboxes alive at a time; 0: not set any more." env:"SANDGATE_LIMIT_SANDBOXES" placeholder:"N"`
}

// Run sets what is named, and shows what is set. A running server takes it from the next call on; its own --max flags hold
// beside it.
func (c *workspaceLimits) Run(e *env) error {
	return c.with(e, func(ps *parts) error {
		l, err := ps.service.AdminLimits(e.ctx, c.Workspace)
		if err != nil {
			return err
		}
		own := l.Own
		set(&own.Most.CPU, c.CPU)
		set(&own.Most.MemoryMB, c.Memory)
		set(&own.Most.DiskMB, c.Disk)
		set(&own.Most.PIDs, c.PIDs)
		set(&own.Sandboxes, c.Sandboxes)
		if own != l.Own {
			if l, err = ps.service.AdminSetLimits(e.ctx, c.Workspace, own); err != nil {
				return err
			}
		}
		w := tabwriter.NewWriter(e.stdout, 2, 0, 2, ' ', 0)
		_, _ = fmt.Fprintln(w, "CPU\tMEMORY_MB\tDISK_MB\tPIDS\tSANDBOXES\tIN USE")
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\n", numberOrDash(l.Own.Most.CPU), numberOrDash(float64(l.Own.Most.MemoryMB)),
			numberOrDash(float64(l.Own.Most.DiskMB)), numberOrDash(float64(l.Own.Most.PIDs)), numberOrDash(float64(l.Own.Sandboxes)), l.InUse)
		return w.Flush()
	})
}

func set[T any](into, from *T) {
	if from != nil {
		*into = *from
	}
}

func numberOrDash(n float64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatFloat(n, 'f', -1, 64)
}
