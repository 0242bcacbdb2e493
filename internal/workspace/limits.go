package workspace

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"strings"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/fault"
	"sandgate/sandbox"
)

// Limits bound the sandboxes of a workspace. A zero field is no bound of its own.
type Limits struct {
	Most      sandbox.Resources // of one sandbox
	Sandboxes int               // alive at a time
}

// WorkspaceLimits is what bounds a workspace, and why.
type WorkspaceLimits struct {
	Own     Limits // what the workspace has set; zero fields: nothing
	Ceiling Limits // the installation's, which no workspace can exceed; zero fields: none
	InForce Limits // the lower of both
	InUse   int    // sandboxes that count
}

// The least that a limit may be; below, sandboxes do not start.
var least = sandbox.Resources{CPU: 0.1, MemoryMB: 64, DiskMB: 16, PIDs: 128}

// within gives the lower of two bounds, field by field.
func (l Limits) within(o Limits) Limits {
	return Limits{
		Most: sandbox.Resources{
			CPU: lower(l.Most.CPU, o.Most.CPU), MemoryMB: lower(l.Most.MemoryMB, o.Most.MemoryMB),
			DiskMB: lower(l.Most.DiskMB, o.Most.DiskMB), PIDs: lower(l.Most.PIDs, o.Most.PIDs),
		},
		Sandboxes: lower(l.Sandboxes, o.Sandboxes),
	}
}

// lower is the smaller one, where zero is no bound.
func lower[T int | int64 | float64](a, b T) T {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// bounds reads what bounds a workspace.
func (s *Service) bounds(ctx context.Context, workspaceID string) (own, inForce Limits, err error) {
	own.Most, own.Sandboxes, err = s.o.Store.WorkspaceLimits(ctx, workspaceID)
	return own, own.within(s.o.Ceilings), err
}

// withDefaults fills in what was not asked for: the default, or the bound where that is lower.
func (l Limits) withDefaults(r sandbox.Resources) sandbox.Resources {
	d := Limits{Most: sandbox.DefaultResources}
	d.Most.CPU = min(d.Most.CPU, float64(runtime.NumCPU()))
	d = d.within(l)
	fill(&r, d.Most)
	return r
}

// fill puts values where there are none.
func fill(r *sandbox.Resources, from sandbox.Resources) {
	if r.CPU == 0 {
		r.CPU = from.CPU
	}
	if r.MemoryMB == 0 {
		r.MemoryMB = from.MemoryMB
	}
	if r.DiskMB == 0 {
		r.DiskMB = from.DiskMB
	}
	if r.PIDs == 0 {
		r.PIDs = from.PIDs
	}
}

// check refuses each field that is above its bound and not what have has already.
func (l Limits) check(r, have sandbox.Resources, bad map[string]string) {
	over := func(name string, v, most, had float64) {
		if most > 0 && v > most && v != had && bad[name] == "" {
			bad[name] = "may be " + strconv.FormatFloat(most, 'f', -1, 64) + " at most in this workspace"
		}
	}
	over("resources.cpu", r.CPU, l.Most.CPU, have.CPU)
	over("resources.memory_mb", float64(r.MemoryMB), float64(l.Most.MemoryMB), float64(have.MemoryMB))
	over("resources.disk_mb", float64(r.DiskMB), float64(l.Most.DiskMB), float64(have.DiskMB))
	over("resources.pids", float64(r.PIDs), float64(l.Most.PIDs), float64(have.PIDs))
}

func (s *Service) quota(l Limits) sandbox.Quota {
	return sandbox.Quota{Workspace: l.Sandboxes, All: s.o.MaxSandboxes}
}

// WorkspaceLimits tells what bounds the actor's workspace. Needs read, run, manage or members:manage.
func (s *Service) WorkspaceLimits(ctx context.Context, a auth.Actor) (WorkspaceLimits, error) {
	if err := s.may(ctx, a, approval.Action{Name: "limit.read"}, auth.SandboxesRead, auth.SandboxesManage, auth.MembersManage); err != nil {
		return WorkspaceLimits{}, err
	}
	return s.workspaceLimits(ctx, a.Workspace.ID)
}

func (s *Service) workspaceLimits(ctx context.Context, workspaceID string) (WorkspaceLimits, error) {
	out := WorkspaceLimits{Ceiling: s.o.Ceilings}
	var err error
	if out.Own, out.InForce, err = s.bounds(ctx, workspaceID); err != nil {
		return out, err
	}
	out.InUse, err = s.o.Store.CountSandboxes(ctx, workspaceID)
	return out, err
}

// SetWorkspaceLimits replaces what the workspace has set; zero fields become not set. Sandboxes that are there keep what they
// have. Needs members:manage. No workspace sets more than the installation allows.
func (s *Service) SetWorkspaceLimits(ctx context.Context, a auth.Actor, own Limits) (WorkspaceLimits, error) {
	if err := s.may(ctx, a, approval.Action{Name: "limit.set", Target: a.Workspace.Name}, auth.MembersManage); err != nil {
		return WorkspaceLimits{}, err
	}
	return s.setLimits(ctx, a, own)
}

func (s *Service) setLimits(ctx context.Context, a auth.Actor, own Limits) (WorkspaceLimits, error) {
	if err := own.valid(s.o.Ceilings); err != nil {
		return WorkspaceLimits{}, err
	}
	what := approval.Action{Kind: approval.Other, Name: "limit.set", Target: a.Workspace.Name}
	err := s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		return own.words(), s.o.Store.SetWorkspaceLimits(ctx, a.Workspace.ID, own.Most, own.Sandboxes)
	})
	if err != nil {
		return WorkspaceLimits{}, err
	}
	return s.workspaceLimits(ctx, a.Workspace.ID)
}

