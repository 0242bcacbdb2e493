package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"sandgate/internal/workspace"
	"sandgate/sandbox"
)

// limitsBody are bounds of a workspace; null is none.
type limitsBody struct {
	CPU       *float64 `json:"cpu" doc:"Cores of one sandbox."`
	MemoryMB  *int64   `json:"memory_mb" doc:"MiB of one sandbox."`
	DiskMB    *int64   `json:"disk_mb" doc:"MiB of one sandbox."`
	PIDs      *int64   `json:"pids" doc:"Of one sandbox."`
	Sandboxes *int64   `json:"sandboxes" doc:"That may be alive in the workspace."`
}

type workspaceLimitsBody struct {
	Limits    limitsBody `json:"limits" doc:"What holds: the lower of the two below."`
	Own       limitsBody `json:"own" doc:"What the workspace has set."`
	Ceiling   limitsBody `json:"ceiling" doc:"The installation's."`
	Sandboxes int        `json:"sandboxes" doc:"How many count at this moment. Those that failed do not."`
}

func toLimits(l workspace.Limits) limitsBody {
	b := limitsBody{MemoryMB: positive(l.Most.MemoryMB), DiskMB: positive(l.Most.DiskMB), PIDs: positive(l.Most.PIDs), Sandboxes: positive(int64(l.Sandboxes))}
	if l.Most.CPU > 0 {
		b.CPU = &l.Most.CPU
	}
	return b
}

func positive(n int64) *int64 {
	if n <= 0 {
		return nil
	}
	return &n
}

func toWorkspaceLimits(l workspace.WorkspaceLimits) workspaceLimitsBody {
	return workspaceLimitsBody{Limits: toLimits(l.InForce), Own: toLimits(l.Own), Ceiling: toLimits(l.Ceiling), Sandboxes: l.InUse}
}

// workspaceLimits: GET /v1/limits.
func (s *server) workspaceLimits(c echo.Context) error {
	l, err := s.svc.WorkspaceLimits(c.Request().Context(), actor(c))
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, toWorkspaceLimits(l))
}

// setWorkspaceLimits: PUT /v1/limits. What is absent or null is not set any more.
func (s *server) setWorkspaceLimits(c echo.Context) error {
	o, err := readObject(c, smallBody)
	if err != nil {
		return err
	}
	own := workspace.Limits{
		Most: sandbox.Resources{
			CPU: o.number("cpu", 4096), MemoryMB: o.whole("memory_mb", 64, 64<<10, 0), DiskMB: o.whole("disk_mb", 16, 256<<10, 0), PIDs: o.whole("pids", 128, 32<<10, 0),
		},
		Sandboxes: int(o.whole("sandboxes", 1, 100_000, 0)),
	}
	if err := o.check(); err != nil {
		return err
	}
	l, err := s.svc.SetWorkspaceLimits(c.Request().Context(), actor(c), own)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, toWorkspaceLimits(l))
}
