package api

import (
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"sandgate/auth"
	"sandgate/internal/fault"
)

// nodes: GET /v1/nodes. The official client asks for the workflow catalogue when it starts; there are no workflows here.
func (s *server) nodes(c echo.Context) error { return writeJSON(c, http.StatusOK, []nodeBody{}) }

// nodeBody would be a node of a workflow.
type nodeBody struct{}

type keyBody struct {
	ID          string           `json:"id"`
	Name        string           `json:"name"`
	TenantAdmin bool             `json:"tenant_admin" doc:"May administer its workspace: has members:manage or keys:manage. It implies nothing; the client enables its administrative part by it."`
	Value       string           `json:"value"` // masked; the client requires the field
	Permissions auth.Permissions `json:"permissions"`
	Workspace   workspaceBody    `json:"workspace"`
}

type workspaceBody struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// me: GET /v1/admin/me. What the key is and may do at this moment.
func (s *server) me(c echo.Context) error {
	a := actor(c)
	permissions := a.Permissions
	if permissions == nil {
		permissions = auth.Permissions{}
	}
	secret, _ := c.Get(secretKey).(string)
	return writeJSON(c, http.StatusOK, keyBody{
		ID: a.KeyID, Name: a.Name, TenantAdmin: administers(permissions), Value: masked(secret), Permissions: permissions,
		Workspace: workspaceBody{ID: a.Workspace.ID, Name: a.Workspace.Name},
	})
}

// administers tells the official client whether its administrative part is of any use; it grants nothing.
func administers(ps auth.Permissions) bool {
	return ps.Has(auth.MembersManage) || ps.Has(auth.KeysManage)
}

// masked keeps the part of a key that is not secret: "sg_" and 8 characters.
func masked(secret string) string {
	const open = len("sg_") + 8
	if len(secret) > open+16 && secret[:3] == "sg_" {
		return secret[:open] + "_********"
	}
	return "********"
}

type pageBody struct {
	Items []any `json:"items"`
	Total int   `json:"total"`
	Page  int   `json:"page"`
	Size  int   `json:"size"`
	Pages int   `json:"pages"`
}

// knowledgeBases: GET /v1/knowledge-bases. An empty page, for programs that look around before they use sandboxes.
func (s *server) knowledgeBases(c echo.Context) error {
	b := pageBody{Items: []any{}, Page: 1, Size: 50}
	for _, q := range []struct {
		name string
		into *int
	}{{"page", &b.Page}, {"size", &b.Size}} {
		if v := c.QueryParam(q.name); v != "" {
			n, err := strconv.Atoi(v)
			if err != nil || n < 1 || n > 1000 {
				return fault.Field(q.name, "must be a whole number from 1 to 1000")
			}
			*q.into = n
		}
	}
	return writeJSON(c, http.StatusOK, b)
}
