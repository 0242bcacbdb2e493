package api

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"sandgate/auth"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
)

// The administrative calls of the official client, as far as a key may administer anything here: its own workspace, the keys
// in it, and who is a member. A "group" is its word for a workspace.

type groupBody struct {
	ID          string  `json:"id"`
	Name        string  `json:"name"`
	Description *string `json:"description"`
}

// adminKeyBody is a key as the client reads it. Value is the secret, once, in the answer that made it; masked elsewhere.
type adminKeyBody struct {
	ID          string           `json:"id"`
	Name        string           `json:"name"`
	TenantAdmin bool             `json:"tenant_admin" doc:"Lists members:manage or keys:manage; implies nothing."`
	Value       string           `json:"value" doc:"The key itself in the answer that made it, and never again."`
	Permissions auth.Permissions `json:"permissions"`
	Owner       *string          `json:"owner" doc:"Whose key it is; null for a service account."`
	CreatedAt   string           `json:"created_at" format:"date-time"`
	ExpiresAt   *string          `json:"expires_at" format:"date-time"`
	LastUsedAt  *string          `json:"last_used_at" format:"date-time"`
	Revoked     bool             `json:"revoked"`
}

type userBody struct {
	ID          string           `json:"id"`
	Email       string           `json:"email"`
	DisplayName *string          `json:"display_name"`
	TenantAdmin bool             `json:"tenant_admin" doc:"Has the role admin in this workspace."`
	IsActive    bool             `json:"is_active"`
	Role        auth.Role        `json:"role"`
	Permissions auth.Permissions `json:"permissions"`
}

type roleBody struct {
	ID          string          `json:"id"`
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Permissions map[string]bool `json:"permissions"`
}

func toAdminKey(k auth.Key, value string) adminKeyBody {
	b := adminKeyBody{
		ID: k.ID, Name: k.Name, TenantAdmin: administers(k.Permissions), Value: value, Permissions: k.Permissions, Owner: orNull(k.OwnerEmail), CreatedAt: stamp(k.CreatedAt),
		ExpiresAt: stampOrNull(k.ExpiresAt), LastUsedAt: stampOrNull(k.LastUsedAt), Revoked: !k.RevokedAt.IsZero(),
	}
	if value == "" {
		b.Value = k.Prefix + "_********"
	}
	if b.Permissions == nil {
		b.Permissions = auth.Permissions{}
	}
	return b
}

func stampOrNull(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	s := stamp(t)
	return &s
}

// groups: GET /v1/admin/groups. A key sees the one workspace that it is of.
func (s *server) groups(c echo.Context) error {
	w := actor(c).Workspace
	return writeJSON(c, http.StatusOK, []groupBody{{ID: w.ID, Name: w.Name}})
}

// createGroup: POST /v1/admin/groups. The service refuses every key: only a person makes workspaces.
func (s *server) createGroup(c echo.Context) error {
	o, err := readObject(c, smallBody)
	if err != nil {
		return err
	}
	name := o.required("name", 60)
	o.line("description", 1000)
	if err := o.check(); err != nil {
		return err
	}
	w, err := s.svc.CreateWorkspace(c.Request().Context(), actor(c), name)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, groupBody{ID: w.ID, Name: w.Name})
}

// deleteGroup: DELETE /v1/admin/groups/{group}. There is no such thing as an end of a workspace in this version.
func (s *server) deleteGroup(c echo.Context) error {
	if err := ownGroup(c); err != nil {
		return err
	}
	return s.never(c, "workspace.delete", fault.New(fault.Forbidden, "A workspace cannot be deleted over the API."))
}

func ownGroup(c echo.Context) error {
	if c.Param("group") != actor(c).Workspace.ID {
		return fault.New(fault.NotFound, "Workspace not found")
	}
	return nil
}

// addGroupKey: POST /v1/admin/groups/{group}/api-keys. The client names no permissions: the key then may what the asking key
// may, less what no service account has.
func (s *server) addGroupKey(c echo.Context) error {
	if err := ownGroup(c); err != nil {
		return err
	}
	return s.makeKey(c, actor(c).Permissions.Without(auth.ServiceAccountNever...))
}

// createSystemKey: POST /v1/admin/system-keys.
func (s *server) createSystemKey(c echo.Context) error { return s.makeKey(c, nil) }

func (s *server) makeKey(c echo.Context, otherwise auth.Permissions) error {
	o, err := readObject(c, smallBody)
	if err != nil {
		return err
	}
	f := workspace.KeyForm{Name: o.required("name", 80), Permissions: otherwise}
	if words := o.words("permissions", len(auth.AllPermissions), 64); words != nil {
		f.Permissions = o.permissions("permissions", words)
	}
	if o.flag("tenant_admin", false) {
		o.fail("tenant_admin", "must be false: what a key may administer is in its permissions")
	}
	f.ExpiresDays = int(o.whole("expires_days", -1, 3650, 0))
	if err := o.check(); err != nil {
		return err
	}
	k, secret, err := s.svc.CreateKey(c.Request().Context(), actor(c), f)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, toAdminKey(k, secret))
}

