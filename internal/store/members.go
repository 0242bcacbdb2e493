package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"sandgate/auth"
	"sandgate/internal/fault"
)

const workspaceColumns = `w.id, w.slug, w.name, w.created_at`

func workspaceDest(w *auth.Workspace) []any {
	return []any{&w.ID, &w.Slug, &w.Name, timeColumn{&w.CreatedAt}}
}

func scanWorkspace(scan func(...any) error) (w auth.Workspace, err error) {
	err = scan(workspaceDest(&w)...)
	return w, err
}

const memberColumns = `m.workspace_id, m.user_id, u.email, m.role, m.granted, u.disabled, m.joined_at`

func memberDest(m *auth.Member) []any {
	return []any{&m.WorkspaceID, &m.UserID, &m.Email, &m.Role, permissionColumn{&m.Granted}, &m.Disabled, timeColumn{&m.JoinedAt}}
}

func scanMember(scan func(...any) error) (m auth.Member, err error) {
	err = scan(memberDest(&m)...)
	return m, err
}

// InsertWorkspace adds a workspace with its first member. Where the slug is taken a number is put behind it; the
// workspace is returned as it is stored. With a zero member it starts empty.
func (s *Store) InsertWorkspace(ctx context.Context, w auth.Workspace, m auth.Member) (stored auth.Workspace, err error) {
	err = s.write(ctx, "insert workspace", func(tx *sql.Tx) error {
		stored, err = insertWorkspace(ctx, tx, w, m)
		return err
	})
	return stored, err
}

func insertWorkspace(ctx context.Context, tx *sql.Tx, w auth.Workspace, m auth.Member) (auth.Workspace, error) {
	base := w.Slug
	for n := 2; ; n++ {
		res, err := tx.ExecContext(ctx, `INSERT INTO workspaces (id, slug, name, created_at) VALUES (?, ?, ?, ?) ON CONFLICT (slug) DO NOTHING`,
			w.ID, w.Slug, w.Name, micros(w.CreatedAt))
		if err != nil {
			return w, err
		}
		done, err := res.RowsAffected()
		if err != nil {
			return w, err
		}
		if done == 1 {
			break
		}
		if n > 1000 {
			return w, fault.New(fault.Conflict, "There are too many workspaces with this name already.")
		}
		w.Slug = fmt.Sprintf("%s-%d", base, n)
	}
	if m.UserID == "" {
		return w, nil
	}
	return w, putMember(ctx, tx, m)
}

