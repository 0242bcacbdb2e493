package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"sandgate/internal/workspace"
	"sandgate/sandbox"
)

const maxSnapshotName = 100 // characters

type snapshotBody struct {
	ID        sandbox.SaveID    `json:"id"`
	Name      string            `json:"name"`
	Image     string            `json:"image"`
	SandboxID sandbox.ID        `json:"sandbox_id" doc:"Of which it was taken; that may be gone."`
	Owner     ownerBody         `json:"owner"`
	Bytes     int64             `json:"bytes" doc:"On the host's disk."`
	Resources sandbox.Resources `json:"resources" doc:"What a sandbox gets that starts from it and asks for nothing else."`
	Network   networkBody       `json:"network"`
	CreatedAt string            `json:"created_at"`
	UsedAt    string            `json:"used_at" doc:"When a sandbox was started from it last, or it was taken."`
	ExpiresAt *string           `json:"expires_at" doc:"When it is deleted unless it is used until then; null: never."`
}

func toSnapshot(n workspace.Snapshot) snapshotBody {
	return snapshotBody{
		ID: n.ID, Name: n.Name, Image: n.Image, SandboxID: n.SandboxID, Owner: ownerBody{Kind: n.OwnerKind, Name: n.OwnerName}, Bytes: n.Bytes,
		Resources: n.Resources, Network: toNetwork(n.Network), CreatedAt: stamp(n.CreatedAt), UsedAt: stamp(n.UsedAt), ExpiresAt: stampOrNull(n.ExpiresAt),
	}
}

// takeSnapshot: POST /v1/sandboxes/{id}/snapshots.
func (s *server) takeSnapshot(c echo.Context) error {
	o, err := readObject(c, smallBody)
	if err != nil {
		return err
	}
	name := o.line("name", maxSnapshotName)
	if name == "" {
		o.fail("name", "must be given")
	}
	if err := o.check(); err != nil {
		return err
	}
	n, err := s.svc.TakeSnapshot(c.Request().Context(), actor(c), c.Param("id"), name)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, toSnapshot(n))
}

// listSnapshots: GET /v1/snapshots. A bare array, like that of sandboxes.
func (s *server) listSnapshots(c echo.Context) error {
	list, err := s.svc.Snapshots(c.Request().Context(), actor(c))
	if err != nil {
		return err
	}
	out := make([]snapshotBody, 0, len(list))
	for _, n := range list {
		out = append(out, toSnapshot(n))
	}
	return writeJSON(c, http.StatusOK, out)
}

// deleteSnapshot: DELETE /v1/snapshots/{id}.
func (s *server) deleteSnapshot(c echo.Context) error {
	if err := s.svc.DeleteSnapshot(c.Request().Context(), actor(c), c.Param("snapshot")); err != nil {
		return err
	}
	return done(c)
}