// permissions gives known ones, each once.
func (o *object) permissions(name string, words []string) auth.Permissions {
	var out auth.Permissions
	for _, w := range words {
		p := auth.Permission(w)
		if !p.Valid() || slices.Contains(out, p) {
			o.fail(name, "must be known ones, each once: "+auth.Permissions(auth.AllPermissions).String())
			return nil
		}
		out = append(out, p)
	}
	return out.Sorted()
}

// required gives a string without control characters that is there and not blank.
func (o *object) required(name string, limit int) string {
	s := o.line(name, limit)
	if o.bad[o.prefix+name] == "" && strings.TrimSpace(s) == "" {
		o.fail(name, "must not be empty")
	}
	return s
}

// words gives a list of at most entries texts of at most limit bytes; nil when absent.
func (o *object) words(name string, entries, limit int) []string {
	v, ok := o.get(name)
	if !ok {
		return nil
	}
	var list []*string
	if json.Unmarshal(v, &list) != nil || slices.Contains(list, nil) {
		o.fail(name, "must be a list of text")
		return nil
	}
	out := make([]string, 0, len(list))
	for _, s := range list {
		if len(*s) > limit || len(list) > entries {
			o.fail(name, "is too long")
			return nil
		}
		out = append(out, *s)
	}
	return out
}

// systemKeys: GET /v1/admin/system-keys. Every key of the workspace.
func (s *server) systemKeys(c echo.Context) error {
	keys, err := s.svc.Keys(c.Request().Context(), actor(c))
	if err != nil {
		return err
	}
	out := make([]adminKeyBody, 0, len(keys))
	for _, k := range keys {
		out = append(out, toAdminKey(k, ""))
	}
	return writeJSON(c, http.StatusOK, out)
}

// deleteSystemKey: DELETE /v1/admin/system-keys/{key}. It stays in the list, revoked.
func (s *server) deleteSystemKey(c echo.Context) error {
	if err := s.svc.RevokeKey(c.Request().Context(), actor(c), c.Param("key")); err != nil {
		return err
	}
	return done(c)
}

// users: GET /v1/admin/users. The members of the workspace.
func (s *server) users(c echo.Context) error {
	members, err := s.svc.Members(c.Request().Context(), actor(c))
	if err != nil {
		return err
	}
	out := make([]userBody, 0, len(members))
	for _, m := range members {
		b := userBody{ID: m.UserID, Email: m.Email, TenantAdmin: m.Role == auth.Admin, IsActive: !m.Disabled, Role: m.Role, Permissions: m.Rights()}
		if b.Permissions == nil {
			b.Permissions = auth.Permissions{}
		}
		out = append(out, b)
	}
	return writeJSON(c, http.StatusOK, out)
}

// roles: GET /v1/admin/roles. They are fixed.
func (s *server) roles(c echo.Context) error {
	out := make([]roleBody, 0, len(auth.Roles))
	for _, r := range auth.Roles {
		b := roleBody{ID: string(r), Name: string(r), Description: "built in", Permissions: map[string]bool{}}
		for _, p := range r.Permissions() {
			b.Permissions[string(p)] = true
		}
		out = append(out, b)
	}
	return writeJSON(c, http.StatusOK, out)
}

// createRole: POST /v1/admin/roles. What a member may do beside a role is granted by name.
func (s *server) createRole(c echo.Context) error {
	o, err := readObject(c, smallBody)
	if err != nil {
		return err
	}
	o.required("name", 80)
	o.line("description", 1000)
	o.flags("permissions", 64)
	if err := o.check(); err != nil {
		return err
	}
	return s.never(c, "role.create", errFixedRoles())
}

// deleteRole: DELETE /v1/admin/roles/{role}.
func (s *server) deleteRole(c echo.Context) error {
	if !auth.Role(c.Param("role")).Valid() {
		return fault.New(fault.NotFound, "Role not found")
	}
	return s.never(c, "role.delete", errFixedRoles())
}

// never refuses what nobody may, on record as every refusal is.
func (s *server) never(c echo.Context, action string, err *fault.Error) error {
	return s.svc.Refuse(c.Request().Context(), actor(c), action, err)
}

func errFixedRoles() *fault.Error {
	return fault.New(fault.Forbidden, "The roles are fixed. Further permissions are granted to a member by name.")
}

// flags checks a map from text to true or false.
func (o *object) flags(name string, entries int) {
	v, ok := o.get(name)
	if !ok {
		return
	}
	var m map[string]*bool
	if json.Unmarshal(v, &m) != nil || len(m) > entries {
		o.fail(name, "must be an object whose values are true or false")
		return
	}
	for _, b := range m {
		if b == nil {
			o.fail(name, "must be an object whose values are true or false")
		}
	}
}