func (l Limits) valid(ceiling Limits) error {
	bad := map[string]string{}
	field := func(name string, v, least, most float64) {
		switch {
		case v == 0:
		case !(v >= least): // also refuses NaN
			bad[name] = "must be " + strconv.FormatFloat(least, 'f', -1, 64) + " at the least"
		case most > 0 && v > most:
			bad[name] = "may be " + strconv.FormatFloat(most, 'f', -1, 64) + " at most on this installation"
		case v > 1<<24:
			bad[name] = "is too large"
		}
	}
	field("cpu", l.Most.CPU, least.CPU, ceiling.Most.CPU)
	field("memory_mb", float64(l.Most.MemoryMB), float64(least.MemoryMB), float64(ceiling.Most.MemoryMB))
	field("disk_mb", float64(l.Most.DiskMB), float64(least.DiskMB), float64(ceiling.Most.DiskMB))
	field("pids", float64(l.Most.PIDs), float64(least.PIDs), float64(ceiling.Most.PIDs))
	field("sandboxes", float64(l.Sandboxes), 1, float64(ceiling.Sandboxes))
	return fieldsFault(bad)
}

// words say for the record what is set.
func (l Limits) words() string {
	var out []string
	if l.Most.CPU > 0 {
		out = append(out, fmt.Sprintf("cpu %g", l.Most.CPU))
	}
	for _, f := range []struct {
		name string
		n    int64
	}{{"memory_mb", l.Most.MemoryMB}, {"disk_mb", l.Most.DiskMB}, {"pids", l.Most.PIDs}, {"sandboxes", int64(l.Sandboxes)}} {
		if f.n > 0 {
			out = append(out, fmt.Sprintf("%s %d", f.name, f.n))
		}
	}
	if out == nil {
		return "none of its own"
	}
	return strings.Join(out, ", ")
}

// resourcesChange says for the record what changed of a sandbox's limits.
func resourcesChange(old, now sandbox.Resources) string {
	var out []string
	if old.CPU != now.CPU {
		out = append(out, fmt.Sprintf("cpu %g to %g", old.CPU, now.CPU))
	}
	for _, f := range []struct {
		name     string
		old, now int64
	}{{"memory_mb", old.MemoryMB, now.MemoryMB}, {"disk_mb", old.DiskMB, now.DiskMB}, {"pids", old.PIDs, now.PIDs}} {
		if f.old != f.now {
			out = append(out, fmt.Sprintf("%s %d to %d", f.name, f.old, f.now))
		}
	}
	return strings.Join(out, ", ")
}

// newResources gives what a patch makes of a sandbox's limits, judged by what bounds the workspace.
func (s *Service) newResources(ctx context.Context, r sandbox.Record, asked sandbox.Resources) (sandbox.Resources, error) {
	fill(&asked, r.Resources)
	bad := map[string]string{}
	checkResources(&asked, bad)
	_, bounds, err := s.bounds(ctx, r.WorkspaceID)
	if err != nil {
		return asked, err
	}
	bounds.check(asked, r.Resources, bad)
	if asked.DiskMB != r.Resources.DiskMB {
		bad["resources.disk_mb"] = "cannot be changed once the sandbox is made: the size of its writable layer is fixed when it starts"
	}
	return asked, fieldsFault(bad)
}

// AdminLimits tells what bounds a workspace, for somebody with a shell on the host.
func (s *Service) AdminLimits(ctx context.Context, slugOrName string) (WorkspaceLimits, error) {
	w, err := s.AdminWorkspace(ctx, slugOrName)
	if err != nil {
		return WorkspaceLimits{}, err
	}
	return s.workspaceLimits(ctx, w.ID)
}

// AdminSetLimits replaces what a workspace has set, for somebody with a shell on the host.
func (s *Service) AdminSetLimits(ctx context.Context, slugOrName string, own Limits) (WorkspaceLimits, error) {
	w, err := s.AdminWorkspace(ctx, slugOrName)
	if err != nil {
		return WorkspaceLimits{}, err
	}
	a := host(w.ID)
	a.Workspace.Name = w.Name
	return s.setLimits(ctx, a, own)
}

// errNeedsManage is for who may change a sandbox, but not its limits.
func errNeedsManage() error {
	return fault.New(fault.Forbidden, "This needs the permission %s, which you do not have in this workspace.", auth.SandboxesManage)
}
