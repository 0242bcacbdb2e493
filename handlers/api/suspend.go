package api

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"sandgate/auth"
	"sandgate/internal/workspace"
)

// suspendSandbox: POST /v1/sandboxes/{id}/suspend.
func (s *server) suspendSandbox(c echo.Context) error { return s.passage(c, s.svc.SuspendSandbox) }

// resumeSandbox: POST /v1/sandboxes/{id}/resume.
func (s *server) resumeSandbox(c echo.Context) error { return s.passage(c, s.svc.ResumeSandbox) }

// forkSandbox: POST /v1/sandboxes/{id}/fork.
func (s *server) forkSandbox(c echo.Context) error { return s.passage(c, s.svc.ForkSandbox) }

// passage is a call without options that answers with the sandbox as it is then.
func (s *server) passage(c echo.Context, do func(context.Context, auth.Actor, string) (workspace.Sandbox, error)) error {
	o, err := readObject(c, smallBody)
	if err != nil {
		return err
	}
	if err := o.check(); err != nil { // an option that is not there is refused, not ignored
		return err
	}
	sb, err := do(c.Request().Context(), actor(c), c.Param("id"))
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, toSandbox(sb))
}