func putMember(ctx context.Context, tx *sql.Tx, m auth.Member) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO members (workspace_id, user_id, role, granted, joined_at) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT (workspace_id, user_id) DO UPDATE SET role = excluded.role, granted = excluded.granted`,
		m.WorkspaceID, m.UserID, m.Role, m.Granted.String(), micros(m.JoinedAt))
	return err
}

// Workspaces lists all by name.
func (s *Store) Workspaces(ctx context.Context) ([]auth.Workspace, error) {
	rows, err := s.ro.QueryContext(ctx, `SELECT `+workspaceColumns+` FROM workspaces w ORDER BY w.name, w.id`)
	return collect(rows, err, "list workspaces", scanWorkspace)
}

// WorkspacesOf lists by name those in which a person is a member.
func (s *Store) WorkspacesOf(ctx context.Context, userID string) ([]auth.Workspace, error) {
	rows, err := s.ro.QueryContext(ctx, `SELECT `+workspaceColumns+` FROM workspaces w JOIN members m ON m.workspace_id = w.id
		WHERE m.user_id = ? ORDER BY w.name, w.id`, userID)
	return collect(rows, err, "list workspaces", scanWorkspace)
}

// WorkspaceBySlug gives one.
func (s *Store) WorkspaceBySlug(ctx context.Context, slug string) (auth.Workspace, error) {
	w, err := scanWorkspace(s.ro.QueryRowContext(ctx, `SELECT `+workspaceColumns+` FROM workspaces w WHERE w.slug = ?`, slug).Scan)
	return w, one(err, "read workspace", "Workspace")
}

// MemberBySlug gives a person's place in the workspace with a slug; unknown slug and no member are the same fault.NotFound.
func (s *Store) MemberBySlug(ctx context.Context, userID, slug string) (m auth.Member, w auth.Workspace, err error) {
	err = s.hot.memberBySlug.QueryRowContext(ctx, slug, userID).Scan(append(memberDest(&m), workspaceDest(&w)...)...)
	return m, w, one(err, "read member", "Workspace")
}

// Member gives one member.
func (s *Store) Member(ctx context.Context, workspaceID, userID string) (auth.Member, error) {
	m, err := scanMember(s.ro.QueryRowContext(ctx, `SELECT `+memberColumns+` FROM members m JOIN users u ON u.id = m.user_id
		WHERE m.workspace_id = ? AND m.user_id = ?`, workspaceID, userID).Scan)
	return m, one(err, "read member", "Member")
}

// Members lists a workspace's members by address.
func (s *Store) Members(ctx context.Context, workspaceID string) ([]auth.Member, error) {
	rows, err := s.ro.QueryContext(ctx, `SELECT `+memberColumns+` FROM members m JOIN users u ON u.id = m.user_id
		WHERE m.workspace_id = ? ORDER BY u.email`, workspaceID)
	return collect(rows, err, "list members", scanMember)
}

// PutMember adds a member or replaces role and grants of one. The last administrator keeps the role: fault.Conflict.
func (s *Store) PutMember(ctx context.Context, m auth.Member) error {
	return s.write(ctx, "put member", func(tx *sql.Tx) error {
		return keepAdmin(ctx, tx, m.WorkspaceID, func() error { return putMember(ctx, tx, m) })
	})
}

// SetRole changes a member's role. The last administrator keeps it: fault.Conflict.
func (s *Store) SetRole(ctx context.Context, workspaceID, userID string, role auth.Role) error {
	return s.write(ctx, "set role", func(tx *sql.Tx) error {
		return keepAdmin(ctx, tx, workspaceID, func() error {
			res, err := tx.ExecContext(ctx, `UPDATE members SET role = ? WHERE workspace_id = ? AND user_id = ?`, role, workspaceID, userID)
			return some(res, err, "Member")
		})
	})
}

// Grant gives or takes one permission beside the role.
func (s *Store) Grant(ctx context.Context, workspaceID, userID string, p auth.Permission, on bool) error {
	return s.write(ctx, "grant permission", func(tx *sql.Tx) error {
		var have auth.Permissions
		err := tx.QueryRowContext(ctx, `SELECT granted FROM members WHERE workspace_id = ? AND user_id = ?`, workspaceID, userID).
			Scan(permissionColumn{&have})
		if err != nil {
			return one(err, "read grants", "Member")
		}
		next := have.Without(p)
		if on {
			next = have.With(p)
		}
		_, err = tx.ExecContext(ctx, `UPDATE members SET granted = ? WHERE workspace_id = ? AND user_id = ?`, next.String(), workspaceID, userID)
		return err
	})
}

// DeleteMember ends a membership and revokes the keys that the person owns in the workspace, so that they do not come
// back to life when the person does. The last administrator stays: fault.Conflict.
func (s *Store) DeleteMember(ctx context.Context, workspaceID, userID string, now time.Time) error {
	return s.write(ctx, "delete member", func(tx *sql.Tx) error {
		return keepAdmin(ctx, tx, workspaceID, func() error {
			res, err := tx.ExecContext(ctx, `DELETE FROM members WHERE workspace_id = ? AND user_id = ?`, workspaceID, userID)
			if err := some(res, err, "Member"); err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, `UPDATE api_keys SET revoked_at = ? WHERE workspace_id = ? AND owner_id = ? AND revoked_at = 0`,
				micros(now), workspaceID, userID)
			return err
		})
	})
}

// keepAdmin refuses a change that leaves a workspace without an administrator who can sign in, where it had one.
func keepAdmin(ctx context.Context, tx *sql.Tx, workspaceID string, change func() error) error {
	count := func() (n int, err error) {
		err = tx.QueryRowContext(ctx, `SELECT count(*) FROM members m JOIN users u ON u.id = m.user_id
			WHERE m.workspace_id = ? AND m.role = ? AND u.disabled = 0`, workspaceID, auth.Admin).Scan(&n)
		return n, err
	}
	before, err := count()
	if err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	after, err := count()
	if err == nil && before > 0 && after == 0 {
		return fault.New(fault.Conflict, "A workspace needs an administrator. Make somebody else one first.")
	}
	return err
}
