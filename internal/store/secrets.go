package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"sandgate/sandbox"
)

// PutSecrets keeps what was sealed for a sandbox.
func (s *Store) PutSecrets(ctx context.Context, id sandbox.ID, sealed []byte) error {
	return s.write(ctx, "keep secrets of sandbox "+string(id), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO sandbox_secrets (sandbox_id, sealed) VALUES (?, ?)
			ON CONFLICT (sandbox_id) DO UPDATE SET sealed = excluded.sealed`, id, sealed)
		return err
	})
}

// Secrets gives what was sealed for a sandbox; fault.NotFound when it has none.
func (s *Store) Secrets(ctx context.Context, id sandbox.ID) (sealed []byte, err error) {
	err = s.ro.QueryRowContext(ctx, `SELECT sealed FROM sandbox_secrets WHERE sandbox_id = ?`, id).Scan(&sealed)
	return sealed, one(err, "read secrets of sandbox "+string(id), "Secrets")
}

// DeleteSecrets forgets them; none: nil.
func (s *Store) DeleteSecrets(ctx context.Context, id sandbox.ID) error {
	return s.write(ctx, "forget secrets of sandbox "+string(id), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM sandbox_secrets WHERE sandbox_id = ?`, id)
		return err
	})
}

// DescribeSandbox changes label and metadata of one that is not gone; nil leaves what is there.
func (s *Store) DescribeSandbox(ctx context.Context, id sandbox.ID, label *string, metadata map[string]string) error {
	var pairs *string
	if metadata != nil {
		text, err := json.Marshal(metadata)
		if err != nil {
			return fmt.Errorf("describe sandbox %s: %w", id, err)
		}
		t := string(text)
		pairs = &t
	}
	return s.write(ctx, "describe sandbox "+string(id), func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `UPDATE sandboxes SET label = coalesce(?, label), metadata = coalesce(?, metadata)
			WHERE id = ? AND status <> 'gone'`, label, pairs, id)
		return some(res, err, "Sandbox")
	})
}
