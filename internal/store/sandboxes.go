package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"sandgate/internal/fault"
	"sandgate/sandbox"
)

var _ sandbox.Records = (*Store)(nil)

// alive is where the records are that are not gone: those that are stay for ever, and must not be walked through each time.
const alive = `sandboxes INDEXED BY sandboxes_alive WHERE status <> 'gone'`

const sandboxColumns = `id, workspace_id, label, image, owner_kind, owner_id, owner_name, status, reason, cwd, user, env, metadata,
	resources, network, persistent, parent, saved_at, saved_bytes, created_at, last_activity, ended_at, incarnation, ` + lifeColumns

func scanSandbox(scan func(...any) error) (r sandbox.Record, err error) {
	var env, metadata, resources, network []byte
	err = scan(append([]any{
		&r.ID, &r.WorkspaceID, &r.Label, &r.Image, &r.OwnerKind, &r.OwnerID, &r.OwnerName, &r.Status, &r.Reason, &r.Cwd, &r.User,
		&env, &metadata, &resources, &network, &r.Persistent, &r.Parent,
		timeColumn{&r.SavedAt},
		&r.SavedBytes,
		timeColumn{&r.CreatedAt},
		timeColumn{&r.LastActivity},
		timeColumn{&r.EndedAt},
		&r.Incarnation,
	}, lifeDest(&r)...)...)
	if err != nil {
		return r, err
	}
	err = errors.Join(json.Unmarshal(env, &r.Env), json.Unmarshal(metadata, &r.Metadata), json.Unmarshal(resources, &r.Resources),
		json.Unmarshal(network, &r.Network))
	return r, err
}

// InsertSandboxWithin adds a record unless that would be one too many: fault.QuotaExceeded. An id that is taken:
// fault.Conflict.
func (s *Store) InsertSandboxWithin(ctx context.Context, r sandbox.Record, q sandbox.Quota) error {
	env, err1 := json.Marshal(orEmpty(r.Env))
	metadata, err2 := json.Marshal(orEmpty(r.Metadata))
	resources, err3 := json.Marshal(r.Resources)
	network, err4 := json.Marshal(r.Network)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return fmt.Errorf("insert sandbox %s: %w", r.ID, err)
	}
	return s.write(ctx, "insert sandbox "+string(r.ID), func(tx *sql.Tx) error {
		if err := withinQuota(ctx, tx, r.WorkspaceID, q); err != nil {
			return err
		}
		res, err := tx.ExecContext(ctx, `INSERT INTO sandboxes (`+sandboxColumns+`)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING`,
			append([]any{
				r.ID, r.WorkspaceID, r.Label, r.Image, r.OwnerKind, r.OwnerID, r.OwnerName, r.Status, r.Reason, r.Cwd, r.User,
				string(env), string(metadata), string(resources), string(network), r.Persistent, r.Parent,
				micros(r.SavedAt), r.SavedBytes, micros(r.CreatedAt), micros(r.LastActivity), micros(r.EndedAt), max(r.Incarnation, 1),
			}, lifeValues(r)...)...)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return fault.Wrap(err, fault.Conflict, "There is a sandbox with this id already.")
		}
		return nil
	})
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

// SandboxByID gives a record, also one that is Gone.
func (s *Store) SandboxByID(ctx context.Context, id sandbox.ID) (sandbox.Record, error) {
	r, err := scanSandbox(s.hot.sandboxByID.QueryRowContext(ctx, id).Scan)
	return r, one(err, "read sandbox "+string(id), "Sandbox")
}

// Sandboxes lists records, newest first.
func (s *Store) Sandboxes(ctx context.Context, f sandbox.Filter) ([]sandbox.Record, error) {
	query, args := `SELECT `+sandboxColumns+` FROM `+alive, []any{}
	if f.IncludeGone {
		query = `SELECT ` + sandboxColumns + ` FROM sandboxes WHERE 1 = 1`
	}
	if f.WorkspaceID != "" {
		query, args = query+` AND workspace_id = ?`, append(args, f.WorkspaceID)
	}
	rows, err := s.ro.QueryContext(ctx, query+` ORDER BY created_at DESC, id`, args...)
	return collect(rows, err, "list sandboxes", scanSandbox)
}

