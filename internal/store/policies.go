package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"sandgate/internal/approval"
)

var _ approval.Policies = (*Store)(nil)

// PolicyOf gives what something asks approval for; the zero value where nothing was set.
func (s *Store) PolicyOf(ctx context.Context, subject string) (approval.Policy, error) {
	var body []byte
	err := s.ro.QueryRowContext(ctx, `SELECT body FROM policies WHERE subject = ?`, subject).Scan(&body)
	if errors.Is(err, sql.ErrNoRows) {
		return approval.Policy{}, nil
	}
	if err != nil {
		return approval.Policy{}, fmt.Errorf("read policy of %s: %w", subject, err)
	}
	return approval.ReadPolicy(body)
}

// SetPolicy replaces what something asks approval for.
func (s *Store) SetPolicy(ctx context.Context, workspaceID, subject string, p approval.Policy, at time.Time) error {
	body, err := p.Marshal()
	if err != nil {
		return fmt.Errorf("set policy of %s: %w", subject, err)
	}
	return s.write(ctx, "set policy of "+subject, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO policies (subject, workspace_id, body, changed_at) VALUES (?, ?, ?, ?)
			ON CONFLICT (subject) DO UPDATE SET body = excluded.body, changed_at = excluded.changed_at`, subject, workspaceID, string(body), micros(at))
		return err
	})
}

// DeletePolicy forgets it; none: nil.
func (s *Store) DeletePolicy(ctx context.Context, subject string) error {
	return s.write(ctx, "forget policy of "+subject, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM policies WHERE subject = ?`, subject)
		return err
	})
}

// PoliciesOf gives all of a workspace, by what they are for.
func (s *Store) PoliciesOf(ctx context.Context, workspaceID string) (map[string]approval.Policy, error) {
	type row struct {
		subject string
		body    []byte
	}
	rows, err := s.ro.QueryContext(ctx, `SELECT subject, body FROM policies WHERE workspace_id = ?`, workspaceID)
	list, err := collect(rows, err, "list policies", func(scan func(...any) error) (r row, err error) {
		err = scan(&r.subject, &r.body)
		return r, err
	})
	if err != nil {
		return nil, err
	}
	out := make(map[string]approval.Policy, len(list))
	for _, r := range list {
		if out[r.subject], err = approval.ReadPolicy(r.body); err != nil {
			return nil, err
		}
	}
	return out, nil
}
