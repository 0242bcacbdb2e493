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

var _ sandbox.Snapshots = (*Store)(nil)

const snapshotColumns = `id, workspace_id, name, image, sandbox_id, owner_kind, owner_id, owner_name, cwd, user, env, resources, network,
	bytes, ready, created_at, used_at`

func scanSnapshot(scan func(...any) error) (s sandbox.Snapshot, err error) {
	var env, resources, network []byte
	err = scan(
		&s.ID, &s.WorkspaceID, &s.Name, &s.Image, &s.SandboxID, &s.OwnerKind, &s.OwnerID, &s.OwnerName, &s.Cwd, &s.User,
		&env, &resources, &network, &s.Bytes, &s.Ready,
		timeColumn{&s.CreatedAt},
		timeColumn{&s.UsedAt},
	)
	if err != nil {
		return s, err
	}
	return s, errors.Join(json.Unmarshal(env, &s.Env), json.Unmarshal(resources, &s.Resources), json.Unmarshal(network, &s.Network))
}

// InsertSnapshotWithin adds a snapshot unless its workspace has its quota full: fault.QuotaExceeded.
func (s *Store) InsertSnapshotWithin(ctx context.Context, n sandbox.Snapshot, q sandbox.SnapshotQuota) error {
	env, err1 := json.Marshal(orEmpty(n.Env))
	resources, err2 := json.Marshal(n.Resources)
	network, err3 := json.Marshal(n.Network)
	if err := errors.Join(err1, err2, err3); err != nil {
		return fmt.Errorf("insert snapshot %s: %w", n.ID, err)
	}
	return s.write(ctx, "insert snapshot "+string(n.ID), func(tx *sql.Tx) error {
		count, bytes, err := snapshotsOf(ctx, tx, n.WorkspaceID)
		if err != nil {
			return err
		}
		if q.Count > 0 && count >= q.Count {
			return fault.New(fault.QuotaExceeded, "This workspace has %d snapshots, which is as many as it may have: delete one that is not needed.", count)
		}
		if q.Bytes > 0 && bytes >= q.Bytes {
			return snapshotsFull(q)
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO snapshots (`+snapshotColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			n.ID, n.WorkspaceID, n.Name, n.Image, n.SandboxID, n.OwnerKind, n.OwnerID, n.OwnerName, n.Cwd, n.User,
			string(env), string(resources), string(network), n.Bytes, n.Ready, micros(n.CreatedAt), micros(n.UsedAt))
		return err
	})
}

func snapshotsOf(ctx context.Context, tx *sql.Tx, workspaceID string) (count int, bytes int64, err error) {
	err = tx.QueryRowContext(ctx, `SELECT count(*), coalesce(sum(bytes), 0) FROM snapshots WHERE workspace_id = ?`, workspaceID).Scan(&count, &bytes)
	return count, bytes, err
}

func snapshotsFull(q sandbox.SnapshotQuota) error {
	return fault.New(fault.QuotaExceeded, "The snapshots of a workspace may take %d MiB of the host's disk, and there is no room for one more: delete one that is not needed.", q.Bytes>>20)
}

// FinishSnapshot notes that a snapshot is whole, unless it is more than the quota allows: fault.QuotaExceeded.
func (s *Store) FinishSnapshot(ctx context.Context, id sandbox.SaveID, bytes int64, q sandbox.SnapshotQuota) error {
	return s.write(ctx, "finish snapshot "+string(id), func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `UPDATE snapshots SET bytes = ?, ready = 1 WHERE id = ?`, bytes, id)
		if err := some(res, err, "Snapshot"); err != nil {
			return err
		}
		var workspaceID string
		if err := tx.QueryRowContext(ctx, `SELECT workspace_id FROM snapshots WHERE id = ?`, id).Scan(&workspaceID); err != nil {
			return err
		}
		_, sum, err := snapshotsOf(ctx, tx, workspaceID)
		if err == nil && q.Bytes > 0 && sum > q.Bytes {
			err = snapshotsFull(q)
		}
		return err
	})
}

// SnapshotByID gives a snapshot, also one that is not ready.
func (s *Store) SnapshotByID(ctx context.Context, id sandbox.SaveID) (sandbox.Snapshot, error) {
	n, err := scanSnapshot(s.ro.QueryRowContext(ctx, `SELECT `+snapshotColumns+` FROM snapshots WHERE id = ?`, id).Scan)
	return n, one(err, "read snapshot "+string(id), "Snapshot")
}

// Snapshots lists a workspace's, or with "" all there are, newest first.
func (s *Store) Snapshots(ctx context.Context, workspaceID string) ([]sandbox.Snapshot, error) {
	rows, err := s.ro.QueryContext(ctx, `SELECT `+snapshotColumns+` FROM snapshots WHERE ? IN ('', workspace_id) ORDER BY created_at DESC, id`, workspaceID)
	return collect(rows, err, "list snapshots", scanSnapshot)
}

// TouchSnapshot notes that a sandbox was started from a snapshot.
func (s *Store) TouchSnapshot(ctx context.Context, id sandbox.SaveID, at time.Time) error {
	return s.write(ctx, "touch snapshot "+string(id), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE snapshots SET used_at = max(used_at, ?) WHERE id = ?`, micros(at), id)
		return err
	})
}

// DeleteSnapshot forgets a snapshot and the secrets that were sealed for it; none: nil.
func (s *Store) DeleteSnapshot(ctx context.Context, id sandbox.SaveID) error {
	return s.write(ctx, "delete snapshot "+string(id), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM sandbox_secrets WHERE sandbox_id = ?`, id)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM snapshots WHERE id = ?`, id)
		return err
	})
}