// ChangeStatus moves a record from one status to another in one statement; false when it was not in from. Gone sets the end;
// one that was resumed is another incarnation.
func (s *Store) ChangeStatus(ctx context.Context, id sandbox.ID, from, to sandbox.Status, reason string, at time.Time) (changed bool, err error) {
	err = s.write(ctx, "change status of sandbox "+string(id), func(tx *sql.Tx) error {
		var ended int64
		if to == sandbox.Gone {
			ended = micros(at)
		}
		res, err := tx.ExecContext(ctx, `UPDATE sandboxes SET status = ?, reason = ?, ended_at = max(ended_at, ?), incarnation = incarnation + ?
			WHERE id = ? AND status = ?`, to, reason, ended, from == sandbox.Resuming && to == sandbox.Running, id, from)
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		if changed = n == 1; changed && to == sandbox.Gone {
			_, err = tx.ExecContext(ctx, `DELETE FROM sandbox_steps WHERE sandbox_id = ?`, id)
		}
		return err
	})
	return changed, err
}

// SetNetwork keeps what a sandbox may reach.
func (s *Store) SetNetwork(ctx context.Context, id sandbox.ID, p sandbox.NetworkPolicy) error {
	network, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("set network of sandbox %s: %w", id, err)
	}
	return s.write(ctx, "set network of sandbox "+string(id), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE sandboxes SET network = ? WHERE id = ?`, string(network), id)
		return err
	})
}

// NoteSave keeps when a sandbox was saved last and how large that is.
func (s *Store) NoteSave(ctx context.Context, id sandbox.ID, at time.Time, bytes int64) error {
	return s.write(ctx, "note a save of sandbox "+string(id), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE sandboxes SET saved_at = ?, saved_bytes = ? WHERE id = ?`, micros(at), bytes, id)
		return err
	})
}

// keptSteps is how many steps of one sandbox are kept: those of its last few passages.
const keptSteps = 64

// NoteStep writes the intent of a host change before it happens. The oldest of many is forgotten, all of them when the
// sandbox is gone.
func (s *Store) NoteStep(ctx context.Context, id sandbox.ID, step string, at time.Time) error {
	return s.write(ctx, "note step of sandbox "+string(id), func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO sandbox_steps (sandbox_id, step, at) VALUES (?, ?, ?)`, id, step, micros(at)); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `DELETE FROM sandbox_steps WHERE sandbox_id = ?1 AND seq <=
			(SELECT seq FROM sandbox_steps WHERE sandbox_id = ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2)`, id, keptSteps)
		return err
	})
}

// Steps lists the steps noted for a sandbox, oldest first.
func (s *Store) Steps(ctx context.Context, id sandbox.ID) ([]string, error) {
	rows, err := s.ro.QueryContext(ctx, `SELECT step FROM sandbox_steps WHERE sandbox_id = ? ORDER BY seq`, id)
	return collect(rows, err, "list steps of sandbox "+string(id), func(scan func(...any) error) (step string, err error) {
		err = scan(&step)
		return step, err
	})
}

const (
	// idempotencyLife is how long a repeated create is recognised.
	idempotencyLife = 24 * time.Hour
	// idempotencyOrphan is after how long a key whose sandbox has no record yet is forgotten: the server crashed between
	// the two.
	idempotencyOrphan = 2 * time.Minute
)

// ClaimIdempotencyKey binds a key of a workspace to a request (its digest) and the sandbox that it will make. claimed
// false: it was bound before, to the digest and the sandbox returned.
func (s *Store) ClaimIdempotencyKey(ctx context.Context, workspaceID, key, digest string, id sandbox.ID, at time.Time) (
	claimed bool, haveDigest string, haveID sandbox.ID, err error,
) {
	err = s.write(ctx, "claim idempotency key", func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM idempotency_keys WHERE at < ? OR
			at < ? AND NOT EXISTS (SELECT 1 FROM sandboxes WHERE id = sandbox_id)`, micros(at.Add(-idempotencyLife)), micros(at.Add(-idempotencyOrphan))); err != nil {
			return err
		}
		res, err := tx.ExecContext(ctx, `INSERT INTO idempotency_keys (workspace_id, key, digest, sandbox_id, at) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT (workspace_id, key) DO NOTHING`, workspaceID, key, digest, id, micros(at))
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		if err != nil {
			return err
		}
		claimed = n == 1
		return tx.QueryRowContext(ctx, `SELECT digest, sandbox_id FROM idempotency_keys WHERE workspace_id = ? AND key = ?`, workspaceID, key).
			Scan(&haveDigest, &haveID)
	})
	return claimed, haveDigest, haveID, err
}

// ReleaseIdempotencyKey forgets a key whose create failed, so that it can be tried again.
func (s *Store) ReleaseIdempotencyKey(ctx context.Context, workspaceID, key string) error {
	return s.write(ctx, "release idempotency key", func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM idempotency_keys WHERE workspace_id = ? AND key = ?`, workspaceID, key)
		return err
	})
}
