package api

import (
	"context"
	"math"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"sandgate/internal/fault"
	"sandgate/internal/workspace"
)

// sampleBody is one reading of a sandbox's meters.
type sampleBody struct {
	At          string   `json:"at"`
	CPUSeconds  float64  `json:"cpu_seconds"` // since the sandbox was made
	CPU         *float64 `json:"cpu"`         // cores in use since the reading before; null when there is none
	MemoryBytes int64    `json:"memory_bytes"`
	PIDs        int64    `json:"pids"`
	DiskBytes   *int64   `json:"disk_bytes"` // of the writable layer; null when unknown
}

// historyBody are readings, oldest first.
type historyBody struct {
	Items []sampleBody `json:"items"`
	Grain int          `json:"grain" doc:"Seconds between two readings."`
}

// sampleEvent is a reading as an event of a stream.
type sampleEvent struct {
	Type string `json:"type"` // "sample"
	sampleBody
}

func toSample(m workspace.Sample) sampleBody {
	b := sampleBody{At: stamp(m.At), CPUSeconds: m.CPUSeconds, MemoryBytes: m.MemoryBytes, PIDs: m.PIDs}
	if m.Cores >= 0 {
		cores := math.Round(m.Cores*1000) / 1000
		b.CPU = &cores
	}
	if m.DiskBytes >= 0 {
		b.DiskBytes = &m.DiskBytes
	}
	return b
}

// metrics: GET …/metrics. The limits are those of the sandbox's "resources".
func (s *server) metrics(c echo.Context) error {
	m, err := s.svc.Metrics(c.Request().Context(), actor(c), c.Param("id"))
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, toSample(m))
}

// metricsHistory: GET …/metrics/history?since=. At most the last hour.
func (s *server) metricsHistory(c echo.Context) error {
	since := time.Time{}
	if v := c.QueryParam("since"); v != "" {
		var err error
		if since, err = time.Parse(time.RFC3339Nano, v); err != nil {
			return fault.Field("since", "must be a time as RFC 3339 writes it")
		}
	}
	list, err := s.svc.MetricsHistory(c.Request().Context(), actor(c), c.Param("id"), since)
	if err != nil {
		return err
	}
	items := make([]sampleBody, 0, len(list))
	for _, m := range list {
		items = append(items, toSample(m))
	}
	return writeJSON(c, http.StatusOK, historyBody{items, int(workspace.MetricsGrain.Seconds())})
}

// metricsStream: GET …/metrics/stream?interval=. One reading at once, then one every so many seconds.
func (s *server) metricsStream(c echo.Context) error {
	every, err := queryWhole(c, "interval", 1, 60, 1)
	if err != nil {
		return err
	}
	a, id := actor(c), c.Param("id")
	return s.serveLive(c, func(ctx context.Context, send func(any) error) error {
		guarded, release := s.guardAny(ctx, a, see)
		defer release()
		tick := time.NewTicker(time.Duration(every) * time.Second)
		defer tick.Stop()
		last := workspace.Sample{}
		for {
			m, err := s.svc.Metrics(guarded, a, id)
			if err != nil {
				return causeOf(guarded, err)
			}
			if d := m.At.Sub(last.At).Seconds(); !last.At.IsZero() && d > 0 && m.CPUSeconds >= last.CPUSeconds {
				m.Cores = (m.CPUSeconds - last.CPUSeconds) / d // finer than since the last kept reading
			}
			last = m
			if err := send(sampleEvent{"sample", toSample(m)}); err != nil {
				return err
			}
			select {
			case <-guarded.Done():
				if ctx.Err() != nil {
					return nil
				}
				return context.Cause(guarded)
			case <-tick.C:
			}
		}
	})
}

// eventBody is one thing that happened.
type eventBody struct {
	Type      string `json:"type"` // "sandbox.status", an action of the record such as "command.run", "ready", "lost"
	At        string `json:"at"`
	SandboxID string `json:"sandbox_id,omitempty"`
	Status    string `json:"status,omitempty"`
	Reason    string `json:"reason,omitempty"`
	Actor     string `json:"actor,omitempty"`
	Target    string `json:"target,omitempty"`
	Outcome   string `json:"outcome,omitempty"`
	Detail    string `json:"detail,omitempty"`
	Lost      int    `json:"lost,omitempty"`
}

// watchEvents: GET …/events and GET /v1/events. What happens from now on, while it happens.
func (s *server) watchEvents(c echo.Context) error {
	a, id := actor(c), c.Param("id")
	return s.serveLive(c, func(ctx context.Context, send func(any) error) error {
		return s.svc.WatchEvents(ctx, a, id, func(e workspace.Event) error {
			return send(eventBody{
				Type: e.Type, At: stamp(e.At), SandboxID: e.SandboxID, Status: e.Status, Reason: e.Reason,
				Actor: e.Actor, Target: e.Target, Outcome: e.Outcome, Detail: e.Detail, Lost: e.Lost,
			})
		})
	})
}

// patchSandbox: PATCH /v1/sandboxes/{id}. A field that is null is emptied, one that is absent stays.
func (s *server) patchSandbox(c echo.Context) error {
	o, err := readObject(c, smallBody)
	if err != nil {
		return err
	}
	var p workspace.SandboxPatch
	label, metadata := o.line("label", maxLabel), o.texts("metadata", maxMetadata, 256, 1024)
	if _, there := o.raw["label"]; there {
		p.Label = &label
	}
	if _, there := o.raw["metadata"]; there {
		if p.Metadata = metadata; metadata == nil {
			p.Metadata = map[string]string{}
		}
	}
	if d := o.seconds("idle_timeout"); d > 0 {
		p.IdleTimeout = &d
	}
	if d := o.seconds("max_lifetime"); d > 0 {
		p.MaxLifetime = &d
	}
	if o.has("keep_while_busy") {
		keep := o.flag("keep_while_busy", true)
		p.KeepWhileBusy = &keep
	}
	p.Network, p.Approval = o.newNetwork("network"), o.approvalOf("approval")
	if o.has("resources") {
		r := o.resources("resources")
		p.Resources = &r
	}
	if len(o.raw) == 0 {
		o.fail("body", "names nothing to change")
	}
	if err := o.check(); err != nil {
		return err
	}
	sb, err := s.svc.UpdateSandbox(c.Request().Context(), actor(c), c.Param("id"), p)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, toSandbox(sb))
}
