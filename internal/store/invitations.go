package store

import (
	"context"
	"database/sql"
	"time"

	"sandgate/auth"
	"sandgate/internal/fault"
)

const invitationColumns = `i.id, i.workspace_id, i.email, i.role, i.run, i.hash, i.invited_by, i.created_at, i.expires_at`

func scanInvitation(scan func(...any) error) (i auth.Invitation, err error) {
	err = scan(&i.ID, &i.WorkspaceID, &i.Email, &i.Role, &i.Run, &i.Hash, &i.InvitedBy, timeColumn{&i.CreatedAt}, timeColumn{&i.ExpiresAt})
	return i, err
}

// PutInvitation adds an invitation; the one before to the same address dies.
func (s *Store) PutInvitation(ctx context.Context, i auth.Invitation) error {
	return s.write(ctx, "put invitation", func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM invitations WHERE expires_at <= ? OR workspace_id = ? AND email = ?`,
			micros(i.CreatedAt), i.WorkspaceID, i.Email)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO invitations (id, workspace_id, email, role, run, hash, invited_by, created_at, expires_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			i.ID, i.WorkspaceID, i.Email, i.Role, i.Run, i.Hash, i.InvitedBy, micros(i.CreatedAt), micros(i.ExpiresAt))
		return err
	})
}

// Invitations lists a workspace's open ones by address.
func (s *Store) Invitations(ctx context.Context, workspaceID string, now time.Time) ([]auth.Invitation, error) {
	rows, err := s.ro.QueryContext(ctx, `SELECT `+invitationColumns+` FROM invitations i WHERE i.workspace_id = ? AND i.expires_at > ?
		ORDER BY i.email`, workspaceID, micros(now))
	return collect(rows, err, "list invitations", scanInvitation)
}

// InvitationByHash gives an open one with its workspace.
func (s *Store) InvitationByHash(ctx context.Context, hash []byte, now time.Time) (i auth.Invitation, w auth.Workspace, err error) {
	err = s.ro.QueryRowContext(ctx, `SELECT `+invitationColumns+`, `+workspaceColumns+` FROM invitations i
		JOIN workspaces w ON w.id = i.workspace_id WHERE i.hash = ? AND i.expires_at > ?`, hash, micros(now)).
		Scan(append([]any{
			&i.ID, &i.WorkspaceID, &i.Email, &i.Role, &i.Run, &i.Hash, &i.InvitedBy, timeColumn{&i.CreatedAt}, timeColumn{&i.ExpiresAt},
		}, workspaceDest(&w)...)...)
	return i, w, one(err, "read invitation", "Invitation")
}

// DeleteInvitation ends one of a workspace.
func (s *Store) DeleteInvitation(ctx context.Context, workspaceID, id string) error {
	return s.write(ctx, "delete invitation", func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `DELETE FROM invitations WHERE workspace_id = ? AND id = ?`, workspaceID, id)
		return some(res, err, "Invitation")
	})
}

// AcceptInvitation uses an invitation up and makes the person a member; with a new user the account is made too. All or
// nothing: used already is fault.NotFound, a member already fault.Conflict.
func (s *Store) AcceptInvitation(ctx context.Context, id string, now time.Time, newUser *auth.User, m auth.Member) error {
	return s.write(ctx, "accept invitation", func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `DELETE FROM invitations WHERE id = ? AND expires_at > ?`, id, micros(now))
		if err := some(res, err, "Invitation"); err != nil {
			return err
		}
		if newUser != nil {
			if err := insertUser(ctx, tx, *newUser); err != nil {
				return err
			}
		}
		res, err = tx.ExecContext(ctx, `INSERT INTO members (workspace_id, user_id, role, granted, joined_at) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT (workspace_id, user_id) DO NOTHING`, m.WorkspaceID, m.UserID, m.Role, m.Granted.String(), micros(m.JoinedAt))
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return fault.Wrap(err, fault.Conflict, "You are a member of this workspace already.")
		}
		return nil
	})
}
