package store

import (
	"context"
	"database/sql"
	"time"

	"sandgate/auth"
	"sandgate/internal/fault"
	"sandgate/sandbox"
)

const keyColumns = `k.id, k.workspace_id, k.name, coalesce(k.owner_id, ''), coalesce(o.email, ''), k.permissions, k.prefix, k.hash,
	k.created_at, k.expires_at, k.last_used_at, k.sandbox_id, k.parent_id,
	CASE WHEN k.revoked_at = 0 AND k.sandbox_id <> '' AND coalesce(b.status, 'gone') = 'gone' THEN coalesce(b.ended_at, k.created_at)
		ELSE k.revoked_at END`

// A key made for a sandbox is dead while that is not there, whether or not somebody came to revoke it.
const keyTables = `api_keys k LEFT JOIN users o ON o.id = k.owner_id LEFT JOIN sandboxes b ON b.id = k.sandbox_id`

func keyDest(k *auth.Key) []any {
	return []any{
		&k.ID, &k.WorkspaceID, &k.Name, &k.OwnerID, &k.OwnerEmail,
		permissionColumn{&k.Permissions},
		&k.Prefix, &k.Hash,
		timeColumn{&k.CreatedAt},
		timeColumn{&k.ExpiresAt},
		timeColumn{&k.LastUsedAt},
		&k.SandboxID, &k.ParentID,
		timeColumn{&k.RevokedAt},
	}
}

func scanKey(scan func(...any) error) (k auth.Key, err error) {
	err = scan(keyDest(&k)...)
	return k, err
}

// InsertKey adds a key; a prefix that is taken is fault.Conflict.
func (s *Store) InsertKey(ctx context.Context, k auth.Key) error {
	return s.write(ctx, "insert key", func(tx *sql.Tx) error {
		owner := sql.NullString{String: k.OwnerID, Valid: k.OwnerID != ""}
		res, err := tx.ExecContext(ctx, `INSERT INTO api_keys
			(id, workspace_id, name, owner_id, permissions, prefix, hash, created_at, expires_at, sandbox_id, parent_id)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (prefix) DO NOTHING`,
			k.ID, k.WorkspaceID, k.Name, owner, k.Permissions.String(), k.Prefix, k.Hash, micros(k.CreatedAt), micros(k.ExpiresAt),
			k.SandboxID, k.ParentID)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return fault.Wrap(err, fault.Conflict, "There is such a key already. Try again.")
		}
		return nil
	})
}

// KeyByPrefix gives a key with its workspace and its owner's place there.
func (s *Store) KeyByPrefix(ctx context.Context, prefix string) (auth.KeyHolder, error) {
	return scanKeyHolder(s.hot.keyByPrefix.QueryRowContext(ctx, prefix))
}

// KeyByID gives a key with its workspace and its owner's place there.
func (s *Store) KeyByID(ctx context.Context, id string) (auth.KeyHolder, error) {
	return scanKeyHolder(s.hot.keyByID.QueryRowContext(ctx, id))
}

const keyHolderQuery = `SELECT ` + keyColumns + `, ` + workspaceColumns + `, m.role, m.granted, coalesce(o.disabled, 0)
	FROM ` + keyTables + ` JOIN workspaces w ON w.id = k.workspace_id
	LEFT JOIN members m ON m.workspace_id = k.workspace_id AND m.user_id = k.owner_id
	WHERE `

func scanKeyHolder(row *sql.Row) (h auth.KeyHolder, err error) {
	var role, granted sql.NullString
	err = row.Scan(append(append(keyDest(&h.Key), workspaceDest(&h.Workspace)...), &role, &granted, &h.Owner.Disabled)...)
	if err != nil {
		return h, one(err, "read key", "Key")
	}
	if !role.Valid {
		h.Owner = auth.Member{}
		return h, nil
	}
	h.Owner.WorkspaceID, h.Owner.UserID, h.Owner.Email, h.Owner.Role = h.WorkspaceID, h.OwnerID, h.OwnerEmail, auth.Role(role.String)
	err = permissionColumn{&h.Owner.Granted}.Scan(granted.String)
	return h, err
}

// Keys lists a workspace's keys, newest first, revoked and expired ones too, but for those of sandboxes that are gone; with
// an owner only that person's.
func (s *Store) Keys(ctx context.Context, workspaceID, ownerID string) ([]auth.Key, error) {
	rows, err := s.ro.QueryContext(ctx, `SELECT `+keyColumns+` FROM `+keyTables+`
		WHERE k.workspace_id = ? AND (? = '' OR k.owner_id = ?)
			AND (k.sandbox_id = '' OR k.revoked_at = 0 AND coalesce(b.status, 'gone') <> 'gone') ORDER BY k.created_at DESC, k.id LIMIT 1000`, workspaceID, ownerID, ownerID)
	return collect(rows, err, "list keys", scanKey)
}

// CountKeys tells how many keys of a workspace are not revoked.
func (s *Store) CountKeys(ctx context.Context, workspaceID string) (n int, err error) {
	err = s.ro.QueryRowContext(ctx, `SELECT count(*) FROM api_keys WHERE workspace_id = ? AND revoked_at = 0`, workspaceID).Scan(&n)
	return n, one(err, "count keys", "Key")
}

// withOffspring names the keys of a condition and all that were made by them, or by those.
func withOffspring(condition string) string {
	return `WITH RECURSIVE tree (id) AS (
		SELECT id FROM api_keys WHERE ` + condition + `
		UNION SELECT k.id FROM api_keys k JOIN tree t ON k.parent_id = t.id WHERE k.parent_id <> '')
	UPDATE api_keys SET revoked_at = CASE revoked_at WHEN 0 THEN ? ELSE revoked_at END WHERE id IN (SELECT id FROM tree)`
}

// RevokeKey ends a key of a workspace, with those that it made; one that is revoked already stays as it is.
func (s *Store) RevokeKey(ctx context.Context, workspaceID, id string, at time.Time) error {
	return s.write(ctx, "revoke key", func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, withOffspring(`workspace_id = ? AND id = ?`), workspaceID, id, micros(at))
		return some(res, err, "Key")
	})
}

// RevokeSandboxKeys ends the keys that were made for a sandbox, with those that they made, and gives the former.
func (s *Store) RevokeSandboxKeys(ctx context.Context, id sandbox.ID, at time.Time) ([]auth.Key, error) {
	const open = `k.sandbox_id = ? AND k.sandbox_id <> '' AND k.revoked_at = 0`
	rows, err := s.ro.QueryContext(ctx, `SELECT `+keyColumns+` FROM `+keyTables+` WHERE `+open, id)
	keys, err := collect(rows, err, "list keys of a sandbox", scanKey)
	if err != nil || len(keys) == 0 {
		return nil, err
	}
	return keys, s.write(ctx, "revoke keys of a sandbox", func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, withOffspring(`sandbox_id = ? AND sandbox_id <> ''`), id, micros(at))
		return err
	})
}

// TouchKey notes the last use, never backwards.
func (s *Store) TouchKey(ctx context.Context, id string, at time.Time) error {
	return s.write(ctx, "touch key", func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE api_keys SET last_used_at = ? WHERE id = ? AND last_used_at < ?`, micros(at), id, micros(at))
		return err
	})
}
